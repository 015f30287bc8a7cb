//! Where requests go when there are several places: hour by hour, over users' regions and sites.
//!
//! What a token costs at a site in an hour (carbon, water, money, waiting for the network) is a
//! number, and sites have capacities, so the best shares of an hour are a transportation problem; its
//! optimum is found exactly, by augmenting along shortest paths (Ahuja, Magnanti and Orlin, "Network
//! Flows", chapter 9). The simple policies that it is compared with are those of its literature:
//! the nearest site, equal shares, and the cleanest site.

use serde::{Deserialize, Serialize};

use super::{PlanError, site::SiteConfig};

/// A site as it serves tokens.
#[derive(Debug, Clone)]
pub struct ServingSite {
    /// The place.
    pub site: SiteConfig,
    /// Output tokens an hour at most.
    pub tokens_per_hour: f64,
    /// Joules of machines a token.
    pub joules_per_token: f64,
    /// Milliseconds from each region and back.
    pub network_ms: Vec<f64>,
}

/// What weighs how much: a unit of each is worth so much.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Weights {
    /// Of a gram of CO2-equivalent.
    pub gco2: f64,
    /// Of a litre.
    pub litre: f64,
    /// Of a unit of money.
    pub price: f64,
    /// Of a second of network for a token.
    pub network_s: f64,
}

impl Weights {
    /// Checks every weight.
    pub(super) fn validate(&self) -> Result<(), PlanError> {
        let all = [
            ("gco2", self.gco2),
            ("litre", self.litre),
            ("price", self.price),
            ("network_s", self.network_s),
        ];
        match all.into_iter().find(|(_, v)| !(v.is_finite() && *v >= 0.0)) {
            Some((name, bad)) => {
                Err(PlanError::value(name, format!("{bad} should be a number from 0 on")))
            }
            None => Ok(()),
        }
    }
}

/// How shares are chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// The site with the quickest network that has room.
    Nearest,
    /// The same share of what is left at each site.
    Even,
    /// The site with the cleanest electricity that has room.
    Cleanest,
    /// The least by weight.
    Best(Weights),
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Totals {
    /// Tokens served.
    pub tokens: f64,
    /// Tokens that no site had room for.
    pub unserved: f64,
    /// Joules at the meters.
    pub joules: f64,
    /// Grams of CO2-equivalent of electricity.
    pub gco2: f64,
    /// Litres.
    pub litres: f64,
    /// Money for electricity.
    pub price: f64,
    /// Milliseconds of network, on average over tokens.
    pub network_ms: f64,
}

impl Totals {
    /// All of it by weight.
    pub fn weighed(&self, w: &Weights) -> f64 {
        w.gco2 * self.gco2
            + w.litre * self.litres
            + w.price * self.price
            + w.network_s * self.network_ms / 1e3 * self.tokens
    }
}

/// Serves `demand[hour][region]` tokens.
///
/// # Panics
/// Where hours have different numbers of regions than sites have networks.
pub fn serve(sites: &[ServingSite], demand: &[Vec<f64>], policy: Policy) -> Totals {
    let capacity: Vec<f64> = sites.iter().map(|s| s.tokens_per_hour).collect();
    let mut totals = Totals::default();
    let mut network = 0.0;
    for (hour, regions) in demand.iter().enumerate() {
        let cost: Vec<Vec<f64>> = (0..regions.len())
            .map(|r| sites.iter().map(|s| s.cost(r, hour, policy)).collect())
            .collect();
        let shares = match policy {
            Policy::Even => even(regions, &capacity),
            Policy::Best(_) => transport(regions, &capacity, &cost),
            Policy::Nearest | Policy::Cleanest => greedy(regions, &capacity, &cost),
        };
        for (r, row) in shares.iter().enumerate() {
            totals.unserved += regions[r] - row.iter().sum::<f64>();
            for (site, tokens) in sites.iter().zip(row) {
                let of =
                    site.site.footprint(tokens * site.joules_per_token, site.site.intensity(hour));
                totals.tokens += tokens;
                totals.joules += of.joules;
                totals.gco2 += of.gco2;
                totals.litres += of.litres;
                totals.price += of.price;
                network += tokens * site.network_ms[r];
            }
        }
    }
    totals.network_ms = if totals.tokens > 0.0 { network / totals.tokens } else { 0.0 };
    totals
}

impl ServingSite {
    /// What a token of a region costs here, in the eyes of a policy.
    fn cost(&self, region: usize, hour: usize, policy: Policy) -> f64 {
        let of = self.site.footprint(self.joules_per_token, self.site.intensity(hour));
        match policy {
            Policy::Nearest | Policy::Even => self.network_ms[region],
            Policy::Cleanest => of.gco2,
            Policy::Best(w) => {
                w.gco2 * of.gco2
                    + w.litre * of.litres
                    + w.price * of.price
                    + w.network_s * self.network_ms[region] / 1e3
            }
        }
    }
}

/// Each region in turn takes its cheapest sites that have room.
fn greedy(demand: &[f64], capacity: &[f64], cost: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut room = capacity.to_vec();
    let one = |(region, demand): (usize, &f64)| {
        let mut order: Vec<usize> = (0..room.len()).collect();
        order.sort_by(|&a, &b| cost[region][a].total_cmp(&cost[region][b]));
        let (mut left, mut row) = (*demand, vec![0.0; room.len()]);
        for site in order {
            row[site] = left.min(room[site]);
            left -= row[site];
            room[site] -= row[site];
        }
        row
    };
    demand.iter().enumerate().map(one).collect()
}

/// All regions spread over all sites in proportion to their capacities.
fn even(demand: &[f64], capacity: &[f64]) -> Vec<Vec<f64>> {
    let (wanted, room): (f64, f64) = (demand.iter().sum(), capacity.iter().sum());
    let served = if wanted > room { room / wanted } else { 1.0 };
    let part = |tokens: &f64| capacity.iter().map(|c| tokens * served * c / room).collect();
    demand.iter().map(part).collect()
}

/// The cheapest shares that serve as much as there is room for.
pub fn transport(demand: &[f64], capacity: &[f64], cost: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (regions, sites) = (demand.len(), capacity.len());
    let mut flow = vec![vec![0.0; sites]; regions];
    let (mut left, mut room) = (demand.to_vec(), capacity.to_vec());
    // Amounts below this are rounding.
    let small = 1e-9 * demand.iter().chain(capacity).fold(0.0f64, |m, v| m.max(*v));
    loop {
        // Shortest ways from regions with something left, over shares that can be taken back.
        let begin: Vec<f64> =
            left.iter().map(|l| if *l > small { 0.0 } else { f64::INFINITY }).collect();
        let (mut at_region, mut at_site) = (begin, vec![f64::INFINITY; sites]);
        let (mut from_region, mut from_site) = (vec![usize::MAX; sites], vec![usize::MAX; regions]);
        for _ in 0..regions + sites {
            let mut changed = false;
            for r in 0..regions {
                for s in 0..sites {
                    // The margin keeps rounding from going around in circles.
                    if at_region[r] + cost[r][s] < at_site[s] - 1e-12 {
                        (at_site[s], from_region[s]) = (at_region[r] + cost[r][s], r);
                        changed = true;
                    }
                    if flow[r][s] > small && at_site[s] - cost[r][s] < at_region[r] - 1e-12 {
                        (at_region[r], from_site[r]) = (at_site[s] - cost[r][s], s);
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let open = (0..sites).filter(|&s| room[s] > small && at_site[s].is_finite());
        let Some(end) = open.min_by(|&a, &b| at_site[a].total_cmp(&at_site[b])) else {
            return flow;
        };
        // Back along the way: how much goes through, and then through with it.
        let (mut way, mut site, mut amount) = (Vec::new(), end, room[end]);
        loop {
            let region = from_region[site];
            way.push((region, site, true));
            if from_site[region] == usize::MAX {
                amount = amount.min(left[region]);
                left[region] -= amount;
                break;
            }
            site = from_site[region];
            way.push((region, site, false));
            amount = amount.min(flow[region][site]);
        }
        for (region, site, forward) in way {
            flow[region][site] += if forward { amount } else { -amount };
        }
        room[end] -= amount;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SeedTree;

    fn total(flow: &[Vec<f64>], cost: &[Vec<f64>]) -> f64 {
        flow.iter().zip(cost).flat_map(|(f, c)| f.iter().zip(c)).map(|(f, c)| f * c).sum()
    }

    /// All ways to deal whole units out.
    fn brute(demand: &[u32], room: &mut [u32], cost: &[Vec<f64>], region: usize) -> f64 {
        if region == demand.len() {
            return 0.0;
        }
        fn deal(
            left: u32,
            site: usize,
            region: usize,
            demand: &[u32],
            room: &mut [u32],
            cost: &[Vec<f64>],
        ) -> f64 {
            if site == room.len() {
                return if left == 0 {
                    brute(demand, room, cost, region + 1)
                } else {
                    f64::INFINITY
                };
            }
            let mut best = f64::INFINITY;
            for take in 0..=left.min(room[site]) {
                room[site] -= take;
                let rest = deal(left - take, site + 1, region, demand, room, cost);
                best = best.min(rest + f64::from(take) * cost[region][site]);
                room[site] += take;
            }
            best
        }
        deal(demand[region], 0, region, demand, room, cost)
    }

    #[test]
    fn shares_are_the_best_of_all() {
        for seed in 0..200 {
            let mut dice = SeedTree::root(seed).child("transport").stream();
            let demand: Vec<u32> = (0..3).map(|_| dice.next_below(4) as u32).collect();
            let mut room: Vec<u32> = (0..3).map(|_| 2 + dice.next_below(4) as u32).collect();
            let cost: Vec<Vec<f64>> =
                (0..3).map(|_| (0..3).map(|_| dice.next_unit()).collect()).collect();
            let best = brute(&demand, &mut room, &cost, 0);
            let floats = |v: &[u32]| v.iter().map(|n| f64::from(*n)).collect::<Vec<_>>();
            let flow = transport(&floats(&demand), &floats(&room), &cost);
            if best.is_finite() {
                assert!((total(&flow, &cost) - best).abs() < 1e-6, "seed {seed}");
                for (row, wanted) in flow.iter().zip(&demand) {
                    assert!((row.iter().sum::<f64>() - f64::from(*wanted)).abs() < 1e-6);
                }
            }
            for (s, most) in room.iter().enumerate() {
                assert!(flow.iter().map(|row| row[s]).sum::<f64>() <= f64::from(*most) + 1e-6);
            }
        }
    }

    /// Ten sites whose grids have days of their own.
    fn world() -> (Vec<ServingSite>, Vec<Vec<f64>>) {
        let mut dice = SeedTree::root(9).child("world").stream();
        let mut between = |low: f64, high: f64| low + (high - low) * dice.next_unit();
        let sites = (0..10)
            .map(|i| {
                let base = between(30.0, 700.0);
                let swing = between(0.0, 0.5);
                let intensity = |h: usize| {
                    base * (1.0 - swing * (std::f64::consts::PI * h as f64 / 24.0).sin())
                };
                ServingSite {
                    site: SiteConfig {
                        name: format!("site {i}"),
                        pue: between(1.1, 1.6),
                        gco2_per_kwh: (0..24).map(intensity).collect(),
                        wue_litres_per_kwh: between(0.0, 2.0),
                        grid_litres_per_kwh: between(0.5, 4.0),
                        price_per_kwh: between(0.04, 0.3),
                        ..SiteConfig::default()
                    },
                    tokens_per_hour: between(2e8, 6e8),
                    joules_per_token: between(0.4, 1.2),
                    network_ms: (0..4).map(|_| between(5.0, 180.0)).collect(),
                }
            })
            .collect();
        let demand = (0..8760)
            .map(|h| {
                let day = |r: usize| {
                    1.0 + 0.6 * ((h + 6 * r) as f64 / 24.0 * std::f64::consts::TAU).sin()
                };
                (0..4).map(|r| 4e8 * day(r)).collect()
            })
            .collect();
        (sites, demand)
    }

    #[test]
    fn over_a_year_the_best_is_no_worse_than_any_and_the_cleanest_is_not_the_nearest() {
        let (sites, demand) = world();
        let weights = Weights { gco2: 1e-4, litre: 1e-2, price: 1.0, network_s: 1e-7 };
        let of = |policy| serve(&sites, &demand, policy);
        let best = of(Policy::Best(weights));
        for simple in [Policy::Nearest, Policy::Even, Policy::Cleanest] {
            let other = of(simple);
            assert!((other.tokens - best.tokens).abs() < 1e-6 * best.tokens, "{simple:?}");
            assert!(best.weighed(&weights) <= other.weighed(&weights) * (1.0 + 1e-9), "{simple:?}");
        }
        let clean = of(Policy::Best(Weights { gco2: 1.0, ..Weights::default() }));
        let near = of(Policy::Best(Weights { network_s: 1.0, ..Weights::default() }));
        // What is best for the air is not what is best for the wait.
        assert!(clean.gco2 < 0.8 * near.gco2 && near.network_ms < 0.8 * clean.network_ms);
        assert!(clean.gco2 <= of(Policy::Cleanest).gco2 * (1.0 + 1e-9));
        assert!(near.network_ms <= of(Policy::Nearest).network_ms * (1.0 + 1e-9));
        assert!(best.unserved.abs() < 1.0);
    }

    #[test]
    fn totals_are_those_by_hand_and_what_has_no_room_is_told() {
        let site = |gco2, ms, most| ServingSite {
            site: SiteConfig { pue: 1.5, gco2_per_kwh: vec![gco2], ..SiteConfig::default() },
            tokens_per_hour: most,
            joules_per_token: 3.6,
            network_ms: vec![ms],
        };
        let sites = [site(100.0, 10.0, 600_000.0), site(50.0, 30.0, 1_000_000.0)];
        // A million tokens are a kWh of machines.
        let demand = [vec![1_000_000.0]];
        let near = serve(&sites, &demand, Policy::Nearest);
        assert!((near.gco2 - 1.5 * (0.6 * 100.0 + 0.4 * 50.0)).abs() < 1e-9);
        assert!((near.network_ms - (0.6 * 10.0 + 0.4 * 30.0)).abs() < 1e-9);
        let clean = serve(&sites, &demand, Policy::Cleanest);
        assert!((clean.gco2 - 75.0).abs() < 1e-9 && clean.network_ms == 30.0);
        let too_much = serve(&sites, &[vec![2_000_000.0]], Policy::Even);
        assert!((too_much.unserved - 400_000.0).abs() < 1e-3, "{too_much:?}");
    }
}
