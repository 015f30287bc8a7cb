//! Sessions: sequences that stay when their requests are over.
//!
//! A session at rest holds its KV until memory runs out; then it keeps its tokens, and what it needs
//! of the KV is found in the prefix cache or computed again.

use dunlin_units::{SeqId, SessionId};

use super::{
    Core, Fx,
    state::{NONE, Session, Stage},
};
use crate::{
    effects::{End, SeqOp, SessionError, SessionProblem},
    event::{Keep, SessionOp},
};

impl Core {
    pub(super) fn session_op(&mut self, op: SessionOp, fx: Fx<'_>) {
        let (session, result) = match op {
            SessionOp::Fork { from, to } => (from, self.fork_session(from, to, fx)),
            SessionOp::Rewind { session, tokens } => {
                (session, self.rewind_session(session, tokens, fx))
            }
            SessionOp::Close(session) => (session, self.close_session(session, fx)),
            SessionOp::Hold { session, held } => (session, self.hold_session(session, held)),
            SessionOp::Restore { session, tenant, namespace, tokens } => {
                let new = Session {
                    id: session,
                    seq: NONE,
                    tenant,
                    namespace,
                    busy: false,
                    held: false,
                    used: 0,
                };
                (session, self.restore_session(new, &tokens, fx))
            }
        };
        if let Err(problem) = result {
            fx.session_errors.push(SessionError { session, problem });
        }
    }

    /// Tokens of a session, or none where there is no such session. Those of a request that is
    /// extending it are not counted.
    pub fn session_tokens(&self, session: SessionId) -> Option<u32> {
        self.sessions.get(&session).map(|s| self.resting_tokens(s.seq))
    }

    /// How many of them have their KV in memory.
    pub fn session_computed(&self, session: SessionId) -> Option<u32> {
        let session = self.sessions.get(&session)?;
        Some(self.seqs[session.seq].computed.min(self.resting_tokens(session.seq)))
    }

    /// The sequence of a session at rest.
    pub fn session_seq(&self, session: SessionId) -> Option<SeqId> {
        self.sessions.get(&session).filter(|s| !s.busy).map(|s| SeqId(s.seq))
    }

    pub(super) fn resting_tokens(&self, seq: u32) -> u32 {
        if self.has_request(seq) {
            self.requests[self.seqs[seq].request].base
        } else {
            self.seqs[seq].tokens.len() as u32
        }
    }

    fn fork_session(
        &mut self,
        from: SessionId,
        to: SessionId,
        fx: Fx<'_>,
    ) -> Result<(), SessionProblem> {
        if self.sessions.contains_key(&to) {
            return Err(SessionProblem::Exists);
        }
        let source = self.sessions.get(&from).ok_or(SessionProblem::Unknown)?;
        let (seq, tenant, namespace) = (source.seq, source.tenant, source.namespace);
        let tokens = self.resting_tokens(seq);
        let copy = self.fork_seq(seq, tokens, None, 0, fx);
        self.seqs[copy].stage = Stage::Resting;
        self.seqs[copy].request = NONE;
        self.keep_computed(copy, fx);
        self.uses += 1;
        let used = self.uses;
        self.sessions.insert(
            to,
            Session { id: to, seq: copy, tenant, namespace, busy: false, held: false, used },
        );
        Ok(())
    }

    fn rewind_session(
        &mut self,
        id: SessionId,
        tokens: u32,
        fx: Fx<'_>,
    ) -> Result<(), SessionProblem> {
        let session = self.sessions.get(&id).ok_or(SessionProblem::Unknown)?;
        if session.busy {
            return Err(SessionProblem::Busy);
        }
        let seq = session.seq;
        if tokens as usize > self.seqs[seq].tokens.len() {
            return Err(SessionProblem::TooShort);
        }
        let computed = self.seqs[seq].computed.min(tokens);
        self.truncate_seq(seq, tokens, computed, fx);
        Ok(())
    }

    fn hold_session(&mut self, id: SessionId, held: bool) -> Result<(), SessionProblem> {
        let session = self.sessions.get_mut(&id).ok_or(SessionProblem::Unknown)?;
        session.held = held;
        self.blocked = None;
        Ok(())
    }

    fn close_session(&mut self, id: SessionId, fx: Fx<'_>) -> Result<(), SessionProblem> {
        let session = self.sessions.get(&id).ok_or(SessionProblem::Unknown)?;
        if session.busy {
            return Err(SessionProblem::Busy);
        }
        let seq = session.seq;
        self.sessions.remove(&id);
        self.end_seq(seq, fx);
        self.blocked = None;
        Ok(())
    }

    fn restore_session(
        &mut self,
        new: Session,
        tokens: &std::sync::Arc<[u32]>,
        fx: Fx<'_>,
    ) -> Result<(), SessionProblem> {
        if self.sessions.contains_key(&new.id) {
            return Err(SessionProblem::Exists);
        }
        let (id, length) = (new.id, tokens.len() as u32);
        let blocks = length.div_ceil(self.block_tokens) as usize;
        let mut table = Vec::new();
        while !self.kv.allocate_n(new.tenant, blocks, &mut table) {
            if !self.shed(None, fx) {
                return Err(SessionProblem::NoMemory);
            }
        }
        let slot = self.start_seq(None, fx);
        let seq = &mut self.seqs[slot];
        seq.stage = Stage::Resting;
        seq.tenant = new.tenant;
        seq.namespace = new.namespace;
        seq.chain = self.kv.chain_root(&new.namespace);
        seq.tokens.extend_from_slice(tokens);
        seq.computed = length;
        seq.planned = length;
        fx.ops.push(SeqOp::Append { seq: SeqId(slot), tokens: tokens.clone() });
        fx.ops.extend(table.iter().map(|&block| SeqOp::Block { seq: SeqId(slot), block }));
        seq.table = table;
        fx.ops.push(SeqOp::Fill { seq: SeqId(slot), session: id });
        self.uses += 1;
        self.sessions.insert(id, Session { seq: slot, used: self.uses, ..new });
        // Not registered: other requests find its blocks once it has been used.
        Ok(())
    }

    /// A request's sequence becomes its session's again.
    pub(super) fn return_to_session(&mut self, slot: u32, end: &End, fx: Fx<'_>) {
        let request = &self.requests[self.seqs[slot].request];
        let usage = request.session.expect("it has one");
        let all = self.seqs[slot].tokens.len() as u32;
        let tokens = match (end, usage.keep) {
            (End::Stop | End::Length | End::Clipped, Keep::All) => all,
            (End::Stop | End::Length | End::Clipped, _) => request.prompt_end,
            _ => request.base,
        };
        let computed = self.seqs[slot].computed.min(tokens);
        self.truncate_seq(slot, tokens, computed, fx);
        let seq = &mut self.seqs[slot];
        seq.stage = Stage::Resting;
        seq.request = NONE;
        seq.parts = false;
        fx.ops.push(SeqOp::Assign { seq: SeqId(slot), request: None, choice: 0 });
        self.uses += 1;
        let session = self.sessions.get_mut(&usage.session).expect("a busy session stays");
        session.busy = false;
        session.used = self.uses;
    }

    /// Lets go of the KV that a copy has from steps in flight of the one copied: it may not come to
    /// be.
    pub(super) fn keep_computed(&mut self, copy: u32, fx: Fx<'_>) {
        let seq = &self.seqs[copy];
        let (tokens, computed) = (seq.tokens.len() as u32, seq.computed);
        if seq.planned > computed {
            self.truncate_seq(copy, tokens, computed, fx);
        }
    }

    /// Shortens a sequence that no step in flight has a part of.
    fn truncate_seq(&mut self, slot: u32, tokens: u32, computed: u32, fx: Fx<'_>) {
        let bt = self.block_tokens;
        let seq = &mut self.seqs[slot];
        assert_eq!(seq.in_flight, 0, "a sequence was shortened during its step");
        let blocks = computed.div_ceil(bt);
        seq.tokens.truncate(tokens as usize);
        self.kv.release_table(&mut seq.table, blocks as usize);
        seq.computed = computed;
        seq.planned = computed;
        seq.unknown = 0;
        seq.drafting = false;
        seq.draft.clear();
        seq.lost = 0;
        seq.special = true;
        if seq.registered * bt > computed {
            // Registration begins again, and finds what is there.
            seq.registered = 0;
            seq.chain = self.kv.chain_root(&seq.namespace);
        }
        fx.ops.push(SeqOp::Truncate { seq: SeqId(slot), tokens, blocks });
        self.blocked = None;
    }
}
