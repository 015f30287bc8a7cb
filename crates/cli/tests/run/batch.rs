//! Batches that are ended and go on, lines that are bad, runs on record.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::support::{Dunlin, Ran, numbers, spawn};

const ARGS: [&str; 4] = ["--ignore-eos", "--seed", "3", "--raw"];
/// Tokens of an answer.
const SHORT: [&str; 2] = ["-n", "20"];

/// `dunlin run --batch` from a file to a file.
fn run(dunlin: &Dunlin, prompts: &str, out: &str, more: &[&str]) -> Ran {
    dunlin.run(&[&["--batch", prompts, "--out", out], &ARGS[..], more].concat())
}

fn parsed(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Results without times.
fn timeless(text: &str) -> Vec<Value> {
    let mut all = parsed(text);
    for result in &mut all {
        let fields = result.as_object_mut().unwrap();
        fields.remove("timings");
        fields.remove("bill");
    }
    all
}

fn prompts(count: usize) -> String {
    let line = |i: usize| json!({"id": format!("p{i}"), "prompt": format!("prompt number {i}")});
    (0..count).map(|i| format!("{}\n", line(i))).collect()
}

#[test]
fn results_have_what_they_promise() {
    let dunlin = Dunlin::tiny();
    let prompts = dunlin.file("in.jsonl", prompts(3));
    let out = dunlin.file("out.jsonl", "");
    let ran = run(&dunlin, prompts.to_str().unwrap(), out.to_str().unwrap(), &SHORT);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    for (i, result) in parsed(&fs::read_to_string(out).unwrap()).iter().enumerate() {
        assert_eq!((&result["id"], &result["index"]), (&json!(format!("p{i}")), &json!(i)));
        assert_eq!(numbers(result, "ids"), numbers(result, "token_ids"));
        assert_eq!(numbers(result, "ids").len(), 20);
        assert_eq!(result["finish_reason"], "length");
        assert!(result["text"].is_string());
        let bill = &result["bill"];
        for field in [
            "queue_ns",
            "prefill_ns",
            "decode_ns",
            "computed_tokens",
            "cached_prompt_tokens",
            "moved_bytes",
            "preemptions",
        ] {
            assert!(bill[field].is_u64(), "{field}");
        }
        assert!(bill["joules"].as_f64() > Some(0.0));
        let source = bill["joules_source"].as_str().unwrap();
        assert!(source.starts_with("rapl: ") || source.starts_with("model: "), "{source}");
    }
}

#[test]
fn a_batch_that_was_ended_goes_on_where_it_was() {
    let dunlin = Dunlin::tiny();
    let file = dunlin.file("in.jsonl", prompts(12));
    let (input, out) = (file.to_str().unwrap(), dunlin.file("out.jsonl", ""));
    let out = out.to_str().unwrap();
    assert_eq!(run(&dunlin, input, out, &SHORT).code, Some(0));
    let whole = fs::read_to_string(out).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    for kept in [0, 1, 7, 11, 12] {
        for torn in ["", "{\"index\": 7, \"te"] {
            fs::write(out, lines[..kept].concat() + torn).unwrap();
            let ran = run(&dunlin, input, out, &SHORT);
            assert_eq!(ran.code, Some(0), "{}", ran.err);
            assert_eq!(ran.err.contains("results are there already"), kept > 0, "{}", ran.err);
            let text = fs::read_to_string(out).unwrap();
            assert!(text.starts_with(&lines[..kept].concat()), "what was there stays");
            assert_eq!(timeless(&text), timeless(&whole));
        }
    }
    // Results of other prompts are not added to.
    let other = dunlin.file("other.jsonl", "\"other\"\n");
    let ran = run(&dunlin, other.to_str().unwrap(), out, &SHORT);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("--fresh starts anew"), "{}", ran.err);
    assert_eq!(timeless(&fs::read_to_string(out).unwrap()), timeless(&whole));
    assert_eq!(run(&dunlin, other.to_str().unwrap(), out, &["--fresh"]).code, Some(0));
    assert_eq!(parsed(&fs::read_to_string(out).unwrap()).len(), 1);
}

#[test]
fn a_batch_that_was_killed_gives_in_the_end_what_it_would_have_given() {
    let dunlin = Dunlin::tiny();
    let file = dunlin.file("in.jsonl", prompts(60));
    let input = file.to_str().unwrap();
    let (expected, out) = (dunlin.file("expected.jsonl", ""), dunlin.file("out.jsonl", ""));
    let more = ["-n", "60"];
    assert_eq!(run(&dunlin, input, expected.to_str().unwrap(), &more).code, Some(0));
    let mut killed = 0;
    loop {
        let args = [&["--batch", input, "--out", out.to_str().unwrap()], &ARGS[..], &more].concat();
        let mut child = spawn(dunlin.command("run").args(args));
        drop(child.stdin.take());
        // Until some more results are there.
        let lines = || fs::read_to_string(&out).unwrap().lines().count();
        let before = lines();
        while child.try_wait().unwrap().is_none() && lines() < before + 15 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if child.try_wait().unwrap().is_some() {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
    }
    assert!(killed > 0, "it was quicker than the test");
    let read = |path| timeless(&fs::read_to_string(path).unwrap());
    assert_eq!(read(out), read(expected));
}

#[test]
fn a_bad_line_is_told_and_skipped() {
    let dunlin = Dunlin::tiny();
    let bad = "{\"prompt\": \"a\", \"id\": \"x\", \"temprature\": 1}";
    let lines = format!("\"a\"\n{bad}\nnot JSON at all\n\"b\"\n");
    let ran =
        dunlin.feed("run", &[&["--batch", "-"], &ARGS[..], &SHORT].concat(), lines.as_bytes());
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("line 2: unknown field `temprature`"), "{}", ran.err);
    assert!(ran.err.contains("line 3: it is no JSON"), "{}", ran.err);
    let results = parsed(&ran.out);
    assert_eq!(results.len(), 4);
    for good in [0, 3] {
        assert_eq!(numbers(&results[good], "ids").len(), 20);
    }
    assert_eq!((&results[1]["id"], &results[1]["finish_reason"]), (&json!("x"), &json!("error")));
    assert!(results[2]["error"].as_str().unwrap().starts_with("line 3: it is no JSON"));
}

#[test]
fn a_recorded_run_replays_to_the_same_decisions() {
    let dunlin = Dunlin::tiny();
    let file = dunlin.file("in.jsonl", prompts(30));
    let (input, log) = (file.to_str().unwrap(), dunlin.file("run.log", ""));
    let log = log.to_str().unwrap();
    // So little memory that some wait.
    let more = ["--record", log, "--parallel", "1", "-c", "96", "--policy", "shortest"];
    let args = [&["--batch", input], &ARGS[..], &SHORT, &more].concat();
    assert_eq!(dunlin.run(&args).code, Some(0));
    let replay = |json: bool| -> Ran {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dunlin"));
        command.args(["replay", log]).args(json.then_some("--json"));
        command.output().unwrap().into()
    };
    let ran = replay(false);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("the same decisions, byte for byte"), "{}", ran.out);
    let report: Value = serde_json::from_str(&replay(true).out).unwrap();
    assert_eq!((&report["same"], &report["requests"]), (&json!(true), &json!(30)));
    let bytes = fs::read(log).unwrap();
    fs::write(log, &bytes[..bytes.len() - 5]).unwrap();
    let ran = replay(true);
    assert_eq!(ran.code, Some(0));
    assert!(ran.err.contains("cut short"), "{}", ran.err);
    fs::write(log, "something else").unwrap();
    let ran = replay(false);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("is no record of a run"), "{}", ran.err);
}
