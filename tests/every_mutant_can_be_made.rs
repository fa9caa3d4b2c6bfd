//! The patches of tests/mutants still fit the code that they break, and say which test finds them.
//! That it does find them, `tests/mutants/run` shows.

use std::path::Path;
use std::process::Command;

#[test]
fn every_mutant_can_be_made() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(root.join("tests/mutants")).unwrap();
    let patches = files.map(|file| file.unwrap().path());
    let patches: Vec<_> = patches.filter(|path| path.extension().is_some_and(|e| e == "patch")).collect();
    assert!(patches.len() >= 20, "{} mutants", patches.len());
    for patch in patches {
        let text = std::fs::read_to_string(&patch).unwrap();
        for word in ["Breaks: ", "\nFound by: cargo test "] {
            assert!(text.contains(word), "{} does not say {word:?}", patch.display());
        }
        let check = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(root).output();
        let check = check.expect("git is there");
        assert!(check.status.success(), "{}: {}", patch.display(), String::from_utf8_lossy(&check.stderr));
    }
}
