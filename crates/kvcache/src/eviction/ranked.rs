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
    /// The first entry is gone and its place not yet filled. What comes next often belongs there:
    /// a leaf that was evicted makes its parent one, with nearly the same rank.
    hole: bool,
}

impl Heap {
    fn push(&mut self, rank: Rank, item: u32, places: &mut [u32]) {
        if std::mem::take(&mut self.hole) {
            self.entries[0] = (rank, item);
            self.down(0, places);
        } else {
            self.entries.push((rank, item));
            self.up(self.entries.len() - 1, places);
        }
    }

    fn remove(&mut self, item: u32, places: &mut [u32]) {
        self.fill(places);
        let at = std::mem::replace(&mut places[item as usize], OUT) as usize;
        if at == 0 && self.entries.len() > 1 {
            self.hole = true;
            return;
        }
        self.entries.swap_remove(at);
        if at < self.entries.len() {
            let at = self.up(at, places);
            self.down(at, places);
        }
        self.shrink();
    }

    fn first(&mut self, places: &mut [u32]) -> Option<u32> {
        self.fill(places);
        self.entries.first().map(|e| e.1)
    }

    fn fill(&mut self, places: &mut [u32]) {
        if !std::mem::take(&mut self.hole) {
            return;
        }
        self.entries.swap_remove(0);
        if !self.entries.is_empty() {
            self.down(0, places);
        }
        self.shrink();
    }

    /// Groups come and go: what they needed at most does not stay allocated for ever.
    fn shrink(&mut self) {
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
    grouped: bool,
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
            grouped: false,
            place: vec![OUT; items],
            place_in_group: Vec::new(),
        }
    }

    pub(crate) fn contains(&self, item: u32) -> bool {
        self.place[item as usize] != OUT
    }

    /// Adds an item that is not in.
    pub(crate) fn insert(&mut self, item: u32, group: u32, rank: Rank) {
        debug_assert!(!self.contains(item));
        self.all.push(rank, item, &mut self.place);
        if self.grouped {
            self.insert_in_group(item, group, rank);
        }
    }

    fn insert_in_group(&mut self, item: u32, group: u32, rank: Rank) {
        if group as usize >= self.by_group.len() {
            self.by_group.resize_with(group as usize + 1, Heap::default);
        }
        self.by_group[group as usize].push(rank, item, &mut self.place_in_group);
    }

    /// Takes an item out, where it is in.
    pub(crate) fn remove(&mut self, item: u32, group: u32) {
        if !self.contains(item) {
            return;
        }
        self.all.remove(item, &mut self.place);
        if self.grouped {
            self.by_group[group as usize].remove(item, &mut self.place_in_group);
        }
    }

    /// From now on the groups are kept as well: `group` says which one an item is in.
    pub(crate) fn track_groups(&mut self, group: impl Fn(u32) -> u32) {
        if std::mem::replace(&mut self.grouped, true) {
            return;
        }
        self.place_in_group = vec![OUT; self.place.len()];
        self.all.fill(&mut self.place);
        for at in 0..self.all.entries.len() {
            let (rank, item) = self.all.entries[at];
            self.insert_in_group(item, group(item), rank);
        }
    }

    /// The item of the smallest rank.
    pub(crate) fn first(&mut self, group: Option<u32>) -> Option<u32> {
        match group {
            None => self.all.first(&mut self.place),
            Some(group) => self.by_group.get_mut(group as usize)?.first(&mut self.place_in_group),
        }
    }
}
