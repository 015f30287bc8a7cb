//! Grammars through the service: answers keep to them, other requests do not notice, and what is no
//! grammar never becomes an answer.

use dunlin_server::constraint::Constraint;
use dunlin_tokenizer::grammar::GrammarSource;

use super::*;

fn constrained(text: &str, source: GrammarSource) -> Generate {
    let constraint = Some(Constraint { source, field: "grammar" });
    Generate {
        constraint,
        max_tokens: Some(40),
        ..Generate::new("toy".into(), Input::Text(text.into()))
    }
}

fn text(chunks: &[Chunk], wanted: u32) -> String {
    let text = chunks.iter().filter_map(|chunk| match chunk {
        Chunk::Token { choice, text, .. } if *choice == wanted => Some(text.as_str()),
        _ => None,
    });
    text.collect()
}

#[test]
fn answers_keep_to_the_grammar_and_others_do_not_notice() {
    let service = service();
    let plain = |seed| {
        let mut request = long("abc");
        (request.sampling.seed, request.max_tokens) = (seed, Some(30));
        request
    };
    let alone: Vec<String> =
        (0..4).map(|seed| text(&all(service.generate(plain(seed)).unwrap()), 0)).collect();
    let mut running = Vec::new();
    for seed in 0..4 {
        let regex = GrammarSource::Regex("(ab|cd)+[A-F]{2}".into());
        let mut request = Generate { choices: 3, ..constrained("abc", regex) };
        request.sampling.seed = seed;
        running.push((service.generate(request).unwrap(), service.generate(plain(seed)).unwrap()));
    }
    for ((constrained, plain), alone) in running.into_iter().zip(alone) {
        assert_eq!(text(&all(plain), 0), alone);
        let chunks = all(constrained);
        for choice in 0..3 {
            let text = text(&chunks, choice);
            let ended = chunks.contains(&Chunk::End { choice, finish: Finish::StopToken });
            let body = text.trim_end_matches(|c: char| c.is_ascii_uppercase());
            let pairs = body.as_bytes().chunks(2);
            assert!(pairs.clone().all(|p| p == b"ab" || p == b"cd" || !ended), "{text}");
            assert!(!ended || text.len() == body.len() + 2, "{text}");
        }
    }
    wait_until("all end", || service.stats().running == 0);
    assert_eq!(service.stats().kv_blocks_used, 0);
}

#[test]
fn what_is_no_grammar_is_refused_by_its_field() {
    let service = service();
    for source in [
        GrammarSource::Regex("(".into()),
        GrammarSource::JsonSchema("{\"type\": 5}".into()),
        GrammarSource::Grammar("start: x".into()),
    ] {
        match service.generate(constrained("a", source)) {
            Err(ServiceError::Unusable { field: Some("grammar"), message }) => {
                assert!(message.starts_with("grammar: it cannot be used: "), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    // This vocabulary has no digits: it begins, and cannot go on.
    let stuck = constrained("a", GrammarSource::Regex("a1".into()));
    let chunks = all(service.generate(stuck).unwrap());
    assert!(
        matches!(&chunks[1], Chunk::End { finish: Finish::Stuck(why), .. } if why.contains("vocabulary")),
        "{chunks:?}"
    );
    let fine = constrained("a", GrammarSource::Choice(vec!["hello".into()]));
    assert_eq!(text(&all(service.generate(fine).unwrap()), 0), "hello");
}

#[test]
fn hidden_states_do_not_depend_on_the_batch() {
    let service = service();
    let state = |generation: Generation| {
        let chunks = all(generation);
        chunks.into_iter().find_map(|chunk| match chunk {
            Chunk::Hidden(state) => Some(state),
            _ => None,
        })
    };
    let ask = |text: &str| {
        service.generate(Generate::hidden("toy".into(), Input::Text(text.into()))).unwrap()
    };
    let texts: Vec<String> = (1..20).map(|n| LETTERS[n..2 * n].to_string()).collect();
    let alone: Vec<_> = texts.iter().map(|text| state(ask(text)).unwrap()).collect();
    let together: Vec<_> = texts.iter().map(|text| ask(text)).collect();
    let together: Vec<_> = together.into_iter().map(|g| state(g).unwrap()).collect();
    assert_eq!(alone, together);
    // The toy's is its first logit.
    let expected = Toy::logits_after(&[1])[0];
    assert_eq!(alone[0], [expected]);
}
