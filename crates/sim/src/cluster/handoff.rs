//! Prefill on some replicas, decode on others.
//!
//! A request first gets its place on a replica that decodes: KV blocks for its prompt, really
//! allocated and held ([`SessionOp::Hold`](dunlin_scheduler::SessionOp)). Where there are none it
//! waits, first come, first served. Then its prompt is computed elsewhere, which gives its first
//! token; the KV goes over links that all transfers share, is held by its source until it has
//! arrived, and then decoding goes on where it arrived. With layers that overlap, a transfer begins
//! with the prompt's first step and ends at the earliest one layer's time after its last.
//!
//! Where a replica goes down, every hand-over that it has a part in is given up on both sides, and its
//! request begins again with the tokens that its user has, as a proxy in front of both would ask again.

use std::collections::VecDeque;

use dunlin_router::Placement;
use dunlin_units::Time;

use super::coordinator::{Act, Coordinator};
use crate::{
    error::SimError,
    links::Links,
    replica::{Job, Role, Stage, transfer_ns},
};

/// A request between two replicas.
#[derive(Debug)]
pub(super) struct Handoff {
    pub prefill: u32,
    pub decode: u32,
    pub bytes: u64,
    /// Of the request, as loads count them.
    pub prompt_tokens: u32,
    /// The request, when its prompt is done.
    pub done: Option<(Time, Box<Job>)>,
    /// When its transfer's last byte left.
    pub sent: Option<Time>,
    /// When its KV may be used, as soon as that is known.
    pub lands: Option<Time>,
}

/// What the coordinator knows of hand-overs.
#[derive(Debug)]
pub(super) struct Handoffs {
    /// Places requests on replicas that prefill; the coordinator's own places those that decode.
    pub prefill_router: Box<dyn Placement>,
    pub under_way: std::collections::BTreeMap<u64, Handoff>,
    /// Requests that wait for KV on a replica that decodes.
    pub waiting: Vec<VecDeque<Job>>,
    pub links: Links,
}

impl<I> Coordinator<'_, '_, I>
where
    I: Iterator<Item = Result<dunlin_workload::Request, SimError>>,
{
    /// A request gets the replica that it will decode on.
    pub(super) fn place_decode(&mut self, now: Time, mut job: Job) {
        job.stage = Stage::Whole;
        let Some(decode) = self.route(&job, Role::Decode) else {
            self.stranded.push(job);
            return;
        };
        let worker = &mut self.workers[decode as usize];
        worker.requests += 1;
        worker.prompt_tokens += u64::from(job.request.prompt_tokens);
        self.handoffs.waiting[decode as usize].push_back(job);
        self.reserve(now, decode);
    }

    /// Those that wait for KV get it, as far as there is any.
    pub(super) fn reserve(&mut self, now: Time, decode: u32) {
        // KV is not held for a prompt that nobody computes.
        while self.accepts(Role::Prefill)
            && let Some(job) = self.handoffs.waiting[decode as usize].pop_front()
        {
            let fits = self.team.with(decode, |r, world| r.reserve(now, &job, world));
            if !fits {
                self.handoffs.waiting[decode as usize].push_front(job);
                return;
            }
            self.metrics.reserve.add(now.since(job.ready));
            let prefill = self.route(&job, Role::Prefill).expect("one of them accepts");
            let worker = &mut self.workers[prefill as usize];
            worker.requests += 1;
            worker.prompt_tokens += u64::from(job.request.prompt_tokens);
            let spec = &self.spec.replicas[prefill as usize];
            let tokens = job.request.prompt_tokens.saturating_add(job.done_tokens);
            let blocks = (tokens as usize).div_ceil(spec.core.cache.block_tokens);
            let bytes = (blocks as u64).saturating_mul(spec.block_bytes).max(1);
            let handoff = Handoff {
                prefill,
                decode,
                bytes,
                prompt_tokens: job.request.prompt_tokens,
                done: None,
                sent: None,
                lands: None,
            };
            self.handoffs.under_way.insert(job.number, handoff);
            let mut job = job;
            job.queue_ns += now.since(job.came);
            job.came = now;
            job.stage = Stage::Prefill;
            self.team.deliver(prefill, job);
        }
    }

    /// The first step of a prompt begins.
    pub(super) fn prefill_begun(&mut self, now: Time, number: u64) {
        if let Some(h) = self.handoffs.under_way.get(&number) {
            self.handoffs.links.begin(now, number, h.prefill, h.decode, h.bytes);
        }
    }

    /// A prompt is done, and its first token is there.
    pub(super) fn prefilled(&mut self, now: Time, job: Box<Job>) {
        let number = job.number;
        let over = job.done_tokens >= job.request.output_tokens;
        let Some(h) = self.handoffs.under_way.get_mut(&number) else { return };
        let (prefill, decode, bytes) = (h.prefill, h.decode, h.bytes);
        self.forget(prefill, job.request.prompt_tokens);
        if over {
            // One token was all; what was held on both sides goes.
            self.handoffs.under_way.remove(&number);
            let request = job.request.clone();
            self.team.with(prefill, |r, world| r.release(now, number, world));
            self.team.with(decode, |r, world| r.release(now, number, world));
            self.forget(decode, request.prompt_tokens);
            self.hear_end(now, &request);
            self.reserve(now, decode);
            self.power_off_if_empty(now, prefill);
            self.power_off_if_empty(now, decode);
            return;
        }
        let h = self.handoffs.under_way.get_mut(&number).expect("looked up above");
        h.done = Some((now, job));
        if self.spec.transfer.overlap_layers.is_none() {
            self.handoffs.links.begin(now, number, prefill, decode, bytes);
        } else if h.sent.is_some() {
            self.land_later(number);
        }
    }

    /// Transfers whose last byte has left by now.
    pub(super) fn sent(&mut self, now: Time) {
        for flow in self.handoffs.links.ended(now) {
            let Some(h) = self.handoffs.under_way.get_mut(&flow.id) else { continue };
            h.sent = Some(now);
            if h.done.is_some() {
                self.land_later(flow.id);
            }
        }
    }

    /// Both the prompt and the transfer are done: when the KV may be used.
    fn land_later(&mut self, number: u64) {
        let h = &self.handoffs.under_way[&number];
        let (Some(sent), Some((done, _))) = (h.sent, &h.done) else { return };
        let mut at = sent;
        if let Some(layers) = self.spec.transfer.overlap_layers {
            let rate = |r: u32| self.spec.replicas[r as usize].link_bytes_per_s;
            let layer = h.bytes.div_ceil(u64::from(layers.max(1)));
            let last = transfer_ns(layer, rate(h.prefill).min(rate(h.decode)));
            at = at.max(done.after(last));
        }
        let at = at.after(self.spec.transfer.latency_ns);
        self.handoffs.under_way.get_mut(&number).expect("looked up above").lands = Some(at);
        self.push(at, number, Act::Landed(number));
    }

    /// KV has arrived: its source lets go, and decoding begins.
    pub(super) fn landed(&mut self, now: Time, number: u64) {
        // It may have been given up, and have begun again.
        if self.handoffs.under_way.get(&number).is_none_or(|h| h.lands != Some(now)) {
            return;
        }
        let Some(h) = self.handoffs.under_way.remove(&number) else { return };
        let Some((done, mut job)) = h.done else { return };
        self.team.with(h.prefill, |r, world| r.release(now, number, world));
        self.metrics.transfers += 1;
        self.metrics.transfer_bytes += h.bytes;
        self.metrics.handoff.add(now.since(done));
        job.came = now;
        job.stage = Stage::Decode;
        self.team.deliver(h.decode, *job);
        self.power_off_if_empty(now, h.prefill);
    }

    /// A replica that prefills or decodes has gone down, with these requests of its own. Gives up all
    /// hand-overs that it has a part in; answers with the requests that begin again now, in the order
    /// of their numbers. Those in a step elsewhere follow when that ends ([`Self::withdrawn`]).
    pub(super) fn give_up(&mut self, now: Time, down: u32, own: Vec<Job>) -> Vec<Job> {
        let mut jobs = own;
        // Those that wait for KV there have it on their account as those that decode.
        jobs.extend(self.handoffs.waiting[down as usize].drain(..));
        jobs.iter().for_each(|job| self.forget(down, job.request.prompt_tokens));
        let all = self.handoffs.under_way.iter();
        let broken = all.filter(|(_, h)| h.prefill == down || h.decode == down);
        let broken: Vec<u64> = broken.map(|(number, _)| *number).collect();
        for number in broken {
            let h = self.handoffs.under_way.remove(&number).expect("it is there");
            self.handoffs.links.cancel(now, number);
            self.forget(h.decode, h.prompt_tokens);
            if h.prefill == down {
                // Where its prompt was not done, the request is one of those that went down.
                self.team.with(h.decode, |r, world| r.release(now, number, world));
                jobs.extend(h.done.map(|(_, job)| *job));
                self.reserve(now, h.decode);
                self.power_off_if_empty(now, h.decode);
            } else if let Some((_, job)) = h.done {
                self.team.with(h.prefill, |r, world| r.release(now, number, world));
                jobs.push(*job);
                self.power_off_if_empty(now, h.prefill);
            } else if let Some(job) =
                self.team.with(h.prefill, |r, world| r.withdraw(now, number, world))
            {
                self.forget(h.prefill, h.prompt_tokens);
                jobs.push(job);
                self.power_off_if_empty(now, h.prefill);
            }
        }
        jobs.sort_unstable_by_key(|job| job.number);
        jobs
    }

    /// A request whose hand-over was given up is out of its step, and begins again.
    pub(super) fn withdrawn(&mut self, now: Time, from: u32, job: Job) {
        self.metrics.retried += 1;
        self.forget(from, job.request.prompt_tokens);
        self.power_off_if_empty(now, from);
        self.retry(now, job);
    }

    /// Whether any replica of a role takes requests.
    fn accepts(&self, role: Role) -> bool {
        let of_role = self.spec.replicas.iter().zip(&self.workers);
        of_role.filter(|(spec, _)| spec.role == role).any(|(_, worker)| worker.accepting)
    }

    /// Whether a prompt's KV is still to be fetched from a replica.
    pub(super) fn is_fetched_from(&self, replica: u32) -> bool {
        self.handoffs.under_way.values().any(|h| h.prefill == replica)
    }
}
