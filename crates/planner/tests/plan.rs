//! The search on spaces small enough to try everything.

use std::path::Path;

use dunlin_planner::{
    plan::{CostFiles, Plan, PlanConfig, Space, front, plan, search},
    workload::replications,
};
use dunlin_spec::ModelSpec;
use dunlin_workload::Request;

const BASE: &str = "
name = 'small'
seed = 4

[model.shape]
name = 'Llama 3.1 8B'
layers = 32
d_model = 4096
n_heads = 32
n_kv_heads = 8
head_dim = 128
d_ff = 14336
vocab_size = 128256

[[workload.generate.clients]]
name = 'chat'
arrival = { kind = 'open', rate = { kind = 'constant', per_s = 25.0 } }
lengths = { kind = 'independent', prompt = { dist = { kind = 'lognormal', median = 500, sigma = 0.9 }, max = 4000 }, output = { dist = { kind = 'lognormal', median = 40, sigma = 0.7 }, max = 300 } }

[[hardware]]
replicas = { least = 1, most = 4 }
parallel = [{ tensor = 1 }, { tensor = 2 }]
clocks = [1.0, 0.6]
[hardware.device]
name = 'H100'
flops = { bf16 = 989e12 }
memory_bytes = 80_000_000_000
memory_bytes_per_s = 3.35e12
flops_efficiency = 0.6
memory_efficiency = 0.8
layer_overhead_ns = 4_000.0
step_overhead_ns = 300_000.0
devices_per_node = 8
link = { latency_ns = 5_000.0, bytes_per_s = 4.5e11 }
idle_watts = 75.0
peak_watts = 700.0
node_watts = 150.0
price_per_hour = 3.0
embodied_gco2 = 160_000.0
";

const SEARCH: &str = "
[search]
requests = 70
replications = 4
max_running = [16, 64]
objectives = ['cost', 'ttft', 'energy']
";

struct Question {
    config: PlanConfig,
    model: ModelSpec,
    replications: Vec<Vec<Request>>,
}

fn question(goals: &str, more: &str) -> Question {
    let text = format!("{BASE}\n[goals]\n{goals}\n{more}");
    let config = PlanConfig::parse(&text).unwrap();
    let model = config.model.shape.as_ref().unwrap().spec().unwrap();
    let search = &config.search;
    let replications = replications(
        &config.workload,
        Path::new("."),
        config.seed,
        search.requests,
        search.replications,
    );
    Question { replications: replications.unwrap(), config, model }
}

impl Question {
    fn plan(&self) -> Plan {
        plan(&self.config, &self.model, &CostFiles::new(), &self.replications, &|_| true).unwrap()
    }
}

/// Everybody with all replications, nobody pruned and nobody dropped.
fn enumerate(q: &Question) -> Vec<(String, Vec<f64>)> {
    let space = Space::new(&q.config, &q.model, &CostFiles::new()).unwrap();
    let mut all = Vec::new();
    for candidate in &space.candidates {
        // A space of one is never cut.
        let one = search(&space, &q.config, vec![candidate.clone()], &q.replications, &|_| true);
        let tried = &one.unwrap().tried[0];
        assert_eq!(tried.outcomes.len(), q.replications.len());
        if tried.is_feasible(&q.config.goals, None) {
            let what = space.describe(candidate).to_string();
            all.push((what, tried.objectives(&q.config.search.objectives)));
        }
    }
    let values: Vec<Vec<f64>> = all.iter().map(|a| a.1.clone()).collect();
    front(&values).into_iter().map(|i| all[i].clone()).collect()
}

#[test]
fn the_front_is_that_of_trying_everything() {
    for goals in [
        "ttft_ms = 400.0\ntpot_ms = 30.0\ngood_share = 0.9",
        "ttft_ms = 1500.0\ngood_share = 0.95\ncost_per_hour = 10.0",
        "tpot_ms = 14.0\ngood_share = 0.9",
        "joules_per_token = 1.5",
    ] {
        let q = question(goals, SEARCH);
        let found = q.plan();
        let mut own: Vec<String> = found.front.iter().map(|p| p.what.clone()).collect();
        let mut all: Vec<String> = enumerate(&q).into_iter().map(|(what, _)| what).collect();
        own.sort();
        all.sort();
        assert!(!all.is_empty(), "{goals}: nothing to find");
        assert_eq!(own, all, "{goals}");
        let whole = found.candidates * q.replications.len();
        assert!(found.simulations < whole, "{goals}: nothing was saved: {whole}");
        assert!(found.front.iter().all(|p| p.replications == 4));
    }
}

#[test]
fn a_plan_is_the_same_each_time_and_on_any_number_of_threads() {
    let q = question("ttft_ms = 400.0\ngood_share = 0.9", SEARCH);
    let text = |q: &Question| serde_json::to_string(&q.plan()).unwrap();
    let one = text(&q);
    assert_eq!(one, text(&q));
    let more = SEARCH.to_string() + "threads = 3\n";
    assert_eq!(one, text(&question("ttft_ms = 400.0\ngood_share = 0.9", &more)));
}

#[test]
fn the_smallest_cluster_holds_the_goal_and_one_less_does_not() {
    let q = question(
        "ttft_ms = 800.0\ntpot_ms = 40.0\ngood_share = 0.95",
        "[search]\nrequests = 120\nreplications = 3\nmax_running = [64]\nobjectives = ['cost']\n",
    );
    let found = q.plan();
    let fewest = found.smallest.expect("some hold it");
    assert!(fewest.goals.iter().all(|g| g.holds));
    let space = Space::new(&q.config, &q.model, &CostFiles::new()).unwrap();
    for candidate in &space.candidates {
        if space.devices(candidate) < fewest.configuration.devices {
            let one = vec![candidate.clone()];
            let tried = search(&space, &q.config, one, &q.replications, &|_| true).unwrap();
            assert!(!tried.tried[0].is_feasible(&q.config.goals, None));
        }
    }
    let load = fewest.load.expect("mixed replicas have a closed form");
    assert!((0.2..1.25).contains(&load), "{load}");
    assert!(fewest.launch[0].starts_with("dunlin serve -m"), "{:?}", fewest.launch);
}

#[test]
fn where_nothing_keeps_the_goals_it_says_which_break_and_who_is_nearest() {
    // The prompts alone take longer than that.
    let found = question("ttft_ms = 1.0\ngood_share = 0.9", SEARCH).plan();
    assert!(!found.feasible && found.front.is_empty() && found.smallest.is_none());
    assert_eq!(found.pruned.get("ttft_ms"), Some(&found.candidates));
    let refused = found.refused.unwrap();
    assert!(refused.why.contains("good_share"), "{}", refused.why);
    assert!(refused.nearest.is_some_and(|p| p.goals.iter().any(|g| !g.holds)));
    // A limit on money below the cheapest.
    let found = question("ttft_ms = 400.0\ngood_share = 0.9\ncost_per_hour = 2.0", SEARCH).plan();
    assert_eq!(found.pruned.get("cost_per_hour"), Some(&found.candidates));
    assert!(found.refused.unwrap().why.contains("cost_per_hour"));
    // A limit that only simulation shows to be broken.
    let found = question("joules_per_token = 0.001", SEARCH).plan();
    let refused = found.refused.unwrap();
    assert!(refused.broken.contains_key("joules_per_token"));
    // A model that does not fit anywhere.
    let q = question("", SEARCH);
    let mut small = q.config.clone();
    small.hardware[0].device.memory_bytes = 1 << 30;
    let found = plan(&small, &q.model, &CostFiles::new(), &q.replications, &|_| true).unwrap();
    assert!(found.candidates == 0 && found.refused.unwrap().why.contains("fits on none"));
    assert!(found.too_large[0].contains("would fit a device of"), "{:?}", found.too_large);
}

#[test]
fn a_stopped_search_has_what_it_has() {
    let q = question("ttft_ms = 800.0\ngood_share = 0.9", SEARCH);
    let watch = |p: dunlin_planner::plan::Progress| p.done < 40;
    let found = plan(&q.config, &q.model, &CostFiles::new(), &q.replications, &watch).unwrap();
    assert!(found.stopped_early && found.simulations == 40);
    assert!(found.front.iter().any(|p| p.replications < 4));
}

#[test]
fn lower_clocks_save_energy_where_memory_sets_the_pace() {
    let q = question(
        "",
        "[search]\nrequests = 80\nreplications = 2\nmax_running = [64]\nobjectives = ['energy', 'tpot']\n",
    );
    let found = q.plan();
    let at = |clock: f64| {
        let of = |p: &&dunlin_planner::plan::Point| {
            let g = &p.configuration.groups[0];
            g.clock == clock && g.tensor == 1 && g.replicas == 1
        };
        found.front.iter().find(of).map(|p| p.figures)
    };
    let (slow, full) =
        (at(0.6).expect("it takes the least energy"), at(1.0).expect("the quickest"));
    assert!(slow.joules_per_token.mean < full.joules_per_token.mean);
}

#[test]
fn bad_questions_are_refused_with_the_key() {
    let good = format!("{BASE}\n[goals]\nttft_ms = 100.0\n{SEARCH}");
    assert!(PlanConfig::parse(&good).is_ok());
    for (from, to, key) in [
        ("ttft_ms = 100.0", "ttft_s = 1.0", "ttft_s"),
        ("ttft_ms = 100.0", "ttft_ms = -1.0", "goals.ttft_ms"),
        ("ttft_ms = 100.0", "good_share = 1.5", "goals.good_share"),
        ("least = 1, most = 4", "least = 5, most = 4", "hardware[0].replicas"),
        ("clocks = [1.0, 0.6]", "clocks = [1.5]", "hardware[0].clocks"),
        ("clocks = [1.0, 0.6]", "clocks = []", "hardware[0].parallel"),
        ("price_per_hour = 3.0", "price_per_hour = -3.0", "hardware[0].device.price_per_hour"),
        ("replications = 4", "replications = 1", "search.replications"),
        ("max_running = [16, 64]", "max_running = [0]", "search.max_running"),
        ("objectives = ['cost', 'ttft', 'energy']", "objectives = ['speed']", "speed"),
        ("[model.shape]", "[model]\nfile = 'x'\n[model.shape]", "model"),
    ] {
        assert!(good.contains(from), "{from}");
        let error = PlanConfig::parse(&good.replace(from, to)).expect_err(key).to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
    let q =
        question("", &SEARCH.replace("replications = 4", "replications = 4\nchunking = ['half']"));
    let error = Space::new(&q.config, &q.model, &CostFiles::new()).unwrap_err().to_string();
    assert!(error.contains("search.chunking") && error.contains("half"), "{error}");
}
