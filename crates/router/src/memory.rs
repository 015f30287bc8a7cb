//! What a policy remembers about keys, in bounded memory: two generations of a hash map. When the
//! younger is full the older is forgotten, so a key stays for at least half of the capacity's worth
//! of other keys after its last use.

use std::collections::HashMap;

#[derive(Debug)]
pub(crate) struct Memory {
    young: HashMap<u64, u32>,
    old: HashMap<u64, u32>,
    half: usize,
}

impl Memory {
    /// For about `capacity` keys.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (capacity / 2).max(1) }
    }

    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }

    pub(crate) fn put(&mut self, key: u64, worker: u32) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_what_is_recent_and_stays_small() {
        let mut memory = Memory::new(100);
        for key in 0..10_000 {
            memory.put(key, key as u32 % 7);
            memory.put(3, 5);
            assert_eq!(memory.get(key), Some(if key == 3 { 5 } else { key as u32 % 7 }));
            assert_eq!(memory.get(3), Some(5), "in use all the time");
            assert!(memory.young.len() + memory.old.len() <= 101);
            if key >= 40 {
                assert!(memory.get(key - 40).is_some());
            }
        }
        assert_eq!(memory.get(100), None);
    }
}
