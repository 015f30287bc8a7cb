//! Real models under constraints: whatever they would say, every answer is of the form, and the same
//! in a batch as alone; and embeddings have the same bits.

use std::path::Path;

use dunlin_engine::{Engine, EngineConfig};
use dunlin_executor::sampler::SamplingParams;
use dunlin_model::LoadOptions;
use dunlin_server::{
    constraint::Constraint,
    engine::EngineService,
    service::{Chat, Chunk, Finish, Generate, Input, ModelInfo, Service},
};
use dunlin_tensor::Backend;
use dunlin_testkit::models::find;
use dunlin_tokenizer::grammar::GrammarSource;
use serde_json::{Value, json};

type Engines = EngineService<Box<dyn Backend>>;

fn load(path: &Path) -> Engines {
    let options = LoadOptions { context: Some(1024), sequences: 16, ..LoadOptions::default() };
    let model = dunlin_model::load(path, &options).unwrap();
    let template = model.chat_template().map(Into::into);
    let backend: Box<dyn Backend> = Box::new(model.backend);
    let info = ModelInfo {
        id: "m".into(),
        context: 1024,
        vocab_size: backend.spec().vocab_size,
        created: 0,
        size_bytes: 0,
        architecture: String::new(),
        parameters: 0,
        quantization: String::new(),
        template,
        digest: String::new(),
    };
    let tokenizer = model.tokenizer;
    let engine = Engine::new(backend, Some(tokenizer.clone()), EngineConfig::new(1024)).unwrap();
    let service = Engines::new();
    service.set_model(engine, tokenizer, info).unwrap();
    service
}

fn ask(question: &str, source: GrammarSource, seed: u64) -> Generate {
    let messages = vec![json!({"role": "user", "content": question})];
    let chat = Input::Chat(Chat { messages, ..Chat::default() });
    // Hot enough that an unconstrained answer of these models is nearly never of the form.
    let sampling = SamplingParams { temperature: 1.2, seed, ..SamplingParams::default() };
    Generate {
        sampling,
        max_tokens: Some(300),
        constraint: Some(Constraint { source, field: "f" }),
        ..Generate::new("m".into(), chat)
    }
}

/// The text of an answer, and whether it ended by itself.
fn text(mut generation: dunlin_server::service::Generation) -> (String, bool) {
    let (mut text, mut whole) = (String::new(), false);
    while let Some(chunk) = generation.chunks.blocking_recv() {
        match chunk {
            Chunk::Token { text: more, .. } => text.push_str(&more),
            Chunk::End { finish: Finish::StopToken, .. } => whole = true,
            Chunk::End { finish: Finish::Length, .. } | Chunk::Done(_) => {}
            other => panic!("{other:?}"),
        }
    }
    (text, whole)
}

/// A schema, and what is independently wrong with an answer.
type Case = (Value, fn(&Value) -> Option<&'static str>);

fn cases() -> [Case; 3] {
    let person = json!({"type": "object", "additionalProperties": false,
        "required": ["name", "age", "tags"], "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "minItems": 1, "maxItems": 3,
                "items": {"enum": ["tall", "kind", "é\"x"]}},
            "nick": {"type": ["string", "null"], "maxLength": 5}}});
    let nested = json!({"type": "array", "minItems": 2, "maxItems": 2, "items": {"$ref": "#/$defs/p"},
        "$defs": {"p": {"type": "object", "required": ["x", "y"], "additionalProperties": false,
            "properties": {"x": {"type": "number", "minimum": -1, "maximum": 1},
                "y": {"anyOf": [{"type": "boolean"}, {"const": "z"}]}}}}});
    let date = json!({"type": "string", "pattern": "^[12][0-9]{3}-[01][0-9]$"});
    [
        (person, |value| {
            let object = value.as_object()?;
            let known = ["name", "age", "tags", "nick"];
            let name = object.get("name").and_then(Value::as_str);
            let age = object.get("age").and_then(Value::as_u64);
            let tags = object.get("tags").and_then(Value::as_array);
            let tag = |tag: &Value| ["tall", "kind", "é\"x"].map(Value::from).contains(tag);
            if !object.keys().all(|key| known.contains(&key.as_str())) {
                Some("a key of its own")
            } else if name.is_none_or(|name| name.chars().count() > 20) {
                Some("name")
            } else if age.is_none_or(|age| age > 150) {
                Some("age")
            } else if tags.is_none_or(|t| t.is_empty() || t.len() > 3 || !t.iter().all(tag)) {
                Some("tags")
            } else {
                let nick = object.get("nick").filter(|nick| !nick.is_null());
                let long = |nick: &Value| nick.as_str().is_none_or(|n| n.chars().count() > 5);
                nick.is_some_and(long).then_some("nick")
            }
        }),
        (nested, |value| {
            let items = value.as_array().filter(|items| items.len() == 2);
            let right = |item: &Value| {
                let x = item["x"].as_f64().is_some_and(|x| (-1.0..=1.0).contains(&x));
                x && (item["y"].is_boolean() || item["y"] == "z")
                    && item.as_object().is_some_and(|o| o.len() == 2)
            };
            (!items.is_some_and(|items| items.iter().all(right))).then_some("items")
        }),
        (date, |value| {
            let text = value.as_str().unwrap_or_default().as_bytes();
            let digits = |at: std::ops::Range<usize>| text[at].iter().all(u8::is_ascii_digit);
            let right = text.len() == 7 && text[4] == b'-' && digits(0..4) && digits(5..7);
            (!right).then_some("date")
        }),
    ]
}

fn check(file: &str) {
    let Some(path) = find(file, "answers of a given form") else { return };
    let service = load(&path);
    let run = |request: Generate| service.generate(request).unwrap();
    let questions = ["Describe somebody.", "Say something long."];
    let requests: Vec<(usize, Generate)> = cases()
        .iter()
        .enumerate()
        .flat_map(|(case, (schema, _))| {
            questions.iter().zip(1..).map(move |(question, seed)| {
                let source = GrammarSource::JsonSchema(schema.to_string());
                (case, ask(question, source, seed))
            })
        })
        .collect();
    let running: Vec<_> = requests.iter().map(|(case, r)| (*case, run(r.clone()))).collect();
    let answers: Vec<(usize, String, bool)> = running
        .into_iter()
        .map(|(case, generation)| {
            let (text, whole) = text(generation);
            (case, text, whole)
        })
        .collect();
    for (case, text, whole) in &answers {
        assert!(whole, "{file}: these schemas bound their answers: {text}");
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(cases()[*case].1(&value), None, "{file}: {text}");
    }
    // Alone, each has the same answer.
    for (i, (_, request)) in requests.iter().enumerate().step_by(3) {
        assert_eq!(text(run(request.clone())).0, answers[i].1, "{file}");
    }
    let choice = GrammarSource::Choice(vec!["Berlin".into(), "Ouagadougou".into()]);
    let (city, _) = text(run(ask("What is the capital of Germany?", choice, 1)));
    assert!(["Berlin", "Ouagadougou"].contains(&city.as_str()), "{city}");
    let (number, whole) =
        text(run(ask("A phone number.", GrammarSource::Regex("[0-9]{3}-[0-9]{4}".into()), 1)));
    assert!(whole && number.len() == 8 && number.as_bytes()[3] == b'-', "{number}");
    let nested = "root ::= \"(\" root \")\" | [a-c]{2,4}";
    let (nested, whole) = text(run(ask("Go on.", GrammarSource::Grammar(nested.into()), 1)));
    let inner = nested.trim_start_matches('(').trim_end_matches(')');
    let depth = nested.len() - nested.trim_start_matches('(').len();
    assert!(!whole || nested.len() == inner.len() + 2 * depth, "{nested}");
    let embed = |text: &str| run(Generate::hidden("m".into(), Input::Text(text.into())));
    let state = |mut generation: dunlin_server::service::Generation| loop {
        match generation.chunks.blocking_recv() {
            Some(Chunk::Hidden(state)) => return state,
            Some(_) => {}
            None => panic!("no state came"),
        }
    };
    let texts = ["A cat.", "The cat sat on the mat and looked at me.", "Prices rose in May.", "x"];
    let alone: Vec<Vec<f32>> = texts.iter().map(|text| state(embed(text))).collect();
    let together: Vec<_> = texts.iter().map(|text| embed(text)).collect();
    let together: Vec<Vec<f32>> = together.into_iter().map(state).collect();
    assert!(alone == together, "{file}: states depend on the batch");
    assert!(
        alone[0].len() >= 256 && alone[0].iter().all(|x| x.is_finite()) && alone[0] != alone[1]
    );
    assert_eq!(service.stats().running, 0);
}

#[test]
fn smollm2_keeps_to_the_form() {
    check("SmolLM2-135M-Instruct.Q4_1.gguf");
}

#[test]
fn qwen_keeps_to_the_form() {
    check("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
}
