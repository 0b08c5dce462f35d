//! The corpora of the fuzz targets, for the tests that replay them: what fuzzing found stays found.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

/// Gives each input of a target's corpus (`fuzz/corpus/TARGET`) to what the target runs, in the order of their names.
///
/// # Panics
/// The repository has no corpus of that name, it is empty, or `run` panics: what was printed last names the input.
pub fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut inputs: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be read").path())
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} is empty", folder.display());
    for input in inputs {
        println!("{}", input.display());
        run(&fs::read(&input).expect("an input can be read"));
    }
}
