//! Several models behind one server: each is loaded when somebody first asks for it, and let go of
//! when room is needed and nobody uses it.
//!
//! A model that has requests under way or sessions at rest is never let go of; where all that are
//! loaded have, a request for another is told to come back. What is said of a model that is not
//! loaded comes from its file.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, TryLockError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use dunlin_kvcache::TenantId;

use crate::service::{
    Chat, Generate, Generation, Health, Input, ModelInfo, Service, ServiceError, SessionCall,
    SessionState, Stats,
};

/// Loads a model; the message is for the operator's log.
pub type Load = Box<dyn Fn() -> Result<Arc<dyn Service>, String> + Send + Sync>;

/// A model that can be served.
pub struct Entry {
    /// What is known of it before it is loaded.
    pub info: ModelInfo,
    /// Loads it.
    pub load: Load,
}

/// How much may be loaded at once.
pub struct Limits {
    /// Models.
    pub most: usize,
    /// Bytes that stay free, and how many are: none where that cannot be known.
    pub keep_free_bytes: u64,
    /// The machine's free memory.
    pub free_bytes: Box<dyn Fn() -> Option<u64> + Send + Sync>,
}

struct Slot {
    entry: Entry,
    loaded: Mutex<Option<Arc<dyn Service>>>,
    /// When it was last asked for; larger is later.
    used: AtomicU64,
}

/// All models of a server, the default first.
pub struct ManyModels {
    slots: Vec<Slot>,
    limits: Limits,
    clock: AtomicU64,
    /// Whether the default one was there once.
    begun: AtomicBool,
    /// What models that were let go of had done.
    past: Mutex<Stats>,
    /// Whether the files of models that are loaded are as they were.
    whole: Box<dyn Fn() -> bool + Send + Sync>,
    /// Held while room is made and a model is loaded: one at a time.
    loading: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What two engines hold and have done together.
fn add(a: Stats, b: Stats) -> Stats {
    Stats {
        running: a.running + b.running,
        waiting: a.waiting + b.waiting,
        kv_blocks: a.kv_blocks + b.kv_blocks,
        kv_blocks_used: a.kv_blocks_used + b.kv_blocks_used,
        block_tokens: b.block_tokens,
        preemptions: a.preemptions + b.preemptions,
        steps: a.steps + b.steps,
        computed_tokens: a.computed_tokens + b.computed_tokens,
        step_ns: a.step_ns + b.step_ns,
        microjoules: a.microjoules + b.microjoules,
        energy_source: b.energy_source,
    }
}

impl ManyModels {
    /// Models of which none is loaded yet.
    pub fn new(entries: Vec<Entry>, limits: Limits) -> Self {
        let slots = entries
            .into_iter()
            .map(|entry| Slot { entry, loaded: Mutex::new(None), used: AtomicU64::new(0) })
            .collect();
        Self {
            slots,
            limits,
            clock: AtomicU64::new(1),
            begun: AtomicBool::new(false),
            past: Mutex::default(),
            whole: Box::new(|| true),
            loading: Mutex::new(()),
        }
    }

    /// Asks this, before each request, whether the files of models that are loaded are as they were.
    #[must_use]
    pub fn watching(self, whole: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { whole: Box::new(whole), ..self }
    }

    /// Loads the default model.
    ///
    /// # Errors
    /// As loading it.
    pub fn load_default(&self) -> Result<(), ServiceError> {
        let id = self.slots.first().map(|slot| slot.entry.info.id.clone());
        self.with(&id.ok_or(ServiceError::Unavailable)?)?;
        self.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Lets go of models that nobody uses while memory is short, those used longest ago first, but
    /// for the default one. Says how many.
    pub fn relieve(&self) -> usize {
        let mut gone = 0;
        while self.is_short(0) && self.unload_one(true) {
            gone += 1;
        }
        gone
    }

    fn is_short(&self, wanted: u64) -> bool {
        let needed = self.limits.keep_free_bytes.saturating_add(wanted);
        (self.limits.free_bytes)().is_some_and(|free| free < needed)
    }

    /// The model of this name, loaded.
    fn with(&self, model: &str) -> Result<Arc<dyn Service>, ServiceError> {
        let slot = self.slots.iter().find(|slot| slot.entry.info.id == model);
        let slot = slot.ok_or(ServiceError::NotFound("there is no model of this name"))?;
        slot.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Some(service) = &*lock(&slot.loaded) {
            return Ok(service.clone());
        }
        let _one = lock(&self.loading);
        // Another may have loaded it while this one waited.
        if let Some(service) = &*lock(&slot.loaded) {
            return Ok(service.clone());
        }
        self.make_room(slot.entry.info.size_bytes)?;
        let service = (slot.entry.load)().map_err(|message| {
            tracing::error!(target: "dunlin::models", model, "cannot load: {message}");
            ServiceError::Failed("the model cannot be loaded".into())
        })?;
        tracing::info!(target: "dunlin::models", model, "loaded");
        *lock(&slot.loaded) = Some(service.clone());
        Ok(service)
    }

    fn make_room(&self, bytes: u64) -> Result<(), ServiceError> {
        while self.count() >= self.limits.most.max(1) {
            if !self.unload_one(false) {
                return Err(ServiceError::Overloaded);
            }
        }
        // The file is mapped, and what is not in memory can be read again: a shortage is no reason to
        // refuse.
        while self.is_short(bytes) && self.unload_one(false) {}
        Ok(())
    }

    fn count(&self) -> usize {
        self.slots.iter().filter(|slot| lock(&slot.loaded).is_some()).count()
    }

    /// Lets go of the model that nobody uses and that was used longest ago.
    fn unload_one(&self, spare_default: bool) -> bool {
        let mut slots: Vec<&Slot> = self.slots.iter().skip(usize::from(spare_default)).collect();
        slots.sort_by_key(|slot| slot.used.load(Ordering::Relaxed));
        for slot in slots {
            let mut place = match slot.loaded.try_lock() {
                Ok(place) => place,
                Err(TryLockError::Poisoned(place)) => place.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            // Nobody is about to ask something of it, and nothing is under way.
            let unused =
                |service: &Arc<dyn Service>| Arc::strong_count(service) == 1 && service.is_idle();
            if place.as_ref().is_some_and(unused) {
                let model = slot.entry.info.id.as_str();
                tracing::info!(target: "dunlin::models", model, "unloaded");
                let done = place.take().map(|service| service.stats()).unwrap_or_default();
                let past = Stats { kv_blocks: 0, kv_blocks_used: 0, ..done };
                let mut all = lock(&self.past);
                *all = add(*all, past);
                return true;
            }
        }
        false
    }

    /// Those that are loaded.
    fn loaded(&self) -> impl Iterator<Item = Arc<dyn Service>> + '_ {
        self.slots.iter().filter_map(|slot| lock(&slot.loaded).clone())
    }
}

impl Service for ManyModels {
    fn health(&self) -> Health {
        if !self.begun.load(Ordering::Relaxed) {
            return Health::Loading;
        }
        if !(self.whole)() {
            return Health::Damaged;
        }
        let dead = self.loaded().any(|service| service.health() == Health::Dead);
        if dead { Health::Dead } else { Health::Ready }
    }

    fn models(&self) -> Vec<ModelInfo> {
        let info = |slot: &Slot| {
            let loaded = slot.loaded.try_lock().ok().and_then(|place| place.clone());
            let own = loaded.and_then(|service| service.models().into_iter().next());
            own.unwrap_or_else(|| slot.entry.info.clone())
        };
        self.slots.iter().map(info).collect()
    }

    fn stats(&self) -> Stats {
        let past = *lock(&self.past);
        self.loaded().map(|service| service.stats()).fold(past, add)
    }

    fn is_idle(&self) -> bool {
        self.loaded().all(|service| service.is_idle())
    }

    fn encode(&self, model: &str, input: &Input) -> Result<Vec<u32>, ServiceError> {
        self.with(model)?.encode(model, input)
    }

    fn decode(&self, model: &str, tokens: &[u32]) -> Result<String, ServiceError> {
        self.with(model)?.decode(model, tokens)
    }

    fn render(&self, model: &str, chat: &Chat) -> Result<String, ServiceError> {
        self.with(model)?.render(model, chat)
    }

    fn generate(&self, request: Generate) -> Result<Generation, ServiceError> {
        self.with(&request.model)?.generate(request)
    }

    fn session(
        &self,
        tenant: TenantId,
        model: &str,
        id: &str,
        call: SessionCall,
    ) -> Result<SessionState, ServiceError> {
        self.with(model)?.session(tenant, model, id, call)
    }

    fn sessions(&self, tenant: TenantId, model: &str) -> Result<Vec<SessionState>, ServiceError> {
        self.with(model)?.sessions(tenant, model)
    }

    fn register(&self, request: Generate) -> Result<u64, ServiceError> {
        self.with(&request.model)?.register(request)
    }

    fn question(
        &self,
        tenant: TenantId,
        model: &str,
        session: &str,
        question: u64,
        forget: bool,
    ) -> Result<bool, ServiceError> {
        self.with(model)?.question(tenant, model, session, question, forget)
    }

    fn ask(
        &self,
        tenant: TenantId,
        model: &str,
        session: &str,
        question: u64,
    ) -> Result<Generation, ServiceError> {
        self.with(model)?.ask(tenant, model, session, question)
    }
}
