//! Pruning a session on a real model: computed again it is exact, with the later KV kept it is
//! close, and how close is printed (`-- --nocapture`).

use dunlin_engine::{Completion, Engine, EngineConfig, Request};
use dunlin_executor::sampler::SamplingParams;
use dunlin_kvcache::TenantId;
use dunlin_model::{CpuModel, LoadOptions};
use dunlin_scheduler::{Keep, SessionUse};
use dunlin_tokenizer::EncodeOptions;
use dunlin_units::SessionId;

const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const TENANT: TenantId = TenantId(0);

/// A text of parts that follow each other loosely, as notes of a session do.
const TEXT: &str = "The town lies where the river meets the sea. Its harbour was built in 1604 and \
has been rebuilt twice since, once after a storm and once after a fire. The lighthouse on the north \
pier is the oldest on this coast. Every autumn the fishing fleet returns with herring, and the \
market on the quay opens before dawn. The museum in the old customs house keeps the ship models of \
two centuries, the log of the whaler Hope, and a map drawn by its mate. On Sundays the choir sings \
in the chapel of the sailors. The railway came in 1871 and brought the summer guests; the grand \
hotel on the promenade had a hundred rooms, electric light and a band. After the war the shipyard \
closed, and many families moved away. Today a wind park stands ten miles out, and its crews live in \
the houses that the fishermen left. The school teaches navigation again. A ferry leaves for the \
islands at eight in the morning and comes back at six in the evening, except in January.";

const QUESTIONS: [&str; 4] = [
    "\nThe ferry leaves for the islands at",
    "\nThe wind park stands",
    "\nAfter the war the shipyard",
    "\nIn the old customs house there is a museum, which keeps",
];

fn ask(engine: &mut Engine<CpuModel>, session: SessionId, question: Vec<u32>) -> Completion {
    let mut request = Request::new(question, SamplingParams::greedy(), Some(1));
    request.logprobs = Some(20);
    request.session = Some(SessionUse { session, keep: Keep::Nothing });
    engine.complete(request, |_| {}).unwrap()
}

/// Half the summed difference of the probabilities of the exact answer's best tokens: at most the
/// total variation distance.
fn distance(exact: &Completion, other: &Completion) -> f64 {
    let top = |c: &Completion| c.choices[0].logprobs.as_ref().expect("asked for")[0].top.clone();
    let (exact, other) = (top(exact), top(other));
    let of = |token: u32| other.iter().find(|t| t.token == token).map_or(0.0, |t| t.logprob.exp());
    exact.iter().map(|t| (t.logprob.exp() - of(t.token)).abs()).sum::<f64>() / 2.0
}

#[test]
fn kept_kv_answers_nearly_as_computed_kv_does() {
    let Some(path) = dunlin_testkit::models::find(MODEL, "pruning with later KV kept") else {
        return;
    };
    let options = LoadOptions { context: Some(512), kv_tokens: Some(2048), ..<_>::default() };
    let loaded = dunlin_model::load(&path, &options).expect("the default model loads");
    let plain = EncodeOptions { add_special: false, parse_special: false };
    let encode = |text: &str| loaded.tokenizer.encode(text, plain).unwrap();
    let text = encode(TEXT);
    let questions: Vec<Vec<u32>> = QUESTIONS.iter().map(|q| encode(q)).collect();
    let mut engine = Engine::new(loaded.backend, None, EngineConfig::new(512)).unwrap();
    let (whole, exact, kept) = (SessionId(1), SessionId(2), SessionId(3));
    engine.append_session(whole, TENANT, text.clone()).unwrap();
    engine.run(|_| {});
    let mut worst = 0.0f64;
    let (mut all, mut same) = (Vec::new(), 0);
    for range in [10..60, 31..64, 90..150, 60..160] {
        engine.fork_session(whole, exact).unwrap();
        engine.fork_session(whole, kept).unwrap();
        engine.prune_session(exact, range.clone()).unwrap();
        engine.run(|_| {});
        assert_eq!(engine.prune_session_keeping(kept, range.clone()).unwrap(), None);
        let tokens = [&text[..range.start], &text[range.end..]].concat();
        for session in [exact, kept] {
            assert_eq!(engine.session_tokens(session).unwrap(), tokens);
        }
        for question in &questions {
            let a = ask(&mut engine, exact, question.clone());
            let b = ask(&mut engine, kept, question.clone());
            let distance = distance(&a, &b);
            println!("{range:?}: distance {distance:.4}");
            worst = worst.max(distance);
            all.push(distance);
            same += usize::from(a.choices[0].token_ids == b.choices[0].token_ids);
        }
        engine.close_session(exact).unwrap();
        engine.close_session(kept).unwrap();
    }
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    println!("mean {mean:.4}, worst {worst:.4}, same first token {same} of {}", all.len());
    assert!(mean > 0.0, "kept KV still knows what was removed");
    assert!(mean < 0.1 && worst < 0.4, "mean {mean}, worst {worst}");
}
