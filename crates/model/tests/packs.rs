//! Packs are found, remade when they cannot be used, and never needed.

use dunlin_model::{LoadOptions, LoadedModel, PackSource, load, load_tokenizer};
use dunlin_spec::{ActivationPrecision, KvType};
use dunlin_testkit::engine::{Route, logits};
use dunlin_testkit::tiny::{self, random_tokens};
use dunlin_tokenizer::{EncodeOptions, Tokenizer};
use std::fs;
use std::path::{Path, PathBuf};

fn options(folder: &Path) -> LoadOptions {
    LoadOptions {
        threads: Some(2),
        activations: ActivationPrecision::Int8,
        kv_type: KvType::F32,
        pack_folder: Some(folder.to_path_buf()),
        ..LoadOptions::default()
    }
}

fn run(model: &mut LoadedModel) -> Vec<u32> {
    let tokens = random_tokens(5, 40);
    logits(&mut model.backend, &tokens, Route::Whole, 0).iter().map(|x| x.to_bits()).collect()
}

fn packs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut packs: Vec<_> = entries.filter(|p| !p.ends_with("lock")).collect();
    packs.sort();
    packs
}

#[test]
fn a_second_start_maps_what_the_first_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny::named("llama").write_gguf(dir.path());
    let folder = dir.path().join("packs");
    let mut first = load(&path, &options(&folder)).unwrap();
    assert!(matches!(first.pack, PackSource::Made(_)), "{:?} {:?}", first.pack, first.notes);
    let mut second = load(&path, &options(&folder)).unwrap();
    assert!(matches!(second.pack, PackSource::Cached(_)), "{:?} {:?}", second.pack, second.notes);
    assert!(second.notes.is_empty(), "{:?}", second.notes);
    let options = LoadOptions { pack_folder: None, ..options(&folder) };
    let mut memory = load(&path, &options).unwrap();
    assert_eq!(memory.pack, PackSource::Memory);
    let want = run(&mut first);
    assert_eq!(run(&mut second), want);
    assert_eq!(run(&mut memory), want);
}

#[test]
fn a_tokenizer_alone_needs_no_pack_and_uses_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny::named("llama").write_gguf(dir.path());
    let folder = dir.path().join("packs");
    let text = "some text <|im_start|> more";
    let options_of_text = EncodeOptions { add_special: true, parse_special: true };
    let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, options_of_text).unwrap();
    let alone = ids(&load_tokenizer(&path, Some(&folder)).unwrap());
    assert!(!folder.exists(), "nothing is packed");
    let model = load(&path, &options(&folder)).unwrap();
    assert_eq!(ids(&model.tokenizer), alone);
    assert_eq!(ids(&load_tokenizer(&path, Some(&folder)).unwrap()), alone);
    assert_eq!(ids(&load_tokenizer(&path, None).unwrap()), alone);
    // A pack that cannot be used is not in the way.
    fs::write(packs(&folder).pop().unwrap(), "no pack").unwrap();
    assert_eq!(ids(&load_tokenizer(&path, Some(&folder)).unwrap()), alone);
    fs::write(&path, "no model").unwrap();
    assert!(load_tokenizer(&path, Some(&folder)).is_err());
}

#[test]
fn packs_that_cannot_be_used_are_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny::named("qwen2").write_gguf(dir.path());
    let folder = dir.path().join("packs");
    let want = run(&mut load(&path, &options(&folder)).unwrap());
    let pack = packs(&folder).pop().unwrap();
    let good = fs::read(&pack).unwrap();
    type Edit<'a> = (&'a str, &'a dyn Fn(&mut Vec<u8>));
    let edits: [Edit<'_>; 7] = [
        ("by another version", &|b| b[8] = b[8].wrapping_add(1)),
        ("by another version", &|b| b[12..16].reverse()),
        ("damaged", &|b| b[0] = b'D'),
        ("damaged", &|b| b.truncate(b.len() - 1)),
        ("damaged", &|b| b.truncate(20)),
        ("damaged", &|b| b.clear()),
        ("damaged", &|b| {
            let last = b.len() - 2;
            b[last] ^= 1;
        }),
    ];
    for (why, edit) in edits {
        let mut bad = good.clone();
        edit(&mut bad);
        fs::write(&pack, &bad).unwrap();
        let mut model = load(&path, &options(&folder)).unwrap();
        assert!(matches!(model.pack, PackSource::Made(_)), "{why}: {:?}", model.pack);
        let told = model.notes.iter().any(|n| n.contains("made anew") && n.contains(why));
        assert!(told, "{why}: {:?}", model.notes);
        assert_eq!(run(&mut model), want, "{why}");
        assert_eq!(fs::read(&pack).unwrap(), good, "{why}");
    }
}

#[test]
fn every_shortened_pack_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny::named("llama").write_gguf(dir.path());
    let folder = dir.path().join("packs");
    load(&path, &options(&folder)).unwrap();
    let pack = packs(&folder).pop().unwrap();
    let good = fs::read(&pack).unwrap();
    for i in 0..40 {
        let len = good.len() * i / 40;
        fs::write(&pack, &good[..len]).unwrap();
        let model = load(&path, &options(&folder)).unwrap();
        assert!(matches!(model.pack, PackSource::Made(_)), "{len}: {:?}", model.pack);
    }
}

#[test]
fn a_changed_model_gets_a_new_pack_and_the_old_one_goes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("packs");
    let path = tiny::named("llama").write_gguf(dir.path());
    let before = run(&mut load(&path, &options(&folder)).unwrap());
    let old = packs(&folder).pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    // The last tensor's last bytes: some weight.
    let at = bytes.len() - 200;
    bytes[at..].fill(0);
    fs::write(&path, &bytes).unwrap();
    let after = run(&mut load(&path, &options(&folder)).unwrap());
    assert_ne!(before, after);
    let left = packs(&folder);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_ne!(left[0], old);
}

#[test]
fn a_folder_that_cannot_be_written_costs_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny::named("llama").write_gguf(dir.path());
    let file = dir.path().join("a-file");
    fs::write(&file, "").unwrap();
    let mut model = load(&path, &options(&file.join("packs"))).unwrap();
    assert_eq!(model.pack, PackSource::Memory);
    assert!(model.notes[0].contains("could not be kept"), "{:?}", model.notes);
    assert_eq!(run(&mut model).len(), 40 * model.spec().vocab_size);
}

#[test]
fn many_loads_at_once_make_one_pack() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny::named("gemma3-q5_0").write_gguf(dir.path());
    let folder = dir.path().join("packs");
    let bits: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| run(&mut load(&path, &options(&folder)).unwrap())))
            .collect();
        loads.into_iter().map(|l| l.join().unwrap()).collect()
    });
    assert!(bits.windows(2).all(|pair| pair[0] == pair[1]));
    let left = packs(&folder);
    assert_eq!(left.len(), 1, "{left:?}");
}

/// The child of [`a_full_disk_costs_a_note`].
#[test]
fn child_on_a_full_disk() {
    let Some(dir) = std::env::var_os("DUNLIN_TEST_FULL_DISK").map(PathBuf::from) else { return };
    let model = load(&dir.join("model.gguf"), &options(&dir.join("small").join("packs"))).unwrap();
    assert_eq!(model.pack, PackSource::Memory);
    assert!(model.notes[0].contains("could not be kept"), "{:?}", model.notes);
    let left = packs(&dir.join("small").join("packs"));
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_full_disk_costs_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny::named("llama").write_gguf(dir.path());
    fs::rename(path, dir.path().join("model.gguf")).unwrap();
    fs::create_dir(dir.path().join("small")).unwrap();
    let script = "mount -t tmpfs -o size=64k none \"$1\" || exit 77; exec \"$2\" --exact \
                  child_on_a_full_disk";
    let small = dir.path().join("small");
    let child = std::process::Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "sh"])
        .arg(small)
        .arg(std::env::current_exe().unwrap())
        .env("DUNLIN_TEST_FULL_DISK", dir.path())
        .output();
    let test = "a_full_disk_costs_a_note";
    match child {
        Ok(out) if out.status.success() => {
            assert!(String::from_utf8_lossy(&out.stdout).contains("1 passed"));
        }
        Ok(out) if out.status.code() == Some(101) => {
            panic!("{}", String::from_utf8_lossy(&out.stdout));
        }
        _ => dunlin_testkit::models::skipped(test, "no small file system can be mounted here"),
    }
}
