//! The fuzz targets of this crate, and the replay of their corpora.

use std::io;

use nicmodel::guidelines;
use nicmodel::op_profile::OperationProfile;
use nicmodel::profile::builtin_profiles;
use zerocopy::IntoBytes;

use crate::layout::*;
use crate::read::{ReadError, RecordedProfile, read_counter_file_with};
use crate::{Ledger, PcieLines};

/// Number of cells of each kind in the fuzzed file. A header that claims more cells makes the file too
/// short.
const CELLS_PER_KIND: usize = 3;

/// Reads a file of counters that has a header and one cell of each kind. `bytes` patch this file: two bytes
/// select a word and the next eight are its value, repeatedly. All cells of a kind are equal.
///
/// # Panics
/// Panics if the reader panics, or returns a profile that contradicts itself.
pub fn fuzz_counter_file(bytes: &[u8]) {
    if let Ok(read) = profile_of_patched_file(bytes) {
        assert_eq!(read.profile.check(), Ok(()));
        run_model_on_each_nic(&read.profile);
    }
}

fn profile_of_patched_file(bytes: &[u8]) -> Result<RecordedProfile, ReadError> {
    let kinds = [
        (0, CQ_CELLS_AT, CQ_CELLS_AT),
        (CQ_CELLS_AT, SRQ_CELLS_AT, size_of::<CqThreadCell<u64>>()),
        (SRQ_CELLS_AT, QP_CELLS_AT, size_of::<SrqThreadCell<u64>>()),
        (QP_CELLS_AT, FILE_BYTES, size_of::<QpThreadCell<u64>>()),
    ];
    let mut words = vec![0u64; kinds.iter().map(|(_, _, size)| size / 8).sum()];
    words[..3].copy_from_slice(&[COUNTER_FILE_MAGIC, COUNTER_FILE_LAYOUT_VERSION, 77]);
    for patch in bytes.chunks_exact(10) {
        let (at, value) = patch.split_at(2);
        let at = usize::from(u16::from_le_bytes([at[0], at[1]])) % words.len();
        words[at] = value.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    }
    let memory = words.as_bytes();
    read_counter_file_with(|offset, out| {
        let mut of_kind = 0;
        for (start, end, size) in kinds {
            if (start..end).contains(&offset) && (offset - start) / size < CELLS_PER_KIND {
                let at = of_kind + (offset - start) % size;
                if let Some(found) = memory.get(at..at + out.len()) {
                    out.copy_from_slice(found);
                    return Ok(());
                }
            }
            of_kind += size;
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    })
}

/// Parses any bytes as a ledger. An invalid ledger is refused with a message. The model explains a valid
/// ledger, and the ledger is written as it was read.
///
/// # Panics
/// Panics if the reader or the model panics, or if the written ledger differs.
pub fn fuzz_ledger(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Ledger::parse(text) {
        Ok(ledger) => {
            for process in &ledger.processes {
                run_model_on_each_nic(process);
            }
            let again = serde_json::to_string(&ledger).expect("a ledger is JSON");
            assert_eq!(Ledger::parse(&again).expect("the same"), ledger);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Parses any bytes as perf's output. If perf's counts are found, a further line must add its value to the
/// sum.
///
/// # Panics
/// Panics if the reader panics, or if the sum is wrong.
pub fn fuzz_perf_output(bytes: &[u8]) {
    const EVENTS: [&str; 2] = ["io_pcirdcur", "io_itom"];
    const MORE: u64 = 7;
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Some(lines) = PcieLines::from_perf(text, EVENTS) {
        let [read, _] = EVENTS;
        let more = PcieLines::from_perf(&format!("{text}\n{MORE},,{read},"), EVENTS);
        let expected = PcieLines {
            rd_cur: lines.rd_cur.saturating_add(MORE),
            ..lines
        };
        assert_eq!(more, Some(expected));
    }
}

/// Runs the model on each NIC with a consistent profile.
fn run_model_on_each_nic(observed: &OperationProfile) {
    if observed.check().is_err() {
        return;
    }
    for profile in builtin_profiles() {
        let (fitted, _) = observed.restricted_to_executable(profile);
        assert_eq!(fitted.check(), Ok(()), "what fits the NIC still agrees");
        let _ = fitted.link_transactions_per_operation(profile);
        let _ = guidelines::advise(&fitted, profile);
        let _ = guidelines::advise(observed, profile);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_counters_is_replayed() {
        corpus::replay("counters", super::fuzz_counter_file);
    }

    #[test]
    fn the_corpus_of_perf_is_replayed() {
        corpus::replay("perf", super::fuzz_perf_output);
    }

    #[test]
    fn the_corpus_of_ledgers_is_replayed() {
        corpus::replay("ledger", super::fuzz_ledger);
    }
}
