//! The same events to a fresh core: its effects must be those on record.

use std::{
    io,
    path::{Path, PathBuf},
};

use dunlin_scheduler::{ConfigError, Core, Effects, Event};

use super::{Calls, Header};

/// What a replay found.
#[derive(Debug)]
pub struct ReplayReport {
    /// How the record begins.
    pub header: Header,
    /// Calls replayed, the one that differs included.
    pub calls: u64,
    /// Steps planned in them.
    pub steps: u64,
    /// Events in them.
    pub events: u64,
    /// Requests that were submitted in them.
    pub requests: u64,
    /// Requests that ended in them.
    pub finished: u64,
    /// Sequences that were put back to wait.
    pub preemptions: u64,
    /// The record ends within a call, as it does when the process was killed.
    pub truncated: bool,
    /// The first call whose effects differ.
    pub difference: Option<Difference>,
}

/// Two answers to one call.
#[derive(Debug)]
pub struct Difference {
    /// Which call, from 0.
    pub call: u64,
    /// Where in the effects, and both sides from there, in readable form.
    pub text: String,
}

/// A record that cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no record, or one of another version.
    #[error("{path} is no record of a run that this version of dunlin reads")]
    NotARecord {
        /// The file.
        path: PathBuf,
    },
    /// A call is not as it was written.
    #[error("{path} is damaged at call {call}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which, from 0.
        call: u64,
    },
    /// The core refuses the settings.
    #[error("the record's settings cannot be used")]
    Config(#[from] ConfigError),
}

/// Replays a record up to its end or to the first difference.
///
/// # Errors
/// Files that are no records, or damaged ones. One that was cut short is replayed as far as it goes.
pub fn replay(path: &Path) -> Result<ReplayReport, ReplayError> {
    let mut calls = Calls::open(path)?;
    let header = calls.header().clone();
    let mut core = Core::new(header.config.clone())?;
    for &(tenant, blocks) in &header.budgets {
        core.set_budget(tenant, usize::try_from(blocks).ok());
    }
    let mut report = ReplayReport {
        header,
        calls: 0,
        steps: 0,
        events: 0,
        requests: 0,
        finished: 0,
        preemptions: 0,
        truncated: false,
        difference: None,
    };
    let (mut effects, mut answer) = (Effects::default(), Vec::new());
    while let Some((now, mut events, recorded)) = calls.next_raw()? {
        report.count(&events);
        core.advance(now, &mut events, &mut effects);
        answer.clear();
        answer = postcard::to_extend(&effects, answer).expect("effects can be written");
        report.calls += 1;
        report.steps += u64::from(effects.plan.is_some());
        report.finished += effects.finished.len() as u64;
        report.preemptions += effects.finished.iter().map(|f| f.bill.preemptions).sum::<u64>();
        if answer != recorded {
            let text = first_difference(recorded, &effects);
            report.difference = Some(Difference { call: report.calls - 1, text });
            return Ok(report);
        }
    }
    report.truncated = calls.is_truncated();
    Ok(report)
}

impl ReplayReport {
    fn count(&mut self, events: &[Event]) {
        self.events += events.len() as u64;
        let submitted = events.iter().filter(|e| matches!(e, Event::Submit(_)));
        self.requests += submitted.count() as u64;
    }
}

/// The first line at which two answers, written out, part.
fn first_difference(recorded: &[u8], answer: &Effects) -> String {
    let Ok(recorded) = postcard::from_bytes::<Effects>(recorded) else {
        return "the recorded effects cannot be read".into();
    };
    let (recorded, answer) = (format!("{recorded:#?}"), format!("{answer:#?}"));
    let (mut a, mut b) = (recorded.lines(), answer.lines());
    let mut before: Vec<&str> = Vec::new();
    loop {
        match (a.next(), b.next()) {
            (Some(left), Some(right)) if left == right => before.push(left),
            (None, None) => return "they read alike but are written differently".into(),
            (left, right) => {
                let context: String =
                    before.iter().rev().take(12).rev().map(|line| format!("  {line}\n")).collect();
                return context + &side("-", left, a) + &side("+", right, b);
            }
        }
    }
}

/// A line and some that follow it, marked.
fn side<'a>(mark: &str, first: Option<&'a str>, rest: std::str::Lines<'a>) -> String {
    first.into_iter().chain(rest).take(6).map(|line| format!("{mark} {line}\n")).collect()
}
