//! What is run to learn what steps cost: prompts of several lengths, decoding batches of several
//! sizes at several depths, and both together.

/// A request of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// It is submitted once so many of the point's steps have run.
    pub after_steps: u64,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Tokens of its answer.
    pub output: usize,
}

/// Requests that run together, from an idle engine to an idle engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// What it is for, for people.
    pub name: String,
    /// Its requests, in the order in which they are submitted.
    pub requests: Vec<Planned>,
    /// The fit does not see it: it shows how far off the fit is.
    pub held_out: bool,
}

impl Point {
    fn new(name: String, requests: Vec<Planned>) -> Self {
        Self { name, requests, held_out: false }
    }

    /// KV positions that it needs at most.
    pub fn kv_tokens(&self) -> usize {
        self.requests.iter().map(|r| r.prompt + r.output + 1).sum()
    }
}

/// How large the points are.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most tokens of a sequence.
    pub context: usize,
    /// The most sequences that decode together.
    pub batch: usize,
    /// The most KV positions of a point.
    pub kv_tokens: usize,
}

/// The most positions of a batch that decodes, over its sequences.
const DEEPEST: usize = 4096;

/// Decoding steps of a batch that are measured.
const DECODES: usize = 10;

/// All points, those held out last. They are sizes between those that the fit sees, and a stretch of
/// traffic with everything mixed.
pub fn points(limits: Limits) -> Vec<Point> {
    let mut all = Vec::new();
    let prompts = [8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536];
    all.extend(prompts.into_iter().map(prompt));
    for (count, length) in [(2, 16), (4, 32), (3, 96), (6, 20)] {
        all.push(prompts_together(count, length));
    }
    for depth in [16, 192, 768] {
        for batch in [1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 25, 32, 48, 64] {
            // Long contexts take long to make; wide batches of short ones do not.
            if batch * depth <= DEEPEST {
                all.push(decodes(batch, depth));
            }
        }
    }
    all.extend([1, 2, 4, 8, 16, 32].into_iter().map(mix));
    let mut held: Vec<Point> = [12, 40, 80, 160, 300, 640].into_iter().map(prompt).collect();
    held.extend([(3, 24), (2, 90)].map(|(count, length)| prompts_together(count, length)));
    for (batch, depth) in [(1, 500), (3, 100), (5, 128), (7, 60), (10, 300), (14, 40), (20, 64)] {
        held.push(decodes(batch, depth));
    }
    held.extend([mix(3), mix(10), mix(20), traffic(limits.batch)]);
    held.iter_mut().for_each(|point| point.held_out = true);
    all.extend(held);
    all.retain(|point| {
        point.requests.len() <= limits.batch + 8
            && point.kv_tokens() <= limits.kv_tokens
            && point.requests.iter().all(|r| r.prompt + r.output < limits.context)
    });
    all
}

fn prompt(length: usize) -> Point {
    let request = Planned { after_steps: 0, prompt: length, output: 1 };
    Point::new(format!("a prompt of {length}"), vec![request])
}

fn prompts_together(count: usize, length: usize) -> Point {
    // None like the other, so that they end apart.
    let request = |i| Planned { after_steps: 0, prompt: length + i, output: 1 };
    Point::new(format!("{count} prompts of {length}"), (0..count).map(request).collect())
}

fn decodes(batch: usize, depth: usize) -> Point {
    let request = |i| Planned { after_steps: 0, prompt: depth + i % 7, output: DECODES + 1 };
    Point::new(format!("{batch} decoding at {depth}"), (0..batch).map(request).collect())
}

/// Sequences that decode, and prompts that come one after the other.
fn mix(batch: usize) -> Point {
    let prompts = [12, 40, 100, 220, 350, 24];
    let steps = 2 + 4 * prompts.len();
    let running = (0..batch).map(|i| Planned {
        after_steps: 0,
        prompt: 40 + 13 * (i % 5),
        output: steps,
    });
    let coming = prompts.iter().zip(1..).map(|(&prompt, i)| Planned {
        after_steps: 4 * i,
        prompt,
        output: 2,
    });
    let name = format!("prompts beside {batch} decoding");
    Point::new(name, running.chain(coming).collect())
}

/// Requests of all sorts, one every few steps.
fn traffic(batch: usize) -> Point {
    let request = |i: usize| {
        // Lengths that have nothing to do with each other, the same each time.
        let spread = |factor: usize, range: usize| (i * factor + 11) % range;
        Planned {
            after_steps: 3 * i as u64,
            prompt: 10 + spread(97, 160) + if i % 6 == 5 { 300 } else { 0 },
            output: 5 + spread(53, 60),
        }
    };
    Point::new("traffic".into(), (0..batch.clamp(8, 24)).map(request).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stay_within_their_limits_and_some_are_held_out() {
        let limits = Limits { context: 2048, batch: 32, kv_tokens: 16_000 };
        let all = points(limits);
        assert!(all.iter().all(|p| p.kv_tokens() <= 16_000 && !p.requests.is_empty()));
        let held = all.iter().filter(|p| p.held_out).count();
        assert!(held * 6 > all.len() && held * 2 < all.len(), "{held} of {}", all.len());
        assert!(all.iter().any(|p| p.name == "traffic"));
        // None that is held out is in the fit, too.
        let fitted: Vec<_> = all.iter().filter(|p| !p.held_out).map(|p| &p.requests).collect();
        assert!(all.iter().filter(|p| p.held_out).all(|p| !fitted.contains(&&p.requests)));
        let small = points(Limits { context: 100, batch: 2, kv_tokens: 400 });
        assert!(small.len() > 5 && small.iter().any(|p| p.held_out), "{small:?}");
        assert!(small.iter().all(|p| p.requests.iter().all(|r| r.prompt + r.output < 100)));
    }
}
