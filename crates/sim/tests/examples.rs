//! The simulations of the folder `examples` can be read and run, as far as their first requests; and
//! files that cannot be are refused with the key that is wrong.

use std::path::{Path, PathBuf};

use dunlin_sim::{RunOptions, chrome::ChromeTrace, config::SimConfig, html, simulate};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn simulations() -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder()).unwrap().map(|f| f.unwrap().path());
    let is_one = |path: &PathBuf| {
        path.extension().is_some_and(|e| e == "toml")
            && std::fs::read_to_string(path).unwrap().contains("[workload")
            && !std::fs::read_to_string(path).unwrap().contains("[search")
    };
    let mut all: Vec<PathBuf> = files.filter(is_one).collect();
    all.sort();
    all
}

#[test]
fn every_example_runs() {
    let all = simulations();
    assert!(all.len() >= 8, "{all:?}");
    for path in all {
        let mut config = SimConfig::read(&path).unwrap_or_else(|e| panic!("{e}"));
        config.workload.limit = Some(120);
        // A few replicas of many will do.
        for group in &mut config.cluster.replicas {
            group.count = group.count.min(8);
        }
        let cluster = config.cluster().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let run = |threads| {
            let requests = config.requests().unwrap();
            let mut out = Vec::new();
            let mut events = ChromeTrace::new(&mut out);
            let options = RunOptions {
                seed: 1,
                threads,
                checked: threads == 1,
                events: Some(&mut events),
                ..RunOptions::default()
            };
            let report = simulate(&cluster, requests, options).unwrap();
            events.finish().unwrap();
            (report, out)
        };
        let (report, events) = run(1);
        assert_eq!(report.metrics.arrived, 120, "{}", path.display());
        assert_eq!(report.metrics.finished, 120, "{}: {:?}", path.display(), report.rejection);
        // Measured tables have an end, which a few steps pass.
        let beyond = report.metrics.extrapolated_steps;
        assert!(beyond * 50 <= report.metrics.steps, "{}: {beyond}", path.display());
        assert!(events == run(2).1, "{}: two threads, another log", path.display());
        let events: Vec<serde_json::Value> = serde_json::from_slice(&events).unwrap();
        assert!(events.len() > 500);
        let page = html::page(&report, &config.name, None);
        assert!(page.contains("<svg") && page.ends_with("</html>\n"));
        for outside in ["http://", "https://", "<script", "src=", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf"), "{}", path.display());
    }
}

fn error_of(text: &str) -> String {
    match SimConfig::parse(text, &folder()) {
        Err(message) => message,
        Ok(config) => match config.cluster() {
            Err(e) => e.to_string(),
            Ok(_) => config.requests().err().expect("it cannot be").to_string(),
        },
    }
}

#[test]
fn what_is_wrong_is_named() {
    let good = "[workload.trace]\nfile = 'data/azure-conversations.csv.gz'\n\
                [[cluster.replicas]]\nkv = { blocks = 100 }\ncost = { kind = 'linear', fixed_ns = 1e6 }\n\
                [cluster]\n";
    SimConfig::parse(good, &folder()).unwrap().cluster().unwrap();
    let with = |from: &str, to: &str| error_of(&good.replace(from, to));
    let cases = [
        (with("blocks = 100", "blocks = 100, shape = 3"), "shape"),
        (with("[cluster]\n", "[cluster]\nspeed = 1\n"), "speed"),
        (with("blocks = 100", "block_tokens = 16"), "cluster.replicas[0].kv.blocks"),
        (with("fixed_ns = 1e6", "fixed_ns = nan"), "fixed_ns"),
        (with("'linear'", "'guess'"), "guess"),
        (with("azure-conversations", "missing"), "missing.csv.gz"),
        (with("[cluster]\n", "[cluster]\nreport_interval_ms = -1.0\n"), "report_interval_ms"),
        (with("[cluster]\n", "[cluster]\nplacement = 'best'\n"), "best"),
        (with("[workload.trace]\n", "[workload.trace]\nstretch = 0.0\n"), "workload.trace.stretch"),
        (
            with("kv = {", "scheduler = { policy = 'best' }\nkv = {"),
            "cluster.replicas[0].scheduler.policy",
        ),
        (with("kv = {", "scheduler = { max_running = 0 }\nkv = {"), "max_running"),
        (with("kv = {", "embodied_gco2 = 1e5\nkv = {"), "lifetime_hours"),
        (with("kv = {", "lifetime_hours = 0.0\nkv = {"), "lifetime_hours"),
        (with("kv = {", "embodied_gco2 = nan\nkv = {"), "embodied_gco2"),
        (with("kv = {", "cost_file = 'h100-llama-8b.toml'\nkv = {"), "either"),
        (
            with("cost = { kind = 'linear', fixed_ns = 1e6 }", "cost_file = 'nowhere.toml'"),
            "nowhere.toml",
        ),
        (with("[cluster]\n", "[cluster]\noutages = [{ replica = 3, at_s = 1.0 }]\n"), "0 to 0"),
        (error_of("[workload]\n[cluster]\nreplicas = []\n"), "no replicas"),
        (
            error_of(&good.replace(
                "[workload.trace]\nfile = 'data/azure-conversations.csv.gz'",
                "[workload]",
            )),
            "give one of",
        ),
    ];
    for (message, wanted) in cases {
        assert!(message.contains(wanted), "{wanted:?} is not in {message:?}");
    }
}

/// A model that does not fit: the error says what would.
#[test]
fn what_does_not_fit_says_what_would() {
    let cost = std::fs::read_to_string(folder().join("l4-llama-8b.toml")).unwrap();
    let bigger = cost.replace("layers = 32", "layers = 80");
    let dir = std::env::temp_dir().join(format!("dunlin-sim-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("big.toml"), bigger).unwrap();
    let text =
        "[workload.generate]\n[[cluster.replicas]]\nkv = {}\ncost_file = 'big.toml'\n[cluster]\n";
    let error = SimConfig::parse(text, &dir).unwrap().cluster().unwrap_err().to_string();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(error.starts_with("cluster.replicas[0].kv: the model needs"), "{error}");
    assert!(error.contains("devices of this kind"), "{error}");
}
