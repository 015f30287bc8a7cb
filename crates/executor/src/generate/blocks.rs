//! Physical KV blocks: which are free, and how many tables name each of the others.

/// A free list with reference counts over the blocks `0..count` of a backend.
#[derive(Debug)]
pub(super) struct BlockPool {
    /// Free blocks; the last is handed out next, so that warm blocks are used again first.
    free: Vec<u32>,
    /// Tables that name each block, `[count]`.
    references: Vec<u32>,
}

impl BlockPool {
    pub(super) fn new(count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self { free: (0..count).rev().collect(), references: vec![0; count as usize] }
    }

    pub(super) fn total(&self) -> usize {
        self.references.len()
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// A block with one reference.
    ///
    /// # Panics
    /// With no free block: whoever allocates has reserved.
    pub(super) fn allocate(&mut self) -> u32 {
        let block = self.free.pop().expect("blocks are allocated only within reservations");
        assert_eq!(self.references[block as usize], 0, "block {block} was free and in use");
        self.references[block as usize] = 1;
        block
    }

    /// One more table names this block.
    pub(super) fn share(&mut self, block: u32) {
        assert!(self.references[block as usize] > 0, "block {block} is shared but not in use");
        self.references[block as usize] += 1;
    }

    pub(super) fn is_shared(&self, block: u32) -> bool {
        self.references[block as usize] > 1
    }

    /// One table less names this block; whether that made it free.
    pub(super) fn release(&mut self, block: u32) -> bool {
        let references = &mut self.references[block as usize];
        assert!(*references > 0, "block {block} was released twice");
        *references -= 1;
        if *references == 0 {
            self.free.push(block);
        }
        *references == 0
    }

    /// Shortens a table to `keep` blocks, and returns how many became free.
    pub(super) fn truncate(&mut self, table: &mut Vec<u32>, keep: usize) -> usize {
        let mut freed = 0;
        // Backwards, so that a sequence that starts next gets the blocks in ascending order.
        while table.len() > keep {
            freed += table.pop().map_or(0, |block| usize::from(self.release(block)));
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_return_when_the_last_table_lets_go() {
        let mut pool = BlockPool::new(3);
        let (a, b) = (pool.allocate(), pool.allocate());
        assert_eq!((a, b, pool.free()), (0, 1, 1));
        pool.share(a);
        assert!(pool.is_shared(a) && !pool.is_shared(b));
        pool.release(a);
        assert_eq!(pool.free(), 1);
        assert_eq!(pool.truncate(&mut vec![a, b], 0), 2);
        assert_eq!((pool.free(), pool.total()), (3, 3));
        assert_eq!(pool.allocate(), 0);
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn a_second_release_is_caught() {
        let mut pool = BlockPool::new(1);
        let a = pool.allocate();
        pool.release(a);
        pool.release(a);
    }
}
