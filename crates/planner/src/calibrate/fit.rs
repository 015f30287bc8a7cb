//! The fit: medians over repetitions, a part held out, errors by kind of step.

use dunlin_costmodel::{CostError, FittedCost, Phase, StepCost, StepSample, StepShape};
use serde::Serialize;

use super::StepTrace;

/// A step that takes so many times its median is named.
const ODD: f64 = 1.5;

/// Kinds of step, by what is in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepGroup {
    /// Sequences that decode, and nothing else.
    Decode,
    /// Parts of prompts, and nothing else.
    Prefill,
    /// Both.
    Mixed,
    /// Drafts are verified in it.
    Verify,
}

impl StepGroup {
    /// The kind of a step.
    pub fn of(shape: &StepShape) -> Self {
        let has = |phase| shape.seqs.iter().any(|s| s.phase == phase);
        match (has(Phase::Verify), has(Phase::Prefill), has(Phase::Decode)) {
            (true, ..) => Self::Verify,
            (_, true, false) => Self::Prefill,
            (_, true, true) => Self::Mixed,
            _ => Self::Decode,
        }
    }
}

/// What a cost model gets wrong on steps of one kind: relative errors of their times.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct GroupError {
    pub group: StepGroup,
    pub steps: usize,
    pub mean_ms: f64,
    /// Means over the steps of the absolute relative error, and its percentiles.
    pub mean_percent: f64,
    pub p50_percent: f64,
    pub p90_percent: f64,
    pub max_percent: f64,
    /// The sum of predicted over that of measured times, less one.
    pub bias_percent: f64,
}

impl GroupError {
    /// The errors of `cost` on these steps, by kind; kinds without steps are left out.
    pub fn of(cost: &dyn StepCost, steps: &[StepTrace]) -> Vec<Self> {
        let groups = [StepGroup::Decode, StepGroup::Prefill, StepGroup::Mixed, StepGroup::Verify];
        groups.into_iter().filter_map(|group| Self::of_group(cost, steps, group)).collect()
    }

    fn of_group(cost: &dyn StepCost, steps: &[StepTrace], group: StepGroup) -> Option<Self> {
        let of = steps.iter().filter(|s| StepGroup::of(&s.shape) == group && s.time_ns() > 0);
        let pairs: Vec<(f64, f64)> =
            of.map(|s| (cost.price(&s.shape).time_ns as f64, s.time_ns() as f64)).collect();
        if pairs.is_empty() {
            return None;
        }
        let mut errors: Vec<f64> =
            pairs.iter().map(|(own, real)| (own / real - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let n = errors.len();
        let at = |p: f64| errors[((n as f64 * p).ceil() as usize).clamp(1, n) - 1] * 100.0;
        let (own, real) = pairs.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        Some(Self {
            group,
            steps: n,
            mean_ms: real / n as f64 / 1e6,
            mean_percent: errors.iter().sum::<f64>() / n as f64 * 100.0,
            p50_percent: at(0.5),
            p90_percent: at(0.9),
            max_percent: at(1.0),
            bias_percent: (own / real - 1.0) * 100.0,
        })
    }
}

/// A step that took far longer than in the other repetitions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Outlier {
    pub step: u64,
    pub repetition: usize,
    pub time_ms: f64,
    pub median_ms: f64,
}

/// The medians of repetitions of the same steps, and those steps that took 1.5 times theirs or
/// more. Repetitions that differ in what their steps were, which a deterministic engine does not do,
/// give `None`.
pub fn medians(repetitions: &[Vec<StepTrace>]) -> Option<(Vec<StepTrace>, Vec<Outlier>)> {
    let (first, rest) = repetitions.split_first()?;
    let same = |other: &Vec<StepTrace>| {
        other.len() == first.len() && other.iter().zip(first).all(|(a, b)| a.shape == b.shape)
    };
    if !rest.iter().all(same) {
        return None;
    }
    let mut outliers = Vec::new();
    let mut median = first.clone();
    for (i, step) in median.iter_mut().enumerate() {
        let times: Vec<u64> = repetitions.iter().map(|r| r[i].time_ns()).collect();
        let middle = middle(&times);
        for (repetition, &time) in times.iter().enumerate() {
            if time as f64 >= middle as f64 * ODD {
                outliers.push(Outlier {
                    step: step.step.0,
                    repetition,
                    time_ms: time as f64 / 1e6,
                    median_ms: middle as f64 / 1e6,
                });
            }
        }
        step.ended = step.began.after(middle);
        let forwards: Vec<u64> = repetitions.iter().map(|r| r[i].forward_ns).collect();
        step.forward_ns = self::middle(&forwards);
    }
    Some((median, outliers))
}

/// The median; of an even number, the mean of the two in the middle.
fn middle(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let n = sorted.len();
    if n == 0 { 0 } else { u64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]) }
}

/// A cost model, and how far off it is.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// The model.
    pub cost: FittedCost,
    /// Its errors on the steps that it was fitted to.
    pub fitted: Vec<GroupError>,
    /// Its errors on those that it never saw.
    pub held_out: Vec<GroupError>,
}

/// Fits a cost model to steps, and tells its errors on these and on steps that were held out.
///
/// # Errors
/// No steps to fit.
pub fn calibrate(
    steps: &[StepTrace],
    held_out: &[StepTrace],
    power_watts: f64,
) -> Result<Calibration, CostError> {
    let of_use = steps.iter().filter(|s| s.time_ns() > 0);
    let samples: Vec<StepSample> = of_use
        .map(|s| StepSample { totals: s.shape.totals(), time_ns: s.time_ns() as f64 })
        .collect();
    let cost = FittedCost::fit(&samples, power_watts)?;
    Ok(Calibration {
        fitted: GroupError::of(&cost, steps),
        held_out: GroupError::of(&cost, held_out),
        cost,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_costmodel::{LinearCost, SeqShape};
    use dunlin_units::{SeedTree, StepId, Time};

    fn seq(new_tokens: u32, context: u32, phase: Phase) -> SeqShape {
        SeqShape { new_tokens, context, phase }
    }

    fn step(seqs: Vec<SeqShape>, cost: &LinearCost, factor: f64) -> StepTrace {
        let shape = StepShape { sampled: seqs.len() as u32, seqs, experts: None };
        let ns = (cost.price(&shape).time_ns as f64 * factor) as u64;
        StepTrace {
            step: StepId(1),
            shape,
            began: Time(1000),
            ended: Time(1000 + ns),
            forward_ns: 0,
        }
    }

    const TRUTH: LinearCost = LinearCost {
        fixed_ns: 2e6,
        token_ns: 9e4,
        prefill_token_ns: 0.0,
        decode_seq_ns: 2e4,
        kv_position_ns: 60.0,
        prefill_pair_ns: 3.0,
        sampled_ns: 5e4,
        power_watts: 0.0,
    };

    #[test]
    fn a_known_machine_is_found_and_errors_are_by_kind() {
        let mut dice = SeedTree::root(5).child("steps").stream();
        let mut steps = Vec::new();
        for i in 0..400 {
            let mut seqs = Vec::new();
            if i % 3 != 0 {
                for _ in 0..1 + dice.next_below(16) {
                    seqs.push(seq(1, dice.next_below(2000) as u32, Phase::Decode));
                }
            }
            if i % 3 != 1 {
                let (n, c) = (2 + dice.next_below(300) as u32, dice.next_below(900) as u32);
                seqs.push(seq(n, c, Phase::Prefill));
            }
            let noise = 1.0 + 0.01 * (dice.next_unit() - 0.5);
            steps.push(step(seqs, &TRUTH, noise));
        }
        let (fit_on, held) = steps.split_at(300);
        let found = calibrate(fit_on, held, 0.0).unwrap();
        let groups: Vec<StepGroup> = found.held_out.iter().map(|e| e.group).collect();
        assert_eq!(groups, [StepGroup::Decode, StepGroup::Prefill, StepGroup::Mixed]);
        for error in found.held_out.iter().chain(&found.fitted) {
            assert!(error.mean_percent < 0.5 && error.bias_percent.abs() < 0.3, "{error:?}");
        }
        // A model that is off by a tenth is told so.
        let off = LinearCost { fixed_ns: 0.0, ..TRUTH };
        let decode = &GroupError::of(&off, &steps)[0];
        assert!(decode.bias_percent < -10.0 && decode.max_percent > decode.p50_percent);
        assert!(calibrate(&[], &steps, 0.0).is_err());
    }

    #[test]
    fn medians_are_over_repetitions_and_name_what_is_odd() {
        let run = |factors: [f64; 2]| -> Vec<StepTrace> {
            factors.iter().map(|f| step(vec![seq(1, 9, Phase::Decode)], &TRUTH, *f)).collect()
        };
        let base = run([1.0, 1.0])[0].time_ns();
        let (steps, odd) = medians(&[run([1.0, 1.1]), run([3.0, 1.0]), run([1.0, 1.2])]).unwrap();
        let times: Vec<u64> = steps.iter().map(StepTrace::time_ns).collect();
        assert_eq!(times, [base, (base as f64 * 1.1) as u64]);
        assert_eq!(odd.len(), 1);
        assert_eq!((odd[0].repetition, odd[0].median_ms), (1, base as f64 / 1e6));
        assert!(medians(&[run([1.0, 1.0]), run([1.0, 1.0])[..1].to_vec()]).is_none());
        assert!(medians(&[]).is_none());
        assert_eq!([middle(&[4, 1]), middle(&[5]), middle(&[9, 1, 2])], [2, 5, 2]);
    }
}
