//! Results that an earlier run has left: whole lines are kept, and what follows them is done.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, BufWriter, Seek as _, SeekFrom},
    path::Path,
};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use crate::outcome::unusable;

/// What of a line of results says which prompt it is of.
#[derive(Debug, Deserialize)]
struct Done {
    index: usize,
    #[serde(default)]
    id: Option<Value>,
}

/// Opens the file of results after those that are whole; how many there are. `ids` are the prompts'.
///
/// # Errors
/// Files that cannot be used, and results of other prompts.
pub(super) fn open(
    path: &Path,
    ids: &[Option<Value>],
    fresh: bool,
) -> anyhow::Result<(BufWriter<File>, usize)> {
    let open = || -> io::Result<File> {
        File::options().read(true).write(true).create(true).truncate(fresh).open(path)
    };
    let mut file = open().with_context(|| format!("cannot write {}", path.display()))?;
    let (count, bytes) = whole_lines(&file, path, ids)?;
    // A torn last line goes.
    file.set_len(bytes)
        .and_then(|()| file.seek(SeekFrom::Start(bytes)))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok((BufWriter::new(file), count))
}

/// How many results are whole, and the bytes that they take.
fn whole_lines(file: &File, path: &Path, ids: &[Option<Value>]) -> anyhow::Result<(usize, u64)> {
    let other = |line: usize| {
        unusable(format!(
            "line {} of {} is no result of the prompt in that place; --fresh starts anew",
            line + 1,
            path.display()
        ))
    };
    let mut reader = BufReader::new(file);
    let (mut count, mut bytes, mut line) = (0, 0, Vec::new());
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line);
        let read = read.with_context(|| format!("cannot read {}", path.display()))?;
        if line.last() != Some(&b'\n') {
            return Ok((count, bytes));
        }
        let done: Done = serde_json::from_slice(&line).map_err(|_| other(count))?;
        if done.index != count || ids.get(count) != Some(&done.id) {
            return Err(other(count));
        }
        count += 1;
        bytes += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use serde_json::json;

    use super::*;

    #[test]
    fn whole_results_stay_and_a_torn_one_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let ids = [Some(json!("a")), None, Some(json!(3))];
        let lines = "{\"index\":0,\"id\":\"a\",\"text\":\"x\"}\n{\"index\":1,\"text\":\"y\"}\n";
        for torn in ["", "{\"ind", "{\"index\":2,\"id\":3,\"text\":\"z\"}"] {
            fs::write(&path, format!("{lines}{torn}")).unwrap();
            let (mut out, count) = open(&path, &ids, false).unwrap();
            assert_eq!(count, 2);
            out.write_all(b"next\n").unwrap();
            drop(out);
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{lines}next\n"));
        }
        let error = open(&path, &ids, false).unwrap_err().to_string();
        assert!(error.starts_with("line 3 of"), "{error}");
        fs::write(&path, lines).unwrap();
        assert!(open(&path, &[None, None], false).is_err(), "another id");
        assert!(open(&path, &ids[..1], false).is_err(), "fewer prompts");
        assert_eq!(open(&path, &[], true).unwrap().1, 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        assert_eq!(open(&folder.path().join("new"), &ids, false).unwrap().1, 0);
    }
}
