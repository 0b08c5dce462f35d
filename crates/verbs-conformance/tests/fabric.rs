//! Tests of the software NIC in an invalid fabric, and in an idle fabric.
//!
//! In these tests a folder or file in shared memory belongs to another user, is damaged, or was left by
//! another version. Opening the device then fails with an errno and prints advice to stderr. If no process
//! uses the files, the software NIC may also replace them. It never crashes and never hangs.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use verbs_conformance::child_processes::{DeviceOpenResult, IdleReport};
use verbs_conformance::harness::{
    self, SuiteVariant, file_names_in_folder, role_command, wait_for_exit_or_timeout,
};
use verbs_conformance::{ProviderKind, Settings, SuiteTest, TestEnv, TestOutcome, pattern};

macro_rules! tests {
    ($( $name:ident, )*) => {
        const TESTS: &[SuiteTest] = &[$( SuiteTest {
            name: concat!("fabric::", stringify!($name)),
            needed_capabilities: &[],
            run: |env| $name(env).into(),
        } ),*];
    };
}

tests! {
    a_good_folder_works,
    a_folder_of_ones_own_making_works,
    others_may_not_enter_the_folder,
    a_folder_of_another_user_is_refused,
    another_user_cannot_enter_ours,
    a_file_in_place_of_the_folder_is_refused,
    a_link_in_place_of_the_folder_is_refused,
    a_relative_name_is_refused,
    a_missing_parent_is_refused,
    a_parent_that_cannot_be_written_is_refused,
    rubbish_in_the_directory_file,
    a_directory_file_of_another_version,
    a_directory_file_of_another_version_in_use,
    a_directory_file_that_changes_under_a_process,
    a_directory_file_of_any_length,
    a_directory_file_that_is_no_file,
    foreign_files_stay,
    left_over_segments_go,
    rubbish_in_a_peers_segment,
    shared_memory_that_is_full,
    an_idle_process_uses_no_cpu,
}

fn main() -> ExitCode {
    let tests: Vec<&'static SuiteTest> = TESTS.iter().collect();
    let variant = SuiteVariant::of_settings(Settings::new(ProviderKind::Softnic));
    harness::main(&tests, &[variant])
}

/// A fabric folder of a test; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    /// Returns a path for a fabric folder; no file exists at this path.
    fn unmade(label: &str) -> Self {
        Self(harness::unused_fabric_path(label))
    }

    fn made(label: &str, mode: u32) -> Self {
        let folder = Self::unmade(label);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder.0)
            .expect("make a folder");
        fs::set_permissions(&folder.0, Permissions::from_mode(mode)).expect("set its mode");
        folder
    }

    /// Returns a fabric folder whose files a running process has made, and this process.
    fn with_process(env: &TestEnv, label: &str) -> (Self, Process) {
        let folder = Self::unmade(label);
        let process = Process::start(env, &folder.0);
        assert!(process.opening.has_opened_device(), "{:?}", process.opening);
        (folder, process)
    }

    fn directory(&self) -> PathBuf {
        self.0.join("directory")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that has opened the device, or has tried to open it.
struct Process {
    child: Child,
    opening: DeviceOpenResult,
}

impl Process {
    fn start(env: &TestEnv, folder: &Path) -> Self {
        Self::from_command(
            role_command("open", "", &env.settings).expect("a command"),
            folder,
        )
    }

    fn from_command(mut command: Command, folder: &Path) -> Self {
        let mut child = command
            .env("VERBATIM_FABRIC_DIR", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start a process");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped"))
            .read_line(&mut line)
            .expect("a pipe");
        let opening = serde_json::from_str(&line).unwrap_or_else(|_| {
            let status = child.wait();
            let mut text = String::new();
            let _ = child
                .stderr
                .take()
                .expect("piped")
                .read_to_string(&mut text);
            panic!("the process said {line:?} and ended with {status:?}: {text}");
        });
        Self { child, opening }
    }

    /// Ends the process, and returns what it wrote to stderr.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let status =
            wait_for_exit_or_timeout(&mut self.child, Duration::from_secs(30)).expect("wait");
        let mut text = String::new();
        let _ = self
            .child
            .stderr
            .take()
            .expect("piped")
            .read_to_string(&mut text);
        let status = status.unwrap_or_else(|| panic!("it hangs at the end: {text}"));
        assert!(status.success(), "it ended with {status}: {text}");
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that the process did not open the device, and printed the reason.
#[track_caller]
fn expect_refused(process: Process, folder: &Path) {
    let opening = process.opening.clone();
    assert!(!opening.has_opened_device(), "it opened the device");
    assert!(
        opening
            .errno_of_failed_call()
            .is_some_and(|errno| errno > 0),
        "without errno: {opening:?}"
    );
    let text = process.end();
    let name = folder.file_name().expect("a name").to_string_lossy();
    assert!(
        text.contains(&*name),
        "the message does not name the folder: {text:?}"
    );
}

#[track_caller]
fn expect_works(env: &TestEnv, folder: &Path) {
    let process = Process::start(env, folder);
    assert!(process.opening.has_opened_device(), "{:?}", process.opening);
    process.end();
}

fn a_good_folder_works(env: &TestEnv) {
    let folder = Folder::unmade("good");
    expect_works(env, &folder.0);
    assert!(
        file_names_in_folder(&folder.0).is_empty(),
        "something is left: {:?}",
        file_names_in_folder(&folder.0)
    );
}

fn a_folder_of_ones_own_making_works(env: &TestEnv) {
    let folder = Folder::made("own", 0o700);
    expect_works(env, &folder.0);
}

fn others_may_not_enter_the_folder(env: &TestEnv) {
    for mode in [0o755, 0o750, 0o701, 0o777, 0o770] {
        let folder = Folder::made("open", mode);
        expect_refused(Process::start(env, &folder.0), &folder.0);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn a_folder_of_another_user_is_refused(env: &TestEnv) -> TestOutcome {
    if !is_root() {
        return TestOutcome::Skipped("needs root to give a folder away".into());
    }
    let folder = Folder::made("foreign", 0o700);
    chown(&folder.0, Some(65534), Some(65534)).expect("chown");
    expect_refused(Process::start(env, &folder.0), &folder.0);
    TestOutcome::Passed
}

/// Returns a command that runs this program as user nobody.
fn as_nobody(env: &TestEnv) -> Option<Command> {
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"]
        .into_iter()
        .find(|path| Path::new(path).exists())?;
    let role = role_command("open", "", &env.settings).expect("a command");
    let mut command = Command::new(setpriv);
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(role.get_program());
    for (name, value) in role.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    Some(command)
}

/// Returns a command that runs a copy of this program as user nobody. The copy lies in a folder where
/// every user may execute it.
fn as_nobody_from_anywhere(env: &TestEnv, folder: &Path) -> Option<(Command, PathBuf)> {
    let copy = std::env::temp_dir().join(folder.file_name()?);
    fs::copy(std::env::current_exe().ok()?, &copy).ok()?;
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).ok()?;
    let original = as_nobody(env)?;
    let mut command = Command::new(original.get_program());
    let args: Vec<_> = original.get_args().collect();
    command.args(&args[..args.len() - 1]).arg(&copy);
    for (name, value) in original.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    Some((command, copy))
}

fn another_user_cannot_enter_ours(env: &TestEnv) -> TestOutcome {
    if !is_root() {
        return TestOutcome::Skipped("needs root to become another user".into());
    }
    let (folder, process) = Folder::with_process(env, "ours");
    let Some((command, copy)) = as_nobody_from_anywhere(env, &folder.0) else {
        return TestOutcome::Skipped("there is no setpriv".into());
    };
    let stranger = Process::from_command(command, &folder.0);
    let _ = fs::remove_file(copy);
    expect_refused(stranger, &folder.0);
    // The process inside the fabric is not affected.
    process.end();
    TestOutcome::Passed
}

fn a_file_in_place_of_the_folder_is_refused(env: &TestEnv) {
    let folder = Folder::unmade("file");
    fs::write(&folder.0, b"not a folder").expect("write a file");
    expect_refused(Process::start(env, &folder.0), &folder.0);
    assert_eq!(fs::read(&folder.0).expect("still there"), b"not a folder");
}

fn a_link_in_place_of_the_folder_is_refused(env: &TestEnv) {
    let real = Folder::made("real", 0o700);
    let folder = Folder::unmade("link");
    symlink(&real.0, &folder.0).expect("make a link");
    expect_refused(Process::start(env, &folder.0), &folder.0);
    assert!(file_names_in_folder(&real.0).is_empty());
}

fn a_relative_name_is_refused(env: &TestEnv) {
    let name = Path::new("verbatim-conformance-relative");
    expect_refused(Process::start(env, name), name);
    assert!(!name.exists());
}

fn a_missing_parent_is_refused(env: &TestEnv) {
    let folder = harness::unused_fabric_path("missing").join("below");
    expect_refused(Process::start(env, &folder), &folder);
}

fn a_parent_that_cannot_be_written_is_refused(env: &TestEnv) {
    // Root cannot make folders in `/proc` either.
    let folder = Path::new("/proc/verbatim-conformance");
    expect_refused(Process::start(env, folder), folder);
}

/// The directory file is invalid, and no process uses it. The next process makes a new directory, or
/// refuses to join.
fn rubbish_in_the_directory_file(env: &TestEnv) {
    for len in [0usize, 1, 7, 8, 15, 16, 4095, 4096, 40_000, 1 << 20] {
        harness::record_case(format!("{len} bytes"));
        let folder = Folder::made("rubbish", 0o700);
        fs::write(folder.directory(), pattern(len as u64, len)).expect("write");
        let process = Process::start(env, &folder.0);
        if process.opening.has_opened_device() {
            process.end();
        } else {
            expect_refused(process, &folder.0);
        }
    }
}

/// Overwrites bytes of a file.
fn poke(path: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = OpenOptions::new().write(true).open(path).expect("open");
    file.write_all_at(bytes, at).expect("write");
}

/// The directory file has another layout version. A process of this version makes the file and dies, and
/// the test changes the version, which is the second word.
fn a_directory_file_of_another_version(env: &TestEnv) {
    let (folder, process) = Folder::with_process(env, "old");
    drop(process);
    poke(&folder.directory(), 8, &99u64.to_le_bytes());
    let process = Process::start(env, &folder.0);
    if process.opening.has_opened_device() {
        process.end();
    } else {
        expect_refused(process, &folder.0);
    }
}

fn a_directory_file_of_another_version_in_use(env: &TestEnv) {
    for (at, what) in [(8, "version"), (0, "magic number")] {
        harness::record_case(what);
        let (folder, living) = Folder::with_process(env, "version");
        poke(&folder.directory(), at, &99u64.to_le_bytes());
        expect_refused(Process::start(env, &folder.0), &folder.0);
        // The running process continues, and leaves without damage.
        living.end();
        expect_works(env, &folder.0);
    }
}

/// Another program overwrites the directory file with random bytes while a process has mapped the file.
fn a_directory_file_that_changes_under_a_process(env: &TestEnv) {
    let (folder, living) = Folder::with_process(env, "changing");
    let len =
        usize::try_from(fs::metadata(folder.directory()).expect("there").len()).expect("small");
    // Overwrite the bytes behind magic number and version: entries of processes that do not exist.
    poke(&folder.directory(), 16, &pattern(5, len - 16));
    let process = Process::start(env, &folder.0);
    if process.opening.has_opened_device() {
        process.end();
    } else {
        expect_refused(process, &folder.0);
    }
    living.end();
}

fn a_directory_file_of_any_length(env: &TestEnv) {
    for cut in [0u64, 8, 16, 17, 100, 4096] {
        harness::record_case(format!("cut to {cut} bytes"));
        let (folder, process) = Folder::with_process(env, "cut");
        drop(process);
        OpenOptions::new()
            .write(true)
            .open(folder.directory())
            .and_then(|file| file.set_len(cut))
            .expect("cut the file");
        let process = Process::start(env, &folder.0);
        if process.opening.has_opened_device() {
            process.end();
        } else {
            expect_refused(process, &folder.0);
        }
    }
}

fn a_directory_file_that_is_no_file(env: &TestEnv) {
    let folder = Folder::made("nofile", 0o700);
    fs::create_dir(folder.directory()).expect("make a folder");
    expect_refused(Process::start(env, &folder.0), &folder.0);
    let folder = Folder::made("fifo", 0o700);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.directory(),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("make a FIFO");
    expect_refused(Process::start(env, &folder.0), &folder.0);
    let folder = Folder::made("lockdir", 0o700);
    fs::create_dir(folder.0.join("lock")).expect("make a folder");
    expect_refused(Process::start(env, &folder.0), &folder.0);
    let (folder, target) = (
        Folder::made("symlink", 0o700),
        Folder::made("target", 0o700),
    );
    let victim = target.0.join("victim");
    fs::write(&victim, b"precious").expect("write");
    symlink(&victim, folder.directory()).expect("make a link");
    let process = Process::start(env, &folder.0);
    assert!(
        !process.opening.has_opened_device(),
        "it followed a link out of the folder"
    );
    process.end();
    assert_eq!(fs::read(&victim).expect("still there"), b"precious");
}

/// Foreign files in the folder of a fabric must not be removed.
fn foreign_files_stay(env: &TestEnv) {
    let folder = Folder::made("guests", 0o700);
    let guests = [
        "note.txt",
        "0123456789abcdef.txt",
        "0123.segment",
        "zzzzzzzzzzzzzzzz.segment",
    ];
    for guest in guests {
        fs::write(folder.0.join(guest), b"mine").expect("write");
    }
    expect_works(env, &folder.0);
    let names = file_names_in_folder(&folder.0);
    for guest in guests {
        assert!(
            names.iter().any(|name| name == guest),
            "{guest} is gone: {names:?}"
        );
    }
}

fn left_over_segments_go(env: &TestEnv) {
    let (folder, process) = Folder::with_process(env, "leftover");
    drop(process);
    assert!(
        !file_names_in_folder(&folder.0).is_empty(),
        "a killed process leaves nothing to clean up?"
    );
    fs::write(folder.0.join("00000000deadbeef.segment"), pattern(1, 5000)).expect("write");
    fs::write(folder.0.join("00000000deadbeef.wake"), b"x").expect("write");
    expect_works(env, &folder.0);
    assert!(
        file_names_in_folder(&folder.0).is_empty(),
        "left: {:?}",
        file_names_in_folder(&folder.0)
    );
}

/// A process whose segment is invalid cannot be reached, and does not disturb other processes.
fn rubbish_in_a_peers_segment(env: &TestEnv) {
    let (folder, living) = Folder::with_process(env, "segment");
    let names = file_names_in_folder(&folder.0);
    let segment = names
        .iter()
        .find(|name| name.ends_with(".segment"))
        .expect("a segment");
    poke(&folder.0.join(segment), 0, &pattern(9, 64 << 10));
    expect_works(env, &folder.0);
    let status_of_living = living.opening.has_opened_device();
    assert!(status_of_living);
    drop(living);
    expect_works(env, &folder.0);
}

/// If the file system is nearly full, a call returns an error, and the process gets no SIGBUS.
fn shared_memory_that_is_full(env: &TestEnv) -> TestOutcome {
    if !is_root() {
        return TestOutcome::Skipped("needs root to mount a small file system".into());
    }
    let mount_point = Folder::made("full", 0o700);
    for size in ["size=16k", "size=64k", "size=256k", "size=1m", "size=2m"] {
        harness::record_case(size);
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", size, "none"])
            .arg(&mount_point.0)
            .stderr(Stdio::null())
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            return TestOutcome::Skipped("mounting is not allowed here".into());
        }
        let folder = mount_point.0.join("fabric");
        let process = Process::start(env, &folder);
        let worked = process.opening.has_opened_device();
        let errno = process.opening.errno_of_failed_call();
        let text = process.end();
        let _ = Command::new("umount").arg(&mount_point.0).status();
        if !worked {
            assert!(errno.is_some_and(|errno| errno > 0), "without errno");
            assert!(text.contains("fabric"), "without a message: {text:?}");
        }
    }
    TestOutcome::Passed
}

/// A process with 1,000 connected queue pairs and no work must sleep.
fn an_idle_process_uses_no_cpu(env: &TestEnv) {
    let folder = Folder::unmade("idle");
    let output = role_command("idle", "500", &env.settings)
        .expect("a command")
        .env("VERBATIM_FABRIC_DIR", &folder.0)
        .stderr(Stdio::inherit())
        .output()
        .expect("start a process");
    assert!(output.status.success(), "{}", output.status);
    let idle: IdleReport = serde_json::from_slice(&output.stdout).expect("its report");
    println!("{idle:?}");
    let _ = std::io::stdout().flush();
    // A spinning thread would use 100 % of a core; a sleeping process uses about 0 %.
    assert!(
        idle.cpu_us < idle.wall_us / 20,
        "{} of {} us",
        idle.cpu_us,
        idle.wall_us
    );
    assert!(
        idle.resident_kib < 64 << 10,
        "{} KiB are resident",
        idle.resident_kib
    );
}
