//! Gives the library its version nodes and symbols: `symbols.txt` says which.
//!
//! rustc passes a version script of its own for a `cdylib`, which exports nothing here. So each export is a
//! label in assembly that jumps to the Rust function, bound to its node by `.symver`, and the linker gets a
//! second script that only declares the nodes. GNU ld refuses two scripts of which one has no name (rustc's);
//! lld, which comes with the Rust toolchain, does not, so it is asked for by name.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=symbols.txt");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let facts = fs::read_to_string("symbols.txt").expect("symbols.txt lies beside this file");
    let exports = Exports::parse(&facts);
    let map = out.join("nodes.map");
    fs::write(&map, exports.version_script()).expect("OUT_DIR is writable");
    fs::write(out.join("exports.rs"), exports.assembly()).expect("OUT_DIR is writable");

    use_lld();
    let arg = |arg: &str| println!("cargo::rustc-cdylib-link-arg={arg}");
    arg(&format!("-Wl,--version-script={}", map.display()));
    arg("-Wl,-soname,libibverbs.so.1");
    // The engine's thread and the threads' hazard slots outlive any dlclose.
    arg("-Wl,-z,nodelete");
}

/// Asks the C compiler for lld: the toolchain's own, or else the system's.
fn use_lld() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let host = env::var("HOST").expect("cargo sets HOST");
    let sysroot = Command::new(rustc)
        .args(["--print", "sysroot"])
        .output()
        .ok()
        .and_then(|out| String::from_utf8(out.stdout).ok());
    let own = sysroot.map(|root| {
        PathBuf::from(root.trim())
            .join("lib/rustlib")
            .join(host)
            .join("bin/gcc-ld")
    });
    if let Some(dir) = own.filter(|dir| dir.join("ld.lld").exists()) {
        println!("cargo::rustc-cdylib-link-arg=-B{}", dir.display());
    }
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=lld");
}

/// What `symbols.txt` says.
#[derive(Default)]
struct Exports {
    /// Version nodes and their parents.
    nodes: Vec<(String, Option<String>)>,
    /// Numbers of the private nodes.
    private: Vec<String>,
    symbols: Vec<Symbol>,
}

struct Symbol {
    kind: String,
    name: String,
    node: String,
}

impl Exports {
    fn parse(facts: &str) -> Self {
        let mut exports = Self::default();
        for line in facts.lines().filter(|l| !l.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                ["node", name, parent] => {
                    let parent = (parent != "-").then(|| parent.to_owned());
                    exports.nodes.push((name.to_owned(), parent));
                }
                ["private", abi] => exports.private.push(abi.to_owned()),
                [kind, name, node] => exports.symbols.push(Symbol {
                    kind: kind.to_owned(),
                    name: name.to_owned(),
                    node: node.to_owned(),
                }),
                _ => panic!("symbols.txt: what does {line:?} mean?"),
            }
        }
        exports
    }

    /// Declares the nodes, and nothing in them.
    fn version_script(&self) -> String {
        let mut map = String::new();
        for (name, parent) in &self.nodes {
            let parent = parent.as_deref().unwrap_or_default();
            writeln!(map, "{name} {{ }} {parent};").expect("a String takes all");
        }
        for abi in &self.private {
            writeln!(map, "IBVERBS_PRIVATE_{abi} {{ }};").expect("a String takes all");
        }
        map
    }

    /// The labels, as items of Rust.
    fn assembly(&self) -> String {
        let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            Ok("x86_64") => "jmp",
            Ok("aarch64") => "b",
            other => panic!("no jump instruction is known for {other:?}: add it to build.rs"),
        };
        let mut rust = String::new();
        for symbol in &self.symbols {
            let versions = self.versions(symbol);
            if symbol.kind == "flag" {
                global_asm(
                    &mut rust,
                    &versions,
                    "object",
                    &[".section .bss", ".byte 0"],
                    None,
                );
            } else {
                let code = format!("{jump} {{f}}");
                let function = match &*symbol.kind {
                    "sym" => format!("crate::entry::{}", symbol.name),
                    kind @ ("errno" | "fails" | "null" | "nothing") => {
                        format!("crate::refusal::{kind}")
                    }
                    kind => panic!("symbols.txt: {kind:?} is no kind of symbol"),
                };
                global_asm(
                    &mut rust,
                    &versions,
                    "function",
                    &[".section .text", &code],
                    Some(&function),
                );
            }
        }
        rust
    }

    /// Label, name and version of each export of `symbol`.
    fn versions(&self, symbol: &Symbol) -> Vec<(String, String)> {
        if symbol.node != "PRIVATE" {
            assert!(
                self.nodes.iter().any(|(name, _)| *name == symbol.node),
                "symbols.txt: there is no node {}",
                symbol.node
            );
            let label = symbol.name.clone();
            return vec![(label, format!("{}@@{}", symbol.name, symbol.node))];
        }
        let mut seen = BTreeSet::new();
        self.private
            .iter()
            .map(|abi| {
                let name = symbol.name.replace("{ABI}", abi);
                // One version of a name is its default.
                let at = if seen.insert(name.clone()) { "@@" } else { "@" };
                let label = format!("verbatim_private_{abi}_{name}");
                (label, format!("{name}{at}IBVERBS_PRIVATE_{abi}"))
            })
            .collect()
    }
}

/// Writes a `global_asm!` that defines `versions` as `[section, contents]`.
fn global_asm(
    rust: &mut String,
    versions: &[(String, String)],
    kind: &str,
    [section, contents]: &[&str; 2],
    function: Option<&str>,
) {
    let mut lines = vec![format!(".pushsection {}", &section[".section ".len()..])];
    for (label, version) in versions {
        lines.push(format!(".globl {label}"));
        lines.push(format!(".type {label},@{kind}"));
        lines.push(format!(".symver {label}, {version}"));
        lines.push(format!("{label}:"));
    }
    lines.push((*contents).to_owned());
    for (label, _) in versions {
        lines.push(format!(".size {label}, . - {label}"));
    }
    lines.push(".popsection".to_owned());
    writeln!(rust, "::core::arch::global_asm!(").expect("a String takes all");
    for line in lines {
        writeln!(rust, "    {line:?},").expect("a String takes all");
    }
    if let Some(function) = function {
        writeln!(rust, "    f = sym {function},").expect("a String takes all");
    }
    writeln!(rust, ");").expect("a String takes all");
}
