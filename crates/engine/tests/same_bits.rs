//! The engine over the CPU backend: batching, chunking, shared prompts, kept KV and samples
//! change no bit of a log-probability, whatever the model and the KV type.

use std::path::{Path, PathBuf};

use dunlin_engine::{
    Choice, Completion, DraftControl, DrafterKind, Engine, EngineConfig, Event, Request, Speculate,
    drafter::{Drafter, VocabularyMap, model::ModelDrafter},
};
use dunlin_executor::sampler::SamplingParams;
use dunlin_kvcache::TenantId;
use dunlin_model::{CpuModel, LoadOptions, LoadedModel, load};
use dunlin_scheduler::{Keep, SessionUse};
use dunlin_spec::KvType;
use dunlin_testkit::tiny;
use dunlin_units::{SeedTree, SessionId};

const SEED: u64 = 0x5A3E;
const CONTEXT: usize = 200;
const SESSION: SessionId = SessionId(3);

/// Usual settings.
fn usual() -> EngineConfig {
    EngineConfig::new(CONTEXT)
}

/// Every prompt is computed from its first token.
fn forgetful() -> EngineConfig {
    EngineConfig { prefix_cache: false, ..usual() }
}

fn engine(
    model: &std::path::Path,
    kv_type: KvType,
    kv_tokens: usize,
    config: EngineConfig,
) -> Engine<CpuModel> {
    let options = LoadOptions {
        threads: Some(2),
        kv_type,
        context: Some(CONTEXT),
        kv_tokens: Some(kv_tokens + 64),
        pack_folder: None,
        ..LoadOptions::default()
    };
    let loaded = load(model, &options).unwrap();
    Engine::new(loaded.backend, Some(loaded.tokenizer), config).unwrap()
}

fn request(seed: u64, prompt_len: usize, max_tokens: usize) -> Request {
    let prompt = tiny::random_tokens(seed, prompt_len);
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 1.0 };
    let sampling = SamplingParams { seed, temperature, ..SamplingParams::default() };
    Request { logprobs: Some(2), ..Request::new(prompt, sampling, Some(max_tokens)) }
}

fn alone(engine: &mut Engine<CpuModel>, request: &Request) -> Completion {
    engine.complete(request.clone(), |_| {}).unwrap()
}

fn together(engine: &mut Engine<CpuModel>, requests: &[Request]) -> Vec<Completion> {
    let ids: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let mut done = Vec::new();
    engine.run(|event| {
        if let Event::Finished { request, completion } = event {
            done.push((request, completion));
        }
    });
    done.sort_by_key(|(id, _)| *id);
    assert!(done.iter().map(|(id, _)| *id).eq(ids));
    done.into_iter().map(|(_, completion)| completion).collect()
}

/// Equal in every token and in every bit of every log-probability.
fn assert_same(a: &[Choice], b: &[Choice], what: &str) {
    assert_eq!(a, b, "{what} (seed {SEED})");
}

/// Runs a check for models that differ in what their KV and attention are like.
fn for_each_model(check: impl Fn(&mut dyn FnMut(usize, EngineConfig) -> Engine<CpuModel>, &str)) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["llama-q4_1", "gemma3-q5_0", "qwen3"] {
        let path = tiny::named(name).write_gguf(folder.path());
        for kv_type in [KvType::F32, KvType::F16, KvType::Int8] {
            let label = format!("{name}, {kv_type} KV");
            check(&mut |kv_tokens, config| engine(&path, kv_type, kv_tokens, config), &label);
        }
    }
}

#[test]
fn a_batch_of_strangers_gives_what_each_gets_alone() {
    for_each_model(|open, label| {
        let mut random = SeedTree::root(SEED).child(label).stream();
        let requests: Vec<Request> = (0..12)
            .map(|seed| {
                let prompt_len = 1 + random.next_below(120) as usize;
                let mut request = request(seed, prompt_len, 1 + random.next_below(30) as usize);
                request.choices = 1 + random.next_below(3) as u32;
                request
            })
            .collect();
        let mut single = open(4 * CONTEXT, forgetful());
        let alone: Vec<Completion> = requests.iter().map(|r| alone(&mut single, r)).collect();
        // Room for all at once, and room for so few that they wait for each other.
        for kv_tokens in [40 * CONTEXT, 4 * CONTEXT] {
            let batch = together(&mut open(kv_tokens, usual()), &requests);
            for (i, (a, b)) in alone.iter().zip(&batch).enumerate() {
                assert_same(&a.choices, &b.choices, &format!("{label}: request {i}"));
            }
        }
    });
}

#[test]
fn each_sample_is_what_it_would_be_without_the_others() {
    for_each_model(|open, label| {
        let mut engine = open(5 * CONTEXT, forgetful());
        for prompt_len in [1, 15, 16, 17, 33, 64] {
            let mut request = request(7, prompt_len, 20);
            request.choices = 5;
            let five = alone(&mut engine, &request);
            for fewer in 1..5 {
                request.choices = fewer;
                let some = alone(&mut engine, &request);
                let n = fewer as usize;
                assert_same(&some.choices, &five.choices[..n], &format!("{label}: {prompt_len}"));
            }
        }
    });
}

#[test]
fn kept_kv_is_as_good_as_new() {
    for_each_model(|open, label| {
        let (mut kept, mut fresh) = (open(2 * CONTEXT, usual()), open(2 * CONTEXT, forgetful()));
        let mut history = Vec::new();
        // How much of the history the next prompt keeps: all of it, or up to a place inside a
        // block, which is then written over.
        for (turn, keep) in [0usize, 999, 999, 37, 999, 5, 48].into_iter().enumerate() {
            history.truncate(keep);
            let mut request = request(20 + turn as u64, 9, 14);
            history.append(&mut request.prompt);
            request.prompt = history.clone();
            let expected = alone(&mut fresh, &request);
            request.prompt = kept.align_session(SESSION, &request.prompt).unwrap();
            request.session = Some(SessionUse { session: SESSION, keep: Keep::All });
            let resumed = alone(&mut kept, &request);
            assert_same(&expected.choices, &resumed.choices, &format!("{label}: turn {turn}"));
            if turn > 0 {
                assert!(resumed.bill.cached_tokens > 0, "{label}: turn {turn}");
                assert!(resumed.bill.context_tokens > 0, "{label}: turn {turn}");
            }
            history = kept.session_tokens(SESSION).unwrap().to_vec();
        }
    });
}

/// A model, on the threads of another if there is one.
fn loaded(path: &Path, team: Option<&CpuModel>) -> LoadedModel {
    let options = LoadOptions {
        threads: Some(2),
        context: Some(CONTEXT),
        kv_tokens: Some(20 * CONTEXT),
        pack_folder: None,
        team: team.map(|model| model.team().clone()),
        ..LoadOptions::default()
    };
    load(path, &options).unwrap()
}

/// An engine that verifies all that is drafted, with a draft model or without.
fn speculating(path: &Path, draft: Option<&Path>) -> Engine<CpuModel> {
    let target = loaded(path, None);
    let drafter = |path: &Path| {
        let draft = loaded(path, Some(&target.backend));
        let vocabulary = VocabularyMap::new(&target.tokenizer, &draft.tokenizer).unwrap();
        Box::new(ModelDrafter::new(draft.backend, vocabulary)) as Box<dyn Drafter>
    };
    let drafters = draft.map(drafter).into_iter().collect();
    let config =
        EngineConfig { draft_control: DraftControl::Fixed, draft_store_tokens: 1 << 14, ..usual() };
    Engine::with_drafters(target.backend, Some(target.tokenizer), config, drafters).unwrap()
}

#[test]
fn drafts_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let other = tiny::named("gemma3-q5_0").write_gguf(folder.path());
    for name in ["llama-q4_1", "qwen3"] {
        let path = tiny::named(name).write_gguf(folder.path());
        let mut plain = speculating(&path, None);
        let requests: Vec<Request> = (0..5u64)
            .map(|seed| {
                let mut request = request(seed, 20, 30);
                // Twice the same, and few tokens to choose from: lookup finds something.
                request.prompt = request.prompt.repeat(2);
                request.sampling.top_k = 3;
                request.choices = 1 + (seed % 2) as u32;
                request
            })
            .collect();
        let wanted: Vec<Completion> = requests.iter().map(|r| alone(&mut plain, r)).collect();
        for (draft, speculate) in [
            (None, Speculate::Only(DrafterKind::Lookup)),
            (Some(&path), Speculate::Only(DrafterKind::Model)),
            (Some(&other), Speculate::Auto),
        ] {
            let mut engine = speculating(&path, draft.map(PathBuf::as_path));
            let asked: Vec<Request> =
                requests.iter().map(|r| Request { speculate, ..r.clone() }).collect();
            let mut accepted = 0;
            for (i, request) in asked.iter().enumerate() {
                let one = alone(&mut engine, request);
                accepted += one.bill.accepted_tokens;
                assert_same(&wanted[i].choices, &one.choices, &format!("{name}, {speculate}: {i}"));
            }
            assert!(accepted > 0, "{name}, {speculate}: no draft was accepted");
            for (i, (a, b)) in wanted.iter().zip(&together(&mut engine, &asked)).enumerate() {
                let what = format!("{name}, {speculate}: {i} with others");
                assert_same(&a.choices, &b.choices, &what);
            }
        }
    }
}

#[test]
fn earlier_answers_draft_for_their_tenant_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::named("llama-q4_1").write_gguf(folder.path());
    let mut engine = speculating(&path, None);
    let requests: Vec<Request> = (0..4).map(|seed| request(seed, 20, 30)).collect();
    let plain: Vec<Completion> = requests.iter().map(|r| alone(&mut engine, r)).collect();
    engine.draft_store_mut().forget();
    let mut accepted = |tenant| {
        let mut sum = 0;
        for (request, plain) in requests.iter().zip(&plain) {
            let speculate = Speculate::Only(DrafterKind::Store);
            let tenant = TenantId(tenant);
            let done = alone(&mut engine, &Request { speculate, tenant, ..request.clone() });
            assert_same(&plain.choices, &done.choices, "drafts from the store");
            sum += done.bill.accepted_tokens;
        }
        sum
    };
    assert_eq!(accepted(1), 0, "nothing is known yet");
    let own = accepted(1);
    assert!(own >= 4 * 20, "{own}: the same answers are drafted whole");
    assert_eq!(accepted(2), 0, "another tenant's answers");
}
