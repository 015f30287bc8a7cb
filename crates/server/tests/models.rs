//! Several models: loaded on demand, one at a time; let go of when room is needed, and only when
//! nobody uses them.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use dunlin_kvcache::TenantId;
use dunlin_server::{
    models::{Entry, Limits, ManyModels},
    service::{
        Chat, Generate, Generation, Health, Input, ModelInfo, Service, ServiceError, SessionCall,
        SessionState, Stats,
    },
};

/// An engine that does nothing but to be there.
struct Still {
    info: ModelInfo,
    idle: Arc<AtomicBool>,
    health: Arc<Mutex<Health>>,
    alive: Arc<AtomicUsize>,
}

impl Drop for Still {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service for Still {
    fn health(&self) -> Health {
        *self.health.lock().unwrap()
    }
    fn models(&self) -> Vec<ModelInfo> {
        vec![ModelInfo { context: 99, ..self.info.clone() }]
    }
    fn stats(&self) -> Stats {
        Stats { kv_blocks: 10, steps: 3, ..Stats::default() }
    }
    fn is_idle(&self) -> bool {
        self.idle.load(Ordering::SeqCst)
    }
    fn encode(&self, model: &str, _: &Input) -> Result<Vec<u32>, ServiceError> {
        assert_eq!(model, self.info.id);
        Ok(vec![self.info.vocab_size as u32])
    }
    fn decode(&self, _: &str, _: &[u32]) -> Result<String, ServiceError> {
        Err(ServiceError::Unavailable)
    }
    fn render(&self, _: &str, _: &Chat) -> Result<String, ServiceError> {
        Err(ServiceError::Unavailable)
    }
    fn generate(&self, _: Generate) -> Result<Generation, ServiceError> {
        Err(ServiceError::Unavailable)
    }
    fn session(
        &self,
        _: TenantId,
        _: &str,
        _: &str,
        _: SessionCall,
    ) -> Result<SessionState, ServiceError> {
        Err(ServiceError::Unavailable)
    }
    fn sessions(&self, _: TenantId, _: &str) -> Result<Vec<SessionState>, ServiceError> {
        Err(ServiceError::Unavailable)
    }
    fn register(&self, _: Generate) -> Result<u64, ServiceError> {
        Err(ServiceError::Unavailable)
    }
    fn question(
        &self,
        _: TenantId,
        _: &str,
        _: &str,
        _: u64,
        _: bool,
    ) -> Result<bool, ServiceError> {
        Err(ServiceError::Unavailable)
    }
    fn ask(&self, _: TenantId, _: &str, _: &str, _: u64) -> Result<Generation, ServiceError> {
        Err(ServiceError::Unavailable)
    }
}

/// Three models, and what is known of each.
struct World {
    models: Arc<ManyModels>,
    loads: Vec<Arc<AtomicUsize>>,
    alive: Vec<Arc<AtomicUsize>>,
    idle: Vec<Arc<AtomicBool>>,
    health: Arc<Mutex<Health>>,
    free: Arc<AtomicU64>,
}

fn world(most: usize) -> World {
    let health = Arc::new(Mutex::new(Health::Ready));
    let free = Arc::new(AtomicU64::new(1000));
    let (mut loads, mut alive, mut idle, mut entries) = (vec![], vec![], vec![], vec![]);
    for (i, id) in ["a", "b", "c"].iter().enumerate() {
        let info = ModelInfo {
            id: id.to_string(),
            context: 1,
            vocab_size: i,
            created: 0,
            size_bytes: 50,
            architecture: String::new(),
            parameters: 0,
            quantization: String::new(),
            template: None,
            digest: String::new(),
        };
        let own_idle = Arc::new(AtomicBool::new(true));
        let (own_loads, own_alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let still = (info.clone(), own_idle.clone(), health.clone(), own_alive.clone());
        let count = own_loads.clone();
        let load = move || {
            count.fetch_add(1, Ordering::SeqCst);
            if count.load(Ordering::SeqCst) > 90 {
                return Err("the file /secret/path is gone".to_string());
            }
            // Others that want it must wait, and not load it again.
            std::thread::sleep(std::time::Duration::from_millis(5));
            let (info, idle, health, alive) = still.clone();
            alive.fetch_add(1, Ordering::SeqCst);
            Ok(Arc::new(Still { info, idle, health, alive }) as Arc<dyn Service>)
        };
        entries.push(Entry { info, load: Box::new(load) });
        loads.push(own_loads);
        alive.push(own_alive);
        idle.push(own_idle);
    }
    let bytes = free.clone();
    let free_bytes = Box::new(move || Some(bytes.load(Ordering::SeqCst)));
    let limits = Limits { most, keep_free_bytes: 100, free_bytes };
    World { models: Arc::new(ManyModels::new(entries, limits)), loads, alive, idle, health, free }
}

impl World {
    fn ask(&self, model: &str) -> Result<u32, ServiceError> {
        self.models.encode(model, &Input::Text("x".into())).map(|tokens| tokens[0])
    }

    fn loaded(&self) -> Vec<usize> {
        self.alive.iter().map(|alive| alive.load(Ordering::SeqCst)).collect()
    }
}

#[test]
fn models_come_when_they_are_asked_for() {
    let world = world(3);
    assert_eq!(world.models.health(), Health::Loading);
    world.models.load_default().unwrap();
    assert_eq!((world.models.health(), world.loaded()), (Health::Ready, vec![1, 0, 0]));
    let contexts: Vec<usize> = world.models.models().iter().map(|m| m.context).collect();
    assert_eq!(contexts, [99, 1, 1], "of a loaded model more is known");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(world.ask("c"), Ok(2)));
        }
    });
    assert_eq!((world.loaded(), world.loads[2].load(Ordering::SeqCst)), (vec![1, 0, 1], 1));
    assert_eq!(world.models.stats().kv_blocks, 20);
    assert!(matches!(world.ask("d"), Err(ServiceError::NotFound(_))));
    *world.health.lock().unwrap() = Health::Dead;
    assert_eq!(world.models.health(), Health::Dead);
}

#[test]
fn the_one_used_longest_ago_makes_room_unless_it_is_in_use() {
    let world = world(2);
    world.models.load_default().unwrap();
    world.ask("b").unwrap();
    world.ask("a").unwrap();
    world.ask("c").unwrap();
    assert_eq!(world.loaded(), [1, 0, 1]);
    let stats = world.models.stats();
    assert_eq!((stats.kv_blocks, stats.steps), (20, 9), "what was done is counted for good");
    world.idle[0].store(false, Ordering::SeqCst);
    world.ask("b").unwrap();
    assert_eq!(world.loaded(), [1, 1, 0]);
    world.idle[1].store(false, Ordering::SeqCst);
    assert_eq!(world.ask("c"), Err(ServiceError::Overloaded));
    assert_eq!((world.loaded(), world.ask("b")), (vec![1, 1, 0], Ok(1)));
}

#[test]
fn memory_that_is_short_lets_go_of_what_is_idle() {
    let world = world(3);
    world.models.load_default().unwrap();
    world.ask("b").unwrap();
    world.ask("c").unwrap();
    assert_eq!((world.models.relieve(), world.loaded()), (0, vec![1, 1, 1]));
    world.idle[1].store(false, Ordering::SeqCst);
    world.free.store(99, Ordering::SeqCst);
    // The default one and the one in use stay.
    assert_eq!((world.models.relieve(), world.loaded()), (1, vec![1, 1, 0]));
    assert_eq!(world.models.relieve(), 0);
    // A shortage is no reason to refuse.
    assert_eq!(world.ask("c"), Ok(2));
}

#[test]
fn a_model_that_cannot_be_loaded_ends_nothing() {
    let world = world(3);
    world.models.load_default().unwrap();
    world.loads[1].store(90, Ordering::SeqCst);
    let error = world.ask("b").unwrap_err();
    assert_eq!(error, ServiceError::Failed("the model cannot be loaded".into()), "no path shows");
    assert_eq!((world.ask("a"), world.ask("c")), (Ok(0), Ok(2)));
    world.loads[1].store(0, Ordering::SeqCst);
    assert_eq!(world.ask("b"), Ok(1), "a file that comes back is found");
}
