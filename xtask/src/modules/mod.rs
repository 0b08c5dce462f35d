//! `cargo xtask modules`: checks that imports have no cycles, within each crate and between the
//! crates.
//!
//! - [`packages`]: the crates, from cargo;
//! - [`tree`], [`names`], [`mod@cfg`]: the modules of a crate, and the names in their code;
//! - [`imports`], [`circles`]: the imports between files, and their cycles;
//! - [`known`]: the accepted cycles;
//! - [`layers`]: the order of the crates;
//! - [`sizes`]: functions and files that are too long.

mod cfg;
mod circles;
mod imports;
mod known;
mod layers;
mod names;
mod packages;
mod sizes;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, TableComponent, presets};
use serde::Serialize;

use crate::paths::workspace;
use circles::ImportCycle;
use known::AcceptedCycles;
use packages::Workspace;
use sizes::OversizedItem;
use tree::Tree;

/// Arguments of `cargo xtask modules`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Also list functions and files over the limits of CONTRIBUTING.md; this fails nothing
    #[arg(long)]
    sizes: bool,
    /// Print one JSON object per line on standard output
    #[arg(long)]
    json: bool,
    /// Remove from the list of known circles what is gone
    #[arg(long = "prune")]
    prune_known_circles: bool,
}

const AFTER_HELP: &str = "\
A file imports from another when it names an item that is defined there: by `use`, or by a path in the code. Re-exports
and `mod` declarations are no imports, and tests, examples and benchmarks are left out. The exit status is 1 for a circle
that is not in xtask/known-circles.toml, an entry there that is gone, and a crate that needs one which
workspace.metadata.layers in Cargo.toml does not have in a lower layer.";

/// One line of `--json`.
#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
enum Line<'a> {
    Circle {
        known: bool,
        #[serde(flatten)]
        circle: &'a ImportCycle,
    },
    /// A file of an accepted cycle that is in no cycle any more.
    Stale {
        file: &'a Path,
    },
    /// A crate with a dependency that is not in a lower layer.
    Layer {
        fault: &'a str,
    },
    Size(&'a OversizedItem),
    Total {
        files: usize,
        circles: usize,
        known_circles: usize,
        layer_faults: usize,
    },
}

/// The results of the check.
#[derive(Debug, Default)]
struct Findings {
    /// The number of parsed files.
    files: usize,
    circles: Vec<ImportCycle>,
    layer_violations: Vec<String>,
    oversized_items: Vec<OversizedItem>,
}

/// Runs the check; returns false if it fails.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let folder = workspace();
    let found = examine(&folder)?;
    let mut known = AcceptedCycles::load(&folder)?;
    if args.prune_known_circles {
        known = known.pruned(&found.circles);
        known.store(&folder)?;
    }
    let stale = known.stale(&found.circles);
    if args.json {
        print_json(args, &found, &known, &stale)?;
    } else {
        print_text(args, &found, &known, &stale)?;
    }
    let all_known = found.circles.iter().all(|circle| known.has(circle));
    Ok(all_known && stale.is_empty() && found.layer_violations.is_empty())
}

/// Checks all crates of the workspace in `folder`.
fn examine(folder: &Path) -> Result<Findings> {
    let workspace = Workspace::load(folder)?;
    let mut found = Findings::default();
    let mut files = BTreeSet::new();
    for root in workspace.packages.iter().flat_map(packages::Package::roots) {
        let tree = relative(Tree::parse(root)?, folder);
        found
            .circles
            .extend(circles::find_import_cycles(&imports::between_files(&tree)));
        files.extend(tree.files);
    }
    found.circles.sort_by(|a, b| a.files.cmp(&b.files));
    let packages = workspace.packages.iter();
    let needs: BTreeMap<&str, Vec<&str>> = packages
        .map(|package| (package.name(), package.workspace_dependencies().collect()))
        .collect();
    found.layer_violations = layers::faults(workspace.layers(), &needs);
    for file in &files {
        let syntax = tree::parse_file(&folder.join(file))?;
        found
            .oversized_items
            .extend(sizes::too_large(file, &syntax));
    }
    found.files = files.len();
    Ok(found)
}

/// Returns the tree with the paths of its files relative to `folder`.
fn relative(mut tree: Tree, folder: &Path) -> Tree {
    for file in &mut tree.files {
        if let Ok(rest) = file.strip_prefix(folder) {
            *file = rest.to_path_buf();
        }
    }
    tree
}

fn print_json(
    args: &Args,
    found: &Findings,
    known: &AcceptedCycles,
    stale: &[PathBuf],
) -> Result<()> {
    let circles = found.circles.iter().map(|circle| Line::Circle {
        known: known.has(circle),
        circle,
    });
    let stale = stale.iter().map(|file| Line::Stale { file });
    let layers = found
        .layer_violations
        .iter()
        .map(|fault| Line::Layer { fault });
    let sizes = found
        .oversized_items
        .iter()
        .filter(|_| args.sizes)
        .map(Line::Size);
    let total = Line::Total {
        files: found.files,
        circles: found.circles.len(),
        known_circles: found.circles.iter().filter(|c| known.has(c)).count(),
        layer_faults: found.layer_violations.len(),
    };
    let mut out = std::io::stdout().lock();
    for line in circles
        .chain(stale)
        .chain(layers)
        .chain(sizes)
        .chain([total])
    {
        serde_json::to_writer(&mut out, &line)?;
        writeln!(out)?;
    }
    Ok(())
}

fn print_text(
    args: &Args,
    found: &Findings,
    known: &AcceptedCycles,
    stale: &[PathBuf],
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for circle in &found.circles {
        print_circle(&mut out, circle, known.has(circle))?;
    }
    for file in stale {
        writeln!(
            out,
            "{} is in {} and in no circle: cargo xtask modules --prune",
            file.display(),
            known::FILE
        )?;
    }
    for fault in &found.layer_violations {
        writeln!(out, "{fault}")?;
    }
    if args.sizes {
        writeln!(out, "{}", table(&found.oversized_items))?;
    }
    let known = found
        .circles
        .iter()
        .filter(|circle| known.has(circle))
        .count();
    writeln!(
        out,
        "{} files, {} circles ({known} known), {} upward imports between crates",
        found.files,
        found.circles.len(),
        found.layer_violations.len()
    )?;
    Ok(())
}

/// Prints a cycle and its imports, one per line.
fn print_circle(out: &mut impl Write, circle: &ImportCycle, known: bool) -> Result<()> {
    /// The maximum number of imported names on a line.
    const SHOWN: usize = 6;
    let number = circle.files.len();
    let note = if known { " (known)" } else { "" };
    writeln!(out, "circle of {number} files{note}:")?;
    for import in &circle.imports {
        let names: Vec<&str> = import.names.iter().map(String::as_str).collect();
        let mut shown = names[..names.len().min(SHOWN)].join(", ");
        if names.len() > SHOWN {
            shown += &format!(" and {} more", names.len() - SHOWN);
        }
        let (from, to) = (import.from.display(), import.to.display());
        writeln!(out, "  {from} -> {to}: {shown}")?;
    }
    Ok(())
}

/// Makes a table of the functions and files that are too long, the longest first.
fn table(sizes: &[OversizedItem]) -> Table {
    let mut sizes: Vec<&OversizedItem> = sizes.iter().collect();
    sizes.sort_by_key(|size| (size.function.is_some(), size.what, usize::MAX - size.count));
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, '─')
        .set_header(["file", "function", "count", "of", "limit"]);
    for size in sizes {
        table.add_row([
            size.file.display().to_string(),
            size.function.clone().unwrap_or_default(),
            size.count.to_string(),
            size.what.to_owned(),
            size.limit.to_string(),
        ]);
    }
    for column in [2, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
