//! Prefixes that requests of different sessions share: system prompts, few-shot templates.

use std::sync::Arc;

use dunlin_units::{SeedTree, Stream};
use serde::{Deserialize, Serialize};

use crate::dist::Alias;
use crate::error::{SpecError, not_negative};
use crate::length::CountSpec;
use crate::math;
use crate::request::Piece;

/// A number of prefixes of which some are more popular than others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixPoolSpec {
    /// What clients call it.
    pub name: String,
    /// How many prefixes it has, at most 2^20.
    pub prefixes: u32,
    /// Prefix `k` (from 1) is chosen with a weight of `k^-exponent` (Zipf); 0 is uniform.
    pub exponent: f64,
    /// How long they are; each has one length for good.
    pub tokens: CountSpec,
}

/// A pool in the place that a client gives it: after the prefixes named before it, before the
/// prompt's own tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixUse {
    /// Its name.
    pub pool: String,
    /// The share of sessions that have a prefix of it.
    #[serde(default = "always")]
    pub chance: f64,
}

const fn always() -> f64 {
    1.0
}

/// A pool that prefixes are drawn from.
#[derive(Debug, Clone)]
pub(crate) struct PrefixPool {
    popularity: Alias,
    pieces: Arc<[Piece]>,
}

impl PrefixPool {
    /// The pool of `spec`. `seeds` is the workload's: pools of one name are the same for everyone.
    pub(crate) fn new(spec: &PrefixPoolSpec, seeds: SeedTree) -> Result<Self, SpecError> {
        let exponent = not_negative("exponent", spec.exponent)?;
        let weights: Vec<f64> =
            (1..=spec.prefixes).map(|k| math::pow(f64::from(k), -exponent)).collect();
        let popularity = Alias::new(&weights).map_err(|e| SpecError::new("prefixes", e.problem))?;
        let tokens = spec.tokens.build().map_err(|e| e.within("tokens"))?;
        let seeds = seeds.child("prefix pool").child(&spec.name);
        let piece = |k| {
            let own = seeds.child_at(k);
            Piece { stream: own.seed(), tokens: tokens.draw(&mut own.child("tokens").stream()) }
        };
        Ok(Self { popularity, pieces: (0..u64::from(spec.prefixes)).map(piece).collect() })
    }
}

/// The prefixes that a client's sessions begin with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prefixes(Vec<(PrefixPool, f64)>);

impl Prefixes {
    /// Of the pools that `uses` name among `pools`.
    pub(crate) fn new(
        uses: &[PrefixUse],
        pools: &[(String, PrefixPool)],
    ) -> Result<Self, SpecError> {
        let find = |wanted: &PrefixUse| {
            let pool = pools.iter().find(|(name, _)| *name == wanted.pool);
            let (_, pool) = pool
                .ok_or_else(|| SpecError::new("prefixes", format!("no pool `{}`", wanted.pool)))?;
            if !(0.0..=1.0).contains(&wanted.chance) {
                let problem = format!("{} should be from 0 to 1", wanted.chance);
                return Err(SpecError::new("prefixes.chance", problem));
            }
            Ok((pool.clone(), wanted.chance))
        };
        uses.iter().map(find).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Chooses a session's prefixes and appends them. Returns their tokens.
    pub(crate) fn draw(&self, random: &mut Stream, into: &mut Vec<Piece>) -> u32 {
        let mut tokens = 0u32;
        for (pool, chance) in &self.0 {
            // Both draws whatever comes of the first: the next pool's choice stays the same.
            let (has, k) = (random.next_unit() < *chance, pool.popularity.draw(random));
            if has {
                let piece = pool.pieces[k as usize];
                tokens = tokens.saturating_add(piece.tokens);
                into.push(piece);
            }
        }
        tokens
    }
}
