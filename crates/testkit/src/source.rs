//! Reading the project's own files for the checks of style: which there are, and Rust code without
//! its comments and strings.

use std::path::{Path, PathBuf};

/// Every file below `root` with this extension, sorted, without hidden folders and build outputs.
pub fn files(root: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(folder) = open.pop() {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name.starts_with('.') || name == "target" || name == "__pycache__" {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Rust code with the insides of comments, strings and character literals replaced by spaces; line
/// breaks stay.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = skipped_end(bytes, at);
        if end == at {
            out.push(if bytes[at].is_ascii() { bytes[at] as char } else { '?' });
            at += 1;
        } else {
            out.extend(bytes[at..end].iter().map(|b| if *b == b'\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Where the comment or literal that starts at `at` ends; `at` itself where none starts.
fn skipped_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let in_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest[0] {
        b'/' if rest.starts_with(b"//") => {
            at + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len())
        }
        b'/' if rest.starts_with(b"/*") => block_comment_end(bytes, at),
        b'"' => quoted_end(bytes, at + 1, b'"'),
        b'r' | b'b' | b'c' if !in_word => raw_string_end(bytes, at),
        b'\'' => char_end(bytes, at),
        _ => at,
    }
}

fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn quoted_end(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// `r"..."`, `br#"..."#` and the like; `at` itself where the letters begin a plain word.
fn raw_string_end(bytes: &[u8], at: usize) -> usize {
    let letters = bytes[at..].iter().take_while(|b| matches!(b, b'r' | b'b' | b'c')).count();
    let hashes = bytes[at + letters..].iter().take_while(|b| **b == b'#').count();
    let open = at + letters + hashes;
    if letters > 2 || bytes.get(open) != Some(&b'"') || bytes[at + letters - 1] != b'r' {
        return at;
    }
    let mut close = vec![b'"'];
    close.resize(hashes + 1, b'#');
    let body = &bytes[open + 1..];
    let length = body.windows(close.len()).position(|w| w == close).unwrap_or(body.len());
    (open + 1 + length + close.len()).min(bytes.len())
}

/// A character literal's end; `at` itself for a lifetime.
fn char_end(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at + 1) {
        Some(b'\\') => quoted_end(bytes, at + 1, b'\''),
        Some(_) => {
            let end = bytes[at + 1..].iter().take(5).position(|b| *b == b'\'');
            // A lifetime has no closing quote near it, or only after other punctuation.
            match end {
                Some(n) if n == 1 || !bytes[at + 1].is_ascii() => at + n + 2,
                _ => at,
            }
        }
        None => at,
    }
}

/// Whether `code` holds `word` as a whole identifier; `word` may end in `!`.
pub fn line_with_word(code: &str, word: &str) -> Option<usize> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.lines().position(|line| {
        line.match_indices(word).any(|(i, _)| {
            !line[..i].ends_with(is_part) && !line[i + word.len()..].starts_with(is_part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_go_and_code_stays() {
        let text = "a // unsafe\nb /* x /* y */ z */ \"un\\\"safe\" r#\"q\"w\"# 'x' '\\n' '\"' &'a str br\"z\"";
        let code = code_only(text);
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "&'a", "str"]);
        assert_eq!(code.len(), text.len());
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(line_with_word("x\nunsafe { }", "unsafe"), Some(1));
        assert_eq!(line_with_word("unsafe_code", "unsafe"), None);
        assert_eq!(line_with_word("todo!()", "todo!"), Some(0));
    }
}
