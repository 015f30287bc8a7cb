//! What is asked, and when: from rates and distributions, or from a trace.

use std::{fs::File, io::BufReader, path::Path, sync::Arc};

use anyhow::Context as _;
use dunlin_units::{SeedTree, Time};
use dunlin_workload::{
    ArrivalSpec, Content, CountSpec, DistSpec, GapSpec, LengthStreams, LengthsSpec, Piece,
    RateSpec, Request,
    trace::{ReadOptions, TraceReader, stretch},
};
use serde_json::Value;

use crate::{outcome::unusable, prompt::message};

/// Short words, most of them one token in most vocabularies: texts of about so many tokens.
const WORDS: &str = "the of and to in is that it for was on are as with his they at be this from \
                     have or by one had not but what all were when we there can an your which \
                     their said if do will each about how up out them then she many some so these \
                     would other into has more her two like him see time could no make than first \
                     been its who now people my made over did down only way find use may water long \
                     little very after words called just where most know";

/// The prompt of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids.
    Tokens(Vec<u32>),
    /// Words; the first part is common to all requests.
    Text {
        /// The part in common, empty where there is none.
        shared: String,
        /// The request's own.
        own: String,
    },
}

impl Prompt {
    /// As one text.
    pub fn text(&self) -> String {
        match self {
            Self::Tokens(tokens) => words(tokens),
            Self::Text { shared, own } if shared.is_empty() => own.clone(),
            Self::Text { shared, own } => format!("{shared} {own}"),
        }
    }

    /// As a conversation: the part in common is the system's message.
    pub fn messages(&self) -> Vec<Value> {
        match self {
            Self::Text { shared, own } if !shared.is_empty() => {
                vec![message("system", shared), message("user", own)]
            }
            prompt => vec![message("user", &prompt.text())],
        }
    }
}

/// One request as it is asked.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Its number, from 0.
    pub index: usize,
    pub prompt: Prompt,
    /// Tokens wanted.
    pub output_tokens: u32,
    /// Of sampling.
    pub seed: u64,
    /// When, whose, and what it waits for.
    pub request: Request,
}

/// Turns requests into what is sent.
#[derive(Debug, Clone)]
pub struct Prompts {
    /// Prompts of ids below this; of words without.
    pub vocabulary: Option<u32>,
    /// Tokens at the start of each prompt that all have in common.
    pub shared_tokens: u32,
    pub seed: u64,
}

impl Prompts {
    /// What is sent for the request of this number.
    pub fn ask(&self, index: usize, request: Request) -> Ask {
        let seeds = SeedTree::root(self.seed);
        let own = seeds.child("own").child_at(index as u64).seed();
        let mut ids = Vec::new();
        let prompt = match self.vocabulary {
            Some(vocabulary) => {
                request.prompt_ids(own, vocabulary, &mut ids);
                Prompt::Tokens(ids)
            }
            None => {
                request.prompt_ids(own, 1 << 16, &mut ids);
                let shared = (self.shared_tokens as usize).min(ids.len());
                Prompt::Text { shared: words(&ids[..shared]), own: words(&ids[shared..]) }
            }
        };
        // Half of the range: clients and servers disagree on seeds with a sign.
        let seed = seeds.child("sampling").child_at(index as u64).seed() >> 33;
        Ask { index, prompt, output_tokens: request.output_tokens.max(1), seed, request }
    }
}

fn words(ids: &[u32]) -> String {
    let list: Vec<&str> = WORDS.split_whitespace().collect();
    let words: Vec<&str> = ids.iter().map(|&id| list[id as usize % list.len()]).collect();
    words.join(" ")
}

/// A distribution of token counts as a command line spells it.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts(pub CountSpec);

impl std::str::FromStr for Counts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |t: &str| t.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
        let whole = |t: &str| t.parse::<u32>().ok().filter(|&n| n > 0);
        let parts: Vec<&str> = text.split(':').collect();
        let spec = match parts[..] {
            [count] => match count.split_once('-') {
                None => whole(count).map(CountSpec::constant),
                Some((low, high)) => match (whole(low), whole(high)) {
                    (Some(low), Some(high)) if low <= high => {
                        Some(CountSpec::new(DistSpec::Integers { low, high }))
                    }
                    _ => None,
                },
            },
            ["exp", mean] => {
                number(mean).map(|mean| CountSpec::new(DistSpec::Exponential { mean }))
            }
            ["lognormal", median, sigma] => number(median)
                .zip(number(sigma))
                .map(|(median, sigma)| CountSpec::new(DistSpec::LogNormal { median, sigma })),
            _ => None,
        };
        let spec = spec.ok_or(
            "it is a number of tokens (128), a range (64-256), exp:MEAN or lognormal:MEDIAN:SIGMA",
        )?;
        spec.build().map(|_| ()).map_err(|error| error.to_string())?;
        Ok(Self(spec))
    }
}

/// Requests of given lengths.
pub struct Generated {
    pub prompt: CountSpec,
    pub output: CountSpec,
    pub shared_tokens: u32,
    pub seed: u64,
}

impl Generated {
    /// Requests that all arrive at once, without end.
    ///
    /// # Errors
    /// Lengths that cannot be.
    pub fn at_once(&self) -> anyhow::Result<impl Iterator<Item = Request> + Send + use<>> {
        self.of(std::iter::repeat(Time(0)))
    }

    /// Requests at random moments, so many a second; gaps with this coefficient of variation (1:
    /// Poisson).
    ///
    /// # Errors
    /// Rates and lengths that cannot be.
    pub fn at_rate(
        &self,
        per_s: f64,
        cv: f64,
    ) -> anyhow::Result<impl Iterator<Item = Request> + Send + use<>> {
        let gaps = if cv == 1.0 { GapSpec::Exponential } else { GapSpec::Gamma { cv } };
        let spec = ArrivalSpec::Open { gaps, rate: RateSpec::Constant { per_s } };
        let arrivals = spec.build(Time(0), SeedTree::root(self.seed).child("arrivals"));
        self.of(arrivals.map_err(unusable)?)
    }

    fn of<I: Iterator<Item = Time> + Send>(
        &self,
        arrivals: I,
    ) -> anyhow::Result<impl Iterator<Item = Request> + Send + use<I>> {
        let (prompt, output) = (self.prompt.clone(), self.output.clone());
        let lengths = LengthsSpec::Independent { prompt, output }.build().map_err(unusable)?;
        let seeds = SeedTree::root(self.seed);
        let mut streams = LengthStreams::new(seeds.child("lengths"));
        let common = seeds.child("shared").seed();
        let own = seeds.child("tails");
        let shared_tokens = self.shared_tokens;
        Ok(arrivals.enumerate().map(move |(index, at)| {
            let (prompt, output) = lengths.draw(&mut streams);
            let mut request = Request::new(at, prompt.saturating_add(shared_tokens), output);
            if shared_tokens > 0 {
                let tail = own.child_at(index as u64).seed();
                let pieces = [(common, shared_tokens), (tail, prompt)];
                let pieces = pieces.map(|(stream, tokens)| Piece { stream, tokens });
                request.content = Content::Pieces(pieces.into());
            }
            request
        }))
    }
}

/// The requests of a trace, all lengths divided by `scale`, all times by `speed`.
///
/// # Errors
/// Files that cannot be opened or read as a trace.
pub fn trace(path: &Path, scale: u32, speed: f64) -> anyhow::Result<Vec<Request>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let named = |error| unusable(format!("{}: {error}", path.display()));
    let reader = TraceReader::new(BufReader::new(file), None, ReadOptions::default());
    let (rows, _) = reader.map_err(named)?.read_sorted().map_err(named)?;
    let first = rows.first().map_or(0, |row| row.arrival.0);
    let rows = rows.into_iter().map(|mut row| {
        row.arrival = Time(row.arrival.0 - first);
        shrink(row, scale)
    });
    Ok(stretch(rows, 1.0 / speed).collect())
}

/// A request with all lengths divided.
fn shrink(mut request: Request, scale: u32) -> Request {
    if scale == 1 {
        return request;
    }
    request.output_tokens = (request.output_tokens / scale).max(1);
    match &mut request.content {
        Content::Unique => request.prompt_tokens = (request.prompt_tokens / scale).max(1),
        Content::Blocks { block_tokens, .. } => {
            *block_tokens = (*block_tokens / scale).max(1);
            request.prompt_tokens = (request.prompt_tokens / scale).max(1);
        }
        Content::Pieces(pieces) => {
            pieces.iter_mut().for_each(|piece| piece.tokens = (piece.tokens / scale).max(1));
            request.prompt_tokens = pieces.iter().map(|piece| piece.tokens).sum::<u32>().max(1);
        }
    }
    request
}


/// Requests as they are asked, numbered from 0.
pub fn asks(
    requests: impl Iterator<Item = Request> + Send,
    prompts: Arc<Prompts>,
) -> impl Iterator<Item = Ask> + Send {
    requests.enumerate().map(move |(index, request)| prompts.ask(index, request))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(shared_tokens: u32) -> Generated {
        let prompt = "10-20".parse::<Counts>().unwrap().0;
        Generated { prompt, output: CountSpec::constant(5), shared_tokens, seed: 3 }
    }

    #[test]
    fn counts_are_spelt_in_four_ways() {
        let of = |text: &str| text.parse::<Counts>().unwrap().0;
        assert_eq!(of("128"), CountSpec::constant(128));
        assert_eq!(of("64-256").dist, DistSpec::Integers { low: 64, high: 256 });
        assert_eq!(of("exp:5.5").dist, DistSpec::Exponential { mean: 5.5 });
        assert_eq!(of("lognormal:800:1").dist, DistSpec::LogNormal { median: 800.0, sigma: 1.0 });
        for bad in ["", "0", "-5", "5-", "6-5", "exp", "exp:0", "exp:nan", "lognormal:1", "x:1"] {
            assert!(bad.parse::<Counts>().is_err(), "{bad}");
        }
    }

    #[test]
    fn prompts_share_what_they_should_and_nothing_else() {
        for vocabulary in [Some(50_000), None] {
            let prompts = Prompts { vocabulary, shared_tokens: 8, seed: 3 };
            let asks: Vec<Ask> =
                asks(generated(8).at_once().unwrap().take(20), Arc::new(prompts)).collect();
            for (i, ask) in asks.iter().enumerate() {
                assert_eq!(ask.index, i);
                match (&ask.prompt, &asks[0].prompt) {
                    (Prompt::Tokens(a), Prompt::Tokens(b)) => {
                        assert!((18..=28).contains(&a.len()));
                        assert_eq!(a[..8], b[..8]);
                        assert!(i == 0 || a[8..12] != b[8..12]);
                    }
                    (
                        Prompt::Text { shared: a, own },
                        Prompt::Text { shared: b, own: first },
                    ) => {
                        assert_eq!((a, a.split(' ').count()), (b, 8));
                        assert!((10..=20).contains(&own.split(' ').count()));
                        assert!(i == 0 || own != first);
                        assert_eq!(ask.prompt.messages().len(), 2);
                    }
                    _ => panic!("one kind"),
                }
            }
        }
    }

    #[test]
    fn arrivals_are_as_many_as_asked_for_and_the_same_again() {
        let times = |cv| -> Vec<u64> {
            let requests = generated(0).at_rate(50.0, cv).unwrap();
            requests.take_while(|r| r.arrival.0 < 100_000_000_000).map(|r| r.arrival.0).collect()
        };
        // 5000 expected; the standard deviation is 71 for a Poisson process.
        let poisson = times(1.0);
        assert!((4700..5300).contains(&poisson.len()), "{}", poisson.len());
        assert_eq!(poisson, times(1.0));
        assert_ne!(poisson, times(2.0));
    }

    #[test]
    fn traces_are_shrunk_and_sped_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        let row = |at: u64, blocks: &str| {
            format!(
                "{{\"timestamp\": {at}, \"input_length\": 1000, \"output_length\": 50, \
                 \"hash_ids\": {blocks}}}\n"
            )
        };
        std::fs::write(&path, row(1000, "[1, 2]") + &row(3000, "[1, 3]")).unwrap();
        let rows = trace(&path, 8, 2.0).unwrap();
        assert_eq!(rows.iter().map(|r| r.arrival.0).collect::<Vec<_>>(), [0, 1_000_000_000]);
        assert_eq!((rows[1].prompt_tokens, rows[1].output_tokens), (125, 6));
        let prompts = Prompts { vocabulary: Some(1000), shared_tokens: 0, seed: 1 };
        let asks: Vec<Ask> = asks(rows.into_iter(), Arc::new(prompts)).collect();
        let tokens = |i: usize| match &asks[i].prompt {
            Prompt::Tokens(tokens) => tokens.clone(),
            Prompt::Text { .. } => panic!("ids were asked for"),
        };
        assert_eq!(tokens(0)[..64], tokens(1)[..64]);
        assert_ne!(tokens(0)[64..], tokens(1)[64..]);
        std::fs::write(&path, "nonsense\n").unwrap();
        assert!(trace(&path, 1, 1.0).unwrap_err().to_string().contains("line 1"));
    }
}
