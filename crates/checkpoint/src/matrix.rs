//! Weight matrices as rows of raw blocks.

use dunlin_spec::WeightType;

/// A weight matrix in its file: `rows` output rows of `cols` input columns, each row a sequence of
/// blocks of `ty`. Row order is the forward pass's, whatever the file's: query and key rows of files
/// that store interleaved RoPE pairs are permuted, slices of fused tensors are cut out.
#[derive(Debug, Clone, Copy)]
pub struct MatrixView<'a> {
    /// How values are stored.
    pub ty: WeightType,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    row_bytes: usize,
    /// `rows * row_bytes` bytes, in the file's row order.
    bytes: &'a [u8],
    order: RowOrder,
}

/// How the file's rows are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As the forward pass has them.
    Plain,
    /// In each head of `head_dim` rows, the first `rotated` hold pairs (2i, 2i + 1) of what the
    /// forward pass has as (i, i + rotated/2).
    Interleaved { head_dim: usize, rotated: usize },
}

impl RowOrder {
    /// Where the file has the forward pass's row `i`.
    pub fn source_row(self, i: usize) -> usize {
        match self {
            Self::Plain => i,
            Self::Interleaved { head_dim, rotated } => {
                let j = i % head_dim;
                let half = rotated / 2;
                let from = match j {
                    j if j < half => 2 * j,
                    j if j < rotated => 2 * (j - half) + 1,
                    j => j,
                };
                i - j + from
            }
        }
    }
}

impl<'a> MatrixView<'a> {
    /// `bytes` must be `rows` whole rows; `None` otherwise.
    pub(crate) fn new(
        ty: WeightType,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
        order: RowOrder,
    ) -> Option<Self> {
        let row_bytes = ty.row_bytes(cols)?;
        (row_bytes.checked_mul(rows)? == bytes.len()).then_some(Self {
            ty,
            rows,
            cols,
            row_bytes,
            bytes,
            order,
        })
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The blocks of output row `i`.
    ///
    /// # Panics
    /// Where `i` is not below `rows`.
    pub fn row(&self, i: usize) -> &'a [u8] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        let from = self.order.source_row(i) * self.row_bytes;
        &self.bytes[from..from + self.row_bytes]
    }

    /// Whether row `i + 1` follows row `i` in the file.
    pub fn is_contiguous(&self) -> bool {
        self.order == RowOrder::Plain
    }

    /// All rows as they lie in the file, where that is their order.
    pub fn contiguous(&self) -> Option<&'a [u8]> {
        self.is_contiguous().then_some(self.bytes)
    }

    /// All rows' bytes in the file's own order: for checksums and read-ahead, not for computing.
    pub fn raw_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_pairs_become_halves() {
        // Two heads of 8, of which the first 6 rows rotate: file rows 0..6 are pairs
        // (0,1), (2,3), (4,5); the forward pass wants (i, i + 3).
        let order = RowOrder::Interleaved { head_dim: 8, rotated: 6 };
        let rows: Vec<usize> = (0..16).map(|i| order.source_row(i)).collect();
        assert_eq!(rows, [0, 2, 4, 1, 3, 5, 6, 7, 8, 10, 12, 9, 11, 13, 14, 15]);
        let bytes: Vec<u8> = (0..16u8).flat_map(|i| [0, 0, 0, i]).collect();
        let view = MatrixView::new(WeightType::F32, 16, 1, &bytes, order).unwrap();
        let got: Vec<usize> = (0..16).map(|i| usize::from(view.row(i)[3])).collect();
        assert_eq!(got, rows);
        assert!(!view.is_contiguous());
        assert!(view.contiguous().is_none());
        assert!(MatrixView::new(WeightType::F32, 15, 1, &bytes, order).is_none());
    }
}
