//! The flags that say how requests are run together.

use std::path::PathBuf;

use dunlin_kvcache::EvictionKind;
use dunlin_scheduler::policy::PolicyKind;

/// How requests are run together.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// In which order requests are taken on: fcfs, shortest, deadline, fair or prefix
    #[arg(long, env = "DUNLIN_POLICY", default_value_t, value_name = "NAME")]
    pub policy: PolicyKind,

    /// Which cached KV goes first when memory is short: lru, lfu, fifo, gdsf or arc
    #[arg(long, env = "DUNLIN_EVICTION", default_value_t = EvictionKind::Lru, value_name = "NAME")]
    pub eviction: EvictionKind,

    /// Compute every prompt from its first token, whatever other prompts began alike
    #[arg(long)]
    pub no_prefix_cache: bool,

    /// Record every decision of the scheduler in this file, for `dunlin replay`
    #[arg(long, value_name = "PATH")]
    pub record: Option<PathBuf>,
}
