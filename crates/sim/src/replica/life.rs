//! What a coordinator does to a replica beside giving it requests: KV that is held for others, going
//! down and coming up.

use dunlin_kvcache::{Namespace, TenantId};
use dunlin_scheduler::{Effects, Event, SessionOp};
use dunlin_units::{RequestId, SessionId, Time};

use super::{Job, Note, NoteKind, Replica, World};
use crate::{events::What, metrics::Level};

impl Replica {
    /// Blocks for a prompt whose KV is to come: allocated, and held. Whether there were enough.
    pub(crate) fn reserve(&mut self, now: Time, job: &Job, world: &mut World) -> bool {
        self.write_prompt(job, &mut world.prompt);
        let session = SessionId(job.number);
        self.events.push(Event::Session(SessionOp::Restore {
            session,
            tenant: TenantId(0),
            namespace: Namespace::default(),
            tokens: world.prompt.as_slice().into(),
        }));
        self.events.push(Event::Session(SessionOp::Hold { session, held: true }));
        self.advance(now, world);
        self.reserved
    }

    /// Lets go of KV that was held for a request.
    pub(crate) fn release(&mut self, now: Time, number: u64, world: &mut World) {
        self.events.push(Event::Session(SessionOp::Close(SessionId(number))));
        self.advance(now, world);
    }

    /// Takes back a request whose prompt is to be computed here. One that is in a step comes later, as
    /// [`NoteKind::Withdrawn`].
    pub(crate) fn withdraw(&mut self, now: Time, number: u64, world: &mut World) -> Option<Job> {
        if let Some(at) = self.inbox.iter().position(|job| job.number == number) {
            return self.inbox.remove(at);
        }
        if let Some(at) = self.backlog.iter().position(|job| job.number == number) {
            return self.backlog.remove(at);
        }
        let id = RequestId(number);
        let slot = *self.by_id.get(&id).expect("a prompt that is not done is here");
        let seq = self.active[slot as usize].as_ref().expect("the core has it").seq;
        // What the step in flight would choose for it nobody gets.
        self.seqs[seq as usize].left = 0;
        self.events.push(Event::Abort(id));
        self.advance(now, world);
        if !self.events.is_empty() {
            self.advance(now, world);
        }
        let own = |n: &Note| matches!(&n.kind, NoteKind::Withdrawn(job) if job.number == number);
        let at = world.notes.iter().position(own)?;
        match world.notes.remove(at).kind {
            NoteKind::Withdrawn(job) => Some(*job),
            _ => unreachable!("it was looked for"),
        }
    }

    /// The replica goes down. Its requests, in the order of their numbers, with what they have.
    pub(crate) fn crash(&mut self, now: Time, world: &mut World) -> Vec<Job> {
        for (place, state) in self.seqs.iter().enumerate() {
            let Some(Some(active)) = self.active.get_mut(state.slot as usize) else { continue };
            // One that has ended may still have a part in a step in flight.
            if active.seq as usize != place {
                continue;
            }
            active.job.energy_uj += std::mem::take(&mut self.energy[place]);
            active.job.done_tokens += active.left - state.left;
            active.left = state.left;
            if state.last != Time::NEVER {
                active.job.last_token = state.last;
            }
        }
        let mut jobs: Vec<Job> = self.active.drain(..).flatten().map(|a| a.job).collect();
        jobs.extend(self.backlog.drain(..));
        jobs.extend(self.inbox.drain(..));
        jobs.sort_unstable_by_key(|j| j.number);
        self.close(now, world);
        self.log(world, now, 1, What::Down);
        self.driver = Self::driver(&self.spec, self.checked);
        self.free.clear();
        self.by_id.clear();
        self.seqs.clear();
        self.energy.clear();
        self.steps.clear();
        self.moves.clear();
        self.events.clear();
        self.effects = Effects::default();
        jobs
    }

    /// The replica comes up, with nothing in its cache.
    pub(crate) fn restart(&mut self, now: Time, world: &mut World) {
        if self.up_since.is_none() {
            self.up_since = Some(now);
            self.level_since = now;
            self.driver = Self::driver(&self.spec, self.checked);
            self.log(world, now, 1, What::Up);
        }
    }

    /// Ends the account of a replica: the time that it was up, and its last level.
    pub(crate) fn close(&mut self, now: Time, world: &mut World) {
        world.metrics.timeline.level(self.level_since, now, self.level);
        world.metrics.blocks_ns +=
            u128::from(self.level.blocks) * u128::from(now.since(self.level_since));
        self.level_since = now;
        self.level = Level::default();
        if let Some(since) = self.up_since.take() {
            let ns = u128::from(now.since(since));
            world.metrics.up_ns += ns;
            world.metrics.idle_uj_e9 += ns * u128::from(self.spec.idle_uw);
            world.metrics.timeline.idle(since, now, self.spec.idle_uw);
            world.metrics.embodied_ugco2_hours +=
                ns * u128::from(self.spec.embodied_ugco2_per_hour);
            world.metrics.capacity_ns += ns * self.spec.core.cache.block_count as u128;
        }
    }
}
