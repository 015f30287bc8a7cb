//! Scripts of events, and what the core makes of them, compared as text. Each file of `scenarios`
//! holds commands, and below each, indented, what came of it; `DUNLIN_UPDATE=1` writes that anew.
//!
//! ```text
//! # A remark.
//! config block=4 blocks=16 step=16 [running= inflight= policy= clip= chunk= disk= swap= cache=off]
//! budget TENANT BLOCKS
//! submit r1 prompt=40 max=3 [choices= class= tenant= ns= due= expires= predicted= session=1:all]
//! abort r1
//! step [fail=0,2] [propose=r1:5,6,7]      the oldest step ends, one millisecond later
//! steps N
//! moved [fail]                            all moves in flight end
//! wait MS
//! fork 1 2 | rewind 1 TOKENS | close 1 | restore 1 prompt=8
//! ```
//! A prompt is a list of pieces joined by `+`: `a:12` is 12 tokens that every `a:` begins with, and
//! a plain number is so many tokens of the request's own. Times (`due`, `expires`) are milliseconds
//! from the beginning. The token at position p of a choice c is 100 * (c + 1) + p.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests may look outside")]

use std::{collections::BTreeMap, fmt::Write, path::Path, sync::Arc};

use dunlin_kvcache::{CacheConfig, EvictionKind, Move, Namespace, NamespaceKey, Place, TenantId};
use dunlin_scheduler::{
    Chunking, Class, Commit, CoreConfig, DraftControl, DraftNode, DrafterKind, Effects, Event,
    Keep, Proposal, SeqOp, SessionOp, SessionUse, Speculate, StepOutcome, StepPlan, Submission,
    SwapCost, checker::CheckedCore,
};
use dunlin_units::{RequestId, SeqId, SessionId, Time};

const STEP_NS: u64 = 1_000_000;

#[derive(Default, Clone)]
struct Seq {
    request: Option<u64>,
    choice: u32,
    length: u32,
}

/// What runs a script.
struct Script {
    core: Option<CheckedCore>,
    effects: Effects,
    now: u64,
    seqs: BTreeMap<u32, Seq>,
    steps: std::collections::VecDeque<StepPlan>,
    moves: Vec<Move>,
}

/// The `key=value` words of a command.
fn options<'a>(words: &[&'a str]) -> BTreeMap<&'a str, &'a str> {
    words.iter().filter_map(|w| w.split_once('=')).collect()
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

fn prompt(text: &str, own: u32) -> Arc<[u32]> {
    let mut tokens = Vec::new();
    for piece in text.split('+') {
        let (stream, count) = match piece.split_once(':') {
            Some((name, count)) => (1000 * u32::from(name.as_bytes()[0]), number::<u32>(count)),
            None => (1_000_000 + 1000 * own, number(piece)),
        };
        let from = tokens.len() as u32;
        tokens.extend((from..from + count).map(|i| stream + i));
    }
    tokens.into()
}

fn namespace(n: u64) -> Namespace {
    Namespace::new(&NamespaceKey { tenant_salt: n, ..NamespaceKey::default() })
}

fn request(text: &str) -> RequestId {
    RequestId(number(text.trim_start_matches('r')))
}

impl Script {
    fn run(text: &str) -> String {
        let mut script = Self {
            core: None,
            effects: Effects::default(),
            now: 0,
            seqs: BTreeMap::new(),
            steps: std::collections::VecDeque::new(),
            moves: Vec::new(),
        };
        let mut out = String::new();
        for line in text.lines().filter(|l| !l.starts_with("    ")) {
            writeln!(out, "{line}").unwrap();
            let command = line.split('#').next().unwrap_or_default().trim();
            if !command.is_empty() {
                script.command(command, &mut out);
            }
        }
        out
    }

    fn command(&mut self, line: &str, out: &mut String) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let o = options(&words);
        match words[0] {
            "config" => self.core = Some(CheckedCore::new(config(&o)).expect("settings")),
            "budget" => {
                let core = &mut self.core.as_mut().expect("a config comes first").core;
                core.set_budget(TenantId(number(words[1])), Some(number(words[2])));
            }
            "submit" => {
                let event = Event::Submit(Box::new(submission(words[1], &o)));
                self.advance(vec![event], out);
            }
            "abort" => self.advance(vec![Event::Abort(request(words[1]))], out),
            "step" => self.step(&o, out),
            "steps" => (0..number(words[1])).for_each(|_| self.step(&o, out)),
            "moved" => {
                let ok = words.get(1) != Some(&"fail");
                let moves = std::mem::take(&mut self.moves);
                let events = moves.iter().map(|m| Event::MoveDone { id: m.id, ok }).collect();
                self.advance(events, out);
            }
            "wait" => {
                self.now += number::<u64>(words[1]) * STEP_NS;
                self.advance(Vec::new(), out);
            }
            _ => self.advance(vec![Event::Session(session_op(&words, &o))], out),
        }
    }

    fn step(&mut self, o: &BTreeMap<&str, &str>, out: &mut String) {
        let Some(plan) = self.steps.pop_front() else {
            writeln!(out, "    no step is in flight").unwrap();
            return;
        };
        self.now += STEP_NS;
        let failing: Vec<u32> =
            o.get("fail").map_or(Vec::new(), |f| f.split(',').map(number).collect());
        let mut outcome = StepOutcome { step: plan.step, duration_ns: STEP_NS, ..<_>::default() };
        let (mut samples, mut draft) = (plan.samples.as_slice(), plan.draft.as_slice());
        for (index, entry) in (0..).zip(&plan.entries) {
            let (own, rest) = samples.split_at(entry.samples as usize);
            samples = rest;
            let (nodes, rest) = draft.split_at(entry.draft as usize);
            draft = rest;
            let known = self.seqs[&entry.seq.0].length >= entry.first_position + entry.tokens;
            if failing.contains(&index) || !known {
                outcome.failed.push(index);
                outcome.commits.extend(own.iter().map(|_| Commit::default()));
                continue;
            }
            for seq in own {
                let before = outcome.tokens.len();
                self.choose(*seq, nodes, &mut outcome.tokens);
                let tokens = (outcome.tokens.len() - before) as u32;
                outcome.commits.push(Commit { tokens, end: None });
            }
        }
        if let Some((r, tokens)) = o.get("propose").and_then(|p| p.split_once(':')) {
            let id = request(r).0;
            let seq = self.seqs.iter().find(|s| s.1.request == Some(id)).expect("its sequence").0;
            // A node follows the one before it, or the one that is named behind "@".
            let nodes = (0..).zip(tokens.split(',')).map(|(i, node)| {
                let (token, parent) = match node.split_once('@') {
                    Some((token, "root")) => (token, DraftNode::ROOT),
                    Some((token, parent)) => (token, number(parent)),
                    None => (node, u32::checked_sub(i, 1).unwrap_or(DraftNode::ROOT)),
                };
                let drafter = DrafterKind::Lookup;
                DraftNode { token: number(token), parent, confidence: 1 << 16, drafter }
            });
            outcome.proposals.push(Proposal {
                seq: SeqId(*seq),
                drafter: DrafterKind::Lookup,
                nodes: nodes.collect(),
            });
        }
        self.advance(vec![Event::StepDone(Box::new(outcome))], out);
    }

    /// The next token of a sequence, and those of a draft as far as they are right.
    fn choose(&mut self, seq: SeqId, nodes: &[DraftNode], tokens: &mut Vec<u32>) {
        let s = self.seqs.get_mut(&seq.0).expect("a sequence");
        let mut parent = DraftNode::ROOT;
        loop {
            let token = 100 * (s.choice + 1) + s.length;
            tokens.push(token);
            s.length += 1;
            match nodes.iter().position(|n| n.parent == parent && n.token == token) {
                Some(at) => parent = at as u32,
                None => return,
            }
        }
    }

    fn advance(&mut self, mut events: Vec<Event>, out: &mut String) {
        let core = self.core.as_mut().expect("a config comes first");
        let result = core.advance(Time(self.now), &mut events, &mut self.effects);
        result.unwrap_or_else(|violation| panic!("{violation}\n{out}"));
        core.core.check().unwrap_or_else(|problem| panic!("{problem}\n{out}"));
        let effects = std::mem::take(&mut self.effects);
        for op in &effects.ops {
            self.op(op);
        }
        self.moves.extend(&effects.moves);
        self.print(&effects, out);
        self.steps.extend(effects.plan);
    }

    fn op(&mut self, op: &SeqOp) {
        match op {
            SeqOp::Start { seq, request, choice } => {
                let (request, choice) = (request.map(|r| r.0), *choice);
                self.seqs.insert(seq.0, Seq { request, choice, length: 0 });
            }
            SeqOp::Fork { to, tokens, request, choice, .. } => {
                let (request, choice, length) = (request.map(|r| r.0), *choice, *tokens);
                self.seqs.insert(to.0, Seq { request, choice, length });
            }
            SeqOp::Assign { seq, request, choice } => {
                let seq = self.seqs.get_mut(&seq.0).expect("a sequence");
                (seq.request, seq.choice) = (request.map(|r| r.0), *choice);
            }
            SeqOp::Append { seq, tokens } => {
                self.seqs.get_mut(&seq.0).expect("a sequence").length += tokens.len() as u32;
            }
            SeqOp::Truncate { seq, tokens, .. } => {
                self.seqs.get_mut(&seq.0).expect("a sequence").length = *tokens;
            }
            _ => {}
        }
    }

    fn print(&self, effects: &Effects, out: &mut String) {
        let mut line = |text: String| writeln!(out, "    {text}").unwrap();
        let mut given: Option<(u32, Vec<u32>)> = None;
        for op in effects.ops.iter().map(Some).chain([None]) {
            if let (Some(SeqOp::Block { seq, block }), Some((to, blocks))) = (op, &mut given)
                && *to == seq.0
            {
                blocks.push(*block);
                continue;
            }
            if let Some((to, blocks)) = given.take() {
                line(format!("s{to} gets blocks {blocks:?}"));
            }
            match op {
                Some(SeqOp::Block { seq, block }) => given = Some((seq.0, vec![*block])),
                Some(op) => line(describe(op)),
                None => {}
            }
        }
        for m in &effects.moves {
            let place = |p| match p {
                Place::Memory(block) => format!("block {block}"),
                Place::Disk(slot) => format!("slot {slot}"),
            };
            line(format!("move {} to {}", place(m.from), place(m.to)));
        }
        for o in &effects.outputs {
            line(format!("r{}.{} says {}", o.request.0, o.choice, o.token));
        }
        for e in &effects.session_errors {
            line(format!("session {}: {}", e.session.0, e.problem));
        }
        for f in &effects.finished {
            let b = &f.bill;
            line(format!(
                "r{} ends {:?}: {} prompt, {} context, {} cached, {} out, {} computed, \
                 {} recomputed, {} accepted, {} preemptions, {} loaded, {} blocks at most",
                f.request.0,
                f.ends,
                b.prompt_tokens,
                b.context_tokens,
                b.cached_tokens,
                b.output_tokens,
                b.computed_tokens,
                b.recomputed_tokens,
                b.accepted_tokens,
                b.preemptions,
                b.blocks_loaded,
                b.peak_blocks
            ));
        }
        if let Some(plan) = &effects.plan {
            line(self.describe_plan(plan));
        }
    }

    /// `s0 (r1) 0..16` for a chunk, `*` behind it where it is sampled, `+2` draft nodes and the blocks
    /// of their branches.
    fn describe_plan(&self, plan: &StepPlan) -> String {
        let mut text = format!("step {}:", plan.step.0);
        let mut scratch = plan.scratch.as_slice();
        let mut samples = plan.samples.as_slice();
        for (i, e) in plan.entries.iter().enumerate() {
            let seq = &self.seqs[&e.seq.0];
            let (from, to) = (e.first_position, e.first_position + e.tokens);
            let comma = if i > 0 { "," } else { "" };
            let of = seq.request.map_or(String::new(), |r| format!(" (r{r})"));
            write!(text, "{comma} s{}{of} {from}..{to}", e.seq.0).unwrap();
            if e.draft > 0 {
                write!(text, " +{}", e.draft).unwrap();
            }
            let (blocks, rest) = scratch.split_at(e.scratch as usize);
            scratch = rest;
            if !blocks.is_empty() {
                write!(text, " (branches in {blocks:?})").unwrap();
            }
            let (own, rest) = samples.split_at(e.samples as usize);
            samples = rest;
            match own {
                [] => {}
                [_] => text.push_str(" *"),
                _ => {
                    let all: Vec<String> = own.iter().map(|s| format!("s{}", s.0)).collect();
                    write!(text, " * for {}", all.join(" ")).unwrap();
                }
            }
        }
        text
    }
}

fn describe(op: &SeqOp) -> String {
    let of = |request: &Option<RequestId>, choice: &u32| {
        request.map_or("nobody".into(), |r| format!("r{}.{choice}", r.0))
    };
    match op {
        SeqOp::Start { seq, request, choice } => {
            format!("s{} starts for {}", seq.0, of(request, choice))
        }
        SeqOp::Fork { from, to, tokens, blocks, request, choice } => format!(
            "s{} is a copy of s{}, {tokens} tokens and {blocks} blocks, for {}",
            to.0,
            from.0,
            of(request, choice)
        ),
        SeqOp::Assign { seq, request, choice } => {
            format!("s{} is now for {}", seq.0, of(request, choice))
        }
        SeqOp::Append { seq, tokens } => format!("s{} gets {} tokens", seq.0, tokens.len()),
        SeqOp::Truncate { seq, tokens, blocks } => {
            format!("s{} keeps {tokens} tokens and {blocks} blocks", seq.0)
        }
        SeqOp::Block { seq, block } => format!("s{} gets block {block}", seq.0),
        SeqOp::Replace { seq, index, block } => {
            format!("s{} has block {block} at {index}", seq.0)
        }
        SeqOp::Copy { from, to, tokens } => format!("copy {tokens} of block {from} to {to}"),
        SeqOp::Fill { seq, session } => format!("fill s{} for session {}", seq.0, session.0),
        SeqOp::End { seq } => format!("s{} is over", seq.0),
    }
}

fn config(o: &BTreeMap<&str, &str>) -> CoreConfig {
    let get = |key, default| o.get(key).map_or(default, |text| number(text));
    let cache = CacheConfig {
        block_tokens: get("block", 4),
        block_count: get("blocks", 64),
        disk_slots: get("disk", 0),
        eviction: EvictionKind::Lru,
        prefix_cache: o.get("cache") != Some(&"off"),
        hash_seed: 1,
    };
    let mut config = CoreConfig::new(cache, get("step", 64) as u32);
    config.max_running = get("running", 8) as u32;
    config.speculation.control = DraftControl::Fixed;
    config.steps_in_flight = get("inflight", 1) as u32;
    config.clip_tokens = o.get("clip").map(|c| number(c));
    if let Some(policy) = o.get("policy") {
        config.policy = policy.parse().expect("a policy");
    }
    if let Some(chunk) = o.get("chunk") {
        config.chunking = Chunking::Tokens(number(chunk));
    }
    config.swap = SwapCost { block_bytes: get("swap", 1 << 30) as u64, bytes_per_s: 1 << 30 };
    config
}

fn submission(name: &str, o: &BTreeMap<&str, &str>) -> Submission {
    let id = request(name);
    let tokens = prompt(o["prompt"], id.0 as u32);
    let get = |key, default| o.get(key).map_or(default, |text| number::<u64>(text));
    let mut s = Submission::new(id, namespace(get("ns", 0)), tokens, get("max", 1) as u32);
    s.choices = get("choices", 1) as u32;
    s.speculate = Speculate::Auto;
    s.tenant = TenantId(get("tenant", 0) as u32);
    s.due = o.get("due").map(|t| Time(number::<u64>(t) * STEP_NS));
    s.expires = o.get("expires").map(|t| Time(number::<u64>(t) * STEP_NS));
    s.predicted_tokens = o.get("predicted").map(|t| number(t));
    s.class = match o.get("class") {
        None | Some(&"normal") => Class::Normal,
        Some(&"idle") => Class::Idle,
        Some(&"low") => Class::Low,
        Some(&"high") => Class::High,
        Some(other) => panic!("no class is called {other}"),
    };
    s.session = o.get("session").map(|text| {
        let (session, keep) = text.split_once(':').expect("session=NUMBER:KEEP");
        let keep = match keep {
            "all" => Keep::All,
            "prompt" => Keep::Prompt,
            "nothing" => Keep::Nothing,
            other => panic!("nothing is kept by {other}"),
        };
        SessionUse { session: SessionId(number(session)), keep }
    });
    s
}

fn session_op(words: &[&str], o: &BTreeMap<&str, &str>) -> SessionOp {
    let session = SessionId(number(words[1]));
    match words[0] {
        "fork" => SessionOp::Fork { from: session, to: SessionId(number(words[2])) },
        "rewind" => SessionOp::Rewind { session, tokens: number(words[2]) },
        "close" => SessionOp::Close(session),
        "restore" => SessionOp::Restore {
            session,
            tenant: TenantId(0),
            namespace: namespace(0),
            tokens: prompt(o["prompt"], 999),
        },
        other => panic!("no command is called {other}"),
    }
}

#[test]
fn scripts_give_the_plans_that_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 16, "scripts are missing");
    let update = std::env::var_os("DUNLIN_UPDATE").is_some();
    let mut wrong = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let now = Script::run(&text);
        if update {
            std::fs::write(&path, now).unwrap();
        } else if now != text {
            let line = text.lines().zip(now.lines()).position(|(a, b)| a != b).unwrap_or(0);
            wrong.push(format!(
                "{}:{}\n  says {:?}\n  is   {:?}",
                path.display(),
                line + 1,
                text.lines().nth(line),
                now.lines().nth(line)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
