//! What a model is, as data.
//!
//! A [`ModelSpec`] says everything the forward pass, the cost model and the planner need to know
//! about an architecture. It holds no tensors and reads no files: `checkpoint` fills it in from a
//! model file's metadata, `model` assembles it into a forward pass, and the planner counts its
//! parameters and bytes.
#![forbid(unsafe_code)]

mod count;
mod hardware;
mod model;
mod numeric;
mod shape;
mod validate;
mod weight_type;

pub use hardware::{ComputeType, HardwareSpec, LinkSpec, ParallelSpec, PeakFlops};
pub use model::{
    Activation, AttnSpec, FfnSpec, LayerSpec, ModelSpec, MoeSpec, RopeScaling, RopeSpec, SpecError,
};
pub use numeric::{ActivationPrecision, KvType, ParseSettingError};
pub use shape::ModelShape;
pub use weight_type::WeightType;
