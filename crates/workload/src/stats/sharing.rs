//! How many prompt tokens a prefix cache without limits would have found: the most that any real one
//! can.
//!
//! A prompt's chain of blocks or pieces is looked up before it is remembered; answers are remembered
//! where the trace tells them. Since a chain is remembered whole, a part that was seen has all that
//! comes before it seen too, and the length of the longest known prefix is a sum over the parts, each
//! looked up on its own. So it can be estimated from a sample of the parts: when there are too many
//! to remember, half of them are forgotten, chosen by their hash, and each of the others counts
//! twice (spatial sampling: SHARDS, Waldspurger and others, FAST 2015). The estimate has no bias, and
//! is exact as long as nothing was forgotten.
//!
//! Requests are taken one after the other, as if each were done when the next arrives. A real cache
//! also computes the last token of every prompt anew, since its logits are needed, and shares whole
//! blocks only.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::request::{Content, Request};

/// Collects what prompts share.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// By the hash of a part and of all before it: how many of its tokens were seen.
    seen: HashMap<u64, u32, BuildHasherDefault<KeyIsHash>>,
    most: usize,
    /// Parts whose hash has so many leading zeros are looked at.
    zeros: u32,
    prompt_tokens: u128,
    /// Tokens found, of the parts that were looked at, in units of `2^-zeros` at the time.
    found: u128,
}

/// What prompts share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SharingStats {
    /// Prompt tokens that were seen before; an estimate where `sampled` is below 1.
    pub tokens: f64,
    /// Those over all prompt tokens.
    pub share: f64,
    /// The share of distinct prefixes that were remembered to the end.
    pub sampled: f64,
}

/// Keys are hashes already.
#[derive(Debug, Clone, Copy, Default)]
struct KeyIsHash(u64);

impl Hasher for KeyIsHash {
    fn finish(&self) -> u64 {
        // Leading zeros are what was chosen by; the table looks at the other end too.
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl Sharing {
    /// Remembers at most so many distinct prefixes.
    pub fn new(most: usize) -> Self {
        Self { seen: HashMap::default(), most: most.max(1), zeros: 0, prompt_tokens: 0, found: 0 }
    }

    /// Takes the next request.
    pub fn add(&mut self, request: &Request) {
        let prompt = request.prompt_tokens;
        self.prompt_tokens += u128::from(prompt);
        let mut chain = 0u64;
        match &request.content {
            Content::Unique => {}
            Content::Blocks { ids, block_tokens } => {
                let mut at = 0u32;
                for &id in ids {
                    chain = link(chain, id, 0);
                    let end = at.saturating_add(*block_tokens);
                    // Blocks of the answer are remembered, not looked up. A block cut short by the
                    // prompt's end is another block than the whole one, and has another name.
                    self.part(chain, prompt.clamp(at, end) - at, end - at);
                    at = end;
                }
            }
            Content::Pieces(pieces) => {
                for (i, piece) in pieces.iter().enumerate() {
                    // Within a stream as many tokens are shared as both have.
                    let of_stream = link(chain, piece.stream, 0);
                    let answer = if i + 1 == pieces.len() { request.output_tokens } else { 0 };
                    let kept = piece.tokens.saturating_add(answer);
                    self.part(of_stream, piece.tokens, kept);
                    // What follows is shared only by chains that left the stream at the same token.
                    chain = link(chain, piece.stream, u64::from(piece.tokens) + 1);
                }
            }
        }
    }

    /// Looks up a part of which the prompt has `asked` tokens, and remembers `kept`.
    fn part(&mut self, key: u64, asked: u32, kept: u32) {
        if key.leading_zeros() < self.zeros || kept == 0 {
            return;
        }
        let seen = self.seen.entry(key).or_insert(0);
        self.found += u128::from(asked.min(*seen)) << self.zeros;
        *seen = (*seen).max(kept);
        while self.seen.len() > self.most {
            self.zeros += 1;
            let zeros = self.zeros;
            // What stays depends on the key alone.
            #[allow(clippy::disallowed_methods, reason = "the order of visits decides nothing")]
            self.seen.retain(|key, _| key.leading_zeros() >= zeros);
        }
    }

    /// What was found so far.
    pub fn stats(&self) -> SharingStats {
        let (tokens, all) = (self.found as f64, self.prompt_tokens as f64);
        SharingStats {
            tokens,
            share: if all > 0.0 { tokens / all } else { 0.0 },
            sampled: 1.0 / (1u64 << self.zeros.min(63)) as f64,
        }
    }
}

/// The chain's hash with another link.
fn link(chain: u64, name: u64, length: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&name.to_le_bytes());
    bytes[8..].copy_from_slice(&length.to_le_bytes());
    xxh3_64_with_seed(&bytes, chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Piece;
    use dunlin_units::{SeedTree, Time};

    fn with(content: Content, prompt: u32, output: u32) -> Request {
        Request { content, ..Request::new(Time(0), prompt, output) }
    }

    /// The longest common prefix of token ids with anything before, by comparing all of them.
    fn by_comparing(requests: &[Request]) -> u64 {
        let mut before: Vec<Vec<u32>> = Vec::new();
        let mut sum = 0;
        for (own, request) in requests.iter().enumerate() {
            let mut ids = Vec::new();
            request.prompt_ids(own as u64 | 1 << 60, u32::MAX, &mut ids);
            let common =
                |other: &Vec<u32>| ids.iter().zip(other).take_while(|(a, b)| a == b).count();
            sum += before.iter().map(common).max().unwrap_or(0) as u64;
            request.answer_ids(own as u64 | 1 << 60, u32::MAX, &mut ids);
            before.push(ids);
        }
        sum
    }

    #[test]
    fn pieces_share_what_their_tokens_share() {
        for seed in 0..20 {
            let mut random = SeedTree::root(seed).stream();
            let requests: Vec<Request> = (0..60)
                .map(|_| {
                    let count = 1 + random.next_below(3) as usize;
                    let pieces: Vec<Piece> = (0..count)
                        .map(|level| Piece {
                            stream: 10 * level as u64 + random.next_below(3),
                            tokens: 1 + random.next_below(4) as u32,
                        })
                        .collect();
                    let prompt = pieces.iter().map(|p| p.tokens).sum();
                    with(Content::Pieces(pieces.into()), prompt, random.next_below(4) as u32)
                })
                .collect();
            let mut sharing = Sharing::new(1 << 20);
            requests.iter().for_each(|r| sharing.add(r));
            assert_eq!(sharing.stats().tokens, by_comparing(&requests) as f64, "seed {seed}");
            assert_eq!(sharing.stats().sampled, 1.0);
        }
    }

    #[test]
    fn blocks_share_what_their_tokens_share() {
        for seed in 0..20 {
            let mut random = SeedTree::root(seed).stream();
            let requests: Vec<Request> = (0..80)
                .map(|_| {
                    // Names that say what comes before, as recorded traces have them.
                    let mut name = 1;
                    let ids: Box<[u64]> = (0..1 + random.next_below(4))
                        .map(|_| {
                            name = name * 3 + random.next_below(2);
                            name
                        })
                        .collect();
                    let reach = 4 * ids.len() as u64;
                    let prompt = 1 + random.next_below(reach) as u32;
                    let content = Content::Blocks { ids, block_tokens: 4 };
                    with(content, prompt, reach as u32 - prompt)
                })
                .collect();
            let mut sharing = Sharing::new(1 << 20);
            requests.iter().for_each(|r| sharing.add(r));
            assert_eq!(sharing.stats().tokens, by_comparing(&requests) as f64, "seed {seed}");
        }
    }

    #[test]
    fn a_sample_of_prefixes_estimates_without_bias() {
        let seed = 11;
        let mut random = SeedTree::root(seed).stream();
        let requests: Vec<Request> = (0..40_000)
            .map(|_| {
                let stream = random.next_below(20_000);
                let tokens = 50 + (stream % 100) as u32;
                with(Content::Pieces([Piece { stream, tokens }].into()), tokens, 0)
            })
            .collect();
        let (mut exact, mut sampled) = (Sharing::new(1 << 20), Sharing::new(2000));
        for request in &requests {
            exact.add(request);
            sampled.add(request);
        }
        let (exact, sampled) = (exact.stats(), sampled.stats());
        assert_eq!((exact.sampled, sampled.sampled < 0.2), (1.0, true), "{sampled:?}");
        // About 1,000 to 2,000 streams stay, each asked for 2 times: a few percent of error.
        let error = (sampled.tokens / exact.tokens - 1.0).abs();
        assert!(error < 0.1, "seed {seed}: {sampled:?} for {exact:?}");
    }
}
