//! What a step costs.
//!
//! [`StepCost::price`] answers with the time and the energy of one step, from the step's whole
//! shape ([`StepShape`]): each sequence's new tokens and KV length, never means over the batch. The
//! simulator asks it once a step in place of a forward pass, so answers are cheap: one pass over the
//! sequences, no allocation, no hashing.
//!
//! A cost model is data ([`CostFile`], a `cost.toml`); one kind, one file: [`LinearCost`] with closed
//! forms, [`FittedCost`] from recorded steps, [`Operators`] from measured kernels, [`Roofline`] from
//! data sheets, and composites of them ([`CostModel`]). [`Link`] and [`Collective`] price what goes
//! between devices, [`einsum`] counts a model's operations and bytes, [`PowerSpec`] says what devices
//! draw.
//!
//! All of it is plain arithmetic on data: no clock, no files, no randomness. A question beyond what
//! a model was made from is answered and marked ([`StepPrice::extrapolated`]).
//!
//! Not here: what is in a step (the scheduler decides), and how much KV fits (`kvcache` counts).
#![forbid(unsafe_code)]
#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    clippy::iter_over_hash_type
)]

mod collective;
pub mod einsum;
mod energy;
mod energy_form;
mod error;
mod experts;
mod fitted;
mod footprint;
mod grid;
mod linear;
mod model;
mod nnls;
mod operators;
mod oversubscription;
mod places;
mod roofline;
mod shape;
mod shares;
mod skew;

pub use collective::{Collective, Link};
pub use energy::{AtClock, Busy, PowerSpec, Work};
pub use energy_form::{EnergyForm, EnergyPhase, EnergyPoint};
pub use error::CostError;
pub use experts::expected_distinct;
pub use fitted::{FittedCost, StepSample};
pub use footprint::{Footprint, GridIntensity, Site};
pub use linear::LinearCost;
pub use model::{
    COST_VERSION, CostFile, CostModel, CostSpec, GraphsSpec, RooflineSpec, SpeculativeSpec, SumSpec,
};
pub use nnls::nnls;
pub use operators::{
    AttentionTables, DecodeTable, ExpertCurve, ExpertTables, MAX_RANKS, MixedTable, Operator,
    OperatorGroup, OperatorProfile, Operators, PrefillTable, StepCollective,
};
pub use oversubscription::{PowerRow, RowReport};
pub use places::{Place, find_place, places};
pub use roofline::{MemoryError, Parts, Roofline, ValueBytes};
pub use shape::{ExpertLoad, Phase, SeqShape, StepShape, Totals};
pub use shares::shares;
pub use skew::SkewTable;

use serde::{Deserialize, Serialize};

/// A model of what steps cost.
pub trait StepCost {
    /// The price of one step of this shape on one replica. A step without sequences costs nothing.
    fn price(&self, shape: &StepShape) -> StepPrice;

    /// Nanoseconds that every step with at least one token takes at least: what lets a simulator know
    /// how long nothing can end. Zero where the model cannot promise more.
    fn least_ns(&self) -> u64 {
        0
    }
}

impl<T: StepCost + ?Sized> StepCost for &T {
    fn price(&self, shape: &StepShape) -> StepPrice {
        (**self).price(shape)
    }
    fn least_ns(&self) -> u64 {
        (**self).least_ns()
    }
}

impl<T: StepCost + ?Sized> StepCost for Box<T> {
    fn price(&self, shape: &StepShape) -> StepPrice {
        (**self).price(shape)
    }
    fn least_ns(&self) -> u64 {
        (**self).least_ns()
    }
}

/// What one step costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StepPrice {
    /// From the start of the step to its tokens, in nanoseconds.
    pub time_ns: u64,
    /// What the replica's devices draw during the step, in microjoules; 0 where the model has no
    /// energy.
    pub energy_uj: u64,
    /// Whether the shape lies outside what the model was made from.
    pub extrapolated: bool,
    /// What most of the time goes to.
    pub bound: Bound,
}

/// The resource that most of a step's time goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Arithmetic.
    Compute,
    /// Reading and writing memory.
    Memory,
    /// Traffic between devices.
    Link,
    /// What the step costs whatever is in it: launches, the host's work.
    Overhead,
    /// The model cannot tell.
    #[default]
    Unknown,
}
