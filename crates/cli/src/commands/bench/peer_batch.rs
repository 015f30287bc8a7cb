//! The peers on the workloads of `bench batch`, at the batch size that suits each best.
//!
//! A peer has no scheduler here: requests go through it in static batches, whose prompts are packed
//! into calls as large as it takes. Neither sampling nor scheduling is in its times.

use serde::Serialize;

use super::peers::{Attention, Peer, Requests};
use crate::note;

/// A batch size that is so much slower than the best is the last that is tried.
const GIVE_UP: f64 = 1.25;

/// A peer at one batch size.
#[derive(Debug, Clone, Serialize)]
pub struct PeerRun {
    /// Requests at a time.
    pub batch: usize,
    /// How attention was computed.
    pub attention: Attention,
    /// Seconds for all requests; where they are alike and independent, one group's times the groups.
    pub seconds: f64,
}

/// A peer's best for each workload, and all that was tried.
#[derive(Debug, Default, Serialize)]
pub struct PeerBatches {
    /// Requests with prompts of their own.
    pub offline: Vec<PeerRun>,
    /// Requests with a common prefix, computed once.
    pub shared_prefix: Vec<PeerRun>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

impl PeerBatches {
    /// The least seconds of some runs.
    pub fn best(runs: &[PeerRun]) -> Option<&PeerRun> {
        runs.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// Measures a peer on both workloads.
///
/// # Errors
/// A peer that cannot be started.
pub fn measure(
    peer: &mut Peer,
    offline: Requests,
    shared: Requests,
) -> anyhow::Result<PeerBatches> {
    let mut found = PeerBatches::default();
    let sizes = [4, 8, 16, 32, 64];
    found.offline = ascend(peer, offline, &sizes, &mut found.failures)?;
    found.shared_prefix = ascend(peer, shared, &sizes[2..], &mut found.failures)?;
    Ok(found)
}

/// Batches of growing size, until they no longer help.
fn ascend(
    peer: &mut Peer,
    load: Requests,
    sizes: &[usize],
    failures: &mut Vec<String>,
) -> anyhow::Result<Vec<PeerRun>> {
    let mut runs: Vec<PeerRun> = Vec::new();
    let mut sizes: Vec<usize> = sizes.iter().map(|&n| n.min(load.requests)).collect();
    sizes.dedup();
    for batch in sizes {
        // Groups with a prefix of their own to compute cannot stand for all.
        let group = if load.shared == 0 { batch } else { load.requests };
        let part = Requests { requests: group, ..load };
        let mut best = f64::INFINITY;
        for attention in Attention::ALL {
            note!("{}: {} requests, {batch} at a time", peer.package().title, load.requests);
            match peer.workload(&part, batch, attention)? {
                Ok(seconds) => {
                    let seconds = seconds * load.requests as f64 / group as f64;
                    best = best.min(seconds);
                    runs.push(PeerRun { batch, attention, seconds });
                }
                Err(problem) => failures.push(format!(
                    "{} requests, {batch} at a time, {} attention: {problem}",
                    load.requests,
                    attention.name()
                )),
            }
        }
        let so_far = PeerBatches::best(&runs).map_or(f64::INFINITY, |run| run.seconds);
        if best > GIVE_UP * so_far {
            break;
        }
    }
    Ok(runs)
}
