//! The text of one choice: detokenized as tokens come, held back while a stop string may be
//! beginning, cut where one is complete.

use dunlin_tokenizer::{DetokenizeOptions, Detokenizer, StopMatcher, StopStrings, Tokenizer};

/// How a request's tokens become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextOptions {
    /// Show the names of control tokens.
    pub show_special: bool,
    /// The output begins a text (a chat's answer) instead of continuing the prompt's: vocabularies
    /// that put a space in front of a text have it taken off again.
    pub begins_text: bool,
}

/// The text so far.
#[derive(Debug, Clone)]
pub struct ChoiceText {
    /// None without a tokenizer: then there is no text.
    detokenizer: Option<Detokenizer>,
    matcher: StopMatcher,
    /// The last token's text, before the matcher has seen it.
    piece: String,
    /// What is certain.
    text: String,
    /// Bytes of `text` that [`ChoiceText::take_delta`] has given out.
    given: usize,
    stopped: bool,
}

impl ChoiceText {
    /// Text of nothing yet, which `stops` will end. Without a tokenizer there is none, ever.
    pub fn new(tokenizer: Option<&Tokenizer>, stops: &[String], options: TextOptions) -> Self {
        let options = DetokenizeOptions {
            skip_special: !options.show_special,
            at_start: options.begins_text,
        };
        Self {
            detokenizer: tokenizer.map(|t| Detokenizer::new(t, options)),
            matcher: StopMatcher::new(&StopStrings::new(stops), false),
            piece: String::new(),
            text: String::new(),
            given: 0,
            stopped: false,
        }
    }

    /// Takes the next token. Returns the index of a stop string that became complete: then the
    /// text is final, and ends before it.
    pub fn push(&mut self, token: u32) -> Option<usize> {
        self.piece.clear();
        // Rows of the head beyond the vocabulary are no tokens, and have no text.
        self.detokenizer.as_mut()?.push(token, &mut self.piece).ok()?;
        let hit = self.matcher.push(&self.piece, &mut self.text)?;
        self.stopped = true;
        Some(hit.index)
    }

    /// Makes all text certain that is held back.
    pub fn flush(&mut self) {
        if self.stopped {
            return;
        }
        if let Some(detokenizer) = &mut self.detokenizer {
            self.piece.clear();
            detokenizer.finish(&mut self.piece);
            // A replacement character may complete a stop string; the text is over either way.
            self.matcher.push(&self.piece, &mut self.text);
            self.matcher.finish(&mut self.text);
        }
        self.stopped = true;
    }

    /// The text that became certain since the last call.
    pub fn take_delta(&mut self) -> &str {
        let from = std::mem::replace(&mut self.given, self.text.len());
        &self.text[from..]
    }

    /// Bytes of text that are certain.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether no text is certain yet.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// What is certain.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Shortens what is certain to so many bytes, and ends the text there.
    pub fn truncate(&mut self, bytes: usize) {
        self.text.truncate(bytes);
        self.given = self.given.min(bytes);
        self.stopped = true;
    }

    /// The whole text.
    pub fn into_text(mut self) -> String {
        self.flush();
        self.text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dunlin_tokenizer::{TokenType, VocabKind, VocabSource, build_image};

    use super::*;

    /// Tokens: the 256 bytes, then "ab", "abc", "é" in one, and a control token "<end>".
    fn tokenizer() -> Tokenizer {
        let mut tokens: Vec<Vec<u8>> = (0..256).map(|b| format!("<0x{b:02X}>").into()).collect();
        tokens.extend(["ab", "abc", "é", "<end>"].map(|t| t.as_bytes().to_vec()));
        let mut types = vec![TokenType::Byte; 256];
        types.extend([TokenType::Normal, TokenType::Normal, TokenType::Normal, TokenType::Control]);
        let mut source =
            VocabSource::new(VocabKind::Spm, tokens.iter().map(Vec::as_slice).collect());
        source.scores = Some(vec![0.0; tokens.len()]);
        source.token_types = Some(types);
        Tokenizer::from_image(Arc::new(build_image(&source).unwrap())).unwrap()
    }

    /// What is given out at each token, the index of the stop string met, and the final text.
    fn stream(tokens: &[u32], stops: &[&str]) -> (Vec<String>, Option<usize>, String) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut text = ChoiceText::new(Some(&tokenizer()), &stops, TextOptions::default());
        let mut given = Vec::new();
        let mut stopped = None;
        for &token in tokens {
            stopped = text.push(token);
            given.push(text.take_delta().to_string());
            if stopped.is_some() {
                break;
            }
        }
        text.flush();
        given.push(text.take_delta().to_string());
        (given, stopped, text.into_text())
    }

    fn bytes(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn characters_are_never_split() {
        let (given, _, text) = stream(&bytes("aé"), &[]);
        assert_eq!(given, ["a", "", "é", ""]);
        assert_eq!(text, "aé");
        let (given, _, _) = stream(&bytes("é")[..1], &[]);
        assert_eq!(given, ["", "\u{FFFD}"]);
    }

    #[test]
    fn text_ends_before_a_stop_string_and_nothing_of_it_is_given_out() {
        for stops in [&["STOP"][..], &["zzz", "STOP"], &["STOP", "STOPPER"]] {
            let (given, stopped, text) = stream(&bytes("go STO STOP on"), stops);
            assert_eq!(text, "go STO ");
            assert_eq!(given.concat(), text);
            assert_eq!(stopped.map(|i| stops[i]), Some("STOP"));
        }
        // The stop string ends within a token: what precedes it in the token is text.
        assert_eq!(
            stream(&[b'x'.into(), 257], &["bc"]),
            (vec!["x".into(), "a".into(), String::new()], Some(0), "xa".into())
        );
    }

    #[test]
    fn what_only_began_as_a_stop_string_is_text() {
        let (given, stopped, text) = stream(&bytes("aab"), &["aac"]);
        assert_eq!(given, ["", "", "aab", ""]);
        assert_eq!((stopped, text.as_str()), (None, "aab"));
        let (given, _, text) = stream(&bytes("xaa"), &["aac"]);
        assert_eq!(given, ["x", "", "", "aa"]);
        assert_eq!(text, "xaa");
    }

    #[test]
    fn every_split_into_tokens_gives_the_same_text() {
        let stops = ["abab", "bé", "é"];
        let whole = "aabababcaé";
        // The direct definition: the text ends before the stop string that is complete first.
        let ends = stops.iter().filter_map(|s| whole.find(s).map(|at| (at + s.len(), at)));
        let cut = ends.min().unwrap().1;
        let (_, _, text) = stream(&bytes(whole), &stops);
        assert_eq!(text, whole[..cut]);
        let mixed = [97, 256, 256, 257, 97, 258];
        let (given, _, text) = stream(&mixed, &stops);
        assert_eq!(text, whole[..cut]);
        assert_eq!(given.concat(), text);
    }

    #[test]
    fn control_tokens_show_only_when_asked() {
        assert_eq!(stream(&[97, 259], &[]).2, "a");
        let options = TextOptions { show_special: true, ..TextOptions::default() };
        let mut text = ChoiceText::new(Some(&tokenizer()), &[], options);
        text.push(259);
        assert_eq!(text.into_text(), "<end>");
    }
}
