//! Removing tokens from the middle of a session without computing those after them again.
//!
//! The later tokens keep the KV that they were given while the removed ones were there, moved to
//! their new positions ([`Backend::move_kv`]). That saves the prefill, and is no longer what the
//! same tokens would give as one prompt: contract `measured`; `dunlin bench session` prints how far
//! the next token's distribution moves. Such KV stays with its session and the copies made of it:
//! no other request ever finds it in the prefix cache. Where it is lost (memory runs out) it is
//! computed again, and the session is then exact.

use std::ops::Range;

use dunlin_kvcache::{Namespace, NamespaceKey, TenantId};
use dunlin_scheduler::{SessionOp, SessionProblem};
use dunlin_tensor::{Backend, KvLanes};
use dunlin_units::{RequestId, SeqId, SessionId};

use crate::{
    engine::Engine,
    session::{KvSource, Restoring, SessionFailure},
};

/// A session whose KV is moved into another's blocks.
pub(crate) struct Kept {
    /// Where it is.
    seq: SeqId,
    /// The tokens that are left out.
    cut: Range<usize>,
    /// Tokens that have KV, those of the cut among them.
    computed: usize,
}

/// The first name of sessions that live during a call only.
const TEMPORARY: u64 = u64::MAX;

impl<B: Backend> Engine<B> {
    /// Removes a range of a session's tokens, and keeps the KV of those after it: contract
    /// `measured`, for the rest of the session's life. Costs a copy of the KV, and for a moment
    /// memory for it twice. Later tokens that have no KV yet are computed by the request that is
    /// returned, where there are any.
    ///
    /// # Errors
    /// As [`Engine::prune_session`]; there is no memory for the copy, or the backend cannot move
    /// KV. The session is then as it was.
    pub fn prune_session_keeping(
        &mut self,
        session: SessionId,
        range: Range<usize>,
    ) -> Result<Option<RequestId>, SessionFailure> {
        let seq = self.resting(session)?;
        let held = self.executor.tokens(seq);
        let tokens = held.len();
        if range.start > range.end || range.end > tokens {
            return Err(SessionFailure::BadRange { range, tokens });
        }
        let computed = self.core.session_computed(session).unwrap_or(0) as usize;
        if range.is_empty() || range.end >= computed || range.start == 0 && range.end == tokens {
            // There is no later KV to keep.
            return self.prune_session(session, range);
        }
        let kept = [&held[..range.start], &held[range.end..computed]].concat();
        let rest = held[computed..].to_vec();
        let tenant = self.sessions.known[&session].tenant;
        self.prunes += 1;
        let namespace = self.private_namespace(session, tenant);
        let temporary = self.temporary_session();
        let source = Kept { seq, cut: range, computed };
        self.restoring = Some(Restoring { source: KvSource::Session(source), problem: None });
        let tokens = kept.into();
        let op = SessionOp::Restore { session: temporary, tenant, namespace, tokens };
        let result = self.session_op(op);
        let problem = self.restoring.take().and_then(|restoring| restoring.problem);
        result?;
        if let Some(problem) = problem {
            self.session_op(SessionOp::Close(temporary))?;
            return Err(problem);
        }
        self.session_op(SessionOp::Close(session))?;
        self.session_op(SessionOp::Fork { from: temporary, to: session })?;
        self.session_op(SessionOp::Close(temporary))?;
        let info = self.sessions.known.get_mut(&session).expect("it is at rest");
        info.namespace = Some(namespace);
        self.forget_answers(session);
        if rest.is_empty() {
            self.ask_ahead(session);
            return Ok(None);
        }
        self.append_session(session, tenant, rest).map(Some)
    }

    /// Whether a session holds KV that the same tokens would not give as one prompt.
    ///
    /// # Errors
    /// There is no such session.
    pub fn session_is_exact(&self, session: SessionId) -> Result<bool, SessionFailure> {
        let info = self.sessions.known.get(&session).ok_or(SessionProblem::Unknown)?;
        Ok(info.namespace.is_none())
    }

    /// A root of hash chains that nobody else has.
    pub(crate) fn private_namespace(&self, session: SessionId, tenant: TenantId) -> Namespace {
        let own = [session.0.to_le_bytes(), self.prunes.to_le_bytes()].concat();
        Namespace::new(&NamespaceKey {
            model: self.config.model.fingerprint,
            activations: &self.config.model.activations,
            kv_type: &self.config.model.kv_type,
            rope: "moved",
            embedding_inputs: &own,
            tenant_salt: u64::from(tenant.0),
            ..NamespaceKey::default()
        })
    }

    fn temporary_session(&self) -> SessionId {
        let names = (0..=TEMPORARY).rev().map(SessionId);
        let mut free = names.filter(|id| self.core.session_tokens(*id).is_none());
        free.next().expect("sessions are fewer than names")
    }

    /// Moves what is kept into the blocks of `to`.
    pub(crate) fn fill_from_session(
        &mut self,
        to: SeqId,
        kept: &Kept,
    ) -> Result<(), SessionFailure> {
        let size = self.backend().block_tokens();
        let from = self.executor.table(kept.seq).to_vec();
        let into = self.executor.table(to).to_vec();
        if from.len() * size < kept.computed {
            // To make room, its KV had to go.
            return Err(SessionProblem::NoMemory.into());
        }
        let removed = kept.cut.len();
        let mut position = 0;
        while position < kept.computed - removed {
            let moved = position >= kept.cut.start;
            let source = if moved { position + removed } else { position };
            let end = if moved { kept.computed - removed } else { kept.cut.start };
            let in_source = size - source % size;
            let in_target = size - position % size;
            let tokens = (end - position).min(in_source).min(in_target);
            let lanes =
                |table: &[u32], at: usize| KvLanes { block: table[at / size], first: at % size };
            let by = if moved { -(removed as i64) } else { 0 };
            let (source, target) = (lanes(&from, source), lanes(&into, position));
            let backend = self.executor.backend_mut();
            if source.first == 0 && target.first == 0 && by == 0 {
                backend.copy_block(source.block, target.block, tokens);
            } else {
                let result = backend.move_kv(source, target, tokens, by);
                result.map_err(|e| SessionFailure::CannotMove(e.to_string()))?;
            }
            position += tokens;
        }
        Ok(())
    }
}
