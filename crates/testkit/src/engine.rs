//! Running a backend in tests: a token list in, logits out, by any route.

use dunlin_tensor::{Backend, LogitsWanted, SequenceInput};

/// How a sequence goes through a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// In chunks of this many tokens.
    Chunks(usize),
    /// In one piece, or in the largest that the backend takes.
    Whole,
    /// So many tokens as in [`Route::Whole`], and then one by one.
    ThenOnes(usize),
}

/// Logits of the tokens from `from` on, `[tokens.len() - from, vocab]`, of one sequence alone on the
/// backend. KV goes to the blocks from `first_block` on, in descending order, so that ids and
/// positions differ.
///
/// # Panics
/// Where the backend refuses a step.
pub fn logits_from(
    backend: &mut dyn Backend,
    tokens: &[u32],
    route: Route,
    first_block: u32,
    from: usize,
) -> Vec<f32> {
    let table = block_table(backend, tokens.len(), first_block);
    let vocab = backend.spec().vocab_size;
    let (mut all, mut step) = (Vec::new(), Vec::new());
    let mut position = 0;
    while position < tokens.len() {
        let left = tokens.len() - position;
        let size = match route {
            Route::Chunks(n) => n,
            Route::Whole => left,
            Route::ThenOnes(first) if position < first => first - position,
            Route::ThenOnes(_) => 1,
        };
        let end = position + size.min(left).min(backend.max_step_tokens());
        let chunk = &tokens[position..end];
        let input = SequenceInput {
            tokens: chunk,
            first_position: position,
            block_table: &table,
            logits: if end > from { LogitsWanted::All } else { LogitsWanted::None },
            branch_of: None,
        };
        backend.forward(&[input], &mut step).expect("a valid step");
        if end > from {
            all.extend_from_slice(&step[from.saturating_sub(position) * vocab..]);
        }
        position = end;
    }
    all
}

/// Logits of every token; see [`logits_from`].
///
/// # Panics
/// As there.
pub fn logits(
    backend: &mut dyn Backend,
    tokens: &[u32],
    route: Route,
    first_block: u32,
) -> Vec<f32> {
    logits_from(backend, tokens, route, first_block, 0)
}

/// Blocks for so many tokens: the last of them is `first_block`.
pub fn block_table(backend: &dyn Backend, tokens: usize, first_block: u32) -> Vec<u32> {
    let blocks = tokens.div_ceil(backend.block_tokens()) as u32;
    (first_block..first_block + blocks).rev().collect()
}
