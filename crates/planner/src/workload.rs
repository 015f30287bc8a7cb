//! Replications of a workload: the same kind of traffic several times, each apart from the others.
//!
//! A generator is seeded anew for each. A recorded trace is cut into stretches of equal numbers of
//! requests, each of which begins with an idle cluster (batch means: Law, "Simulation Modeling and
//! Analysis", chapter 9).

use std::{collections::HashSet, path::Path};

pub use dunlin_sim::config::WorkloadConfig;
use dunlin_sim::config::{ClusterConfig, ConfigFileError, SimConfig, SloConfig};
use dunlin_units::{SeedTree, Time};
use dunlin_workload::{Request, Wait};

/// The requests of each replication. Files that the workload names lie in `folder`.
///
/// # Errors
/// Files that cannot be read, values that make no sense, and a trace with too few rows.
pub fn replications(
    workload: &WorkloadConfig,
    folder: &Path,
    seed: u64,
    requests: usize,
    count: usize,
) -> Result<Vec<Vec<Request>>, ConfigFileError> {
    let of = |seed| SimConfig {
        name: String::new(),
        seed,
        threads: 1,
        workload: workload.clone(),
        cluster: ClusterConfig {
            placement: <_>::default(),
            report_interval_ms: 0.0,
            replicas: Vec::new(),
            transfer: <_>::default(),
            outages: Vec::new(),
            stragglers: Vec::new(),
            autoscale: Vec::new(),
        },
        slo: SloConfig::default(),
        site: None,
        recorded: None,
        folder: folder.into(),
    };
    let seeds = SeedTree::root(seed).child("replications");
    if workload.trace.is_none() {
        let one = |k: usize| {
            let requests = of(seeds.child_at(k as u64).seed()).requests()?.take(requests);
            requests.map(|r| r.map_err(ConfigFileError::Sim)).collect()
        };
        return (0..count).map(one).collect();
    }
    let rows = of(seed).requests()?.take(requests.saturating_mul(count));
    let rows: Vec<Request> =
        rows.map(|r| r.map_err(ConfigFileError::Sim)).collect::<Result<_, _>>()?;
    let each = (rows.len() / count).min(requests);
    if each < 10 {
        let problem = format!(
            "{} rows are too few for {count} replications; ten each are needed at least",
            rows.len()
        );
        return Err(ConfigFileError::value("workload.trace", problem));
    }
    Ok(rows.chunks_exact(each).take(count).map(stretch).collect())
}

/// A stretch of a trace on its own: it begins at zero, and what waits for a request before it does
/// not wait.
fn stretch(rows: &[Request]) -> Vec<Request> {
    let first = rows.first().map_or(Time(0), |r| r.arrival);
    let mut seen = HashSet::new();
    let one = |row: &Request| {
        let mut request = row.clone();
        request.arrival = Time(row.arrival.since(first));
        let waits = match row.wait {
            Wait::Nothing => false,
            Wait::PreviousTurn => {
                row.session.is_some_and(|s| seen.contains(&(s, row.turn.wrapping_sub(1))))
            }
            // Members of a group may lie before the stretch.
            Wait::Group { .. } => false,
        };
        if !waits {
            request.wait = Wait::Nothing;
        }
        if let Some(session) = row.session {
            seen.insert((session, row.turn));
        }
        request
    };
    rows.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> WorkloadConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn replications_of_a_generator_differ_and_repeat() {
        let text = "[[generate.clients]]\nname = 'a'\n\
                    arrival = { kind = 'open', rate = { kind = 'constant', per_s = 5.0 } }\n\
                    lengths = { kind = 'independent', prompt = { dist = { kind = 'exponential', mean = 50 } }, output = { dist = { kind = 'exponential', mean = 9 } } }\n";
        let run = || replications(&config(text), Path::new("."), 3, 40, 3).unwrap();
        let found = run();
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [40, 40, 40]);
        assert_ne!(found[0], found[1]);
        assert_eq!(found, run());
    }

    #[test]
    fn a_trace_is_cut_and_nobody_waits_for_what_is_not_there() {
        let turn = |session, turn, at| Request {
            session: Some(dunlin_units::SessionId(session)),
            turn,
            wait: if turn > 0 { Wait::PreviousTurn } else { Wait::Nothing },
            ..Request::new(Time(at), 1, 1)
        };
        let rows = [turn(1, 3, 100), turn(1, 4, 120), turn(2, 0, 150), turn(3, 9, 160)];
        let found = stretch(&rows);
        let waits: Vec<bool> = found.iter().map(|r| r.wait == Wait::PreviousTurn).collect();
        assert_eq!(waits, [false, true, false, false]);
        assert_eq!(found.iter().map(|r| r.arrival.0).collect::<Vec<_>>(), [0, 20, 50, 60]);
    }
}
