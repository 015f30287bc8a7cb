//! How much memory a request must find to be taken on.

use dunlin_kvcache::{CacheConfig, EvictionKind, Namespace, NamespaceKey};
use dunlin_scheduler::{Admission, Core, CoreConfig, Effects, Event, Submission};
use dunlin_units::{RequestId, Time};

fn namespace() -> Namespace {
    Namespace::new(&NamespaceKey::default())
}

/// How many of three prompts of four blocks run at once in memory of so many blocks.
fn running(admission: Admission, blocks: usize) -> u32 {
    let cache = CacheConfig {
        block_tokens: 4,
        block_count: blocks,
        disk_slots: 0,
        eviction: EvictionKind::Lru,
        prefix_cache: true,
        hash_seed: 0,
    };
    let config = CoreConfig { admission, ..CoreConfig::new(cache, 64) };
    let mut core = Core::new(config).unwrap();
    let submit = |i: u64| {
        let prompt: Vec<u32> = (0..16).map(|t| t + 100 * i as u32).collect();
        Event::Submit(Box::new(Submission::new(RequestId(i), namespace(), prompt, 5)))
    };
    let mut events: Vec<Event> = (1..=3).map(submit).collect();
    core.advance(Time(0), &mut events, &mut Effects::default());
    core.load().running
}

#[test]
fn prompts_alone_or_with_room_to_go_on() {
    // A prompt and its first token take five blocks.
    assert_eq!([8, 10, 12, 15].map(|b| running(Admission::Prompt, b)), [2, 2, 3, 3]);
    assert_eq!([8, 10, 12, 15].map(|b| running(Admission::Headroom, b)), [1, 2, 2, 3]);
}
