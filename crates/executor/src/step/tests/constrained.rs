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
