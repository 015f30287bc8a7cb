//! `dunlin plan`: the search for a configuration that keeps the goals.
//!
//! [`PlanConfig`] is the question (TOML), [`plan`] answers with a [`Plan`]: the front of those
//! configurations that keep the goals, each with confidence intervals and what binds it, the smallest
//! cluster among them, and how to launch it; or, where none keeps the goals, which goal breaks and who
//! comes nearest.

pub mod advise;
mod answer;
mod candidate;
mod config;
mod error;
mod front;
pub mod geo;
mod outcome;
mod output;
pub mod prune;
mod search;
mod site;

pub use answer::{Fewest, Plan, Point, Refused, Spread, plan};
pub use candidate::{Candidate, CostFiles, Described, DescribedGroup, Engine, Group, Space};
pub use config::{
    CountRange, Counts, Goals, HardwareChoice, MAX_CANDIDATES, ModelConfig, Objective, PlanConfig,
    RegionConfig, SearchConfig,
};
pub use error::PlanError;
pub use front::{dominates, front};
pub use outcome::{Binding, GoalState, Outcome};
pub use output::{csv, html};
pub use search::{Progress, Searched, Tried, Watch, search};
pub use site::{Footprint, SiteConfig};
