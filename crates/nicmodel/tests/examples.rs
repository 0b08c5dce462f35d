//! The example, run as its comment says.

use std::process::Command;

#[test]
fn cost() {
    let tests = std::env::current_exe().expect("this program's file");
    let target = tests.ancestors().nth(3).expect("the folder of all builds");
    let out = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--package",
            env!("CARGO_PKG_NAME"),
            "--example",
            "cost",
            "--target-dir",
        ])
        .arg(target)
        .output()
        .expect("cargo starts");
    let printed = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    assert!(
        printed.contains("two READs of 32 bytes: 2 DMA reads, 0 DMA writes"),
        "{printed}"
    );
    assert!(
        printed.contains("sixteen answers in a postlist: 1 MMIO write"),
        "{printed}"
    );
}
