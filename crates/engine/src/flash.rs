//! Questions that are answered ahead of time: whenever a session has new data and nothing else is to
//! be done, its registered questions are asked, and whoever asks one later finds the answer there.
//!
//! An answer is dropped when the session's data changes, and work on one is put back at once when
//! real work arrives: it runs in the class that yields to every other.

use std::collections::BTreeMap;

use dunlin_scheduler::{Class, Keep, SessionUse};
use dunlin_tensor::Backend;
use dunlin_units::{RequestId, SessionId};

use crate::{
    engine::Engine,
    job::FlashOf,
    request::{CancelFlag, Completion, Request, RequestError},
    session::SessionFailure,
};

/// Names a registered question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuestionId(pub u64);

/// A session's questions, in the order in which they were registered.
pub(crate) type Questions = BTreeMap<u64, Question>;

#[derive(Debug)]
pub(crate) struct Question {
    request: Request,
    answer: Option<Completion>,
    /// The request that works on it, and how to stop it where nobody waits for it.
    running: Option<(RequestId, Option<CancelFlag>)>,
}

/// What is there when a question is asked.
#[derive(Debug)]
pub enum Asked {
    /// The answer, without any computation.
    Answered(Box<Completion>),
    /// A request was submitted as any other; its events will tell.
    Submitted(RequestId),
}

impl<B: Backend> Engine<B> {
    /// Registers a question to a session: a request whose prompt follows what the session holds, and
    /// leaves no trace in it.
    ///
    /// # Errors
    /// There is no such session, or the request could never run.
    pub fn register_question(
        &mut self,
        session: SessionId,
        request: Request,
    ) -> Result<QuestionId, SessionFailure> {
        let tenant = self.sessions.known.get(&session).map(|info| info.tenant);
        let tenant = tenant.ok_or(dunlin_scheduler::SessionProblem::Unknown)?;
        let id = self.sessions.next_question;
        self.sessions.next_question += 1;
        let usage = Some(SessionUse { session, keep: Keep::Nothing });
        let request = Request { session: usage, tenant, ..request };
        let question = Question { request, answer: None, running: None };
        if let Some(info) = self.sessions.known.get_mut(&session) {
            info.questions.insert(id, question);
        }
        if let Err(error) = self.ask_one(session, id) {
            self.drop_question(session, QuestionId(id));
            return Err(error.into());
        }
        Ok(QuestionId(id))
    }

    /// Forgets a question.
    pub fn drop_question(&mut self, session: SessionId, question: QuestionId) {
        let info = self.sessions.known.get_mut(&session);
        if let Some(question) = info.and_then(|info| info.questions.remove(&question.0)) {
            question.stop();
        }
    }

    /// Whether a question's answer is there.
    pub fn is_answered(&self, session: SessionId, question: QuestionId) -> bool {
        let info = self.sessions.known.get(&session);
        info.and_then(|i| i.questions.get(&question.0)).is_some_and(|q| q.answer.is_some())
    }

    /// Asks a registered question: the answer where it is there, else a request of the class that
    /// the question was registered with, whose end is the answer for whoever asks next. `cancel` stops that request.
    ///
    /// # Errors
    /// There is no such question, or its request cannot run any more.
    pub fn ask(
        &mut self,
        session: SessionId,
        id: QuestionId,
        cancel: CancelFlag,
    ) -> Result<Asked, SessionFailure> {
        let info = self.sessions.known.get_mut(&session);
        let question = info.and_then(|info| info.questions.get_mut(&id.0));
        let question = question.ok_or(SessionFailure::UnknownQuestion)?;
        if let Some(answer) = &question.answer {
            return Ok(Asked::Answered(Box::new(answer.clone())));
        }
        // What was computed of it already is found in the prefix cache.
        question.stop();
        question.running = None;
        let request = Request { cancel, ..question.request.clone() };
        let flash = FlashOf { session, question: id.0, asked: true };
        let request = self.submit_for(request, Some(flash))?;
        self.works_on(session, id.0, (request, None));
        Ok(Asked::Submitted(request))
    }

    /// Answers of a session whose data changes are worth nothing.
    pub(crate) fn forget_answers(&mut self, session: SessionId) {
        let info = self.sessions.known.get_mut(&session);
        for question in info.into_iter().flat_map(|info| info.questions.values_mut()) {
            question.stop();
            (question.running, question.answer) = (None, None);
        }
    }

    /// Has a session's questions answered when there is time.
    pub(crate) fn ask_ahead(&mut self, session: SessionId) {
        let info = self.sessions.known.get(&session);
        let questions: Vec<u64> =
            info.into_iter().flat_map(|info| info.questions.keys().copied()).collect();
        for question in questions {
            // One that does not fit any more is answered, or refused, when it is asked.
            let _ = self.ask_one(session, question);
        }
    }

    fn ask_one(&mut self, session: SessionId, question: u64) -> Result<(), RequestError> {
        let Some(info) = self.sessions.known.get(&session) else { return Ok(()) };
        let Some(waiting) = info.questions.get(&question) else { return Ok(()) };
        if info.extended_by > 0 || waiting.answer.is_some() || waiting.running.is_some() {
            return Ok(());
        }
        let cancel = CancelFlag::new();
        let request =
            Request { cancel: cancel.clone(), class: Class::Idle, ..waiting.request.clone() };
        let flash = FlashOf { session, question, asked: false };
        let id = self.submit_for(request, Some(flash))?;
        self.works_on(session, question, (id, Some(cancel)));
        Ok(())
    }

    fn works_on(
        &mut self,
        session: SessionId,
        question: u64,
        running: (RequestId, Option<CancelFlag>),
    ) {
        let info = self.sessions.known.get_mut(&session);
        if let Some(question) = info.and_then(|info| info.questions.get_mut(&question)) {
            question.running = Some(running);
        }
    }

    /// A question was answered, or its answer given up. One that was asked, and whose asker left
    /// before its end, is answered ahead of time again.
    pub(crate) fn keep_answer(
        &mut self,
        flash: FlashOf,
        request: RequestId,
        completion: Completion,
    ) {
        let info = self.sessions.known.get_mut(&flash.session);
        let Some(question) = info.and_then(|info| info.questions.get_mut(&flash.question)) else {
            return;
        };
        if question.running.as_ref().is_some_and(|(id, _)| *id == request) {
            question.running = None;
            let good =
                completion.choices.iter().all(|c| matches!(c.finish.reason(), "stop" | "length"));
            question.answer = good.then_some(completion);
            if flash.asked && !good {
                // One that does not fit any more is refused when it is asked.
                let _ = self.ask_one(flash.session, flash.question);
            }
        }
    }
}

impl Question {
    fn stop(&self) {
        if let Some((_, Some(cancel))) = &self.running {
            cancel.cancel();
        }
    }
}
