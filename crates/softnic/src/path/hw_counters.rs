//! The files with the counters of a port: one file for each counter with a decimal number, as in the kernel's
//! `hw_counters`.
//!
//! All processes of a fabric that use the same port add to the files. The files thus have the sums, also of processes
//! that have ended. They are in the fabric's folder and outlive the fabric; the view of sysfs links to them. A file is
//! replaced as a whole, so that its readers see a number at any time.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::device::{PortPlace, configured_address_list};

/// The folder of all ports, in the fabric's folder.
const COUNTERS_FOLDER_NAME: &str = "counters";

/// The kernel's name for the time, in ms, for which values are kept before the device is asked again.
const LIFESPAN_FILE: &str = "lifespan";

/// Time for which a caller that can wait waits for another process that writes the same files.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The files of a port.
pub(crate) struct PortCounterFiles {
    /// The folder of all ports of the fabric.
    all_ports_folder: PathBuf,
    /// The folder of this port.
    folder: PathBuf,
    /// The lock file, locked by the process that writes.
    lock_path: PathBuf,
    /// The file that is renamed to a file of the folder.
    temporary_file: PathBuf,
}

impl PortCounterFiles {
    /// Returns the files of a port of this process in the fabric with the folder `fabric`. A port is identified by
    /// its network namespace, the addresses that the ports of its processes were given, and its number
    /// ([`PortPlace::host_wide_number`]).
    ///
    /// # Errors
    /// The network namespace has no name: `/proc` is not mounted.
    ///
    /// [`PortPlace::host_wide_number`]: crate::device::PortPlace::host_wide_number
    pub(crate) fn of_port(fabric: &Path, place: PortPlace) -> io::Result<Self> {
        let namespace = fs::metadata("/proc/self/ns/net")?.ino();
        let addresses = configured_address_list().unwrap_or_else(|| "all".to_owned());
        let port = place.host_wide_number();
        Ok(Self::new(
            fabric,
            &format!("{namespace}-{addresses}-{port}"),
        ))
    }

    fn new(fabric: &Path, port: &str) -> Self {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".,:-".contains(c);
        let port: String = port.chars().filter(|c| is_plain(*c)).collect();
        let parent = fabric.join(COUNTERS_FOLDER_NAME);
        Self {
            folder: parent.join(&port),
            lock_path: parent.join(format!("{port}.lock")),
            temporary_file: parent.join(format!("{port}.new")),
            all_ports_folder: parent,
        }
    }

    /// Returns the folder with a file for each counter.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the missing files of the counters `names`, with 0 in them. `age` is the largest age of a number.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn create_missing_files(&self, names: &[&str], age: Duration) -> io::Result<()> {
        let _lock = self.lock(LOCK_PATIENCE)?;
        let lifespan = self.folder.join(LIFESPAN_FILE);
        fs::write(lifespan, format!("{}\n", age.as_millis()))?;
        // All names are links to one file: an empty port costs no memory for each.
        self.write_temporary_file(0)?;
        for name in names {
            match fs::hard_link(&self.temporary_file, self.folder.join(name)) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        fs::remove_file(&self.temporary_file)?;
        Ok(())
    }

    /// Adds to counters. Waits up to `patience` for another process that has the lock.
    ///
    /// # Errors
    /// Those of the file system; `WouldBlock` if another process has the lock for longer: nothing is added then.
    pub(crate) fn add_to_counters(
        &self,
        news: &mut dyn Iterator<Item = (&'static str, u64)>,
        patience: Duration,
    ) -> io::Result<()> {
        let _lock = self.lock(patience)?;
        for (name, count) in news.filter(|(_, count)| *count != 0) {
            self.write_counter(name, self.read_counter(name).saturating_add(count))?;
        }
        Ok(())
    }

    /// Returns the values of the counters `names`.
    pub(crate) fn read_values(&self, names: &[&'static str]) -> Vec<(&'static str, u64)> {
        names
            .iter()
            .map(|name| (*name, self.read_counter(name)))
            .collect()
    }

    /// Reads the number in the file of a counter; 0 if there is no file, or no number in it.
    fn read_counter(&self, name: &str) -> u64 {
        let text = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    fn write_counter(&self, name: &str, count: u64) -> io::Result<()> {
        self.write_temporary_file(count)?;
        fs::rename(&self.temporary_file, self.folder.join(name))
    }

    fn write_temporary_file(&self, count: u64) -> io::Result<()> {
        // The file of a process that died may have other names, too.
        match fs::remove_file(&self.temporary_file) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => fs::write(&self.temporary_file, format!("{count}\n")),
        }
    }

    /// Makes the folders, and takes the lock, which closing the file releases.
    fn lock(&self, patience: Duration) -> io::Result<File> {
        for folder in [&self.all_ports_folder, &self.folder] {
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        let mut options = File::options();
        let lock = options
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.lock_path)?;
        let start = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                // The process that has the lock may have been stopped.
                Err(Errno::WOULDBLOCK) if start.elapsed() >= patience => {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Err(Errno::WOULDBLOCK) => cancellation::sleep(Duration::from_millis(1)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["sent_pkts", "rcvd_pkts", "send_err"];

    fn count_of(files: &PortCounterFiles, name: &str) -> u64 {
        let values = files.read_values(&NAMES);
        values
            .iter()
            .find(|(n, _)| *n == name)
            .expect("a counter")
            .1
    }

    fn make(files: &PortCounterFiles) {
        files
            .create_missing_files(&NAMES, Duration::from_secs(1))
            .unwrap();
    }

    #[test]
    fn processes_add_up_and_each_port_has_its_own() {
        let fabric = tempfile::tempdir().unwrap();
        let port = || PortCounterFiles::new(fabric.path(), "7-127.0.0.2");
        assert_eq!(count_of(&port(), "sent_pkts"), 0);
        for process in [port(), port()] {
            let mut news = [("sent_pkts", 5), ("rcvd_pkts", 0)].into_iter();
            process.add_to_counters(&mut news, LOCK_PATIENCE).unwrap();
        }
        assert_eq!(count_of(&port(), "sent_pkts"), 10);
        let other = PortCounterFiles::new(fabric.path(), "7-::1/../..");
        assert!(
            other
                .folder()
                .starts_with(fabric.path().join(COUNTERS_FOLDER_NAME))
        );
        assert_eq!(count_of(&other, "sent_pkts"), 0);
        // The file of a counter that has not counted exists for those who list the folder.
        assert!(!port().folder().join("rcvd_pkts").exists());
        make(&port());
        let text = |name| fs::read_to_string(port().folder().join(name)).unwrap();
        assert_eq!(
            (text("sent_pkts"), text("rcvd_pkts")),
            ("10\n".into(), "0\n".into())
        );
        assert_eq!(text(LIFESPAN_FILE), "1000\n");
        assert_eq!(
            fs::read_dir(port().folder()).unwrap().count(),
            NAMES.len() + 1
        );
    }

    #[test]
    fn a_process_that_holds_the_lock_is_not_waited_for() {
        let fabric = tempfile::tempdir().unwrap();
        let files = PortCounterFiles::new(fabric.path(), "7-all");
        let held = files.lock(LOCK_PATIENCE).unwrap();
        let mut news = [("sent_pkts", 1)].into_iter();
        let error = files
            .add_to_counters(&mut news, Duration::ZERO)
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        files.add_to_counters(&mut news, LOCK_PATIENCE).unwrap();
        assert_eq!(count_of(&files, "sent_pkts"), 1);
    }

    #[test]
    fn what_is_no_number_counts_as_none() {
        let fabric = tempfile::tempdir().unwrap();
        let files = PortCounterFiles::new(fabric.path(), "7-all");
        make(&files);
        for rubbish in ["", "x\n", "-1\n", "99999999999999999999999\n"] {
            fs::write(files.folder().join("send_err"), rubbish).unwrap();
            assert_eq!(count_of(&files, "send_err"), 0, "{rubbish:?}");
        }
        fs::write(files.folder().join("send_err"), u64::MAX.to_string()).unwrap();
        files
            .add_to_counters(&mut [("send_err", 1)].into_iter(), LOCK_PATIENCE)
            .unwrap();
        assert_eq!(count_of(&files, "send_err"), u64::MAX);
    }

    #[test]
    fn what_a_dead_writer_has_left_changes_nothing() {
        let fabric = tempfile::tempdir().unwrap();
        let files = PortCounterFiles::new(fabric.path(), "7-all");
        make(&files);
        // The process died before it removed this name.
        fs::hard_link(files.folder().join("rcvd_pkts"), &files.temporary_file).unwrap();
        files
            .add_to_counters(&mut [("send_err", 9)].into_iter(), LOCK_PATIENCE)
            .unwrap();
        let counts = files
            .read_values(&NAMES)
            .into_iter()
            .map(|(_, count)| count);
        assert_eq!(counts.collect::<Vec<_>>(), [0, 0, 9]);
    }
}
