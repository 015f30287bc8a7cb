//! Speed: what is reported, not how much of it.

use serde_json::Value;

use crate::{Dunlin, Ran};

/// Read tests over little memory: no figure counts here.
const LITTLE: [&str; 2] = ["--read-mib", "16"];

impl Dunlin {
    fn bench(&self, args: &[&str]) -> Ran {
        self.run(&["bench"], &[args, &LITTLE].concat())
    }

    fn bench_json(&self, args: &[&str]) -> Value {
        self.json(&["bench"], &[args, &LITTLE].concat())
    }
}

const ROWS: [&str; 4] = ["pp40", "tg3", "tg2@50", "b3"];

#[test]
fn every_row_stands_beside_its_limit() {
    let dunlin = Dunlin::tiny();
    let args = ["-t", "2", "--rows", "pp40,tg3,tg2@50,b3,tg3", "--reps", "2"];
    let report = dunlin.bench_json(&args);
    assert_eq!(report["rows"].as_object().unwrap().len(), 4, "tg3 once");
    for row in ROWS {
        let values = report["rows"][row].as_array().unwrap();
        assert_eq!(values.len(), 2, "{row}");
        assert!(values.iter().all(|v| v.as_f64() > Some(0.0)), "{row}: {values:?}");
        let limit = report["limits"][row].as_f64().unwrap();
        let share = report["share"][row].as_f64().unwrap();
        let mean = values.iter().map(|v| v.as_f64().unwrap()).sum::<f64>() / 2.0;
        assert!((share * limit / mean - 1.0).abs() < 1e-9, "{row}");
        assert!(["bandwidth", "arithmetic"].contains(&report["bounds"][row].as_str().unwrap()));
    }
    let machine = &report["machine"];
    for threads in ["1", "2"] {
        for pages in ["read_huge_gbps", "read_plain_gbps"] {
            assert_eq!(machine[pages][threads].as_array().unwrap().len(), 2, "{machine}");
        }
        assert!(machine["arithmetic"][threads]["f32_fma_gops"].as_f64() > Some(0.0));
    }
    for absent in ["peers", "ratios", "startup", "memory"] {
        assert_eq!(report[absent], Value::Null, "{absent} was not asked for");
    }
    // The weights of the tiny model, by hand: 2 layers of Q4_1 blocks (20 bytes for 32 values), a
    // head of its own, and norms in f32.
    let layer = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256;
    let matrices = (2 * layer + 299 * 256) / 32 * 20;
    let norms = (2 * 2 + 1) * 256 * 4;
    assert_eq!(report["setting"]["weight_bytes_per_step"], f64::from(matrices + norms));
    assert_eq!(report["setting"]["kv_bytes_per_token"], f64::from(2 * 2 * 128 * 2));
}

#[test]
fn starts_and_memory_are_measured_in_processes_of_their_own() {
    let dunlin = Dunlin::tiny();
    let report = dunlin.bench_json(&["--rows", "pp8", "--reps", "1", "--startup"]);
    assert_eq!(report["startup"]["ms"].as_array().unwrap().len(), 5);
    assert!(report["startup"]["median_ms"].as_f64() > Some(0.0));
    if cfg!(target_os = "linux") {
        let memory = &report["memory"];
        let number = |name: &str| memory[name].as_i64().unwrap();
        assert_eq!(
            number("peak_rss_bytes"),
            number("file_bytes") + number("kv_bytes") + number("over_bytes")
        );
        assert_eq!(number("kv_bytes"), 1024 * 2 * 2 * 128 * 2);
        let file = std::fs::metadata(&dunlin.model).unwrap().len();
        assert_eq!(number("file_bytes").unsigned_abs(), file);
    }
}

#[test]
fn the_table_goes_to_standard_output_when_json_does_not() {
    let dunlin = Dunlin::tiny();
    let ran = dunlin.bench(&["--rows", "tg2", "--reps", "1"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("GB/s") && ran.out.contains("\ntg2 "), "{}", ran.out);
}

#[test]
fn rows_that_are_none_are_refused() {
    let dunlin = Dunlin::tiny();
    for (args, says) in [
        (&["--rows", "xx5"][..], "ppN"),
        (&["--rows", ""], "ppN"),
        (&["--rows", "pp5", "--reps", "0"], "--reps"),
        (&["--rows", "pp4000"], "2048"),
        (&["--rows", "tg5", "-t", "0"], "threads"),
    ] {
        let ran = dunlin.bench(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(says) && ran.out.is_empty(), "{args:?}: {}", ran.err);
    }
}

#[test]
fn workloads_of_many_requests_run_through_the_engine() {
    let dunlin = Dunlin::tiny();
    let report = dunlin.json(&["bench", "batch"], &["--scale", "16", "-t", "2"]);
    assert_eq!(report["sizes"]["requests"], 4);
    for runs in ["offline", "shared_prefix", "shared_prefix_uncached"] {
        let run = &report[runs][0];
        assert!(run["output_tokens_per_second"].as_f64() > Some(0.0), "{run}");
        assert!(run["joules"].as_f64() > Some(0.0), "{run}");
    }
    assert_eq!(report["shared_prefix_uncached"][0]["cached_tokens"], 0);
    // All but the first find the whole blocks of the 62 tokens in common.
    let cached = report["shared_prefix"][0]["cached_tokens"].as_u64();
    assert!(cached >= Some(3 * 32), "{cached:?}");
    assert_eq!(report["static_batches"][0][0]["batch"], 4);
    let report = dunlin.json(&["bench", "session"], &["--scale", "40", "--reps", "1"]);
    for (queries, context) in [(0, 25), (1, 175)] {
        let queries = &report["queries"][queries];
        assert_eq!(
            (&queries["context"], &queries["computed_tokens"]),
            (&context.into(), &2.into())
        );
        assert_eq!(queries["ttft_ms"].as_array().unwrap().len(), 5);
    }
    assert_eq!(report["interference"].as_array().unwrap().len(), 2);
    for run in report["interference"].as_array().unwrap() {
        assert!(run["loaded_p99_ms"].as_f64() > Some(0.0), "{run}");
        assert!(run["ttft_beside_ms"].as_f64() > Some(0.0), "{run}");
    }
}

#[test]
fn what_a_schema_costs_is_measured_on_answers_that_fit() {
    let dunlin = Dunlin::tiny();
    let report = dunlin.json(&["bench", "grammar"], &["--scale", "8", "--reps", "1", "-t", "2"]);
    // 1 and 16 answers of 16 tokens; the first half fills the tables. A token that does not fit would
    // have ended it.
    for (masks, tokens) in [("first_masks", 8 * 16), ("later_masks", 9 * 16)] {
        let masks = &report[masks];
        assert_eq!(masks["tokens"], tokens, "{masks}");
        let at = |name: &str| masks[name].as_f64().unwrap();
        assert!(at("p50_us") > 0.0 && at("p50_us") <= at("p99_us") && at("p99_us") <= at("max_us"));
    }
    for (decoding, sequences) in report["decoding"].as_array().unwrap().iter().zip([1, 16]) {
        assert_eq!(decoding["sequences"], sequences);
        for step in ["free_step_ms", "constrained_step_ms"] {
            assert!(decoding[step][0].as_f64() > Some(0.0), "{step}: {decoding}");
        }
    }
    assert!(report["mask_share_of_step"].as_f64() > Some(0.0), "{report}");
}
