use std::{sync::Arc, time::Instant};

use dunlin_units::SeedTree;

use super::{GrammarCompiler, GrammarError, GrammarSource};
use crate::{TokenType, Tokenizer, VocabKind, VocabSource, build_image};

/// The 256 bytes, then some longer tokens (one of which is a byte again) and the end.
const WORDS: [&str; 13] =
    ["{\"", "\":", "true", "false", "null", "abc", "ab", "é", "12", "\", \"", "]}", "yes", "a"];
const END: u32 = 256 + WORDS.len() as u32;

fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<Vec<u8>> = (0..256).map(|b| format!("<0x{b:02X}>").into()).collect();
    tokens.extend(WORDS.map(|t| t.as_bytes().to_vec()));
    tokens.push(b"<end>".to_vec());
    let mut types = vec![TokenType::Byte; 256];
    types.extend([TokenType::Normal; WORDS.len()]);
    types.push(TokenType::Control);
    let mut source = VocabSource::new(VocabKind::Spm, tokens.iter().map(Vec::as_slice).collect());
    source.scores = Some(vec![0.0; tokens.len()]);
    source.token_types = Some(types);
    source.ids.eos = Some(END);
    source.end_ids = vec![END];
    Tokenizer::from_image(Arc::new(build_image(&source).unwrap())).unwrap()
}

fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(&tokenizer()).unwrap()
}

fn text_of(token: u32) -> Vec<u8> {
    match token {
        0..256 => vec![token as u8],
        END => Vec::new(),
        word => WORDS[word as usize - 256].into(),
    }
}

fn has(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}

/// Whether the grammar takes a text, byte by byte, as a whole.
fn takes(compiler: &GrammarCompiler, source: &GrammarSource, text: &str) -> bool {
    let mut matcher = compiler.compile(source).unwrap().matcher();
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    for at in 0..tokens.len() {
        if !has(matcher.allowed(&tokens[..at]).unwrap(), tokens[at]) {
            return false;
        }
    }
    has(matcher.allowed(&tokens).unwrap(), END)
}

/// All texts of up to `most` tokens that the masks lead to, found by trying each token.
fn texts(source: &GrammarSource, most: usize) -> Vec<String> {
    let grammar = compiler().compile(source).unwrap();
    let mut matcher = grammar.matcher();
    let (mut open, mut found) = (vec![Vec::new()], Vec::new());
    while let Some(tokens) = open.pop() {
        let mask = matcher.allowed(&tokens).unwrap().to_vec();
        for token in (0..=END).filter(|&t| has(&mask, t)) {
            let longer = [&tokens[..], &[token]].concat();
            if token == END {
                let bytes: Vec<u8> = tokens.iter().flat_map(|&t| text_of(t)).collect();
                found.push(String::from_utf8(bytes).unwrap());
            } else if longer.len() <= most {
                open.push(longer);
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn masks_lead_to_the_texts_of_the_grammar_and_no_others() {
    let regex = GrammarSource::Regex("(abc|ab|yes)1?".into());
    assert_eq!(texts(&regex, 8), ["ab", "ab1", "abc", "abc1", "yes", "yes1"]);
    let choice = GrammarSource::Choice(vec!["a\"b".into(), "é".into(), "12".into()]);
    assert_eq!(texts(&choice, 8), ["12", "a\"b", "é"]);
    let lark = GrammarSource::Grammar("start: \"(\" start \")\" | \"ab\"".into());
    assert_eq!(texts(&lark, 6), ["((ab))", "(ab)", "ab"]);
    let gbnf = "root ::= item{1,2} tail-end\nitem ::= [a-b] | \"é\"\ntail-end ::= \"!\" # one\n";
    let gbnf = GrammarSource::Grammar(gbnf.into());
    let expected: Vec<String> =
        ["a", "aa", "ab", "aé", "b", "ba", "bb", "bé", "é", "éa", "éb", "éé"]
            .iter()
            .map(|t| format!("{t}!"))
            .collect();
    assert_eq!(texts(&gbnf, 8), expected);
}

#[test]
fn alternatives_take_what_any_of_them_takes() {
    let compiler = compiler();
    let schema = r#"{"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}},
        "additionalProperties": false}"#;
    let calls = "start: \"<call>\" object \"</call>\"\nobject: %json {\"type\": \"array\"}";
    let token = GrammarSource::AfterToken { token: "ab".into(), grammar: "rest: /[0-9]+/".into() };
    let source = GrammarSource::Either(vec![
        GrammarSource::JsonSchema(schema.into()),
        GrammarSource::Grammar(calls.into()),
        GrammarSource::Regex("(x|y)z".into()),
        GrammarSource::Choice(vec!["yes".into(), "no".into()]),
        token,
    ]);
    for (text, right) in [
        (r#"{"a":3}"#, true),
        ("{\n  \"a\": 3\n}", true),
        (r#"<call>[1, "a"]</call>"#, true),
        ("xz", true),
        ("no", true),
        ("ab12", true),
        (r#"{"a":3}<call>[]</call>"#, false),
        (r#"{"b":3}"#, false),
        ("<call>{}</call>", false),
        ("x", false),
        ("nono", false),
        ("yesz", false),
    ] {
        assert_eq!(takes(&compiler, &source, text), right, "{text}");
    }
    let broken = GrammarSource::Either(vec![
        GrammarSource::Regex("a".into()),
        GrammarSource::JsonSchema("[".into()),
    ]);
    assert!(matches!(compiler.compile(&broken), Err(GrammarError::Invalid(_))));
    let nested = GrammarSource::Either(vec![source]);
    assert!(matches!(compiler.compile(&nested), Err(GrammarError::Invalid(_))));
}

#[test]
fn schemas_take_what_they_describe() {
    let compiler = compiler();
    let schema = r##"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 3},
        "kind": {"enum": ["x", "y"]}, "list": {"type": "array", "items": {"$ref": "#/$defs/b"},
        "maxItems": 2}}, "required": ["n"], "additionalProperties": false,
        "$defs": {"b": {"type": "boolean"}}}"##;
    let source = GrammarSource::JsonSchema(schema.into());
    for (text, right) in [
        (r#"{"n":3}"#, true),
        (r#"{"n": 17, "kind": "y", "list": [true, false]}"#, true),
        ("{\n  \"n\": 5\n}", true),
        (r#"{"n":2}"#, false),
        (r#"{"kind":"x"}"#, false),
        (r#"{"n":3,"kind":"z"}"#, false),
        (r#"{"n":3,"list":[true,true,true]}"#, false),
        (r#"{"n":3,"more":1}"#, false),
        (r#"{"n":3"#, false),
        (r#" {"n":3}"#, false),
        // White space without end.
        ("{\"n\":\n\n\n\n3}", false),
    ] {
        assert_eq!(takes(&compiler, &source, text), right, "{text}");
    }
    let any = GrammarSource::json_object();
    assert!(takes(&compiler, &any, r#"{"a": [1, {"b": null}], "é\n": -2.5e3}"#));
    assert!(!takes(&compiler, &any, "[1]"));
}

/// llama.cpp's own grammar of JSON, in its manner (written anew).
#[test]
fn gbnf_with_recursion_and_empty_alternatives() {
    let json = r#"
        root   ::= value
        value  ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
        array  ::= "[" ws ( value ("," ws value)* )? "]" ws
        string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" ( ["\\bfnrt] | "u" [0-9a-fA-F]{4} ) )* "\"" ws
        number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
        ws     ::= | " " | "\n" [ \t]{0,20}
    "#;
    let (compiler, source) = (compiler(), GrammarSource::Grammar(json.into()));
    for (text, right) in [
        (r#"{"a": [1, 2.5, "x\"\u00e9"], "b":{}}"#, true),
        ("[true,false , null]", true),
        ("[]", true),
        ("{\"a\":}", false),
        ("[1,]", false),
        ("tru", false),
    ] {
        assert_eq!(takes(&compiler, &source, text), right, "{text}");
    }
}

#[test]
fn a_matcher_goes_back_and_forth_and_always_says_the_same() {
    let source = GrammarSource::JsonSchema(
        r#"{"type":"array","items":{"enum":["ab","abc",12,true]},"maxItems":9}"#.into(),
    );
    let grammar = compiler().compile(&source).unwrap();
    let tokens: Vec<u32> = br#"["ab",12,"abc",true]"#.iter().map(|&b| u32::from(b)).collect();
    let fresh: Vec<Vec<u32>> = (0..=tokens.len())
        .map(|n| grammar.matcher().allowed(&tokens[..n]).unwrap().into())
        .collect();
    let mut matcher = grammar.matcher();
    for step in [3, 0, 20, 19, 20, 5, 5, 12, 1, 0, 20] {
        assert_eq!(matcher.allowed(&tokens[..step]).unwrap(), &fresh[step][..], "after {step}");
        let mut copy = matcher.clone();
        assert_eq!(copy.allowed(&tokens[..7]).unwrap(), &fresh[7][..]);
    }
    assert!(matcher.is_complete());
    for n in [20, 19, 3, 0, 20] {
        assert_eq!(matcher.is_completed_by(&tokens[..n]), Ok(n == 20));
    }
    assert_eq!(matcher.allowed(&tokens).unwrap(), &fresh[20][..]);
    assert!(has(&fresh[20], END));
    matcher.follow(&tokens[..4]).unwrap();
    assert!(!matcher.is_complete());
    assert_eq!(matcher.is_completed_by(&tokens[..4]), Ok(false));
    // A text that the grammar does not allow.
    assert!(matcher.follow(&[u32::from(b'x')]).is_err());
}

/// The parser keeps its last mask by what another way to the same place may share.
#[test]
fn ways_that_differ_in_what_comes_later_are_told_apart() {
    let lark = "start: \"p\" DIGIT \"2\" | \"q\" DIGIT \"3\"\nDIGIT: /1/";
    let grammar = compiler().compile(&GrammarSource::Grammar(lark.into())).unwrap();
    let twelve = 256 + WORDS.iter().position(|&word| word == "12").unwrap() as u32;
    let mut matcher = grammar.matcher();
    for (first, right) in [(b'p', true), (b'q', false), (b'p', true)] {
        let mask = matcher.allowed(&[u32::from(first)]).unwrap();
        assert!(has(mask, u32::from(b'1')));
        assert_eq!(has(mask, twelve), right, "12 after {first}");
    }
}

#[test]
fn a_token_alone_is_judged_as_all_together_are() {
    let compiler = compiler();
    let schema = r#"{"type": "object", "required": ["abc"], "properties": {"abc": {"type": "string",
        "maxLength": 5}, "yes": {"enum": ["ab", true, 12, null]}, "n": {"type": "number"}}}"#;
    let token = GrammarSource::AfterToken { token: "<end>".into(), grammar: "rest: /a*/".into() };
    let sources = [
        GrammarSource::JsonSchema(schema.into()),
        GrammarSource::json_object(),
        GrammarSource::Regex("((abc?|é|yes|[^a-z]){2,4}12)*".into()),
        GrammarSource::Grammar("start: \"{\\\"\" start \"]}\" | /[a-c1]+/ start | \"true\"".into()),
        GrammarSource::Choice(vec!["abcabc".into(), "abcyes".into(), "é12".into()]),
        GrammarSource::Either(vec![GrammarSource::Regex("ab+".into()), token]),
    ];
    let mut random = SeedTree::root(11).stream();
    for source in &sources {
        let grammar = compiler.compile(source).unwrap();
        let (mut all, mut alone) = (grammar.matcher(), grammar.matcher());
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..12 {
            let mut tokens = Vec::new();
            while tokens.len() < 12 {
                let Ok(mask) = all.allowed(&tokens) else { break };
                for token in 0..=END + 40 {
                    let surely = alone.surely_allows(&tokens, token);
                    let right = mask.get(token as usize / 32).is_some_and(|_| has(mask, token));
                    // The end, and a byte that no text has, are left to the mask.
                    if surely || !(token >= END || token == 0xFF) {
                        assert_eq!(surely, right, "{source:?}, {tokens:?}, {token}");
                        (taken, refused) = (taken + u32::from(right), refused + u32::from(!right));
                    }
                }
                let next: Vec<u32> = (0..=END).filter(|&token| has(mask, token)).collect();
                let next = next[random.next_below(next.len() as u64) as usize];
                if next == END {
                    break;
                }
                tokens.push(next);
            }
        }
        assert!(taken > 20 && refused > 1000, "{source:?}: {taken}, {refused}");
    }
}

#[test]
fn what_is_forced_is_spelt_and_nothing_else() {
    let compiler = compiler();
    let word = |text: &str| 256 + WORDS.iter().position(|&word| word == text).unwrap() as u32;
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let schema = r#"{"type": "object", "required": ["abc", "yes"], "additionalProperties": false,
        "properties": {"abc": {"type": "boolean"}, "yes": {"type": "integer"}},
        "x-guidance": {"whitespace_flexible": false}}"#;
    let grammar = compiler.compile(&GrammarSource::JsonSchema(schema.into())).unwrap();
    let (open, colon) = (word("{\""), word("\":"));
    let mut forced = grammar.forced_text();
    assert_eq!(forced.after(&[], 31), [open, word("abc"), colon]);
    assert_eq!(forced.after(&[open], 31), [word("abc"), colon]);
    assert_eq!(forced.after(&[open], 1), [word("abc")]);
    // Spelt otherwise than was guessed.
    let mut tokens = [&[open], &bytes("ab")[..]].concat();
    assert_eq!(forced.after(&tokens, 31), [u32::from(b'c'), colon]);
    tokens.extend(bytes("c\":"));
    assert!(forced.after(&tokens, 31).is_empty(), "true or false");
    tokens.push(u32::from(b't'));
    let rest = [&bytes("rue,\"")[..], &[word("yes"), colon]].concat();
    assert_eq!(forced.after(&tokens, 31), rest);
    tokens.extend(rest);
    assert!(forced.after(&tokens, 31).is_empty());
    // What the grammar does not allow, and what comes after that.
    tokens.push(u32::from(b'x'));
    assert!(forced.after(&tokens, 31).is_empty());
    tokens.push(u32::from(b'1'));
    assert!(forced.after(&tokens, 31).is_empty());
    // Long texts that are forced are spelt in parts, and those that have no end are no trouble.
    let long = GrammarSource::Choice(vec!["é".repeat(20_000)]);
    let long = compiler.compile(&long).unwrap();
    assert_eq!(long.forced_text().after(&[], 7), [word("é"); 7]);
    let endless = compiler.compile(&GrammarSource::Grammar("start: \"ab\" start".into()));
    if let Ok(endless) = endless {
        let found = endless.forced_text().after(&[], 31);
        assert!(found.len() <= 31 && found.iter().all(|&token| token == word("ab")), "{found:?}");
    }
}

#[test]
fn what_is_no_grammar_is_refused() {
    let compiler = compiler();
    for source in [
        GrammarSource::JsonSchema("{".into()),
        GrammarSource::JsonSchema("[]".into()),
        GrammarSource::JsonSchema("3".into()),
        GrammarSource::JsonSchema("false".into()),
        GrammarSource::JsonSchema(r#"{"type":"strang"}"#.into()),
        GrammarSource::JsonSchema(r#"{"type":"object","properties":5}"#.into()),
        GrammarSource::JsonSchema(r##"{"$ref":"#/nowhere"}"##.into()),
        GrammarSource::JsonSchema(r#"{"$ref":"https://example.org/x.json"}"#.into()),
        GrammarSource::JsonSchema(r#"{"type":"string","pattern":"("}"#.into()),
        GrammarSource::JsonSchema(r#"{"type":"array","uniqueItems":true}"#.into()),
        GrammarSource::Regex("(".into()),
        GrammarSource::Regex("a**{".into()),
        GrammarSource::Regex("(?=a)b".into()),
        GrammarSource::Grammar(String::new()),
        GrammarSource::Grammar("start: nowhere".into()),
        GrammarSource::Grammar("start = 5".into()),
        GrammarSource::Grammar("other: \"a\"".into()),
        GrammarSource::Grammar("root ::= nowhere".into()),
        GrammarSource::Grammar("root ::= (\"a\"".into()),
        GrammarSource::Grammar("root ::= \"a\nroot ::= \"b\"".into()),
        GrammarSource::Grammar("root ::= [a".into()),
        GrammarSource::Grammar("top ::= \"a\"".into()),
        GrammarSource::Choice(Vec::new()),
        GrammarSource::Choice(vec![String::new()]),
    ] {
        let error = compiler.compile(&source).map(|_| ()).expect_err(&format!("{source:?}"));
        assert!(matches!(error, GrammarError::Invalid(_)), "{source:?}: {error}");
        let message = error.to_string();
        assert!(!message.is_empty() && message.len() < 700 && !message.contains('\n'), "{message}");
    }
    let long = GrammarSource::Regex("a".repeat(1 << 20));
    assert!(matches!(compiler.compile(&long), Err(GrammarError::TooLong { .. })));
}

/// Whatever is asked for is compiled or refused, in bounded time, and what is compiled goes on for
/// some tokens or ends with an error.
#[test]
fn pathological_grammars_are_bounded() {
    let nested = |open: &str, inside: &str, close: &str, n: usize| {
        format!("{}{inside}{}", open.repeat(n), close.repeat(n))
    };
    let chain = |n: usize| {
        let defs: Vec<String> =
            (0..n).map(|i| format!(r##""d{i}":{{"$ref":"#/$defs/d{}"}}"##, i + 1)).collect();
        format!(
            r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d{n}":{{"type":"null"}}}}}}"##,
            defs.join(",")
        )
    };
    let rules: String = (0..4000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    let gbnf: String = (0..4000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    let wide: Vec<String> = (0..2000).map(|i| format!(r#""p{i}":{{"type":"string"}}"#)).collect();
    for source in [
        GrammarSource::Regex(nested("(", "a", ")", 30_000)),
        GrammarSource::Regex("(a{1000}){1000}".into()),
        GrammarSource::Regex("((a{100}){100}){100}".into()),
        GrammarSource::Regex("(a|b)*a(a|b){30}".into()),
        GrammarSource::Regex("(a?){200}a{200}".into()),
        GrammarSource::Regex("(.*a){30}".into()),
        GrammarSource::Grammar(format!("start: {}", nested("(", "\"a\"", ")", 30_000))),
        GrammarSource::Grammar(format!("root ::= {}", nested("(", "\"a\"", ")", 30_000))),
        GrammarSource::Grammar(format!("start: r0\n{rules}r4000: \"a\"")),
        GrammarSource::Grammar(format!("root ::= r0\n{gbnf}r4000 ::= \"a\"")),
        GrammarSource::Grammar("start: start".into()),
        GrammarSource::Grammar("start: start start | \"a\" | ".into()),
        GrammarSource::Grammar("start: a{1000000}\na: \"x\"".into()),
        GrammarSource::JsonSchema(nested(r#"{"not":"#, "{}", "}", 6_000)),
        GrammarSource::JsonSchema(nested(r#"{"items":"#, "{}", "}", 120)),
        GrammarSource::JsonSchema(chain(1500)),
        GrammarSource::JsonSchema(r##"{"$ref":"#"}"##.into()),
        GrammarSource::JsonSchema(r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}"##.into()),
        GrammarSource::JsonSchema(r#"{"type":"string","minLength":1000000}"#.into()),
        GrammarSource::JsonSchema(r#"{"type":"array","minItems":100000000}"#.into()),
        GrammarSource::JsonSchema(r#"{"type":"number","multipleOf":0.0000001}"#.into()),
        GrammarSource::JsonSchema(r#"{"type":"string","pattern":"^(a|b)*a(a|b){40}$"}"#.into()),
        GrammarSource::JsonSchema(format!(r#"{{"properties":{{{}}}}}"#, wide.join(","))),
    ] {
        let name: String = format!("{source:?}").chars().take(70).collect();
        let started = Instant::now();
        let result = compiler().compile(&source);
        let compiled = started.elapsed();
        let mut outcome = String::from("refused");
        assert!(!matches!(result, Err(GrammarError::TooLong { .. })), "{name}");
        if let Ok(grammar) = result {
            let mut matcher = grammar.matcher();
            let mut tokens = Vec::new();
            while tokens.len() < 200 {
                match matcher.allowed(&tokens) {
                    Ok(mask) => {
                        let mask = mask.to_vec();
                        // Alternately the first and the last that is allowed.
                        let mut all = (0..END).filter(|&t| has(&mask, t));
                        let next = if tokens.len() % 2 == 0 { all.next() } else { all.next_back() };
                        let Some(next) = next else { break };
                        tokens.push(next);
                    }
                    Err(_) => break,
                }
            }
            outcome = format!("{} tokens, {} KiB", tokens.len(), grammar.bytes() >> 10);
            assert!(grammar.bytes() < 100 << 20, "{name}: {outcome}");
        }
        eprintln!("{name}: compiled in {compiled:?}, {outcome}, {:?}", started.elapsed());
    }
}

#[test]
fn the_cache_finds_what_was_compiled_and_forgets_the_oldest() {
    let compiler = compiler();
    let source = |i: usize| GrammarSource::Regex(format!("a{{{}}}", i + 1));
    let first = compiler.compile(&source(0)).unwrap();
    let same = compiler.compile(&source(0)).unwrap();
    assert!(Arc::ptr_eq(&first.0, &same.0));
    for i in 1..=64 {
        compiler.compile(&source(i)).unwrap();
    }
    let again = compiler.compile(&source(0)).unwrap();
    assert!(!Arc::ptr_eq(&first.0, &again.0));
    assert_eq!(compiler.cache.lock().unwrap().kept.len(), 64);
    // What is in use is counted until it is dropped.
    drop((first, same));
    compiler.compile(&source(99)).unwrap();
    let alive = compiler.cache.lock().unwrap();
    assert!(alive.alive.iter().filter(|g| g.strong_count() > 0).count() <= 65);
}
