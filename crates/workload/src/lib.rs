//! Who asks for what, and when: requests as data, read from traces or generated.
//!
//! A [`Request`] is when it arrives, how long its prompt and answer are, whose it is, which turn of
//! which session, what it waits for, and which tokens it shares with others. Streams of them are
//! iterators in order of arrival; nothing holds a whole trace in memory unless asked.
//!
//! - [`trace`] reads recorded traces row by row and names every row that cannot be.
//! - [`WorkloadSpec`] describes a workload as data (a part of a planner's file) and
//!   [`WorkloadSpec::build`] generates it: clients, each with arrivals, lengths, prefixes and
//!   conversations of its own ([`ClientSpec`]), populations of them ([`PopulationSpec`]) and training
//!   rollouts with barriers ([`RolloutSpec`]), merged by a heap ([`Merge`]).
//! - [`fit_clients`] turns a recorded trace into such clients.
//! - [`stats`] says what a trace or a workload is like, in bounded memory.
//!
//! ```
//! use dunlin_workload::stats::{Summary, SummaryOptions};
//! use dunlin_workload::{ArrivalSpec, ClientSpec, CountSpec, DistSpec, LengthsSpec, WorkloadSpec};
//!
//! let lengths = LengthsSpec::Independent {
//!     prompt: CountSpec::new(DistSpec::LogNormal { median: 800.0, sigma: 1.0 }),
//!     output: CountSpec::new(DistSpec::Exponential { mean: 200.0 }),
//! };
//! let client = ClientSpec::new("api", ArrivalSpec::poisson(5.0), lengths);
//! let spec = WorkloadSpec { clients: vec![client], ..WorkloadSpec::default() };
//! let mut summary = Summary::new(&SummaryOptions::default());
//! spec.build(7)?.take(10_000).for_each(|request| summary.add(&request));
//! let report = summary.report();
//! assert!((4.7..5.3).contains(&report.rate_per_s.unwrap()));
//! # Ok::<(), dunlin_workload::SpecError>(())
//! ```
//!
//! # Units
//!
//! Moments and spans of requests are whole nanoseconds ([`dunlin_units::Time`], from the workload's
//! start); descriptions have seconds (`_s`) and rates per second (`per_s`). Lengths are tokens.
//!
//! # Requests that wait
//!
//! When a turn of a conversation, an agent's step after a tool, or a rollout after a barrier is ready
//! depends on when others finish, which only the server knows. Such a request says what it waits for
//! ([`Wait`]) and how long after that it is ready; its arrival is the earliest moment possible, and
//! places it in the stream. Whoever serves reads on as far as its own time has come, and holds back
//! what waits.
//!
//! # The same on every machine
//!
//! All randomness comes from [`dunlin_units::SeedTree`]: each client, session and prefix has seeds
//! of its own, derived from names and numbers, so that adding a client, raising a rate or lengthening
//! the answers leaves everything else as it was. Logarithms and exponentials are `libm`'s, which are
//! the same code everywhere. A test holds ten thousand rows of a workload that uses everything to one
//! digest.
//!
//! # Sources
//!
//! | what | where from |
//! |---|---|
//! | composition per client, gamma and Weibull gaps, fits | Xiang and others, "ServeGen: workload characterization and generation of large language model serving in production", NSDI 2026 |
//! | rates that change under renewal gaps | Gerhardt and Nelson, INFORMS Journal on Computing 21, 2009 |
//! | Markov-modulated Poisson process, its dispersion | Heffes and Lucantoni, IEEE JSAC 4, 1986 |
//! | gamma variates | Marsaglia and Tsang, ACM TOMS 26, 2000 |
//! | normal quantile | Wichura, algorithm AS 241, Applied Statistics 37, 1988 |
//! | tables of weights | Walker 1977; Vose, IEEE TSE 17, 1991 |
//! | empirical quantiles | Hyndman and Fan (type 7), The American Statistician 50, 1996 |
//! | chains of prefix blocks | Qin and others, "Mooncake", FAST 2025 |
//! | sampled sharing | Waldspurger and others, "SHARDS", FAST 2015 |
//!
//! Not here: files and clocks (callers open and tell the time), texts (prompts are token ids that
//! are equal where the trace says so), and who serves the requests.
#![forbid(unsafe_code)]
#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    clippy::iter_over_hash_type
)]

mod arrival;
mod client;
mod compose;
mod dist;
mod error;
mod fit;
mod length;
mod math;
mod merge;
mod population;
mod prefix;
mod request;
mod rollout;
mod session;
pub mod stats;
pub mod trace;

pub use arrival::{ArrivalSpec, Arrivals, GapSpec, MarkovState, RateSpec, Shape};
pub use client::{Client, ClientSpec};
pub use compose::{Workload, WorkloadSpec};
pub use dist::{Dist, DistSpec, Part};
pub use error::SpecError;
pub use fit::fit_clients;
pub use length::{Count, CountSpec, LengthStreams, Lengths, LengthsSpec, MAX_TOKENS};
pub use merge::Merge;
pub use population::PopulationSpec;
pub use prefix::{PrefixPoolSpec, PrefixUse};
pub use request::{Answer, ClientId, Content, GroupId, Piece, Request, Wait, stream_token};
pub use rollout::{Rollout, RolloutSpec};
pub use session::{Context, ConversationSpec, Pacing};
