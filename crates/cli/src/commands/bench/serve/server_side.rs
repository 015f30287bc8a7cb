//! What a server of ours says of itself before and after a run: its steps, the time between them,
//! its memory and its processor time. Of other servers nothing is told.

use serde::{Deserialize, Serialize};

use super::client::Client;

/// A moment, from `GET /live`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Moment {
    time_s: f64,
    steps: u64,
    step_seconds: f64,
    computed_tokens: u64,
    output_tokens: u64,
    resident_bytes: Option<u64>,
    cpu_seconds: Option<f64>,
}

impl Moment {
    /// Now; none where the server is not one of ours.
    pub fn of(client: &Client) -> Option<Self> {
        serde_json::from_value(client.get("/live").ok()?).ok()
    }
}

/// What happened between two moments.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerSide {
    /// From before the first request to after the last.
    pub seconds: f64,
    pub steps: u64,
    /// The mean time of a step: forward pass, sampling and text.
    pub step_ms: f64,
    /// Token positions that went through the model, a step.
    pub positions_per_step: f64,
    /// Tokens generated, a step.
    pub tokens_per_step: f64,
    /// The time in which no step ran, over the time of all steps. Where clients keep the server busy
    /// it is what HTTP and scheduling cost; otherwise most of it is waiting for requests.
    pub between_steps: f64,
    /// Processor time over time: 2 is two cores.
    pub cores: Option<f64>,
    /// Memory in RAM, mapped files included.
    pub resident_mib_before: Option<f64>,
    pub resident_mib_after: Option<f64>,
}

impl ServerSide {
    /// Between two moments of one server; none where it ran no step, or began anew.
    pub fn between(before: &Moment, after: &Moment) -> Option<Self> {
        let steps = after.steps.checked_sub(before.steps).filter(|&steps| steps > 0)?;
        let seconds = after.time_s - before.time_s;
        let step_seconds = after.step_seconds - before.step_seconds;
        if seconds <= 0.0 || step_seconds <= 0.0 {
            return None;
        }
        let per_step = |before: u64, after: u64| after.saturating_sub(before) as f64 / steps as f64;
        let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
        let cpu = after.cpu_seconds.zip(before.cpu_seconds);
        Some(Self {
            seconds,
            steps,
            step_ms: step_seconds / steps as f64 * 1e3,
            positions_per_step: per_step(before.computed_tokens, after.computed_tokens),
            tokens_per_step: per_step(before.output_tokens, after.output_tokens),
            between_steps: (seconds - step_seconds) / step_seconds,
            cores: cpu.map(|(after, before)| (after - before) / seconds),
            resident_mib_before: mib(before.resident_bytes),
            resident_mib_after: mib(after.resident_bytes),
        })
    }
}

impl std::fmt::Display for ServerSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "server: {} steps of {:.2} ms and {:.1} tokens; {:.1}% of their time passed between them",
            self.steps,
            self.step_ms,
            self.tokens_per_step,
            self.between_steps * 100.0
        )?;
        if let Some(cores) = self.cores {
            write!(f, "; {cores:.2} cores")?;
        }
        if let Some((before, after)) = self.resident_mib_before.zip(self.resident_mib_after) {
            write!(f, "; resident {before:.1} MiB before, {after:.1} after")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_happened_in_between() {
        let before = Moment {
            time_s: 10.0,
            steps: 100,
            step_seconds: 2.0,
            computed_tokens: 1000,
            output_tokens: 500,
            resident_bytes: Some(100 << 20),
            cpu_seconds: Some(3.0),
        };
        let after = Moment {
            time_s: 11.0,
            steps: 180,
            step_seconds: 2.8,
            computed_tokens: 2280,
            output_tokens: 1700,
            resident_bytes: Some(101 << 20),
            cpu_seconds: Some(4.5),
        };
        let side = ServerSide::between(&before, &after).unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(side.seconds, 1.0);
        close(side.step_ms, 10.0);
        close(side.positions_per_step, 16.0);
        close(side.tokens_per_step, 15.0);
        close(side.between_steps, 0.25);
        close(side.cores.unwrap(), 1.5);
        close(side.resident_mib_after.unwrap() - side.resident_mib_before.unwrap(), 1.0);
        assert!(side.to_string().contains("25.0% of their time"), "{side}");
        // A server that began anew has fewer steps than before.
        assert_eq!(ServerSide::between(&after, &before), None);
        assert_eq!(ServerSide::between(&after, &after), None);
        let silent = Moment { resident_bytes: None, cpu_seconds: None, ..after };
        let side = ServerSide::between(&before, &silent).unwrap();
        assert_eq!((side.cores, side.resident_mib_after), (None, None));
    }
}
