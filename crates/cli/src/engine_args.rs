//! The flags that say how requests are run together.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use dunlin_engine::DiskTierConfig;
use dunlin_kvcache::{EvictionKind, TenantId};
use dunlin_scheduler::{Chunking, SwapCost, policy::PolicyKind};

use crate::speculate_args::SpeculateArgs;

/// What is kept in memory of each block on disk is small, but not nothing.
const MAX_DISK_BLOCKS: u64 = 1 << 22;

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
    #[arg(long, env = "DUNLIN_NO_PREFIX_CACHE", value_parser = FalseyValueParser::new())]
    pub no_prefix_cache: bool,

    /// How much of long prompts a step takes beside those that generate: full, a number of tokens, or
    /// as much as keeps the step within this percentage of its time without them (225%) [default:
    /// full; 225% for serve]
    #[arg(long, env = "DUNLIN_CHUNKING", value_name = "HOW")]
    pub chunking: Option<Chunking>,

    /// Keep KV that memory has no room for in a file in this folder
    #[arg(long, env = "DUNLIN_KV_FOLDER", value_name = "FOLDER")]
    pub kv_folder: Option<PathBuf>,

    /// The most that this file holds
    #[arg(long, env = "DUNLIN_KV_FOLDER_MIB", value_name = "MIB", default_value_t = 4096)]
    #[arg(requires = "kv_folder", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub kv_folder_mib: u64,

    /// Record every decision of the scheduler in this file, for `dunlin replay`
    #[arg(long, env = "DUNLIN_RECORD", value_name = "PATH")]
    pub record: Option<PathBuf>,

    #[command(flatten)]
    pub speculation: SpeculateArgs,

    /// KV tokens that tenants may hold.
    #[arg(skip)]
    pub budgets: Vec<(TenantId, u64)>,
}

impl EngineArgs {
    /// The disk tier, in blocks of so many bytes.
    pub fn disk(&self, block_bytes: usize) -> Option<DiskTierConfig> {
        let bytes = self.kv_folder_mib << 20;
        self.kv_folder.as_ref().map(|folder| DiskTierConfig {
            folder: folder.clone(),
            blocks: (bytes / block_bytes.max(1) as u64).clamp(1, MAX_DISK_BLOCKS) as usize,
            bytes_per_s: SwapCost::default().bytes_per_s,
        })
    }
}
