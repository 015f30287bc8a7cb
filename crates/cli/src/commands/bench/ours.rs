//! Runs rows on a backend.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use dunlin_tensor::{Backend, Best, LogitsWanted, SequenceInput};

use super::row::{Row, tokens};

/// Tokens of a step while a row's depth is filled.
const FILL_TOKENS: usize = 512;

/// Rows with their KV on one backend.
pub struct Runner<'a> {
    backend: &'a mut dyn Backend,
    rows: Vec<Prepared>,
    logits: Vec<f32>,
    best: Vec<Best>,
    vocab_size: usize,
}

/// A row's own KV blocks: what it holds before it is timed stays between repetitions.
struct Prepared {
    row: Row,
    /// One table for each sequence.
    tables: Vec<Vec<u32>>,
    warm: bool,
}

/// Tokens of KV that the rows need together, for a backend with blocks of up to `block_tokens`.
pub fn kv_tokens(rows: &[Row], block_tokens: usize) -> usize {
    let padded = |row: &Row| row.length().next_multiple_of(block_tokens) * row.sequences();
    rows.iter().map(padded).sum()
}

impl<'a> Runner<'a> {
    /// Gives every row its blocks.
    ///
    /// # Errors
    /// A backend with too few.
    pub fn new(backend: &'a mut dyn Backend, rows: &[Row]) -> anyhow::Result<Self> {
        let mut next = 0u32;
        let block_tokens = backend.block_tokens();
        let prepared = rows.iter().map(|&row| {
            let blocks = row.length().div_ceil(block_tokens) as u32;
            let tables = (0..row.sequences()).map(|_| {
                let table = (next..next + blocks).collect();
                next += blocks;
                table
            });
            Prepared { row, tables: tables.collect(), warm: false }
        });
        let rows = prepared.collect();
        anyhow::ensure!(
            next as usize <= backend.block_count(),
            "the rows need {next} blocks of KV, and there are {}",
            backend.block_count()
        );
        let vocab_size = backend.spec().vocab_size;
        Ok(Self { backend, rows, logits: Vec::new(), best: Vec::new(), vocab_size })
    }

    /// Tokens a second of the row with this index, once more.
    ///
    /// # Errors
    /// What the backend answers.
    pub fn run(&mut self, index: usize) -> anyhow::Result<f64> {
        let row = self.rows[index].row;
        if !self.rows[index].warm {
            self.prepare(index).with_context(|| format!("{row}, before it is timed"))?;
            self.rows[index].warm = true;
        }
        let time = match row {
            Row::Prefill { tokens } => self.prefill(index, tokens),
            Row::Decode { .. } | Row::Batch { .. } => self.decode(index),
        };
        let time = time.with_context(|| row.to_string())?;
        Ok(row.timed_tokens() as f64 / time.as_secs_f64())
    }

    /// Fills the row's depth and touches what the timed part will touch.
    fn prepare(&mut self, index: usize) -> anyhow::Result<()> {
        let row = self.rows[index].row;
        for sequence in 0..row.sequences() {
            let ids = tokens(row.depth(), self.vocab_size, 1 + sequence as u64);
            self.feed(index, sequence, &ids, FILL_TOKENS, LogitsWanted::None)?;
        }
        match row {
            Row::Prefill { tokens } => self.prefill(index, tokens).map(drop),
            Row::Decode { .. } | Row::Batch { .. } => self.steps(index, 1),
        }
    }

    fn prefill(&mut self, index: usize, count: usize) -> anyhow::Result<Duration> {
        let ids = tokens(count, self.vocab_size, 1);
        let most = self.backend.max_step_tokens();
        let start = Instant::now();
        self.feed(index, 0, &ids, most, LogitsWanted::Last)?;
        std::hint::black_box(&self.best);
        Ok(start.elapsed())
    }

    fn decode(&mut self, index: usize) -> anyhow::Result<Duration> {
        let steps = self.rows[index].row.new_tokens();
        let start = Instant::now();
        self.steps(index, steps)?;
        Ok(start.elapsed())
    }

    /// Greedy decoding from the row's depth, all its sequences a step.
    fn steps(&mut self, index: usize, steps: usize) -> anyhow::Result<()> {
        let Prepared { row, tables, .. } = &self.rows[index];
        let mut last = tokens(row.sequences(), self.vocab_size, 99);
        for step in 0..steps {
            let batch: Vec<SequenceInput<'_>> = last
                .iter()
                .zip(tables)
                .map(|(token, table)| SequenceInput {
                    tokens: std::slice::from_ref(token),
                    first_position: row.depth() + step,
                    block_table: table,
                    logits: LogitsWanted::Last,
                    branch_of: None,
                })
                .collect();
            let greedy = vec![true; batch.len()];
            self.backend.forward_best(&batch, &greedy, &mut self.logits, &mut self.best)?;
            last = self.best.iter().map(|best| best.token).collect();
        }
        Ok(())
    }

    /// Stores `ids` from position 0 on, at most `most` a step; logits as wanted for the last step.
    fn feed(
        &mut self,
        index: usize,
        sequence: usize,
        ids: &[u32],
        most: usize,
        wanted: LogitsWanted,
    ) -> anyhow::Result<()> {
        let table = &self.rows[index].tables[sequence];
        let size = most.min(self.backend.max_step_tokens()).max(1);
        let mut position = 0;
        for chunk in ids.chunks(size) {
            let end = position + chunk.len();
            let input = SequenceInput {
                tokens: chunk,
                first_position: position,
                block_table: table,
                logits: if end == ids.len() { wanted } else { LogitsWanted::None },
                branch_of: None,
            };
            self.backend.forward_best(&[input], &[true], &mut self.logits, &mut self.best)?;
            position = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::eval::Fake;

    #[test]
    fn rows_do_the_work_that_they_name() {
        let rows: Vec<Row> =
            ["pp250", "tg3", "tg2@130", "b3"].iter().map(|r| r.parse().unwrap()).collect();
        let mut fake = Fake::new(8, |_, p, v| if v == p % 8 { 1.0 } else { 0.0 });
        assert_eq!(kv_tokens(&rows, 16), 256 + 16 + 144 + 3 * 160);
        let mut runner = Runner::new(&mut fake, &rows).unwrap();
        for index in 0..rows.len() {
            for _ in 0..2 {
                assert!(runner.run(index).unwrap() > 0.0);
            }
        }
        let steps = std::mem::take(&mut fake.steps);
        let (none, last) = (LogitsWanted::None, LogitsWanted::Last);
        // pp250 three times (once to warm up) in steps of at most 100.
        let prefill = [(0, 100, none), (100, 100, none), (200, 50, last)];
        assert_eq!(steps[..9], [prefill, prefill, prefill].concat());
        // tg3: one step to warm up, then positions 0 to 2, twice.
        let decode: Vec<_> = [0, 0, 1, 2, 0, 1, 2].map(|p| (p, 1, last)).into();
        assert_eq!(steps[9..16], decode);
        // tg2@130: filled once.
        assert_eq!(steps[16..18], [(0, 100, none), (100, 30, none)]);
        let decode: Vec<_> = [130, 130, 131, 130, 131].map(|p| (p, 1, last)).into();
        assert_eq!(steps[18..23], decode);
        // b3: three sequences of 128, then 1 + 32 + 32 steps of three.
        assert_eq!(steps[23..29].iter().map(|s| s.1).sum::<usize>(), 3 * 128);
        assert_eq!(steps[29..].len(), 3 * 65);
        assert!(steps[29..].iter().all(|s| s.1 == 1 && s.2 == last && s.0 >= 128 && s.0 < 160));
    }
}
