//! `verbatim run --summary`, and the programs into which the software NIC's libibverbs is preloaded
//! by `LD_PRELOAD`.

use std::process::Stdio;

use crate::common;

/// Returns what `verbatim run` with these arguments wrote to standard output and standard error.
#[track_caller]
fn run(args: &[&str]) -> (String, String) {
    common::build_libraries();
    let run = ["run", "--no-view", "--link-layer", "ib"];
    let out = common::verbatim(&[&run[..], args].concat())
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err, status) = (text(&out.stdout), text(&out.stderr), out.status);
    assert!(status.success(), "{args:?}: {out}{err}");
    (out, err)
}

#[test]
fn a_program_that_uses_rdma_is_told_from_one_that_does_not() {
    let port = common::free_port();
    let script = format!(
        "ibv_rc_pingpong -p {port} -n 500 & sleep 0.3; \
         until ibv_rc_pingpong -p {port} -n 500 127.0.0.1; do sleep 0.1; done; wait"
    );
    let (_, said) = run(&[
        "--summary",
        "--fabric",
        "summary_1",
        "--",
        "sh",
        "-c",
        &script,
    ]);
    assert!(
        said.contains("RDMA: used by 2 processes on the software NIC: 1,000 work requests, 4.10 MB sent, none failed"),
        "{said}"
    );
    assert_eq!(
        said.matches("1 RC queue pair, 500 SEND (2.05 MB), 500 RECV")
            .count(),
        2,
        "{said}"
    );

    let (_, said) = run(&["--summary", "--", "true"]);
    assert_eq!(said, "RDMA: not used; no process opened an RDMA device\n");

    let (_, said) = run(&["--summary", "--", "ibv_devinfo"]);
    assert!(
        said.starts_with(
            "RDMA: not used; 1 process opened the software NIC and created no queue pair"
        ),
        "{said}"
    );
}

#[test]
fn python_and_its_scripts_get_the_library_before_their_own() {
    let look = "import ctypes; print(hasattr(ctypes.CDLL(None), 'ibv_get_device_list'))";
    let (out, said) = run(&["--", "python3", "-c", look]);
    assert_eq!((out.as_str(), said.as_str()), ("True\n", ""));

    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("job");
    std::fs::write(&script, format!("#!/usr/bin/env python3\n{look}\n")).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("executable");
    let (out, _) = run(&["--", script.to_str().expect("text")]);
    assert_eq!(out, "True\n");

    // A shell and its children find the library by the search path.
    let (out, _) = run(&["--", "sh", "-c", &format!("python3 -c \"{look}\"")]);
    assert_eq!(out, "False\n");
}
