//! What a device and the machine around it can do, as data.

use serde::{Deserialize, Serialize};

use crate::SpecError;

/// A link between devices, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// From the start of a message to its first byte, in nanoseconds.
    pub latency_ns: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
}

/// The number format that products are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeType {
    /// 32-bit float.
    F32,
    /// 16-bit float, either kind.
    #[default]
    Bf16,
    /// 8-bit float.
    Fp8,
    /// 8-bit integer.
    Int8,
    /// 4-bit float.
    Fp4,
}

/// Dense multiply-adds a second, counted as two operations each; 0 where there is no such unit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PeakFlops {
    /// In 32-bit float.
    pub f32: f64,
    /// In 16-bit float.
    pub bf16: f64,
    /// In 8-bit float.
    pub fp8: f64,
    /// In 8-bit integer.
    pub int8: f64,
    /// In 4-bit float.
    pub fp4: f64,
}

impl PeakFlops {
    /// Operations a second in this format.
    pub fn of(&self, compute: ComputeType) -> f64 {
        match compute {
            ComputeType::F32 => self.f32,
            ComputeType::Bf16 => self.bf16,
            ComputeType::Fp8 => self.fp8,
            ComputeType::Int8 => self.int8,
            ComputeType::Fp4 => self.fp4,
        }
    }
}

/// A device (a GPU, or a CPU with its memory) and its share of the machine around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareSpec {
    /// What it is called.
    pub name: String,
    /// Peak arithmetic.
    pub flops: PeakFlops,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes a second from that memory.
    pub memory_bytes_per_s: f64,
    /// Of peak arithmetic, what large products reach.
    #[serde(default = "one")]
    pub flops_efficiency: f64,
    /// Of memory bandwidth, what long reads reach.
    #[serde(default = "one")]
    pub memory_efficiency: f64,
    /// Nanoseconds that each layer of a step costs beside arithmetic and memory.
    #[serde(default)]
    pub layer_overhead_ns: f64,
    /// Nanoseconds that each step costs beside its layers.
    #[serde(default)]
    pub step_overhead_ns: f64,
    /// Devices that share the fast link.
    #[serde(default = "one_device")]
    pub devices_per_node: u32,
    /// Between devices of one node.
    #[serde(default)]
    pub link: Option<LinkSpec>,
    /// Between nodes.
    #[serde(default)]
    pub network: Option<LinkSpec>,
    /// What the device draws when it does nothing.
    #[serde(default)]
    pub idle_watts: f64,
    /// The most it may draw.
    #[serde(default)]
    pub peak_watts: f64,
    /// What the machine around it draws, for each device.
    #[serde(default)]
    pub node_watts: f64,
    /// Money for an hour.
    #[serde(default)]
    pub price_per_hour: f64,
    /// Grams of CO2-equivalent of making it, and its share of the machine.
    #[serde(default)]
    pub embodied_gco2: f64,
    /// Hours of use over which that is spread.
    #[serde(default = "four_years")]
    pub lifetime_hours: f64,
}

const fn one() -> f64 {
    1.0
}

const fn one_device() -> u32 {
    1
}

const fn four_years() -> f64 {
    4.0 * 8766.0
}

impl HardwareSpec {
    /// Checks every value.
    ///
    /// # Errors
    /// The first field that is wrong, with what would be right.
    pub fn validate(&self) -> Result<(), SpecError> {
        above_zero("memory_bytes", self.memory_bytes as f64)?;
        above_zero("memory_bytes_per_s", self.memory_bytes_per_s)?;
        above_zero("lifetime_hours", self.lifetime_hours)?;
        above_zero("devices_per_node", self.devices_per_node.into())?;
        let f = &self.flops;
        let flops = [("f32", f.f32), ("bf16", f.bf16), ("fp8", f.fp8), ("int8", f.int8)];
        for (name, value) in flops.into_iter().chain([("fp4", f.fp4)]) {
            not_negative(&format!("flops.{name}"), value)?;
        }
        for (name, value) in [
            ("layer_overhead_ns", self.layer_overhead_ns),
            ("step_overhead_ns", self.step_overhead_ns),
            ("idle_watts", self.idle_watts),
            ("peak_watts", self.peak_watts),
            ("node_watts", self.node_watts),
            ("price_per_hour", self.price_per_hour),
            ("embodied_gco2", self.embodied_gco2),
        ] {
            not_negative(name, value)?;
        }
        for (name, value) in [
            ("flops_efficiency", self.flops_efficiency),
            ("memory_efficiency", self.memory_efficiency),
        ] {
            above_zero(name, value)?;
            check(name, value <= 1.0, || format!("{value} is a share, so at most 1"))?;
        }
        check("peak_watts", self.peak_watts >= self.idle_watts, || {
            format!("{} is below idle_watts, {}", self.peak_watts, self.idle_watts)
        })?;
        for (name, link) in [("link", &self.link), ("network", &self.network)] {
            if let Some(link) = link {
                not_negative(&format!("{name}.latency_ns"), link.latency_ns)?;
                above_zero(&format!("{name}.bytes_per_s"), link.bytes_per_s)?;
            }
        }
        Ok(())
    }
}

/// How a model is spread over devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParallelSpec {
    /// Devices that each layer's matrices are cut over.
    pub tensor: u32,
    /// Groups of layers, one after the other.
    pub pipeline: u32,
    /// Of the devices of a replica (tensor times data), those that experts are spread over; 1 cuts
    /// experts as other matrices are.
    pub expert: u32,
    /// Ranks of one replica that have sequences of their own and step together.
    pub data: u32,
}

impl Default for ParallelSpec {
    fn default() -> Self {
        Self { tensor: 1, pipeline: 1, expert: 1, data: 1 }
    }
}

impl ParallelSpec {
    /// Devices of one replica.
    pub fn devices(&self) -> u32 {
        self.tensor * self.pipeline * self.data
    }

    /// Checks the degrees against each other and the model's sizes.
    ///
    /// # Errors
    /// The degree that does not fit, and what would.
    pub fn validate(&self, model: &crate::ModelSpec) -> Result<(), SpecError> {
        for (name, degree) in [
            ("tensor", self.tensor),
            ("pipeline", self.pipeline),
            ("expert", self.expert),
            ("data", self.data),
        ] {
            check(name, (1..=4096).contains(&degree), || {
                format!("{degree} must be from 1 to 4096")
            })?;
        }
        let layers = model.layers.len();
        check("pipeline", self.pipeline as usize <= layers, || {
            format!("{} stages are more than the {layers} layers", self.pipeline)
        })?;
        for layer in &model.layers {
            let heads = layer.attn.n_heads;
            check("tensor", heads.is_multiple_of(self.tensor as usize), || {
                format!("{heads} heads cannot be cut into {} equal parts", self.tensor)
            })?;
        }
        let ranks = self.tensor * self.data;
        check("expert", self.expert == 1 || self.expert == ranks, || {
            format!("{} must be 1 or all {ranks} ranks (tensor times data)", self.expert)
        })
    }
}

fn check(field: &str, fine: bool, problem: impl FnOnce() -> String) -> Result<(), SpecError> {
    if fine { Ok(()) } else { Err(SpecError { field: field.into(), problem: problem() }) }
}

fn above_zero(field: &str, value: f64) -> Result<(), SpecError> {
    check(field, value.is_finite() && value > 0.0, || {
        format!("{value} must be finite and above zero")
    })
}

fn not_negative(field: &str, value: f64) -> Result<(), SpecError> {
    check(field, value.is_finite() && value >= 0.0, || {
        format!("{value} must be finite and not negative")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> HardwareSpec {
        HardwareSpec {
            name: "x".into(),
            flops: PeakFlops { bf16: 1e14, ..PeakFlops::default() },
            memory_bytes: 1 << 34,
            memory_bytes_per_s: 1e12,
            flops_efficiency: 0.8,
            memory_efficiency: 0.9,
            layer_overhead_ns: 0.0,
            step_overhead_ns: 0.0,
            devices_per_node: 8,
            link: Some(LinkSpec { latency_ns: 1e3, bytes_per_s: 1e11 }),
            network: None,
            idle_watts: 50.0,
            peak_watts: 500.0,
            node_watts: 100.0,
            price_per_hour: 2.0,
            embodied_gco2: 1e5,
            lifetime_hours: 35_064.0,
        }
    }

    #[test]
    fn each_wrong_value_is_named() {
        device().validate().unwrap();
        type Change = fn(&mut HardwareSpec);
        let cases: [(&str, Change); 9] = [
            ("memory_bytes", |d| d.memory_bytes = 0),
            ("memory_bytes_per_s", |d| d.memory_bytes_per_s = f64::NAN),
            ("flops.bf16", |d| d.flops.bf16 = -1.0),
            ("flops_efficiency", |d| d.flops_efficiency = 1.5),
            ("memory_efficiency", |d| d.memory_efficiency = 0.0),
            ("peak_watts", |d| d.peak_watts = 10.0),
            ("link.bytes_per_s", |d| {
                d.link = Some(LinkSpec { latency_ns: 0.0, bytes_per_s: 0.0 });
            }),
            ("price_per_hour", |d| d.price_per_hour = f64::INFINITY),
            ("lifetime_hours", |d| d.lifetime_hours = 0.0),
        ];
        for (field, change) in cases {
            let mut bad = device();
            change(&mut bad);
            assert_eq!(bad.validate().expect_err(field).field, field);
        }
    }
}
