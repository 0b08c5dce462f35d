//! Sequences of verbs through the C ABI of the software NIC.
#![no_main]

use std::sync::Once;

use libfuzzer_sys::fuzz_target;
use misuse::ProviderTables;

fuzz_target!(|bytes: &[u8]| {
    static FABRIC: Once = Once::new();
    FABRIC.call_once(|| {
        let folder = format!("/dev/shm/verbatim-fuzz-{}", std::process::id());
        // SAFETY: the process has one thread yet.
        unsafe {
            std::env::set_var("VERBATIM_FABRIC_DIR", folder);
            std::env::set_var("VERBATIM_LINK_LAYER", "ib");
        }
    });
    let tables = ProviderTables {
        symbols: softnic::symbols(),
        later_symbols: softnic::later_symbols(),
    };
    misuse::run(tables, bytes);
});
