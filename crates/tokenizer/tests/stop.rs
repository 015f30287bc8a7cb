//! Stop strings beside a search over the whole text.

mod common;

use common::{Rng, seed};
use dunlin_tokenizer::{StopHit, StopMatcher, StopStrings};

/// The text and the hit that a stream with all of its text at hand gives.
fn reference(stops: &[String], text: &str, keep_match: bool) -> (String, Option<StopHit>) {
    for end in (1..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let longest = (0..stops.len())
            .filter(|&i| !stops[i].is_empty() && text[..end].ends_with(&stops[i]))
            .max_by_key(|&i| (stops[i].len(), std::cmp::Reverse(i)));
        if let Some(index) = longest {
            let keep = if keep_match { end } else { end - stops[index].len() };
            return (text[..keep].to_string(), Some(StopHit { index }));
        }
    }
    (text.to_string(), None)
}

/// Feeds `text` in random pieces and checks that no more is held back than must be.
fn stream(
    stops: &[String],
    text: &str,
    keep_match: bool,
    rng: &mut Rng,
) -> (String, Option<StopHit>) {
    let compiled = StopStrings::new(stops);
    let mut matcher = StopMatcher::new(&compiled, keep_match);
    let (mut out, mut hit, mut at) = (String::new(), None, 0);
    while at < text.len() && hit.is_none() {
        let mut end = (at + rng.below(5)).min(text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        hit = matcher.push(&text[at..end], &mut out);
        at = end;
        if hit.is_none() {
            assert_eq!(format!("{out}{}", matcher.held()), text[..at]);
            let needed = (0..=at)
                .filter(|&from| text.is_char_boundary(from))
                .find(|&from| from == at || stops.iter().any(|s| s.starts_with(&text[from..at])))
                .unwrap();
            assert_eq!(matcher.held(), &text[needed..at], "{stops:?} {text:?}");
        }
    }
    matcher.finish(&mut out);
    (out, hit)
}

#[test]
fn streams_end_where_a_search_says() {
    let mut rng = Rng(seed());
    for _ in 0..4000 {
        let letters: &[char] = &['a', 'b', 'c', 'é', '中'];
        let mut word = |longest: usize| -> String {
            let len = rng.below(longest + 1);
            (0..len).map(|_| *rng.pick(letters)).collect()
        };
        let stops: Vec<String> = (0..4).map(|_| word(4)).collect();
        let text = word(30);
        for keep_match in [false, true] {
            let expected = reference(&stops, &text, keep_match);
            assert_eq!(stream(&stops, &text, keep_match, &mut rng), expected, "{stops:?} {text:?}");
        }
    }
}

#[test]
fn thousands_of_stop_strings() {
    let mut rng = Rng(seed());
    let stops: Vec<String> = (0..5000).map(|i| format!("stop-{i}-{}", rng.below(1000))).collect();
    let text = format!("{}{}", "stop-stop-1234-".repeat(20_000), stops[4321]);
    let compiled = StopStrings::new(&stops);
    let mut matcher = StopMatcher::new(&compiled, false);
    let (mut out, mut hit) = (String::new(), None);
    for piece in text.as_bytes().chunks(3) {
        hit = matcher.push(std::str::from_utf8(piece).unwrap(), &mut out);
        if hit.is_some() {
            break;
        }
    }
    let index = stops.iter().position(|stop| text.contains(stop.as_str())).unwrap();
    assert_eq!(hit, Some(StopHit { index }));
    assert_eq!(out, text[..text.find(stops[index].as_str()).unwrap()]);
    assert_eq!(matcher.push("more", &mut out), hit);
}

#[test]
fn no_stop_strings_hold_nothing_back() {
    for stops in [vec![], vec![String::new()]] {
        let mut matcher = StopMatcher::new(&StopStrings::new(&stops), false);
        let mut out = String::new();
        assert_eq!(matcher.push("text", &mut out), None);
        assert_eq!(out, "text");
    }
}
