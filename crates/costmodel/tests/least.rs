//! [`StepCost::least_ns`] is below every price: what simulators let replicas fall behind by.
#![allow(clippy::disallowed_methods, reason = "the examples are files")]

use dunlin_costmodel::{
    CostFile, CostModel, CostSpec, ExpertLoad, FittedCost, LinearCost, Phase, SeqShape, StepCost,
    StepSample, StepShape, SumSpec,
};
use dunlin_units::{SeedTree, Stream};

fn shape(dice: &mut Stream) -> StepShape {
    let seqs = (0..1 + dice.next_below(6)).map(|_| {
        let phase = [Phase::Decode, Phase::Prefill, Phase::Verify][dice.next_below(3) as usize];
        let most = if phase == Phase::Decode { 1 } else { 1 + dice.next_below(700) };
        let new_tokens = 1 + dice.next_below(most) as u32;
        SeqShape { new_tokens, context: dice.next_below(4000) as u32, phase }
    });
    let seqs: Vec<SeqShape> = seqs.collect();
    let experts = (dice.next_below(2) == 0).then(|| ExpertLoad {
        active: 1.0 + dice.next_below(100) as f32,
        imbalance: 1.0 + dice.next_unit() as f32,
    });
    let sampled = dice.next_below(seqs.len() as u64 + 1) as u32;
    StepShape { seqs, sampled, experts }
}

/// The cost models of the examples, by kind: rooflines on one and on several devices, with experts
/// and recorded graphs; linear, fitted and added up.
fn models() -> Vec<(String, CostModel)> {
    let mut models = Vec::new();
    for entry in std::fs::read_dir("../../examples").unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if let Ok(file) = toml::from_str::<CostFile>(&text) {
            models.push((path.display().to_string(), file.build().unwrap()));
        }
        // Some simulations carry their model.
        if let Ok(table) = toml::from_str::<toml::Table>(&text)
            && let Some(groups) = table.get("cluster").and_then(|c| c.get("replicas"))
        {
            for group in groups.as_array().into_iter().flatten() {
                let spec = group.get("cost").map(|cost| cost.clone().try_into::<CostSpec>());
                if let Some(Ok(spec)) = spec {
                    models.push((path.display().to_string(), spec.build().unwrap()));
                }
            }
        }
    }
    assert!(models.len() >= 4, "{} models in the examples", models.len());
    let linear = LinearCost {
        fixed_ns: 1e6 / 3.0,
        token_ns: 8e3 / 7.0,
        prefill_token_ns: 11.1,
        decode_seq_ns: 1e3,
        kv_position_ns: 3.3,
        ..LinearCost::default()
    };
    let mut dice = SeedTree::root(1).child("fit").stream();
    let samples: Vec<StepSample> = (0..60)
        .map(|_| {
            let shape = shape(&mut dice);
            StepSample { totals: shape.totals(), time_ns: linear.price(&shape).time_ns as f64 }
        })
        .collect();
    let parts = vec![CostSpec::Linear(linear), CostSpec::Linear(linear)];
    models.push(("sum".into(), CostSpec::Sum(SumSpec { parts }).build().unwrap()));
    models.push(("fitted".into(), CostModel::Fitted(FittedCost::fit(&samples, 0.0).unwrap())));
    models.push(("linear".into(), CostModel::Linear(linear)));
    models
}

#[test]
fn no_step_takes_less_than_the_least() {
    let mut promises = 0;
    for (name, model) in models() {
        let least = model.least_ns();
        promises += u32::from(least > 0);
        let mut dice = SeedTree::root(2).child("shapes").stream();
        let one = SeqShape { new_tokens: 1, context: 0, phase: Phase::Decode };
        let small = StepShape { seqs: vec![one], sampled: 0, experts: None };
        let shapes = (0..3000).map(|_| shape(&mut dice)).chain([small.clone()]);
        for shape in shapes {
            let time = model.price(&shape).time_ns;
            assert!(time >= least, "{name}: {time} of {shape:?}, and {least} was promised");
        }
        // A promise is worth something only near what the smallest step takes.
        let smallest = model.price(&small).time_ns;
        assert!(least == 0 || smallest <= least * 2, "{name}: {smallest} {least}");
    }
    assert!(promises >= 6, "{promises}");
}
