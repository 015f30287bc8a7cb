//! Chat templates beside what Python's jinja2 makes of them, and templates that misbehave.

mod common;

use std::path::PathBuf;

use common::Meta;
use dunlin_tokenizer::{ChatInput, ChatTemplate, GgufMeta, LocalTime, TokenizerError};
use serde_json::{Value, json};

/// 2026-03-05 21:07:09 UTC, when the golden prompts were made.
const NOW: LocalTime = LocalTime { unix_seconds: 1_772_744_829, offset_seconds: 0 };

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testkit/data/chat")
}

/// The template of a case, or `None` when it lies in a model file that is not here.
fn template_of(case: &Value) -> Option<String> {
    if let Some(name) = case["template"].as_str() {
        let path = data().join("templates").join(format!("{name}.jinja"));
        return Some(std::fs::read_to_string(path).unwrap());
    }
    let file = case["file"].as_str().unwrap();
    let path = dunlin_testkit::models::find(file, "prompts_agree_with_jinja2")?;
    Some(Meta::read(&path).string("tokenizer.chat_template").unwrap().to_string())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn prompts_agree_with_jinja2() {
    let cases = std::fs::read_to_string(data().join("cases.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&cases).unwrap();
    for (index, case) in cases.iter().enumerate() {
        let Some(source) = template_of(case) else { continue };
        let name = case["template"].as_str().or(case["file"].as_str()).unwrap();
        let template = ChatTemplate::new(&source).unwrap();
        let input = ChatInput {
            messages: list(&case["messages"]),
            tools: list(&case["tools"]),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            bos_token: "<s>",
            eos_token: "</s>",
            now: Some(NOW),
            variables: case["variables"].as_object(),
        };
        let got = template.render(&input);
        if let Some(expected) = case["expected"].as_str() {
            let got = got.unwrap_or_else(|error| panic!("case {index}, {name}: {error}"));
            assert_eq!(got, expected, "case {index}, {name}");
        } else if let Some(raised) = case["raised"].as_str() {
            match got {
                Err(TokenizerError::TemplateRaised { message }) => assert_eq!(message, raised),
                other => panic!("case {index}, {name}: {other:?}"),
            }
        } else {
            assert!(
                matches!(got, Err(TokenizerError::TemplateRender { .. })),
                "case {index}, {name}: {got:?}"
            );
        }
    }
}

fn render(source: &str) -> Result<String, TokenizerError> {
    let messages = [json!({"role": "user", "content": "hi"})];
    ChatTemplate::new(source)?.render(&ChatInput { messages: &messages, ..Default::default() })
}

#[test]
fn given_variables_replace_others() {
    let variables = json!({"bos_token": "B", "n": 3, "tools": [1]});
    let template =
        ChatTemplate::new("{{ bos_token }}{{ n + 1 }}{{ tools }}{{ eos_token }}").unwrap();
    let input = ChatInput {
        bos_token: "<s>",
        eos_token: "</s>",
        variables: variables.as_object(),
        ..Default::default()
    };
    assert_eq!(template.render(&input).unwrap(), "B4[1]</s>");
}

#[test]
fn errors_name_the_line_and_the_cause() {
    match render("line 1\n{% if %}\n{% endif %}") {
        Err(TokenizerError::TemplateSyntax { line: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    match render("a\nb\n{{ messages[0].name.first }}") {
        Err(TokenizerError::TemplateRender { line: 3, problem }) => {
            assert!(problem.contains("undefined"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    match render("{{ raise_exception('no ' + messages[0].role) }}") {
        Err(TokenizerError::TemplateRaised { message }) => assert_eq!(message, "no user"),
        other => panic!("{other:?}"),
    }
    match render("{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}") {
        Err(TokenizerError::TemplateRaised { message }) => assert_eq!(message, "deep"),
        other => panic!("{other:?}"),
    }
    for source in [
        "{{ strftime_now('%Y') }}",
        "{{ nothing() }}",
        "{{ 'a' | nothing }}",
        "{{ 'a'.nothing() }}",
    ] {
        let error = render(source).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{source}: {error}");
    }
    match render("{{ {'a': x} | tojson }}") {
        Err(TokenizerError::TemplateRender { problem, .. }) => {
            assert!(problem.contains("undefined"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn templates_cannot_hang_or_fill_the_memory() {
    let long: String = "x".repeat(1000);
    let sources = [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".to_string(),
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}".to_string(),
        "{% set ns = namespace(x='x') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}".to_string(),
        "{{ 'x' * 100000000 }}".to_string(),
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}".to_string(),
        "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}".to_string(),
        "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = ns.x|batch(1)|batch(1)|batch(1)|batch(1)|batch(1)|batch(1)|list %}{% endfor %}".to_string(),
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(12000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}{{ ns.x < ns.y }}".to_string(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(20000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x | string | length }}".to_string(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(20000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ {ns.x: 1} }}".to_string(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_string(),
        "{% set ns = namespace(x=[]) %}{% for i in range(20) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}".to_string(),
        format!("{{{{ '{long}'.replace('x', '{long}').replace('x', '{long}') }}}}"),
        "{{ range(10000000000) | list }}".to_string(),
        format!("{}1{}", "{{ ".to_string() + &"(".repeat(5000), ")".repeat(5000) + " }}"),
        format!("{}{}", "{% if true %}".repeat(5000), "{% endif %}".repeat(5000)),
        "{{ ".to_string() + &"[".repeat(100_000),
        "{{ ".to_string() + &"not ".repeat(2_000) + "x }}",
        "{{ ".to_string() + &"-".repeat(130_000) + "1 }}",
        "{{ 1".to_string() + &"+1".repeat(60_000) + " }}",
        "{{ 1".to_string() + &"**1".repeat(40_000) + " }}",
        "{{ x".to_string() + &"|e".repeat(60_000) + " }}",
        "{{ x".to_string() + &".e".repeat(60_000) + " }}",
        "{{ x".to_string() + &" if x else x".repeat(10_000) + " }}",
        "{{ x".to_string() + &"()".repeat(60_000) + " }}",
        "{{ x".to_string() + &"[0]".repeat(40_000) + " }}",
        "{{ x".to_string() + &"<1".repeat(60_000) + " }}",
        "{% if x %}".to_string() + &"{% elif x %}".repeat(10_000) + "{% endif %}",
        "-".repeat(300_000),
    ];
    for source in sources {
        let start: String = source.chars().take(60).collect();
        match render(&source) {
            // Where the engine finds a cheap way, the result must at least be small.
            Ok(text) => assert!(text.len() < 10_000_000, "{start}"),
            Err(error) => println!("{start}: {error}"),
        }
    }
}

/// Each of these would hold 2^64 items, or all items of 2^30 lists.
#[test]
fn lists_that_grow_from_themselves_are_stopped() {
    let grow = |start: &str, step: &str, times: usize| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range({times}) %}}\
             {{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x | length }}}}"
        )
    };
    let unrolled = "{% set x = x + x %}".repeat(64);
    let sources = [
        grow("[1]", "ns.x + ns.x", 64),
        grow("[1, 2, 3]", "(ns.x + ns.x) + (ns.x + ns.x)", 64),
        grow("['a']", "[] + ns.x + [] + ns.x", 64),
        grow("(1,)", "ns.x + ns.x", 64),
        grow("'x'", "ns.x + ns.x", 64),
        grow("[1] * 1000000000", "ns.x + []", 64),
        grow("range(100000)", "ns.x + ns.x", 64),
        grow("range(100000) | map('abs')", "ns.x + ns.x", 64),
        grow("[1]", "(ns.x + ns.x) | list", 64),
        grow("[1]", "ns.x[:] + ns.x[::-1]", 64),
        grow("[1]", "(ns.x + ns.x) | reverse", 64),
        grow("[1]", "ns.x | map('string') + ns.x | map('string')", 64),
        format!("{{% set x = [1] %}}{unrolled}{{{{ x | length }}}}"),
        format!("{{% block b %}}{{% set x = [1] %}}{unrolled}{{{{ x | length }}}}{{% endblock %}}"),
        "{% macro m(x) %}{{ m(x + x) }}{% endmacro %}{{ m([1]) }}".to_string(),
    ];
    for source in sources {
        match render(&source) {
            Err(TokenizerError::TemplateLimit { .. } | TokenizerError::TemplateRender { .. }) => {}
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn sums_are_pythons() {
    for (source, expected) in [
        ("{{ 1 + 2 }} {{ 1 + 0.5 }} {{ 'a' + 'b' + 'c' }}", "3 1.5 abc"),
        ("{{ 1 + 2 * 3 - 4 + loop | default(5) }}", "8"),
        ("{{ [1] + [2, 3] }} {{ ([1] + ['x'])[1] }} {{ (1,) + (2,) }}", "[1, 2, 3] x (1, 2)"),
        ("{{ ([] + range(3)) | length }} {{ [1] + [2] == [1, 2] }}", "3 True"),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(200) %}{% set ns.x = ns.x + [i] %}\
          {% endfor %}{{ ns.x | length }} {{ ns.x[-1] }}",
            "200 199",
        ),
        ("{% block b %}{{ 'in ' + 'a block' }}{% endblock %}", "in a block"),
        ("{% macro m(x) %}{{ x + '!' }}{% endmacro %}{{ m('hey' + '') }}", "hey!"),
    ] {
        assert_eq!(render(source).unwrap(), expected, "{source}");
    }
    for source in ["{{ 1 + 'a' }}", "{{ [1] + (2,) }}", "{{ 'a' + [1] }}", "{{ none + 1 }}"] {
        assert!(matches!(render(source), Err(TokenizerError::TemplateRender { .. })), "{source}");
    }
}

#[test]
fn messages_nested_too_deeply_are_refused() {
    let mut deep = json!(1);
    for _ in 0..1000 {
        deep = json!([deep]);
    }
    let messages = [json!({"role": "user", "content": deep})];
    let template = ChatTemplate::new("{{ messages | tojson }}").unwrap();
    let input = ChatInput { messages: &messages, ..Default::default() };
    assert!(matches!(template.render(&input), Err(TokenizerError::TooLarge { .. })));
    // Serde's own drop is recursive; keep it shallow.
    drop(messages);
}

#[test]
fn parts_are_joined_for_templates_that_know_none() {
    let parts = json!([{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]);
    let messages = [json!({"role": "user", "content": parts})];
    let plain = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}{% endfor %}";
    let template = ChatTemplate::new(plain).unwrap();
    assert!(!template.knows_parts());
    let input = ChatInput { messages: &messages, ..Default::default() };
    assert_eq!(template.render(&input).unwrap(), "user: one\ntwo");
    let knowing = "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}{{ message.content | length }}{% endif %}{% endfor %}";
    let template = ChatTemplate::new(knowing).unwrap();
    assert!(template.knows_parts());
    assert_eq!(template.render(&input).unwrap(), "3");
}
