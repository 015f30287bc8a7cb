//! Writes every tiny model into a folder, to look at one or to try it in another program:
//! `cargo run -p dunlin-testkit --example write_tiny -- FOLDER`.

use std::path::PathBuf;

use dunlin_testkit::tiny;

fn main() {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: write_tiny FOLDER");
        std::process::exit(2);
    };
    std::fs::create_dir_all(&folder).expect("a folder that can be made");
    for model in tiny::all().into_iter().chain(tiny::all_types()) {
        println!("{}", model.write_gguf(&folder).display());
        if let Some(hf) = model.write_hf(&folder, 1) {
            println!("{}", hf.display());
        }
    }
}
