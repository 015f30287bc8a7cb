//! `dunlin eval needle`: whether a model finds a fact in a long text.
//!
//! Texts are generated from a seed: plain sentences without numbers, and among them the codes of a
//! few cities. The model is asked for one of them by beginning the sentence again, so that base
//! models can be tested as well as tuned ones. Answers are greedy.

use std::process::ExitCode;

use anyhow::Context as _;
use dunlin_tokenizer::{EncodeOptions, Tokenizer};
use dunlin_units::{SeedTree, Stream};
use serde::Serialize;

use super::{
    forward::Scorer,
    open::open,
    print,
    stats::{Interval, argmax, wilson},
};
use crate::{model_args::ModelArgs, note, outcome::unusable};

/// Tokens that an answer may have: a space and five digits, with some to spare.
const ANSWER_TOKENS: usize = 12;

/// Tokens of a text's length that are kept free: for the answer, for BOS, and for sentences that
/// take more tokens together than alone.
const RESERVED_TOKENS: usize = ANSWER_TOKENS + 8;

/// Ask for facts hidden in generated texts
///
/// Each text holds the codes of several cities between plain sentences; the model is asked for one
/// of them. Accuracy comes with Wilson's 95% interval, by length and by depth.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Lengths of the texts, in tokens
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_values_t = [512, 1024, 2048])]
    lengths: Vec<usize>,

    /// Where the fact lies, in percent of the text
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    #[arg(default_values_t = [0, 25, 50, 75, 100])]
    depths: Vec<u8>,

    /// Texts for each length and depth
    #[arg(long, value_name = "N", default_value_t = 4)]
    trials: usize,

    /// Facts of the same kind about other cities in each text
    #[arg(long, value_name = "N", default_value_t = 3)]
    distractors: usize,

    /// The seed of the texts
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// What came out.
#[derive(Debug, Serialize)]
struct Report {
    accuracy: f64,
    /// Wilson's interval at 95%.
    ci95: Interval,
    hits: usize,
    trials: usize,
    by_length: Vec<Group>,
    by_depth: Vec<Group>,
    seed: u64,
    activations: String,
    kv_type: String,
    texts: Vec<Trial>,
}

/// The trials that have a length, or a depth, in common.
#[derive(Debug, Serialize)]
struct Group {
    value: usize,
    hits: usize,
    trials: usize,
    accuracy: f64,
    ci95: Interval,
}

/// One text and its answer.
#[derive(Debug, Clone, Serialize)]
struct Trial {
    length: usize,
    depth: usize,
    /// Tokens that the prompt really has.
    tokens: usize,
    expected: String,
    answer: String,
    hit: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.lengths.is_empty() || args.depths.is_empty() || args.trials == 0 {
        return Err(unusable("there is nothing to ask: no lengths, depths or trials"));
    }
    if args.depths.iter().any(|&d| d > 100) {
        return Err(unusable("--depths are percentages, 0 to 100"));
    }
    if args.distractors >= CITIES.len() {
        return Err(unusable(format!("--distractors is at most {}", CITIES.len() - 1)));
    }
    let longest = args.lengths.iter().max().copied().unwrap_or(0);
    let kv_type = args.model.kv_type()?;
    let mut opened = open(&args.model, args.model.activations, kv_type, longest)?;
    let tokenizer = &opened.tokenizer;
    let mut scorer = Scorer::new(&mut *opened.backend);
    let root = SeedTree::root(args.seed).child("needle");
    let mut texts = Vec::new();
    for &length in &args.lengths {
        for &depth in &args.depths {
            for trial in 0..args.trials {
                let node =
                    root.child_at(length as u64).child_at(u64::from(depth)).child_at(trial as u64);
                let setting =
                    Setting { length, depth: depth.into(), distractors: args.distractors };
                let text = Text::generate(tokenizer, &setting, node)?;
                texts.push(text.ask(&mut scorer, tokenizer, &setting)?);
            }
        }
        let so_far = texts.iter().filter(|t: &&Trial| t.hit).count();
        note!("{length} tokens done: {so_far} of {} found so far", texts.len());
    }
    let report = Report::new(args, texts, kv_type.to_string());
    print(args.json, &report, &report.text())
}

/// What a text is to be like.
struct Setting {
    length: usize,
    /// In percent.
    depth: usize,
    distractors: usize,
}

/// A text, the beginning of its question, and the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text {
    prompt: Vec<u32>,
    code: String,
}

impl Text {
    fn generate(tokenizer: &Tokenizer, setting: &Setting, node: SeedTree) -> anyhow::Result<Self> {
        let mut random = node.stream();
        let mut cities: Vec<&str> = CITIES.to_vec();
        shuffle(&mut cities, &mut random);
        let facts: Vec<(&str, String)> = cities[..=setting.distractors]
            .iter()
            .map(|&city| (city, format!("{}", 10_000 + random.next_below(90_000))))
            .collect();
        let (city, code) = facts[0].clone();
        let question = format!("\n\nThe secret code of {city} is");
        let sentence =
            |(city, code): &(&str, String)| format!("The secret code of {city} is {code}.");
        let count = |text: &str| Ok::<_, anyhow::Error>(encode(tokenizer, text, false)?.len());
        // Filler up to the length that facts and question leave.
        let mut left = setting.length.saturating_sub(count(&question)? + RESERVED_TOKENS);
        for fact in &facts {
            left = left.saturating_sub(count(&sentence(fact))?);
        }
        let mut sentences = Vec::new();
        loop {
            let filler = filler(&mut random);
            let tokens = count(&filler)?;
            if tokens > left {
                break;
            }
            left -= tokens;
            sentences.push(filler);
        }
        for fact in &facts[1..] {
            let at = random.next_below(sentences.len() as u64 + 1) as usize;
            sentences.insert(at, sentence(fact));
        }
        sentences.insert(sentences.len() * setting.depth / 100, sentence(&facts[0]));
        let text = sentences.join(" ") + &question;
        Ok(Self { prompt: encode(tokenizer, &text, true)?, code })
    }

    fn ask(
        &self,
        scorer: &mut Scorer<'_>,
        tokenizer: &Tokenizer,
        setting: &Setting,
    ) -> anyhow::Result<Trial> {
        let mut answer: Vec<u32> = Vec::new();
        let mut position = 0;
        let mut input = self.prompt.clone();
        let ends = tokenizer.end_ids();
        while answer.len() < ANSWER_TOKENS {
            let last = position + input.len() - 1;
            let mut best = 0;
            scorer.run(&input, position, last, |_, logits| {
                // Indices of a vocabulary fit.
                best = argmax(logits) as u32;
                Ok(())
            })?;
            if ends.contains(&best) {
                break;
            }
            answer.push(best);
            position = last + 1;
            input = vec![best];
        }
        let answer = tokenizer.decode(&answer, true).context("cannot read the answer")?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        Ok(Trial {
            length: setting.length,
            depth: setting.depth,
            tokens: self.prompt.len(),
            hit: first_number(&answer) == self.code,
            expected: self.code.clone(),
            answer,
        })
    }
}

fn encode(tokenizer: &Tokenizer, text: &str, whole: bool) -> anyhow::Result<Vec<u32>> {
    let options = EncodeOptions { add_special: whole, parse_special: false };
    let mut ids = tokenizer.encode(text, options).context("cannot tokenize the text")?;
    // An EOS that the vocabulary puts behind would end the question.
    if whole && tokenizer.adds_eos() && ids.last().copied() == tokenizer.special_ids().eos {
        ids.pop();
    }
    Ok(ids)
}

/// The first run of digits, or nothing.
fn first_number(text: &str) -> &str {
    let text = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    &text[..end]
}

fn shuffle(items: &mut [&str], random: &mut Stream) {
    for i in (1..items.len()).rev() {
        items.swap(i, random.next_below(i as u64 + 1) as usize);
    }
}

/// A plain sentence without a number.
fn filler(random: &mut Stream) -> String {
    let mut pick =
        |words: &[&str]| words[random.next_below(words.len() as u64) as usize].to_owned();
    format!(
        "{} {} {} {} {}.",
        pick(&[
            "The baker",
            "My neighbour",
            "An old sailor",
            "The gardener",
            "Her cousin",
            "The school teacher",
            "A young painter",
            "The bus driver",
            "His aunt",
            "The librarian"
        ]),
        pick(&[
            "talked about",
            "walked past",
            "remembered",
            "painted",
            "looked at",
            "waited for",
            "wrote about",
            "dreamed of",
            "asked about",
            "laughed about"
        ]),
        pick(&[
            "the green bridge",
            "a basket of apples",
            "the morning train",
            "the long winter",
            "a small boat",
            "the empty market",
            "the garden wall",
            "an old photograph",
            "the church bells",
            "a warm loaf of bread"
        ]),
        pick(&[
            "near the river",
            "behind the station",
            "on the hill",
            "at the corner",
            "in the kitchen",
            "under the trees",
            "by the window",
            "across the square"
        ]),
        pick(&[
            "before lunch",
            "in the evening",
            "after the rain",
            "on a quiet day",
            "while the dog slept",
            "as the sun went down",
            "without any hurry"
        ]),
    )
}

const CITIES: [&str; 24] = [
    "Lisbon", "Oslo", "Nairobi", "Lima", "Hanoi", "Dublin", "Cairo", "Athens", "Prague", "Quito",
    "Delhi", "Bogota", "Tunis", "Kyoto", "Vienna", "Havana", "Manila", "Zagreb", "Tbilisi",
    "Accra", "Bergen", "Porto", "Seville", "Dakar",
];

impl Report {
    fn new(args: &Args, texts: Vec<Trial>, kv_type: String) -> Self {
        let all = Group::of(0, &texts, |_| true);
        let lengths = args.lengths.iter();
        let depths = args.depths.iter().map(|&d| usize::from(d));
        Self {
            accuracy: all.accuracy,
            ci95: all.ci95,
            hits: all.hits,
            trials: all.trials,
            by_length: lengths.map(|&l| Group::of(l, &texts, |t| t.length == l)).collect(),
            by_depth: depths.map(|d| Group::of(d, &texts, |t| t.depth == d)).collect(),
            seed: args.seed,
            activations: args.model.activations.to_string(),
            kv_type,
            texts,
        }
    }

    fn text(&self) -> String {
        let line = |g: &Group| {
            let Interval(low, high) = g.ci95;
            format!(
                "{:>6.1}% (95%: {:.1}% to {:.1}%), {} of {}",
                g.accuracy * 100.0,
                low * 100.0,
                high * 100.0,
                g.hits,
                g.trials
            )
        };
        let all = Group {
            value: 0,
            hits: self.hits,
            trials: self.trials,
            accuracy: self.accuracy,
            ci95: self.ci95,
        };
        let mut text = format!("found          {}\n", line(&all));
        for group in &self.by_length {
            text += &format!("{:>6} tokens  {}\n", group.value, line(group));
        }
        for group in &self.by_depth {
            text += &format!("{:>5}% depth   {}\n", group.value, line(group));
        }
        text +=
            &format!("seed {}; activations {}, KV {}", self.seed, self.activations, self.kv_type);
        text
    }
}

impl Group {
    fn of(value: usize, texts: &[Trial], belongs: impl Fn(&Trial) -> bool) -> Self {
        let group: Vec<&Trial> = texts.iter().filter(|t| belongs(t)).collect();
        let hits = group.iter().filter(|t| t.hit).count();
        Self {
            value,
            hits,
            trials: group.len(),
            accuracy: hits as f64 / group.len().max(1) as f64,
            ci95: wilson(hits, group.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_the_answer() {
        assert_eq!(first_number(" 48213. The"), "48213");
        assert_eq!(first_number("it is 7, or 8"), "7");
        assert_eq!(first_number("nothing"), "");
        assert_eq!(first_number(""), "");
    }

    #[test]
    fn fillers_have_no_numbers_and_repeat_with_the_seed() {
        let sentences = |seed| {
            let mut random = SeedTree::root(seed).stream();
            (0..50).map(|_| filler(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(sentences(1), sentences(1));
        assert_ne!(sentences(1), sentences(2));
        for sentence in sentences(1) {
            assert!(!sentence.contains(|c: char| c.is_ascii_digit()), "{sentence}");
            assert!(CITIES.iter().all(|city| !sentence.contains(city)), "{sentence}");
        }
    }

    #[test]
    fn groups_count_their_own() {
        let trial = |length, hit| Trial {
            length,
            depth: 0,
            tokens: 0,
            expected: String::new(),
            answer: String::new(),
            hit,
        };
        let texts = [trial(1, true), trial(1, false), trial(2, true)];
        let one = Group::of(1, &texts, |t| t.length == 1);
        assert_eq!((one.hits, one.trials, one.accuracy), (1, 2, 0.5));
        assert_eq!(one.ci95, wilson(1, 2));
        assert_eq!(Group::of(3, &texts, |t| t.length == 3).trials, 0);
    }
}
