//! `verbatim run` replaces this process by the program, which finds the software NIC.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common;

/// Runs `verbatim run` with these arguments, with the library built beside the program.
fn run(args: &[&str]) -> Output {
    command(&[], args).output().expect("the program starts")
}

/// Returns a `verbatim run` command with these arguments, after the words `before`.
fn command(before: &[&str], args: &[&str]) -> Command {
    common::build_libraries();
    let program = env!("CARGO_BIN_EXE_verbatim");
    let words: Vec<&str> = before.iter().chain(&[program, "run"]).copied().collect();
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .args(args)
        .env("LD_LIBRARY_PATH", "/nonexistent/before")
        .env_remove("VERBATIM_LINK_LAYER")
        .env_remove("VERBATIM_FABRIC")
        .env_remove("VERBATIM_DEVICE")
        .stdin(Stdio::null());
    command
}

fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Returns true if this user may create a mount namespace, in the way that unshare(1) does.
fn namespaces_are_allowed() -> bool {
    let made = Command::new("unshare")
        .args(["--user", "--mount", "--map-root-user", "true"])
        .stderr(Stdio::null())
        .status();
    made.expect("util-linux has unshare").success()
}

#[test]
fn the_exit_status_and_the_signal_are_the_programs() {
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(
        run(&["sh", "-c", "kill -TERM $$"]).status.signal(),
        Some(15)
    );
}

#[test]
fn the_environment_has_the_library_in_front_and_what_was_asked_for() {
    let out = run(&[
        "--link-layer",
        "ib",
        "--fabric",
        "tests_1",
        "--",
        "sh",
        "-c",
        "echo $LD_LIBRARY_PATH $VERBATIM_LINK_LAYER $VERBATIM_FABRIC; test -e \"${LD_LIBRARY_PATH%%:*}\"/libibverbs.so.1",
    ]);
    assert!(out.status.success(), "the library is there");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        text.ends_with(":/nonexistent/before ib tests_1\n"),
        "{text}"
    );
}

#[test]
fn a_program_of_this_machine_sees_the_device() {
    let out = run(&[
        "--link-layer",
        "ib",
        "--fabric",
        "tests_2",
        "--",
        "ibv_devinfo",
    ]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(
        text.contains("softnic0") && text.contains("InfiniBand"),
        "{text}"
    );
}

#[test]
fn signals_reach_the_program_itself() {
    use std::os::unix::process::ExitStatusExt;
    let mut child = command(&[], &["--", "sh", "-c", "echo $$; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), child.id().to_string(), "it is this process");
    child.kill().expect("it is there");
    assert_eq!(child.wait().expect("it ended").signal(), Some(9));
}

/// With `--summary` this program waits for the other one. The shell ignores SIGHUP as nohup(1) does.
#[test]
fn signals_reach_a_program_that_is_waited_for_unless_they_are_ignored() {
    let program = env!("CARGO_BIN_EXE_verbatim");
    common::build_libraries();
    let script = "trap '' HUP; exec \"$0\" run --summary -- \
                  sh -c 'trap \"echo USR1; exit 5\" USR1; kill -HUP $$; kill -USR1 $PPID; for i in $(seq 900); do sleep 0.1; done'";
    let out = Command::new("sh")
        .args(["-c", script, program])
        .stdin(Stdio::null())
        .output()
        .expect("a shell");
    assert_eq!(out.status.code(), Some(5), "{}", stderr(&out));
    assert_eq!(stdout(&out), "USR1\n");
    assert!(stderr(&out).contains("RDMA: not used"), "{}", stderr(&out));
}

#[test]
fn the_program_sees_the_files_of_a_device_and_everything_else() {
    if !namespaces_are_allowed() {
        // The next test covers this case.
        return;
    }
    let script = "set -e; cd /sys/class; cat infiniband/softnic0/ports/1/link_layer \
         infiniband_verbs/uverbs0/ibdev; test -c /dev/infiniband/uverbs0; \
         echo x > /dev/infiniband/uverbs0; test -c /dev/null; ls net/lo/ifindex /dev/shm > /dev/null; \
         ! touch infiniband/softnic0/x 2> /dev/null; ! touch /dev/x 2> /dev/null";
    let out = run(&["--link-layer", "ib", "--", "sh", "-c", script]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(stdout(&out), "InfiniBand\nsoftnic0\n");
    assert_eq!(stderr(&out), "");
    // Other processes do not see the files, and the program can opt out.
    assert!(!Path::new("/sys/class/infiniband/softnic0").exists());
    let script = "test ! -e /sys/class/infiniband/softnic0";
    assert!(run(&["--no-view", "sh", "-c", script]).status.success());
}

#[test]
fn programs_that_may_not_mount_share_a_user_namespace() {
    if !namespaces_are_allowed() {
        return;
    }
    // Root may mount without a user namespace, so drop that capability. Other users lack it
    // already.
    let is_root = stdout(&Command::new("id").arg("-u").output().expect("id")) == "0\n";
    let drop = [
        "setpriv",
        "--bounding-set=-sys_admin",
        "--inh-caps=-sys_admin",
    ];
    let before: &[&str] = if is_root { &drop } else { &[] };
    let script = "readlink /proc/self/ns/user; cat /sys/class/infiniband_verbs/uverbs0/ibdev; \
         echo started >&2; read line";
    let start = || {
        let mut child = command(before, &["--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let err = child.stderr.as_mut().expect("a pipe");
        BufReader::new(err).read_line(&mut line).expect("a line");
        assert_eq!(line, "started\n");
        child
    };
    // Both programs run at the same time.
    let programs = [start(), start()];
    let [one, other] = programs.map(|program| {
        let out = program.wait_with_output().expect("it ends");
        stdout(&out)
    });
    assert!(
        one.starts_with("user:[") && one.ends_with("\nsoftnic0\n"),
        "{one}"
    );
    assert_eq!(one, other);
    let own = std::fs::read_link("/proc/self/ns/user").expect("a link");
    assert_ne!(one.lines().next(), own.to_str(), "it is not everybody's");
}

/// The kernel reuses namespace inode numbers. Here the user's note names the number of a namespace
/// that another user created.
#[test]
fn a_namespace_of_somebody_else_is_not_taken_for_the_users() {
    if !namespaces_are_allowed() {
        return;
    }
    // A user id without a fabric, in a user namespace in which mounting is not allowed.
    const USER: &str = "64321";
    let enter = format!(
        "readlink /proc/self/ns/user | tr -d '\\n' > /dev/shm/verbatim-{USER}.userns
         exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \"$0\" \"$@\""
    );
    let user = format!("--map-user={USER}");
    let before = ["unshare", "--user", &user, "sh", "-c", &enter];
    let file = "/sys/class/infiniband_verbs/uverbs0/ibdev";
    let out = command(&before, &["--", "cat", file]).output();
    for left in std::fs::read_dir("/dev/shm").expect("a folder").flatten() {
        if left
            .file_name()
            .to_string_lossy()
            .starts_with(&format!("verbatim-{USER}"))
        {
            let path = left.path();
            let removed = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
            removed.expect("it is ours");
        }
    }
    let out = out.expect("it starts");
    assert_eq!(stdout(&out), "softnic0\n", "{out:?}");
}

/// A user without write access beside the program, and without a home, still gets the libraries,
/// and no links in the current folder.
#[test]
fn a_user_without_a_home_needs_none() {
    common::build_libraries();
    let program = Path::new(env!("CARGO_BIN_EXE_verbatim"));
    let built = program.parent().expect("the build's folder");
    let place = tempfile::tempdir_in(built).expect("a folder");
    let link = |name: &str| std::fs::hard_link(built.join(name), place.path().join(name));
    link("verbatim").expect("a program");
    for library in [
        "libverbatim_dropin.so",
        "libverbatim_dropin_rdmacm.so",
        "libverbatim_dropin_umad.so",
    ] {
        link(library).expect("a library");
    }
    // A file in the way prevents the creation of the folder.
    std::fs::write(place.path().join("dropin"), "in the way").expect("written");
    let here = tempfile::tempdir().expect("a folder");
    for cache in ["", "relative"] {
        let out = Command::new(place.path().join("verbatim"))
            .args(["run", "--no-view", "--fabric", "tests_8", "ibv_devices"])
            .current_dir(here.path())
            .env("XDG_CACHE_HOME", cache)
            .env("HOME", "/dev/null/nobody")
            .output()
            .expect("it starts");
        assert!(stdout(&out).contains("softnic0"), "{out:?}");
        let left = std::fs::read_dir(here.path()).expect("a folder").count();
        assert_eq!(left, 0, "with {cache:?}");
    }
}

/// Runs `verbatim run` without the right to create namespaces: in a user namespace without a user
/// mapping.
fn without_namespaces(args: &[&str]) -> Output {
    let out = command(&["unshare", "--user"], args).output();
    // In that namespace the process has user id 65534.
    let left = std::fs::read_dir("/dev/shm").expect("a folder").flatten();
    let is_its = |name: OsString| name.to_string_lossy().starts_with("verbatim-65534");
    for left in left.filter(|left| is_its(left.file_name())) {
        if left.metadata().is_ok_and(|left| left.uid() != 65534) {
            let path = left.path();
            let removed = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
            removed.expect("it is ours");
        }
    }
    out.expect("it starts")
}

#[test]
fn where_namespaces_are_forbidden_a_library_shows_the_files() {
    let script = "set -e; cd /sys/class; cat /sys/class/infiniband/softnic0/ports/1/link_layer \
         /sys/class/infiniband_verbs/uverbs0/ibdev; test -c /dev/infiniband/uverbs0; ls /sys/class/infiniband; \
         test -r /dev/infiniband/uverbs0; ! cat /sys/class/infiniband/no 2> /dev/null; \
         ! ls /sys/class/infiniband_mad 2> /dev/null; ls /sys/class/net/lo/ifindex; ucx_info -d";
    let out = without_namespaces(&[
        "--fabric",
        "tests_4",
        "--link-layer",
        "ib",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert!(out.status.success(), "{out:?}");
    let text = stdout(&out);
    let files = "InfiniBand\nsoftnic0\nsoftnic0\n/sys/class/net/lo/ifindex\n";
    assert!(text.starts_with(files), "{text}");
    for transport in ["rc_verbs", "ud_verbs"] {
        assert!(text.contains(&format!("Transport: {transport}")), "{text}");
    }
    if namespaces_are_allowed() {
        let said = stderr(&out);
        assert!(said.contains("no private view of /sys and /dev"), "{said}");
        assert!(said.contains("--no-view"), "{said}");
    }
}

#[test]
fn the_device_is_what_its_profile_says() {
    for (nic, shown) in [
        ("cx", &["mlx4_0", "25418", "MT_04A0110002", "2.7.000"][..]),
        ("cx3", &["mlx4_0", "4099", "MT_1100120019", "2.42.5000"]),
        ("cib", &["mlx5_0", "4113", "InfiniBand"]),
        ("bf2", &["mlx5_0", "41686", "Ethernet"]),
    ] {
        let out = run(&["--nic", nic, "--fabric", "tests_7", "ibv_devinfo", "-v"]);
        let text = stdout(&out);
        assert!(out.status.success(), "{}", stderr(&out));
        for shown in shown.iter().chain(&["0x02c9"]) {
            // Only sysfs contains the board id.
            let seen =
                text.contains(shown) || shown.starts_with("MT_") && !namespaces_are_allowed();
            assert!(seen, "{nic}: no {shown} in {text}");
        }
        assert!(!text.contains("softnic0"), "{text}");
    }
}

#[test]
fn a_port_is_what_was_asked_for_whatever_its_nic_has() {
    let args = [
        "--nic",
        "cib",
        "--link-layer",
        "roce",
        "--fabric",
        "tests_7",
    ];
    let out = run(&[&args[..], &["ibv_devinfo"]].concat());
    assert!(stdout(&out).contains("Ethernet"), "{out:?}");
    let out = command(&[], &["--nic", "cib", "--fabric", "tests_7", "ibv_devinfo"])
        .env("VERBATIM_LINK_LAYER", "roce")
        .output()
        .expect("it starts");
    assert!(stdout(&out).contains("Ethernet"), "{out:?}");
}

#[test]
fn what_is_no_profile_is_refused() {
    let cargo_toml = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (wrong, why) in [
        ("cy", "choose among cx, cx3, cib, bf2, connectx4lx"),
        (cargo_toml, "is no profile of a NIC"),
    ] {
        let out = run(&["--nic", wrong, "--", "true"]);
        assert_eq!(out.status.code(), Some(2));
        assert!(stderr(&out).contains(why), "{}", stderr(&out));
    }
}

#[test]
fn a_device_that_cannot_be_is_named() {
    for (variable, value, why) in [
        ("VERBATIM_DEVICE", "../etc:1:2:3:4", "a device's name"),
        ("VERBATIM_CAPABILITIES", "features=srd", "srq, mw, atomics"),
    ] {
        let out = command(&[], &["--", "ibv_devinfo"])
            .env(variable, value)
            .output()
            .expect("it starts");
        assert!(!out.status.success());
        let said = stderr(&out);
        assert!(said.contains(variable) && said.contains(why), "{said}");
    }
}

#[test]
fn fabrics_of_different_names_are_separated() {
    let rping = |fabric: &str, args: &[&str]| {
        let fabric = [
            "--fabric",
            fabric,
            "--",
            "rping",
            "-a",
            "127.0.0.1",
            "-p",
            "7471",
        ];
        let mut command = command(&[], &[&fabric, args].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let server = rping("tests_5", &["-s", "-C", "3"]).spawn();
    let server = server.expect("it starts");
    let client = |fabric: &str| {
        rping(fabric, &["-c", "-C", "3", "-v"])
            .output()
            .expect("it starts")
    };
    // Until the server listens, a client in its own fabric is refused, too.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut reached = client("tests_5");
    while !stdout(&reached).contains("ping data: ") && Instant::now() < deadline {
        assert!(!stdout(&client("tests_6")).contains("ping data: "));
        reached = client("tests_5");
    }
    assert!(
        stdout(&reached).contains("ping data: "),
        "{}",
        stderr(&reached)
    );
    let served = server.wait_with_output().expect("it ends");
    assert!(served.status.success(), "{}", stderr(&served));
}

#[test]
fn what_cannot_be_run_says_so() {
    let out = run(&["--", "/nonexistent/program"]);
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{message}");
    assert!(
        message.contains("cannot run /nonexistent/program"),
        "{message}"
    );
    let out = run(&["--fabric", "a/b", "--", "true"]);
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{message}");
    assert!(message.contains("letters, digits"), "{message}");
}

#[test]
fn on_the_machines_own_nic_a_program_finds_what_it_finds_without_us() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("l.json");
    let file = file.to_str().expect("text");
    let system = ["--provider", "system"];
    let show = "echo \"$LD_LIBRARY_PATH $LD_PRELOAD\"";
    let out = run(&[&system[..], &["--", "sh", "-c", show]].concat());
    assert_eq!(stdout(&out), "/nonexistent/before \n");
    // The library is preloaded only if something is counted, and then into every program, with or
    // without verbs.
    let out = run(&[&system[..], &["--ledger", file, "--", "sh", "-c", show]].concat());
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(stdout(&out).ends_with("/libverbatim_tap.so\n"), "{out:?}");
    assert!(stderr(&out).contains("no process of it opened an RDMA device"));
    let plain = Command::new("ibv_devices").output().expect("it starts");
    let watched = run(&[&system[..], &["--ledger", file, "--", "ibv_devices"]].concat());
    assert_eq!(plain.status.code(), watched.status.code());
    assert_eq!(plain.stdout, watched.stdout);
    for softnic_only in [
        &["--nic", "cib"][..],
        &["--link-layer", "ib"],
        &["--no-view"],
    ] {
        let out = run(&[&system, softnic_only, &["--", "true"]].concat());
        assert_eq!(out.status.code(), Some(2), "{softnic_only:?}");
        assert!(stderr(&out).contains("software NIC"), "{}", stderr(&out));
    }
}
