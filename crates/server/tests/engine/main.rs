//! The engine behind the service, on a toy backend: cancelling, a full queue of events, an engine
//! that dies.

mod constraint;
mod sessions;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dunlin_engine::{DrafterKind, Engine, EngineConfig, Speculate};
use dunlin_executor::sampler::SamplingParams;
use dunlin_server::{
    engine::{EngineService, Speculation},
    service::{
        Chat, ChatEnding, Chunk, Finish, Generate, Generation, Health, Input, ModelInfo, Service,
        ServiceError,
    },
};
use dunlin_testkit::toy::Toy;
use dunlin_tokenizer::{TokenType, Tokenizer, VocabKind, VocabSource, build_image};
use serde_json::json;

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV";

/// 48 letters, the end, and a token on which the toy panics.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<Vec<u8>> = LETTERS.bytes().map(|letter| vec![letter]).collect();
    tokens.extend([b"<end>".to_vec(), b"!".to_vec()]);
    let mut types = vec![TokenType::Normal; Toy::VOCAB];
    types[48] = TokenType::Control;
    let mut source = VocabSource::new(VocabKind::Spm, tokens.iter().map(Vec::as_slice).collect());
    source.scores = Some(vec![0.0; tokens.len()]);
    source.token_types = Some(types);
    source.ids.eos = Some(48);
    source.end_ids = vec![48];
    Tokenizer::from_image(Arc::new(build_image(&source).unwrap())).unwrap()
}

const TEMPLATE: &str = "{% if messages[0].content == 'raise' %}{{ raise_exception('no') }}{% endif %}\
    {% for m in messages %}{{ m.content }}{% if not loop.last or add_generation_prompt %}x{% endif %}\
    {% endfor %}";

fn info() -> ModelInfo {
    ModelInfo {
        id: "toy".into(),
        context: 0,
        vocab_size: Toy::VOCAB,
        created: 0,
        size_bytes: 0,
        architecture: "toy".into(),
        parameters: 0,
        quantization: String::new(),
        template: Some(TEMPLATE.into()),
        digest: String::new(),
    }
}

fn service() -> EngineService<Toy> {
    let service = EngineService::new();
    assert_eq!(service.health(), Health::Loading);
    assert!(service.models().is_empty());
    let mut toy = Toy::new(200, 4, 16);
    toy.panics_on = Some(49);
    let engine = Engine::new(toy, Some(tokenizer()), EngineConfig::new(256)).unwrap();
    service.set_model(engine, tokenizer(), info()).unwrap();
    assert_eq!(service.health(), Health::Ready);
    service
}

/// A request that goes on to the context's end.
fn long(text: &str) -> Generate {
    let sampling = SamplingParams {
        logit_bias: vec![(48, f32::NEG_INFINITY), (49, f32::NEG_INFINITY)],
        ..SamplingParams::default()
    };
    Generate { sampling, ..Generate::new("toy".into(), Input::Text(text.into())) }
}

/// Everything that comes of a request.
fn all(mut generation: Generation) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    while let Some(chunk) = generation.chunks.blocking_recv() {
        chunks.push(chunk);
    }
    chunks
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn answers_come_whole_to_those_who_read_late() {
    let service = service();
    let request = Generate { choices: 3, logprobs: Some(2), ..long("abc") };
    let generation = service.generate(request).unwrap();
    assert_eq!(generation.prompt_tokens, 3);
    // Nobody reads until all is done.
    wait_until("the request ends", || service.stats().running == 0);
    let chunks = all(generation);
    let tokens = |wanted: u32| {
        chunks.iter().filter(move |chunk| {
            matches!(chunk, Chunk::Token { choice, logprobs: Some(l), .. }
                if *choice == wanted && l.top.len() == 2 && l.chosen.bytes.len() == 1)
        })
    };
    for choice in 0..3 {
        assert_eq!(tokens(choice).count(), 256 - 3);
    }
    let ends = chunks.iter().filter(|c| matches!(c, Chunk::End { finish: Finish::Length, .. }));
    assert_eq!(ends.count(), 3);
    let Some(Chunk::Done(usage)) = chunks.last() else { panic!("{:?}", chunks.last()) };
    assert_eq!((usage.prompt_tokens, usage.output_tokens), (3, 3 * 253));
}

#[test]
fn dropping_ends_a_request_wherever_it_is() {
    let service = service();
    let idle = service.stats();
    assert_eq!((idle.kv_blocks, idle.kv_blocks_used, idle.block_tokens), (200, 0, 4));
    // More than run at once, so that some wait; each is dropped before anybody read of it.
    let requests: Vec<_> =
        (0..40).map(|_| service.generate(long(&"abcdefgh".repeat(20))).unwrap()).collect();
    drop(requests);
    wait_until("all end", || {
        let stats = service.stats();
        stats.running + stats.waiting == 0
    });
    assert_eq!(service.stats().kv_blocks_used, 0);
    // One that has begun.
    let mut begun = service.generate(long("abc")).unwrap();
    assert!(begun.chunks.blocking_recv().is_some());
    drop(begun);
    wait_until("it ends", || service.stats().running == 0);
    assert_eq!(service.stats().kv_blocks_used, 0);
}

#[test]
fn stop_strings_and_tokens_are_told() {
    let service = service();
    let text: String = all(service.generate(long("abc")).unwrap())
        .iter()
        .filter_map(|chunk| match chunk {
            Chunk::Token { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let stop = text[5..8].to_string();
    let request = Generate { stop_strings: vec!["!!".into(), stop.clone()], ..long("abc") };
    let chunks = all(service.generate(request).unwrap());
    let end = Chunk::End { choice: 0, finish: Finish::StopString(stop) };
    assert!(chunks.contains(&end), "{chunks:?}");
    let mut ends = long("abc");
    ends.sampling.logit_bias = vec![(48, 1000.0)];
    let chunks = all(service.generate(ends.clone()).unwrap());
    assert_eq!(chunks[1], Chunk::End { choice: 0, finish: Finish::StopToken }, "{chunks:?}");
    let on = Generate { ignore_eos: true, max_tokens: Some(4), ..ends };
    let chunks = all(service.generate(on).unwrap());
    assert_eq!(chunks[4], Chunk::End { choice: 0, finish: Finish::Length });
}

#[test]
fn conversations_are_rendered_and_continued() {
    let service = service();
    let chat = |text: &str, ending| Chat {
        messages: vec![
            json!({"role": "user", "content": "a"}),
            json!({"role": "assistant", "content": text}),
        ],
        ending,
        ..Chat::default()
    };
    for (ending, rendered) in [
        (ChatEnding::Generation, "axbcx"),
        (ChatEnding::Closed, "axbc"),
        (ChatEnding::Continue, "axbc"),
    ] {
        assert_eq!(service.render("toy", &chat("bc", ending)).unwrap(), rendered, "{ending:?}");
    }
    assert_eq!(service.render("toy", &chat(" bc ", ChatEnding::Continue)).unwrap(), "ax bc");
    let empty = service.render("toy", &chat(" ", ChatEnding::Continue)).unwrap_err();
    assert!(matches!(empty, ServiceError::Unusable { field: Some("messages"), .. }), "{empty}");
    let raise =
        Chat { messages: vec![json!({"role": "user", "content": "raise"})], ..Chat::default() };
    let error = service.render("toy", &raise).unwrap_err();
    assert_eq!(error.to_string(), "messages: the chat template says: no");
    let tokens = service.encode("toy", &Input::Text("abc".into())).unwrap();
    assert_eq!(tokens, [0, 1, 2]);
    assert_eq!(service.decode("toy", &tokens).unwrap(), "abc");
}

#[test]
fn what_cannot_run_is_refused() {
    let service = service();
    let error = service.generate(long(&"a".repeat(300))).unwrap_err();
    assert_eq!(error, ServiceError::ContextExceeded { prompt: 300, context: 256 });
    let field = |request| match service.generate(request) {
        Err(ServiceError::Unusable { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(long("")), Some("prompt"));
    assert_eq!(field(Generate { choices: 1000, ..long("a") }), Some("n"));
    let tokens = Input::Tokens(vec![50]);
    assert_eq!(field(Generate { input: tokens, ..long("a") }), Some("prompt"));
    let mut hot = long("a");
    hot.sampling.temperature = f32::NAN;
    assert_eq!(field(hot), Some("temperature"));
}

#[test]
fn drafts_are_asked_for_by_request_and_by_the_operator() {
    let service = service();
    let usage = |speculate| {
        // Two tokens to choose from: what came before comes again.
        let mut request = Generate { speculate, ..long("abab") };
        request.sampling.temperature = 0.0;
        request.sampling.logit_bias = (2..50).map(|t| (t, f32::NEG_INFINITY)).collect();
        let chunks = all(service.generate(request).unwrap());
        let Some(Chunk::Done(usage)) = chunks.last() else { panic!("{chunks:?}") };
        (usage.drafted_tokens, chunks[..chunks.len() - 1].to_vec())
    };
    let lookup = Some(Speculate::Only(DrafterKind::Lookup));
    assert_eq!(usage(None).0, 0, "nobody has allowed it");
    let speculate = Speculate::Auto;
    service.set_speculation(Speculation {
        speculate,
        max_draft: 8,
        max_branches: 4,
        ..Speculation::default()
    });
    // Whether a draft pays is up to measured times, which a busy machine spoils now and then.
    let drafts = |speculate| (0..200).any(|_| usage(speculate).0 > 0);
    assert!(drafts(None) && drafts(lookup));
    let (_, chunks) = usage(None);
    let (none, plain) = usage(Some(Speculate::Off));
    assert_eq!((none, plain), (0, chunks));
    for kind in [DrafterKind::Model, DrafterKind::Layers] {
        let request = Generate { speculate: Some(Speculate::Only(kind)), ..long("a") };
        let error = service.generate(request).unwrap_err();
        assert!(
            matches!(error, ServiceError::Unusable { field: Some("speculate"), .. }),
            "{error}"
        );
    }
}

#[test]
fn an_engine_that_dies_is_told_of() {
    let service = service();
    let innocent = service.generate(long("abc")).unwrap();
    let fatal = service.generate(long("a!")).unwrap();
    // Nobody waits for ever.
    assert!(!matches!(all(fatal).last(), Some(Chunk::Done(_))));
    all(innocent);
    wait_until("health turns", || service.health() == Health::Dead);
    assert_eq!(service.generate(long("abc")).unwrap_err(), ServiceError::Unavailable);
    assert_eq!(service.stats(), dunlin_server::service::Stats::default());
}
