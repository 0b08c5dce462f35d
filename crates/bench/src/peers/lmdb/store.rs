//! The ordered store: LMDB with the options that make it fast for keys and values of 8 bytes in
//! memory.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use heed::byteorder::NativeEndian;
use heed::types::U64;
use heed::{
    CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, IntegerComparator, MdbError, PutFlags,
    RoTxn, RwTxn,
};

use super::wire::{self, Request};

/// Folder of the file: a file system in memory, so that no disk is measured.
const FOLDER: &str = "/dev/shm";

type Word = U64<NativeEndian>;

/// A store that a single thread uses. Its file is unlinked, so its memory is freed however the
/// process ends.
pub(super) struct Store {
    env: Env,
    db: Database<'static, Word, Word, IntegerComparator>,
}

impl Store {
    /// Creates a store with room for `keys` keys.
    pub(super) fn new(keys: u64) -> Result<Self> {
        // An entry takes 26 bytes of a page that may be half full. Copied pages are reused only
        // later.
        let room = keys.saturating_mul(128).saturating_add(64 << 20);
        ensure_free_bytes(room)?;
        let folder = tempfile::Builder::new()
            .prefix("verbatim-lmdb-")
            .tempdir_in(FOLDER)
            .with_context(|| format!("cannot make a folder for LMDB in {FOLDER}"))?;
        let mut options = EnvOpenOptions::new();
        options.map_size(usize::try_from(room)?.next_multiple_of(1 << 20));
        // SAFETY: the folder is new and belongs to this process alone, so no other process changes
        // the file. Without locks, no two transactions may overlap: `execute` has exclusive
        // access to the store and ends its transaction.
        let env = unsafe {
            options.flags(
                EnvFlags::WRITE_MAP
                    | EnvFlags::NO_SYNC
                    | EnvFlags::NO_LOCK
                    | EnvFlags::NO_READ_AHEAD
                    | EnvFlags::NO_MEM_INIT,
            );
            options.open(folder.path())
        };
        let env = env.context("cannot open LMDB")?;
        let txn = env.write_txn()?;
        let created = env.create_databases_and_commit(txn, |opener, txn| {
            let options = opener.database_options().types::<Word, Word>();
            let db = options.key_comparator::<IntegerComparator>().create(txn);
            db.map(CommitOrAbort::<_, Infallible>::Commit)
        });
        let db = match created.context("cannot make a database of LMDB")? {
            CommitOrAbort::Commit(db) => db,
            CommitOrAbort::Abort(never) => match never {},
        };
        // LMDB keeps the file open and mapped, and needs its name only to open it.
        folder.close().context("cannot remove LMDB's folder")?;
        Ok(Self { env, db })
    }

    /// Executes the requests that arrived together in one transaction, and appends their answers.
    /// Each item of `turns` is a list of requests with the buffer for its answers. Changes are
    /// committed on return.
    pub(super) fn execute<'t>(
        &mut self,
        turns: impl Iterator<Item = (&'t [Request], &'t mut Vec<u8>)>,
        writes: bool,
    ) -> Result<()> {
        if writes {
            let mut txn = self.env.write_txn()?;
            for (requests, answers) in turns {
                for request in requests {
                    self.execute_in_write_txn(&mut txn, request, answers)?;
                }
            }
            return txn.commit().context("LMDB cannot commit");
        }
        let txn = self.env.read_txn()?;
        for (requests, answers) in turns {
            for request in requests {
                self.execute_in_read_txn(&txn, request, answers)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn execute_in_write_txn(
        &self,
        txn: &mut RwTxn<'_>,
        request: &Request,
        answers: &mut Vec<u8>,
    ) -> Result<()> {
        let (key, value, flags) = match request {
            Request::Put { key, value } => (key, value, PutFlags::empty()),
            Request::Append { key, value } => (key, value, PutFlags::APPEND),
            _ => return self.execute_in_read_txn(txn, request, answers),
        };
        match self.db.put_with_flags(txn, flags, key, value) {
            Ok(()) => answers.push(1),
            Err(heed::Error::Mdb(MdbError::KeyExist)) => answers.push(0),
            Err(e) => return Err(e).context("LMDB cannot put a key"),
        }
        Ok(())
    }

    #[inline]
    fn execute_in_read_txn(
        &self,
        txn: &RoTxn<'_>,
        request: &Request,
        answers: &mut Vec<u8>,
    ) -> Result<()> {
        match request {
            Request::Get { key } => wire::encode_get_answer(self.db.get(txn, key)?, answers),
            Request::Scan { from, entries } => {
                let start = answers.len();
                answers.extend_from_slice(&[0; 4]);
                let mut count = 0u32;
                for entry in self.db.range(txn, &(*from..))?.take(*entries as usize) {
                    let (key, value) = entry?;
                    answers.extend_from_slice(&key.to_le_bytes());
                    answers.extend_from_slice(&value.to_le_bytes());
                    count += 1;
                }
                answers[start..start + 4].copy_from_slice(&count.to_le_bytes());
            }
            // Changes are executed by `execute_in_write_txn`: a batch that contains one is a writing batch.
            Request::Put { .. } | Request::Append { .. } => answers.push(0),
        }
        Ok(())
    }
}

/// Fails if the folder has less than `bytes` free. Otherwise the kernel would kill the process on a
/// page without memory.
fn ensure_free_bytes(bytes: u64) -> Result<()> {
    let folder = Path::new(FOLDER);
    let stat = rustix::fs::statvfs(folder)
        .with_context(|| format!("LMDB is measured in memory, in {FOLDER}, which is missing"))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    ensure!(
        free >= bytes,
        "LMDB may need {} MiB in {FOLDER}, which has {} MiB left; use fewer keys or make it larger",
        bytes >> 20,
        free >> 20
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(store: &mut Store, requests: &[Request]) -> Vec<u8> {
        let mut answers = Vec::new();
        let writes = requests.iter().any(Request::is_write);
        let turns = std::iter::once((requests, &mut answers));
        store.execute(turns, writes).expect("carried out");
        answers
    }

    #[test]
    fn what_is_put_is_found_and_scanned_in_order() {
        let mut store = Store::new(1000).expect("opened");
        let put = |key| Request::Put { key, value: !key };
        // The batch also GETs a key that it PUTs, and the order of the keys differs from that of their bytes.
        let keys = [300, 2, 1, 256, u64::MAX];
        let mut batch = keys.map(put).to_vec();
        batch.push(Request::Get { key: 256 });
        batch.push(Request::Get { key: 3 });
        let mut expected = vec![1; 6];
        expected.extend_from_slice(&(!256u64).to_le_bytes());
        expected.push(0);
        assert_eq!(ask(&mut store, &batch), expected);
        let scan = |from, entries| Request::Scan { from, entries };
        let scanned = ask(&mut store, &[scan(2, 3), scan(301, 9)]);
        let (first, length) = wire::decode_scan_answer(&scanned).expect("whole");
        let entry = |key: u64| (key, !key);
        assert_eq!(first.collect::<Vec<_>>(), [2, 256, 300].map(entry));
        let (second, _) = wire::decode_scan_answer(&scanned[length..]).expect("whole");
        assert_eq!(second.collect::<Vec<_>>(), [entry(u64::MAX)]);
        // A PUT of an existing key changes its value.
        let key = 300;
        let again = [Request::Put { key, value: 5 }, Request::Get { key }];
        assert_eq!(ask(&mut store, &again), [1, 1, 5, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn keys_are_appended_in_order_only() {
        let mut store = Store::new(1000).expect("opened");
        let append = |key| Request::Append { key, value: 9 };
        assert_eq!(
            ask(&mut store, &[append(5), append(4), append(6)]),
            [1, 0, 1]
        );
        assert_eq!(ask(&mut store, &[Request::Get { key: 4 }]), [0]);
    }

    #[test]
    fn a_process_that_is_killed_leaves_nothing() {
        let store = Store::new(1000).expect("opened");
        let path = store.env.path().to_owned();
        assert!(path.starts_with(FOLDER) && !path.exists(), "{path:?}");
    }

    #[test]
    fn more_than_the_memory_is_refused() {
        let refused = Store::new(u64::MAX / 256).map(|_| ()).expect_err("refused");
        assert!(refused.to_string().contains("MiB left"), "{refused}");
    }
}
