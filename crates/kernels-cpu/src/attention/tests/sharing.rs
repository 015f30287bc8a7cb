//! Sequences that name the same blocks get the bits that they get with blocks of their own.

use super::*;

/// A step over sequences with common prefixes, and the KV of all their blocks.
struct Step {
    shape: AttnShape,
    /// Keys and values of each block, by its id.
    blocks: Vec<(Vec<f32>, Vec<f32>)>,
    /// Tables, first positions and numbers of queries.
    sequences: Vec<(Vec<u32>, usize, usize)>,
    q: Vec<f32>,
}

impl Step {
    /// `families` prefixes of up to `prefix` blocks, the longer ones going on from another's; `n`
    /// sequences that start with one of them and add up to `own` tokens, some or all of which are
    /// queries.
    fn new(
        shape: AttnShape,
        salt: u64,
        families: usize,
        prefix: usize,
        n: usize,
        own: usize,
    ) -> Self {
        let mut rng = Rng::new(salt);
        let mut below = |n: usize| rng.next() as usize % n;
        let mut count = 0u32;
        let mut fresh = |n: usize| {
            count += n as u32;
            (count - n as u32..count).collect::<Vec<u32>>()
        };
        let mut prefixes: Vec<Vec<u32>> = Vec::new();
        for _ in 0..families {
            let mut ids = Vec::new();
            if !prefixes.is_empty() && below(2) == 0 {
                let parent = &prefixes[below(prefixes.len())];
                ids.extend_from_slice(&parent[..1 + below(parent.len())]);
            }
            let more = prefix.saturating_sub(ids.len()).max(1);
            ids.extend(fresh(1 + below(more)));
            prefixes.push(ids);
        }
        let mut sequences = Vec::new();
        for _ in 0..n {
            let mut table = prefixes[below(families)].clone();
            let from = table.len() * BLOCK_TOKENS;
            let tokens = 1 + below(own);
            let queries = if below(3) == 0 { 1 + below(tokens) } else { 1 };
            table.extend(fresh(tokens.div_ceil(BLOCK_TOKENS)));
            sequences.push((table, from + tokens - queries, queries));
        }
        let [wq, wk, wv] = Sequence::widths(&shape);
        let blocks =
            (0..count).map(|_| (rng.vector(32 * wk, 2.0), rng.vector(32 * wv, 2.0))).collect();
        let rows: usize = sequences.iter().map(|s| s.2).sum();
        Step { shape, blocks, sequences, q: rng.vector(rows * wq, 2.0) }
    }

    fn store(&self, pool: &mut KvPool, id: u32, to: u32) {
        let [_, wk, wv] = Sequence::widths(&self.shape);
        let (k, v) = &self.blocks[id as usize];
        for (lane, (k, v)) in k.chunks(wk).zip(v.chunks(wv)).enumerate() {
            pool.store(CpuFeatures::best(), 0, to, lane, k, v);
        }
    }

    fn batch<'a>(&self, tables: &'a [Vec<u32>]) -> Vec<AttnSequence<'a>> {
        let mut first_row = 0;
        let list = self.sequences.iter().zip(tables).map(|(s, block_table)| {
            first_row += s.2;
            let (tokens, first_position) = (s.2, s.1);
            AttnSequence { first_row: first_row - tokens, tokens, first_position, block_table }
        });
        list.collect()
    }

    fn run(&self, cpu: CpuFeatures, plan: &Plan, pool: &KvPool, threads: usize) -> Vec<u32> {
        let rows: usize = self.sequences.iter().map(|s| s.2).sum();
        let mut out = vec![f32::NAN; rows * self.shape.n_heads * self.shape.v_head_dim];
        attend(cpu, plan, pool, 0, &self.q, &mut out, threads).unwrap();
        bits(&out)
    }

    /// Compares common blocks with copies, and returns how many parts the units had at most.
    fn check(&self, kv_type: KvType) -> usize {
        let mut shared = pool(&self.shape, kv_type, self.blocks.len());
        (0..self.blocks.len() as u32).for_each(|id| self.store(&mut shared, id, id));
        let total = self.sequences.iter().map(|s| s.0.len()).sum();
        let mut apart = pool(&self.shape, kv_type, total);
        let mut next = Rng::new(1).shuffled(total).into_iter();
        let mut copies = Vec::new();
        for (table, ..) in &self.sequences {
            let copy: Vec<u32> = next.by_ref().take(table.len()).collect();
            table.iter().zip(&copy).for_each(|(id, to)| self.store(&mut apart, *id, *to));
            copies.push(copy);
        }
        let parts = |plan: &Plan| plan.units.iter().map(|u| u.parts.len()).max().unwrap();
        let plan = Plan::new(self.shape, &self.batch(&copies), 1).unwrap();
        assert_eq!(parts(&plan), 1, "nothing is shared");
        let want = self.run(CpuFeatures::best(), &plan, &apart, 1);
        let tables: Vec<Vec<u32>> = self.sequences.iter().map(|s| s.0.clone()).collect();
        let mut most = 0;
        for cpu in CpuFeatures::available() {
            for &threads in thread_counts(cpu, &[1, 2, 5]) {
                let plan = Plan::new(self.shape, &self.batch(&tables), threads).unwrap();
                most = most.max(parts(&plan));
                let got = self.run(cpu, &plan, &shared, threads);
                assert_eq!(got, want, "{kv_type} on {} with {threads} threads", cpu.isa());
            }
        }
        most
    }
}

#[test]
fn shared_blocks_give_the_bits_of_copies() {
    let mut most = 0;
    for salt in 0..6 {
        let shape = shape(1 + salt as usize % 2, [3, 1, 4, 2, 3, 7][salt as usize], 64);
        for kv_type in TYPES {
            let step = Step::new(shape, 200 + salt, 3, 40, 24, 90);
            most = most.max(step.check(kv_type));
        }
    }
    assert!(most > 8, "units of {most} parts");
}

#[test]
fn long_prefixes_cross_segments() {
    for (i, kv_type) in TYPES.into_iter().enumerate() {
        let step = Step::new(shape(1, 3, 64), 220 + i as u64, 1, 60, 10, 600);
        step.check(kv_type);
    }
}

#[test]
fn windows_hide_part_of_what_is_shared() {
    let mut most = 0;
    for (i, window) in [1, 31, 100, 300, 512, 700, 1100].into_iter().enumerate() {
        let shape = AttnShape { window: Some(window), ..shape(1, 3, 32) };
        let step = Step::new(shape, 230 + i as u64, 2, 40, 16, 60);
        most = most.max(step.check(TYPES[i % 3]));
    }
    assert!(most > 4, "units of {most} parts");
}

#[test]
fn odd_heads_and_capped_scores_share_too() {
    let odd = AttnShape { v_head_dim: 23, softcap: Some(1.5), ..shape(2, 5, 18) };
    for (i, kv_type) in TYPES.into_iter().enumerate() {
        assert!(Step::new(odd, 240 + i as u64, 2, 20, 12, 40).check(kv_type) > 1);
    }
}

/// Queries of one sequence given as if they were several: their own blocks are common to all, and
/// are seen in part only.
#[test]
fn queries_in_a_common_block_see_what_they_may() {
    let shape = shape(1, 3, 64);
    let s = Sequence::new(shape, 300, 250);
    let table = Rng::new(251).shuffled(s.blocks());
    for kv_type in TYPES {
        let mut pool = pool(&shape, kv_type, s.blocks());
        s.store(&mut pool, &table, 0..300);
        let want = attend_alone(CpuFeatures::best(), &s, &pool, &table, 100..300, 1);
        // In another order than that of positions.
        let order: Vec<usize> = (0..200).map(|i| i * 77 % 200).collect();
        let batch: Vec<AttnSequence<'_>> = order
            .iter()
            .map(|&i| AttnSequence {
                first_row: i,
                tokens: 1,
                first_position: 100 + i,
                block_table: &table,
            })
            .collect();
        let plan = Plan::new(shape, &batch, 1).unwrap();
        assert!(plan.units.iter().any(|u| u.parts.len() > 8));
        let mut out = vec![f32::NAN; want.len()];
        attend(CpuFeatures::best(), &plan, &pool, 0, s.queries(100..300), &mut out, 1).unwrap();
        assert_eq!(bits(&out), bits(&want), "{kv_type}");
    }
}
