//! How fast a row could be on this machine: the time to read what must be read, or to compute what
//! must be computed, whichever is longer.
//!
//! Work is counted from the model's file: every weight that a token uses is read once a step and
//! multiplied once a token. Attention's own arithmetic is left out (its reads are not), and so are
//! norms and everything else that is small. A limit is a bound, not a forecast.

use dunlin_checkpoint::{ModelFile, Role};
use dunlin_kernels_cpu::probe::ArithmeticRates;
use dunlin_spec::{ActivationPrecision, FfnSpec, ModelSpec, WeightType};

use super::row::Row;

/// The weights that a token uses.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Values of the layers' matrices by type; of experts, those of the ones that a token uses.
    layers: Vec<(WeightType, f64)>,
    /// The head's matrix.
    head: Option<(WeightType, f64)>,
    /// Bytes of all these, and of the vectors.
    pub bytes_per_step: f64,
    /// Values of keys and values that a token adds, by window: `None` sees everything before it.
    kv_values: Vec<(Option<usize>, f64)>,
}

/// A row's limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit {
    /// Tokens a second.
    pub tokens_per_second: f64,
    /// What sets it.
    pub bound: Bound,
}

/// What sets a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Reading weights, keys and values.
    Bandwidth,
    /// Multiplying.
    Arithmetic,
}

impl Bound {
    /// The name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Bandwidth => "bandwidth",
            Bound::Arithmetic => "arithmetic",
        }
    }
}

/// What the machine does in a second.
#[derive(Debug, Clone, Copy)]
pub struct Speeds {
    /// Bytes read.
    pub read: f64,
    /// Operations.
    pub rates: ArithmeticRates,
}

impl Work {
    /// Counts a model's weights.
    pub fn of(file: &ModelFile) -> Self {
        let spec = file.spec();
        let mut work = Work { kv_values: kv_values(spec), ..Work::default() };
        for (index, layer) in spec.layers.iter().enumerate() {
            let (experts, used) = match &layer.ffn {
                FfnSpec::Gated { .. } => (1, 1.0),
                FfnSpec::Moe(moe) => (moe.n_experts, moe.n_used as f64 / moe.n_experts as f64),
            };
            for role in Role::ALL.into_iter().filter(|role| !role.is_global()) {
                let (copies, share) = if role.is_expert() { (experts, used) } else { (1, 1.0) };
                for copy in 0..copies {
                    work.add_matrix(file, role, index, copy, share);
                }
                work.add_vector(file, role, index);
            }
        }
        let head = if spec.tied_head { Role::TokenEmbd } else { Role::Output };
        if let Some(matrix) = file.matrix(head, 0, 0) {
            work.head = Some((matrix.ty, (matrix.rows * matrix.cols) as f64));
            work.bytes_per_step += (matrix.rows * matrix.row_bytes()) as f64;
        }
        work.add_vector(file, Role::OutputNorm, 0);
        work
    }

    fn add_matrix(&mut self, file: &ModelFile, role: Role, layer: usize, copy: usize, share: f64) {
        if let Some(matrix) = file.matrix(role, layer, copy) {
            let values = (matrix.rows * matrix.cols) as f64 * share;
            match self.layers.iter_mut().find(|(ty, _)| *ty == matrix.ty) {
                Some((_, sum)) => *sum += values,
                None => self.layers.push((matrix.ty, values)),
            }
            self.bytes_per_step += (matrix.rows * matrix.row_bytes()) as f64 * share;
        }
    }

    fn add_vector(&mut self, file: &ModelFile, role: Role, layer: usize) {
        self.bytes_per_step += file.vector(role, layer).map_or(0, |v| v.len() * 4) as f64;
    }

    /// The limit of a row. `kv_bytes_per_value` is a stored value's size, its share of scales
    /// included.
    pub fn limit(
        &self,
        row: Row,
        activations: ActivationPrecision,
        kv_bytes_per_value: f64,
        speeds: Speeds,
    ) -> Option<Limit> {
        let (steps, tokens) = match row {
            // One step: the weights are read once for all tokens.
            Row::Prefill { tokens } => (1, tokens),
            Row::Decode { tokens, .. } => (tokens, 1),
            Row::Batch { sequences } => (super::row::BATCH_STEPS, sequences),
        };
        let heads = if matches!(row, Row::Prefill { .. }) { 1 } else { tokens };
        let kv = match row {
            // Every later token reads what earlier ones wrote, but from caches; not counted.
            Row::Prefill { .. } => 0.0,
            _ => {
                let mean = row.depth() as f64 + (row.new_tokens() as f64 + 1.0) / 2.0;
                self.kv_values_at(mean) * kv_bytes_per_value * row.sequences() as f64
            }
        };
        let read = (self.bytes_per_step + kv) / speeds.read;
        let compute = self.seconds(&self.layers, activations, speeds.rates)? * tokens as f64
            + self.seconds(self.head.as_slice(), activations, speeds.rates)? * heads as f64;
        let (step, bound) =
            if read >= compute { (read, Bound::Bandwidth) } else { (compute, Bound::Arithmetic) };
        let all = step * steps as f64;
        (all > 0.0 && all.is_finite())
            .then(|| Limit { tokens_per_second: row.timed_tokens() as f64 / all, bound })
    }

    /// Seconds to multiply these weights with one token's activations, each type at its own limit.
    fn seconds(
        &self,
        weights: &[(WeightType, f64)],
        activations: ActivationPrecision,
        rates: ArithmeticRates,
    ) -> Option<f64> {
        let mut seconds = 0.0;
        for &(ty, values) in weights {
            let (products, rate) = match (bits(ty), activations) {
                (Some(bits), ActivationPrecision::Int8) => (1.0, rates.int8_limit(bits)?),
                (Some(bits), ActivationPrecision::Split) => (2.0, rates.int8_limit(bits)?),
                (Some(_), ActivationPrecision::F32) | (None, _) => (1.0, rates.f32_fma?),
            };
            seconds += 2.0 * products * values / rate;
        }
        Some(seconds)
    }

    /// Stored values that a token at this depth reads.
    fn kv_values_at(&self, depth: f64) -> f64 {
        let seen = |window: Option<usize>| window.map_or(depth, |w| depth.min(w as f64));
        self.kv_values.iter().map(|&(window, values)| seen(window) * values).sum()
    }
}

fn kv_values(spec: &ModelSpec) -> Vec<(Option<usize>, f64)> {
    let layers = spec.layers.iter();
    layers.map(|l| (l.attn.window, l.attn.kv_values_per_token() as f64)).collect()
}

/// Bits of the integers that a quantized type's products are made of; `None` for float types.
/// IQ4's are 8: its 4-bit codes stand for values up to 127.
fn bits(ty: WeightType) -> Option<u32> {
    use WeightType::*;
    match ty {
        F32 | F16 | BF16 => None,
        Q2_K => Some(2),
        Q3_K => Some(3),
        Q4_0 | Q4_1 | Q4_K => Some(4),
        Q5_0 | Q5_1 | Q5_K | MXFP4 => Some(5),
        Q6_K => Some(6),
        Q8_0 | IQ4_NL | IQ4_XS => Some(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SmolLM2-135M in Q4_1 with a Q8_0 head, as counted from its file.
    fn smollm2() -> Work {
        Work {
            layers: vec![(WeightType::Q4_1, 106_168_320.0)],
            head: Some((WeightType::Q8_0, 28_311_552.0)),
            bytes_per_step: 96.6e6,
            kv_values: vec![(None, 30.0 * 2.0 * 3.0 * 64.0)],
        }
    }

    /// The 2 Zen 3 cores for which the limits below were worked out by hand.
    fn zen3() -> Speeds {
        let rates = ArithmeticRates {
            f32_fma: Some(205e9),
            int8_a: Some(352e9),
            int8_b: Some(578e9),
            int8_dot: None,
        };
        Speeds { read: 39.5e9, rates }
    }

    fn limit(row: &str, activations: ActivationPrecision) -> Limit {
        smollm2().limit(row.parse().unwrap(), activations, 2.0, zen3()).unwrap()
    }

    #[test]
    fn decode_is_bound_by_what_it_reads() {
        let int8 = ActivationPrecision::Int8;
        for (row, want) in
            [("tg1", 409.0), ("tg1@2048", 275.0), ("tg1@4096", 207.0), ("tg1@8000", 141.0)]
        {
            let got = limit(row, int8);
            assert!((got.tokens_per_second - want).abs() < 1.0, "{row}: {got:?}");
            assert_eq!(got.bound, Bound::Bandwidth);
        }
    }

    #[test]
    fn prefill_is_bound_by_what_it_multiplies() {
        let got = limit("pp512", ActivationPrecision::Int8);
        // 2723 without the head of the last token.
        assert!((2715.0..2723.0).contains(&got.tokens_per_second), "{got:?}");
        assert_eq!(got.bound, Bound::Arithmetic);
        let f32 = limit("pp512", ActivationPrecision::F32);
        assert!((960.0..966.0).contains(&f32.tokens_per_second), "{f32:?}");
        let split = limit("pp512", ActivationPrecision::Split);
        assert!((split.tokens_per_second * 2.0 - got.tokens_per_second).abs() < 1.0);
    }

    #[test]
    fn a_batch_pays_for_every_head() {
        let got = limit("b16", ActivationPrecision::Int8);
        let seconds = 2.0 * 106_168_320.0 / 578e9 + 2.0 * 28_311_552.0 / 352e9;
        assert!((got.tokens_per_second - 1.0 / seconds).abs() < 1e-6, "{got:?}");
        assert_eq!(limit("b1", ActivationPrecision::Int8).bound, Bound::Bandwidth);
    }

    #[test]
    fn windows_end_what_is_read() {
        let work = Work { kv_values: vec![(Some(512), 10.0), (None, 1.0)], ..Work::default() };
        assert_eq!(work.kv_values_at(100.0), 1100.0);
        assert_eq!(work.kv_values_at(1000.0), 6120.0);
    }

    #[test]
    fn nothing_measured_gives_no_limit() {
        let speeds = Speeds { read: 1e9, rates: ArithmeticRates::default() };
        let row = "pp512".parse().unwrap();
        assert_eq!(smollm2().limit(row, ActivationPrecision::Int8, 2.0, speeds), None);
    }
}
