//! The queueing estimate: the front is the one without it, for fewer simulations where a goal is tight.

use std::path::PathBuf;

use dunlin_planner::{
    plan::{CostFiles, Plan, PlanConfig, plan},
    workload::replications,
};

/// A part of an example, with another goal for the time between tokens.
fn answer(tpot_ms: f64, estimate: bool) -> Plan {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
    let text = std::fs::read_to_string(folder.join("plan-goal.toml")).unwrap();
    let mut config = PlanConfig::parse(&text).unwrap();
    config.goals.tpot_ms = Some(tpot_ms);
    let search = &mut config.search;
    search.queueing_estimate = estimate;
    search.max_running = vec![64];
    search.chunking.truncate(1);
    (search.requests, search.replications) = (500, 2);
    let model = config.model.shape.as_ref().unwrap().spec().unwrap();
    let search = &config.search;
    let rows =
        replications(&config.workload, &folder, config.seed, search.requests, search.replications);
    plan(&config, &model, &CostFiles::new(), &rows.unwrap(), &|_| true).unwrap()
}

#[test]
fn the_front_stays_and_simulations_are_saved() {
    let mut saved = 0;
    for tpot_ms in [30.0, 15.0, 11.0] {
        let (with, without) = (answer(tpot_ms, true), answer(tpot_ms, false));
        println!(
            "{tpot_ms} ms, {} candidates: {:?} and {} simulations with the estimate, {:?} and {} without",
            with.candidates, with.pruned, with.simulations, without.pruned, without.simulations
        );
        let front = |p: &Plan| p.front.iter().map(|f| f.what.clone()).collect::<Vec<_>>();
        assert!(!with.front.is_empty());
        assert_eq!(front(&with), front(&without), "{tpot_ms}");
        saved += without.simulations - with.simulations;
    }
    assert!(saved > 0);
}
