//! How long prompts and answers are, in tokens.

use std::sync::Arc;

use dunlin_units::{SeedTree, Stream};
use serde::{Deserialize, Serialize};

use crate::dist::{Dist, DistSpec};
use crate::error::SpecError;

/// Above every context that a model has; lengths beyond it are taken for errors.
pub const MAX_TOKENS: u32 = 1 << 24;

/// A distribution of counts: what is drawn is rounded to the nearest whole number (halves up) and
/// then moved into the limits, so a limit that cuts much off gathers it in one length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountSpec {
    /// Where the numbers come from.
    pub dist: DistSpec,
    /// The least.
    #[serde(default = "one")]
    pub min: u32,
    /// The largest.
    #[serde(default = "max_tokens")]
    pub max: u32,
}

const fn one() -> u32 {
    1
}

const fn max_tokens() -> u32 {
    MAX_TOKENS
}

impl CountSpec {
    /// Counts of `dist`, from 1 to [`MAX_TOKENS`].
    pub const fn new(dist: DistSpec) -> Self {
        Self { dist, min: 1, max: MAX_TOKENS }
    }

    /// Always `count`.
    pub fn constant(count: u32) -> Self {
        Self { min: count.min(1), ..Self::new(DistSpec::Constant { value: f64::from(count) }) }
    }

    /// What draws from it.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn build(&self) -> Result<Count, SpecError> {
        if self.min > self.max || self.max > MAX_TOKENS {
            let problem = format!("{} should be from min to {MAX_TOKENS}", self.max);
            return Err(SpecError::new("max", problem));
        }
        let dist = self.dist.build().map_err(|e| e.within("dist"))?;
        Ok(Count { dist, min: self.min, max: self.max })
    }
}

/// A distribution of counts that draws.
#[derive(Debug, Clone)]
pub struct Count {
    dist: Dist,
    min: u32,
    max: u32,
}

impl Count {
    /// The next count.
    #[inline]
    pub fn draw(&self, random: &mut Stream) -> u32 {
        // The conversion saturates.
        ((self.dist.draw(random) + 0.5) as u32).clamp(self.min, self.max)
    }
}

/// Lengths of prompts and answers, together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum LengthsSpec {
    /// The one says nothing about the other.
    Independent {
        /// Tokens of prompts.
        prompt: CountSpec,
        /// Tokens of answers.
        output: CountSpec,
    },
    /// Rows of a recorded trace, each as likely: whatever ties a prompt's length to its answer's is
    /// kept.
    Rows {
        /// (prompt, output) tokens.
        rows: Arc<[(u32, u32)]>,
    },
}

impl LengthsSpec {
    /// What draws from it.
    ///
    /// # Errors
    /// A parameter outside its range; prompts without tokens.
    pub fn build(&self) -> Result<Lengths, SpecError> {
        Ok(Lengths(match self {
            Self::Independent { prompt, .. } if prompt.min == 0 => {
                return Err(SpecError::new("prompt.min", "a prompt has at least one token"));
            }
            Self::Independent { prompt, output } => Kind::Independent {
                prompt: prompt.build().map_err(|e| e.within("prompt"))?,
                output: output.build().map_err(|e| e.within("output"))?,
            },
            Self::Rows { rows } => {
                if rows.is_empty() {
                    return Err(SpecError::new("rows", "there are none"));
                }
                if let Some(row) =
                    rows.iter().find(|r| r.0 == 0 || r.0 > MAX_TOKENS || r.1 > MAX_TOKENS)
                {
                    let problem = format!("{row:?} should be from 1 to {MAX_TOKENS} tokens");
                    return Err(SpecError::new("rows", problem));
                }
                Kind::Rows(Arc::clone(rows))
            }
        }))
    }
}

/// Where lengths come from: one stream for prompts, which also chooses rows, and one for answers, so
/// that changing how long answers are leaves the prompts as they were.
#[derive(Debug, Clone)]
pub struct LengthStreams {
    prompt: Stream,
    output: Stream,
}

impl LengthStreams {
    /// The streams at `seeds`.
    pub fn new(seeds: SeedTree) -> Self {
        Self { prompt: seeds.child("prompt").stream(), output: seeds.child("output").stream() }
    }
}

/// Draws lengths of prompts and answers.
#[derive(Debug, Clone)]
pub struct Lengths(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Independent { prompt: Count, output: Count },
    Rows(Arc<[(u32, u32)]>),
}

impl Lengths {
    /// The next (prompt, output) tokens.
    #[inline]
    pub fn draw(&self, streams: &mut LengthStreams) -> (u32, u32) {
        match &self.0 {
            Kind::Independent { prompt, output } => {
                (prompt.draw(&mut streams.prompt), output.draw(&mut streams.output))
            }
            Kind::Rows(rows) => rows[streams.prompt.next_below(rows.len() as u64) as usize],
        }
    }
}
