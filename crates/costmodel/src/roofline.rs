//! A roofline: each einsum takes the longer of its arithmetic at peak rate and its bytes at memory
//! bandwidth; collectives and overheads come on top.
//!
//! How a model is spread over devices:
//!
//! - tensor: every matrix cut evenly, and KV heads as far as there are; two all-reduces a layer, by
//!   the cheaper of a ring and exchanges;
//! - data: sequences dealt evenly;
//! - expert: experts spread over all ranks, two all-to-alls a layer; imbalance slows arithmetic and
//!   traffic;
//! - pipeline: the step's sequences cut into as many micro-batches as there are stages, or not at
//!   all, whichever is quicker: `(m + p - 1)` times the time of a stage.
//!
//! Power is that of idling, and more for the share of time in which arithmetic, memory and links are
//! busy ([`PowerSpec`](crate::PowerSpec)).

use dunlin_spec::{ComputeType, HardwareSpec, ModelSpec, ParallelSpec};

use crate::{
    Bound, Collective, CostError, ExpertLoad, Link, Phase, SeqShape, StepCost, StepPrice,
    StepShape,
    einsum::{Einsum, Unit, einsums},
    energy::{Busy, PowerSpec},
    expected_distinct,
};

/// Bytes of values as they are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueBytes {
    /// Of a weight.
    pub weight: f64,
    /// Of an activation.
    pub activation: f64,
    /// Of a value in the KV cache.
    pub kv: f64,
}

impl Default for ValueBytes {
    /// 16 bits each.
    fn default() -> Self {
        Self { weight: 2.0, activation: 2.0, kv: 2.0 }
    }
}

/// What a roofline is made of.
#[derive(Debug, Clone)]
pub struct Roofline {
    hardware: HardwareSpec,
    parallel: ParallelSpec,
    bytes: ValueBytes,
    einsums: Vec<Einsum>,
    power: PowerSpec,
    /// Operations a second.
    flops_per_s: f64,
    /// Bytes a second.
    bytes_per_s: f64,
    layers: u32,
    expert_layers: u32,
    experts_used: u32,
    d_model: f64,
    kv_heads: f64,
    link: Link,
    weight_bytes: f64,
    kv_token_bytes: f64,
}

/// Nanoseconds that a step takes, by what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Parts {
    /// Arithmetic where that is the longer.
    pub compute_ns: f64,
    /// Memory where that is the longer.
    pub memory_ns: f64,
    /// Between devices.
    pub link_ns: f64,
    /// The rest.
    pub overhead_ns: f64,
    /// Operations on one device.
    pub flops: f64,
    /// Bytes to and from one device's memory.
    pub bytes: f64,
}

impl Parts {
    /// All of it.
    pub fn total_ns(&self) -> f64 {
        self.compute_ns + self.memory_ns + self.link_ns + self.overhead_ns
    }

    /// What most of the time goes to.
    pub fn bound(&self) -> Bound {
        let parts = [
            (self.compute_ns, Bound::Compute),
            (self.memory_ns, Bound::Memory),
            (self.link_ns, Bound::Link),
            (self.overhead_ns, Bound::Overhead),
        ];
        let most = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        most.map_or(Bound::Unknown, |(_, bound)| bound)
    }
}

impl Roofline {
    /// The roofline of a model on devices of this kind.
    ///
    /// # Errors
    /// Values that make no sense, and devices without arithmetic in `compute` or without the links
    /// that the spread needs.
    pub fn new(
        model: &ModelSpec,
        hardware: &HardwareSpec,
        parallel: ParallelSpec,
        compute: ComputeType,
        bytes: ValueBytes,
    ) -> Result<Self, CostError> {
        hardware.validate().map_err(|e| CostError::from(e).within("hardware"))?;
        model.validate().map_err(|e| CostError::from(e).within("model"))?;
        parallel.validate(model).map_err(|e| CostError::from(e).within("parallel"))?;
        let peak = hardware.flops.of(compute);
        if peak <= 0.0 {
            let problem = format!("{} has no arithmetic of type {compute:?}", hardware.name);
            return Err(CostError::new("hardware.flops", problem));
        }
        let link = link(hardware, parallel.devices())?;
        let einsums = einsums(model);
        let moe = model.layers.iter().filter_map(|l| match &l.ffn {
            dunlin_spec::FfnSpec::Moe(m) => Some(m.n_used as u32),
            dunlin_spec::FfnSpec::Gated { .. } => None,
        });
        let kv_heads = model.layers.iter().map(|l| l.attn.n_kv_heads).max().unwrap_or(1);
        Ok(Self {
            power: PowerSpec::of(hardware),
            flops_per_s: peak * hardware.flops_efficiency,
            bytes_per_s: hardware.memory_bytes_per_s * hardware.memory_efficiency,
            layers: model.layers.len() as u32,
            expert_layers: moe.clone().count() as u32,
            experts_used: moe.max().unwrap_or(0),
            d_model: model.d_model as f64,
            kv_heads: kv_heads as f64,
            weight_bytes: model.matrix_weights() as f64 * bytes.weight,
            kv_token_bytes: model.kv_values_per_token() as f64 * bytes.kv,
            hardware: hardware.clone(),
            parallel,
            bytes,
            einsums,
            link,
        })
    }

    /// The model as einsums.
    pub fn einsums(&self) -> &[Einsum] {
        &self.einsums
    }

    /// What the devices draw.
    pub fn power(&self) -> &PowerSpec {
        &self.power
    }

    /// Replaces what the devices draw.
    #[must_use]
    pub fn with_power(self, power: PowerSpec) -> Self {
        Self { power, ..self }
    }

    /// Bytes of weights on one device.
    pub fn weight_bytes_per_device(&self) -> f64 {
        // Ranks of data have copies, but for experts that are spread over them.
        let copies = f64::from(self.parallel.tensor * self.parallel.pipeline);
        if self.parallel.expert <= 1 {
            return self.weight_bytes / copies;
        }
        let experts = self.einsums.iter().filter_map(|e| match e.unit {
            Unit::Expert { experts, .. } => Some(f64::from(e.count * experts) * e.weights),
            _ => None,
        });
        let experts = experts.sum::<f64>() * self.bytes.weight;
        (self.weight_bytes - experts) / copies + experts / f64::from(self.parallel.devices())
    }

    /// Bytes of KV that a token takes on one device.
    pub fn kv_bytes_per_token_per_device(&self) -> f64 {
        let cut = f64::from(self.parallel.tensor).min(self.kv_heads);
        self.kv_token_bytes / cut / f64::from(self.parallel.pipeline)
    }

    /// How many KV blocks fit beside the weights, on each rank of data, with this share of memory in
    /// use (`reserved` bytes of it for activations).
    ///
    /// # Errors
    /// The model does not fit, with what it would take.
    pub fn kv_blocks(
        &self,
        block_tokens: u32,
        share: f64,
        reserved: u64,
    ) -> Result<u64, MemoryError> {
        let budget = self.hardware.memory_bytes as f64 * share - reserved as f64;
        let block = self.kv_bytes_per_token_per_device() * f64::from(block_tokens);
        let weights = self.weight_bytes_per_device();
        let room = (budget - weights) / block;
        if room >= 1.0 {
            return Ok(room as u64);
        }
        let per_device = weights + block + reserved as f64;
        let devices = f64::from(self.parallel.devices());
        let available = budget.max(1.0);
        Err(MemoryError {
            hardware: self.hardware.name.clone(),
            needed_bytes: per_device as u64,
            available_bytes: budget.max(0.0) as u64,
            memory_bytes: (per_device / share) as u64,
            devices: libm::ceil(weights * devices / available) as u64,
        })
    }

    /// What a step takes, by parts.
    pub fn parts(&self, shape: &StepShape) -> Parts {
        if shape.seqs.is_empty() {
            return Parts::default();
        }
        let stages = f64::from(self.parallel.pipeline);
        let whole = self.micro(shape, 1.0);
        if self.parallel.pipeline == 1 {
            return whole;
        }
        let batches = stages.min(shape.seqs.len() as f64);
        let cut = self.micro(shape, batches);
        let hop = self.link.message_ns(self.tokens(shape) / batches * self.row_bytes());
        let timed = |parts: Parts, micro: f64, hop: f64| {
            let waves = (micro + stages - 1.0) / stages;
            Parts {
                compute_ns: parts.compute_ns * waves,
                memory_ns: parts.memory_ns * waves,
                link_ns: parts.link_ns * waves + (micro + stages - 1.0) * hop,
                overhead_ns: parts.overhead_ns * waves,
                flops: parts.flops * micro / stages,
                bytes: parts.bytes * micro / stages,
            }
        };
        let one_hop = self.link.message_ns(self.tokens(shape) * self.row_bytes());
        let (whole, cut) = (timed(whole, 1.0, one_hop), timed(cut, batches, hop));
        if cut.total_ns() < whole.total_ns() { cut } else { whole }
    }

    /// Nanoseconds in which one device's arithmetic and memory are busy in a step.
    pub fn busy_ns(&self, shape: &StepShape) -> (f64, f64) {
        let parts = self.parts(shape);
        (parts.flops / self.flops_per_s * 1e9, parts.bytes / self.bytes_per_s * 1e9)
    }

    fn tokens(&self, shape: &StepShape) -> f64 {
        let tokens: u64 = shape.seqs.iter().map(|s| u64::from(s.new_tokens)).sum();
        tokens as f64 / f64::from(self.parallel.data)
    }

    fn row_bytes(&self) -> f64 {
        self.d_model * self.bytes.activation
    }

    /// All layers, one after the other, for one of `batches` equal parts of a step.
    fn micro(&self, shape: &StepShape, batches: f64) -> Parts {
        let p = &self.parallel;
        let tensor = f64::from(p.tensor);
        let share = 1.0 / (f64::from(p.data) * batches);
        let mut parts = Parts::default();
        let imbalance = shape.experts.map_or(1.0, |e| f64::from(e.imbalance));
        for e in &self.einsums {
            let mut units = e.unit.of(shape);
            let count = f64::from(e.count);
            let spread = matches!(e.unit, Unit::Expert { .. }) && p.expert > 1;
            if let Unit::Expert { experts, used } = e.unit
                && shape.experts.is_none()
            {
                // Of the experts in use, those of the tokens that come together.
                let together = if spread { units.units / batches } else { units.units * share };
                units.reads = expected_distinct(experts, used, together);
            }
            // Experts see the tokens of all ranks; each rank has its part of them.
            let (cut, slow) = if spread {
                (f64::from(p.expert) / f64::from(p.data), imbalance)
            } else {
                (tensor, 1.0)
            };
            let kv_cut = tensor.min(self.kv_heads);
            let weights = if spread { tensor * f64::from(p.data) } else { tensor };
            let flops = e.flops * units.units * share / cut * slow;
            let bytes = e.weights * units.reads / weights * self.bytes.weight
                + e.values * units.rows * share / cut * slow * self.bytes.activation
                + e.kv_values * units.positions * share / kv_cut * self.bytes.kv;
            let compute = flops / self.flops_per_s * 1e9;
            let memory = bytes / self.bytes_per_s * 1e9;
            if compute >= memory {
                parts.compute_ns += count * compute;
            } else {
                parts.memory_ns += count * memory;
            }
            parts.flops += count * flops;
            parts.bytes += count * bytes;
        }
        let rows = self.tokens(shape) / batches * self.row_bytes();
        parts.link_ns = self.link_ns(rows, imbalance);
        parts.overhead_ns = self.hardware.layer_overhead_ns * f64::from(self.layers)
            + self.hardware.step_overhead_ns;
        parts
    }

    /// Nanoseconds between devices, for `bytes` of activations of a rank.
    fn link_ns(&self, bytes: f64, imbalance: f64) -> f64 {
        let p = &self.parallel;
        let reduce = |c: Collective| c.time_ns(&self.link, p.tensor, bytes);
        let all_reduce =
            reduce(Collective::RingAllReduce).min(reduce(Collective::ExchangeAllReduce));
        // Attention, and a feed-forward network that is not spread by experts.
        let spread = p.expert > 1;
        let layers = f64::from(self.layers);
        let experts = f64::from(self.expert_layers);
        let reduces = if spread { 2.0 * layers - experts } else { 2.0 * layers };
        let mut ns = reduces * all_reduce;
        if spread {
            let sent = bytes * f64::from(self.experts_used) * imbalance;
            ns += 2.0 * experts * Collective::AllToAll.time_ns(&self.link, p.expert, sent);
        }
        ns
    }
}

impl StepCost for Roofline {
    fn price(&self, shape: &StepShape) -> StepPrice {
        let parts = self.parts(shape);
        let time_ns = parts.total_ns();
        if time_ns == 0.0 {
            return StepPrice::default();
        }
        let busy = Busy {
            compute: parts.flops / self.flops_per_s * 1e9 / time_ns,
            memory: parts.bytes / self.bytes_per_s * 1e9 / time_ns,
            link: parts.link_ns / time_ns,
        };
        let watts = self.power.watts(&busy) * f64::from(self.parallel.devices());
        StepPrice {
            time_ns: libm::round(time_ns) as u64,
            energy_uj: libm::round(time_ns * watts * 1e-3) as u64,
            extrapolated: false,
            bound: parts.bound(),
        }
    }

    fn least_ns(&self) -> u64 {
        // Every part grows with tokens, contexts and experts in use. Sums of other parts are rounded
        // otherwise, so a little is taken off.
        let one = SeqShape { new_tokens: 1, context: 0, phase: Phase::Decode };
        let experts = Some(ExpertLoad { active: 0.0, imbalance: 0.0 });
        let shape = StepShape { seqs: vec![one], sampled: 0, experts };
        (self.parts(&shape).total_ns() * (1.0 - 1e-9)) as u64
    }
}

/// The slowest link that a replica of so many devices needs.
fn link(hardware: &HardwareSpec, devices: u32) -> Result<Link, CostError> {
    // One device sends nothing; the numbers do not matter.
    if devices == 1 {
        return Ok(Link { latency_ns: 0.0, bytes_per_s: 1.0 });
    }
    let (name, link) = if devices <= hardware.devices_per_node {
        ("link", hardware.link)
    } else {
        ("network", hardware.network)
    };
    link.map(Link::from).ok_or_else(|| {
        let problem = format!("{} has none, and {devices} devices need it", hardware.name);
        CostError::new(format!("hardware.{name}"), problem)
    })
}

/// A model does not fit into memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model needs {needed_bytes} bytes on each {hardware} and {available_bytes} may be used: \
     it would fit a device of {memory_bytes} bytes, or {devices} devices of this kind together"
)]
pub struct MemoryError {
    /// The device.
    pub hardware: String,
    /// Bytes that weights and one KV block need on one device.
    pub needed_bytes: u64,
    /// Bytes of the device that may be used.
    pub available_bytes: u64,
    /// Bytes of a device that would do.
    pub memory_bytes: u64,
    /// Devices of this kind that would hold the weights.
    pub devices: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, SeqShape};
    use dunlin_spec::{LinkSpec, ModelShape, PeakFlops};

    fn device() -> HardwareSpec {
        HardwareSpec {
            name: "device".into(),
            flops: PeakFlops { bf16: 1e15, ..PeakFlops::default() },
            memory_bytes: 80_000_000_000,
            memory_bytes_per_s: 3e12,
            flops_efficiency: 1.0,
            memory_efficiency: 1.0,
            layer_overhead_ns: 0.0,
            step_overhead_ns: 0.0,
            devices_per_node: 8,
            link: Some(LinkSpec { latency_ns: 2e3, bytes_per_s: 4e11 }),
            network: None,
            idle_watts: 70.0,
            peak_watts: 700.0,
            node_watts: 0.0,
            price_per_hour: 3.0,
            embodied_gco2: 0.0,
            lifetime_hours: 1.0,
        }
    }

    fn llama() -> ModelShape {
        ModelShape {
            name: "8B".into(),
            layers: 32,
            d_model: 4096,
            n_heads: 32,
            n_kv_heads: 8,
            head_dim: 128,
            d_ff: 14336,
            vocab_size: 128_256,
            n_experts: 0,
            n_experts_used: 0,
            window: None,
            global_every: 0,
            tied_head: false,
            context_length: 131_072,
        }
    }

    fn roofline(shape: &ModelShape, parallel: ParallelSpec) -> Roofline {
        let spec = shape.spec().unwrap();
        Roofline::new(&spec, &device(), parallel, ComputeType::Bf16, ValueBytes::default()).unwrap()
    }

    fn decodes(n: usize, context: u32) -> StepShape {
        let seq = SeqShape { new_tokens: 1, context, phase: Phase::Decode };
        StepShape { seqs: vec![seq; n], sampled: n as u32, experts: None }
    }

    #[test]
    fn one_decode_reads_the_weights_once_and_prefill_is_arithmetic() {
        let r = roofline(&llama(), ParallelSpec::default());
        let parts = r.parts(&decodes(1, 0));
        // Every weight but the embedding, in 16 bits.
        let weights = (8_030_261_248.0 - 65.0 * 4096.0 - 128_256.0 * 4096.0) * 2.0;
        assert!((parts.bytes / weights - 1.0).abs() < 1e-3, "{parts:?}");
        assert_eq!(r.price(&decodes(1, 0)).bound, Bound::Memory);
        let prompt = StepShape {
            seqs: vec![SeqShape { new_tokens: 8192, context: 0, phase: Phase::Prefill }],
            sampled: 1,
            experts: None,
        };
        let parts = r.parts(&prompt);
        assert_eq!(parts.bound(), Bound::Compute);
        // Two operations a weight of the layers, and attention's half of a square.
        let layers = 32.0 * 2.0 * (2.0 * 4096.0 * 5120.0 + 3.0 * 4096.0 * 14336.0) * 8192.0;
        let attention = 32.0 * 2.0 * 2.0 * 4096.0 * (8192.0 * 8193.0 / 2.0);
        let head = 2.0 * 128_256.0 * 4096.0;
        assert!((parts.flops / (layers + attention + head) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn spreading_by_tensor_cuts_bytes_and_adds_two_reduces_a_layer() {
        let one = roofline(&llama(), ParallelSpec::default()).parts(&decodes(64, 1000));
        let spread = ParallelSpec { tensor: 4, ..ParallelSpec::default() };
        let four = roofline(&llama(), spread).parts(&decodes(64, 1000));
        assert!((four.flops * 4.0 / one.flops - 1.0).abs() < 1e-12);
        let reduce = Collective::ExchangeAllReduce.time_ns(
            &Link { latency_ns: 2e3, bytes_per_s: 4e11 },
            4,
            64.0 * 4096.0 * 2.0,
        );
        assert!((four.link_ns / (64.0 * reduce) - 1.0).abs() < 1e-9, "{four:?} {reduce}");
        assert_eq!(one.link_ns, 0.0);
    }

    #[test]
    fn a_pipeline_fills_and_drains() {
        let staged = ParallelSpec { pipeline: 4, ..ParallelSpec::default() };
        let mut hardware = device();
        hardware.link = Some(LinkSpec { latency_ns: 0.0, bytes_per_s: 1e30 });
        let spec = llama().spec().unwrap();
        let with = |parallel| {
            Roofline::new(&spec, &hardware, parallel, ComputeType::Bf16, ValueBytes::default())
        };
        let (one, four) = (with(ParallelSpec::default()).unwrap(), with(staged).unwrap());
        // A single sequence cannot be cut: the stages wait for each other.
        let (a, b) = (one.parts(&decodes(1, 0)), four.parts(&decodes(1, 0)));
        assert!((b.total_ns() / a.total_ns() - 1.0).abs() < 1e-9);
        // Long prompts can: four micro-batches take seven stages instead of sixteen.
        let prompts = StepShape {
            seqs: vec![SeqShape { new_tokens: 8192, context: 0, phase: Phase::Prefill }; 4],
            sampled: 4,
            experts: None,
        };
        let (a, b) = (one.parts(&prompts), four.parts(&prompts));
        assert!((b.compute_ns / a.compute_ns - 7.0 / 16.0).abs() < 1e-3, "{a:?} {b:?}");
    }

    #[test]
    fn experts_are_read_as_far_as_they_are_used() {
        let moe = ModelShape { n_experts: 128, n_experts_used: 8, d_ff: 768, ..llama() };
        let r = roofline(&moe, ParallelSpec::default());
        let expert = 3.0 * 4096.0 * 768.0 * 2.0 * 32.0;
        let bytes = |n| r.parts(&decodes(n, 0)).bytes;
        // The second token meets 7.5 more experts on average.
        let more = (bytes(2) - bytes(1)) / expert;
        assert!((more - 7.5).abs() < 0.05, "{more}");
        let spread = ParallelSpec { data: 4, expert: 4, ..ParallelSpec::default() };
        let four = roofline(&moe, spread);
        assert!(four.parts(&decodes(64, 0)).link_ns > 0.0);
        assert!(four.weight_bytes_per_device() < 0.5 * r.weight_bytes_per_device());
    }

    #[test]
    fn what_does_not_fit_says_what_would() {
        let big =
            ModelShape { layers: 126, d_model: 16_384, n_heads: 128, d_ff: 53_248, ..llama() };
        let r = roofline(&big, ParallelSpec::default());
        let error = r.kv_blocks(16, 0.9, 2_000_000_000).unwrap_err();
        // 405 billion weights in 16 bits, of which 70 GB fit on each device.
        assert_eq!(error.devices, 12, "{error}");
        let devices = ParallelSpec { tensor: 16, ..ParallelSpec::default() };
        let mut hardware = device();
        hardware.devices_per_node = 16;
        let spec = big.spec().unwrap();
        let r = Roofline::new(&spec, &hardware, devices, ComputeType::Bf16, ValueBytes::default());
        assert!(r.unwrap().kv_blocks(16, 0.9, 2_000_000_000).unwrap() > 1000);
        // A device of the size that the error names holds it.
        hardware.memory_bytes = error.memory_bytes + 1_000_000;
        let one = ParallelSpec::default();
        let r = Roofline::new(&spec, &hardware, one, ComputeType::Bf16, ValueBytes::default());
        assert_eq!(r.unwrap().kv_blocks(16, 0.9, 2_000_000_000).unwrap(), 1);
    }

    #[test]
    fn devices_without_links_are_refused_for_spreads() {
        let mut hardware = device();
        hardware.link = None;
        let spread = ParallelSpec { tensor: 2, ..ParallelSpec::default() };
        let spec = llama().spec().unwrap();
        let made =
            Roofline::new(&spec, &hardware, spread, ComputeType::Bf16, ValueBytes::default());
        assert_eq!(made.unwrap_err().field, "hardware.link");
        let alone = ParallelSpec::default();
        let made = Roofline::new(&spec, &device(), alone, ComputeType::Fp8, ValueBytes::default());
        assert_eq!(made.unwrap_err().field, "hardware.flops");
    }
}
