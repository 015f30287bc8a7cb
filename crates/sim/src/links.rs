//! Transfers that share links max-min fairly.
//!
//! Every replica has a link out and one in; a transfer uses one of each. At any moment rates are
//! max-min fair: no transfer's rate can rise without lowering one that is no higher (progressive
//! filling; Bertsekas and Gallager, "Data Networks", 2nd edition 1992, section 6.5.2). Rates change
//! only when a transfer begins or ends, and in between everything is whole numbers: bytes times 10^9
//! against bytes a second times nanoseconds.

use dunlin_units::Time;

/// A transfer under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Whose it is.
    pub id: u64,
    /// The replica whose link out it uses.
    pub from: u32,
    /// The replica whose link in it uses.
    pub to: u32,
    /// Bytes left, times 10^9.
    left: u128,
    /// Bytes a second.
    rate: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Links {
    out_bytes_per_s: Vec<u64>,
    in_bytes_per_s: Vec<u64>,
    flows: Vec<Flow>,
    now: Time,
    /// When the next one ends.
    next: Option<Time>,
}

impl Links {
    /// Links of so many bytes a second, out and in, one of each for a replica.
    ///
    /// # Panics
    /// Where a link carries nothing.
    pub fn new(out_bytes_per_s: Vec<u64>, in_bytes_per_s: Vec<u64>) -> Self {
        let all = out_bytes_per_s.iter().chain(&in_bytes_per_s);
        assert!(all.clone().all(|rate| *rate > 0), "a link that carries nothing");
        Self { out_bytes_per_s, in_bytes_per_s, flows: Vec::new(), now: Time(0), next: None }
    }

    /// Transfers under way.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// A transfer begins.
    pub fn begin(&mut self, now: Time, id: u64, from: u32, to: u32, bytes: u64) {
        self.pass(now);
        let left = u128::from(bytes) * 1_000_000_000;
        self.flows.push(Flow { id, from, to, left, rate: 0 });
        self.share();
    }

    /// A transfer is given up, if it is under way; what it took of its links others have from now on.
    pub fn cancel(&mut self, now: Time, id: u64) {
        self.pass(now);
        let before = self.flows.len();
        self.flows.retain(|f| f.id != id);
        if self.flows.len() < before {
            self.share();
        }
    }

    /// When the next transfer ends, if any is under way.
    pub fn next_end(&self) -> Option<Time> {
        self.next
    }

    /// Takes the transfers that have ended by `now`, in the order of their ids.
    pub fn ended(&mut self, now: Time) -> Vec<Flow> {
        self.pass(now);
        let mut over: Vec<Flow> = self.flows.extract_if(.., |f| f.left == 0).collect();
        over.sort_unstable_by_key(|f| f.id);
        if !over.is_empty() {
            self.share();
        }
        over
    }

    /// Time goes on, at the rates that there are.
    fn pass(&mut self, now: Time) {
        let ns = u128::from(now.since(self.now));
        for flow in &mut self.flows {
            flow.left = flow.left.saturating_sub(u128::from(flow.rate) * ns);
        }
        self.now = self.now.max(now);
    }

    /// Shares the links anew.
    fn share(&mut self) {
        let count = self.out_bytes_per_s.len();
        let ends = |f: &Flow| [f.from as usize, count + f.to as usize];
        // Links in use, those out first: what is left of each, and how many have no rate yet.
        let mut used: Vec<usize> = self.flows.iter().flat_map(ends).collect();
        used.sort_unstable();
        used.dedup();
        let place = |link: usize| used.binary_search(&link).expect("a link in use");
        let pairs: Vec<[usize; 2]> = self.flows.iter().map(|f| ends(f).map(place)).collect();
        let capacity = |&link: &usize| match link.checked_sub(count) {
            None => self.out_bytes_per_s[link],
            Some(link) => self.in_bytes_per_s[link],
        };
        let mut left: Vec<u64> = used.iter().map(capacity).collect();
        let mut open = vec![0u64; used.len()];
        pairs.iter().flatten().for_each(|&link| open[link] += 1);
        let mut fixed = vec![false; self.flows.len()];
        loop {
            // The tightest link decides the rate of all that use it.
            let with_open = (0..left.len()).filter(|&l| open[l] > 0);
            let Some(tightest) = with_open.min_by_key(|&l| (left[l] / open[l], l)) else { break };
            let rate = (left[tightest] / open[tightest]).max(1);
            for ((flow, pair), fixed) in self.flows.iter_mut().zip(&pairs).zip(&mut fixed) {
                if *fixed || !pair.contains(&tightest) {
                    continue;
                }
                *fixed = true;
                flow.rate = rate;
                for &link in pair {
                    left[link] = left[link].saturating_sub(rate);
                    open[link] -= 1;
                }
            }
        }
        let ns = |f: &Flow| f.left.div_ceil(u128::from(f.rate.max(1)));
        let first = self.flows.iter().map(ns).min();
        self.next = first.map(|ns| self.now.after(u64::try_from(ns).unwrap_or(u64::MAX)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SeedTree;

    #[test]
    fn two_share_a_link_and_the_rest_goes_to_the_third() {
        // 0 -> 2, 0 -> 3, 1 -> 3; link 0 out carries 6, link 3 in 9, the others plenty.
        let mut links = Links::new(vec![6, 100, 100, 100], vec![100, 100, 100, 9]);
        links.begin(Time(0), 1, 0, 2, 30);
        assert_eq!(links.next_end(), Some(Time(5_000_000_000)));
        links.begin(Time(0), 2, 0, 3, 30);
        links.begin(Time(0), 3, 1, 3, 30);
        let rates: Vec<u64> = links.flows().iter().map(|f| f.rate).collect();
        assert_eq!(rates, [3, 3, 6]);
        // The third ends after 5 s; then the others go on at 3, as link 0 allows no more.
        assert_eq!(links.next_end(), Some(Time(5_000_000_000)));
        let over = links.ended(Time(5_000_000_000));
        assert_eq!(over.iter().map(|f| f.id).collect::<Vec<_>>(), [3]);
        assert_eq!(links.next_end(), Some(Time(10_000_000_000)));
        assert_eq!(links.ended(Time(10_000_000_000)).len(), 2);
        assert_eq!(links.next_end(), None);
    }

    /// The definition itself: every transfer uses a link that is full and on which nobody is faster.
    #[test]
    fn rates_are_max_min_fair() {
        let seed = 8;
        let mut random = SeedTree::root(seed).stream();
        for round in 0..200 {
            let mut rates =
                || (0..6).map(|_| 1_000_000 + random.next_below(9_000_000)).collect::<Vec<_>>();
            let mut links = Links::new(rates(), rates());
            for id in 0..1 + random.next_below(14) {
                let (from, to) = (random.next_below(6) as u32, random.next_below(6) as u32);
                links.begin(Time(0), id, from, to, 1000);
            }
            let on = |f: &Flow, link: usize| {
                if link < 6 { f.from as usize == link } else { f.to as usize + 6 == link }
            };
            let capacity = |link: usize| {
                if link < 6 { links.out_bytes_per_s[link] } else { links.in_bytes_per_s[link - 6] }
            };
            for link in 0..12 {
                let used: u64 = links.flows.iter().filter(|f| on(f, link)).map(|f| f.rate).sum();
                assert!(used <= capacity(link), "seed {seed}, round {round}: link {link}");
            }
            for flow in &links.flows {
                let bottleneck = [flow.from as usize, flow.to as usize + 6].into_iter().any(|l| {
                    let others: Vec<_> = links.flows.iter().filter(|f| on(f, l)).collect();
                    let used: u64 = others.iter().map(|f| f.rate).sum();
                    // Whole numbers leave up to one for each.
                    used + others.len() as u64 >= capacity(l)
                        && others.iter().all(|f| f.rate <= flow.rate + others.len() as u64)
                });
                assert!(bottleneck, "seed {seed}, round {round}: {flow:?}");
            }
        }
    }
}
