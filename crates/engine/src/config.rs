//! The engine's settings.

use std::{io, path::PathBuf};

use dunlin_kvcache::{CacheConfig, EvictionKind, Namespace, NamespaceKey, TenantId};
use dunlin_scheduler::{
    Chunking, ConfigError, CoreConfig, DraftControl, DrafterKind, EnergyBudget, Experts,
    SpeculationConfig, SwapCost, policy::PolicyKind,
};
use dunlin_spec::{FfnSpec, ModelSpec};
use dunlin_tensor::Backend;

/// What the model is, as far as KV depends on it: requests share KV, and sessions are restored, only
/// where all of it is equal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelIdentity {
    /// Its name, for people.
    pub name: String,
    /// The fingerprint of its files.
    pub fingerprint: u128,
    /// The precision of activations.
    pub activations: String,
    /// The type of keys and values.
    pub kv_type: String,
}

/// The tier of KV on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskTierConfig {
    /// Where its file lies.
    pub folder: PathBuf,
    /// Blocks that it holds.
    pub blocks: usize,
    /// Bytes a second that the disk takes or gives, for the choice between swapping and computing
    /// again.
    pub bytes_per_s: u64,
}

/// How an engine runs.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The most tokens of a sequence.
    pub context: usize,
    /// Which model.
    pub model: ModelIdentity,
    /// Threads that compute, and that choose tokens where there are many to choose.
    pub threads: usize,
    /// In which order requests are taken on.
    pub policy: PolicyKind,
    /// Which cached KV goes first.
    pub eviction: EvictionKind,
    /// Whether requests find the KV of others' prefixes.
    pub prefix_cache: bool,
    /// How much prompt goes into a step beside sequences that decode.
    pub chunking: Chunking,
    /// The most sequences that run at once.
    pub max_running: u32,
    /// The most requests that wait.
    pub max_waiting: u32,
    /// The most tokens of a step, where that is less than the backend takes.
    pub max_step_tokens: Option<usize>,
    /// The operator's limit on the output tokens of a choice.
    pub clip_tokens: Option<u32>,
    /// KV on disk.
    pub disk: Option<DiskTierConfig>,
    /// KV blocks that tenants may hold.
    pub budgets: Vec<(TenantId, u64)>,
    /// How drafts are cut.
    pub draft_control: DraftControl,
    /// Tokens of ended answers that are kept, over all tenants, for drafts to come from (about 12
    /// bytes each). 0 keeps none.
    pub draft_store_tokens: usize,
    /// What energy a token of an answer may take on average, by the engine's meter, before drafts are
    /// cut for it; it has no effect where draft control is fixed.
    pub energy_budget: Option<EnergyBudget>,
    /// Where the run is recorded.
    pub record: Option<PathBuf>,
}

impl EngineConfig {
    /// Usual settings.
    pub fn new(context: usize) -> Self {
        Self {
            context,
            model: ModelIdentity::default(),
            threads: 1,
            policy: PolicyKind::Fcfs,
            eviction: EvictionKind::Lru,
            prefix_cache: true,
            chunking: Chunking::default(),
            max_running: 256,
            max_waiting: 1 << 20,
            max_step_tokens: None,
            clip_tokens: None,
            disk: None,
            budgets: Vec::new(),
            draft_control: DraftControl::default(),
            draft_store_tokens: 0,
            energy_budget: None,
            record: None,
        }
    }

    /// The core's settings for this backend and these drafters.
    pub(crate) fn core(
        &self,
        backend: &impl Backend,
        drafters: Vec<(DrafterKind, u32)>,
    ) -> CoreConfig {
        let cache = CacheConfig {
            block_tokens: backend.block_tokens(),
            block_count: backend.block_count(),
            disk_slots: self.disk.as_ref().map_or(0, |disk| disk.blocks),
            eviction: self.eviction,
            prefix_cache: self.prefix_cache,
            hash_seed: 0,
        };
        let most = backend.max_step_tokens();
        let step_tokens = self.max_step_tokens.map_or(most, |tokens| tokens.clamp(1, most));
        let mut swap = SwapCost { block_bytes: backend.block_bytes() as u64, ..<_>::default() };
        if let Some(disk) = &self.disk {
            swap.bytes_per_s = disk.bytes_per_s;
        }
        CoreConfig {
            policy: self.policy,
            max_running: self.max_running,
            max_waiting: self.max_waiting,
            chunking: self.chunking,
            clip_tokens: self.clip_tokens,
            swap,
            speculation: SpeculationConfig {
                control: self.draft_control,
                drafters,
                experts: experts(backend.spec()),
                energy: self.energy_budget,
                ..SpeculationConfig::default()
            },
            ..CoreConfig::new(cache, u32::try_from(step_tokens).unwrap_or(u32::MAX))
        }
    }

    /// The root of the hash chains of a tenant's KV.
    pub(crate) fn namespace(&self, tenant: TenantId) -> Namespace {
        Namespace::new(&NamespaceKey {
            model: self.model.fingerprint,
            activations: &self.model.activations,
            kv_type: &self.model.kv_type,
            tenant_salt: u64::from(tenant.0),
            ..NamespaceKey::default()
        })
    }
}

/// An engine that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A setting that makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The disk tier's file.
    #[error("cannot make the disk tier in {path}")]
    DiskTier {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The record's file.
    #[error("cannot record the run in {path}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The disk tier needs a backend that lets KV out.
    #[error("this backend's KV cannot leave it: there can be no disk tier")]
    NoExport,
}

/// A mixture's experts, as far as they make steps longer: what of the weights that a token meets is
/// theirs. Where layers differ, those of the first that has any.
fn experts(spec: &ModelSpec) -> Option<Experts> {
    let mixtures = spec.layers.iter().filter_map(|layer| match &layer.ffn {
        FfnSpec::Moe(mixture) => Some(mixture),
        FfnSpec::Gated { .. } => None,
    });
    let met = mixtures.clone().map(|m| 3 * (m.n_used * m.d_ff * spec.d_model) as u64).sum::<u64>();
    let first = mixtures.clone().next()?;
    Some(Experts {
        count: first.n_experts as u32,
        used: first.n_used as u32,
        permille: (met * 1000 / spec.matrix_weights_used().max(1)) as u32,
    })
}
