//! NumPy's file format for float32 matrices, written row by row.

use std::io::{self, Write};

/// Writes a `[rows, columns]` float32 matrix whose values come later, in row order.
pub struct NpyWriter<W: Write> {
    out: W,
    /// Values that are still to come.
    left: usize,
}

impl<W: Write> NpyWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn new(mut out: W, rows: usize, columns: usize) -> io::Result<Self> {
        let mut header =
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
        // Magic, version, length and header together fill whole blocks of 64 bytes.
        let fixed = 6 + 2 + 2;
        let padded = (fixed + header.len() + 1).next_multiple_of(64);
        header.push_str(&" ".repeat(padded - fixed - header.len() - 1));
        header.push('\n');
        out.write_all(b"\x93NUMPY\x01\x00")?;
        // Two numbers and a few words: far below 64 KiB.
        out.write_all(&(header.len() as u16).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        Ok(Self { out, left: rows * columns })
    }

    /// Writes the next values.
    ///
    /// # Errors
    /// What `out` answers, and more values than the header promises.
    pub fn write(&mut self, values: &[f32]) -> io::Result<()> {
        self.left = self.left.checked_sub(values.len()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "more values than the matrix holds")
        })?;
        let mut bytes = Vec::with_capacity(values.len() * 4);
        for value in values {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        self.out.write_all(&bytes)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// What `out` answers, and values that never came.
    pub fn finish(mut self) -> io::Result<()> {
        if self.left > 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{} values of the matrix are missing", self.left),
            ));
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_numpys() {
        let mut file = Vec::new();
        let mut npy = NpyWriter::new(&mut file, 2, 3).unwrap();
        npy.write(&[1.0, -2.5, 0.0]).unwrap();
        npy.write(&[4.0, 5.0, f32::MAX]).unwrap();
        npy.finish().unwrap();
        // What numpy.save writes for the same array.
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        let mut want = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        want.extend(header.as_bytes());
        want.resize(127, b' ');
        want.push(b'\n');
        for value in [1.0f32, -2.5, 0.0, 4.0, 5.0, f32::MAX] {
            want.extend(value.to_le_bytes());
        }
        assert_eq!(file, want);
    }

    #[test]
    fn the_header_keeps_its_promise() {
        let mut npy = NpyWriter::new(Vec::new(), 1, 2).unwrap();
        npy.write(&[1.0]).unwrap();
        assert!(npy.write(&[1.0, 2.0]).is_err());
        let npy = NpyWriter::new(Vec::new(), 1, 2).unwrap();
        assert!(npy.finish().is_err());
    }
}
