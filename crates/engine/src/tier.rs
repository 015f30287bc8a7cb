//! The disk tier: a file of slots, each as large as a block of KV outside the backend.
//!
//! It holds nothing that cannot be computed again: it is not synced, and goes with the engine. What
//! is read back is checked, so that a bad disk costs a computation and not a wrong answer.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use dunlin_kvcache::{Move, Place};
use dunlin_tensor::Backend;
use xxhash_rust::xxh3::xxh3_64;

/// The file, and what it should hold.
#[derive(Debug)]
pub(crate) struct DiskTier {
    file: File,
    /// Checksum of each slot's bytes; none where nothing was written.
    checksums: Vec<Option<u64>>,
    buffer: Vec<u8>,
}

impl DiskTier {
    /// A tier of so many slots in a file without a name in this folder.
    pub(crate) fn new(folder: &Path, slots: usize) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("dunlin-kv-{}.tier", std::process::id()));
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        // The file goes when it is closed, however this process ends.
        std::fs::remove_file(&path)?;
        Ok(Self { file, checksums: vec![None; slots], buffer: Vec::new() })
    }

    /// Carries out a move; whether the data arrived.
    pub(crate) fn carry_out(&mut self, backend: &mut impl Backend, it: &Move) -> bool {
        match (it.from, it.to) {
            (Place::Memory(block), Place::Disk(slot)) => self.store(backend, block, slot),
            (Place::Disk(slot), Place::Memory(block)) => self.load(backend, slot, block),
            (Place::Memory(from), Place::Memory(to)) => {
                backend.copy_block(from, to, backend.block_tokens());
                true
            }
            (Place::Disk(_), Place::Disk(_)) => false,
        }
    }

    fn store(&mut self, backend: &impl Backend, block: u32, slot: u32) -> bool {
        self.buffer.clear();
        backend.export_block(block, backend.block_tokens(), &mut self.buffer);
        let Some(checksum) = self.checksums.get_mut(slot as usize) else { return false };
        *checksum = None;
        let size = self.buffer.len();
        let at = SeekFrom::Start(u64::from(slot) * size as u64);
        let written =
            size > 0 && self.file.seek(at).and_then(|_| self.file.write_all(&self.buffer)).is_ok();
        *checksum = written.then(|| xxh3_64(&self.buffer));
        written
    }

    fn load(&mut self, backend: &mut impl Backend, slot: u32, block: u32) -> bool {
        let Some(&Some(checksum)) = self.checksums.get(slot as usize) else { return false };
        let size = backend.kv_token_bytes() * backend.block_tokens();
        self.buffer.resize(size, 0);
        let at = SeekFrom::Start(u64::from(slot) * size as u64);
        let read = self.file.seek(at).and_then(|_| self.file.read_exact(&mut self.buffer));
        read.is_ok()
            && xxh3_64(&self.buffer) == checksum
            && backend.import_block(block, &self.buffer).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use dunlin_kvcache::MoveId;
    use dunlin_tensor::{LogitsWanted, SequenceInput};
    use dunlin_testkit::toy::Toy;

    use super::*;

    fn at(from: Place, to: Place) -> Move {
        Move { id: MoveId(0), from, to }
    }

    #[test]
    fn blocks_come_back_as_they_went_and_bad_bytes_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let mut toy = Toy::new(4, 4, 16);
        let input = SequenceInput {
            tokens: &[1, 2, 3, 4, 5, 6, 7, 8],
            first_position: 0,
            block_table: &[2, 0],
            logits: LogitsWanted::None,
            branch_of: None,
        };
        toy.forward(&[input], &mut Vec::new()).unwrap();
        let mut tier = DiskTier::new(folder.path(), 3).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it has no name");
        assert!(tier.carry_out(&mut toy, &at(Place::Memory(2), Place::Disk(1))));
        assert!(tier.carry_out(&mut toy, &at(Place::Memory(0), Place::Disk(2))));
        assert!(tier.carry_out(&mut toy, &at(Place::Disk(1), Place::Memory(3))));
        let (mut a, mut b) = (Vec::new(), Vec::new());
        toy.export_block(2, 4, &mut a);
        toy.export_block(3, 4, &mut b);
        assert_eq!(a, b);
        assert!(!tier.carry_out(&mut toy, &at(Place::Disk(0), Place::Memory(3))), "never written");
        assert!(!tier.carry_out(&mut toy, &at(Place::Memory(2), Place::Disk(3))), "no such slot");
        tier.file.seek(SeekFrom::Start(16)).unwrap();
        tier.file.write_all(&[9]).unwrap();
        assert!(!tier.carry_out(&mut toy, &at(Place::Disk(1), Place::Memory(3))), "changed");
        assert!(tier.carry_out(&mut toy, &at(Place::Disk(2), Place::Memory(1))));
    }
}
