//! Times attention alone, for every instruction set and KV type of this machine:
//!
//! ```text
//! cargo run --release -p dunlin-kernels-cpu --example attention_bench -- [THREADS] [SHAPE] [FILTER]
//! ```
//!
//! SHAPE is `smollm2` (30 layers, 9 heads, 3 KV heads, 64 features; the default), `gemma3` (18
//! layers, 4 heads, 1 KV head, 256 features), `qwen05` (24, 14, 2, 64) or `qwen15` (28, 12, 2,
//! 128). Then follows a decode step of 64 sequences that share a prefix of 1000 tokens, with the
//! prefix's blocks copied for each of them and shared. FILTER picks lines by their beginning, such as `avx2 f16`. Decode reads the KV of 8000
//! positions in every layer; prefill is 512 tokens from an empty context. Times are of all layers,
//! the best of several runs: of the slowest thread's own CPU time (so that other load matters
//! less), and of the clock.

use dunlin_kernels_cpu::attention::{AttnJob, AttnScratch, AttnSequence, AttnShape, Plan};
use dunlin_kernels_cpu::kv::{KvGeometry, KvPool, KvRows};
use dunlin_kernels_cpu::{CpuFeatures, Isa};
use dunlin_spec::KvType;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const DEPTH: usize = 8000;
const PREFILL: usize = 512;

struct Model {
    layers: usize,
    shape: AttnShape,
}

fn model(name: &str) -> Model {
    let (layers, n_heads, n_kv_heads, head_dim) = match name {
        "gemma3" => (18, 4, 1, 256),
        "qwen05" => (24, 14, 2, 64),
        "qwen15" => (28, 12, 2, 128),
        _ => (30, 9, 3, 64),
    };
    let shape = AttnShape {
        n_heads,
        n_kv_heads,
        head_dim,
        v_head_dim: head_dim,
        score_scale: 1.0 / (head_dim as f32).sqrt(),
        window: None,
        softcap: None,
    };
    Model { layers, shape }
}

/// CPU time of the calling thread.
fn thread_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Runs a plan over all layers; the slowest thread's CPU time and the clock's, best of `runs`.
fn time(
    cpu: CpuFeatures,
    plan: &Plan,
    pool: &KvPool,
    q: &[f32],
    out: &mut [f32],
    threads: usize,
    runs: usize,
) -> (Duration, Duration) {
    let mut best = (Duration::MAX, Duration::MAX);
    let mut scratch: Vec<AttnScratch> = (0..threads).map(|_| AttnScratch::new()).collect();
    let mut buffers: Vec<(Vec<f32>, Vec<f32>)> =
        (0..pool.n_layers()).map(|_| (out.to_vec(), Vec::new())).collect();
    for _ in 0..runs {
        let jobs: Vec<AttnJob<'_>> = buffers
            .iter_mut()
            .enumerate()
            .map(|(l, (out, partials))| AttnJob::new(cpu, plan, pool, l, q, out, partials).unwrap())
            .collect();
        let barrier = Barrier::new(threads);
        let run = |scratch: &mut AttnScratch| {
            barrier.wait();
            let (cpu_start, start) = (thread_time(), Instant::now());
            for job in &jobs {
                job.work(scratch);
            }
            (thread_time() - cpu_start, start.elapsed())
        };
        let times: Vec<(Duration, Duration)> = std::thread::scope(|scope| {
            let handles: Vec<_> = scratch.iter_mut().map(|s| scope.spawn(|| run(s))).collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        });
        best.0 = best.0.min(times.iter().map(|t| t.0).max().unwrap());
        best.1 = best.1.min(times.iter().map(|t| t.1).max().unwrap());
    }
    out.copy_from_slice(&buffers[0].0);
    best
}

fn fill(pool: &mut KvPool, model: &Model, cpu: CpuFeatures) -> Duration {
    let s = &model.shape;
    let width = s.n_kv_heads * s.head_dim;
    let x: Vec<f32> = (0..32 * width).map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0).collect();
    let rows = KvRows { k: &x, k_stride: width, v: &x, v_stride: width, n: 32 };
    let start = thread_time();
    for block in 0..pool.n_blocks() {
        for layer in 0..model.layers {
            // SAFETY: this is the only thread.
            unsafe { pool.store_rows(cpu, layer, block as u32, 0, rows) };
        }
    }
    thread_time() - start
}

/// Sequences of a decode step with a common prefix, and the prefix's tokens.
const SHARERS: usize = 64;
const PREFIX: usize = 1000;

/// Times a decode step of [`SHARERS`] sequences with 16 to 80 tokens of their own after a common
/// prefix: with blocks of their own for the prefix, and with the same ones. Also the times of making
/// the plans.
fn shared(
    cpu: CpuFeatures,
    model: &Model,
    kv_type: KvType,
    threads: usize,
) -> [(Duration, Duration, Duration); 2] {
    let s = model.shape;
    let geometry = vec![geometry(&s); model.layers];
    let prefix = PREFIX / 32;
    let own = |i: usize| 16 + i * 64 / SHARERS;
    let tables = |common: bool| {
        let mut next = prefix as u32;
        let mut fresh = |n: usize| {
            next += n as u32;
            (next - n as u32..next).collect::<Vec<u32>>()
        };
        let tables: Vec<Vec<u32>> = (0..SHARERS)
            .map(|i| {
                let mut table = if common { (0..prefix as u32).collect() } else { fresh(prefix) };
                table.extend(fresh((PREFIX + own(i)).div_ceil(32) - prefix));
                table
            })
            .collect();
        (tables, next as usize)
    };
    let q: Vec<f32> = (0..SHARERS * s.n_heads * s.head_dim)
        .map(|i| ((i * 104_729) % 4001) as f32 / 2000.0 - 1.0)
        .collect();
    let mut outs = Vec::new();
    let times = [false, true].map(|common| {
        let (tables, blocks) = tables(common);
        let mut pool = KvPool::new(&geometry, kv_type, blocks).unwrap();
        fill(&mut pool, model, cpu);
        let batch: Vec<AttnSequence<'_>> = tables
            .iter()
            .enumerate()
            .map(|(i, block_table)| AttnSequence {
                first_row: i,
                tokens: 1,
                first_position: PREFIX + own(i) - 1,
                block_table,
            })
            .collect();
        let mut planning = Duration::MAX;
        for _ in 0..50 {
            let start = Instant::now();
            std::hint::black_box(Plan::new(s, &batch, threads).unwrap());
            planning = planning.min(start.elapsed());
        }
        let plan = Plan::new(s, &batch, threads).unwrap();
        let mut out = vec![0.0; SHARERS * s.n_heads * s.v_head_dim];
        let (thread, clock) = time(cpu, &plan, &pool, &q, &mut out, threads, 8);
        outs.push(out);
        (thread, clock, planning)
    });
    assert!(outs[0].iter().zip(&outs[1]).all(|(a, b)| a.to_bits() == b.to_bits()));
    times
}

fn geometry(s: &AttnShape) -> KvGeometry {
    KvGeometry {
        n_kv_heads: s.n_kv_heads,
        head_dim: s.head_dim,
        v_head_dim: s.v_head_dim,
        wide_keys: false,
    }
}

/// Bytes a second of CPU time that blocks are exported and imported with.
fn transfer(pool: &mut KvPool) -> (f64, f64) {
    let blocks = pool.n_blocks() as u32;
    let mut bytes = Vec::new();
    let (mut out, mut back) = (Duration::ZERO, Duration::ZERO);
    for block in 0..blocks {
        bytes.clear();
        let start = thread_time();
        pool.export_block(block, 32, &mut bytes);
        out += thread_time() - start;
        let start = thread_time();
        pool.import_block(block, &bytes).unwrap();
        back += thread_time() - start;
    }
    let all = f64::from(blocks) * bytes.len() as f64;
    (all / out.as_secs_f64(), all / back.as_secs_f64())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let threads: usize = args.first().and_then(|a| a.parse().ok()).unwrap_or(1);
    let name = args.get(1).map_or("smollm2", |s| s);
    let filter = args.get(2..).map_or(String::new(), |f| f.join(" "));
    let model = model(name);
    let s = model.shape;
    let geometry = vec![geometry(&s); model.layers];
    println!(
        "{name}, {threads} threads; decode at depth {DEPTH}, prefill of {PREFILL}, all layers"
    );
    for kv_type in [KvType::F16, KvType::Int8, KvType::F32] {
        let blocks = DEPTH.div_ceil(32);
        let table: Vec<u32> = (0..blocks as u32).collect();
        for cpu in CpuFeatures::available() {
            let line = format!("{} {kv_type}", cpu.isa());
            if cpu.isa() == Isa::Scalar || !line.starts_with(&filter) {
                continue;
            }
            let mut pool = KvPool::new(&geometry, kv_type, blocks).unwrap();
            fill(&mut pool, &model, cpu);
            let stored = fill(&mut pool, &model, cpu).as_secs_f64() / (blocks * 32) as f64;
            transfer(&mut pool);
            let moved = transfer(&mut pool);
            let q: Vec<f32> = (0..PREFILL * s.n_heads * s.head_dim)
                .map(|i| ((i * 104_729) % 4001) as f32 / 2000.0 - 1.0)
                .collect();
            let one = |tokens, first_position| {
                [AttnSequence { first_row: 0, tokens, first_position, block_table: &table }]
            };
            let decode = Plan::new(s, &one(1, DEPTH - 1), threads).unwrap();
            let mut out = vec![0.0; s.n_heads * s.v_head_dim];
            let d = time(cpu, &decode, &pool, &q, &mut out, threads, 20);
            let prefill = Plan::new(s, &one(PREFILL, 0), threads).unwrap();
            let mut out = vec![0.0; PREFILL * s.n_heads * s.v_head_dim];
            let p = time(cpu, &prefill, &pool, &q, &mut out, threads, 10);
            let bytes = pool.block_bytes() as f64 * DEPTH as f64 / 32.0;
            let pairs = (PREFILL * (PREFILL + 1) / 2) as f64;
            let flops = pairs * (s.n_heads * s.head_dim * 4 * model.layers) as f64;
            let ms = |t: Duration| t.as_secs_f64() * 1e3;
            println!(
                "{line:12} decode {:6.2} ms {:5.1} GB/s (clock {:6.2} ms {:5.1} GB/s)   prefill \
                 {:6.1} ms {:6.1} GFLOP/s (clock {:6.1} ms)   store {:5.2} us a token   export {:.1} GB/s, import \
                 {:.1} GB/s",
                ms(d.0),
                bytes / d.0.as_secs_f64() / 1e9,
                ms(d.1),
                bytes / d.1.as_secs_f64() / 1e9,
                ms(p.0),
                flops / p.0.as_secs_f64() / 1e9,
                ms(p.1),
                stored * 1e6,
                moved.0 / 1e9,
                moved.1 / 1e9,
            );
            let [apart, common] = shared(cpu, &model, kv_type, threads);
            println!(
                "{:12} {SHARERS} decodes after a prefix of {PREFIX}: {:6.2} ms (clock {:6.2} ms, plan \
                 {:4.1} us), its blocks shared: {:6.2} ms (clock {:6.2} ms, plan {:4.1} us)",
                "",
                ms(apart.0),
                ms(apart.1),
                ms(apart.2) * 1e3,
                ms(common.0),
                ms(common.1),
                ms(common.2) * 1e3,
            );
        }
    }
}
