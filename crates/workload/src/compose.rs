//! A whole workload: clients, populations of clients and rollouts, merged into one ordered stream.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use dunlin_units::SeedTree;
use serde::{Deserialize, Serialize};

use crate::client::{Client, ClientSpec};
use crate::error::SpecError;
use crate::merge::Merge;
use crate::population::PopulationSpec;
use crate::prefix::{PrefixPool, PrefixPoolSpec};
use crate::request::{ClientId, Request};
use crate::rollout::{Rollout, RolloutSpec};

/// A workload, described.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkloadSpec {
    /// Prefixes that clients share.
    pub prefix_pools: Vec<PrefixPoolSpec>,
    /// Clients, one by one. They are numbered first, in this order.
    pub clients: Vec<ClientSpec>,
    /// Clients by the number. They are numbered next.
    pub populations: Vec<PopulationSpec>,
    /// Training runs. They are numbered last.
    pub rollouts: Vec<RolloutSpec>,
}

/// A workload's requests in order of arrival. It may have no end, where no client has a limit.
#[derive(Debug)]
pub struct Workload(Merge<Source>);

#[derive(Debug)]
enum Source {
    Client(Box<Client>),
    Rollout(Box<Rollout>),
}

impl Iterator for Source {
    type Item = Request;

    #[inline]
    fn next(&mut self) -> Option<Request> {
        match self {
            Self::Client(client) => client.next(),
            Self::Rollout(rollout) => rollout.next(),
        }
    }
}

impl Iterator for Workload {
    type Item = Request;

    #[inline]
    fn next(&mut self) -> Option<Request> {
        self.0.next()
    }
}

impl WorkloadSpec {
    /// The workload that `seed` gives: the same requests on every machine. Each client draws from a
    /// seed of its own, derived from its name, so adding a client changes nobody else's requests.
    ///
    /// # Errors
    /// A parameter outside its range, a name used twice or a pool that does not exist.
    pub fn build(&self, seed: u64) -> Result<Workload, SpecError> {
        let seeds = SeedTree::root(seed).child("workload");
        let mut pools: Vec<(String, PrefixPool)> = Vec::with_capacity(self.prefix_pools.len());
        for spec in &self.prefix_pools {
            let at = format!("prefix_pools.{}", spec.name);
            if pools.iter().any(|(name, _)| *name == spec.name) {
                return Err(SpecError::new(at, "two pools have this name"));
            }
            let pool = PrefixPool::new(spec, seeds).map_err(|e| e.within(&at))?;
            pools.push((spec.name.clone(), pool));
        }
        let mut names = BTreeSet::new();
        let mut sources = Vec::new();
        let mut client = |spec: &ClientSpec, at: &str, sources: &mut Vec<Source>| {
            if !names.insert(spec.name.clone()) {
                return Err(SpecError::new(at, "another client has this name"));
            }
            let id = ClientId(sources.len() as u32);
            let client = Client::new(spec, id, &pools, seeds).map_err(|e| e.within(at))?;
            sources.push(Source::Client(Box::new(client)));
            Ok(())
        };
        for spec in &self.clients {
            client(spec, &format!("clients.{}", spec.name), &mut sources)?;
        }
        for spec in &self.populations {
            let at = format!("populations.{}", spec.name);
            for member in spec.expand(seeds).map_err(|e| e.within(&at))? {
                client(&member, &at, &mut sources)?;
            }
        }
        let mut group = NonZeroU32::MIN;
        for spec in &self.rollouts {
            let at = format!("rollouts.{}", spec.name);
            if !names.insert(spec.name.clone()) {
                return Err(SpecError::new(at, "another client has this name"));
            }
            let id = ClientId(sources.len() as u32);
            let rollout =
                Rollout::new(spec, id, group, &pools, seeds).map_err(|e| e.within(&at))?;
            group = group
                .checked_add(spec.steps)
                .ok_or_else(|| SpecError::new(&at, "more than 2^32 steps in all"))?;
            sources.push(Source::Rollout(Box::new(rollout)));
        }
        Ok(Workload(Merge::new(sources)))
    }
}
