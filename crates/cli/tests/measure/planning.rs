//! `dunlin calibrate`, `dunlin validate` and `dunlin plan`.

use super::*;

#[test]
fn a_calibrated_model_is_validated_and_no_decision_differs() {
    let dunlin = Dunlin::tiny();
    let cost = dunlin.path("cost.toml");
    let small = ["--reps", "2", "--max-batch", "3", "--max-kv", "500", "--out", text(&cost)];
    let found = dunlin.json(&["calibrate"], &small);
    assert!(found["points"].as_u64().unwrap() > 8);
    let groups: Vec<&str> = found["held_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["group"].as_str().unwrap())
        .collect();
    assert!(groups.contains(&"decode") && groups.contains(&"prefill"), "{groups:?}");
    let written = std::fs::read_to_string(&cost).unwrap();
    assert!(
        written.contains("steps held out") && written.contains("kind = \"fitted\""),
        "{written}"
    );

    // Little memory, so that requests give way to each other, and prompts in chunks.
    for more in [&["--kv-tokens", "400"][..], &["--chunking", "16", "--policy", "fcfs"]] {
        let traffic =
            ["--cost", text(&cost), "--rate", "400", "--seconds", "0.2", "--max-batch", "8"];
        let found = dunlin.json(&["validate"], &[&traffic, more].concat());
        let decisions = &found["decisions"];
        assert_eq!(decisions["different_steps"], 0, "{decisions}");
        assert_eq!(decisions["different_requests"], 0, "{decisions}");
        assert_eq!(found["replay"]["differences"], 0);
        assert!(decisions["requests"].as_u64().unwrap() > 40, "{decisions}");
        assert!(decisions["steps"].as_u64().unwrap() > 40, "{decisions}");
        assert_eq!(found["cost_model"]["requests"], decisions["requests"]);
        assert!(found["cost_model"]["e2e"]["mean"]["simulated_ms"].as_f64().unwrap() > 0.0);
    }

    let bad = dunlin.file("bad.toml", "version = 1\n[model]\nkind = 'guess'");
    let unusable: [(&[&str], &str); 4] = [
        (&["--cost", text(&cost), "--seconds", "0"], "--seconds is 0"),
        (&["--cost", text(&cost), "--load", "nan"], "--load"),
        (&["--cost", text(&cost), "--chunking", "200%"], "--chunking"),
        (&["--cost", text(&bad)], "no cost model"),
    ];
    for (args, problem) in unusable {
        let ran = dunlin.run(&["validate"], args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(problem), "{args:?}: {}", ran.err);
    }
}

/// Without a model: `plan` has none among its arguments.
fn plan(folder: &Path, text_of: &str, args: &[&str]) -> Ran {
    let path = folder.join("plan.toml");
    std::fs::write(&path, text_of).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["plan", "-c", text(&path)])
        .args(args)
        .output()
        .unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

const QUESTION: &str = "
[model.shape]
name = 'small'
layers = 4
d_model = 512
n_heads = 8
n_kv_heads = 2
head_dim = 64
d_ff = 1024
vocab_size = 10000

[[workload.generate.clients]]
name = 'chat'
arrival = { kind = 'open', rate = { kind = 'constant', per_s = 100.0 } }
lengths = { kind = 'independent', prompt = { dist = { kind = 'exponential', mean = 60 } }, output = { dist = { kind = 'exponential', mean = 20 } } }

[goals]
ttft_ms = 50.0
tpot_ms = 20.0
good_share = 0.9

[search]
requests = 100
replications = 2
max_running = [8]

[[hardware]]
cost_file = 'cost.toml'
kv_tokens = 20_000
replicas = [1, 2, 3, 4]
[hardware.device]
name = 'machine'
flops = { f32 = 1e12 }
memory_bytes = 16_000_000_000
memory_bytes_per_s = 5e10
price_per_hour = 0.1
";

#[test]
fn a_plan_on_a_cost_model_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let cost = "version = 1\n[model]\nkind = 'linear'\nfixed_ns = 2e6\ntoken_ns = 2e5\n";
    std::fs::write(folder.path().join("cost.toml"), cost).unwrap();
    let (csv, page) = (folder.path().join("front.csv"), folder.path().join("plan.html"));
    let ran =
        plan(folder.path(), QUESTION, &["--json", "--csv", text(&csv), "--report", text(&page)]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let found: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(found["feasible"], true);
    let launch = found["smallest"]["launch"][0].as_str().unwrap();
    assert!(launch.starts_with("dunlin serve -m"), "{launch}");
    let rows = std::fs::read_to_string(&csv).unwrap();
    assert_eq!(rows.lines().count(), 1 + found["front"].as_array().unwrap().len());
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("<svg") && page.ends_with("</html>\n"));
    // Nothing from elsewhere.
    assert!(!page.contains("http"), "{page}");

    let ran =
        plan(folder.path(), &QUESTION.replace("ttft_ms = 50.0", "ttft_ms = 1.0"), &["--json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let found: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(found["feasible"], false);
    assert!(found["refused"]["why"].as_str().unwrap().contains("good_share"), "{found}");

    for (from, to, key) in [
        ("kv_tokens = 20_000", "", "hardware[0].kv_tokens"),
        ("[goals]", "[goals]\nspeed = 1", "speed"),
        ("fixed", "fixed", "cost.toml"),
    ] {
        if from == to {
            std::fs::remove_file(folder.path().join("cost.toml")).unwrap();
        }
        let ran = plan(folder.path(), &QUESTION.replace(from, to), &[]);
        assert_ne!(ran.code, Some(0), "{key}");
        assert!(ran.err.contains(key), "{key}: {}", ran.err);
    }
}
