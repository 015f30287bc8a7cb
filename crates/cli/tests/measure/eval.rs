//! Measures of quality.

use dunlin_testkit::{golden, models};
use serde_json::{Value, json};

use crate::{Dunlin, text};

const VOCAB: usize = dunlin_testkit::tiny::VOCAB;

/// The rows of a NumPy file of float32 with two dimensions.
fn read_npy(bytes: &[u8]) -> Vec<Vec<f32>> {
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert_eq!(end % 64, 0);
    let header = std::str::from_utf8(&bytes[10..end]).unwrap();
    assert!(header.contains("'descr': '<f4'") && header.contains("'fortran_order': False"));
    let shape = header.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
    let shape: Vec<usize> = shape.split(", ").map(|n| n.parse().unwrap()).collect();
    let values: Vec<f32> =
        bytes[end..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(values.len(), shape[0] * shape[1], "{header}");
    values.chunks(shape[1]).map(<[f32]>::to_vec).collect()
}

/// `eval logits` of these tokens.
fn logits(dunlin: &Dunlin, tokens: &[u32], args: &[&str]) -> Vec<Vec<f32>> {
    let tokens = tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let out = dunlin.path("logits.npy");
    let ran = dunlin
        .run(&["eval", "logits"], &[&["--tokens", &tokens, "--out", text(&out)], args].concat());
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{}", ran.err);
    read_npy(&std::fs::read(&out).unwrap())
}

/// A text of single bytes that the tiny vocabulary does not join, so that its tokens are known.
fn plain_text(bytes: usize) -> (String, Vec<u32>) {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let text: Vec<u8> = (0..bytes).map(|i| letters[(i * i + 3 * i) % letters.len()]).collect();
    let tokens = text.iter().map(|&b| u32::from(b)).collect();
    (String::from_utf8(text).unwrap(), tokens)
}

#[test]
fn logits_are_those_of_every_prefix() {
    let dunlin = Dunlin::tiny();
    let tokens = [5, 100, 7, 298, 33];
    let all = logits(&dunlin, &tokens, &[]);
    assert_eq!((all.len(), all[0].len()), (5, VOCAB));
    for n in 1..=tokens.len() {
        let prefix = logits(&dunlin, &tokens[..n], &["-t", "1"]);
        assert_eq!(prefix[..], all[..n], "the first {n} tokens");
    }
    assert_ne!(all, logits(&dunlin, &tokens, &["--activations", "f32"]));
    assert_ne!(all, logits(&dunlin, &tokens, &["--kv-type", "int8"]), "f32 KV is the default");
    assert_eq!(all, logits(&dunlin, &tokens, &["-ctk", "f32"]));
}

#[test]
fn logits_of_no_tokens_are_refused_before_a_file_is_made() {
    let dunlin = Dunlin::tiny();
    let out = dunlin.path("none.npy");
    let too_many = vec!["1"; 3000].join(",");
    for tokens in ["299", "x", "", "1,,2", "-1", &too_many] {
        let ran = dunlin.run(&["eval", "logits"], &["--tokens", tokens, "--out", text(&out)]);
        assert_eq!(ran.code, Some(2), "{tokens:?}: {}", ran.err);
        assert!(!out.exists());
    }
    let ran = dunlin.run(&["eval", "logits"], &["--tokens", "1", "--out", "/no/such/folder/x.npy"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("/no/such/folder/x.npy"), "{}", ran.err);
}

#[test]
fn perplexity_is_what_the_logits_say() {
    let dunlin = Dunlin::tiny();
    let (content, tokens) = plain_text(150);
    let file = dunlin.file("text.txt", &content);
    let settings = ["--activations", "split", "--kv-type", "f16"];
    let args = [&["-f", text(&file), "-c", "40"], &settings[..]].concat();
    let report = dunlin.json(&["eval", "perplexity"], &args);
    let mut losses = Vec::new();
    for chunk in tokens.chunks_exact(40) {
        let rows = logits(&dunlin, chunk, &settings);
        for position in 20..39 {
            let row = &rows[position];
            let sum: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
            losses.push(sum.ln() - f64::from(row[chunk[position + 1] as usize]));
        }
    }
    assert_eq!(report["scored_tokens"], losses.len());
    assert_eq!((&report["chunks"], &report["text_tokens"]), (&json!(3), &json!(150)));
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    let found = report["nll"].as_f64().unwrap();
    assert!((found - mean).abs() < 1e-9, "{found} and not {mean}");
    let perplexity = report["perplexity"].as_f64().unwrap();
    assert!((perplexity - mean.exp()).abs() < 1e-6 * perplexity);
    let ci = report["ci95"].as_array().unwrap();
    assert!(ci[0].as_f64() < Some(perplexity) && Some(perplexity) < ci[1].as_f64());
    let fewer = dunlin.json(&["eval", "perplexity"], &[&args[..], &["--chunks", "2"]].concat());
    assert_eq!(fewer["scored_tokens"], 38);
}

#[test]
fn texts_that_cannot_be_scored_are_refused() {
    let dunlin = Dunlin::tiny();
    let short = dunlin.file("short.txt", "abc");
    let bytes = dunlin.file("bytes.txt", [b'a', 0xff, b'b']);
    let long = dunlin.file("long.txt", plain_text(5000).0);
    for (file, args, code, says) in [
        (&short, &[][..], 2, "3 tokens"),
        (&bytes, &[], 2, "byte 1"),
        (&dunlin.path("missing.txt"), &[], 1, "missing.txt"),
        (&long, &["-c", "4096"], 2, "2048"),
        (&long, &["-c", "3"], 2, "3"),
        (&long, &["-c", "64", "--chunks", "0"], 2, "--chunks"),
    ] {
        let ran = dunlin.run(&["eval", "perplexity"], &[&["-f", text(file)], args].concat());
        assert_eq!(ran.code, Some(code), "{file:?}: {}", ran.err);
        assert!(ran.err.contains(says) && ran.out.is_empty(), "{}", ran.err);
    }
}

#[test]
fn the_reference_is_at_no_distance_from_itself() {
    let dunlin = Dunlin::tiny();
    let file = dunlin.file("text.txt", plain_text(400).0);
    let kl = |args: &[&str]| {
        let args = [&["-f", text(&file), "-c", "100"], args].concat();
        dunlin.json(&["eval", "kl"], &args)
    };
    let same = kl(&["--activations", "f32", "--kv-type", "f32"]);
    assert_eq!(same["mean_kl"], 0.0);
    assert_eq!((&same["top1_agreement"], &same["positions"]), (&json!(1.0), &json!(200)));
    assert_eq!(same["flips"], json!([]));
    let split = kl(&["--activations", "split", "--kv-type", "f32"]);
    let int8 = kl(&[]);
    let mean = |report: &Value| report["mean_kl"].as_f64().unwrap();
    assert!(0.0 < mean(&split) && mean(&split) < mean(&int8), "{split} {int8}");
    let flips = int8["flips"].as_array().unwrap().len() as f64;
    assert_eq!(int8["top1_agreement"].as_f64(), Some((200.0 - flips) / 200.0));
    // Another file as the reference: its own settings, and a vocabulary that must be the same.
    let other = dunlin_testkit::tiny::named("llama-q8_0").write_gguf(dunlin.home.path());
    let against = kl(&["--reference-model", text(&other)]);
    assert!(mean(&against) > mean(&int8), "other weights: {against}");
}

#[test]
fn needles_are_counted_by_length_and_depth() {
    let dunlin = Dunlin::tiny();
    let args = ["--lengths", "300,500", "--depths", "0,60,100", "--trials", "2", "--seed", "5"];
    let report = dunlin.json(&["eval", "needle"], &args);
    assert_eq!((&report["trials"], &report["seed"]), (&json!(12), &json!(5)));
    let texts = report["texts"].as_array().unwrap();
    assert_eq!(texts.len(), 12);
    for text in texts {
        let (length, tokens) = (text["length"].as_u64().unwrap(), text["tokens"].as_u64().unwrap());
        // What is missing is less than a sentence and the answer.
        assert!(tokens <= length && tokens + 130 > length, "{text}");
    }
    assert_eq!(report["by_length"].as_array().unwrap().len(), 2);
    assert_eq!(report["by_depth"].as_array().unwrap().len(), 3);
    assert_eq!(report, dunlin.json(&["eval", "needle"], &args), "the same again");
    for bad in [
        &["--depths", "101"][..],
        &["--trials", "0"],
        &["--lengths", "4000"],
        &["--distractors", "24"],
    ] {
        let ran = dunlin.run(&["eval", "needle"], bad);
        assert_eq!(ran.code, Some(2), "{bad:?}: {}", ran.err);
    }
}

#[test]
fn golden_files_are_compared_and_missed() {
    let dunlin = Dunlin::tiny();
    let ids = [10, 20, 30, 40];
    let rows = logits(&dunlin, &ids, &[]);
    let probe_ids = [0, 7, 298];
    let probes: Vec<Vec<f64>> =
        rows.iter().map(|row| probe_ids.iter().map(|&id| f64::from(row[id])).collect()).collect();
    let mut prompt = json!({"ids": ids, "probe_ids": probe_ids, "probe_logits": probes});
    let good = dunlin.file("good.json", json!([prompt]).to_string());
    let report = dunlin.json(&["eval", "golden"], &[text(&good), "--max-error", "1e-9"]);
    assert_eq!((&report["worst_error"], &report["max_abs_error"]), (&json!(0.0), &json!(0.0)));
    prompt["probe_logits"][2][1] = json!(probes[2][1] + 0.5);
    let off = dunlin.file("off.json", prompt.to_string());
    let report = dunlin.json(&["eval", "golden"], &[text(&off)]);
    assert!((report["max_abs_error"].as_f64().unwrap() - 0.5).abs() < 1e-12);
    let norm = probes.iter().flatten().map(|p| p * p).sum::<f64>() + (probes[2][1] + 0.5).powi(2)
        - probes[2][1].powi(2);
    let error = report["worst_error"].as_f64().unwrap();
    assert!((error - 0.5 / norm.sqrt()).abs() < 1e-9, "{error}");
    let ran = dunlin.run(&["eval", "golden"], &[text(&off), "--max-error", "1e-9"]);
    assert_eq!(ran.code, Some(1));
    let none = dunlin.file("none.json", "{}");
    assert_eq!(dunlin.run(&["eval", "golden"], &[text(&none)]).code, Some(2));
}

#[test]
fn real_models_are_within_their_errors_of_the_golden_files() {
    for model in golden::MODELS {
        let test = "real_models_are_within_their_errors_of_the_golden_files";
        let Some(path) = models::find(model.file, test) else { continue };
        let dunlin = Dunlin::real(path);
        let short = dunlin_testkit::data_path("golden").join(format!("logits-{}.json", model.name));
        for (activations, most) in [("f32", "1e-5"), ("split", "5e-4"), ("int8", "0.1")] {
            let args = ["--activations", activations, "--max-error", most, text(&short)];
            let ran = dunlin.run(&["eval", "golden"], &args);
            assert_eq!(ran.code, Some(0), "{} {activations}: {}{}", model.name, ran.out, ran.err);
        }
    }
}
