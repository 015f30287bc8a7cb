//! Sessions: KV that stays between requests, to be continued, copied, cut back and asked.
//!
//! A session comes into being with the first request that names it. What it holds is what the same
//! tokens would give as one prompt, bit for bit: removing tokens from the middle computes the later
//! ones again, unless their KV is to be kept ([`Engine::prune_session_keeping`]).

use std::{collections::BTreeMap, ops::Range};

use dunlin_executor::sampler::SamplingParams;
use dunlin_kvcache::{Namespace, TenantId};
use dunlin_scheduler::{
    Event as CoreEvent, Keep, SessionError, SessionOp, SessionProblem, SessionUse,
};
use dunlin_tensor::Backend;
use dunlin_units::{RequestId, SeqId, SessionId};

use crate::{
    engine::Engine,
    flash::Questions,
    request::{Request, RequestError},
    session_file::{BlockReader, SessionFileError},
    session_prune::Kept,
};

/// What the engine keeps of sessions; their tokens and KV are the core's and the executor's.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    pub(crate) known: BTreeMap<SessionId, SessionInfo>,
    pub(crate) next_question: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SessionInfo {
    pub(crate) tenant: TenantId,
    /// Requests under way that extend it.
    pub(crate) extended_by: usize,
    pub(crate) questions: Questions,
    /// The root of its hash chain, where it holds KV that nobody else may find.
    pub(crate) namespace: Option<Namespace>,
}

/// A session whose KV comes from elsewhere.
pub(crate) struct Restoring {
    pub(crate) source: KvSource,
    /// What went wrong with it.
    pub(crate) problem: Option<SessionFailure>,
}

/// Where a session's KV comes from.
pub(crate) enum KvSource {
    File(BlockReader),
    Session(Kept),
}

/// Something that cannot be done with a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionFailure {
    /// The core refuses it.
    #[error(transparent)]
    Problem(#[from] SessionProblem),
    /// A range that is none, or ends after the session does.
    #[error("tokens {} to {} are not within the session's {tokens}", range.start, range.end)]
    BadRange {
        /// What was to be removed.
        range: Range<usize>,
        /// Tokens that the session has.
        tokens: usize,
    },
    /// The request that it takes cannot be run.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Saving or restoring.
    #[error(transparent)]
    File(#[from] SessionFileError),
    /// The later KV cannot be kept.
    #[error("the KV of the later tokens cannot be kept: {0}")]
    CannotMove(String),
    /// There is no such question.
    #[error("there is no such question")]
    UnknownQuestion,
}

impl<B: Backend> Engine<B> {
    /// The tokens that a session at rest holds.
    ///
    /// # Errors
    /// There is no such session, or a request is extending it.
    pub fn session_tokens(&self, session: SessionId) -> Result<&[u32], SessionFailure> {
        Ok(self.executor.tokens(self.resting(session)?))
    }

    /// The sessions that there are, in order.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.known.keys().copied().filter(|&id| self.core.session_tokens(id).is_some())
    }

    /// A session's sequence, where nothing that is queued or under way changes it.
    pub(crate) fn resting(&self, session: SessionId) -> Result<SeqId, SessionFailure> {
        let info = self.sessions.known.get(&session).ok_or(SessionProblem::Unknown)?;
        if info.extended_by > 0 {
            return Err(SessionProblem::Busy.into());
        }
        Ok(self.core.session_seq(session).ok_or(SessionProblem::Unknown)?)
    }

    /// Appends tokens to a session, which comes into being with them; their KV is computed, and
    /// nothing is chosen.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn append_session(
        &mut self,
        session: SessionId,
        tenant: TenantId,
        tokens: Vec<u32>,
    ) -> Result<RequestId, SessionFailure> {
        let request = Request {
            tenant,
            session: Some(SessionUse { session, keep: Keep::Prompt }),
            ..Request::new(tokens, SamplingParams::greedy(), Some(0))
        };
        Ok(self.submit(request)?)
    }

    /// Cuts a session back to the beginning that it shares with a whole prompt, and returns what of
    /// the prompt is to follow: at least its last token, whose logits are wanted. A session that is
    /// not there shares nothing.
    ///
    /// # Errors
    /// A request is extending the session.
    pub fn align_session(
        &mut self,
        session: SessionId,
        prompt: &[u32],
    ) -> Result<Vec<u32>, SessionFailure> {
        let common = match self.session_tokens(session) {
            Ok(held) => held.iter().zip(prompt).take_while(|(a, b)| a == b).count(),
            Err(SessionFailure::Problem(SessionProblem::Unknown)) => return Ok(prompt.to_vec()),
            Err(failure) => return Err(failure),
        };
        let common = common.min(prompt.len().saturating_sub(1));
        if self.session_tokens(session)?.len() > common {
            self.rewind_session(session, common)?;
        }
        Ok(prompt[common..].to_vec())
    }

    /// A new session that begins as a copy of another; they share its KV.
    ///
    /// # Errors
    /// The one is not there, or the other is already.
    pub fn fork_session(&mut self, from: SessionId, to: SessionId) -> Result<(), SessionFailure> {
        self.resting(from)?;
        self.session_op(SessionOp::Fork { from, to })?;
        let SessionInfo { tenant, namespace, .. } = self.sessions.known[&from];
        let copy = SessionInfo { tenant, namespace, ..SessionInfo::default() };
        self.sessions.known.insert(to, copy);
        Ok(())
    }

    /// Forgets all but a session's first tokens.
    ///
    /// # Errors
    /// There are fewer, or the session is not there or in use.
    pub fn rewind_session(
        &mut self,
        session: SessionId,
        tokens: usize,
    ) -> Result<(), SessionFailure> {
        self.resting(session)?;
        let tokens = u32::try_from(tokens).map_err(|_| SessionProblem::TooShort)?;
        self.session_op(SessionOp::Rewind { session, tokens })?;
        self.forget_answers(session);
        self.ask_ahead(session);
        Ok(())
    }

    /// Removes a range of a session's tokens. Those after it are computed again, so that the session
    /// is what it would be had they never been there; the request that does so is returned, where
    /// there are any.
    ///
    /// # Errors
    /// The range is not within the session, or the session is not there or in use.
    pub fn prune_session(
        &mut self,
        session: SessionId,
        range: Range<usize>,
    ) -> Result<Option<RequestId>, SessionFailure> {
        let held = self.session_tokens(session)?;
        let tokens = held.len();
        if range.start > range.end || range.end > tokens {
            return Err(SessionFailure::BadRange { range, tokens });
        }
        let rest = held[range.end..].to_vec();
        self.rewind_session(session, range.start)?;
        if rest.is_empty() {
            return Ok(None);
        }
        let tenant = self.sessions.known[&session].tenant;
        self.append_session(session, tenant, rest).map(Some)
    }

    /// Ends a session. Requests that only look at it go on.
    ///
    /// # Errors
    /// There is no such session, or a request is extending it.
    pub fn close_session(&mut self, session: SessionId) -> Result<(), SessionFailure> {
        self.resting(session)?;
        self.session_op(SessionOp::Close(session))?;
        self.forget_answers(session);
        self.sessions.known.remove(&session);
        Ok(())
    }

    /// Has the core carry out an operation at once.
    pub(crate) fn session_op(&mut self, op: SessionOp) -> Result<(), SessionFailure> {
        let wanted = match &op {
            SessionOp::Fork { from, .. } => *from,
            SessionOp::Rewind { session, .. } | SessionOp::Restore { session, .. } => *session,
            SessionOp::Close(session) | SessionOp::Hold { session, .. } => *session,
        };
        self.queue(CoreEvent::Session(op));
        self.turn();
        let found = |e: &&SessionError| e.session == wanted;
        match self.effects.session_errors.iter().find(found) {
            Some(error) => Err(error.problem.into()),
            None => Ok(()),
        }
    }

    /// A request that extends a session is on its way.
    pub(crate) fn session_changes(&mut self, session: SessionId, tenant: TenantId) {
        let new = || SessionInfo { tenant, ..SessionInfo::default() };
        self.sessions.known.entry(session).or_insert_with(new).extended_by += 1;
        self.forget_answers(session);
    }

    /// A request that extended a session is over.
    pub(crate) fn session_changed(&mut self, session: SessionId) {
        let Some(info) = self.sessions.known.get_mut(&session) else { return };
        info.extended_by -= 1;
        if info.extended_by > 0 {
            return;
        }
        if self.core.session_tokens(session).is_none() {
            // Its first request was rejected.
            self.sessions.known.remove(&session);
        } else {
            self.ask_ahead(session);
        }
    }
}
