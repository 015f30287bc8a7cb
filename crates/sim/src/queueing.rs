//! Closed forms of queues: what a simulation must agree with, and quick answers where none is needed.
//!
//! | what | source |
//! |---|---|
//! | mean wait of M/G/1 | Pollaczek 1930, Khinchine 1932 |
//! | the limit on output tokens that balances waiting against cut answers | M/G/1 with clipped service times |
//! | batches of all that wait | the embedded Markov chain of batch sizes |
//! | the rate that compute and KV memory can hold | Little's law over steps and over blocks at the largest batch |

use dunlin_costmodel::{Phase, SeqShape, StepCost, StepShape};

/// Mean seconds in the queue of M/G/1, first come first served: Poisson arrivals at `rate_per_s`,
/// service times with these first two moments in seconds. None where the queue grows for ever.
pub fn mg1_wait_s(rate_per_s: f64, mean_s: f64, second_moment_s2: f64) -> Option<f64> {
    let load = rate_per_s * mean_s;
    (load < 1.0).then(|| rate_per_s * second_moment_s2 / (2.0 * (1.0 - load)))
}

/// A limit on output tokens, and what it does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLimit {
    /// The limit.
    pub tokens: u32,
    /// Mean seconds in the queue.
    pub wait_s: f64,
    /// The share of answers that are cut.
    pub cut: f64,
    /// Waiting and the price of cutting, in seconds.
    pub cost_s: f64,
}

/// The limit on output tokens for which the mean wait plus `cut_price_s` times the share of answers
/// cut is least, on a server of one request at a time whose service is `base_s` and `token_s` for
/// each output token. `outputs` are recorded lengths of answers. None where even the shortest limit
/// leaves the queue growing, or nothing was recorded.
///
/// Exact: all limits that make a difference are tried, each in constant time.
pub fn best_token_limit(
    outputs: &[u32],
    rate_per_s: f64,
    base_s: f64,
    token_s: f64,
    cut_price_s: f64,
) -> Option<TokenLimit> {
    let mut sorted = outputs.to_vec();
    sorted.sort_unstable();
    let n = sorted.len() as f64;
    // Sums over those that are not cut.
    let (mut sum, mut squares) = (0.0, 0.0);
    let mut best: Option<TokenLimit> = None;
    let mut place = 0;
    while place < sorted.len() {
        let tokens = sorted[place];
        while place < sorted.len() && sorted[place] == tokens {
            let service = base_s + token_s * f64::from(tokens);
            sum += service;
            squares += service * service;
            place += 1;
        }
        let (cut, service) = ((n - place as f64), base_s + token_s * f64::from(tokens));
        let (mean, second) = ((sum + cut * service) / n, (squares + cut * service * service) / n);
        let Some(wait_s) = mg1_wait_s(rate_per_s, mean, second) else { continue };
        let cost_s = wait_s + cut_price_s * cut / n;
        if best.is_none_or(|b| cost_s < b.cost_s) {
            best = Some(TokenLimit { tokens, wait_s, cut: cut / n, cost_s });
        }
    }
    best
}

/// Mean seconds in the queue where each batch takes all that wait, up to `most` of them, and takes
/// `batch_s(size)`; an idle server begins with the first that comes. Poisson arrivals.
///
/// The chain of batch sizes is solved by iteration; waits follow from it exactly where `most` is
/// never reached (a request then waits for the batch during whose time it came), so `most` must be
/// large enough for that. None where the chain has not settled after many batches.
pub fn dynamic_batch_wait_s(
    rate_per_s: f64,
    most: usize,
    batch_s: impl Fn(usize) -> f64,
) -> Option<f64> {
    let times: Vec<f64> = (1..=most).map(&batch_s).collect();
    // The chance of each number of arrivals during a batch; an empty time is followed by one.
    let next: Vec<Vec<f64>> = times
        .iter()
        .map(|t| {
            let mut chances = poisson(rate_per_s * t, most);
            let none = chances.remove(0);
            chances[0] += none;
            chances
        })
        .collect();
    let mut sizes = vec![0.0; most];
    sizes[0] = 1.0;
    let mut settled = false;
    for _ in 0..20_000 {
        let mut after = vec![0.0; most];
        for (chance, next) in sizes.iter().zip(&next).filter(|(c, _)| **c > 0.0) {
            for (into, p) in after.iter_mut().zip(next) {
                *into += chance * p;
            }
        }
        let moved: f64 = sizes.iter().zip(&after).map(|(a, b)| (a - b).abs()).sum();
        sizes = after;
        if moved < 1e-13 {
            settled = true;
            break;
        }
    }
    if !settled {
        return None;
    }
    // Of arrivals per batch: those during it wait for half of it on average, and one that ends an
    // idle time waits not at all.
    let (mut arrivals, mut waits) = (0.0, 0.0);
    for (chance, t) in sizes.iter().zip(&times) {
        let during = rate_per_s * t;
        arrivals += chance * (during + (-during).exp());
        waits += chance * during * t / 2.0;
    }
    Some(waits / arrivals)
}

/// The chances of 0 to `most` arrivals, of which the last has all beyond.
fn poisson(mean: f64, most: usize) -> Vec<f64> {
    let mut chances = Vec::with_capacity(most + 1);
    let mut log = -mean;
    let mut left = 1.0;
    for k in 0..most {
        let chance = log.exp();
        chances.push(chance);
        left -= chance;
        log += mean.ln() - ((k + 1) as f64).ln();
    }
    chances.push(left.max(0.0));
    chances
}

/// What a replica can hold of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    /// Requests a second above which queues grow for ever.
    pub critical_per_s: f64,
    /// The same if KV memory had no end.
    pub without_memory_per_s: f64,
    /// Sequences in a step at the critical rate.
    pub batch: f64,
    /// Whether KV memory is what binds, and not the number of sequences.
    pub memory_binds: bool,
}

/// Means over a workload's requests, as far as its capacity depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LengthMeans {
    requests: f64,
    prompt: f64,
    prompt_squares: f64,
    output: f64,
    /// KV blocks over the steps of an answer.
    block_steps: f64,
    /// KV positions over the steps of an answer.
    position_steps: f64,
    block_tokens: f64,
}

impl LengthMeans {
    /// Of requests with so many (prompt, output) tokens, in blocks of `block_tokens`.
    pub fn new(lengths: impl IntoIterator<Item = (u32, u32)>, block_tokens: u32) -> Self {
        let mut m = Self { block_tokens: f64::from(block_tokens), ..Self::default() };
        for (prompt, output) in lengths {
            let (p, o, b) = (f64::from(prompt), f64::from(output), u64::from(block_tokens));
            m.requests += 1.0;
            m.prompt += p;
            m.prompt_squares += p * p;
            m.output += o;
            m.position_steps += o * p + o * (o + 1.0) / 2.0;
            // The sum of ceil((prompt + i) / block) over the steps i = 1 to output.
            let full = |n: u64| (n / b) * (n / b + 1) / 2 * b + (n % b) * (n / b + 1);
            m.block_steps +=
                full(u64::from(prompt) + u64::from(output)) as f64 - full(u64::from(prompt)) as f64;
        }
        m
    }

    /// The rate above which a replica's queue grows for ever: at it, the batch is as large as KV
    /// memory (`blocks`) and `max_running` allow, and requests end as fast as they come.
    ///
    /// In a steady state at rate r with steps of T seconds, r T E\[output\] sequences run and hold
    /// r T E\[block steps\] blocks: so a batch of N holds N E\[block steps\] / E\[output\] blocks, and
    /// r = N / (E\[output\] T(N)). Each step also has the prompts of the requests that come in it.
    /// Nothing is taken to be shared, and nothing to be computed twice.
    pub fn capacity(
        &self,
        cost: &dyn StepCost,
        blocks: u64,
        max_running: u32,
        max_step_tokens: u32,
    ) -> Option<Capacity> {
        if self.requests == 0.0 || self.output == 0.0 {
            return None;
        }
        let most = f64::from(max_running.min(max_step_tokens));
        let by_memory = blocks as f64 * self.output / self.block_steps;
        let batch = by_memory.min(most).max(1.0);
        let rate = |n: f64| self.rate_at(cost, n, max_step_tokens);
        Some(Capacity {
            critical_per_s: rate(batch),
            without_memory_per_s: rate(most),
            batch,
            memory_binds: by_memory < most,
        })
    }

    /// Requests that end in a second with a batch of `n` sequences that decode.
    fn rate_at(&self, cost: &dyn StepCost, n: f64, max_step_tokens: u32) -> f64 {
        let (alone, prompt_ns) = self.times_at(cost, n, max_step_tokens);
        let output = self.output / self.requests;
        // A request has `output` decode steps of a batch of n, and its prompt's share of a step.
        1e9 / (alone * output / n + prompt_ns)
    }

    /// Nanoseconds between an answer's tokens on a replica to which `rate_per_s` requests a second
    /// come, in the steady state and on average. Where even a batch of `most` does not keep up, that
    /// is the batch, and the others wait; none where prompts alone take more time than there is.
    ///
    /// A fluid estimate, which scatter can only make worse: prompts take their part of all time, the
    /// rest of it goes to decode steps, and by Little's law as many sequences run as come during an
    /// answer.
    pub fn gap_ns(
        &self,
        cost: &dyn StepCost,
        rate_per_s: f64,
        most: u32,
        max_step_tokens: u32,
    ) -> Option<f64> {
        if self.requests == 0.0 || self.output == 0.0 {
            return None;
        }
        let output = self.output / self.requests;
        let gap = |n: u32| {
            let (alone, prompt_ns) = self.times_at(cost, f64::from(n), max_step_tokens);
            let left = 1.0 - rate_per_s * prompt_ns / 1e9;
            (left > 0.0).then(|| alone / left)
        };
        // Whether a batch of n keeps up with those that come during an answer.
        let keeps_up =
            |n: u32| gap(n).is_some_and(|g| rate_per_s * output * g / 1e9 <= f64::from(n));
        let most = most.min(max_step_tokens).max(1);
        if !keeps_up(most) {
            return gap(most);
        }
        // The smallest that does.
        let (mut low, mut high) = (0, most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if keeps_up(middle) { high = middle } else { low = middle }
        }
        gap(high)
    }

    /// Nanoseconds of a step in which `n` sequences decode, and those that a request's prompt adds to
    /// steps.
    fn times_at(&self, cost: &dyn StepCost, n: f64, max_step_tokens: u32) -> (f64, f64) {
        let context = (self.position_steps / self.output - 1.0).max(0.0) as u32;
        let decodes = |n: f64| {
            let seq = SeqShape { new_tokens: 1, context, phase: Phase::Decode };
            StepShape { seqs: vec![seq; n as usize], sampled: n as u32, experts: None }
        };
        let time = |shape: &StepShape| cost.price(shape).time_ns as f64;
        // Between whole numbers, in proportion.
        let (low, part) = (n.floor().max(1.0), n - n.floor().max(1.0));
        let (below, above) = (time(&decodes(low)), time(&decodes(low + 1.0)));
        let alone = below + part.max(0.0) * (above - below);
        // A prompt of the size that its tokens are in on average, as rarely as they come.
        let prompt = (self.prompt_squares / self.prompt).max(1.0).round();
        let mut with = decodes(low);
        let chunk = prompt.min(f64::from(max_step_tokens) - low).max(1.0);
        with.seqs.push(SeqShape { new_tokens: chunk as u32, context: 0, phase: Phase::Prefill });
        let each = (time(&with) - below) * prompt / chunk;
        let prompts_per_request = self.prompt / self.requests / prompt;
        (alone, each * prompts_per_request)
    }

    /// Mean KV blocks of a sequence that runs, over its steps.
    pub fn mean_blocks(&self) -> f64 {
        self.block_steps / self.output
    }

    /// Tokens of an answer.
    pub fn mean_output(&self) -> f64 {
        self.output / self.requests
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> f64 {
        self.block_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_limit_is_the_best_of_all() {
        let outputs: Vec<u32> = (0..400u32).map(|i| 5 + i * i % 97 + (i % 20 / 19) * 900).collect();
        let (rate, base, token) = (0.9, 0.1, 0.01);
        for price in [0.0, 1.0, 5.0, 60.0, 1e4] {
            let best = best_token_limit(&outputs, rate, base, token, price).unwrap();
            let cost = |limit: u32| {
                let service = |o: &u32| base + token * f64::from((*o).min(limit));
                let n = outputs.len() as f64;
                let mean = outputs.iter().map(service).sum::<f64>() / n;
                let second = outputs.iter().map(|o| service(o).powi(2)).sum::<f64>() / n;
                let cut = outputs.iter().filter(|o| **o > limit).count() as f64 / n;
                mg1_wait_s(rate, mean, second).map(|w| w + price * cut)
            };
            let grid = (5..=1200).filter_map(cost).fold(f64::INFINITY, f64::min);
            // Between two lengths that occur, the longer limit costs more waiting and cuts no less.
            assert!((best.cost_s - grid).abs() < 1e-9, "{price}: {best:?} {grid}");
            assert!((cost(best.tokens).unwrap() - best.cost_s).abs() < 1e-9);
        }
        assert_eq!(best_token_limit(&[], 1.0, 1.0, 1.0, 1.0), None);
        assert_eq!(best_token_limit(&[100], 2.0, 1.0, 1.0, 1.0), None, "it grows for ever");
    }

    #[test]
    fn constant_batches_have_a_closed_form() {
        for (rate, step) in [(180.0, 0.01), (20.0, 0.01), (400.0, 0.005)] {
            let found = dynamic_batch_wait_s(rate, 60, |_| step).unwrap();
            let a: f64 = rate * step;
            let closed = a * step / 2.0 / (a + (-a).exp());
            assert!((found / closed - 1.0).abs() < 1e-9, "{found} {closed}");
        }
    }

    #[test]
    fn blocks_over_steps_are_counted() {
        for (prompt, output, block) in [(5u32, 7u32, 4u32), (16, 1, 16), (1, 40, 3), (100, 9, 16)] {
            let means = LengthMeans::new([(prompt, output)], block);
            let sum: u32 = (1..=output).map(|i| (prompt + i).div_ceil(block)).sum();
            assert_eq!(means.block_steps, f64::from(sum));
        }
    }
}
