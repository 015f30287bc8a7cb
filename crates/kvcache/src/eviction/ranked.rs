//! Items ordered by a key, for everyone and for each group: binary heaps that know where an item is.

/// A rank: smaller goes first. Keys of different items never tie: the second part is a time or the
/// order of arrival.
pub(crate) type Rank = (u64, u64);

const OUT: u32 = u32::MAX;

/// A heap never gives memory back below this many entries.
const KEEP: usize = 64;

#[derive(Debug, Default)]
struct Heap {
    /// (rank, item).
    entries: Vec<(Rank, u32)>,
}

impl Heap {
    fn push(&mut self, rank: Rank, item: u32, places: &mut [u32]) {
        self.entries.push((rank, item));
        self.up(self.entries.len() - 1, places);
    }

    fn remove(&mut self, at: usize, places: &mut [u32]) {
        let (_, item) = self.entries.swap_remove(at);
        places[item as usize] = OUT;
        if at < self.entries.len() {
            let at = self.up(at, places);
            self.down(at, places);
        }
        // Groups come and go; what they needed at most does not stay allocated for ever.
        if self.entries.capacity() > KEEP && self.entries.len() * 4 < self.entries.capacity() {
            self.entries.shrink_to((self.entries.len() * 2).max(KEEP));
        }
    }

    fn up(&mut self, mut at: usize, places: &mut [u32]) -> usize {
        let moving = self.entries[at];
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.entries[parent] <= moving {
                break;
            }
            self.entries[at] = self.entries[parent];
            places[self.entries[at].1 as usize] = at as u32;
            at = parent;
        }
        self.entries[at] = moving;
        places[moving.1 as usize] = at as u32;
        at
    }

    fn down(&mut self, mut at: usize, places: &mut [u32]) {
        let moving = self.entries[at];
        loop {
            let mut child = 2 * at + 1;
            if child >= self.entries.len() {
                break;
            }
            if child + 1 < self.entries.len() && self.entries[child + 1] < self.entries[child] {
                child += 1;
            }
            if moving <= self.entries[child] {
                break;
            }
            self.entries[at] = self.entries[child];
            places[self.entries[at].1 as usize] = at as u32;
            at = child;
        }
        self.entries[at] = moving;
        places[moving.1 as usize] = at as u32;
    }
}

/// See the module. Everything takes logarithmic time.
#[derive(Debug)]
pub(crate) struct Ranked {
    all: Heap,
    by_group: Vec<Heap>,
    /// Where an item is in `all`, and in its group's heap.
    place: Vec<u32>,
    place_in_group: Vec<u32>,
}

impl Ranked {
    /// For items `0..items`, none of them in.
    pub(crate) fn new(items: usize) -> Self {
        Self {
            all: Heap::default(),
            by_group: Vec::new(),
            place: vec![OUT; items],
            place_in_group: vec![OUT; items],
        }
    }

    pub(crate) fn contains(&self, item: u32) -> bool {
        self.place[item as usize] != OUT
    }

    /// Adds an item that is not in.
    pub(crate) fn insert(&mut self, item: u32, group: u32, rank: Rank) {
        debug_assert!(!self.contains(item));
        if group as usize >= self.by_group.len() {
            self.by_group.resize_with(group as usize + 1, Heap::default);
        }
        self.all.push(rank, item, &mut self.place);
        self.by_group[group as usize].push(rank, item, &mut self.place_in_group);
    }

    /// Takes an item out, where it is in.
    pub(crate) fn remove(&mut self, item: u32, group: u32) {
        if !self.contains(item) {
            return;
        }
        self.all.remove(self.place[item as usize] as usize, &mut self.place);
        let at = self.place_in_group[item as usize] as usize;
        self.by_group[group as usize].remove(at, &mut self.place_in_group);
    }

    /// The item of the smallest rank.
    pub(crate) fn first(&self, group: Option<u32>) -> Option<u32> {
        let heap = match group {
            None => &self.all,
            Some(group) => self.by_group.get(group as usize)?,
        };
        heap.entries.first().map(|e| e.1)
    }
}
