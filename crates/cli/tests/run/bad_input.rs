//! What cannot be used is refused in words that help, with the documented exit code, and without a
//! panic.

use std::io::Read as _;

use crate::support::{Dunlin, spawn};

/// Arguments after `run -m MODEL`, the exit code, and a part of the message.
#[test]
fn bad_flags_are_named() {
    let dunlin = Dunlin::tiny();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["-p", "x", "--temperature", "nan"], 2, "temperature: NaN is out of range"),
        (&["-p", "x", "--temperature", "-1"], 2, "temperature: -1 is out of range"),
        (&["-p", "x", "--temperature", "hot"], 2, "invalid value 'hot'"),
        (&["-p", "x", "--top-p", "1.5"], 2, "top_p: 1.5 is out of range"),
        (&["-p", "x", "--min-p", "-0.5"], 2, "min_p: -0.5 is out of range"),
        (&["-p", "x", "--typical-p", "nan"], 2, "typical_p: NaN is out of range"),
        (&["-p", "x", "--repeat-penalty", "0"], 2, "repetition_penalty: 0 is out of range"),
        (&["-p", "x", "--penalty-window", "-2"], 2, "penalty_window: -2 is out of range"),
        (&["-p", "x", "--logit-bias", "5"], 2, "ID=BIAS"),
        (&["-p", "x", "--logit-bias", "5=nan"], 2, "logit_bias: NaN"),
        (&["-p", "x", "--logit-bias", "99999=1"], 2, "logit_bias: token 99999"),
        (&["-p", "x", "-n", "0"], 2, "max_tokens is 0"),
        (&["-p", "x", "-n", "-5"], 2, "invalid value '-5'"),
        (&["-p", "x", "--n", "0"], 2, "0 samples"),
        (&["-p", "x", "--stop", ""], 2, "a stop string is empty"),
        (&["-p", "x", "-t", "0"], 2, "--threads is 0"),
        (&["-p", "x", "-c", "100000"], 2, "a context of 100000 tokens was asked for"),
        (&["-p", "x", "-ctk", "f16", "-ctv", "f32"], 2, "stored alike"),
        (&["-p", "x", "--kv-type", "q3"], 2, "use one of f32, f16, int8"),
        (&["-p", "x", "--activations", "f8"], 2, "use one of f32, split, int8"),
        (&["-p", "x", "--raw", "--system", "y"], 2, "cannot be used with"),
        (&["-p", "x", "-f", "y"], 2, "cannot be used with"),
        (&["-p", "x", "--out", "y"], 2, "--batch"),
        (&["--frobnicate"], 2, "unexpected argument '--frobnicate'"),
        (&["-p", "", "--raw"], 2, "the prompt is empty"),
        (&["-f", "/nowhere/at/all"], 1, "cannot read /nowhere/at/all"),
        (&["-f", "/"], 1, "cannot read /"),
        (&["--batch", "/nowhere"], 1, "cannot read /nowhere"),
        (&["-p", "x", "--chat-template", "/nowhere"], 1, "cannot read /nowhere"),
    ];
    for (args, code, says) in cases {
        let ran = dunlin.run(args);
        assert!(ran.err.contains(says), "{args:?} should say {says:?}: {}", ran.err);
        assert_eq!((ran.code, ran.out.as_str()), (Some(*code), ""), "{args:?}: {}", ran.err);
        assert!(!ran.err.contains("panicked"), "{args:?}: {}", ran.err);
    }
}

#[test]
fn prompts_longer_than_the_context_are_refused_with_both_counts() {
    let dunlin = Dunlin::tiny();
    let ran = dunlin.run(&["-p", &"z".repeat(500), "--raw", "-c", "64"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("the prompt has 500 tokens, but the context holds 64"), "{}", ran.err);
}

#[test]
fn text_that_is_not_utf8_is_refused_with_the_place() {
    let dunlin = Dunlin::tiny();
    for subcommand in ["run", "tokenize"] {
        let ran = dunlin.feed(subcommand, &[], b"abc\xff\xfe");
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{}", ran.err);
        assert!(ran.err.contains("standard input is not UTF-8: byte 3"), "{}", ran.err);
    }
    let file = dunlin.file("latin1.txt", b"caf\xe9");
    let ran = dunlin.run(&["-f", file.to_str().unwrap()]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("latin1.txt is not UTF-8: byte 3"), "{}", ran.err);
}

#[test]
fn strict_batches_are_read_before_anything_runs() {
    let dunlin = Dunlin::tiny();
    for (lines, says) in [
        ("\"a\"\n{\n", "line 2: it is no JSON"),
        ("7\n", "line 1: it is neither a string nor an object"),
        ("{\"prompt\":\"a\",\"temprature\":1}\n", "unknown field `temprature`"),
        ("{\"prompt\":\"a\",\"messages\":[]}\n", "both `prompt` and `messages`"),
    ] {
        let ran = dunlin.feed("run", &["--batch", "-", "--strict"], lines.as_bytes());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{lines}: {}", ran.err);
        assert!(ran.err.contains(says), "{lines}: {}", ran.err);
    }
    let nothing = dunlin.feed("run", &["--batch", "-"], b"\n\n");
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(0), ""));
}

#[test]
fn models_that_are_none_are_refused() {
    let mut dunlin = Dunlin::tiny();
    let folder = dunlin.model.parent().unwrap().to_path_buf();
    let text = dunlin.file("text.gguf", "this is no model, but it is long enough to look at");
    let empty = dunlin.file("empty.gguf", "");
    let whole = std::fs::read(&dunlin.model).unwrap();
    let cut = dunlin.file("cut.gguf", &whole[..whole.len() / 2]);
    for (model, code) in [(folder, 1), (text, 1), (empty, 1), (cut, 1)] {
        dunlin.model = model;
        for subcommand in ["run", "tokenize", "detokenize"] {
            let ran = dunlin.feed(subcommand, &[], b"1");
            assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{:?}", dunlin.model);
            assert!(
                ran.err.starts_with("dunlin: ") && !ran.err.contains("panicked"),
                "{}",
                ran.err
            );
        }
    }
    dunlin.model = "no-such-model".into();
    let ran = dunlin.run(&["-p", "x"]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("no-such-model"), "{}", ran.err);
}

#[test]
fn ids_outside_the_vocabulary_are_refused() {
    let dunlin = Dunlin::tiny();
    for (input, says) in [("5 299", "299"), ("a", "\"a\" is no token id"), ("[1,", "JSON")] {
        let ran = dunlin.feed("detokenize", &[], input.as_bytes());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{input}: {}", ran.err);
        assert!(ran.err.contains(says), "{input}: {}", ran.err);
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_run_quietly() {
    let dunlin = Dunlin::tiny();
    for args in [
        &["-p", "of", "--ignore-eos", "--raw", "-n", "150"][..],
        &["-p", "of", "--ignore-eos", "--raw", "-n", "150", "--json"],
        &["--help"],
    ] {
        let mut child = spawn(dunlin.command("run").args(args));
        drop(child.stdin.take());
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        let status = child.wait().unwrap();
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        assert_eq!(status.code(), Some(0), "{args:?}: {err}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_record_that_cannot_be_written_is_an_error() {
    let dunlin = Dunlin::tiny();
    let args = ["-p", "of", "--raw", "-n", "4", "--record", "/dev/full"];
    let ran = dunlin.feed("run", &args, b"");
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("the record of the run is not complete"), "{}", ran.err);
}
