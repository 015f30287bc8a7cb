//! What holds for any model.

use serde_json::{Value, json};

use crate::support::{Dunlin, numbers};

#[test]
fn raw_text_is_all_that_standard_output_gets() {
    let dunlin = Dunlin::tiny();
    let args = ["-p", "the rest", "-n", "8", "--temperature", "0", "--raw"];
    let first = dunlin.run(&args);
    assert_eq!(first.code, Some(0), "{}", first.err);
    let report = dunlin.json(&args);
    assert_eq!(first.out, format!("{}\n", report["text"].as_str().unwrap()));
    // The pack is there now, and there is nothing left to say.
    let second = dunlin.run(&args);
    assert_eq!((second.out, second.err.as_str()), (first.out, ""));
}

#[test]
fn reports_hold_what_they_promise() {
    let dunlin = Dunlin::tiny();
    let args = ["-p", "a", "-n", "6", "--seed", "7", "--ignore-eos", "--logprobs", "3"];
    let report = dunlin.json(&[&args[..], &["--speculate", "off"]].concat());
    assert_eq!(numbers(&report, "token_ids").len(), 6);
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(report["seed"], 7);
    let bill = &report["bill"];
    assert_eq!((&bill["contract"], &bill["activations"]), (&json!("measured"), &json!("int8")));
    assert_eq!(
        (&bill["kv_type"], &bill["measured"]),
        (&json!("f16"), &json!(["activations", "kv_type"]))
    );
    assert_eq!(report["bill"]["output_tokens"], 6);
    let prompt = report["bill"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(report["bill"]["computed_tokens"].as_u64(), Some(prompt + 5));
    assert!(report["timings"]["prefill_ms"].as_f64() > Some(0.0));
    let logprobs = report["logprobs"].as_array().unwrap();
    let top = report["top_logprobs"].as_array().unwrap();
    assert_eq!((logprobs.len(), top.len()), (6, 6));
    for (chosen, best) in logprobs.iter().zip(top) {
        let best = best.as_array().unwrap();
        assert_eq!(best.len(), 3);
        assert!(best[0]["logprob"].as_f64() >= chosen.as_f64());
        assert!(chosen.as_f64() < Some(0.0));
    }
}

#[test]
fn whoever_drafts_the_answer_is_the_same() {
    let dunlin = Dunlin::tiny();
    let model = dunlin.model.to_str().unwrap().to_string();
    let corpus = dunlin.file("corpus.txt", "one two one three one one one two".repeat(20));
    let corpus = corpus.to_str().unwrap();
    for temperature in ["0", "0.7"] {
        let with = |more: &[&str]| {
            let args =
                ["-p", "one one one one", "-n", "40", "--raw", "--ignore-eos", "--seed", "3"];
            let report = dunlin.json(&[&args[..], &["--temperature", temperature], more].concat());
            let said = (numbers(&report, "token_ids"), report["logprobs"].clone());
            (said, report["bill"]["speculation"].clone())
        };
        let (plain, none) = with(&["--speculate", "off"]);
        let nothing = json!({
            "drafter": "off", "contract": "exact",
            "drafted_tokens": 0, "accepted_tokens": 0, "draft_ns": 0,
        });
        assert_eq!(none, nothing);
        for way in [
            &["--speculate", "lookup"][..],
            &["--speculate", "auto", "--speculate-max", "3"],
            &["--speculate", "draft", "--draft-model", &model],
            &["--speculate", "layers"],
            &["--speculate", "store", "--speculate-store", "0", "--speculate-corpus", corpus],
        ] {
            let (said, bill) = with(way);
            assert_eq!(said, plain, "{way:?}");
            assert_eq!((&bill["drafter"], &bill["contract"]), (&json!(way[1]), &json!("exact")));
            assert!(bill["accepted_tokens"].as_u64() <= bill["drafted_tokens"].as_u64());
        }
    }
    let refused = dunlin.run(&["-p", "a", "--speculate", "draft"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("--draft-model"), "{}", refused.err);
    let refused = dunlin.run(&["-p", "a", "--speculate", "store", "--speculate-store", "0"]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("--speculate-corpus"), "{}", refused.err);
    for (name, content) in [("missing.txt", None), ("bytes.txt", Some([0xff, 0xfe, 0x80]))] {
        let path = dunlin.model.with_file_name(name);
        let path = content.map_or(path, |bytes| dunlin.file(name, bytes));
        let path = path.to_str().unwrap();
        let refused = dunlin.run(&["-p", "a", "--speculate-corpus", path]);
        assert!(refused.code.is_some_and(|code| code != 0), "{}", refused.err);
        assert!(refused.err.contains("corpus") && refused.err.contains(name), "{}", refused.err);
        assert_eq!(refused.out, "");
    }
}

#[test]
fn seeds_decide_and_threads_do_not() {
    let dunlin = Dunlin::tiny();
    let with = |seed: &str, threads: &str| {
        let args = ["-p", "one", "-n", "30", "--raw", "--ignore-eos", "--seed", seed];
        let report = dunlin.json(&[&args[..], &["-t", threads]].concat());
        (numbers(&report, "token_ids"), report["logprobs"].clone())
    };
    assert_eq!(with("7", "2"), with("7", "2"));
    assert_eq!(with("7", "2"), with("7", "1"));
    assert_ne!(with("7", "2").0, with("8", "2").0);
}

/// Lines of a batch in many shapes.
fn lines() -> Vec<Value> {
    vec![
        json!({"prompt": "the first", "seed": 1, "id": "a"}),
        json!({"prompt": "a second that is somewhat longer than the others", "seed": 2}),
        json!({"prompt": "x", "temperature": 0, "max_tokens": 5, "id": 3, "seed": 3}),
        json!({"messages": [{"role": "user", "content": "hello"}], "seed": 4, "n": 3}),
        json!({"prompt": "the first", "seed": 5, "repetition_penalty": 1.3, "top_p": 0.5}),
    ]
}

/// A result without what differs from run to run: times.
fn timeless(mut report: Value) -> Value {
    let fields = report.as_object_mut().unwrap();
    fields.remove("timings");
    fields.remove("index");
    fields.remove("bill");
    report
}

#[test]
fn batches_give_each_prompt_what_it_gets_alone_in_order() {
    let dunlin = Dunlin::tiny();
    let args = ["-n", "20", "--ignore-eos", "--top-k", "0", "--min-p", "0"];
    let together = dunlin.batch(&args, &lines());
    assert_eq!(together.len(), lines().len());
    for (i, (line, result)) in lines().into_iter().zip(&together).enumerate() {
        assert_eq!(result["index"], i);
        assert_eq!(result["id"], line["id"]);
        let alone = dunlin.batch(&args, &[line]);
        assert_eq!(timeless(alone[0].clone()), timeless(result.clone()), "line {i}");
    }
    assert_eq!(numbers(&together[2], "token_ids").len(), 5);
    assert_eq!(together[3]["choices"].as_array().unwrap().len(), 3);
    // Room for one sequence only: the others wait, and nothing changes.
    let starved = dunlin.batch(&[&args[..], &["--parallel", "1", "-c", "96"]].concat(), &lines());
    for (a, b) in together.iter().zip(&starved) {
        assert_eq!(timeless(a.clone()), timeless(b.clone()));
    }
}

#[test]
fn batches_write_to_a_file_and_tell_of_lines_that_fail() {
    let dunlin = Dunlin::tiny();
    let good = json!({"prompt": "a", "max_tokens": 2});
    let bad = json!({"prompt": "a", "top_p": 7});
    let prompts = dunlin.file("prompts.jsonl", format!("{good}\n\n{bad}\n\"b\"\n"));
    let out = dunlin.file("out.jsonl", "");
    let ran = dunlin.run(&[
        "--batch",
        prompts.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "-n",
        "2",
    ]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    let written = std::fs::read_to_string(out).unwrap();
    let lines: Vec<Value> = written.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[1]["error"].as_str().unwrap().starts_with("top_p: 7 is out of range"));
    assert_eq!(numbers(&lines[2], "token_ids").len(), 2);
}

#[test]
fn samples_differ_and_the_first_is_what_one_alone_gives() {
    let dunlin = Dunlin::tiny();
    let args = ["-p", "of", "-n", "12", "--seed", "3", "--ignore-eos"];
    let one = dunlin.json(&args);
    let three = dunlin.json(&[&args[..], &["--n", "3"]].concat());
    let choices = three["choices"].as_array().unwrap();
    let ids: Vec<_> = choices.iter().map(|c| numbers(c, "token_ids")).collect();
    assert_eq!(ids[0], numbers(&one, "token_ids"));
    assert_eq!(ids[0], numbers(&three, "token_ids"));
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    // Each sample on its own line, and only they.
    let text = dunlin.run(&[&args[..], &["--n", "3"]].concat());
    let joined: String =
        choices.iter().map(|c| format!("{}\n", c["text"].as_str().unwrap())).collect();
    assert_eq!(text.out, joined);
}

#[test]
fn the_bill_names_the_contract_of_the_settings() {
    let dunlin = Dunlin::tiny();
    for (activations, kv, contract, measured) in [
        ("f32", "f32", "exact", json!(null)),
        ("f32", "int8", "measured", json!(["kv_type"])),
        ("split", "f32", "measured", json!(["activations"])),
        ("int8", "f16", "measured", json!(["activations", "kv_type"])),
    ] {
        let settings = ["--activations", activations, "--kv-type", kv];
        let report = dunlin.json(&[&["-p", "a", "-n", "1"], &settings[..]].concat());
        let bill = &report["bill"];
        assert_eq!(bill["contract"], contract, "{settings:?}");
        assert_eq!(bill["measured"], measured, "{settings:?}");
        assert_eq!((&bill["activations"], &bill["kv_type"]), (&json!(activations), &json!(kv)));
    }
}

#[test]
fn the_models_own_context_holds_every_sample() {
    let dunlin = Dunlin::tiny();
    let args = ["-p", "of", "--seed", "3", "--ignore-eos", "-c", "0", "--n", "3"];
    // To the context's end, which takes three sequences' KV.
    let report = dunlin.json(&args);
    let prompt = report["bill"]["prompt_tokens"].as_u64().unwrap() as usize;
    let choices = report["choices"].as_array().unwrap();
    let inspected = dunlin.feed("inspect", &["--json"], b"");
    let facts: Value = serde_json::from_str(&inspected.out).unwrap();
    let context = facts["sizes"]["context_length"].as_u64().unwrap() as usize;
    for choice in choices {
        assert_eq!(numbers(choice, "token_ids").len(), context - prompt);
    }
    let line = json!({"prompt": "of", "seed": 3, "n": 3});
    let batch = dunlin.batch(&["--ignore-eos", "-c", "0"], &[line]);
    assert_eq!(batch[0]["choices"], report["choices"]);
}

#[test]
fn stops_end_the_text() {
    let dunlin = Dunlin::tiny();
    let args = ["-p", "of", "-n", "30", "--temperature", "0", "--raw", "--ignore-eos"];
    let whole = dunlin.json(&args);
    let (text, ids) = (whole["text"].as_str().unwrap(), numbers(&whole, "token_ids"));
    let stop: String = text.chars().skip(4).take(2).collect();
    let cut = dunlin.json(&[&args[..], &["--stop", "not in it", "--stop", &stop]].concat());
    assert_eq!(cut["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    assert_eq!(cut["finish_reason"], "stop");
    let printed = dunlin.run(&[&args[..], &["--stop", &stop]].concat());
    assert_eq!(printed.out.trim_end_matches('\n'), cut["text"].as_str().unwrap());
    let token = ids[5].to_string();
    let cut = dunlin.json(&[&args[..], &["--stop-token-ids", &token]].concat());
    let first = ids.iter().position(|&id| id == ids[5]).unwrap();
    assert_eq!(numbers(&cut, "token_ids"), ids[..=first]);
}

#[test]
fn prompts_come_from_anywhere() {
    let dunlin = Dunlin::tiny();
    let rest = ["-n", "5", "--seed", "5", "--json"];
    let file = dunlin.file("prompt.txt", "over there\n");
    let timeless = |ran: crate::support::Ran| {
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        timeless(serde_json::from_str(&ran.out).unwrap())
    };
    let flag = timeless(dunlin.run(&[&["-p", "over there\n"], &rest[..]].concat()));
    let stdin = timeless(dunlin.feed("run", &rest, b"over there\n"));
    let dash = timeless(dunlin.feed("run", &[&["-f", "-"], &rest[..]].concat(), b"over there\n"));
    let path = file.to_str().unwrap();
    let file = timeless(dunlin.run(&[&["-f", path], &rest[..]].concat()));
    assert!(flag == stdin && flag == dash && flag == file);
}

#[test]
fn templates_are_the_models_or_given() {
    let dunlin = Dunlin::tiny();
    let prompt_tokens = |args: &[&str]| {
        let report = dunlin.json(&[&["-p", "xyz", "-n", "1"], args].concat());
        report["bill"]["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(prompt_tokens(&["--raw"]), 3);
    let plain = prompt_tokens(&[]);
    assert!(plain > 3 && prompt_tokens(&["--system", "q"]) > plain);
    let template = dunlin.file("t.jinja", "{{ messages[0].content }}!");
    assert_eq!(prompt_tokens(&["--chat-template", template.to_str().unwrap()]), 4);
    let refusing = dunlin.file("r.jinja", "{{ raise_exception('no system here') }}");
    let ran = dunlin.run(&["-p", "x", "--chat-template", refusing.to_str().unwrap()]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("no system here"), "{}", ran.err);
}

#[test]
fn ids_and_text_turn_into_each_other() {
    let dunlin = Dunlin::tiny();
    let text = "a line\n<|im_start|>and \u{e9}\u{1F600} bytes";
    let ran = dunlin.feed("tokenize", &["--json"], text.as_bytes());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let ids = numbers(&serde_json::from_str(&ran.out).unwrap(), "ids");
    let start = dunlin_testkit::tiny::VOCAB as u32 - 2;
    assert_eq!(ids.iter().filter(|&&id| id == start).count(), 1, "special tokens are parsed");
    let back = dunlin.feed("detokenize", &[], ran.out.as_bytes());
    assert_eq!((back.code, back.out.as_str()), (Some(0), text));
    assert!(!dunlin.has_packs(), "no weights are packed for it");
    let listed = dunlin.feed("tokenize", &[], text.as_bytes());
    assert_eq!(listed.out.lines().count(), ids.len());
    let empty = dunlin.feed("tokenize", &["--json"], b"");
    assert_eq!(empty.out, "{\"ids\":[]}\n");
}

#[test]
fn biases_and_penalties_reach_the_sampler() {
    let dunlin = Dunlin::tiny();
    let args = ["-p", "of", "-n", "8", "--temperature", "0", "--raw", "--ignore-eos"];
    let forced = dunlin.json(&[&args[..], &["--logit-bias", "65=1000"]].concat());
    assert_eq!(numbers(&forced, "token_ids"), [65; 8]);
    let penalized = dunlin
        .json(&[&args[..], &["--logit-bias", "65=1000", "--frequency-penalty", "2000"]].concat());
    let ids = numbers(&penalized, "token_ids");
    assert_eq!(ids[0], 65);
    assert_ne!(ids[1], 65);
    let free = dunlin.json(&args);
    let banned = numbers(&free, "token_ids")[0];
    let other = dunlin.json(&[&args[..], &["--logit-bias", &format!("{banned}=-inf")]].concat());
    assert!(!numbers(&other, "token_ids").contains(&banned));
}

#[test]
fn the_context_is_an_error_or_an_end() {
    let dunlin = Dunlin::tiny();
    let args = ["-p", "of", "-n", "100", "--raw", "--ignore-eos", "-c", "40"];
    let refused = dunlin.run(&args);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.err.contains("2 tokens and 100 more exceed the context of 40"),
        "{}",
        refused.err
    );
    let stopped = dunlin.run(&[&args[..], &["--context-overflow", "stop", "--json"]].concat());
    assert_eq!(stopped.code, Some(0));
    let report: Value = serde_json::from_str(&stopped.out).unwrap();
    assert_eq!(numbers(&report, "token_ids").len(), 38);
    assert_eq!(report["finish_reason"], "length");
    assert!(stopped.err.contains("context of 40 tokens"), "{}", stopped.err);
}

#[test]
fn settings_come_from_the_environment_too() {
    let dunlin = Dunlin::tiny();
    let args = ["-p", "of", "-n", "5", "--raw", "--json"];
    let mut command = dunlin.command("run");
    command.args(args).env("DUNLIN_SEED", "99").env("DUNLIN_KV_TYPE", "f32");
    let output: crate::support::Ran = command.output().unwrap().into();
    let report: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(report["seed"], 99);
    let flags =
        dunlin.json(&[&args[..5], &["--seed", "99", "-ctk", "f32", "-ctv", "f32"]].concat());
    assert_eq!(report["logprobs"], flags["logprobs"]);
}
