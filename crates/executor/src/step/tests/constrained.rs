//! Grammars, under the same plans.

use std::sync::Arc;

use dunlin_tokenizer::{
    TokenType, Tokenizer, VocabKind, VocabSource, build_image,
    grammar::{GrammarCompiler, GrammarError, GrammarSource},
};

use super::*;
use crate::sampler::SampleError;

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV";

/// 48 letters, the end, and a control token.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<Vec<u8>> = LETTERS.bytes().map(|letter| vec![letter]).collect();
    tokens.extend([b"<end>".to_vec(), b"<x>".to_vec()]);
    let mut types = vec![TokenType::Normal; Toy::VOCAB];
    types[48] = TokenType::Control;
    types[49] = TokenType::Control;
    let mut source = VocabSource::new(VocabKind::Spm, tokens.iter().map(Vec::as_slice).collect());
    source.scores = Some(vec![0.0; tokens.len()]);
    source.token_types = Some(types);
    source.ids.eos = Some(48);
    source.end_ids = vec![48];
    Tokenizer::from_image(Arc::new(build_image(&source).unwrap())).unwrap()
}

fn compile(source: &GrammarSource) -> Grammar {
    GrammarCompiler::new(&tokenizer()).unwrap().compile(source).unwrap()
}

#[test]
fn random_plans_with_drafts_and_grammars_give_what_plain_decoding_gives() {
    let grammars = [
        GrammarSource::Regex("([a-h]|[A-C][a-d]){3,20}".into()),
        GrammarSource::Grammar("start: \"a\" start \"b\" | /[c-z]/ start | \"D\"".into()),
        GrammarSource::Choice(vec!["abcdefgh".into(), "abcx".into(), "Z".into(), "Ua".into()]),
    ];
    let grammars: Vec<Grammar> = grammars.iter().map(compile).collect();
    // Two share each grammar's tables, beside those without one.
    random_plans(20, &|id| grammars.get(id as usize / 2).cloned().filter(|_| id != 5));
}

#[test]
fn choices_of_one_prompt_part_on_their_ways_through_a_grammar() {
    let grammar = compile(&GrammarSource::Regex("[a-z]{2,5}".into()));
    let prompt = [5, 6, 7];
    let mut params = params(4, 3, 9);
    params.sampling.temperature = 3.0;
    (params.grammar, params.stop_tokens) = (Some(grammar), vec![48]);
    let wanted: Vec<_> = (0..3).map(|c| reference(&params, &prompt, c)).collect();
    assert!(wanted[0] != wanted[1] && wanted[1] != wanted[2]);
    let mut driver = Driver::new(Toy::new(100, BLOCK, 64), 2);
    let mut first = driver.start(0, params, &prompt);
    driver.add(&mut first, 3, &[]);
    let mut all = vec![first];
    for choice in 1..3 {
        let (to, request) = (SeqId(choice), Some(RequestId(0)));
        driver.executor.apply(&SeqOp::Start { seq: to, request, choice });
        driver.executor.apply(&SeqOp::Append { seq: to, tokens: prompt.into() });
        let mut planned =
            Planned { seq: to, computed: 0, prompt: prompt.into(), wanted: vec![], blocks: 0 };
        driver.add(&mut planned, 3, &[]);
        all.push(planned);
    }
    driver.run();
    for _ in 1..9 {
        for (planned, wanted) in all.iter_mut().zip(&wanted) {
            if driver.output(planned) != wanted {
                driver.add(planned, 1, &[]);
            }
        }
        driver.run();
    }
    for (planned, wanted) in all.iter().zip(&wanted) {
        assert_eq!(driver.output(planned), wanted);
    }
    let generation = driver.executor.release(RequestId(0)).unwrap();
    for choice in &generation.choices {
        let stopped = matches!(choice.end, Some(ChoiceEnd::StopToken(48) | ChoiceEnd::Complete));
        assert!(stopped, "{:?}", choice.end);
    }
}

#[test]
fn a_grammar_that_the_vocabulary_cannot_spell_ends_its_request_alone() {
    let grammar = compile(&GrammarSource::Regex("a[0-9]|a".into()));
    let stuck = compile(&GrammarSource::Regex("a1".into()));
    let mut driver = Driver::new(Toy::new(100, BLOCK, 64), 1);
    let mut start = |id: u32, grammar: Grammar| {
        let mut params = params(1, 1, 4);
        params.stop_tokens = vec![48];
        params.grammar = Some(grammar);
        let request = RequestId(u64::from(id));
        driver.executor.register(request, params);
        driver.executor.apply(&SeqOp::Start { seq: SeqId(id), request: Some(request), choice: 0 });
        driver.executor.apply(&SeqOp::Append { seq: SeqId(id), tokens: [1, 2].into() });
        let wanted = Vec::new();
        Planned { seq: SeqId(id), computed: 0, prompt: vec![1, 2], wanted, blocks: 0 }
    };
    let mut all = [start(0, stuck), start(1, grammar)];
    for tokens in [2, 1] {
        for planned in &mut all {
            driver.add(planned, tokens, &[]);
        }
        driver.run();
    }
    let end = |id| driver.executor.generation(RequestId(id)).unwrap().choices[0].end.clone();
    let stuck = SampleError::Grammar(GrammarError::Stuck { tokens: 1 });
    assert_eq!(end(0), Some(ChoiceEnd::Unsampleable(stuck)));
    assert_eq!(end(1), Some(ChoiceEnd::StopToken(48)));
}

#[test]
fn choices_under_a_grammar_are_those_of_its_whole_masks() {
    let compiler = GrammarCompiler::new(&tokenizer()).unwrap();
    let compile = |source| compiler.compile(&source).unwrap();
    let grammars = [
        compile(GrammarSource::Regex("([a-h]|[A-C][a-d]){3,20}".into())),
        compile(GrammarSource::Grammar("start: \"a\" start \"b\" | /[c-z]/ start | \"D\"".into())),
        compile(GrammarSource::Choice(vec!["abcdefgh".into(), "abcx".into(), "Ua".into()])),
        compile(GrammarSource::Regex("[a-zA-V]*".into())),
        // After an a nothing can follow.
        compile(GrammarSource::Regex("b*(a1)?".into())),
    ];
    let (mut sampler, mut plain) = (Sampler::new(), Sampler::new());
    let mut random = SeedTree::root(3).child("whole masks").stream();
    let (mut at_once, mut errors) = (0, 0);
    for seed in 0..400 {
        let grammar = &grammars[random.next_below(grammars.len() as u64) as usize];
        let mut params = params(seed, 1, 12).sampling;
        match random.next_below(6) {
            0 => params.top_k = 3,
            1 => params.top_p = 0.7,
            2 => params.logit_bias = (0..48).map(|t| (t, f32::NEG_INFINITY)).collect(),
            _ => {}
        }
        let (mut matcher, mut fresh) = (grammar.matcher(), grammar.matcher());
        let mut tokens = vec![3; random.next_below(5) as usize];
        let prompt_len = tokens.len();
        for _ in 0..12 {
            // Sometimes the model much likes what the grammar may not.
            let mut logits: Vec<f32> = (0..50).map(|_| random.next_unit() as f32 * 6.0).collect();
            logits[random.next_below(50) as usize] += 9.0 * random.next_unit() as f32;
            let place = SamplePlace { tokens: &tokens, prompt_len, choice: 0 };
            let found =
                sampler.sample_following(&params, place, &mut logits, Some(3), &mut matcher);
            let wanted = match fresh.allowed(place.output()) {
                Ok(mask) => plain.sample_allowed(&params, place, &mut logits, Some(3), Some(mask)),
                Err(error) => Err(error.into()),
            };
            assert_eq!(found, wanted, "seed {seed}, {params:?}, {grammar:?}, after {tokens:?}");
            let Ok(found) = found else {
                errors += 1;
                break;
            };
            assert_eq!(sampler.top_logprobs(), plain.top_logprobs());
            let free = plain.sample(&params, place, &mut logits, None).unwrap();
            at_once += u32::from(free.token == found.token);
            tokens.push(found.token);
            if found.token == 48 {
                break;
            }
        }
    }
    assert!(at_once > 300 && errors > 30, "{at_once} {errors}");
}

#[test]
fn what_a_grammar_forces_is_drafted_and_changes_nothing() {
    let grammar = compile(&GrammarSource::Regex("(abcdefgh|ABCDxyz|m[n-p]q){3}".into()));
    let (mut tokens, mut steps) = (0, 0);
    for seed in 0..30 {
        let prompt = Toy::prompt(seed, 5);
        let mut params = params(seed, 1, 30);
        (params.grammar, params.stop_tokens) = (Some(grammar.clone()), vec![48]);
        (params.speculate, params.max_draft) = (Speculate::Only(DrafterKind::Grammar), 6);
        let mut driver = Driver::new(Toy::new(200, BLOCK, 64), 1);
        let mut planned = driver.start(0, params, &prompt);
        driver.add(&mut planned, prompt.len(), &[]);
        loop {
            steps += 1;
            let outcome = driver.run();
            let gained = outcome.commits[0].tokens as usize;
            let nodes = outcome.proposals.first().map_or(Vec::new(), |p| p.nodes.clone());
            planned.computed += gained - 1;
            let output = driver.output(&planned).to_vec();
            assert!(planned.wanted.starts_with(&output), "seed {seed}");
            if output.len() == planned.wanted.len() {
                assert!(nodes.is_empty());
                break;
            }
            // Where one letter alone can follow it is among the first that are proposed.
            let mask = grammar.matcher().allowed(&output).unwrap().to_vec();
            let allowed: Vec<u32> =
                (0..50).filter(|&t| mask[t as usize / 32] >> (t % 32) & 1 == 1).collect();
            let first = nodes.first().map(|node| node.token);
            assert_eq!(first, allowed.first().copied().filter(|_| allowed.len() == 1));
            assert!(nodes.len() <= 6);
            driver.add(&mut planned, 1, &nodes);
        }
        tokens += planned.wanted.len();
        let choice = &driver.executor.generation(RequestId(0)).unwrap().choices[0];
        assert_eq!((&choice.tokens, &choice.end), (&planned.wanted, &Some(ChoiceEnd::Complete)));
    }
    // One step for each word's beginning, where there is a choice, and one or two for its rest.
    println!("{tokens} tokens in {steps} steps");
    assert!(tokens > 2 * steps, "{tokens} tokens in {steps} steps");
}
