//! Speed of matrix products on one thread, from the cache:
//! `matmul_bench [ROWS COLS] [TYPE ...]`, for every instruction set of this CPU.
//!
//! A type whose bytes are split in a head has two more lines: all bits, and the high bits alone.
//! Prints the best of many short runs, so that other work on the machine disturbs little.
use dunlin_kernels_cpu::CpuFeatures;
use dunlin_kernels_cpu::matmul::{
    Columns, Int8Columns, Output, Scratch, run_panels, run_panels_high,
};
use dunlin_kernels_cpu::pack::{
    BLOCK, PANEL_ROWS, PackBuffer, PackedLayout, PackedMatrix, pack_rest, pack_rows,
};
use dunlin_spec::WeightType;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<usize>().ok());
    let (rows, cols) = (number(0).unwrap_or(1536), number(1).unwrap_or(768));
    let named: Vec<&String> = args.iter().filter(|a| a.parse::<usize>().is_err()).collect();
    let mut cpus = CpuFeatures::available();
    cpus.extend(CpuFeatures::available().into_iter().map(CpuFeatures::without_extras));
    cpus.retain(|c| c.isa() != dunlin_kernels_cpu::Isa::Scalar);
    cpus.dedup();
    println!("{rows} x {cols}, one thread: GB/s of weights at 1 column; GOP/s at more");
    for ty in WeightType::ALL {
        let wanted = named.is_empty() || named.iter().any(|n| **n == ty.name());
        if !wanted || matches!(ty, WeightType::F32 | WeightType::F16 | WeightType::BF16) {
            continue;
        }
        let plain = PackedLayout::new(ty, rows, cols).expect("a shape that the type takes");
        speeds(ty.name(), plain, &cpus, false);
        let head = PackedLayout::of_head(ty, rows, cols).expect("the same shape");
        if head.can_screen() {
            speeds("split", head, &cpus, false);
            speeds("high", head, &cpus, true);
        }
    }
}

fn speeds(name: &str, layout: PackedLayout, cpus: &[CpuFeatures], high: bool) {
    let (rows, cols) = (layout.rows(), layout.cols());
    let mut buffer = PackBuffer::new(layout.bytes()).expect("memory");
    let row = vec![0x35u8; layout.spec().ty.row_bytes(cols).unwrap()];
    let (panels, rests) = buffer.bytes_mut().split_at_mut(layout.panel_bytes() * layout.panels());
    let source = |p: usize| vec![&row[..]; (rows - p * PANEL_ROWS).min(PANEL_ROWS)];
    for (p, panel) in panels.chunks_exact_mut(layout.panel_bytes()).enumerate() {
        pack_rows(&layout, &source(p), panel);
    }
    for (p, rest) in rests.chunks_exact_mut(layout.rest_bytes().max(1)).enumerate() {
        pack_rest(&layout, &source(p), rest);
    }
    let w = PackedMatrix::new(&layout, buffer.bytes()).expect("a packed matrix");
    let read = if high { layout.panel_bytes() * layout.panels() } else { layout.bytes() };
    for cpu in cpus {
        print!("{name:7} {:7}{}", cpu.isa(), if cpu.avx_vnni() { " vnni" } else { "     " });
        for n in [1, 2, 4, 8, 16, 32, 128, 512] {
            let ns = best(*cpu, &w, n, high);
            if n == 1 {
                print!("  {:6.1} GB/s", read as f64 / ns);
            }
            print!("  {n}: {:6.0}", 2.0 * (rows * cols * n) as f64 / ns);
        }
        println!();
    }
}

/// The shortest time in nanoseconds.
fn best(cpu: CpuFeatures, w: &PackedMatrix<'_>, n: usize, high: bool) -> f64 {
    let run = if high { run_panels_high } else { run_panels };
    let blocks = w.layout().blocks();
    let q = vec![7i8; n * blocks * BLOCK];
    let d = vec![0.01f32; n * blocks];
    let sums = vec![112i16; 2 * n * blocks];
    let columns = Columns::Int8(Int8Columns { n, blocks, q: &q, d: &d, ds: &d, sums: &sums });
    let mut y = vec![0.0f32; n * w.layout().rows()];
    let mut scratch = Scratch::default();
    let mut best = f64::MAX;
    let begin = Instant::now();
    while begin.elapsed().as_millis() < 120 {
        let out = Output::new(&mut y, w.layout().rows(), false);
        let start = Instant::now();
        run(cpu, w, 0..w.layout().panels(), &columns, &out, &mut scratch);
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    best
}
