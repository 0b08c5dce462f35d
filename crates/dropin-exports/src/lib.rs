//! Gives a shared library its version nodes and symbols; a build script calls this crate.
//!
//! A file `symbols.txt` beside the build script lists the version nodes and symbols, one a line:
//!
//! - `node NAME PARENT`: a version node; `PARENT` is `-` for none.
//! - `private ABI`: a private node of libibverbs, `IBVERBS_PRIVATE_ABI`. All private nodes have the same symbols.
//! - `KIND SYMBOL NODE`: a symbol. `NODE` is `PRIVATE` for all private nodes, and `{ABI}` in the name then stands
//!   for the node's number. The kind `sym` is the function of that name in the crate's module `entry`. The kinds
//!   `errno`, `fails`, `null` and `nothing` are the functions of that name in its module `refusal`. The kind `flag` is
//!   a `bool` that is false.
//!
//! For a `cdylib`, rustc passes a version script of its own to the linker. This script exports none of the symbols
//! here. Each export is therefore a label in assembly that jumps to the Rust function; `.symver` binds the label to
//! its node. The linker gets a second version script that only declares the nodes. GNU ld refuses two scripts if one
//! of them has no name, and the script of rustc has none. The linker lld accepts both scripts and comes with the Rust
//! toolchain. The build script therefore selects lld by name.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Adds the exports of a `cdylib`, whose build script calls this function. The function writes `exports.rs` to
/// `OUT_DIR`, which the module `entry` includes. It passes the version nodes and the name `soname` to the linker.
///
/// # Panics
/// Panics if no build script calls this function, or `symbols.txt` is malformed. The build stops with the message.
pub fn write_and_link_exports(soname: &str) {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=symbols.txt");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let facts =
        fs::read_to_string("symbols.txt").expect("symbols.txt lies beside the build script");
    let exports = ExportedSymbols::parse(&facts);
    let map = out.join("nodes.map");
    fs::write(&map, exports.version_script()).expect("OUT_DIR is writable");
    fs::write(out.join("exports.rs"), exports.export_labels_assembly())
        .expect("OUT_DIR is writable");

    use_lld();
    let arg = |arg: &str| println!("cargo::rustc-cdylib-link-arg={arg}");
    arg(&format!("-Wl,--version-script={}", map.display()));
    arg(&format!("-Wl,-soname,{soname}"));
    // Never unload the library: its threads and its data of each thread outlive any dlclose.
    arg("-Wl,-z,nodelete");
}

/// Makes the C compiler link with lld: with the lld of the Rust toolchain, or else with the system's lld.
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

/// The parsed content of `symbols.txt`.
#[derive(Default)]
struct ExportedSymbols {
    /// Version nodes of the library, each with its parent.
    version_nodes: Vec<(String, Option<String>)>,
    /// Numbers in the names of the private nodes, such as 34 in `IBVERBS_PRIVATE_34`.
    private_node_numbers: Vec<String>,
    symbols: Vec<Symbol>,
}

struct Symbol {
    kind: String,
    name: String,
    version_node: String,
}

impl ExportedSymbols {
    fn parse(facts: &str) -> Self {
        let mut exports = Self::default();
        for line in facts.lines().filter(|l| !l.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                ["node", name, parent] => {
                    let parent = (parent != "-").then(|| parent.to_owned());
                    exports.version_nodes.push((name.to_owned(), parent));
                }
                ["private", abi] => exports.private_node_numbers.push(abi.to_owned()),
                [kind, name, node] => exports.symbols.push(Symbol {
                    kind: kind.to_owned(),
                    name: name.to_owned(),
                    version_node: node.to_owned(),
                }),
                _ => panic!("symbols.txt: what does {line:?} mean?"),
            }
        }
        exports
    }

    /// Returns a version script that declares the nodes without any symbol.
    fn version_script(&self) -> String {
        let mut map = String::new();
        for (name, parent) in &self.version_nodes {
            let parent = parent.as_deref().unwrap_or_default();
            writeln!(map, "{name} {{ }} {parent};").expect("a String takes all");
        }
        for abi in &self.private_node_numbers {
            writeln!(map, "IBVERBS_PRIVATE_{abi} {{ }};").expect("a String takes all");
        }
        map
    }

    /// Returns Rust items that define the labels of all exports.
    fn export_labels_assembly(&self) -> String {
        let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            Ok("x86_64") => "jmp",
            Ok("aarch64") => "b",
            other => panic!("no jump instruction is known for {other:?}: add it to dropin-exports"),
        };
        let mut rust = String::new();
        for symbol in &self.symbols {
            let versions = self.labels_and_versioned_names(symbol);
            if symbol.kind == "flag" {
                write_global_asm(
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
                write_global_asm(
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

    /// Returns the label and the versioned name of each export of `symbol`.
    fn labels_and_versioned_names(&self, symbol: &Symbol) -> Vec<(String, String)> {
        if symbol.version_node != "PRIVATE" {
            assert!(
                self.version_nodes
                    .iter()
                    .any(|(name, _)| *name == symbol.version_node),
                "symbols.txt: there is no node {}",
                symbol.version_node
            );
            let label = symbol.name.clone();
            return vec![(label, format!("{}@@{}", symbol.name, symbol.version_node))];
        }
        let mut seen = BTreeSet::new();
        self.private_node_numbers
            .iter()
            .map(|abi| {
                let name = symbol.name.replace("{ABI}", abi);
                // The first version of a name is its default version.
                let at = if seen.insert(name.clone()) { "@@" } else { "@" };
                let label = format!("verbatim_private_{abi}_{name}");
                (label, format!("{name}{at}IBVERBS_PRIVATE_{abi}"))
            })
            .collect()
    }
}

/// Writes a `write_global_asm!` that defines `versions` as `[section, contents]`.
fn write_global_asm(
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
