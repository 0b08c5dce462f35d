//! Removes page files of processes that have ended.

use std::fs;
use std::path::Path;

use crate::page::{Page, stage};
use crate::totals;

/// Removes the files of connections whose processes have all ended.
pub(crate) fn remove_pages_of_ended_connections(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("c-") {
            continue;
        }
        if let Ok(page) = Page::open(&entry.path(), false)
            && has_ended(&page)
        {
            totals::remove_page_and_add_to_totals(&page);
        }
    }
}

/// Returns true if no process uses a page any more.
pub(crate) fn has_ended(page: &Page) -> bool {
    use std::sync::atomic::Ordering::Acquire;
    [0, 1].into_iter().all(|side| {
        let side = page.side(side);
        side.pid.load(Acquire) == 0
            || side.stage.load(Acquire) == stage::TCP_OR_CLOSED
            || side.is_dead()
    })
}
