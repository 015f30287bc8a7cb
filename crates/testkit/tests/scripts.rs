//! The two float64 scripts agree where both know the model: they were written apart, and read the
//! weights from different containers.

use dunlin_testkit::oracle::Script;
use dunlin_testkit::tiny::{self, Reference};

#[test]
fn the_scripts_agree() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tiny::random_tokens(tiny::seed(), 40);
    let mut compared = 0;
    for model in tiny::all() {
        if model.reference != Reference::Both {
            continue;
        }
        let Some(hf) = model.write_hf(folder.path(), 1) else { continue };
        let gguf = model.write_gguf(folder.path());
        let test = "the_scripts_agree";
        let Some(a) = Script::Oracle.logits(&gguf, &tokens, 64, test) else { return };
        let Some(b) = Script::Extra.logits(&hf, &tokens, 64, test) else { return };
        let norm: f64 = a.iter().map(|x| x * x).sum();
        let error: f64 = a.iter().zip(&b).map(|(x, y)| (x - y).powi(2)).sum();
        let relative = (error / norm).sqrt();
        println!("{}: {relative:.1e}", model.name);
        // Only rounding of stored numbers remains: a metadata float, a factor in f32.
        assert!(relative < 1e-6, "{}: {relative:e}", model.name);
        compared += 1;
    }
    assert!(compared >= 6, "{compared} models compared");
}
