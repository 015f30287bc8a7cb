//! The law under load, on a real model: whatever else runs, whatever is preempted, evicted, swapped
//! to disk or shared, a request's tokens and log-probabilities are those of the same request alone
//! with an empty cache. And the run that showed it, recorded, replays to the same plans.

use std::collections::BTreeMap;

use dunlin_engine::{
    CancelFlag, Completion, DiskTierConfig, Engine, EngineConfig, Event, Finish, Request, recorder,
};
use dunlin_executor::sampler::SamplingParams;
use dunlin_kvcache::TenantId;
use dunlin_model::{CpuModel, LoadOptions, LoadedModel};
use dunlin_scheduler::{Chunking, Class};
use dunlin_tokenizer::EncodeOptions;
use dunlin_units::{RequestId, SeedTree};

const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const REQUESTS: usize = 64;
/// The most tokens of a request.
const CONTEXT: usize = 512;
/// KV for about five of the requests at once, as they begin; not when they have grown.
const KV_TOKENS: usize = 1024;

const TEXT: &str = "The dunlin is a small wader that breeds in northern Europe and Asia. It crosses \
oceans on little fuel, and flies in flocks that turn as one. In winter it gathers on mudflats and \
estuaries, where it feeds on worms and snails that the tide leaves behind. The bill is long and \
slightly curved, the back chestnut in summer, and the belly black; in winter both turn grey. Its \
call is a rolling trill, heard over moors from April on. Four eggs lie in a nest on the ground, \
hidden in a tuft of grass, and both parents sit on them for three weeks. The young leave the nest \
on the first day and feed themselves. When the tide comes in, flocks of many thousands rise \
together, a cloud that is dark one moment and white the next, and settle on higher ground until the \
water falls again. How they keep from colliding has been measured with high-speed cameras: each \
bird follows the seven that are nearest to it, and a turn runs through the flock faster than any \
single bird could pass it on.";

fn load(options: &LoadOptions) -> Option<LoadedModel> {
    let path = dunlin_testkit::models::find(MODEL, "the same bits under load")?;
    Some(dunlin_model::load(&path, options).expect("the default model loads"))
}

/// The requests, all different; some begin alike, some are sampled, some part into choices.
fn requests(tokens: &[u32], seed: u64) -> Vec<Request> {
    let mut stream = SeedTree::root(seed).child("requests").stream();
    let mut below = |n: usize| (stream.next_u64() % n as u64) as usize;
    (0..REQUESTS)
        .map(|i| {
            // Four families share a beginning of 130 tokens; the rest begin anywhere.
            let mut prompt = if i % 2 == 0 {
                let from = 17 * (i / 2 % 4);
                tokens[from..from + 130].to_vec()
            } else {
                Vec::new()
            };
            let own = 1 + if i % 7 == 0 { below(300) } else { below(60) };
            let from = below(tokens.len());
            prompt.extend(tokens.iter().cycle().skip(from).take(own));
            let sampling = match i % 4 {
                0 => SamplingParams { temperature: 0.0, ..SamplingParams::default() },
                1 => SamplingParams { temperature: 1.0, ..SamplingParams::default() },
                2 => SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.9, ..<_>::default() },
                _ => SamplingParams {
                    temperature: 0.7,
                    repetition_penalty: 1.2,
                    ..SamplingParams::default()
                },
            };
            let sampling = SamplingParams { seed: i as u64, ..sampling };
            let mut request = Request::new(
                prompt,
                sampling,
                Some(if i % 3 == 0 { 70 + below(60) } else { 4 + below(30) }),
            );
            request.choices = if i % 9 == 4 { 3 } else { 1 };
            request.logprobs = Some(3);
            request.tenant = TenantId(u32::from(i % 5 == 0));
            request.class = [Class::Normal, Class::High, Class::Low][i % 3];
            request
        })
        .collect()
}

fn config(model: &LoadedModel) -> EngineConfig {
    let mut config = EngineConfig::new(CONTEXT);
    config.model.fingerprint = 1;
    config.threads = 2;
    config.max_step_tokens = Some(192);
    assert_eq!(model.spec().vocab_size, 49152);
    config
}

/// All requests at once and one after another, with aborts.
fn run_together(
    engine: &mut Engine<CpuModel>,
    requests: &[Request],
    aborted: &[usize],
) -> Vec<Completion> {
    let mut names = BTreeMap::<RequestId, usize>::new();
    let mut flags = BTreeMap::<usize, CancelFlag>::new();
    let mut done = vec![None; requests.len()];
    let mut tokens = vec![0; requests.len()];
    let (mut next, mut step) = (0, 0);
    loop {
        // They arrive in bursts of different sizes.
        while next < requests.len() && next < 12 + step * 3 {
            let request = requests[next].clone();
            flags.insert(next, request.cancel.clone());
            names.insert(engine.submit(request).expect("it fits"), next);
            next += 1;
        }
        let more = engine.step(&mut |event| match event {
            Event::Token { request, .. } => tokens[names[&request]] += 1,
            Event::Text { .. } => {}
            Event::Finished { request, completion } => done[names[&request]] = Some(completion),
        });
        for &i in aborted {
            // Some while they wait or compute their prompt, some after a few tokens.
            if flags.contains_key(&i) && (i % 2 == 0 || tokens[i] > 2) {
                flags[&i].cancel();
            }
        }
        step += 1;
        if !more && next == requests.len() {
            break;
        }
    }
    done.into_iter().map(|c| c.expect("every request ends")).collect()
}

#[test]
fn sixty_four_requests_give_what_each_gives_alone() {
    let seed = 20_26;
    println!("seed {seed}");
    let options = LoadOptions {
        threads: Some(2),
        context: Some(CONTEXT),
        kv_tokens: Some(KV_TOKENS),
        ..LoadOptions::default()
    };
    let Some(model) = load(&options) else { return };
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("run.log");
    let tokens = model
        .tokenizer
        .encode(TEXT, EncodeOptions { add_special: false, parse_special: false })
        .unwrap();
    assert!(tokens.len() > 200);
    let requests = requests(&tokens, seed);
    let aborted = [5, 16, 27, 38, 49];

    let mut settings = config(&model);
    settings.record = Some(record.clone());
    settings.chunking = Chunking::Tokens(96);
    settings.disk =
        Some(DiskTierConfig { folder: folder.path().into(), blocks: 24, bytes_per_s: 1 << 32 });
    let mut engine =
        Engine::new(model.backend, Some(model.tokenizer.clone()), settings.clone()).unwrap();
    let together = run_together(&mut engine, &requests, &aborted);
    engine.flush_record().unwrap();

    // The run was what it is meant to be.
    let stats = engine.core().kv().stats();
    let sum = |f: fn(&dunlin_engine::Bill) -> usize| -> usize {
        together.iter().map(|c| f(&c.bill)).sum()
    };
    println!(
        "{} steps, {} preemptions, {} tokens found in the cache, {} computed again, {stats:?}",
        engine.stats().totals.steps,
        sum(|b| b.preemptions),
        sum(|b| b.cached_tokens),
        sum(|b| b.recomputed_tokens),
    );
    assert!(sum(|b| b.preemptions) > 0 && sum(|b| b.cached_tokens) > 0);
    assert!(stats.evictions > 0 && stats.demotions > 0 && stats.loads > 0, "{stats:?}");
    engine.core().check().unwrap();
    let kv = engine.core().kv();
    assert_eq!(kv.available_blocks() + kv.leaving_blocks(), kv.config().block_count, "no leak");
    drop(engine);

    // Each alone, with nothing cached.
    let model = load(&options).unwrap();
    let mut settings = config(&model);
    settings.prefix_cache = false;
    let mut engine = Engine::new(model.backend, Some(model.tokenizer), settings).unwrap();
    for (i, (request, found)) in requests.iter().zip(&together).enumerate() {
        let mut request = request.clone();
        request.cancel = CancelFlag::new();
        let alone = engine.complete(request, |_| {}).unwrap();
        assert_eq!(alone.bill.cached_tokens, 0);
        assert_eq!(found.choices.len(), alone.choices.len());
        for (found, alone) in found.choices.iter().zip(&alone.choices) {
            let made = found.token_ids.len();
            if aborted.contains(&i) {
                assert_eq!(found.finish, Finish::Cancelled, "request {i}");
                assert!(made < alone.token_ids.len(), "request {i} was stopped in time");
            } else {
                assert_eq!(
                    (found.finish.clone(), &found.text),
                    (alone.finish.clone(), &alone.text)
                );
                assert_eq!(made, alone.token_ids.len(), "request {i}");
            }
            assert_eq!(found.token_ids, alone.token_ids[..made], "request {i}");
            let (found, alone) = (found.logprobs.as_ref(), alone.logprobs.as_ref());
            assert_eq!(found.unwrap()[..], alone.unwrap()[..made], "request {i}");
        }
    }

    let report = recorder::replay(&record).unwrap();
    assert!(report.difference.is_none(), "{:?}", report.difference);
    assert!(!report.truncated);
    assert_eq!((report.requests, report.finished), (REQUESTS as u64, REQUESTS as u64));
    assert!(report.preemptions > 0);
}
