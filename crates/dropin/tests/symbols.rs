//! Tests of the symbol names and versions that programs require, and of functions that need no device.

mod common;

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// The list of exported symbols from which the build script makes the library's symbols.
const FACTS: &str = include_str!("../symbols.txt");

/// An opened library, which is never closed.
struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Self {
        let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a string; the library's initialisers only set up its own state.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} does not load");
        Self(handle)
    }

    /// Returns the symbol `name` with the version `version`, or with its default version.
    fn find(&self, name: &str, version: Option<&str>) -> *mut c_void {
        let name = CString::new(name).expect("a name");
        let version = version.map(|v| CString::new(v).expect("a version"));
        // SAFETY: an open library, and strings.
        unsafe {
            match &version {
                Some(v) => libc::dlvsym(self.0, name.as_ptr(), v.as_ptr()),
                None => libc::dlsym(self.0, name.as_ptr()),
            }
        }
    }
}

/// Returns name and version node of all symbols; private symbols appear once for each private node.
fn symbols() -> Vec<(String, String)> {
    let words = |line: &'static str| line.split_whitespace().collect::<Vec<_>>();
    let lines = || FACTS.lines().filter(|l| !l.starts_with('#')).map(words);
    let private: Vec<&str> = lines()
        .filter_map(|w| (w.first() == Some(&"private")).then(|| w[1]))
        .collect();
    assert!(private.contains(&"34"), "Debian 12's rdma-core");
    let mut all = Vec::new();
    for line in lines() {
        match line[..] {
            [kind, name, node] if kind != "node" => {
                if node == "PRIVATE" {
                    all.extend(private.iter().map(|abi| {
                        let name = name.replace("{ABI}", abi);
                        (name, format!("IBVERBS_PRIVATE_{abi}"))
                    }));
                } else {
                    all.push((name.to_owned(), node.to_owned()));
                }
            }
            _ => {}
        }
    }
    all
}

#[test]
fn every_symbol_has_its_version_and_is_the_default() {
    let library = Library::open(&common::library());
    let all = symbols();
    assert!(all.len() > 500, "{} symbols", all.len());
    for (name, node) in &all {
        assert!(
            !library.find(name, Some(node)).is_null(),
            "{name}@{node} is missing"
        );
        assert!(
            !library.find(name, None).is_null(),
            "{name} has no default version"
        );
    }
    assert!(
        library
            .find("ibv_open_device", Some("IBVERBS_1.5"))
            .is_null(),
        "versions are told apart"
    );
}

/// Symbols that programs and provider libraries of rdma-core 57 to 65 require.
#[test]
fn the_newest_releases_find_what_they_ask_for() {
    let library = Library::open(&common::library());
    let counters = [
        "create", "destroy", "set", "set_err", "inc", "inc_err", "read", "read_err",
    ];
    let counter = |prefix: &str| counters.map(|verb| format!("{prefix}_{verb}_comp_cntr"));
    let mut wanted: Vec<(String, &str)> = Vec::new();
    let mut node = |node, names: &[&str]| {
        wanted.extend(names.iter().map(|name| ((*name).to_owned(), node)));
    };
    node(
        "IBVERBS_1.15",
        &["ibv_alloc_dmah", "ibv_dealloc_dmah", "ibv_reg_mr_ex"],
    );
    node(
        "IBVERBS_1.16",
        &["ibv_dm_export_dmabuf_fd", "ibv_query_port_speed"],
    );
    node(
        "IBVERBS_1.17",
        &["ibv_alloc_buf", "ibv_free_buf", "ibv_reg_buf_mr"],
    );
    node(
        "IBVERBS_1.18",
        &[
            "_ibv_query_comp_cntr_caps",
            "ibv_qp_attach_comp_cntr",
            "ibv_export_buf_dmabuf_fd",
        ],
    );
    node(
        "IBVERBS_PRIVATE_65",
        &[
            "ibv_cmd_alloc_dmah",
            "ibv_cmd_free_dmah",
            "ibv_cmd_create_cq_ex2",
            "ibv_cmd_export_dmabuf_fd",
            "ibv_cmd_query_port_speed",
            "ibv_cmd_reg_mr_ex",
            "ibv_cmd_qp_attach_comp_cntr",
            "ibv_cmd_query_comp_cntr_caps",
            "ibv_dmabuf_heap_alloc",
            "ibv_dmabuf_heap_cc_shared_init",
            "ibv_dmabuf_heap_destroy",
            "ibv_dmabuf_heap_free",
            "ibv_wr_opcode_str",
        ],
    );
    wanted.extend(counter("ibv").map(|name| (name, "IBVERBS_1.18")));
    wanted.extend(counter("ibv_cmd").map(|name| (name, "IBVERBS_PRIVATE_65")));
    for (name, node) in &wanted {
        assert!(
            !library.find(name, Some(node)).is_null(),
            "{name}@{node} is missing"
        );
    }
    for abi in 45..=65 {
        let (name, node) = (
            format!("verbs_register_driver_{abi}"),
            format!("IBVERBS_PRIVATE_{abi}"),
        );
        assert!(
            !library.find(&name, Some(&node)).is_null(),
            "{name}@{node} is missing"
        );
    }
    let cm = Library::open(&common::library_folder().join("librdmacm.so.1"));
    for (name, node) in [
        ("rdma_query_addrinfo", "RDMACM_1.4"),
        ("rdma_resolve_addrinfo", "RDMACM_1.4"),
        ("rdma_write_cm_event", "RDMACM_1.4"),
        ("repoll_create", "RDMACM_1.5"),
        ("repoll_ctl", "RDMACM_1.5"),
        ("repoll_wait", "RDMACM_1.5"),
    ] {
        assert!(
            !cm.find(name, Some(node)).is_null(),
            "{name}@{node} is missing"
        );
    }
}

#[test]
fn nothing_else_is_exported_and_the_name_is_right() {
    let dynamic = common::run(
        Command::new("readelf")
            .args(["-W", "-d"])
            .arg(common::library()),
    );
    let dynamic = String::from_utf8_lossy(&dynamic.stdout);
    assert!(
        dynamic.contains("Library soname: [libibverbs.so.1]"),
        "{dynamic}"
    );
    assert!(dynamic.contains("NODELETE"), "{dynamic}");

    let table = common::run(
        Command::new("readelf")
            .args(["-W", "--dyn-syms"])
            .arg(common::library()),
    );
    let table = String::from_utf8_lossy(&table.stdout).replace("@@", "@");
    let mut exported: Vec<&str> = table
        .lines()
        .filter(|l| l.contains(" GLOBAL ") && !l.contains(" UND "))
        .filter_map(|l| l.split_whitespace().nth(7))
        // Version nodes are symbols without '@'.
        .filter(|name| name.contains('@'))
        .collect();
    exported.sort_unstable();
    let mut wanted: Vec<String> = symbols()
        .iter()
        .map(|(name, node)| format!("{name}@{node}"))
        .collect();
    wanted.sort_unstable();
    assert_eq!(exported, wanted);
}

/// Opens the machine's own libibverbs.
fn the_systems() -> Library {
    let path = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
    ]
    .iter()
    .map(|folder| Path::new(folder).join("libibverbs.so.1"))
    .find(|path| path.exists())
    .expect("libibverbs1 is installed; cargo xtask test does so");
    Library::open(&path)
}

/// The rate functions return the same values as in the machine's own libibverbs.
#[test]
fn rates_are_those_of_the_systems_library() {
    let ours = Library::open(&common::library());
    let theirs = the_systems();
    type Convert = unsafe extern "C" fn(c_int) -> c_int;
    for (name, inputs) in [
        ("ibv_rate_to_mult", -2..300),
        ("ibv_rate_to_mbps", -2..300),
        ("mult_to_ibv_rate", -2..1000),
        ("mbps_to_ibv_rate", -2..1_300_000),
    ] {
        let (ours, theirs) = (ours.find(name, None), theirs.find(name, None));
        // SAFETY: both are functions from an enum or `int` to an enum or `int` (verbs.h).
        let (ours, theirs) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Convert>(ours),
                std::mem::transmute::<*mut c_void, Convert>(theirs),
            )
        };
        for i in inputs {
            // SAFETY: pure functions.
            let (a, b) = unsafe { (ours(i), theirs(i)) };
            assert_eq!(a, b, "{name}({i})");
        }
    }
}

#[test]
fn a_file_of_sysfs_is_read_without_its_newline() {
    type Read = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> c_int;
    let libraries = [Library::open(&common::library()), the_systems()];
    let [read, theirs] = libraries.each_ref().map(|library| {
        let read = library.find("ibv_read_sysfs_file", Some("IBVERBS_1.0"));
        // SAFETY: the type is that of the function in rdma-core's driver.h.
        unsafe { std::mem::transmute::<*mut c_void, Read>(read) }
    });
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("fw_ver"), "1.0\n").expect("written");
    let dir = CString::new(folder.path().as_os_str().as_bytes()).expect("a path");
    let ask_of = |read: Read, file: &std::ffi::CStr, size: usize| {
        let mut buf = [0x55u8; 8];
        // SAFETY: strings, and a buffer of at least `size` bytes.
        let n = unsafe { read(dir.as_ptr(), file.as_ptr(), buf.as_mut_ptr().cast(), size) };
        (n, buf)
    };
    let ask = |file, size| ask_of(read, file, size);
    assert_eq!(ask(c"fw_ver", 8), (3, *b"1.0\0UUUU"));
    assert_eq!(ask(c"board_id", 8), (-1, [0x55; 8]));
    // A text that does not fit into the buffer with its terminating zero is an error.
    assert_eq!(ask(c"fw_ver", 4), (3, *b"1.0\0UUUU"));
    assert_eq!(ask(c"fw_ver", 2), (-1, [0x55; 8]));
    for text in ["1.0\n", "1.0", "\n", "\n\n", ""] {
        std::fs::write(folder.path().join("fw_ver"), text).expect("written");
        for size in 0..=8 {
            let (ours, theirs) = (ask(c"fw_ver", size), ask_of(theirs, c"fw_ver", size));
            assert_eq!(ours.0, theirs.0, "{text:?} into {size} bytes");
            if ours.0 > 0 {
                assert_eq!(ours.1, theirs.1, "{text:?} into {size} bytes");
            }
        }
    }
}
