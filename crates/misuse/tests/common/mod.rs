//! Running and generating sequences of verbs.

use std::sync::Mutex;
use std::time::Duration;

use misuse::ProviderTables;

/// Runs sequences one after the other, in this process's own fabric, whose port has this link layer. A hang
/// ends the process with a message.
pub(crate) fn run(link_layer: &str, sequences: impl Iterator<Item = Vec<u8>>) -> usize {
    static ONE: Mutex<Option<tempfile::TempDir>> = Mutex::new(None);
    let mut folder = ONE.lock().unwrap_or_else(|e| e.into_inner());
    if folder.is_none() {
        let new = tempfile::Builder::new()
            .prefix("verbatim-misuse-")
            .tempdir_in("/dev/shm")
            .expect("/dev/shm is writable");
        // SAFETY: no other thread of this program reads the environment: the lock is held, and the NIC starts later.
        unsafe {
            std::env::set_var("VERBATIM_FABRIC_DIR", new.path().join("fabric"));
            std::env::set_var("VERBATIM_LINK_LAYER", link_layer);
        }
        *folder = Some(new);
    }
    let tables = ProviderTables {
        symbols: softnic::symbols(),
        later_symbols: softnic::later_symbols(),
    };
    let (done, watched) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = watched.recv_timeout(Duration::from_secs(300));
        if late == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("a sequence of verbs hangs");
            std::process::abort();
        }
    });
    let count = sequences.map(|bytes| misuse::run(tables, &bytes)).count();
    drop(done);
    watchdog.join().expect("the watchdog ends");
    count
}

/// Number of sequences that the generator makes.
pub(crate) const GENERATED: usize = 300;

/// Returns generated sequences; `of` may change their bytes.
pub(crate) fn generated(of: fn(u8) -> u8) -> impl Iterator<Item = Vec<u8>> {
    // xorshift64 (Marsaglia, 2003).
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..GENERATED).map(move |_| {
        (0..250)
            .flat_map(|_| next().to_le_bytes())
            .map(of)
            .collect::<Vec<u8>>()
    })
}
