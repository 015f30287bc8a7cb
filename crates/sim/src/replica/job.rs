//! What goes between replicas and whoever runs them: requests, and news.

use dunlin_costmodel::StepShape;
use dunlin_scheduler::Rejection;
use dunlin_units::Time;
use dunlin_workload::Request;

use crate::{
    events::LogEvent,
    metrics::{Metrics, Served, Slo},
};

/// A request on its way through the cluster.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// Its number, by which everything names it.
    pub number: u64,
    /// What it asks for.
    pub request: Request,
    /// When it was ready.
    pub ready: Time,
    /// When it came to where it is now.
    pub came: Time,
    /// When its first token came.
    pub first_token: Option<Time>,
    /// When its latest token came.
    pub last_token: Time,
    /// Tokens of its answer that are there already.
    pub done_tokens: u32,
    /// Microjoules of steps that it has had.
    pub energy_uj: u64,
    /// Nanoseconds in queues before it came here.
    pub queue_ns: u64,
    /// What is to be done of it here.
    pub stage: Stage,
}

/// A part of a request that one replica does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// All of it.
    Whole,
    /// The prompt and one token; the KV is kept until it is fetched.
    Prefill,
    /// The rest: the prompt's KV is there.
    Decode,
}

/// Something that others wait to hear.
#[derive(Debug)]
pub(crate) struct Note {
    pub at: Time,
    pub replica: u32,
    pub sequence: u64,
    pub kind: NoteKind,
}

/// What others wait to hear.
#[derive(Debug)]
pub(crate) enum NoteKind {
    /// A request is over.
    Ended(Box<Job>),
    /// A prompt's first step begins.
    Begun(u64),
    /// A prompt is done here, and its request goes on elsewhere.
    Prefilled(Box<Job>),
    /// A request that was wanted back is out of its step.
    Withdrawn(Box<Job>),
}

/// What replicas of one thread write to.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub metrics: Metrics,
    pub notes: Vec<Note>,
    /// Whether anyone wants to know when prompts begin.
    pub wants_begun: bool,
    pub log: Option<Vec<LogEvent>>,
    pub slo: Slo,
    /// The first promise that a core broke, where cores are checked.
    pub violation: Option<String>,
    /// Memory for a prompt, and for a step's shape, used again and again.
    pub prompt: Vec<u32>,
    pub shape: StepShape,
    /// The first rejection, for the report.
    pub rejection: Option<(u64, Rejection)>,
}

/// How a request that is over went.
pub(crate) fn served(job: &Job, now: Time) -> Served {
    Served {
        ready: job.ready,
        first_token: job.first_token,
        last_token: job.last_token,
        end: now,
        queue_ns: job.queue_ns,
        output_tokens: job.done_tokens,
        deadline_ns: job.request.deadline_ns.map(Into::into),
    }
}
