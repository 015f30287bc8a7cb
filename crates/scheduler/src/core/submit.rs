//! Requests come in, and go before their time.

use dunlin_units::{RequestId, SeqId, Time};

use super::{
    Core, Fx,
    state::{NONE, Rank, Request, Session, Stage},
};
use crate::{
    bill::Bill,
    effects::{End, Finished, Rejection, SeqOp},
    event::{Class, Keep, Submission},
    policy,
    speculation::Speculate,
};

impl Core {
    pub(super) fn submit(&mut self, now: Time, submission: Submission, fx: Fx<'_>) {
        if let Err(rejection) = self.acceptable(&submission) {
            fx.finished.push(Finished {
                request: submission.request,
                ends: vec![End::Rejected(rejection)],
                bill: Bill { prompt_tokens: submission.prompt.len() as u64, ..Bill::default() },
            });
            return;
        }
        let key = policy::key(self.policy.as_mut(), now, &submission);
        self.arrivals += 1;
        let rank =
            Rank { idle: submission.class == Class::Idle, key, arrival: self.arrivals, choice: 0 };
        let slot = self.first_seq(&submission, fx);
        let base = self.seqs[slot].tokens.len() as u32;
        let wanted = submission.max_tokens;
        let max_tokens = self.config.clip_tokens.map_or(wanted, |clip| wanted.min(clip));
        let prompt_end = base + submission.prompt.len() as u32;
        let request = self.requests.insert(Request {
            id: submission.request,
            class: submission.class,
            choices: submission.choices,
            base,
            prompt_end,
            clipped: max_tokens < wanted,
            session: submission.session,
            seqs: vec![slot],
            ends: vec![None; submission.choices as usize],
            live: submission.choices,
            running: 0,
            expires: submission.expires,
            admitted: None,
            first_token: None,
            waits_since: now,
            bill: Bill {
                prompt_tokens: submission.prompt.len() as u64,
                context_tokens: u64::from(base),
                ..Bill::default()
            },
        });
        self.by_id.insert(submission.request, request);
        if let Some(expires) = submission.expires {
            self.expiries.insert((expires, submission.request));
        }
        let seq = &mut self.seqs[slot];
        seq.request = request;
        seq.choice = 0;
        seq.id = submission.request;
        seq.begun = false;
        seq.rank = rank;
        seq.tenant = submission.tenant;
        seq.namespace = submission.namespace;
        seq.limit = prompt_end + max_tokens;
        seq.parts = submission.choices > 1 && max_tokens > 0;
        seq.special = true;
        seq.follows = None;
        seq.lost = 0;
        seq.speculate = submission.speculate;
        seq.max_draft = submission.max_draft;
        seq.max_branches = submission.max_branches;
        seq.credit = <_>::default();
        seq.drafts = None;
        seq.draft.clear();
        self.speculation.on |= submission.speculate != Speculate::Off;
        seq.tokens.extend_from_slice(&submission.prompt);
        seq.stage = Stage::Waiting;
        fx.ops.push(SeqOp::Append { seq: SeqId(slot), tokens: submission.prompt });
        self.waiting.insert((rank, slot));
    }

    /// Whether a request can be taken on at all.
    fn acceptable(&self, s: &Submission) -> Result<(), Rejection> {
        if s.prompt.is_empty() {
            return Err(Rejection::EmptyPrompt);
        }
        let limit = self.config.max_running.min(self.config.max_step_tokens);
        if s.choices == 0 || s.choices > limit {
            return Err(Rejection::BadChoices { choices: s.choices, limit });
        }
        if self.by_id.contains_key(&s.request) {
            return Err(Rejection::Duplicate);
        }
        if self.waiting.len() as u64 >= u64::from(self.config.max_waiting) {
            return Err(Rejection::QueueFull { waiting: self.waiting.len() as u32 });
        }
        let session = s.session.and_then(|u| Some((u, self.sessions.get(&u.session)?)));
        let mut base = 0;
        if let Some((usage, session)) = session {
            if session.tenant != s.tenant || session.namespace != s.namespace {
                return Err(Rejection::SessionForeign);
            }
            if session.busy && usage.keep != Keep::Nothing {
                return Err(Rejection::SessionBusy);
            }
            base = self.seqs[session.seq].tokens.len() as u64;
        }
        // Alone, it must fit: the whole blocks of its prompt once, the others for each choice.
        let bt = u64::from(self.block_tokens);
        let prompt = base + s.prompt.len() as u64;
        let max_tokens = self.config.clip_tokens.map_or(s.max_tokens, |c| s.max_tokens.min(c));
        let longest = prompt + u64::from(max_tokens);
        let shared = prompt / bt;
        // One more where a copy on write holds two for a moment.
        let needed = shared + (longest.div_ceil(bt) - shared) * u64::from(s.choices) + 1;
        let available = self.kv.room(s.tenant) as u64;
        if needed > available || longest > u64::from(u32::MAX / 2) {
            return Err(Rejection::TooLarge { needed, available, block_tokens: self.block_tokens });
        }
        Ok(())
    }

    /// The sequence that a request begins with: a new one, or its session's, or a copy of it.
    fn first_seq(&mut self, s: &Submission, fx: Fx<'_>) -> u32 {
        let request = Some(s.request);
        if let Some(usage) = s.session {
            self.uses += 1;
            let used = self.uses;
            match (self.sessions.get_mut(&usage.session), usage.keep) {
                (Some(session), Keep::All | Keep::Prompt) => {
                    session.busy = true;
                    session.used = used;
                    let seq = session.seq;
                    fx.ops.push(SeqOp::Assign { seq: SeqId(seq), request, choice: 0 });
                    return seq;
                }
                (Some(session), Keep::Nothing) => {
                    session.used = used;
                    let from = session.seq;
                    // What a request that extends the session adds to it is not the session's yet.
                    let tokens = self.resting_tokens(from);
                    let copy = self.fork_seq(from, tokens, request, 0, fx);
                    self.keep_computed(copy, fx);
                    return copy;
                }
                (None, Keep::All | Keep::Prompt) => {
                    let seq = self.start_seq(request, fx);
                    self.sessions.insert(
                        usage.session,
                        Session {
                            id: usage.session,
                            seq,
                            tenant: s.tenant,
                            namespace: s.namespace,
                            busy: true,
                            held: false,
                            used,
                        },
                    );
                    return seq;
                }
                (None, Keep::Nothing) => {}
            }
        }
        self.start_seq(request, fx)
    }

    pub(super) fn start_seq(&mut self, request: Option<RequestId>, fx: Fx<'_>) -> u32 {
        let slot = self.new_seq();
        fx.ops.push(SeqOp::Start { seq: SeqId(slot), request, choice: 0 });
        slot
    }

    /// A new sequence with the first `tokens` tokens of another, and the blocks of those positions
    /// that are computed or planned.
    pub(super) fn fork_seq(
        &mut self,
        from: u32,
        tokens: u32,
        request: Option<RequestId>,
        choice: u32,
        fx: Fx<'_>,
    ) -> u32 {
        let slot = self.new_seq();
        let source = std::mem::take(&mut self.seqs[from]);
        // The executor has not heard of blocks that are being loaded.
        let loading = source.stage == Stage::Loading;
        let planned = if loading { 0 } else { source.planned.min(tokens) };
        let blocks = planned.div_ceil(self.block_tokens);
        let seq = &mut self.seqs[slot];
        seq.stage = source.stage;
        seq.request = source.request;
        seq.id = source.id;
        seq.choice = choice;
        seq.namespace = source.namespace;
        seq.tenant = source.tenant;
        seq.rank = Rank { choice, ..source.rank };
        seq.limit = source.limit;
        seq.speculate = source.speculate;
        seq.max_draft = source.max_draft;
        seq.max_branches = source.max_branches;
        seq.planned = planned;
        seq.computed = source.computed.min(planned);
        seq.tokens.extend_from_slice(&source.tokens[..tokens as usize]);
        seq.table.extend_from_slice(&source.table[..blocks as usize]);
        // Both will write their next position into the same block, unless it is full.
        seq.special = true;
        for &block in &seq.table {
            self.kv.share(block);
        }
        if source.registered * self.block_tokens <= planned {
            seq.registered = source.registered;
            seq.chain = source.chain;
        } else {
            // A chain has no way back: registration begins again, and finds what is there.
            seq.chain = self.kv.chain_root(&source.namespace);
        }
        self.seqs[from] = source;
        self.seqs[from].special = true;
        fx.ops.push(SeqOp::Fork {
            from: SeqId(from),
            to: SeqId(slot),
            tokens,
            blocks,
            request,
            choice,
        });
        slot
    }

    pub(super) fn abort(&mut self, now: Time, id: RequestId, fx: Fx<'_>) {
        if let Some(&request) = self.by_id.get(&id) {
            self.end_request(now, request, &End::Aborted, fx);
        }
    }

    /// Ends the requests whose time is up.
    pub(super) fn expire(&mut self, now: Time, fx: Fx<'_>) {
        while let Some(&(time, id)) = self.expiries.first() {
            if time > now {
                break;
            }
            self.expiries.pop_first();
            if let Some(&request) = self.by_id.get(&id) {
                self.requests[request].expires = None;
                self.end_request(now, request, &End::Expired, fx);
            }
        }
    }

    /// Ends every choice of a request that has not ended.
    pub(super) fn end_request(&mut self, now: Time, request: u32, end: &End, fx: Fx<'_>) {
        for choice in 0..self.requests[request].seqs.len() {
            let slot = self.requests[request].seqs[choice];
            if slot != NONE && self.requests[request].ends[choice].is_none() {
                self.end_choice(now, slot, end.clone(), fx);
            }
        }
    }

    /// Ends a choice (all of them where they have not parted). What its sequence holds goes when no
    /// step in flight has a part of it, and the request when no choice is left.
    pub(super) fn end_choice(&mut self, now: Time, slot: u32, end: End, fx: Fx<'_>) {
        let seq = &mut self.seqs[slot];
        let request = seq.request;
        self.promised -= u64::from(seq.promised);
        seq.promised = 0;
        match seq.stage {
            Stage::Waiting => {
                self.waiting.remove(&(seq.rank, slot));
            }
            Stage::Running => {
                self.running_stale = true;
                self.idle_running -= u32::from(seq.rank.idle);
                self.requests[request].stops(now);
            }
            Stage::Loading => {
                self.loading.retain(|&s| s != slot);
                // Its moves end on their own; nobody waits for them any more.
                self.moves.retain(|_, s| *s != slot);
                // The executor has not heard of its blocks.
                self.drop_kv(slot);
            }
            Stage::Free | Stage::Resting | Stage::Ending => unreachable!("it has ended before"),
        }
        self.blocked = None;
        self.seqs[slot].stage = Stage::Ending;
        let r = &mut self.requests[request];
        r.add(&mut self.seqs[slot].tally);
        let choice = self.seqs[slot].choice as usize;
        r.ends[choice] = Some(end.clone());
        if r.seqs.len() == 1 {
            // The choices have not parted, and will not.
            r.ends.fill(Some(end));
        }
        if self.seqs[slot].in_flight == 0 {
            self.let_go(now, slot, fx);
        }
    }

    /// An ended sequence that no step in flight has a part of any more: it is released, or returned
    /// to its session.
    pub(super) fn let_go(&mut self, now: Time, slot: u32, fx: Fx<'_>) {
        let (request, choice) = (self.seqs[slot].request, self.seqs[slot].choice);
        let r = &mut self.requests[request];
        let end = r.ends[choice as usize].clone().expect("it has ended");
        let returns = choice == 0 && r.session.is_some_and(|u| u.keep != Keep::Nothing);
        if returns {
            self.return_to_session(slot, &end, fx);
        } else {
            self.end_seq(slot, fx);
        }
        let r = &mut self.requests[request];
        r.seqs[choice as usize] = NONE;
        r.live -= if r.seqs.len() == 1 { r.live } else { 1 };
        if r.live == 0 {
            self.close_request(now, request, fx);
        }
    }

    fn close_request(&mut self, now: Time, slot: u32, fx: Fx<'_>) {
        let r = &mut self.requests[slot];
        r.close(now);
        let prompt_tokens = r.prompt_end - r.base;
        self.policy.learn(prompt_tokens, (r.bill.output_tokens / u64::from(r.choices)) as u32);
        self.by_id.remove(&r.id);
        self.speculation.learn_output(r.bill.output_tokens / u64::from(r.choices));
        if let Some(expires) = r.expires {
            self.expiries.remove(&(expires, r.id));
        }
        let ends = std::mem::take(&mut r.ends);
        fx.finished.push(Finished {
            request: r.id,
            ends: ends.into_iter().map(|end| end.expect("every choice has ended")).collect(),
            bill: r.bill,
        });
        self.requests.free(slot);
    }
}
