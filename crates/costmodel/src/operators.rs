//! Cost from measured operators: tables of what each kernel of a step takes, by its size.
//!
//! A step's time is the sum of its kernels' times: those that depend on the number of tokens
//! (projections, norms), those that depend on the rows that are sampled (head, sampler), attention by
//! prefill and decode together, experts, and collectives by formula. Between measured points each is
//! linear; what lies beyond them is marked.
//!
//! The form follows the layer-wise profiles that LLMServingSim takes of vLLM (MIT). How a batch of
//! unequal sequences is looked up in tables of equal ones:
//!
//! - Parts of prompts together are one chunk of as many tokens, behind a context that gives it as
//!   many pairs of a token and a position as they have (0 where they have fewer).
//! - Sequences that decode have the mean of their lengths, corrected by [`SkewTable`] where there is
//!   one.
//!
//! Not here: time between kernels. Where the host keeps ahead of the device there is none.

use serde::{Deserialize, Serialize};

use crate::{
    Bound, Collective, Link, SkewTable, StepCost, StepPrice, StepShape, Totals,
    error::{CostError, not_negative},
    expected_distinct,
    grid::{Axis, Curve, Grid},
    skew::Skew,
};

/// Measured operators, as a file has them. Times are in microseconds; `count` says how often a step
/// runs the operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorProfile {
    /// Ranks that have sequences of their own and step together, at most [`MAX_RANKS`]; tables are
    /// those of one rank.
    #[serde(default = "one_rank")]
    pub data_ranks: u32,
    /// Sizes, in tokens, of recorded CUDA graphs: a smaller step is padded to the next of them.
    #[serde(default)]
    pub graph_sizes: Vec<u32>,
    /// Operators whose size is the step's tokens.
    pub tokens: OperatorGroup,
    /// Operators whose size is the step's sequences: head and sampler.
    pub sampled: OperatorGroup,
    /// Attention.
    pub attention: AttentionTables,
    /// Attention's correction for unequal sequences.
    #[serde(default)]
    pub skew: Option<SkewTable>,
    /// Experts.
    #[serde(default)]
    pub experts: Option<ExpertTables>,
    /// What goes between devices.
    #[serde(default)]
    pub collectives: Vec<StepCollective>,
    /// What the devices draw during a step; 0 where it is not known.
    #[serde(default)]
    pub power_watts: f64,
}

/// Ranks that may step together.
pub const MAX_RANKS: usize = 8;

const fn one_rank() -> u32 {
    1
}

/// Operators measured at the same points.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorGroup {
    /// Sizes measured.
    pub points: Vec<f64>,
    /// The operators.
    pub ops: Vec<Operator>,
}

/// One operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operator {
    /// What it is called.
    pub name: String,
    /// How often a step runs it.
    pub count: u32,
    /// Its time at each point.
    pub us: Vec<f64>,
}

/// Attention of one layer; the last axis runs fastest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionTables {
    /// Layers.
    pub count: u32,
    /// Decodes alone: sequences, KV positions of each.
    pub decode: DecodeTable,
    /// A chunk of prefill alone: tokens, KV positions before it.
    pub prefill: PrefillTable,
    /// Both in one launch.
    pub mixed: MixedTable,
}

/// Decodes alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "axes and values are named by the tables above")]
pub struct DecodeTable {
    pub seqs: Vec<f64>,
    pub kv: Vec<f64>,
    pub us: Vec<f64>,
}

/// A chunk of prefill alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "axes and values are named by the tables above")]
pub struct PrefillTable {
    pub tokens: Vec<f64>,
    pub context: Vec<f64>,
    pub us: Vec<f64>,
}

/// Prefill and decodes in one launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "axes and values are named by the tables above")]
pub struct MixedTable {
    pub tokens: Vec<f64>,
    pub context: Vec<f64>,
    pub seqs: Vec<f64>,
    pub kv: Vec<f64>,
    pub us: Vec<f64>,
}

/// The experts of one layer on one of `ranks` ranks, measured with a given number of them in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertTables {
    /// Layers.
    pub count: u32,
    /// Experts of a layer, over all ranks.
    pub n_experts: u32,
    /// Experts that a token uses.
    pub n_experts_used: u32,
    /// Ranks that experts are spread over.
    pub ranks: u32,
    /// Times, by experts in use, rising.
    pub curves: Vec<ExpertCurve>,
}

/// Times with so many experts in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertCurve {
    /// Experts in use.
    pub experts: f64,
    /// Tokens.
    pub tokens: Vec<f64>,
    /// The time at each.
    pub us: Vec<f64>,
}

/// A collective that each step runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepCollective {
    /// Which.
    pub kind: Collective,
    /// How often.
    pub count: u32,
    /// Devices that take part.
    pub devices: u32,
    /// Bytes of the vector (see [`Collective::time_ns`]) for each token of a rank.
    pub bytes_per_token: f64,
    /// The link.
    pub link: Link,
}

/// Measured operators, checked and ready to price steps.
#[derive(Debug, Clone)]
pub struct Operators {
    profile: OperatorProfile,
    /// All operators of the tokens in one curve, in microseconds a step.
    tokens: Curve,
    sampled: Curve,
    decode: Grid<2>,
    prefill: Grid<2>,
    mixed: Grid<4>,
    skew: Option<Skew>,
    experts: Vec<(f64, Curve)>,
}

impl Operators {
    /// Makes a profile ready.
    ///
    /// # Errors
    /// Tables that are empty, out of order, of the wrong size, negative or not finite.
    pub fn new(profile: &OperatorProfile) -> Result<Self, CostError> {
        let p = profile;
        if p.data_ranks == 0 || p.data_ranks as usize > MAX_RANKS {
            let problem = format!("{} must be from 1 to {MAX_RANKS}", p.data_ranks);
            return Err(CostError::new("data_ranks", problem));
        }
        if p.graph_sizes.windows(2).any(|w| w[0] >= w[1]) {
            return Err(CostError::new("graph_sizes", "sizes must rise"));
        }
        not_negative("power_watts", p.power_watts)?;
        for (i, c) in p.collectives.iter().enumerate() {
            let name = format!("collectives.{i}");
            c.link.validate().map_err(|e| e.within(&name))?;
            not_negative("bytes_per_token", c.bytes_per_token).map_err(|e| e.within(&name))?;
        }
        let (d, f, m) = (&p.attention.decode, &p.attention.prefill, &p.attention.mixed);
        let decode = [Axis::new("decode.seqs", &d.seqs)?, Axis::new("decode.kv", &d.kv)?];
        let prefill =
            [Axis::new("prefill.tokens", &f.tokens)?, Axis::new("prefill.context", &f.context)?];
        let mixed = [
            Axis::new("mixed.tokens", &m.tokens)?,
            Axis::new("mixed.context", &m.context)?,
            Axis::new("mixed.seqs", &m.seqs)?,
            Axis::new("mixed.kv", &m.kv)?,
        ];
        Ok(Self {
            tokens: p.tokens.curve("tokens")?,
            sampled: p.sampled.curve("sampled")?,
            decode: Grid::new("attention.decode.us", decode, &d.us)?,
            prefill: Grid::new("attention.prefill.us", prefill, &f.us)?,
            mixed: Grid::new("attention.mixed.us", mixed, &m.us)?,
            skew: p.skew.as_ref().map(Skew::new).transpose().map_err(|e| e.within("skew"))?,
            experts: p.experts.as_ref().map_or(Ok(Vec::new()), ExpertTables::curves)?,
            profile: p.clone(),
        })
    }

    /// What it was made from.
    pub fn profile(&self) -> &OperatorProfile {
        &self.profile
    }

    /// Attention of one layer, in microseconds.
    fn attention(&self, t: &Totals, outside: &mut bool) -> f64 {
        let chunk = t.prefill_tokens as f64;
        let context = if t.prefill_tokens == 0 {
            0.0
        } else {
            ((t.prefill_pairs as f64 - chunk * (chunk + 1.0) / 2.0) / chunk).max(0.0)
        };
        if t.decode_seqs == 0 {
            let at = [self.prefill.on(0, chunk), self.prefill.on(1, context)];
            *outside |= at.iter().any(|p| p.outside);
            return self.prefill.value(&at);
        }
        let seqs = t.decode_seqs as f64;
        let mean = t.decode_kv as f64 / seqs;
        let mut with = |kv: f64| {
            if t.prefill_tokens == 0 {
                let at = [self.decode.on(0, seqs), self.decode.on(1, kv)];
                *outside |= at.iter().any(|p| p.outside);
                return self.decode.value(&at);
            }
            let at = [
                self.mixed.on(0, chunk),
                self.mixed.on(1, context),
                self.mixed.on(2, seqs),
                self.mixed.on(3, kv),
            ];
            *outside |= at.iter().any(|p| p.outside);
            self.mixed.value(&at)
        };
        let us = with(mean);
        match &self.skew {
            Some(skew) if t.longest_decode > t.shortest_decode => {
                let longest = with(t.longest_decode as f64);
                (us + skew.alpha(t, context) * (longest - us)).max(0.0)
            }
            _ => us,
        }
    }

    /// The experts of one layer, in microseconds.
    fn expert_us(&self, tokens: f64, shape: &StepShape, outside: &mut bool) -> f64 {
        let Some(e) = &self.profile.experts else { return 0.0 };
        let ranks = f64::from(e.ranks);
        let (active, imbalance) = match shape.experts {
            Some(load) => (f64::from(load.active), f64::from(load.imbalance)),
            None => (expected_distinct(e.n_experts, e.n_experts_used, tokens), 1.0),
        };
        let (active, tokens) = (active / ranks, (tokens * imbalance / ranks).max(1.0));
        // Below the first curve nothing is known to be cheaper.
        let above = self.experts.partition_point(|(experts, _)| *experts < active);
        let mut at = |i: usize| {
            let curve = &self.experts[i].1;
            // A curve begins where as few tokens as can use that many experts.
            *outside |= tokens > curve.end();
            curve.at(tokens).0
        };
        if above == 0 {
            return at(0);
        }
        if above == self.experts.len() {
            return at(above - 1);
        }
        let (a, b) = (self.experts[above - 1].0, self.experts[above].0);
        let low = at(above - 1);
        low + (at(above) - low) * (active - a) / (b - a)
    }

    /// Tokens of a rank after padding to a recorded graph.
    fn padded(&self, tokens: u64) -> u64 {
        let sizes = &self.profile.graph_sizes;
        let next = sizes.partition_point(|s| u64::from(*s) < tokens);
        sizes.get(next).map_or(tokens, |s| u64::from(*s))
    }
}

impl StepCost for Operators {
    fn price(&self, shape: &StepShape) -> StepPrice {
        let ranks = self.profile.data_ranks as usize;
        let mut per_rank = [Totals::default(); MAX_RANKS];
        spread(shape, &mut per_rank[..ranks]);
        let tokens: u64 = per_rank.iter().map(|t| t.tokens).sum();
        if tokens == 0 {
            return StepPrice::default();
        }
        let mut outside = false;
        let widest = per_rank.iter().map(|t| t.tokens).max().unwrap_or(0);
        let mut slowest = (0.0f64, 0.0f64);
        for totals in &per_rank[..ranks] {
            // A rank without sequences runs along with one token; padding is to the widest.
            let own =
                if ranks > 1 && self.padded(widest) > widest { widest } else { totals.tokens };
            let (mut us, beyond) = self.tokens.at(self.padded(own.max(1)) as f64);
            outside |= beyond;
            let mut attention = 0.0;
            if totals.tokens > 0 {
                let count = f64::from(self.profile.attention.count);
                attention = count * self.attention(totals, &mut outside);
                let rows = totals.decode_seqs + totals.prefill_seqs;
                let (head, beyond) = self.sampled.at(rows.max(1) as f64);
                outside |= beyond;
                us += attention + head;
            }
            if us > slowest.0 {
                slowest = (us, attention);
            }
        }
        let count = self.profile.experts.as_ref().map_or(0.0, |e| f64::from(e.count));
        let experts = count * self.expert_us(tokens as f64, shape, &mut outside);
        let width = self.padded(widest) as f64;
        let link = self.profile.collectives.iter();
        let link: f64 = link
            .map(|c| {
                let bytes = c.bytes_per_token * width;
                f64::from(c.count) * c.kind.time_ns(&c.link, c.devices, bytes)
            })
            .sum();
        let time_ns = (slowest.0 + experts) * 1e3 + link;
        let bound = if link * 2.0 > time_ns { Bound::Link } else { Bound::Unknown };
        StepPrice {
            time_ns: libm::round(time_ns) as u64,
            energy_uj: libm::round(time_ns * self.profile.power_watts * 1e-3) as u64,
            extrapolated: outside,
            bound,
        }
    }
}

/// Deals the sequences of a step to its ranks: what decodes in turn, each prompt's part to the rank
/// with the fewest tokens.
fn spread(shape: &StepShape, ranks: &mut [Totals]) {
    if let [only] = ranks {
        *only = shape.totals();
        return;
    }
    let mut turn = 0;
    for seq in shape.seqs.iter().filter(|s| s.phase != crate::Phase::Prefill) {
        ranks[turn].add(seq);
        turn = (turn + 1) % ranks.len();
    }
    for seq in shape.seqs.iter().filter(|s| s.phase == crate::Phase::Prefill) {
        if let Some(rank) = ranks.iter_mut().min_by_key(|r| r.tokens) {
            rank.add(seq);
        }
    }
}

impl OperatorGroup {
    fn curve(&self, name: &str) -> Result<Curve, CostError> {
        let curves = self.ops.iter().map(|op| {
            let field = format!("{name}.{}", op.name);
            let us: Vec<f64> = op.us.iter().map(|us| us * f64::from(op.count)).collect();
            Curve::new(&field, &self.points, &us)
        });
        let curves = curves.collect::<Result<Vec<_>, _>>()?;
        Curve::sum(&curves).ok_or_else(|| {
            CostError::new(name, "it has no operators; at least one must be measured")
        })
    }
}

impl ExpertTables {
    fn curves(&self) -> Result<Vec<(f64, Curve)>, CostError> {
        if self.ranks == 0 || self.n_experts == 0 || self.n_experts_used > self.n_experts {
            let problem = "ranks and experts must be at least 1, and no more used than there are";
            return Err(CostError::new("experts", problem));
        }
        let experts: Vec<f64> = self.curves.iter().map(|c| c.experts).collect();
        Axis::new("experts.curves.experts", &experts)?;
        let curve =
            |c: &ExpertCurve| Ok((c.experts, Curve::new("experts.curves.us", &c.tokens, &c.us)?));
        self.curves.iter().map(curve).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, SeqShape};

    fn profile() -> OperatorProfile {
        let group = |name: &str, count, us: &[f64]| OperatorGroup {
            points: vec![1.0, 100.0],
            ops: vec![Operator { name: name.into(), count, us: us.to_vec() }],
        };
        // One microsecond a sequence and a tenth a position.
        let decode = |n: f64, kv: f64| n + 0.1 * n * kv;
        let axis = vec![1.0, 64.0];
        let kv = vec![10.0, 1000.0];
        let grid = |f: &dyn Fn(f64, f64) -> f64| {
            axis.iter()
                .flat_map(|&a| kv.iter().map(move |&b| (a, b)))
                .map(|(a, b)| f(a, b))
                .collect()
        };
        let mut mixed = Vec::new();
        for chunk in [1.0, 64.0] {
            for context in [0.0, 1000.0] {
                for n in [1.0, 64.0] {
                    mixed.extend(
                        [10.0, 1000.0].map(|k| chunk + 0.01 * chunk * context + decode(n, k)),
                    );
                }
            }
        }
        OperatorProfile {
            data_ranks: 1,
            graph_sizes: vec![],
            tokens: group("mlp", 2, &[10.0, 109.0]),
            sampled: group("head", 1, &[5.0, 5.0]),
            attention: AttentionTables {
                count: 4,
                decode: DecodeTable { seqs: axis.clone(), kv: kv.clone(), us: grid(&decode) },
                prefill: PrefillTable {
                    tokens: axis.clone(),
                    context: vec![0.0, 1000.0],
                    us: vec![1.0, 11.0, 64.0, 704.0],
                },
                mixed: MixedTable {
                    tokens: axis.clone(),
                    context: vec![0.0, 1000.0],
                    seqs: axis,
                    kv,
                    us: mixed,
                },
            },
            skew: None,
            experts: None,
            collectives: vec![],
            power_watts: 100.0,
        }
    }

    fn decodes(contexts: &[u32]) -> StepShape {
        let seq = |&context| SeqShape { new_tokens: 1, context, phase: Phase::Decode };
        StepShape {
            seqs: contexts.iter().map(seq).collect(),
            sampled: contexts.len() as u32,
            experts: None,
        }
    }

    #[test]
    fn a_step_is_the_sum_of_its_operators() {
        let operators = Operators::new(&profile()).unwrap();
        let price = operators.price(&decodes(&[99, 199, 299]));
        // Twice (9 + 3) for the tokens, 5 for the head, four layers of 3 + 0.1 * 600.
        assert_eq!(price.time_ns, ((24.0 + 5.0 + 4.0 * 63.0) * 1e3) as u64);
        assert_eq!(price.energy_uj, (281.0 * 100.0) as u64);
        assert!(!price.extrapolated);
        let mut mixed = decodes(&[99]);
        mixed.seqs.push(SeqShape { new_tokens: 10, context: 500, phase: Phase::Prefill });
        let attention = 10.0 + 0.01 * 10.0 * 500.0 + 1.0 + 10.0;
        let wanted = 2.0 * (9.0 + 11.0) + 5.0 + 4.0 * attention;
        assert_eq!(operators.price(&mixed).time_ns, (wanted * 1e3) as u64);
        assert_eq!(operators.price(&StepShape::default()), StepPrice::default());
    }

    #[test]
    fn what_lies_outside_is_marked() {
        let operators = Operators::new(&profile()).unwrap();
        assert!(operators.price(&decodes(&[2000])).extrapolated);
        assert!(operators.price(&decodes(&[50; 65])).extrapolated);
        assert!(!operators.price(&decodes(&[50; 64])).extrapolated);
        // Twice as far, twice as much.
        let price = operators.price(&decodes(&[1999]));
        assert_eq!(price.time_ns, ((20.0 + 5.0 + 4.0 * 201.0) * 1e3) as u64);
    }

    #[test]
    fn small_steps_are_padded_to_graphs() {
        let mut p = profile();
        p.graph_sizes = vec![4, 8];
        let padded = Operators::new(&p).unwrap();
        let plain = Operators::new(&profile()).unwrap();
        let more = |n: usize| {
            let shape = decodes(&vec![99; n]);
            padded.price(&shape).time_ns - plain.price(&shape).time_ns
        };
        // Two microseconds a token of padding, and none beyond the largest graph.
        assert_eq!([1, 4, 5, 9].map(more), [6_000, 0, 6_000, 0]);
    }

    #[test]
    fn ranks_share_a_step_and_the_slowest_decides() {
        let mut p = profile();
        p.data_ranks = 2;
        let two = Operators::new(&p).unwrap();
        let one = Operators::new(&profile()).unwrap();
        let price = two.price(&decodes(&[99, 99, 99, 99])).time_ns;
        assert_eq!(price, one.price(&decodes(&[99, 99])).time_ns);
        let price = two.price(&decodes(&[99, 299, 99])).time_ns;
        assert_eq!(
            price,
            one.price(&decodes(&[299])).time_ns.max(one.price(&decodes(&[99, 99])).time_ns)
        );
    }

    #[test]
    fn bad_profiles_are_refused_with_the_field() {
        type Change = fn(&mut OperatorProfile);
        let cases: [(&str, Change); 8] = [
            ("tokens.mlp", |p| p.tokens.ops[0].us[0] = f64::NAN),
            ("tokens.mlp", |p| p.tokens.ops[0].us[1] = -1.0),
            ("tokens", |p| p.tokens.ops.clear()),
            ("attention.decode.us", |p| p.attention.decode.us.truncate(3)),
            ("mixed.kv", |p| p.attention.mixed.kv.clear()),
            ("prefill.tokens", |p| p.attention.prefill.tokens.reverse()),
            ("graph_sizes", |p| p.graph_sizes = vec![8, 4]),
            ("data_ranks", |p| p.data_ranks = 9),
        ];
        for (field, change) in cases {
            let mut bad = profile();
            change(&mut bad);
            assert_eq!(Operators::new(&bad).expect_err(field).field, field);
        }
    }
}
