use super::*;

/// The parts of an answer, whole and cut at every place; all must agree.
fn parse(format: ToolFormat, answer: &str) -> Vec<Part> {
    let run = |pieces: &[&str]| {
        let mut parser = ToolParser::new(format, &["f".to_string(), "g".to_string()]);
        let (mut all, mut parts) = (Vec::new(), Vec::new());
        let mut add = |parts: &mut Vec<Part>| {
            for part in parts.drain(..) {
                match part {
                    Part::Text(text) => push_text(&mut all, &text),
                    call => all.push(call),
                }
            }
        };
        for piece in pieces {
            parser.push(piece, &mut parts);
            add(&mut parts);
        }
        parser.finish(&mut parts);
        add(&mut parts);
        all
    };
    let whole = run(&[answer]);
    for (at, _) in answer.char_indices() {
        assert_eq!(run(&[&answer[..at], &answer[at..]]), whole, "cut at {at}");
    }
    let letters: Vec<&str> =
        answer.char_indices().map(|(at, c)| &answer[at..at + c.len_utf8()]).collect();
    assert_eq!(run(&letters), whole, "letter by letter");
    whole
}

fn text(text: &str) -> Part {
    Part::Text(text.into())
}

fn call(name: &str, arguments: &str) -> Part {
    Part::Call(ToolCall { name: name.into(), arguments: arguments.into() })
}

#[test]
fn hermes() {
    let parse = |answer| parse(ToolFormat::Hermes, answer);
    assert_eq!(parse("plain <b>text</b> \n"), [text("plain <b>text</b> \n")]);
    assert_eq!(
        parse(
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.50, \"b\": [\"é\"]}}\n</tool_call>"
        ),
        [call("f", "{\"a\": 1.50, \"b\": [\"é\"]}")]
    );
    assert_eq!(
        parse(
            "Let me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>\n"
        ),
        [text("Let me see."), call("f", "{}"), call("g", "{}")]
    );
    // The tag in a string does not end the call.
    assert_eq!(
        parse("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}}</tool_call>"),
        [call("f", "{\"a\":\"</tool_call>\"}")]
    );
    // Arguments as a string, and a tag that stays open.
    assert_eq!(
        parse("<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}"),
        [call("f", "{\"a\":1}")]
    );
}

#[test]
fn what_is_no_call_stays_text() {
    for answer in [
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
        "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
        "<tool_call>{\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":\"no\"}</tool_call>",
        "<tool_call>not json</tool_call> more",
        "text\n<tool_call>{\"name\":",
        "\n text",
        "<tool_cal",
        "<tool_call>",
        "{\"name\":\"f\"}",
    ] {
        assert_eq!(parse(ToolFormat::Hermes, answer), [text(answer)], "{answer}");
    }
    for answer in [
        "{\"name\":\"f\",\"parameters\":{}} and more",
        "{\"name\":\"unknown\",\"parameters\":{}}",
        "{\"answer\": 42}",
        "{\"name\":\"f\",\"parameters\":{\"a\":",
        "Sure: {\"name\":\"f\",\"parameters\":{}}",
        "{",
        "  ",
    ] {
        assert_eq!(parse(ToolFormat::Llama3, answer), [text(answer)], "{answer}");
    }
    for answer in [
        "[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{}}",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS]f[ARGS]{\"a\":",
        "[TOOL_CALLS]f[ARGS]{} tail",
        "text [TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]",
        "[TOOL",
    ] {
        assert_eq!(parse(ToolFormat::Mistral, answer), [text(answer)], "{answer}");
    }
    assert_eq!(parse(ToolFormat::Hermes, ""), []);
}

#[test]
fn llama3() {
    let parse = |answer| parse(ToolFormat::Llama3, answer);
    assert_eq!(parse("Hello {\"a\"}"), [text("Hello {\"a\"}")]);
    assert_eq!(
        parse("\n{\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}\n"),
        [call("f", "{\"a\": \"}\"}")]
    );
    assert_eq!(
        parse(
            "{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"arguments\":{\"x\":12345678901234567890123}}"
        ),
        [call("f", "{}"), call("g", "{\"x\":12345678901234567890123}")]
    );
}

#[test]
fn mistral() {
    let parse = |answer| parse(ToolFormat::Mistral, answer);
    assert_eq!(parse("text [1] [TOO"), [text("text [1] [TOO")]);
    assert_eq!(
        parse(
            "Wait. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}, {\"name\": \"g\", \"arguments\": {}}]"
        ),
        [text("Wait."), call("f", "{\"a\": \"]\"}"), call("g", "{}")]
    );
    assert_eq!(
        parse("[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}"),
        [call("f", "{\"a\": 1}"), call("g", "{}")]
    );
}

#[test]
fn formats_are_told_by_the_template() {
    for (template, format) in [
        ("{{ messages }}", None),
        ("{% if tools %}<tool_call>", Some(ToolFormat::Hermes)),
        ("{% if tools %}[TOOL_CALLS]", Some(ToolFormat::Mistral)),
        ("{% if tools %}<|python_tag|>", Some(ToolFormat::Llama3)),
        ("{% if tools %}", None),
    ] {
        assert_eq!(ToolFormat::of_template(template), format, "{template}");
    }
    assert_eq!(ToolFormat::Mistral.call_id("0123456789abcdef"), "789abcdef");
    assert_eq!(ToolFormat::Hermes.call_id("01"), "call_01");
}

mod forced;
