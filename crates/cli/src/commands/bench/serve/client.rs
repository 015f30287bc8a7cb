//! One request over HTTP: what is sent, what came back, and when.

use std::{
    io::BufReader,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Value, json};
use ureq::Agent;

use super::{
    plan::{Ask, Prompt},
    sse::{Events, Next},
};

/// Which of OpenAI's endpoints is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Endpoint {
    /// /v1/completions: prompts of exactly so many tokens, where the server says its vocabulary
    Completions,
    /// /v1/chat/completions: prompts of about so many tokens
    Chat,
}

impl Endpoint {
    const fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// What makes an answer useless, by kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// No connection, or it broke before an answer began.
    Connection,
    /// It took longer than `--timeout`.
    Timeout,
    /// An answer with this status.
    Status(u16),
    /// The answer is no stream of events.
    NotAStream,
    /// The connection ended before the answer did.
    Cut,
    /// Something in the stream is no event, or no event of this protocol.
    Malformed,
    /// The server told of an error within the stream.
    Reported,
    /// The stream ended in good order, but no reason why the answer ends was given.
    Unfinished,
    /// The answer has fewer tokens than it was to have.
    Short,
    /// The answer has no text at all.
    Empty,
    /// What it waits for never ended.
    NeverReady,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Status(status) => return write!(f, "http_{status}"),
            Self::NotAStream => "not_a_stream",
            Self::Cut => "cut_off",
            Self::Malformed => "malformed",
            Self::Reported => "reported",
            Self::Unfinished => "unfinished",
            Self::Short => "short",
            Self::Empty => "empty",
            Self::NeverReady => "never_ready",
        })
    }
}

/// How one request went. Moments are since the start of the run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Its number.
    pub index: usize,
    /// When it should have been sent.
    pub due: Duration,
    /// When it was.
    pub sent: Duration,
    /// When the first text came.
    pub first: Option<Duration>,
    /// When the last text came.
    pub last: Duration,
    /// When it was over.
    pub end: Duration,
    /// Times between texts, in milliseconds.
    pub gaps_ms: Vec<f32>,
    /// Its text.
    pub text: String,
    /// What the server says of its tokens.
    pub usage: Option<Usage>,
    /// Why it is useless, and what was said.
    pub failure: Option<(Failure, String)>,
}

impl Outcome {
    /// Tokens of the answer: as the server counts, or else the pieces that came.
    pub fn output_tokens(&self) -> u64 {
        let pieces = self.gaps_ms.len() as u64 + u64::from(self.first.is_some());
        self.usage.map_or(pieces, |usage| usage.completion_tokens)
    }

    /// From when it should have been sent to the first text.
    pub fn ttft_ms(&self) -> Option<f64> {
        Some(ms(self.first?.saturating_sub(self.due)))
    }

    /// The mean time between tokens.
    pub fn tpot_ms(&self) -> Option<f64> {
        let tokens = self.output_tokens().checked_sub(1).filter(|&n| n > 0)?;
        Some(ms(self.last.saturating_sub(self.first?)) / tokens as f64)
    }

    /// From when it should have been sent to the end.
    pub fn e2e_ms(&self) -> f64 {
        ms(self.end.saturating_sub(self.due))
    }
}

/// Milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Tokens as the server counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub cached_tokens: u64,
}

/// How requests are asked.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    url: String,
    key: Option<String>,
    endpoint: Endpoint,
    model: String,
    temperature: f32,
    ignore_eos: bool,
    keep_text: bool,
}

/// What a [`Client`] needs to know.
#[derive(Debug)]
pub struct Settings {
    /// The server: scheme, host and port.
    pub url: String,
    /// What opens it.
    pub key: Option<String>,
    /// Which endpoint.
    pub endpoint: Endpoint,
    /// The model's name; the server's first where there is none.
    pub model: Option<String>,
    /// Of sampling.
    pub temperature: f32,
    /// Answers are as long as was asked for.
    pub ignore_eos: bool,
    /// The longest that a request may take.
    pub timeout: Duration,
    /// Whether texts are looked at afterwards.
    pub keep_text: bool,
}

impl Client {
    /// A client; it asks the server for its models and its vocabulary.
    ///
    /// # Errors
    /// A server that does not answer, or without the model.
    pub fn new(settings: Settings) -> anyhow::Result<(Self, Option<u32>)> {
        let agent: Agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(settings.timeout.min(Duration::from_secs(30))))
            .timeout_global(Some(settings.timeout))
            // A connection for each request: servers close idle ones when they like, and a request
            // that meets one that is being closed would be told as a failure.
            .max_idle_connections(0)
            .accept_encoding("identity")
            .user_agent(concat!("dunlin/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        let url = settings.url.trim_end_matches('/').trim_end_matches("/v1").to_string();
        let mut client = Self {
            agent,
            url,
            key: settings.key,
            endpoint: settings.endpoint,
            model: String::new(),
            temperature: settings.temperature,
            ignore_eos: settings.ignore_eos,
            keep_text: settings.keep_text,
        };
        let models = client.get("/v1/models").map_err(|error| match settings.model {
            // A name is enough where a server does not list its models.
            Some(_) => None,
            None => Some(error),
        });
        let models = match models {
            Ok(models) => models,
            Err(None) => Value::Null,
            Err(Some(error)) => return Err(error),
        };
        let wanted = settings.model;
        let listed = models["data"].as_array().into_iter().flatten();
        let mut listed = listed.filter_map(|m| Some((m["id"].as_str()?, &m["meta"]["n_vocab"])));
        let first = listed.find(|(id, _)| wanted.as_deref().is_none_or(|name| name == *id));
        client.model = wanted
            .or_else(|| first.map(|(id, _)| id.to_string()))
            .ok_or_else(|| anyhow::anyhow!("{} lists no model: name one", client.url))?;
        let own = client.get("/model_info").ok().and_then(|info| info["vocab_size"].as_u64());
        let vocabulary = own.or_else(|| first?.1.as_u64());
        Ok((client, vocabulary.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0)))
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What the server says at a path.
    ///
    /// # Errors
    /// No answer, or one that is no success or no JSON.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.url);
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut answer = request.call().map_err(|e| anyhow::anyhow!("{url}: {e}"))?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string()?;
        anyhow::ensure!(status.is_success(), "{url}: {status}: {}", excerpt(&text));
        serde_json::from_str(&text).map_err(|e| anyhow::anyhow!("{url}: no JSON: {e}"))
    }

    /// A request's body.
    fn body(&self, ask: &Ask) -> String {
        let mut body = json!({
            "model": self.model,
            "max_tokens": ask.output_tokens,
            "temperature": self.temperature,
            "seed": ask.seed,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if self.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        match (&ask.prompt, self.endpoint) {
            (prompt, Endpoint::Chat) => body["messages"] = prompt.messages().into(),
            (Prompt::Tokens(tokens), Endpoint::Completions) => {
                body["prompt"] = tokens.as_slice().into();
            }
            (prompt, Endpoint::Completions) => body["prompt"] = prompt.text().into(),
        }
        body.to_string()
    }

    /// Sends a request and reads its answer to the end. Blocks.
    pub fn call(&self, ask: &Ask, due: Duration, start: Instant) -> Outcome {
        let body = self.body(ask);
        let mut outcome = Outcome { index: ask.index, due, ..Outcome::default() };
        outcome.sent = start.elapsed();
        if let Err((failure, said)) = self.exchange(body, start, &mut outcome) {
            outcome.failure = Some((failure, excerpt(&said)));
        }
        outcome.end = if outcome.end == Duration::ZERO { start.elapsed() } else { outcome.end };
        if outcome.failure.is_none() {
            outcome.failure = self.judge(ask, &outcome);
        }
        if !self.keep_text {
            outcome.text = String::new();
        }
        outcome
    }

    /// What is wrong with an answer that came in good order.
    fn judge(&self, ask: &Ask, outcome: &Outcome) -> Option<(Failure, String)> {
        let tokens = outcome.output_tokens();
        if tokens == 0 {
            return Some((Failure::Empty, "there is no token".into()));
        }
        let counted = outcome.usage.is_some() && self.ignore_eos;
        (counted && tokens < u64::from(ask.output_tokens)).then(|| {
            (Failure::Short, format!("{tokens} tokens instead of {}", ask.output_tokens))
        })
    }

    fn exchange(
        &self,
        body: String,
        start: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), (Failure, String)> {
        let mut request = self
            .agent
            .post(format!("{}{}", self.url, self.endpoint.path()))
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut answer = request.send(body).map_err(|error| match &error {
            ureq::Error::Timeout(_) => (Failure::Timeout, error.to_string()),
            ureq::Error::Protocol(_) => (Failure::Malformed, error.to_string()),
            _ => (Failure::Connection, error.to_string()),
        })?;
        let status = answer.status().as_u16();
        if status != 200 {
            let said = answer.body_mut().with_config().limit(1 << 16).read_to_string();
            return Err((Failure::Status(status), said.unwrap_or_default()));
        }
        let kind = answer.headers().get("content-type").and_then(|v| v.to_str().ok());
        if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            return Err((Failure::NotAStream, kind.unwrap_or("no content type").to_string()));
        }
        let body = answer.into_body().into_with_config().limit(u64::MAX).reader();
        read(&mut Events::new(BufReader::new(body)), start, outcome)
    }
}

/// Reads a stream's events into an outcome.
fn read(
    events: &mut Events<impl std::io::BufRead>,
    start: Instant,
    outcome: &mut Outcome,
) -> Result<(), (Failure, String)> {
    let (mut finished, mut done) = (false, false);
    loop {
        let next = events.next().map_err(|error| match ureq::Error::from(error) {
            ureq::Error::Timeout(which) => (Failure::Timeout, which.to_string()),
            error => (Failure::Cut, error.to_string()),
        });
        let data = match next {
            // What the connection does after the end of the answer matters to nobody.
            Err(_) if done => break,
            Err(failure) => return Err(failure),
            Ok(Next::End) if done => break,
            Ok(Next::End | Next::Cut) => return Err((Failure::Cut, "there is no end".into())),
            Ok(Next::Malformed(what)) => return Err((Failure::Malformed, what.into())),
            Ok(Next::Data(data)) => data,
        };
        if done {
            return Err((Failure::Malformed, "something follows the end".into()));
        }
        if data == "[DONE]" {
            done = true;
            outcome.end = start.elapsed();
            continue;
        }
        let event: Event = serde_json::from_str(data)
            .map_err(|error| (Failure::Malformed, format!("{error} in {data}")))?;
        if let Some(error) = event.error {
            return Err((Failure::Reported, error.to_string()));
        }
        if let Some(usage) = event.usage {
            let cached = usage.prompt_tokens_details.and_then(|d| d.cached_tokens);
            outcome.usage = Some(Usage {
                prompt_tokens: usage.prompt_tokens,
                completion_tokens: usage.completion_tokens,
                cached_tokens: cached.unwrap_or_default(),
            });
        }
        for choice in event.choices.unwrap_or_default() {
            finished |= choice.finish_reason.is_some();
            let delta = choice.delta.unwrap_or_default();
            for text in [choice.text, delta.reasoning_content, delta.content].into_iter().flatten()
            {
                if !text.is_empty() {
                    note(outcome, start.elapsed(), &text);
                }
            }
        }
    }
    if finished { Ok(()) } else { Err((Failure::Unfinished, "no finish_reason came".into())) }
}

/// Text came.
fn note(outcome: &mut Outcome, now: Duration, text: &str) {
    match outcome.first {
        None => outcome.first = Some(now),
        Some(_) => outcome.gaps_ms.push(ms(now.saturating_sub(outcome.last)) as f32),
    }
    outcome.last = now;
    outcome.text.push_str(text);
}

#[derive(Deserialize)]
struct Event {
    choices: Option<Vec<Choice>>,
    usage: Option<UsageFields>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

#[derive(Deserialize)]
struct UsageFields {
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// The beginning of a text, on one line.
fn excerpt(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let cut = line.char_indices().nth(200).map_or(line.len(), |(at, _)| at);
    line[..cut].to_string()
}
