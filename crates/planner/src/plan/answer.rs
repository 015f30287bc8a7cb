//! The answer: from what was tried to what to do.

use std::collections::BTreeMap;

use dunlin_costmodel::{Phase, SeqShape, StepShape};
use dunlin_sim::Role;
use dunlin_spec::ModelSpec;
use dunlin_workload::Request;
use serde::Serialize;

use super::{
    PlanError,
    advise::{BatchAdvice, batch_advice},
    candidate::{Candidate, CostFiles, Described, Space},
    config::{Goals, Objective, PlanConfig},
    front::front,
    geo::{Policy, ServingSite, Totals, serve},
    outcome::{Binding, GoalState, Outcome},
    prune::Pruner,
    search::{Searched, Tried, Watch, search},
};
use crate::stats::Estimate;

/// Candidates that are simulated where everyone is ruled out, to say how near they come.
const NEAREST: usize = 6;

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The plan's name.
    pub name: String,
    /// The seed.
    pub seed: u64,
    /// Whether any configuration keeps all goals.
    pub feasible: bool,
    /// Whether the search was stopped early; then points have fewer replications.
    pub stopped_early: bool,
    /// The goals.
    pub goals: Goals,
    /// What the front trades off.
    pub objectives: Vec<Objective>,
    /// Requests a second.
    pub rate_per_s: f64,
    /// Configurations in all, those that fit into memory.
    pub candidates: usize,
    /// Of those, ruled out without simulation, by the goal that they cannot keep.
    pub pruned: BTreeMap<&'static str, usize>,
    /// Spreads over devices on which the model does not fit, with what would.
    pub too_large: Vec<String>,
    /// Configurations simulated, and simulations.
    pub simulated: usize,
    /// Simulations run.
    pub simulations: usize,
    /// Configurations that keep all goals and that no other beats, the most preferred first.
    pub front: Vec<Point>,
    /// The one with the fewest devices among all that keep the goals.
    pub smallest: Option<Fewest>,
    /// A day of all regions' requests, spread over the sites by several policies, each site with the
    /// most preferred configuration that keeps the goals there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// Where nothing keeps the goals: which break, and who comes nearest.
    pub refused: Option<Refused>,
}

/// A day, spread over sites.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs, reason = "they are the policies of geo::Policy")]
pub struct Spread {
    /// The sites that keep the goals.
    pub sites: Vec<String>,
    pub nearest: Totals,
    pub even: Totals,
    pub cleanest: Totals,
    pub best: Totals,
}

/// A configuration of the front.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    /// In one line.
    pub what: String,
    /// The configuration.
    pub configuration: Described,
    /// Its objectives.
    pub objectives: BTreeMap<&'static str, Estimate>,
    /// Everything else that was measured, on average.
    pub figures: Figures,
    /// Its goals.
    pub goals: Vec<GoalState>,
    /// What keeps it from more.
    pub binding: Binding,
    /// Operations a byte moved, and bytes of memory a request: where the plan is on a roofline, and
    /// what fills its memory.
    pub intensity: Option<Intensity>,
    /// The smallest batch that gives nearly all that decoding can give there.
    pub advice: Option<BatchAdvice>,
    /// Replications.
    pub replications: usize,
    /// How to launch one replica of each group.
    pub launch: Vec<String>,
}

/// What was measured of a point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Figures {
    pub good_share: Estimate,
    pub ttft_p99_ms: Estimate,
    pub tpot_p99_ms: Estimate,
    pub e2e_p99_ms: Estimate,
    pub cost_per_hour: Estimate,
    pub cost_per_mtok: Estimate,
    pub joules_per_token: Estimate,
    pub gco2_per_mtok: Estimate,
    pub embodied_share: f64,
    pub litres_per_mtok: Estimate,
    pub facility_watts: Estimate,
    pub tokens_per_s: Estimate,
    pub busy_share: f64,
    pub kv_mean_use: f64,
    pub kv_peak_use: f64,
    pub extrapolated_steps: f64,
}

/// Operational intensity (operations a byte moved) and capacity footprint (bytes of memory a request):
/// what explains where a roofline alone does not. Of the replicas that decode, at their usual batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Intensity {
    /// Sequences in the batch that KV memory holds at the workload's mean lengths, or that the
    /// settings allow.
    pub batch: u32,
    /// Operations of a decoding step over bytes that it moves.
    pub decode_flops_per_byte: f64,
    /// The same of a prompt of mean length.
    pub prefill_flops_per_byte: f64,
    /// Bytes of KV of a request at its end, on one device.
    pub kv_bytes_per_request: f64,
    /// Bytes of weights on one device.
    pub weight_bytes: f64,
}

/// The fewest devices.
#[derive(Debug, Clone, Serialize)]
pub struct Fewest {
    /// The configuration, in one line.
    pub what: String,
    /// The configuration.
    pub configuration: Described,
    /// Requests a second that it can serve by the closed form, where there is one.
    pub capacity_per_s: Option<f64>,
    /// Arrivals over that.
    pub load: Option<f64>,
    /// Its goals.
    pub goals: Vec<GoalState>,
    /// How to launch one replica of each group.
    pub launch: Vec<String>,
}

/// Why there is no plan.
#[derive(Debug, Clone, Serialize)]
pub struct Refused {
    /// In one line.
    pub why: String,
    /// How many configurations break which goal.
    pub broken: BTreeMap<&'static str, usize>,
    /// The configuration that comes nearest: whose worst goal is the least broken.
    pub nearest: Option<Point>,
}

/// Answers.
///
/// `model` is the model of the configuration, `files` holds the cost models that it names, and
/// `replications` the requests of each replication. `watch` is told of the progress and may stop it.
///
/// # Errors
/// Values that make no sense.
pub fn plan(
    config: &PlanConfig,
    model: &ModelSpec,
    files: &CostFiles,
    replications: &[Vec<Request>],
    watch: Watch<'_>,
) -> Result<Plan, PlanError> {
    let space = Space::new(config, model, files)?;
    let requests = replications.first().map_or(&[][..], |r| r.as_slice());
    if requests.is_empty() {
        return Err(PlanError::value("workload", "there are no requests"));
    }
    let pruner = Pruner::new(&space, config, requests);
    let (mut left, mut out) = (Vec::new(), Vec::new());
    for candidate in &space.candidates {
        match pruner.judge(candidate) {
            None => left.push(candidate.clone()),
            Some(pruned) => out.push((candidate.clone(), pruned)),
        }
    }
    let mut pruned = BTreeMap::new();
    out.iter().for_each(|(_, p)| *pruned.entry(p.goal).or_insert(0) += 1);
    if left.is_empty() {
        // Whoever is the least far off is simulated, to have figures of it.
        out.sort_by(|a, b| a.1.used.total_cmp(&b.1.used));
        left = out.iter().take(NEAREST).map(|(c, _)| c.clone()).collect();
    }
    let found = search(&space, config, left, replications, watch)?;
    let shown = Shown { space: &space, config, pruner: &pruner, requests };
    Ok(shown.answer(found, pruned))
}

struct Shown<'a> {
    space: &'a Space,
    config: &'a PlanConfig,
    pruner: &'a Pruner<'a>,
    requests: &'a [Request],
}

impl Shown<'_> {
    fn answer(&self, found: Searched, pruned: BTreeMap<&'static str, usize>) -> Plan {
        let Self { space, config, .. } = self;
        let watts = |t: &Tried| space.sites[t.candidate.site].watts;
        let stayed = |t: &&Tried| t.dropped.is_none() && !t.outcomes.is_empty();
        let feasible: Vec<&Tried> = found
            .tried
            .iter()
            .filter(stayed)
            .filter(|t| t.is_feasible(&config.goals, watts(t)))
            .collect();
        let objectives = &config.search.objectives;
        let values: Vec<Vec<f64>> = feasible.iter().map(|t| t.objectives(objectives)).collect();
        let mut best: Vec<usize> = front(&values);
        best.sort_by(|&a, &b| {
            let order = values[a].iter().zip(&values[b]).map(|(x, y)| x.total_cmp(y));
            order.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
        });
        let too_large = space.too_large.iter().map(|(spread, e)| format!("{spread}: {e}"));
        Plan {
            name: config.name.clone(),
            seed: config.seed,
            feasible: !feasible.is_empty(),
            stopped_early: found.stopped,
            goals: config.goals,
            objectives: objectives.clone(),
            rate_per_s: self.pruner.rate_per_s(),
            candidates: space.candidates.len(),
            pruned,
            too_large: too_large.collect(),
            simulated: found.tried.len(),
            simulations: found.simulations,
            front: best.iter().map(|&i| self.point(feasible[i])).collect(),
            smallest: self.smallest(&found.tried),
            spread: self.spread(&feasible),
            refused: feasible.is_empty().then(|| self.refused(&found.tried)),
        }
    }

    /// The regions' day over those sites where something keeps the goals.
    fn spread(&self, feasible: &[&Tried]) -> Option<Spread> {
        let config = self.config;
        if config.regions.is_empty() || feasible.is_empty() {
            return None;
        }
        let first = config.search.objectives[0];
        let mut sites = Vec::new();
        for (index, site) in self.space.sites.iter().enumerate() {
            let there = feasible.iter().filter(|t| t.candidate.site == index);
            let best =
                there.min_by(|a, b| a.estimate(first).mean.total_cmp(&b.estimate(first).mean));
            let Some(best) = best else { continue };
            sites.push(ServingSite {
                site: site.clone(),
                tokens_per_hour: site.tokens_per_hour.unwrap_or(0.0),
                // Of the machines: the site adds its own.
                joules_per_token: best.estimate(Objective::Energy).mean / site.pue,
                network_ms: config.regions.iter().map(|r| r.network_ms[index]).collect(),
            });
        }
        let of = |hour: usize| {
            config.regions.iter().map(move |r| r.tokens_per_hour[hour % r.tokens_per_hour.len()])
        };
        let demand: Vec<Vec<f64>> = (0..24).map(|hour| of(hour).collect()).collect();
        let day = |policy| serve(&sites, &demand, policy);
        Some(Spread {
            nearest: day(Policy::Nearest),
            even: day(Policy::Even),
            cleanest: day(Policy::Cleanest),
            best: day(Policy::Best(config.weights)),
            sites: sites.iter().map(|s| s.site.name.clone()).collect(),
        })
    }

    /// Among everyone who keeps the goals, those that were dropped because others are cheaper
    /// included.
    fn smallest(&self, tried: &[Tried]) -> Option<Fewest> {
        let watts = |t: &Tried| self.space.sites[t.candidate.site].watts;
        let kept = tried.iter().filter(|t| t.is_feasible(&self.config.goals, watts(t)));
        let fewest = kept.min_by(|a, b| {
            let devices = |t: &Tried| self.space.devices(&t.candidate);
            let price = |t: &Tried| t.estimate(Objective::Cost).mean;
            devices(a).cmp(&devices(b)).then(price(a).total_cmp(&price(b)))
        })?;
        let configuration = self.space.describe(&fewest.candidate);
        let mixed = fewest.candidate.decode.is_none();
        let capacity = self.pruner.capacity_per_s(&fewest.candidate).filter(|_| mixed);
        Some(Fewest {
            what: configuration.to_string(),
            capacity_per_s: capacity,
            load: capacity.map(|c| self.pruner.rate_per_s() / c),
            goals: GoalState::of(&self.config.goals, &fewest.outcomes, watts(fewest)),
            launch: self.launch(&fewest.candidate),
            configuration,
        })
    }

    fn refused(&self, tried: &[Tried]) -> Refused {
        let states = |t: &Tried| {
            let watts = self.space.sites[t.candidate.site].watts;
            GoalState::of(&self.config.goals, &t.outcomes, watts)
        };
        let mut broken = BTreeMap::new();
        let worst = |t: &Tried| states(t).iter().map(|s| s.used).fold(0.0, f64::max);
        let some = || tried.iter().filter(|t| !t.outcomes.is_empty());
        for state in some().flat_map(states).filter(|s| !s.holds) {
            *broken.entry(state.goal).or_insert(0) += 1;
        }
        let nearest = some().min_by(|a, b| worst(a).total_cmp(&worst(b)));
        let nearest = nearest.map(|t| self.point(t));
        let why = match &nearest {
            None if self.space.candidates.is_empty() => {
                "the model fits on none of the hardware as it is spread, or no place has enough \
                 devices"
                    .to_string()
            }
            None => "nothing was simulated".to_string(),
            Some(point) => {
                let goals: Vec<String> = point
                    .goals
                    .iter()
                    .filter(|g| !g.holds)
                    .map(|g| format!("{} ({:.4} instead of {})", g.goal, g.found.mean, g.limit))
                    .collect();
                format!("even the nearest, {}, breaks {}", point.what, goals.join(" and "))
            }
        };
        Refused { why, broken, nearest }
    }

    fn point(&self, tried: &Tried) -> Point {
        let Tried { candidate, outcomes, .. } = tried;
        let goals =
            GoalState::of(&self.config.goals, outcomes, self.space.sites[candidate.site].watts);
        let configuration = self.space.describe(candidate);
        let name = |o: Objective| match o {
            Objective::Cost => "cost",
            Objective::Energy => "energy",
            Objective::Carbon => "carbon",
            Objective::Water => "water",
            Objective::Ttft => "ttft",
            Objective::Tpot => "tpot",
            Objective::E2e => "e2e",
        };
        let objectives = &self.config.search.objectives;
        Point {
            what: configuration.to_string(),
            configuration,
            objectives: objectives.iter().map(|&o| (name(o), tried.estimate(o))).collect(),
            figures: figures(outcomes),
            binding: Binding::new(outcomes, &goals),
            goals,
            intensity: self.intensity(candidate),
            advice: self.advice(candidate),
            replications: outcomes.len(),
            launch: self.launch(candidate),
        }
    }

    /// Of the replicas that decode.
    fn intensity(&self, candidate: &Candidate) -> Option<Intensity> {
        let group = candidate.decode.unwrap_or(candidate.group);
        let engine = &self.space.engines[group.engine];
        let roofline = engine.roofline.as_ref()?;
        let n = self.requests.len() as f64;
        let mean = |of: fn(&Request) -> u32| {
            self.requests.iter().map(|r| f64::from(of(r))).sum::<f64>() / n
        };
        let (prompt, output) = (mean(|r| r.prompt_tokens), mean(|r| r.output_tokens));
        let block_tokens = f64::from(self.config.search.block_tokens);
        let blocks = ((prompt + output / 2.0) / block_tokens).ceil().max(1.0);
        let fit = (engine.blocks as f64 / blocks).max(1.0);
        let batch = fit.min(f64::from(candidate.max_running)) as u32;
        let shape =
            |seqs: Vec<SeqShape>| StepShape { sampled: seqs.len() as u32, seqs, experts: None };
        let context = (prompt + output / 2.0) as u32;
        let decode = SeqShape { new_tokens: 1, context, phase: Phase::Decode };
        let prefill =
            SeqShape { new_tokens: prompt.max(1.0) as u32, context: 0, phase: Phase::Prefill };
        let decode = roofline.parts(&shape(vec![decode; batch as usize]));
        let prefill = roofline.parts(&shape(vec![prefill]));
        Some(Intensity {
            batch,
            decode_flops_per_byte: decode.flops / decode.bytes,
            prefill_flops_per_byte: prefill.flops / prefill.bytes,
            kv_bytes_per_request: (prompt + output) * roofline.kv_bytes_per_token_per_device(),
            weight_bytes: roofline.weight_bytes_per_device(),
        })
    }

    /// For the replicas that decode.
    fn advice(&self, candidate: &Candidate) -> Option<BatchAdvice> {
        let group = candidate.decode.unwrap_or(candidate.group);
        let engine = &self.space.engines[group.engine];
        let n = self.requests.len() as f64;
        let mean = |of: fn(&Request) -> u32| {
            self.requests.iter().map(|r| f64::from(of(r))).sum::<f64>() / n
        };
        let context = mean(|r| r.prompt_tokens) + mean(|r| r.output_tokens) / 2.0;
        let blocks = (context / f64::from(self.config.search.block_tokens)).ceil().max(1.0);
        let fit = (engine.blocks as f64 / blocks).clamp(1.0, 4096.0) as u32;
        batch_advice(&*engine.cost, context as u32, fit)
    }

    /// The command line of one replica of each group.
    fn launch(&self, candidate: &Candidate) -> Vec<String> {
        let model = self
            .config
            .model
            .file
            .as_ref()
            .map_or("MODEL.gguf".into(), |f| f.display().to_string());
        let longest = self.requests.iter().map(|r| r.prompt_tokens + r.output_tokens).max();
        let context = longest.unwrap_or(1).next_multiple_of(256).max(256);
        let chunking = &self.space.chunkings[candidate.chunking].0;
        let line = |(role, group): (Role, super::candidate::Group)| {
            let engine = &self.space.engines[group.engine];
            let kv_tokens = engine.blocks * u64::from(self.config.search.block_tokens);
            // What fits into memory, and no more than runs at once.
            let parallel =
                (kv_tokens / u64::from(context)).clamp(1, u64::from(candidate.max_running));
            let note = match role {
                Role::Mixed => String::new(),
                _ => format!(", {}", super::outcome::role_name(role)),
            };
            format!(
                "dunlin serve -m {model} -c {context} --parallel {parallel} --chunking {chunking}  \
                 # {} x {}{note}",
                group.replicas, engine.device.name
            )
        };
        self.space.groups(candidate).into_iter().map(line).collect()
    }
}

fn figures(outcomes: &[Outcome]) -> Figures {
    let of = |f: fn(&Outcome) -> f64| Estimate::of(&outcomes.iter().map(f).collect::<Vec<_>>());
    Figures {
        good_share: of(|o| o.good),
        ttft_p99_ms: of(|o| o.ttft_ms),
        tpot_p99_ms: of(|o| o.tpot_ms),
        e2e_p99_ms: of(|o| o.e2e_ms),
        cost_per_hour: of(|o| o.cost_per_hour),
        cost_per_mtok: of(|o| o.cost_per_mtok),
        joules_per_token: of(|o| o.joules_per_token),
        gco2_per_mtok: of(|o| o.gco2_per_mtok),
        embodied_share: of(|o| o.embodied_share).mean,
        litres_per_mtok: of(|o| o.litres_per_mtok),
        facility_watts: of(|o| o.facility_watts),
        tokens_per_s: of(|o| o.tokens_per_s),
        busy_share: of(|o| o.busy).mean,
        kv_mean_use: of(|o| o.kv_use).mean,
        kv_peak_use: of(|o| o.kv_peak).mean,
        extrapolated_steps: of(|o| o.extrapolated).mean,
    }
}
