//! Requests and sessions, as events tell of them.

use dunlin_kvcache::{Namespace, TenantId};
use dunlin_units::{RequestId, SeqId, Time};

use super::{Answers, Check, PlanChecker, bills, ensure, plans::fold};
use crate::{
    effects::{Effects, End, Finished, Rejection, SessionProblem},
    event::{Class, Keep, SessionOp, SessionUse, Submission},
    speculation::Speculate,
};

/// A request that is not over.
#[derive(Debug)]
pub(super) struct Request {
    /// The link before its sequence's first token.
    pub(super) root: u64,
    pub(super) class: Class,
    /// Tokens that each choice may have.
    pub(super) max_tokens: u32,
    clipped: bool,
    submitted: Time,
    expires: Option<Time>,
    session: Option<SessionUse>,
    /// Whether its session may be used by another, where it was extending it.
    session_free: bool,
    context: u32,
    prompt: std::sync::Arc<[u32]>,
    /// The link of the prompt's last token.
    prompt_link: u64,
    /// Its sequences, by choice.
    pub(super) seqs: Vec<Option<SeqId>>,
    pub(super) ends: Vec<Option<End>>,
    /// Whether the choices have parted; until then, the first stands for all.
    pub(super) parted: bool,
    /// Tokens that each choice has got.
    pub(super) got: Vec<u32>,
    /// The first choice's tokens.
    pub(super) answer: Vec<u32>,
    /// Parts of it in steps in flight: entries and samples.
    pub(super) in_flight: u32,
    pub(super) speculate: Speculate,
    pub(super) max_draft: u32,
    pub(super) max_branches: u32,
    pub(super) bill: bills::Expected,
}

impl Request {
    pub(super) fn choices(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Tokens of context and prompt.
    pub(super) fn prompt_end(&self) -> u32 {
        self.context + self.prompt.len() as u32
    }

    /// Tokens at which a choice ends.
    pub(super) fn limit(&self) -> u32 {
        self.prompt_end() + self.max_tokens
    }

    pub(super) fn length_end(&self) -> End {
        if self.clipped { End::Clipped } else { End::Length }
    }

    fn is_over(&self) -> bool {
        self.ends.iter().all(Option::is_some)
    }
}

/// A session.
#[derive(Debug, Clone)]
pub(super) struct Session {
    tenant: TenantId,
    namespace: Namespace,
    /// Whether a request is extending it.
    busy: bool,
    /// Whether its KV is to stay.
    held: bool,
    /// What it has said so far, without what a request is adding.
    tokens: Vec<u32>,
}

impl Session {
    pub(super) fn is_held(&self) -> bool {
        self.held
    }
}

impl PlanChecker {
    pub(super) fn request(&mut self, id: RequestId) -> Result<&mut Request, String> {
        self.requests.get_mut(&id).ok_or_else(|| format!("there is no {id}"))
    }

    pub(super) fn submit(&mut self, s: &Submission, answers: &mut Answers<'_>) -> Check {
        let expected = self.rejection(s);
        let answer = answers.rejected.front().filter(|f| f.request == s.request);
        let answer = answer.and_then(|f| match &f.ends[0] {
            End::Rejected(rejection) => Some(rejection.clone()),
            _ => None,
        });
        match (expected, answer) {
            // Room in memory and in the queue is not known here.
            (_, Some(Rejection::QueueFull { waiting })) => {
                ensure!(waiting >= self.config.max_waiting, "{} met no full queue", s.request);
                answers.rejected.pop_front();
                return Ok(());
            }
            (Some(expected), given) => {
                ensure!(
                    given.as_ref() == Some(&expected),
                    "{} is to be rejected ({expected}), and is not: {given:?}",
                    s.request
                );
                answers.rejected.pop_front();
                return Ok(());
            }
            (None, Some(Rejection::TooLarge { needed, available, .. })) => {
                ensure!(needed > available, "{} is rejected as too large, and fits", s.request);
                answers.rejected.pop_front();
                return Ok(());
            }
            (None, _) => {}
        }
        let root = self.root(s.namespace);
        let mut context: &[u32] = &[];
        if let Some(usage) = s.session {
            if usage.keep != Keep::Nothing {
                let new = Session {
                    tenant: s.tenant,
                    namespace: s.namespace,
                    held: false,
                    busy: true,
                    tokens: Vec::new(),
                };
                self.sessions.entry(usage.session).or_insert(new).busy = true;
            }
            context = self.sessions.get(&usage.session).map_or(&[], |session| &session.tokens);
        }
        let max_tokens = self.config.clip_tokens.map_or(s.max_tokens, |c| c.min(s.max_tokens));
        let choices = s.choices as usize;
        let request = Request {
            root,
            class: s.class,
            max_tokens,
            clipped: max_tokens < s.max_tokens,
            submitted: self.now,
            expires: s.expires,
            session: s.session,
            session_free: false,
            context: context.len() as u32,
            prompt: s.prompt.clone(),
            prompt_link: fold(fold(root, context), &s.prompt),
            seqs: vec![None; choices],
            ends: vec![None; choices],
            parted: false,
            got: vec![0; choices],
            answer: Vec::new(),
            in_flight: 0,
            speculate: s.speculate,
            max_draft: s.max_draft,
            max_branches: s.max_branches,
            bill: bills::Expected::default(),
        };
        if let Some(expires) = s.expires {
            self.expiries.insert((expires, s.request));
        }
        self.busy += u32::from(s.class != Class::Idle);
        self.requests.insert(s.request, request);
        self.fresh.push(s.request);
        Ok(())
    }

    /// Why a request must be rejected, as far as it can be known here.
    fn rejection(&self, s: &Submission) -> Option<Rejection> {
        let limit = self.config.max_running.min(self.config.max_step_tokens);
        if s.prompt.is_empty() {
            return Some(Rejection::EmptyPrompt);
        }
        if s.choices == 0 || s.choices > limit {
            return Some(Rejection::BadChoices { choices: s.choices, limit });
        }
        if self.requests.contains_key(&s.request) {
            return Some(Rejection::Duplicate);
        }
        let usage = s.session?;
        let session = self.sessions.get(&usage.session)?;
        if session.tenant != s.tenant || session.namespace != s.namespace {
            return Some(Rejection::SessionForeign);
        }
        (session.busy && usage.keep != Keep::Nothing).then_some(Rejection::SessionBusy)
    }

    /// The sequences of requests that came in this call hold context and prompt, and nothing else.
    pub(super) fn check_fresh(&mut self, fx: &Effects) -> Check {
        for id in std::mem::take(&mut self.fresh) {
            if fx.finished.iter().any(|f| f.request == id) {
                continue;
            }
            let r = self.request(id)?;
            let (end, link) = (r.prompt_end(), r.prompt_link);
            let seq = r.seqs[0].ok_or_else(|| format!("{id} has no sequence"))?;
            let s = self.seq(seq)?;
            ensure!(
                s.chain.len() as u32 == end && s.chain.last() == Some(&link),
                "the sequence of {id} does not hold its context and prompt"
            );
        }
        Ok(())
    }

    pub(super) fn end_all(&mut self, id: RequestId, end: &End) -> Check {
        let Some(r) = self.requests.get(&id) else { return Ok(()) };
        for choice in 0..r.choices() {
            self.end(id, choice, end)?;
        }
        self.settle(id)
    }

    pub(super) fn expire(&mut self) -> Check {
        let over: Vec<_> = self.expiries.iter().take_while(|e| e.0 <= self.now).copied().collect();
        for (_, id) in &over {
            self.end_all(*id, &End::Expired)?;
            self.request(*id)?.expires = None;
        }
        for expiry in over {
            self.expiries.remove(&expiry);
        }
        Ok(())
    }

    /// A choice ends, if it has not yet: all do while they have not parted.
    pub(super) fn end(&mut self, id: RequestId, choice: u32, end: &End) -> Check {
        let r = self.request(id)?;
        if r.ends[choice as usize].is_some() {
            return Ok(());
        }
        let parted = r.parted;
        let choices = if parted { choice..choice + 1 } else { 0..r.choices() };
        for choice in choices {
            let r = self.request(id)?;
            r.ends[choice as usize] = Some(end.clone());
            if let Some(seq) = r.seqs[choice as usize] {
                self.set_runs(seq, false)?;
            }
        }
        let r = self.request(id)?;
        if r.is_over() {
            let counted = r.class != Class::Idle;
            self.busy -= u32::from(counted);
        }
        Ok(())
    }

    /// A request that is over and in no step in flight finishes in this call. Its session is free
    /// when that holds for the first choice.
    pub(super) fn settle(&mut self, id: RequestId) -> Check {
        self.free_session(id)?;
        let r = self.request(id)?;
        if !r.is_over() || r.in_flight > 0 || self.due.contains(&id) {
            return Ok(());
        }
        self.due.insert(id);
        Ok(())
    }

    fn free_session(&mut self, id: RequestId) -> Check {
        let r = &self.requests[&id];
        let Some(usage) = r.session.filter(|u| u.keep != Keep::Nothing) else { return Ok(()) };
        let first = r.seqs[0].and_then(|seq| self.seqs[seq.0 as usize].as_ref());
        if r.session_free || r.ends[0].is_none() || first.is_some_and(|s| s.in_flight > 0) {
            return Ok(());
        }
        let session = self.sessions.get_mut(&usage.session).ok_or("its session is gone")?;
        session.busy = false;
        if matches!(r.ends[0], Some(End::Stop | End::Length | End::Clipped)) {
            session.tokens.extend_from_slice(&r.prompt);
            if usage.keep == Keep::All {
                session.tokens.extend_from_slice(&r.answer);
            }
        }
        self.request(id)?.session_free = true;
        Ok(())
    }

    pub(super) fn finished(&mut self, finished: &Finished) -> Check {
        if matches!(finished.ends[..], [End::Rejected(_)]) {
            // Counted when it came.
            return Ok(());
        }
        let id = finished.request;
        let r = self.request(id)?;
        // Where no tokens are wanted, the cache may turn out to have all of the prompt.
        if r.max_tokens == 0 && r.in_flight == 0 && !r.is_over() {
            let end = r.length_end();
            self.end(id, 0, &end)?;
            self.settle(id)?;
        }
        ensure!(self.due.remove(&id), "finished before its end");
        let r = self.requests.remove(&id).ok_or("there is none")?;
        if let Some(expires) = r.expires {
            self.expiries.remove(&(expires, id));
        }
        let ends: Vec<End> = r.ends.into_iter().flatten().collect();
        ensure!(ends == finished.ends, "ended with {:?}, not {ends:?}", finished.ends);
        let bill = &finished.bill;
        ensure!(
            bill.prompt_tokens == r.prompt.len() as u64
                && bill.context_tokens == u64::from(r.context),
            "prompt_tokens or context_tokens are wrong on the bill: {bill:?}"
        );
        r.bill.check(bill, self.now.since(r.submitted))?;
        self.totals.billed(bill);
        Ok(())
    }

    pub(super) fn session_op(&mut self, op: &SessionOp, answers: &mut Answers<'_>) -> Check {
        let given = answers.session_error(op);
        let expected = self.session_problems(op);
        if expected.is_empty() {
            // Whether there is memory is not known here.
            if given == Some(SessionProblem::NoMemory) && matches!(op, SessionOp::Restore { .. }) {
                answers.session_errors.pop_front();
                return Ok(());
            }
        } else {
            ensure!(
                given.is_some_and(|g| expected.contains(&g)),
                "{op:?} cannot be done ({expected:?}), and the answer is {given:?}"
            );
            answers.session_errors.pop_front();
            return Ok(());
        }
        match op {
            SessionOp::Fork { from, to } => {
                let copy = Session { busy: false, held: false, ..self.sessions[from].clone() };
                self.sessions.insert(*to, copy);
            }
            SessionOp::Rewind { session, tokens } => {
                let session = self.sessions.get_mut(session).ok_or("it is gone")?;
                session.tokens.truncate(*tokens as usize);
            }
            SessionOp::Restore { session, tenant, namespace, tokens } => {
                let new = Session {
                    tenant: *tenant,
                    namespace: *namespace,
                    busy: false,
                    held: false,
                    tokens: tokens.to_vec(),
                };
                self.sessions.insert(*session, new);
            }
            SessionOp::Close(session) => {
                self.sessions.remove(session);
            }
            SessionOp::Hold { session, held } => {
                self.sessions.get_mut(session).ok_or("it is gone")?.held = *held;
            }
        }
        Ok(())
    }

    /// What is wrong with an operation on a session, besides memory.
    fn session_problems(&self, op: &SessionOp) -> Vec<SessionProblem> {
        let mut problems = Vec::new();
        let (session, new) = match op {
            SessionOp::Fork { from, to } => (Some(from), Some(to)),
            SessionOp::Rewind { session, .. }
            | SessionOp::Close(session)
            | SessionOp::Hold { session, .. } => (Some(session), None),
            SessionOp::Restore { session, .. } => (None, Some(session)),
        };
        if new.is_some_and(|s| self.sessions.contains_key(s)) {
            problems.push(SessionProblem::Exists);
        }
        let Some(session) = session else { return problems };
        match self.sessions.get(session) {
            None => problems.push(SessionProblem::Unknown),
            Some(s) => {
                if s.busy && !matches!(op, SessionOp::Fork { .. } | SessionOp::Hold { .. }) {
                    problems.push(SessionProblem::Busy);
                }
                if let SessionOp::Rewind { tokens, .. } = op
                    && *tokens as usize > s.tokens.len()
                    && !s.busy
                {
                    problems.push(SessionProblem::TooShort);
                }
            }
        }
        problems
    }
}
