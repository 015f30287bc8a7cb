//! Same prefix, same bits: a token's logits depend on the tokens before it, the model and the
//! numeric settings, and on nothing else. Everything here is compared with `==`.
//!
//! Every law is held on tiny models, with scalar kernels among the instruction sets, and on real
//! ones, whose sizes reach every tile and segment.

use std::path::{Path, PathBuf};

use dunlin_kernels_cpu::{CpuFeatures, Isa};
use dunlin_model::{CpuModel, LoadOptions, load};
use dunlin_scheduler::{DraftNode, DrafterKind, TreeLayout};
use dunlin_spec::{ActivationPrecision, KvType};
use dunlin_tensor::{Backend, Best, LogitsWanted, SequenceInput};
use dunlin_testkit::engine::{Route, block_table, logits_from};
use dunlin_testkit::golden::MODELS;
use dunlin_testkit::models;
use dunlin_testkit::tiny::{self, Rng};

/// Tiny models that between them have every block (grouped heads, windows, experts, norms of heads,
/// fused tensors), with quantized and with float weights, each under one pair of settings.
const TINY: [(&str, ActivationPrecision, KvType); 11] = {
    use ActivationPrecision::{F32, Int8, Split};
    [
        ("llama", Int8, KvType::F32),
        ("llama-q4_0", F32, KvType::F32),
        ("llama-q4_0", Split, KvType::F16),
        ("llama-q4_0", Int8, KvType::Int8),
        ("llama-q4_k", Int8, KvType::F16),
        ("llama-q8_0", Split, KvType::Int8),
        ("mistral", F32, KvType::Int8),
        ("mixtral-q4_1", Int8, KvType::F16),
        ("qwen2", Int8, KvType::F16),
        ("gemma3-q5_0", Int8, KvType::Int8),
        ("phi3", Split, KvType::F16),
    ]
};

/// A model file, settings to load it with, and a prompt.
struct Case {
    name: String,
    path: PathBuf,
    options: LoadOptions,
    tokens: Vec<u32>,
    /// The first token whose logits are compared: on large vocabularies all would be gigabytes.
    /// Later ones depend on all before them.
    from: usize,
}

impl Case {
    fn load(&self, change: impl FnOnce(&mut LoadOptions)) -> CpuModel {
        let mut options = self.options.clone();
        change(&mut options);
        load(&self.path, &options).unwrap_or_else(|e| panic!("{}: {e}", self.name)).backend
    }

    fn run(&self, model: &mut CpuModel, route: Route, first_block: u32) -> Vec<f32> {
        logits_from(model, &self.tokens, route, first_block, self.from)
    }

    /// The logits that every other way must give: one sequence, one thread, in one piece.
    fn plain(&self) -> Vec<f32> {
        self.run(&mut self.load(|_| {}), Route::Whole, 0)
    }

    fn assert_same(&self, what: &str, found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len(), "{}: {what}", self.name);
        let differ = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
        if let Some(i) = differ {
            let token = self.from + i / (expected.len() / (self.tokens.len() - self.from));
            panic!("{}: {what}: {} != {} at token {token}", self.name, found[i], expected[i]);
        }
    }
}

fn tiny_cases(folder: &Path) -> Vec<Case> {
    let tokens = tiny::random_tokens(tiny::seed(), 70);
    TINY.into_iter()
        .map(|(name, activations, kv_type)| Case {
            name: format!("{name}, {activations} activations, {kv_type} KV"),
            path: tiny::named(name).write_gguf(folder),
            options: LoadOptions {
                threads: Some(1),
                activations,
                kv_type,
                kv_tokens: Some(4096),
                pack_folder: None,
                ..LoadOptions::default()
            },
            tokens: tokens.clone(),
            from: 0,
        })
        .collect()
}

/// Real models at default settings, as far as they are on this machine.
fn real_cases(test: &str) -> Vec<Case> {
    let packs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packs");
    let mut cases = Vec::new();
    for model in MODELS {
        let Some(path) = models::find(model.file, test) else { continue };
        let options = LoadOptions {
            threads: Some(1),
            context: Some(1024),
            kv_tokens: Some(4096),
            pack_folder: Some(packs.clone()),
            ..LoadOptions::default()
        };
        // Past an attention segment and Gemma's window.
        let tokens = model.long().ids[..560].to_vec();
        cases.push(Case { name: model.name.into(), path, options, tokens, from: 550 });
    }
    cases
}

fn routes_do_not_matter(cases: &[Case], routes: &[Route]) {
    for case in cases {
        let expected = case.plain();
        let mut model = case.load(|_| {});
        for &route in routes {
            let found = case.run(&mut model, route, 3);
            case.assert_same(&format!("{route:?}"), &found, &expected);
        }
    }
}

#[test]
fn tiny_chunks_and_decode() {
    let folder = tempfile::tempdir().unwrap();
    let routes = [1, 7, 32, 33].map(Route::Chunks);
    routes_do_not_matter(&tiny_cases(folder.path()), &routes);
}

#[test]
fn real_chunks_and_decode() {
    let routes = [Route::Chunks(7), Route::Chunks(32), Route::ThenOnes(545)];
    routes_do_not_matter(&real_cases("real_chunks_and_decode"), &routes);
}

fn threads_do_not_matter(cases: &[Case]) {
    for case in cases {
        let expected = case.plain();
        for threads in [2, 3] {
            let mut model = case.load(|o| o.threads = Some(threads));
            for route in [Route::Whole, Route::Chunks(17)] {
                let found = case.run(&mut model, route, 0);
                case.assert_same(&format!("{threads} threads, {route:?}"), &found, &expected);
            }
        }
    }
}

#[test]
fn tiny_threads() {
    let folder = tempfile::tempdir().unwrap();
    threads_do_not_matter(&tiny_cases(folder.path()));
}

#[test]
fn real_threads() {
    threads_do_not_matter(&real_cases("real_threads"));
}

/// Every way in which this CPU can run the kernels.
fn instruction_sets() -> Vec<CpuFeatures> {
    let mut all = Vec::new();
    for with_extras in CpuFeatures::available() {
        for features in [with_extras, with_extras.without_extras()] {
            if !all.contains(&features) {
                all.push(features);
            }
        }
    }
    println!("{all:?}");
    all
}

fn instruction_sets_do_not_matter(cases: &[Case], sets: &[CpuFeatures]) {
    for case in cases {
        let expected = case.plain();
        for &features in sets {
            let mut model = case.load(|o| o.cpu = Some(features));
            // One token has kernels of its own, and so have few and many.
            let ones = if case.from == 0 { Route::Chunks(1) } else { Route::ThenOnes(case.from) };
            for route in [Route::Whole, Route::Chunks(9), ones] {
                let found = case.run(&mut model, route, 0);
                case.assert_same(&format!("{features:?}, {route:?}"), &found, &expected);
            }
        }
    }
}

#[test]
fn tiny_instruction_sets() {
    let folder = tempfile::tempdir().unwrap();
    instruction_sets_do_not_matter(&tiny_cases(folder.path()), &instruction_sets());
}

/// Scalar kernels would take minutes on real models; they are held to the others on tiny ones.
#[test]
fn real_instruction_sets() {
    let mut sets = instruction_sets();
    sets.retain(|f| f.isa() != Isa::Scalar);
    instruction_sets_do_not_matter(&real_cases("real_instruction_sets"), &sets);
}

/// A sequence among others: how much of it has been run, and its blocks.
struct Stranger {
    tokens: Vec<u32>,
    done: usize,
    table: Vec<u32>,
}

/// Which of the sixteen is the one that is looked at.
const OURS: usize = 5;

fn strangers(case: &Case, model: &CpuModel, rng: &mut Rng) -> Vec<Stranger> {
    let vocab = model.spec().vocab_size;
    let mut next_block = 0;
    (0..16)
        .map(|i| {
            let tokens = match i {
                OURS => case.tokens.clone(),
                _ => (0..40 + rng.below(100)).map(|_| rng.below(vocab) as u32).collect(),
            };
            let table = block_table(model, tokens.len(), next_block);
            next_block += table.len() as u32;
            Stranger { tokens, done: 0, table }
        })
        .collect()
}

/// Who takes part in a step, with how many tokens: some prefill, some decode.
fn draw_step(sequences: &[Stranger], max_tokens: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let mut room = max_tokens;
    for (i, s) in sequences.iter().enumerate() {
        let wanted = if rng.below(2) == 0 { 1 + rng.below(30) } else { 1 };
        let size = wanted.min(s.tokens.len() - s.done).min(room);
        if size > 0 && (i == OURS || rng.below(4) > 0) {
            parts.push((i, size));
            room -= size;
        }
    }
    parts
}

/// Runs `case.tokens` amid 15 strangers of mixed lengths; the logits of the tokens compared.
fn amid_strangers(case: &Case, rng: &mut Rng) -> Vec<f32> {
    let mut model = case.load(|o| o.threads = Some(2));
    let vocab = model.spec().vocab_size;
    let mut sequences = strangers(case, &model, rng);
    let (mut out, mut step) = (Vec::new(), Vec::new());
    while sequences[OURS].done < case.tokens.len() {
        let parts = draw_step(&sequences, model.max_step_tokens(), rng);
        let ours = parts.iter().find(|p| p.0 == OURS).map_or(0, |p| p.1);
        let end = sequences[OURS].done + ours;
        let compared = end > case.from && ours > 0;
        let batch: Vec<SequenceInput<'_>> = parts
            .iter()
            .map(|&(i, size)| SequenceInput {
                tokens: &sequences[i].tokens[sequences[i].done..][..size],
                first_position: sequences[i].done,
                block_table: &sequences[i].table,
                logits: match i {
                    OURS if compared => LogitsWanted::All,
                    OURS => LogitsWanted::None,
                    _ => LogitsWanted::Last,
                },
                branch_of: None,
            })
            .collect();
        model.forward(&batch, &mut step).expect("a valid step");
        if compared {
            let before = parts.iter().filter(|p| p.0 < OURS).count();
            let skip = case.from.saturating_sub(sequences[OURS].done);
            out.extend_from_slice(&step[(before + skip) * vocab..(before + ours) * vocab]);
        }
        for (i, size) in parts {
            sequences[i].done += size;
        }
    }
    out
}

fn strangers_do_not_matter(cases: &[Case]) {
    let mut rng = Rng(tiny::seed());
    for case in cases {
        case.assert_same("amid strangers", &amid_strangers(case, &mut rng), &case.plain());
    }
}

#[test]
fn tiny_strangers() {
    let folder = tempfile::tempdir().unwrap();
    strangers_do_not_matter(&tiny_cases(folder.path()));
}

#[test]
fn real_strangers() {
    strangers_do_not_matter(&real_cases("real_strangers"));
}

/// The greedy choices of a model, alone and four at once, beside a sequence that wants its logits.
fn best_tokens(case: &Case, model: &mut CpuModel) -> Vec<Best> {
    let (mut logits, mut best, mut all) = (Vec::new(), Vec::new(), Vec::new());
    let tables = [0, 40].map(|first| block_table(model, case.tokens.len(), first));
    let vocab = model.spec().vocab_size;
    let mut run = |range: std::ops::Range<usize>, wanted: LogitsWanted| {
        let input = |table| SequenceInput {
            tokens: &case.tokens[range.clone()],
            first_position: range.start,
            block_table: table,
            logits: wanted,
            branch_of: None,
        };
        let batch = tables.each_ref().map(|table| input(table));
        model.forward_best(&batch, &[false, true], &mut logits, &mut best).expect("a valid step");
        // The two are the same sequence.
        let rows: Vec<Best> = logits.chunks_exact(vocab).map(Best::of).collect();
        assert_eq!(rows.len(), best.len());
        assert!(rows.iter().zip(&best).all(|(a, b)| same_best(a, b)), "{}", case.name);
        all.append(&mut best);
    };
    let mut at = 0;
    while at < case.from {
        let end = case.from.min(at + 32);
        run(at..end, LogitsWanted::None);
        at = end;
    }
    while at < case.tokens.len() {
        let size = [1, 4, 1, 7][at % 4].min(case.tokens.len() - at);
        run(at..at + size, LogitsWanted::All);
        at += size;
    }
    all
}

fn same_best(a: &Best, b: &Best) -> bool {
    (a.token, a.logit.to_bits()) == (b.token, b.logit.to_bits())
}

fn greedy_choices_are_exact(cases: &[Case], sets: &[CpuFeatures]) {
    for case in cases {
        let plain = case.plain();
        let vocab = plain.len() / (case.tokens.len() - case.from);
        let expected: Vec<Best> = plain.chunks_exact(vocab).map(Best::of).collect();
        for &features in sets {
            for threads in [1, 2] {
                let mut model = case.load(|o| (o.cpu, o.threads) = (Some(features), Some(threads)));
                let found = best_tokens(case, &mut model);
                assert_eq!(found.len(), expected.len());
                let differ = found.iter().zip(&expected).position(|(a, b)| !same_best(a, b));
                assert_eq!(differ, None, "{}: {features:?}, {threads} threads", case.name);
            }
        }
    }
}

#[test]
fn tiny_greedy_choices() {
    let folder = tempfile::tempdir().unwrap();
    greedy_choices_are_exact(&tiny_cases(folder.path()), &instruction_sets());
}

#[test]
fn real_greedy_choices() {
    greedy_choices_are_exact(&real_cases("real_greedy_choices"), &[CpuFeatures::best()]);
}

/// A prefix computed once and used by another sequence, through the same block and through a copy
/// of a half-filled one.
fn a_shared_prefix_does_not_matter(cases: &[Case]) {
    for case in cases {
        let expected = case.plain();
        let mut model = case.load(|_| {});
        let block = model.block_tokens();
        let shared = block + block / 2;
        logits_from(&mut model, &case.tokens[..shared], Route::Whole, 0, shared);
        let owner = block_table(&model, shared, 0);
        let mut table = block_table(&model, case.tokens.len(), 10);
        table[0] = owner[0];
        model.copy_block(owner[1], table[1], shared - block);
        let vocab = model.spec().vocab_size;
        let (mut found, mut step) = (Vec::new(), Vec::new());
        for (i, chunk) in case.tokens[shared..].chunks(20).enumerate() {
            let input = SequenceInput {
                tokens: chunk,
                first_position: shared + i * 20,
                block_table: &table,
                logits: LogitsWanted::All,
                branch_of: None,
            };
            model.forward(&[input], &mut step).expect("a valid step");
            let skip = case.from.saturating_sub(input.first_position).min(chunk.len());
            found.extend_from_slice(&step[skip * vocab..]);
        }
        let skip = shared.saturating_sub(case.from) * vocab;
        assert!(found == expected[skip..], "{}: a shared prefix", case.name);
    }
}

#[test]
fn tiny_shared_prefix() {
    let folder = tempfile::tempdir().unwrap();
    a_shared_prefix_does_not_matter(&tiny_cases(folder.path()));
}

#[test]
fn real_shared_prefix() {
    a_shared_prefix_does_not_matter(&real_cases("real_shared_prefix"));
}

/// New tokens that all get logits.
fn input<'a>(
    tokens: &'a [u32],
    first_position: usize,
    block_table: &'a [u32],
    branch_of: Option<usize>,
) -> SequenceInput<'a> {
    SequenceInput { tokens, first_position, block_table, logits: LogitsWanted::All, branch_of }
}

/// A step that computes a tree of tokens behind `case.tokens[..base]`, beside another sequence, gives
/// each node the logits that a chain gives the same tokens; and what follows an accepted branch, whose
/// KV has been copied to where the sequence goes on, is what follows the chain.
fn a_tree_does_not_matter(case: &Case, model: &mut CpuModel, base: usize, rng: &mut Rng) {
    let (block, vocab) = (model.block_tokens(), model.spec().vocab_size);
    let table = block_table(model, base + 40, 0);
    let mut next_block = table.len() as u32;
    let mut fresh = |blocks: usize| -> Vec<u32> {
        next_block += blocks as u32;
        (next_block - blocks as u32..next_block).collect()
    };
    let stored = base - 1;
    let mut step = Vec::new();
    for (i, chunk) in case.tokens[..stored].chunks(64).enumerate() {
        let part =
            SequenceInput { logits: LogitsWanted::None, ..input(chunk, i * 64, &table, None) };
        model.forward(&[part], &mut step).expect("a valid step");
    }
    let root = case.tokens[stored];
    let parents: Vec<u32> =
        (0..14).map(|i| (rng.below(i + 1) as u32).checked_sub(1).unwrap_or(u32::MAX)).collect();
    let node = |&parent: &u32| DraftNode {
        token: rng.below(vocab) as u32,
        parent,
        confidence: 1,
        drafter: DrafterKind::Lookup,
    };
    let nodes: Vec<DraftNode> = parents.iter().map(node).collect();
    let mut layout = TreeLayout::default();
    layout.lay_out(&nodes);
    // Each branch with its tokens, its first position and its table.
    let mut branches: Vec<(Vec<u32>, usize, Vec<u32>)> = Vec::new();
    for branch in &layout.branches {
        let mut tokens: Vec<u32> =
            layout.order[branch.nodes.clone()].iter().map(|&n| nodes[n as usize].token).collect();
        let Some(of) = branch.parent else {
            tokens.insert(0, root);
            branches.push((tokens, stored, table.clone()));
            continue;
        };
        let first = base + branch.depth as usize;
        let shared = first / block;
        let mut own = branches[of].2[..shared].to_vec();
        own.extend(fresh((first + tokens.len()).div_ceil(block) - shared));
        if let Some(lanes) = stored.checked_sub(shared * block).filter(|&lanes| lanes > 0) {
            model.copy_block(table[shared], own[shared], lanes);
        }
        branches.push((tokens, first, own));
    }
    let (stranger, other) = ([1, 2, 3], fresh(1));
    let mut batch = vec![input(&stranger, 0, &other, None)];
    for (branch, (tokens, first, table)) in layout.branches.iter().zip(&branches) {
        batch.push(input(tokens, *first, table, branch.parent.map(|of| of + 1)));
    }
    model.forward(&batch, &mut step).expect("a valid step");
    // Behind the stranger's and the root's rows there is one for each place.
    let rows: Vec<f32> = step[4 * vocab..].to_vec();
    let next = 5;
    for (branch, (tokens, first, table_of)) in layout.branches.iter().zip(&branches) {
        let (mut path, mut places) = (vec![root], Vec::new());
        let mut at = branch.nodes.end as u32 - 1;
        while at != u32::MAX {
            places.insert(0, at as usize);
            at = layout.parents[at as usize];
        }
        path.extend(places.iter().map(|&place| nodes[layout.order[place] as usize].token));
        path.push(next);
        let mut chain_table = table[..stored / block].to_vec();
        chain_table.extend(fresh((stored + path.len()).div_ceil(block) - stored / block));
        if !stored.is_multiple_of(block) {
            model.copy_block(table[stored / block], chain_table[stored / block], stored % block);
        }
        model
            .forward(&[input(&path, stored, &chain_table, None)], &mut step)
            .expect("a valid step");
        for (i, &place) in places.iter().enumerate() {
            let (found, expected) = (&rows[place * vocab..], &step[(i + 1) * vocab..]);
            let same = found[..vocab]
                .iter()
                .zip(&expected[..vocab])
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{}: node {place} of a tree behind {base} tokens", case.name);
        }
        let expected = step[(path.len() - 1) * vocab..].to_vec();
        // Accepted: as the executor does it.
        let end = first + tokens.len();
        let full = stored / block;
        let mut accepted = table[..full].to_vec();
        accepted.extend(fresh(end / block + 1 - full));
        for i in full..end.div_ceil(block) {
            model.copy_block(table_of[i], accepted[i], (end - i * block).min(block));
        }
        model.forward(&[input(&[next], end, &accepted, None)], &mut step).expect("a valid step");
        assert!(step == expected, "{}: what follows an accepted branch", case.name);
    }
}

#[test]
fn tiny_trees() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng(tiny::seed());
    let sets = instruction_sets();
    for case in &tiny_cases(folder.path()) {
        for (&features, threads) in sets.iter().zip([2].into_iter().chain(std::iter::repeat(1))) {
            let mut model = case.load(|o| (o.cpu, o.threads) = (Some(features), Some(threads)));
            for base in [1, 28, 32, 33, 63] {
                a_tree_does_not_matter(case, &mut model, base, &mut rng);
            }
        }
    }
}

#[test]
fn real_trees() {
    let mut rng = Rng(tiny::seed());
    for case in &real_cases("real_trees") {
        let mut model = case.load(|o| o.threads = Some(2));
        for base in [40, 509] {
            a_tree_does_not_matter(case, &mut model, base, &mut rng);
        }
    }
}

/// A pack made in memory, made on disk and mapped, and found there: the same bits.
#[test]
fn packs_do_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let packs = folder.path().join("packs");
    for case in tiny_cases(folder.path()) {
        let expected = case.plain();
        for what in ["made", "found"] {
            let mut model = case.load(|o| o.pack_folder = Some(packs.clone()));
            let found = case.run(&mut model, Route::Whole, 0);
            case.assert_same(&format!("a pack that was {what}"), &found, &expected);
        }
    }
}
