//! The libraries under test, and programs that load them.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::ffi::OsStr;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns a folder with the libraries under test, built with the profile of this test. The libraries have
/// the names that programs load.
///
/// Cargo does not build a `cdylib` for the tests of its package. This function therefore builds the
/// library, unless `VERBATIM_BUILT` says that it exists. `cargo xtask test` builds the whole workspace at
/// once. A separate build of the library would use other features and compile the library again.
pub(crate) fn library_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let exe = std::env::current_exe().expect("a test has a file");
        let profile = exe
            .ancestors()
            .nth(2)
            .expect("a test lies in target/PROFILE/deps");
        if std::env::var_os("VERBATIM_BUILT").is_none() {
            build(profile);
        }
        let folder = profile.join("dropin/test");
        std::fs::create_dir_all(&folder).expect("target is writable");
        for (built, name) in [
            ("libverbatim_dropin.so", "libibverbs.so.1"),
            ("libverbatim_dropin_rdmacm.so", "librdmacm.so.1"),
        ] {
            // Tests run at the same time, so each test renames its own link into place.
            let link = folder.join(format!("link.{}", std::process::id()));
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(profile.join(built), &link)
                .and_then(|()| std::fs::rename(&link, folder.join(name)))
                .expect("target is writable");
        }
        folder
    })
}

fn build(profile: &Path) {
    let target = profile.parent().expect("a profile's folder lies in target");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "dropin", "-p", "dropin-rdmacm"]);
    cargo.arg("--target-dir").arg(target);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let built = cargo.status().expect("cargo starts");
    assert!(built.success(), "the library does not build");
}

/// Returns the file of the drop-in `libibverbs.so.1`.
pub(crate) fn library() -> PathBuf {
    library_folder().join("libibverbs.so.1")
}

/// A separate fabric for the programs of one test.
pub(crate) struct Fabric(tempfile::TempDir);

impl Fabric {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("verbatim-dropin-test-")
            .tempdir_in("/dev/shm");
        Self(folder.expect("/dev/shm is writable"))
    }

    /// Returns the folder that the programs of the fabric make.
    pub(crate) fn folder(&self) -> PathBuf {
        self.0.path().join("fabric")
    }

    /// Returns a command that runs a program of this machine on the software NIC.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>, link_layer: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", library_folder())
            // Use a folder below the temporary folder: the fabric makes this folder, which no other user
            // can enter.
            .env("VERBATIM_FABRIC_DIR", self.folder())
            .env("VERBATIM_LINK_LAYER", link_layer)
            .stdin(Stdio::null());
        command
    }

    /// Runs a server and its client, and returns the output of both. Both must exit successfully.
    ///
    /// The client is the same program with the server's address as last argument.
    pub(crate) fn pair(&self, link_layer: &str, program: &str, args: &[&str]) -> [String; 2] {
        let port = free_port().to_string();
        let mut server = Watched::start(
            self.command(program, link_layer)
                .args(args)
                .args(["-p", &port]),
        );
        let deadline = Instant::now() + Duration::from_secs(20);
        while !listens(&port) {
            assert!(
                server.runs() && Instant::now() < deadline,
                "{program} {args:?}: the server does not listen: {}",
                server.end().1
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let client = Watched::start(self.command(program, link_layer).args(args).args([
            "-p",
            &port,
            "127.0.0.1",
        ]));
        [client.finish(), server.finish()]
    }
}

/// Returns a TCP port on which no process listens now.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are ports");
    listener.local_addr().expect("it is bound").port()
}

/// Returns true if a process listens on the port. The function does not connect, because these servers
/// accept only one connection.
fn listens(port: &str) -> bool {
    let port: u16 = port.parse().expect("a port");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default();
            // 0A is the state LISTEN (proc_net_tcp(5)).
            local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some("0A")
        })
    })
}

/// A child process that is killed if it takes too long.
pub(crate) struct Watched {
    child: Child,
    what: String,
}

impl Watched {
    pub(crate) fn start(command: &mut Command) -> Self {
        let what = format!("{command:?}");
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{what}: {e}; cargo xtask test installs what is missing"));
        Self { child, what }
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, name: &str) {
        run(Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]));
    }

    /// Waits until the process prints a line on its standard output.
    pub(crate) fn wait_for_line(&mut self, wanted: &str) {
        let mut line = String::new();
        let mut byte = [0];
        let stdout = self.child.stdout.as_mut().expect("a pipe");
        while line != format!("{wanted}\n") {
            if line.ends_with('\n') {
                line.clear();
            }
            let more = stdout.read(&mut byte).is_ok_and(|n| n == 1);
            assert!(more, "{}: ended before {wanted:?}: {line:?}", self.what);
            line.push(byte[0].into());
        }
    }

    pub(crate) fn end(&mut self) -> (bool, String) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let late = self.runs();
        let _ = self.child.kill();
        let status = self.child.wait().expect("a child can be waited for");
        let mut text = String::new();
        let pipes: [Option<&mut dyn Read>; 2] = [
            self.child.stdout.as_mut().map(|p| p as _),
            self.child.stderr.as_mut().map(|p| p as _),
        ];
        for pipe in pipes.into_iter().flatten() {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            text += &String::from_utf8_lossy(&bytes);
        }
        if late {
            text += "\n(killed after a minute)";
        }
        (status.success() && !late, text)
    }

    /// Waits until the process exits, which must be a success, and returns its output.
    pub(crate) fn finish(mut self) -> String {
        let (good, text) = self.end();
        assert!(good, "{}:\n{text}", self.what);
        text
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command until it exits, which must be a success.
pub(crate) fn run(command: &mut Command) -> Output {
    let what = format!("{command:?}");
    let output = command.output().unwrap_or_else(|e| panic!("{what}: {e}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {error}");
    output
}

/// Compiles a program of `tests/programs` with librdmacm into a folder.
pub(crate) fn compiled_with_rdmacm(name: &str, folder: &Path) -> PathBuf {
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    run(Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .args(["-Wl,--as-needed", "-lrdmacm", "-libverbs", "-lpthread"]));
    program
}
