//! Compares the layout of every type and the value of every constant with the installed C headers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use verbs_abi::layout;

/// The hint for a failure of the C compiler: the likely reason, and the remedy.
const NEEDED: &str = "this test needs a C compiler (cc), <infiniband/verbs.h> and <rdma/rdma_cma.h> of rdma-core 44 \
                      or later: install the packages libibverbs-dev and librdmacm-dev";

/// The C headers with which the test compares.
const HEADERS: &str = "#include <infiniband/verbs.h>\n#include <infiniband/ib.h>\n\
                       #include <rdma/rdma_cma.h>\n#include <rdma/rsocket.h>\n";

/// Structures to which later releases have added members. `verbs_context` grows at its front, and the others at their
/// ends. Programs and libraries pass the size, or test a flag, before they use such a member.
const GROWN_STRUCTURES: [&str; 3] = ["ibv_port_attr", "ibv_qp_ex", "verbs_context"];

/// Names that rdma-core 45 to 65 have added to the headers. Those which the software NIC knows are in the modules
/// `later` and `newest`.
const LATER_NAMES: &str = "IBV_ACCESS_FLUSH_GLOBAL IBV_ACCESS_FLUSH_PERSISTENT IBV_COMP_CNTR_TYPE_BYTES \
    IBV_COMP_CNTR_TYPE_WRS IBV_DMAH_INIT_ATTR_MASK_CPU_ID IBV_DMAH_INIT_ATTR_MASK_PH \
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE IBV_EVENT_DEVICE_SPEED_CHANGE IBV_FLUSH_GLOBAL IBV_FLUSH_MR \
    IBV_FLUSH_PERSISTENT IBV_FLUSH_RANGE IBV_ODP_SUPPORT_ATOMIC_WRITE IBV_ODP_SUPPORT_FLUSH \
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC IBV_PORT_LINK_SPEED_XDR_SUP \
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE IBV_QP_ATTACH_COMP_CNTR_OP_RECV \
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE \
    IBV_QP_ATTACH_COMP_CNTR_OP_SEND IBV_QP_EX_WITH_FLUSH IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES \
    IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS \
    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG IBV_REG_MR_MASK_ADDR IBV_REG_MR_MASK_BUF IBV_REG_MR_MASK_DMAH \
    IBV_REG_MR_MASK_FD IBV_REG_MR_MASK_FD_OFFSET IBV_REG_MR_MASK_IOVA IBV_TPH_MEM_TYPE_PM IBV_TPH_MEM_TYPE_VM \
    IBV_WC_FLUSH IBV_WR_FLUSH RDMA_CM_EVENT_ADDRINFO_ERROR RDMA_CM_EVENT_ADDRINFO_RESOLVED RDMA_CM_EVENT_INTERNAL \
    RDMA_CM_EVENT_USER ibv_comp_cntr ibv_comp_cntr_caps ibv_comp_cntr_init_attr ibv_dmah ibv_dmah_init_attr \
    ibv_fd_arr ibv_mr_init_attr ibv_qp_attach_comp_cntr_attr";

/// A directory of this test process, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("verbs-abi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("create a directory for the C program");
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}; {NEEDED}"));
    assert!(
        output.status.success(),
        "{command:?} failed; {NEEDED}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The output of the C program: a value for each compared item.
type Facts = BTreeMap<String, i128>;

/// Returns Rust's layout, and the C program that prints the layout of the headers.
fn claims() -> (Facts, String) {
    let mut rust = Facts::new();
    let mut c = String::from(HEADERS);
    c.push_str(
        "#include <stddef.h>\n#include <stdio.h>\n\
         #define FACT(name, value) printf(\"%s %lld\\n\", name, (long long)(value))\n\
         int main(void)\n{\n",
    );
    let mut claim = |name: String, value: i128, c_value: String| {
        writeln!(c, "\tFACT(\"{name}\", {c_value});").unwrap();
        assert_eq!(
            rust.insert(name.clone(), value),
            None,
            "{name} is declared twice"
        );
    };
    let number = |n: usize| i128::try_from(n).unwrap();
    for ty in layout::types() {
        let c_type = ty.c_type;
        // Members of an anonymous union are members of the surrounding struct, so their offsets
        // count from the start of the struct. The size of the union has no name in C, but a wrong
        // size would shift the fields behind the union.
        let base = match ty.anonymous {
            Some(first) => format!("offsetof({c_type}, {first})"),
            None => {
                claim(
                    format!("sizeof({})", ty.name),
                    number(ty.size),
                    format!("sizeof({c_type})"),
                );
                claim(
                    format!("alignof({})", ty.name),
                    number(ty.align),
                    format!("_Alignof({c_type})"),
                );
                "0".to_owned()
            }
        };
        for field in ty.fields {
            let member = field.c_name.strip_prefix("r#").unwrap_or(field.c_name);
            claim(
                format!("offsetof({},{member})", ty.name),
                number(field.offset),
                format!("offsetof({c_type}, {member}) - {base}"),
            );
            if !field.anonymous {
                claim(
                    format!("sizeof({}.{member})", ty.name),
                    number(field.size),
                    format!("sizeof((({c_type} *)0)->{member})"),
                );
            }
        }
    }
    for constant in layout::consts() {
        claim(
            constant.name.to_owned(),
            constant.value,
            constant.name.to_owned(),
        );
    }
    c.push_str("\treturn 0;\n}\n");
    (rust, c)
}

/// Returns true if a fact differs only because the headers are those of a later release.
fn is_growth(name: &str, rust: &Facts, c: &Facts) -> bool {
    let added_bytes = |structure: &str| {
        let size = format!("sizeof({structure})");
        let added = c.get(&size)? - rust.get(&size)?;
        (added > 0).then_some(added)
    };
    let grown = GROWN_STRUCTURES
        .into_iter()
        .find(|structure| name == format!("sizeof({structure})"));
    if let Some(structure) = grown {
        return added_bytes(structure).is_some();
    }
    name.starts_with("offsetof(verbs_context,")
        && added_bytes("verbs_context")
            .zip(rust.get(name).zip(c.get(name)))
            .is_some_and(|(added, (rust, c))| c - rust == added)
}

#[test]
fn layout_and_constants_are_those_of_the_headers() {
    let (rust, program) = claims();
    let scratch = Scratch::new("layout");
    let source = scratch.0.join("layout.c");
    let binary = scratch.0.join("layout");
    std::fs::write(&source, program).unwrap();
    run(Command::new("cc")
        .args(["-std=gnu11", "-w", "-o"])
        .arg(&binary)
        .arg(&source));
    let output = run(&mut Command::new(&binary));

    let c: Facts = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect();
    let wrong: Vec<String> = rust
        .iter()
        .filter(|&(name, value)| c.get(name) != Some(value) && !is_growth(name, &rust, &c))
        .map(|(name, value)| format!("{name}: Rust {value}, C {:?}", c.get(name)))
        .collect();
    assert!(
        wrong.is_empty(),
        "the ABI differs from the headers:\n{}",
        wrong.join("\n")
    );
    assert_eq!(rust.len(), c.len());

    let (types, consts) = (layout::types().count(), layout::consts().count());
    println!(
        "{types} types, {consts} constants, {} facts compared",
        rust.len()
    );
    assert!(
        types > 100 && consts > 300,
        "only {types} types and {consts} constants were compared"
    );
}

#[test]
fn nothing_of_the_header_is_missing() {
    let scratch = Scratch::new("complete");
    let source = scratch.0.join("header.c");
    std::fs::write(&source, HEADERS).unwrap();
    let output = run(Command::new("cc")
        .args(["-std=gnu11", "-E", "-P"])
        .arg(&source));
    let header = String::from_utf8(output.stdout).unwrap();

    let ours: BTreeSet<&str> = layout::types()
        .map(|ty| ty.name)
        .chain(layout::consts().map(|constant| constant.name))
        .collect();
    let words: Vec<&str> = header
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '{'))
        .filter(|word| !word.is_empty())
        .collect();
    let mut wanted = BTreeSet::new();
    for window in words.windows(3) {
        if let ["struct" | "union", name, body] = window
            && ["ibv_", "verbs_", "rdma_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            && body.starts_with('{')
        {
            wanted.insert(*name);
        }
    }
    wanted.extend(
        words
            .iter()
            .filter(|word| word.starts_with("IBV_") || word.starts_with("RDMA_"))
            // Skip the numbers of kernel drivers, which belong to a header that user-space headers
            // only include.
            .filter(|word| !word.starts_with("RDMA_DRIVER_")),
    );
    assert!(
        wanted.len() > 400,
        "only {} names were found in the header",
        wanted.len()
    );
    let later: BTreeSet<&str> = LATER_NAMES.split_whitespace().collect();
    let missing: Vec<_> = wanted
        .difference(&ours)
        .filter(|name| !later.contains(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "in the header, not in this crate: {missing:?}"
    );
}

/// The numbers on which the drop-in relies, because programs and other libraries contain them as
/// compiled constants.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_numbers_that_programs_have_compiled_in() {
    use std::mem::offset_of;
    use verbs_abi::*;

    let sizes = [
        ("verbs_context", size_of::<verbs_context>(), 648),
        ("ibv_context", size_of::<ibv_context>(), 328),
        ("ibv_device", size_of::<ibv_device>(), 664),
        ("ibv_qp", size_of::<ibv_qp>(), 160),
        ("ibv_qp_ex", size_of::<ibv_qp_ex>(), 352),
        ("ibv_cq", size_of::<ibv_cq>(), 128),
        ("ibv_cq_ex", size_of::<ibv_cq_ex>(), 288),
        ("ibv_wc", size_of::<ibv_wc>(), 48),
        ("ibv_send_wr", size_of::<ibv_send_wr>(), 128),
        ("ibv_recv_wr", size_of::<ibv_recv_wr>(), 32),
        ("ibv_mr", size_of::<ibv_mr>(), 48),
        ("ibv_qp_attr", size_of::<ibv_qp_attr>(), 144),
        ("ibv_qp_init_attr", size_of::<ibv_qp_init_attr>(), 64),
        ("ibv_qp_init_attr_ex", size_of::<ibv_qp_init_attr_ex>(), 136),
        ("ibv_device_attr", size_of::<ibv_device_attr>(), 232),
        ("ibv_device_attr_ex", size_of::<ibv_device_attr_ex>(), 400),
        ("ibv_port_attr", size_of::<ibv_port_attr>(), 52),
    ];
    for (name, ours, documented) in sizes {
        assert_eq!(ours, documented, "size of {name}");
    }
    let ops = offset_of!(ibv_context, ops);
    let offsets = [
        (
            "verbs_context.query_port",
            offset_of!(verbs_context, query_port),
            0,
        ),
        (
            "verbs_context.create_cq_ex",
            offset_of!(verbs_context, create_cq_ex),
            200,
        ),
        ("verbs_context.priv", offset_of!(verbs_context, r#priv), 208),
        (
            "verbs_context.query_device_ex",
            offset_of!(verbs_context, query_device_ex),
            216,
        ),
        (
            "verbs_context.create_qp_ex",
            offset_of!(verbs_context, create_qp_ex),
            264,
        ),
        ("verbs_context.sz", offset_of!(verbs_context, sz), 312),
        (
            "verbs_context.context",
            offset_of!(verbs_context, context),
            320,
        ),
        ("ibv_context.device", offset_of!(ibv_context, device), 0),
        ("ibv_context.ops", ops, 8),
        ("ibv_context.cmd_fd", offset_of!(ibv_context, cmd_fd), 264),
        (
            "ibv_context.async_fd",
            offset_of!(ibv_context, async_fd),
            268,
        ),
        (
            "ibv_context.num_comp_vectors",
            offset_of!(ibv_context, num_comp_vectors),
            272,
        ),
        ("ibv_context.mutex", offset_of!(ibv_context, mutex), 280),
        (
            "ibv_context.abi_compat",
            offset_of!(ibv_context, abi_compat),
            320,
        ),
        ("ops.poll_cq", offset_of!(ibv_context_ops, poll_cq), 88),
        (
            "ops.req_notify_cq",
            offset_of!(ibv_context_ops, req_notify_cq),
            96,
        ),
        (
            "ops.post_srq_recv",
            offset_of!(ibv_context_ops, post_srq_recv),
            160,
        ),
        ("ops.post_send", offset_of!(ibv_context_ops, post_send), 200),
        ("ops.post_recv", offset_of!(ibv_context_ops, post_recv), 208),
        ("verbs_device.ops", offset_of!(verbs_device, ops), 664),
    ];
    for (name, ours, documented) in offsets {
        assert_eq!(ours, documented, "offset of {name}");
    }
}
