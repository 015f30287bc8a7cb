//! Doubly linked lists over small numbers, each of which is in at most one of them.

const NONE: u32 = u32::MAX;
/// In no list.
const OUT: u32 = u32::MAX - 1;

#[derive(Debug, Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

/// See the module. Every operation takes constant time.
#[derive(Debug)]
pub(crate) struct Lists {
    links: Vec<Link>,
    ends: Vec<Ends>,
}

impl Lists {
    /// For items `0..items`, none of them in a list.
    pub(crate) fn new(items: usize) -> Self {
        Self { links: vec![Link { previous: OUT, next: OUT }; items], ends: Vec::new() }
    }

    pub(crate) fn contains(&self, item: u32) -> bool {
        self.links[item as usize].previous != OUT
    }

    /// Appends an item that is in no list.
    #[inline]
    pub(crate) fn push_back(&mut self, list: u32, item: u32) {
        debug_assert!(!self.contains(item));
        if list as usize >= self.ends.len() {
            self.ends.resize(list as usize + 1, Ends { first: NONE, last: NONE });
        }
        let ends = &mut self.ends[list as usize];
        let previous = std::mem::replace(&mut ends.last, item);
        if previous == NONE {
            ends.first = item;
        } else {
            self.links[previous as usize].next = item;
        }
        self.links[item as usize] = Link { previous, next: NONE };
    }

    /// Takes an item out of `list`, where it is.
    #[inline]
    pub(crate) fn remove(&mut self, list: u32, item: u32) {
        debug_assert!(self.contains(item));
        let Link { previous, next } = self.links[item as usize];
        self.links[item as usize] = Link { previous: OUT, next: OUT };
        if previous == NONE {
            self.ends[list as usize].first = next;
        } else {
            self.links[previous as usize].next = next;
        }
        if next == NONE {
            self.ends[list as usize].last = previous;
        } else {
            self.links[next as usize].previous = previous;
        }
    }

    /// The first item of a list.
    #[inline]
    pub(crate) fn first(&self, list: u32) -> Option<u32> {
        self.ends.get(list as usize).map(|e| e.first).filter(|&f| f != NONE)
    }

    /// The items of a list in order.
    pub(crate) fn iter(&self, list: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.first(list), |&item| {
            Some(self.links[item as usize].next).filter(|&n| n != NONE)
        })
    }
}
