//! Reports of a peer that no process of this fabric has: where the peer may be, and how to bring both together.

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::report_detail::write_to_stderr;
use shm::fabric::{OtherFabric, list_other_fabrics, pid_namespace};

/// Reports on standard error, once in this process, that the peer of queue pair `qpn` is not in `fabric`, and where it
/// may be.
pub(crate) fn report_peer_not_in_fabric(fabric: &Path, (qpn, peer_qpn): (u32, u32)) {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    if PRINTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let others = list_other_fabrics(fabric);
    let text = explain_unreachable_peer(
        (qpn, peer_qpn),
        &fabric.display().to_string(),
        (rustix::process::geteuid().as_raw(), pid_namespace()),
        &others,
    );
    write_to_stderr(&text);
}

/// Number of fabrics that the report names: those that changed last.
const SHOWN_FABRICS_MAX: usize = 5;

fn explain_unreachable_peer(
    (qpn, peer_qpn): (u32, u32),
    own: &str,
    here: (u32, u64),
    others: &[OtherFabric],
) -> String {
    let mut text = format!(
        "verbatim: queue pair {qpn:#x} does not reach its peer, queue pair {peer_qpn:#x}: its address is this host's, and \
         no process of fabric {own} has the queue pair\n"
    );
    if others.is_empty() {
        text += "  this /dev/shm has no other fabric: the peer has ended, is in a container with a /dev/shm of its own, or \
                 sent another number\n";
    } else {
        text += "  the peer has ended, or is in another fabric of this host:\n";
    }
    for other in others.iter().take(SHOWN_FABRICS_MAX) {
        let _ = write!(text, "    {}: ", other.path.display());
        text += &describe_fabric(other, here);
    }
    if let Some(more) = others
        .len()
        .checked_sub(SHOWN_FABRICS_MAX)
        .filter(|more| *more > 0)
    {
        let _ = writeln!(
            text,
            "    and {more} more, which no process has joined or left since"
        );
    }
    text += "  two processes reach each other in one fabric: the same user, --fabric (VERBATIM_FABRIC), PID namespace and \
             /dev/shm; containers share them by --ipc and --pid, and else each needs an address of its own\n";
    text
}

fn describe_fabric(other: &OtherFabric, (uid, namespace): (u32, u64)) -> String {
    let name = match &other.name {
        Some(name) => format!("fabric {name:?}"),
        None => "the default fabric".to_owned(),
    };
    let user = if other.uid == uid {
        "this user".to_owned()
    } else {
        format!("user {}", other.uid)
    };
    let elsewhere = if other.pid_namespace == namespace {
        ""
    } else {
        " in another PID namespace"
    };
    format!("{name} of {user}{elsewhere}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_explanation_names_both_sides_and_the_way_out() {
        let other = OtherFabric {
            path: "/dev/shm/verbatim-1000@b".into(),
            uid: 1000,
            pid_namespace: 7,
            name: Some("b".to_owned()),
        };
        let text = explain_unreachable_peer(
            (1, 0x42),
            "/dev/shm/verbatim-0",
            (0, 1),
            std::slice::from_ref(&other),
        );
        for part in [
            "queue pair 0x42",
            "fabric /dev/shm/verbatim-0 ",
            "fabric \"b\" of user 1000 in another PID namespace",
            "--fabric",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let many = vec![other.clone(); SHOWN_FABRICS_MAX + 2];
        let short = explain_unreachable_peer((1, 2), "x", (1, 1), &many);
        assert_eq!(short.matches("fabric \"b\"").count(), SHOWN_FABRICS_MAX);
        assert!(short.contains("and 2 more"), "{short}");
        let own = explain_unreachable_peer((1, 2), "x", (1000, 7), &[other]);
        assert!(own.contains("of this user\n"), "{own}");
        assert!(explain_unreachable_peer((1, 2), "x", (1, 1), &[]).contains("has no other fabric"));
    }
}
