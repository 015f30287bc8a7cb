//! Fair share by tenant: start-time fair queueing. Each tenant's requests are laid one behind the
//! other on its own line of time, as if they took turns at an equal share; a request's key is where
//! its line begins it. One that asks for much finds its later requests further back; one that asks
//! for little goes at once.

use std::collections::BTreeMap;

use dunlin_kvcache::TenantId;
use dunlin_units::Time;

use super::{MAX_SLACK_NS, NS_PER_TOKEN, Policy};
use crate::event::Submission;

/// Prompt tokens that weigh as much as one output token.
const PROMPT_TOKENS_PER_OUTPUT: u64 = 8;

/// Orders by the beginning on the tenant's line.
#[derive(Debug, Default)]
pub(super) struct Fair {
    /// Where each tenant's line ends. Those in the past are dropped.
    ends: BTreeMap<TenantId, Time>,
}

impl Policy for Fair {
    fn slack_ns(&mut self, now: Time, request: &Submission) -> u64 {
        self.ends.retain(|_, end| *end > now);
        let tenants = self.ends.len().max(1) as u64;
        let tokens = u64::from(request.predicted_tokens.unwrap_or(request.max_tokens))
            * u64::from(request.choices)
            + request.prompt.len() as u64 / PROMPT_TOKENS_PER_OUTPUT;
        let start = self.ends.get(&request.tenant).copied().unwrap_or(now);
        // No line runs further ahead than the slack reaches, or a burst would be held against its
        // tenant long after it was served.
        let end = start.after(tokens.saturating_mul(NS_PER_TOKEN).saturating_mul(tenants));
        self.ends.insert(request.tenant, end.min(now.after(2 * MAX_SLACK_NS)));
        start.since(now)
    }
}

#[cfg(test)]
mod tests {
    use dunlin_kvcache::Namespace;
    use dunlin_units::RequestId;

    use super::*;

    #[test]
    fn a_flood_moves_its_own_tenant_back_and_no_other() {
        let mut policy = Fair::default();
        let mut ask = |tenant, now| {
            let mut request = Submission::new(RequestId(0), Namespace::default(), vec![1; 80], 100);
            request.tenant = TenantId(tenant);
            policy.slack_ns(Time(now), &request)
        };
        let flood: Vec<u64> = (0..10).map(|_| ask(1, 0)).collect();
        assert_eq!(flood[0], 0);
        assert!(flood.windows(2).all(|w| w[0] < w[1]), "{flood:?}");
        assert_eq!(ask(2, 0), 0);
        assert_eq!(ask(1, u64::MAX / 2), 0, "forgotten when its line is over");
    }
}
