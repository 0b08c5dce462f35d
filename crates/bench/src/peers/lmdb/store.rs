//! The ordered store: LMDB with the options that make it fast in memory.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::ops::Bound;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use heed::types::Bytes;
use heed::{
    CommitOrAbort, Comparator, Database, Env, EnvFlags, EnvOpenOptions, MdbError, PutFlags, RoTxn,
    RwTxn,
};

use super::serve_job::{EntrySizes, LmdbServeJob};
use super::wire::{self, Request};

/// Folder of the file: a file system in memory, so that no disk is measured.
const STORE_FOLDER: &str = "/dev/shm";

/// A store whose keys `C` orders, and that a single thread uses. Its file is unlinked, so its memory is freed however
/// the process ends.
pub(super) struct Store<C> {
    env: Env,
    db: Database<'static, Bytes, Bytes, C>,
    sizes: EntrySizes,
}

impl<C: Comparator + 'static> Store<C> {
    /// Creates a store.
    pub(super) fn new(
        LmdbServeJob {
            max_keys: keys,
            sizes,
            ..
        }: LmdbServeJob,
    ) -> Result<Self> {
        // An entry has a header of 10 bytes, and is in a page that may be half full. Copied pages are reused only
        // later.
        let room_per_key = 5 * (sizes.entry_bytes() as u64 + 10);
        let room = keys.saturating_mul(room_per_key).saturating_add(64 << 20);
        ensure_free_bytes(room)?;
        let folder = tempfile::Builder::new()
            .prefix("verbatim-lmdb-")
            .tempdir_in(STORE_FOLDER)
            .with_context(|| format!("cannot make a folder for LMDB in {STORE_FOLDER}"))?;
        let mut options = EnvOpenOptions::new();
        options.map_size(usize::try_from(room)?.next_multiple_of(1 << 20));
        // SAFETY: the folder is new and belongs to this process alone, so no other process changes
        // the file. Without locks, no two transactions may overlap: `execute_in_one_txn` has exclusive
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
            let options = opener.database_options().types::<Bytes, Bytes>();
            let db = options.key_comparator::<C>().create(txn);
            db.map(CommitOrAbort::<_, Infallible>::Commit)
        });
        let db = match created.context("cannot make a database of LMDB")? {
            CommitOrAbort::Commit(db) => db,
            CommitOrAbort::Abort(never) => match never {},
        };
        // LMDB keeps the file open and mapped, and needs its name only to open it.
        folder.close().context("cannot remove LMDB's folder")?;
        Ok(Self { env, db, sizes })
    }

    /// Returns the lengths of keys and values.
    pub(super) fn sizes(&self) -> EntrySizes {
        self.sizes
    }

    /// Executes the requests that arrived together in one transaction, and appends their answers.
    /// Each item of `turns` is the bytes of complete requests, with the buffer for their answers. Changes are
    /// committed on return.
    pub(super) fn execute_in_one_txn<'t>(
        &mut self,
        turns: impl Iterator<Item = (&'t [u8], &'t mut Vec<u8>)>,
        writes: bool,
    ) -> Result<()> {
        if writes {
            let mut txn = self.env.write_txn()?;
            for (mut requests, answers) in turns {
                while let Some((request, length)) = Request::decode(requests, self.sizes)? {
                    self.execute_in_write_txn(&mut txn, &request, answers)?;
                    requests = &requests[length..];
                }
            }
            return txn.commit().context("LMDB cannot commit");
        }
        let txn = self.env.read_txn()?;
        for (mut requests, answers) in turns {
            while let Some((request, length)) = Request::decode(requests, self.sizes)? {
                self.execute_in_read_txn(&txn, &request, answers)?;
                requests = &requests[length..];
            }
        }
        Ok(())
    }

    #[inline]
    fn execute_in_write_txn(
        &self,
        txn: &mut RwTxn<'_>,
        request: &Request<'_>,
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
        request: &Request<'_>,
        answers: &mut Vec<u8>,
    ) -> Result<()> {
        match request {
            Request::Get { key } => wire::encode_get_answer(self.db.get(txn, key)?, answers),
            Request::Scan { from, entries } => {
                let start = answers.len();
                answers.extend_from_slice(&[0; 4]);
                let mut count = 0u32;
                for entry in self
                    .db
                    .range(txn, &(Bound::Included(*from), Bound::Unbounded))?
                    .take(*entries as usize)
                {
                    let (key, value) = entry?;
                    answers.extend_from_slice(key);
                    answers.extend_from_slice(value);
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
    let folder = Path::new(STORE_FOLDER);
    let stat = rustix::fs::statvfs(folder).with_context(|| {
        format!("LMDB is measured in memory, in {STORE_FOLDER}, which is missing")
    })?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    ensure!(
        free >= bytes,
        "LMDB may need {} MiB in {STORE_FOLDER}, which has {} MiB left; use fewer keys or make it larger",
        bytes >> 20,
        free >> 20
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::lmdb::serve_job::KeyOrder;
    use heed::{DefaultComparator, IntegerComparator};

    fn store<C: Comparator + 'static>(keys: u64) -> Result<Store<C>> {
        Store::new(LmdbServeJob {
            max_keys: keys,
            sizes: EntrySizes::OF_INTEGERS,
            key_order: KeyOrder::Integers,
        })
    }

    fn ask<C: Comparator + 'static>(store: &mut Store<C>, requests: &[Request<'_>]) -> Vec<u8> {
        let (mut bytes, mut answers) = (Vec::new(), Vec::new());
        requests.iter().for_each(|r| r.encode(&mut bytes));
        let writes = requests.iter().any(Request::is_write);
        let turns = std::iter::once((&bytes[..], &mut answers));
        store
            .execute_in_one_txn(turns, writes)
            .expect("carried out");
        answers
    }

    #[test]
    fn what_is_put_is_found_and_scanned_in_order() {
        let mut store: Store<IntegerComparator> = store(1000).expect("opened");
        // The batch also GETs a key that it PUTs, and the order of the keys differs from that of their bytes.
        let numbers = [300, 2, 1, 256, u64::MAX];
        let entries = numbers.map(|n: u64| (n.to_ne_bytes(), (!n).to_ne_bytes()));
        let mut batch: Vec<_> = entries
            .iter()
            .map(|(key, value)| Request::Put { key, value })
            .collect();
        let [present, absent, five] = [256u64, 3, 5].map(u64::to_ne_bytes);
        batch.push(Request::Get { key: &present });
        batch.push(Request::Get { key: &absent });
        let mut expected = vec![1; 6];
        expected.extend_from_slice(&(!256u64).to_ne_bytes());
        expected.push(0);
        assert_eq!(ask(&mut store, &batch), expected);
        let from = [2u64, 301].map(u64::to_ne_bytes);
        let scan = |from, entries| Request::Scan { from, entries };
        let scanned = ask(&mut store, &[scan(&from[0], 3), scan(&from[1], 9)]);
        let decode = |at: usize| {
            let answer = wire::decode_scan_answer(&scanned[at..], EntrySizes::OF_INTEGERS);
            let (entries, length) = answer.expect("whole");
            let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
            let keys = entries.map(|(key, value)| {
                assert_eq!(number(value), !number(key));
                number(key)
            });
            (keys.collect::<Vec<_>>(), length)
        };
        let (keys, length) = decode(0);
        assert_eq!(keys, [2, 256, 300]);
        assert_eq!(decode(length).0, [u64::MAX]);
        // A PUT of an existing key changes its value.
        let key = &entries[0].0[..];
        let again = [Request::Put { key, value: &five }, Request::Get { key }];
        let mut expected = vec![1, 1];
        expected.extend_from_slice(&five);
        assert_eq!(ask(&mut store, &again), expected);
    }

    #[test]
    fn byte_strings_have_the_order_of_their_bytes() {
        let mut store: Store<DefaultComparator> = store(1000).expect("opened");
        let keys = [b"aaaaaaaz", b"aaaaaaba", b"b\0\0\0\0\0\0\0"];
        let append = |key| Request::Append {
            key,
            value: &[7; 8],
        };
        assert_eq!(ask(&mut store, &keys.map(|key| append(key))), [1; 3]);
        assert_eq!(ask(&mut store, &[append(b"aaaaaaab")]), [0]);
    }

    #[test]
    fn keys_are_appended_in_order_only() {
        let mut store: Store<IntegerComparator> = store(1000).expect("opened");
        let keys = [5u64, 4, 6].map(u64::to_ne_bytes);
        let append = |key| Request::Append {
            key,
            value: &[9; 8],
        };
        let all = [&keys[0], &keys[1], &keys[2]].map(|key| append(key));
        assert_eq!(ask(&mut store, &all), [1, 0, 1]);
        assert_eq!(ask(&mut store, &[Request::Get { key: &keys[1] }]), [0]);
    }

    #[test]
    fn a_process_that_is_killed_leaves_nothing() {
        let store: Store<IntegerComparator> = store(1000).expect("opened");
        let path = store.env.path().to_owned();
        assert!(path.starts_with(STORE_FOLDER) && !path.exists(), "{path:?}");
    }

    #[test]
    fn more_than_the_memory_is_refused() {
        let refused = store::<IntegerComparator>(u64::MAX / 256)
            .map(|_| ())
            .expect_err("refused");
        assert!(refused.to_string().contains("MiB left"), "{refused}");
    }
}
