//! Files of processes that have ended.

use std::fs;
use std::path::Path;

use crate::page::{Page, stage};

/// Removes the files of connections and arenas whose processes have all ended.
pub(crate) fn remove(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_stale = if name.starts_with("c-") {
            Page::open(&entry.path(), false).is_ok_and(|page| has_ended(&page))
        } else {
            arena_owner(&name).is_some_and(|(pid, start)| !liveness::is_alive(pid, start))
        };
        if is_stale {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether no process uses a page any more.
pub(crate) fn has_ended(page: &Page) -> bool {
    use std::sync::atomic::Ordering::Acquire;
    [0, 1].into_iter().all(|side| {
        let side = page.side(side);
        side.pid.load(Acquire) == 0 || side.stage.load(Acquire) == stage::GONE || side.is_dead()
    })
}

fn arena_owner(name: &str) -> Option<(u64, u64)> {
    let mut numbers = name.strip_prefix("a-")?.split('-').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
