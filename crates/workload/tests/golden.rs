//! The same seed gives the same bytes on every machine: the digest of ten thousand rows of a
//! workload that uses everything.

use dunlin_workload::WorkloadSpec;
use dunlin_workload::trace::native;

/// One of each: gaps, rates, distributions, conversations, prefixes, populations, rollouts.
const SPEC: &str = r#"{
  "prefix_pools": [
    {"name": "system", "prefixes": 40, "exponent": 1.1,
     "tokens": {"dist": {"kind": "lognormal", "median": 300, "sigma": 0.8}, "max": 4000}},
    {"name": "shots", "prefixes": 6, "exponent": 0,
     "tokens": {"dist": {"kind": "integers", "low": 100, "high": 900}}}
  ],
  "clients": [
    {"name": "api", "deadline_s": 1.5,
     "arrival": {"kind": "open", "gaps": {"kind": "gamma", "cv": 2.5},
       "rate": {"kind": "profile", "points": [[0, 5], [100, 30], [200, 2]], "period_s": 300}},
     "lengths": {"kind": "independent",
       "prompt": {"dist": {"kind": "mixture", "parts": [
         {"weight": 2, "of": {"kind": "pareto", "scale": 30, "alpha": 1.3}},
         {"weight": 1, "of": {"kind": "empirical", "values": [5, 900, 70, 300]}}]}, "max": 30000},
       "output": {"dist": {"kind": "weibull", "mean": 120, "cv": 1.4}, "max": 2000}},
     "prefixes": [{"pool": "system"}, {"pool": "shots", "chance": 0.4}]},
    {"name": "chat",
     "arrival": {"kind": "open", "rate": {"kind": "markov", "states": [
       {"per_s": 4, "mean_s": 20}, {"per_s": 0.2, "mean_s": 60}]}},
     "lengths": {"kind": "rows", "rows": [[12, 300], [900, 40], [77, 77]]},
     "prefixes": [{"pool": "system"}],
     "conversation": {"turns": {"dist": {"kind": "exponential", "mean": 5}},
       "gap_s": {"kind": "lognormal", "median": 8, "sigma": 1.2}, "max_context_tokens": 8000}},
    {"name": "agents", "limit": 200,
     "arrival": {"kind": "open", "gaps": {"kind": "weibull", "cv": 3},
       "rate": {"kind": "constant", "per_s": 0.5}},
     "lengths": {"kind": "independent",
       "prompt": {"dist": {"kind": "gamma", "mean": 800, "cv": 0.9}},
       "output": {"dist": {"kind": "zipf", "n": 500, "exponent": 0.7}}},
     "conversation": {"turns": {"dist": {"kind": "uniform", "low": 2, "high": 9}},
       "gap_s": {"kind": "gamma", "mean": 3, "cv": 2}}},
    {"name": "loop", "arrival": {"kind": "closed_loop", "users": 8},
     "lengths": {"kind": "independent", "prompt": {"dist": {"kind": "constant", "value": 512}},
       "output": {"dist": {"kind": "constant", "value": 64}}},
     "conversation": {"turns": {"dist": {"kind": "constant", "value": 50}},
       "gap_s": {"kind": "constant", "value": 0.25}, "context": "fresh"}},
    {"name": "clock", "from_s": 5, "until_s": 500,
     "arrival": {"kind": "open", "gaps": {"kind": "constant"},
       "rate": {"kind": "profile", "points": [[0, 1], [60, 3]], "shape": "steps"}},
     "lengths": {"kind": "independent", "prompt": {"dist": {"kind": "constant", "value": 10}},
       "output": {"dist": {"kind": "constant", "value": 10}}}}
  ],
  "populations": [
    {"name": "many", "clients": 50, "rate": {"kind": "constant", "per_s": 12}, "skew": 1.3,
     "cv": [0.6, 6], "scale": [0.25, 4],
     "lengths": {"kind": "independent",
       "prompt": {"dist": {"kind": "lognormal", "median": 400, "sigma": 1}, "max": 16000},
       "output": {"dist": {"kind": "exponential", "mean": 150}, "max": 4000}}}
  ],
  "rollouts": [
    {"name": "train", "steps": 5, "prompts": 16, "samples": 8, "from_s": 30,
     "prompt": {"dist": {"kind": "lognormal", "median": 250, "sigma": 0.4}},
     "output": {"dist": {"kind": "lognormal", "median": 1500, "sigma": 0.9}, "max": 16384},
     "update_s": {"kind": "uniform", "low": 20, "high": 40}}
  ]
}"#;

#[test]
fn ten_thousand_rows_have_the_digest_of_every_machine() {
    let spec: WorkloadSpec = serde_json::from_str(SPEC).unwrap();
    let mut bytes = Vec::new();
    let mut rows = 0;
    for request in spec.build(2024).unwrap().take(10_000) {
        native::write(&request, &mut bytes).unwrap();
        rows += 1;
    }
    assert_eq!(rows, 10_000);
    let digest = xxhash_rust::xxh3::xxh3_128(&bytes);
    assert_eq!(
        digest,
        0x4de2_6c10_2e6b_9e38_f3b9_9e3d_24e4_99b5,
        "{digest:#x} of {} bytes",
        bytes.len()
    );
}
