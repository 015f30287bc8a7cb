//! The file of tenants: who may call besides those who bring one of the server's own keys.

use std::{collections::BTreeSet, path::Path};

use dunlin_server::{Tenant, hash_key};
use serde::Deserialize;

use crate::{config_file::line_of, outcome::unusable};

/// What the file says of one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    name: String,
    #[serde(default)]
    keys: Vec<String>,
    #[serde(default)]
    key_sha256: Vec<String>,
    max_requests: Option<usize>,
    kv_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    tenant: Vec<Described>,
}

/// The tenants, and the KV tokens that each may hold, in the file's order.
///
/// # Errors
/// Files that cannot be read or used.
pub fn read(path: &Path) -> anyhow::Result<Vec<(Tenant, Option<u64>)>> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| unusable(format!("cannot read the tenants: {error}")))?;
    parse(&text).map_err(|problem| unusable(format!("the file of tenants: {problem}")))
}

fn parse(text: &str) -> Result<Vec<(Tenant, Option<u64>)>, String> {
    let file: File = toml::from_str(text).map_err(|error| {
        // What it quotes, of the line or of a value, may be a key.
        let message = error.message();
        let message = match (message.find('"'), message.rfind('"')) {
            (Some(from), Some(to)) if from < to => {
                format!("{}\"...{}", &message[..from], &message[to..])
            }
            _ => message.to_string(),
        };
        format!("line {}: {message}", line_of(text, &error))
    })?;
    if file.tenant.is_empty() {
        return Err("it has no [[tenant]]".into());
    }
    let (mut names, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut tenants = Vec::new();
    for described in file.tenant {
        let Described { name, keys, key_sha256, max_requests, kv_tokens } = described;
        let fit = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 64 || !name.chars().all(fit) || name == "default" {
            return Err(format!(
                "{name:?} is no name: up to 64 letters, digits, - and _, and not default"
            ));
        }
        if !names.insert(name.clone()) {
            return Err(format!("there are two tenants {name}"));
        }
        if keys.iter().any(String::is_empty) {
            return Err(format!("{name} has a key that is empty"));
        }
        let mut key_hashes: Vec<[u8; 32]> = keys.iter().map(|k| hash_key(k.as_bytes())).collect();
        for hex in &key_sha256 {
            let problem = format!("{name}: key_sha256 must be 64 hexadecimal digits");
            key_hashes.push(from_hex(hex).ok_or(problem)?);
        }
        if key_hashes.is_empty() {
            return Err(format!("{name} has no key"));
        }
        if !key_hashes.iter().all(|hash| seen.insert(*hash)) {
            return Err(format!("a key of {name} is given twice"));
        }
        if max_requests == Some(0) || kv_tokens == Some(0) {
            return Err(format!("{name}: a limit must be 1 or more"));
        }
        tenants.push((Tenant { name, key_hashes, max_requests }, kv_tokens));
    }
    Ok(tenants)
}

fn from_hex(hex: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, digits) in out.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_read() {
        // The second key's hash, by sha256sum.
        let text = "[[tenant]]\nname = \"a\"\nkeys = [\"k1\"]\nmax_requests = 3\nkv_tokens = 4096\n\
            [[tenant]]\nname = \"b-2\"\nkey_sha256 = \
            [\"015f7e6bc5aeaf483724089e9252cc13b50951a6b69412522765cff4d780306e\"]\n";
        let tenants = parse(text).unwrap();
        assert_eq!(tenants[0].0.name, "a");
        assert_eq!(tenants[0].0.key_hashes, [hash_key(b"k1")]);
        assert_eq!((tenants[0].0.max_requests, tenants[0].1), (Some(3), Some(4096)));
        assert_eq!(tenants[1].0.key_hashes[0][..2], [0x01, 0x5f]);
    }

    #[test]
    fn what_cannot_be_used_is_told_without_keys() {
        for (text, problem) in [
            ("", "no [[tenant]]"),
            ("[[tenant]]\nname = \"a\"", "no key"),
            ("[[tenant]]\nname = \"a/b\"\nkeys = [\"k\"]", "is no name"),
            ("[[tenant]]\nname = \"default\"\nkeys = [\"k\"]", "is no name"),
            ("[[tenant]]\nname = \"a\"\nkeys = [\"\"]", "empty"),
            ("[[tenant]]\nname = \"a\"\nkey_sha256 = [\"k\"]", "64 hexadecimal"),
            ("[[tenant]]\nname = \"a\"\nkeys = [\"s3cret\", \"s3cret\"]", "twice"),
            ("[[tenant]]\nname = \"a\"\nkeys = [\"s3cret\"]\nkv_tokens = 0", "1 or more"),
            ("[[tenant]]\nname = \"a\"\nkeys = \"s3cret\"", "line 3"),
            ("[[tenant]]\nname = \"a\"\nkey = [\"s3cret\"]", "unknown field"),
            ("[[tenant]]\nname = \"a\"\nkeys = [\"s3cret\"", "line 3"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(problem) && !error.contains("s3cret"), "{text}: {error}");
        }
    }
}
