//! Tests of other projects' programs as Debian ships them, and of C programs built against the distribution's
//! headers.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Fabric, Watched};
use nicmodel::op_profile::CountedOperations;

/// Compiles a program of `tests/programs` into a folder.
fn compiled(name: &str, folder: &Path) -> PathBuf {
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    common::run(
        Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Werror", "-o"])
            .arg(&program)
            .arg(source)
            .args(["-libverbs", "-lpthread"]),
    );
    program
}

#[test]
fn misuse_gets_an_errno() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled("misuse", folder.path());
    for case in [
        "closed", "nulls", "order", "garbage", "overrun", "gone", "faults", "forked", "threads",
        "canceled", "full", "nobodys", "many",
    ] {
        let fabric = Fabric::new();
        let out = Watched::start(fabric.command(&program, "ib").arg(case)).finish();
        assert_eq!(out, "ok\n", "{case}");
    }
}

/// If a device cannot be opened, the library's message is on standard error, behind the program's output.
#[test]
fn what_the_system_is_short_of_is_an_errno() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled("limits", folder.path());
    for case in ["descriptors", "peers"] {
        let fabric = Fabric::new();
        let out = Watched::start(fabric.command(&program, "ib").arg(case)).finish();
        assert!(out.starts_with("ok\n"), "{case}: {out}");
    }
}

#[test]
fn processes_share_domains_regions_and_device_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled("shared_pd", folder.path());
    for (case, link_layer) in [
        ("traffic", "ib"),
        ("traffic", "roce"),
        ("destruction", "ib"),
        ("death", "ib"),
        ("inheritance", "ib"),
    ] {
        let fabric = Fabric::new();
        let out = Watched::start(fabric.command(&program, link_layer).arg(case)).finish();
        assert_eq!(out, "ok\n", "{case}");
    }
}

/// Objects of a domain are used in another process than the process that made the domain. The objects are not
/// regions of plain memory.
#[test]
fn processes_share_windows_implicit_regions_and_xrc_receive_queues() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled("shared_kinds", folder.path());
    for case in ["windows", "implicit", "xrc", "original"] {
        for link_layer in ["ib", "roce"] {
            let fabric = Fabric::new();
            let out = Watched::start(fabric.command(&program, link_layer).arg(case)).finish();
            assert_eq!(out, "ok\n", "{case} {link_layer}");
        }
    }
}

/// The program requires the version `IBVERBS_1.18`, which only a library of rdma-core's newest release has.
#[test]
fn a_c_program_of_the_newest_release_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("newest");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/newest.c");
    common::run(
        Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Werror", "-o"])
            .arg(&program)
            .arg(source)
            .arg(common::library()),
    );
    let needs = common::run(Command::new("readelf").args(["-W", "-V"]).arg(&program));
    let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
    assert!(needs.contains("Name: IBVERBS_1.18"), "{needs}");
    for link_layer in ["roce", "ib"] {
        for path in ["auto", "packets"] {
            if (link_layer, path) == ("ib", "packets") {
                continue;
            }
            let fabric = Fabric::new();
            let mut command = fabric.command(&program, link_layer);
            // Another program of this user may have the port at the host's addresses.
            command.env("VERBATIM_ADDRESS", "127.24.7.1");
            command.env("VERBATIM_PATH", path);
            let out = Watched::start(&mut command).finish();
            assert_eq!(out, "ok\n", "{link_layer} {path}");
        }
    }
}

/// A search path does not replace a libibverbs under another name, but preloading does. If the program
/// bypasses the drop-in nevertheless, the drop-in reports that.
#[test]
fn a_program_with_its_own_libibverbs_is_reached_by_preloading_or_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let own = folder.path().join("libibverbs-1de1263b.so.1.14.48.0");
    let nodes = folder.path().join("nodes");
    let node = "IBVERBS_1.1 { global: ibv_get_device_list; ibv_open_device; local: *; };";
    std::fs::write(&nodes, node).expect("it is writable");
    let cc = |command: &mut Command| {
        common::run(command.args(["-std=gnu11", "-Wall", "-Werror"]));
    };
    let name = own.file_name().expect("a name").to_string_lossy();
    let library = sources.join("wheels_library.c");
    cc(Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&own)
        .arg(library)
        .arg(format!(
            "-Wl,-soname,{name},--version-script={}",
            nodes.display()
        )));
    let program = folder.path().join("wheel");
    cc(Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(sources.join("wheel.c"))
        .arg(&own)
        .arg(format!("-Wl,-rpath,{}", folder.path().display())));

    let run = |preload: bool, how: &str| {
        let fabric = Fabric::new();
        let mut command = fabric.command(&program, "ib");
        command.arg(how).arg(&own);
        if preload {
            command
                .env("LD_PRELOAD", common::library())
                .env("VERBATIM_PRELOADED", "1");
        }
        let out = common::run(&mut command);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&out.stdout), text(&out.stderr))
    };
    assert_eq!(run(false, "linked"), ("0\n".to_owned(), String::new()));
    assert_eq!(run(true, "linked"), ("1\n".to_owned(), String::new()));
    let (devices, said) = run(true, "opened");
    assert_eq!(devices, "0\n");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("(wheel) has loaded"), "{said}");
    assert!(
        said.contains(&*name) && said.contains("opened no device"),
        "{said}"
    );
}

#[test]
fn a_c_program_built_against_the_headers_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled("loopback", folder.path());
    for link_layer in ["roce", "ib"] {
        let fabric = Fabric::new();
        let out = common::run(&mut fabric.command(&program, link_layer));
        assert_eq!(String::from_utf8_lossy(&out.stdout), "ok\n", "{link_layer}");
    }
}

/// A completion added to an armed queue causes an event, even if a poll in progress returns it.
#[test]
fn what_comes_during_a_poll_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled("extended_events", folder.path());
    let fabric = Fabric::new();
    let out = common::run(&mut fabric.command(&program, "ib"));
    assert_eq!(String::from_utf8_lossy(&out.stdout), "ok\n");
}

/// Atomic write and FLUSH, which only the extended post API has. The test checks their effects, their trace
/// lines, and their counts.
#[test]
fn memory_placement_is_executed_traced_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled("placement", folder.path());
    let counts = folder.path().join("counts");
    std::fs::create_dir(&counts).expect("it is writable");
    let trace = folder.path().join("trace");
    tap::trace::create_trace_file(&trace, "placement").expect("it is writable");
    let fabric = Fabric::new();
    let command = &mut fabric.command(&program, "ib");
    command
        .env(tap::TAP_DIR_ENV_VAR, &counts)
        .env(tap::trace::TRACE_FILE_ENV_VAR, &trace);
    assert_eq!(Watched::start(command).finish(), "ok\n");

    let ledger = tap::Ledger::collect(&counts, "placement").expect("the folder is there");
    let [profile] = &ledger.processes[..] else {
        panic!("one process: {ledger:?}");
    };
    assert_eq!(profile.notes, [""; 0]);
    let sent = profile.queue_pairs.iter().flat_map(|qp| &qp.sent);
    let sent: Vec<_> = sent
        .map(|CountedOperations { operation, count }| {
            let what = operation.verb.to_string();
            (what, operation.payload_bytes, operation.inline, *count)
        })
        .collect();
    let [write, flush] = ["WRITE", "FLUSH"].map(str::to_owned);
    assert_eq!(sent, [(write, 8, true, 1), (flush, 0, false, 3)]);

    let trace = std::fs::read_to_string(trace).expect("it is there");
    let line = |begin: &str, end: &str| {
        let found = trace.lines().any(|line| {
            let what = line.splitn(3, ' ').nth(2).unwrap_or_default();
            what.starts_with(begin) && what.ends_with(end)
        });
        assert!(found, "{begin} … {end}: {trace}");
    };
    assert!(
        trace.contains("REMOTE_WRITE|FLUSH_GLOBAL) = mr1"),
        "{trace}"
    );
    line(
        "wr_complete qp2 1/2 wr_id=1 ATOMIC_WRITE 8 B INLINE to 0x",
        "",
    );
    line(
        "wr_complete qp2 2/2 wr_id=2 FLUSH 0 B SIGNALED to 0x",
        " length 64 GLOBAL RANGE",
    );
    line(
        "wr_complete qp2 1/1 wr_id=3 FLUSH 0 B SIGNALED to 0x0 rkey 0x",
        " length 0 GLOBAL MR",
    );
    line("poll_cq cq1 1/1 wr_id=2 SUCCESS FLUSH QPN 0x", "");
}

#[test]
fn the_device_is_listed_and_described() {
    let fabric = Fabric::new();
    let listed = common::run(&mut fabric.command("ibv_devices", "roce"));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("softnic0"));
    for (link_layer, shown) in [("roce", "Ethernet"), ("ib", "InfiniBand")] {
        let info = common::run(fabric.command("ibv_devinfo", link_layer).arg("-v"));
        let info = String::from_utf8_lossy(&info.stdout);
        let line = info
            .lines()
            .find(|l| l.contains("link_layer"))
            .unwrap_or_default();
        assert!(line.ends_with(shown), "{info}");
        assert!(info.contains("PORT_ACTIVE"), "{info}");
    }
}

/// Runs a pingpong on both link layers: by GID on RoCE, by LID on InfiniBand.
fn pingpong(program: &str, args: &[&str]) {
    for (link_layer, address) in [("roce", &["-g", "0"][..]), ("ib", &[])] {
        let fabric = Fabric::new();
        let args = [args, address, &["-n", "200"]].concat();
        for text in fabric.pair(link_layer, program, &args) {
            assert!(text.contains("200 iters in"), "{program} {args:?}: {text}");
        }
    }
}

#[test]
fn rc_pingpong() {
    pingpong("ibv_rc_pingpong", &["-c"]);
    pingpong("ibv_rc_pingpong", &["-e", "-c"]);
    pingpong(
        "ibv_rc_pingpong",
        &["-s", "100000", "-m", "4096", "-r", "16", "-c"],
    );
}

#[test]
fn uc_pingpong() {
    pingpong("ibv_uc_pingpong", &["-c"]);
    pingpong("ibv_uc_pingpong", &["-e", "-s", "64", "-m", "256"]);
}

#[test]
fn ud_pingpong() {
    pingpong("ibv_ud_pingpong", &["-c"]);
    pingpong("ibv_ud_pingpong", &["-e", "-s", "1024"]);
}

#[test]
fn srq_pingpong() {
    pingpong("ibv_srq_pingpong", &["-c"]);
    pingpong("ibv_srq_pingpong", &["-e", "-q", "4"]);
}

#[test]
fn perftest() {
    for (program, args) in [
        ("ib_send_bw", &[][..]),
        ("ib_send_bw", &["-c", "UD"]),
        ("ib_send_lat", &["-c", "UC"]),
        ("ib_write_bw", &[]),
        ("ib_write_lat", &["-c", "UC"]),
        ("ib_read_bw", &[]),
        ("ib_read_lat", &[]),
        ("ib_atomic_bw", &["-A", "FETCH_AND_ADD"]),
        ("ib_atomic_lat", &["-A", "CMP_AND_SWAP"]),
    ] {
        let fabric = Fabric::new();
        // On the roce link layer, `-x 0` selects GID 0.
        let args = [args, &["-n", "200", "-x", "0", "-F"]].concat();
        let [client, _] = fabric.pair("roce", program, &args);
        assert!(client.contains("#bytes"), "{program} {args:?}: {client}");
    }
}
