//! The lesser loaded of two workers drawn at random, which is almost as even as looking at all of
//! them and needs to know of two only (Mitzenmacher, "The power of two choices in randomized load
//! balancing", IEEE TPDS 12, 2001).
//!
//! The draw is keyed by the request's number, so it does not depend on how many were placed before.

use dunlin_units::SeedTree;

use crate::{Placement, RequestView, WorkerView};

/// See the module.
#[derive(Debug)]
pub struct PowerOfTwo {
    seeds: SeedTree,
    /// Those that accept, found anew for each request.
    accepting: Vec<u32>,
}

impl PowerOfTwo {
    /// Draws from `seeds`.
    pub fn new(seeds: SeedTree) -> Self {
        Self { seeds: seeds.child("power of two"), accepting: Vec::new() }
    }
}

impl Placement for PowerOfTwo {
    fn place(&mut self, request: &RequestView<'_>, workers: &[WorkerView]) -> Option<usize> {
        self.accepting.clear();
        let accepting = workers.iter().enumerate().filter(|(_, w)| w.accepting);
        self.accepting.extend(accepting.map(|(place, _)| place as u32));
        let count = self.accepting.len() as u64;
        if count < 2 {
            return self.accepting.first().map(|&w| w as usize);
        }
        let mut draws = self.seeds.child_at(request.number).stream();
        let first = draws.next_below(count);
        // The second is another one.
        let second = (first + 1 + draws.next_below(count - 1)) % count;
        let [first, second] = [first, second].map(|i| self.accepting[i as usize] as usize);
        Some(if workers[second].lighter_than(&workers[first]) { second } else { first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Balls into bins: the largest bin of n balls in n bins, by one draw and by the better of two.
    #[test]
    fn two_choices_are_far_more_even_than_one() {
        let n = 4096;
        let seeds = SeedTree::root(3);
        let mut policy = PowerOfTwo::new(seeds);
        let mut two = vec![WorkerView::default(); n];
        let mut one = vec![0u32; n];
        let mut random = seeds.child("one").stream();
        for number in 0..n as u64 {
            let request = RequestView { number, ..RequestView::default() };
            let chosen = policy.place(&request, &two).unwrap();
            two[chosen].requests += 1;
            one[random.next_below(n as u64) as usize] += 1;
        }
        let most = two.iter().map(|w| w.requests).max().unwrap();
        // ln ln n / ln 2 is 3.06 and the theorem adds a constant; ln n / ln ln n is 3.9 and one
        // choice gives about 1 + that and more.
        assert!(most <= 4, "{most}");
        assert!(*one.iter().max().unwrap() > most);
    }

    #[test]
    fn the_draw_is_the_requests_own() {
        let workers = vec![WorkerView::default(); 50];
        let mut a = PowerOfTwo::new(SeedTree::root(1));
        let mut b = PowerOfTwo::new(SeedTree::root(1));
        let request = |number| RequestView { number, ..RequestView::default() };
        b.place(&request(99), &workers);
        for number in 0..50 {
            let chosen = [&mut a, &mut b].map(|p| p.place(&request(number), &workers));
            assert_eq!(chosen[0], chosen[1]);
        }
    }
}
