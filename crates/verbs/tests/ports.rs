//! A process with two devices of two ports each, as systems with several rails have them.
//!
//! One test in a process of its own: the environment says how many there are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use verbs::{Access, CompletionQueue, Context, Provider, QueuePair, Rc, Ud, WcBuffer, poll_until};

/// An end of a connection: a port of an open device, with a CQ and a protection domain.
struct End {
    context: Context,
    port_num: u8,
    cq: CompletionQueue,
    pd: verbs::ProtectionDomain,
}

impl End {
    fn new(device: &str, port_num: u8) -> Self {
        let device = Provider::softnic().device(Some(device));
        let context = device
            .expect("the device")
            .open()
            .expect("the device opens");
        Self {
            port_num,
            cq: context.create_cq(64).expect("a CQ"),
            pd: context.alloc_pd().expect("a PD"),
            context,
        }
    }

    fn prepare(&self) -> verbs::PreparedQp<Rc> {
        let qp = self
            .pd
            .qp_builder::<Rc>(&self.cq, &self.cq)
            .port_num(self.port_num);
        // A retry or two is enough to learn that nobody is there.
        qp.timeout(8u8)
            .retry_cnt(1u8)
            .build()
            .expect("a queue pair")
    }

    /// The status of the next completion.
    fn next(&self) -> Result<u64, verbs::WcStatus> {
        // One at a time: a second completion waits for the next call.
        let mut buffer = WcBuffer::<1>::new();
        let done = poll_until(Duration::from_secs(20), || {
            let mut polled = self.cq.poll(&mut buffer).expect("the CQ is good");
            polled
                .next()
                .map(|wc| wc.map(|wc| wc.wr_id()).map_err(|e| e.status()))
        });
        done.expect("a completion in time")
    }
}

/// Sends a message from one end to the other.
fn send(from: (&End, &QueuePair<Rc>), to: (&End, &QueuePair<Rc>)) {
    let region = to.0.pd.alloc(64, Access::LOCAL_WRITE).expect("memory");
    let mut list = to.1.recv_list(1);
    list.recv(region.slice(0..64).expect("in range"), 7);
    to.1.post_recv(&mut list).expect("posted");
    let text = verbs::Inline(b"over a rail");
    from.1
        .post_one(|list| {
            list.send(text).signaled().wr_id(3);
        })
        .expect("posted");
    // Both may be in one CQ, in either order.
    let mut done = [to.0.next(), from.0.next()];
    done.sort_by_key(|id| id.unwrap_or(0));
    assert_eq!(done, [Ok(3), Ok(7)]);
}

#[test]
fn queue_pairs_of_all_ports_reach_each_other_and_devices_do_not_mix() {
    let folder = tempfile::Builder::new()
        .tempdir_in("/dev/shm")
        .expect("a folder");
    // SAFETY: no other thread of this program reads the environment: the NIC starts later.
    unsafe {
        std::env::set_var("VERBATIM_FABRIC_DIR", folder.path().join("fabric"));
        std::env::set_var("VERBATIM_DEVICE_COUNT", "2");
        std::env::set_var("VERBATIM_PORT_COUNT", "2");
    }
    let names: Vec<_> = Provider::softnic().devices().expect("devices");
    let names: Vec<_> = names
        .iter()
        .map(|d| (d.name().to_owned(), d.guid()))
        .collect();
    assert_eq!(names.len(), 2);
    assert_eq!(
        (names[0].0.as_str(), names[1].0.as_str()),
        ("softnic0", "softnic1")
    );
    assert_ne!(names[0].1, names[1].1);

    let ends = [
        ("softnic0", 1),
        ("softnic0", 2),
        ("softnic1", 1),
        ("softnic1", 2),
    ];
    let ends = ends.map(|(device, port_num)| End::new(device, port_num));
    let mut gids: Vec<_> = ends
        .iter()
        .map(|end| end.context.gid(end.port_num, 0).expect("a GID").to_string())
        .collect();
    assert_eq!(
        ends[0]
            .context
            .query_device()
            .expect("a device")
            .phys_port_cnt,
        2
    );
    assert!(ends[0].context.query_port(3).is_err());
    gids.sort();
    gids.dedup();
    assert_eq!(gids.len(), ends.len(), "{gids:?}");

    for a in &ends {
        for b in &ends {
            let (one, other) = (a.prepare(), b.prepare());
            let (to_one, to_other) = (one.endpoint(), other.endpoint());
            let one = one.connect(&to_other).expect("connected");
            let other = other.connect(&to_one).expect("connected");
            send((a, &one), (b, &other));
            send((b, &other), (a, &one));
        }
    }

    // The GID of one port and the number of a queue pair at another.
    let (a, b, c) = (ends[0].prepare(), ends[2].prepare(), ends[3].prepare());
    let mut wrong = b.endpoint();
    (wrong.gid, wrong.lid) = (c.endpoint().gid, c.endpoint().lid);
    let a = a.connect(&wrong).expect("a connection to nobody");
    a.post_one(|list| {
        list.send(verbs::Inline(b"lost")).signaled();
    })
    .expect("posted");
    assert_eq!(ends[0].next(), Err(verbs::WcStatus::RetryExcErr));

    // A CQ of another device than the protection domain.
    let mixed = ends[0]
        .pd
        .qp_builder::<Rc>(&ends[2].cq, &ends[0].cq)
        .build();
    let error = mixed.expect_err("refused").to_string();
    assert!(error.contains("different contexts"), "{error}");

    datagrams_count_at_the_port_of_their_destination(
        &ends[0],
        &ends[1],
        &folder.path().join("fabric"),
    );
}

/// Returns `port_rcv_packets` of the port at a place: 1 and 2 are the ports of the first device.
fn received_packets(fabric: &Path, place: u32) -> u64 {
    let folders = std::fs::read_dir(fabric.join("traffic")).expect("a folder");
    let of_place = |folder: &PathBuf| folder.to_string_lossy().ends_with(&format!("-{place}"));
    let folder = folders
        .map(|entry| entry.expect("an entry").path())
        .find(of_place);
    let text = std::fs::read_to_string(folder.expect("a port").join("port_rcv_packets"));
    text.expect("a file").trim().parse().expect("a number")
}

fn datagrams_count_at_the_port_of_their_destination(one: &End, two: &End, fabric: &Path) {
    let make = |end: &End| {
        let qp = end
            .pd
            .qp_builder::<Ud>(&end.cq, &end.cq)
            .port_num(end.port_num);
        qp.max_inline_data(64).build().expect("a queue pair")
    };
    let [sender, at_one, at_two] = [one, one, two].map(make);
    let to = [&at_one, &at_two].map(|qp| {
        let to = one.pd.ud_destination(one.port_num, &qp.endpoint());
        to.expect("a destination")
    });
    let received = || [1, 2].map(|place| received_packets(fabric, place));
    let before = received();
    // Alone, to one port and the other in turn, and then as a postlist.
    for to in [0, 1, 1, 0, 1].map(|at| &to[at]) {
        sender
            .post_one(|list| {
                list.send(verbs::Inline(b"datagram"), to).signaled();
            })
            .expect("posted");
        one.next().expect("sent");
    }
    let mut list = sender.postlist(4);
    for at in [1, 1, 1, 0] {
        list.send(verbs::Inline(b"datagram"), &to[at]);
    }
    sender.post_send(&mut list).expect("posted");
    drop(sender);
    let counted: Vec<_> = received()
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    assert_eq!(counted, [3, 6]);
}
