//! Flags as llama-server spells them where the parser cannot: several letters after one dash.

use std::ffi::OsString;

/// Spellings with one dash and several letters, and the long flags that they stand for.
const LONG_SHORTS: [(&str, &str); 2] = [("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v")];

/// Replaces such spellings, up to a `--`.
pub fn expand_long_shorts(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    args.map(|arg| {
        literal |= arg == "--";
        match LONG_SHORTS.iter().find(|(short, _)| !literal && arg == *short) {
            Some((_, long)) => OsString::from(long),
            None => arg,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_flags_before_a_double_dash_change() {
        let given = ["dunlin", "-ctk", "f16", "-ctkx", "-c", "5", "--", "-ctv"];
        let expanded = expand_long_shorts(given.iter().map(OsString::from));
        let expected = ["dunlin", "--cache-type-k", "f16", "-ctkx", "-c", "5", "--", "-ctv"];
        assert_eq!(expanded, expected.map(OsString::from));
    }
}
