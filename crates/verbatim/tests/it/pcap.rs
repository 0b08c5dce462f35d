//! `--pcap FILE`: captures of real programs' packets, as tshark and the crate `roce` read them.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use roce::icrc::{self, IcrcFields, IpAddressPair};
use roce::packet::Packet;

use crate::common;

/// A host: an address unique on this machine, with its own fabric.
struct Host {
    folder: tempfile::TempDir,
    address: String,
}

impl Host {
    fn new() -> Self {
        static NEXT_HOST: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let host = NEXT_HOST.fetch_add(1, Ordering::Relaxed);
        Self {
            folder: tempfile::tempdir_in("/dev/shm").expect("a folder"),
            address: format!("127.{}.{low}.{host}", 20 + high % 200),
        }
    }

    fn fabric(&self) -> PathBuf {
        self.folder.path().join("fabric")
    }

    /// Returns a `verbatim` command on this host, without path settings in the environment.
    fn verbatim(&self, args: &[&str]) -> Command {
        let mut command = common::verbatim(args);
        command
            .env("VERBATIM_FABRIC_DIR", self.fabric())
            .env_remove("VERBATIM_FABRIC")
            .env_remove("VERBATIM_PATH");
        command
    }

    /// Returns a `verbatim run` command with these flags.
    fn run(&self, flags: &[&str], program: &[&str]) -> Command {
        common::build_libraries();
        let flags = [
            &["run", "--no-view", "--address", &self.address],
            flags,
            &["--"],
            program,
        ];
        let mut command = self.verbatim(&flags.concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns true if a process on this host listens for management datagrams.
    fn listens(&self) -> bool {
        let entries = std::fs::read_dir(self.fabric().join("rdma_cm"));
        entries.is_ok_and(|entries| {
            let mut names = entries.flatten().map(|entry| entry.file_name());
            names.any(|name| name.to_string_lossy().starts_with("mads-"))
        })
    }
}

/// A server that is killed when dropped.
struct Server(Option<Child>);

impl Server {
    fn start(mut command: Command, is_ready: impl Fn() -> bool) -> Self {
        let mut server = Self(Some(command.spawn().expect("it starts")));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_ready() {
            let child = server.0.as_mut().expect("it runs");
            let ended = child.try_wait().expect("a child").is_some();
            if ended || Instant::now() > deadline {
                let _ = child.kill();
                server.finish();
                panic!("the server does not listen");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    /// Waits for the end; the server must succeed.
    #[track_caller]
    fn finish(mut self) {
        let child = self.0.take().expect("it runs");
        check(&child.wait_with_output().expect("its output"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn check(out: &std::process::Output) {
    let text = [&out.stdout[..], &out.stderr].concat();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&text));
}

/// Runs a ping-pong of libibverbs with 4 messages of 4 packets in each direction; `hosts` and
/// `flags` are those of server and client.
fn pingpong(program: &str, hosts: [&Host; 2], flags: [&[&str]; 2]) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("there are ports").port().to_string();
    let words = [program, "-g", "1", "-n", "4", "-m", "1024", "-p", &port];
    let server = hosts[0].run(flags[0], &words);
    let server = Server::start(server, || tcp_listens(&port));
    let words = [&words[..], &["127.0.0.1"]].concat();
    let client = hosts[1].run(flags[1], &words).output();
    check(&client.expect("the client starts"));
    server.finish();
}

/// Returns true if a process listens on a TCP port. Reads /proc instead of connecting, since a
/// ping-pong accepts only one connection.
fn tcp_listens(port: &str) -> bool {
    let local = format!(":{:04X}", port.parse::<u16>().expect("a port"));
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let is_it = words.next().is_some_and(|word| word.ends_with(&local));
            // LISTEN (proc_net_tcp(5)).
            is_it && words.nth(1) == Some("0A")
        })
    })
}

/// A packet of a capture.
#[derive(Debug, PartialEq, Eq)]
struct Captured {
    src: IpAddr,
    opcode: u8,
    dest_qpn: u32,
    psn: u32,
    ttl: u8,
    icrc_is_right: bool,
}

/// Returns the packets of a capture, which must be complete and in the order of their times.
fn captured(file: &Path) -> Vec<Captured> {
    let bytes = std::fs::read(file).expect("the capture is there");
    let mut rest = &bytes[24..];
    let mut packets = Vec::new();
    let mut last = (0, 0);
    while let Some((header, more)) = rest.split_first_chunk::<16>() {
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("a word"));
        let time = (word(0), word(4));
        assert!(last <= time, "{last:?} {time:?}");
        last = time;
        let (frame, more) = more.split_at(word(8).try_into().expect("a length"));
        packets.push(packet_of(frame));
        rest = more;
    }
    assert!(rest.is_empty(), "{rest:?}");
    packets
}

fn packet_of(frame: &[u8]) -> Captured {
    let sliced = SlicedPacket::from_ethernet(frame).expect("a frame");
    let Some(NetSlice::Ipv4(ip)) = sliced.net else {
        panic!("not of IPv4: {frame:?}");
    };
    let Some(TransportSlice::Udp(udp)) = sliced.transport else {
        panic!("not UDP: {frame:?}");
    };
    let header = ip.header();
    let addresses = IpAddressPair::V4 {
        src: header.source_addr(),
        dst: header.destination_addr(),
    };
    let frame = IcrcFields {
        addresses,
        src_port: udp.source_port(),
        dst_port: udp.destination_port(),
        identification: header.identification(),
    };
    let (transport, field) = icrc::split_off_icrc(udp.payload()).expect("BTH and ICRC");
    let icrc_is_right = icrc::icrc(&frame, transport) == field;
    let bth = Packet::parse(transport).map(|packet| packet.bth);
    assert!(bth.is_ok() || !icrc_is_right, "{transport:?}");
    Captured {
        src: addresses.src(),
        opcode: transport[0],
        dest_qpn: bth.as_ref().map_or(0, |bth| bth.dest_qpn),
        psn: bth.map_or(0, |bth| bth.psn.get()),
        ttl: header.ttl(),
        icrc_is_right,
    }
}

/// Lets tshark decode each packet as InfiniBand, without errors; returns its names of the
/// management datagrams' messages. `None` without tshark.
fn tshark(file: &Path, packets: &[Captured]) -> Option<Vec<String>> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args([
        "-o",
        "udp.check_checksum:TRUE",
        "-o",
        "ip.check_checksum:TRUE",
        // tshark takes datagrams with empty payload for EoIB, and calls them truncated.
        "--disable-heuristic",
        "mellanox_eoib",
        "-T",
        "fields",
        "-E",
        "separator=;",
    ]);
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
        "infiniband.invariant.crc",
        "_ws.malformed",
        "_ws.expert.message",
        "infiniband.mad.attributeid",
    ];
    fields.iter().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let out = match tshark.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: tshark is not installed");
            return None;
        }
        out => out.expect("tshark starts"),
    };
    check(&out);
    let text = String::from_utf8(out.stdout).expect("text");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(';').collect()).collect();
    assert_eq!(lines.len(), packets.len());
    let mut messages = Vec::new();
    for (line, packet) in lines.iter().zip(packets) {
        let (opcode, psn) = (packet.opcode.to_string(), packet.psn.to_string());
        assert_eq!(line[..2], [opcode, psn], "{line:?}");
        assert_ne!(line[2], "", "{line:?}");
        // The ping-pongs use a hop limit of 1.
        let note = if packet.ttl == 1 { TTL_NOTE } else { "" };
        assert_eq!(line[3..5], ["", note], "{packet:?}");
        messages.extend((!line[5].is_empty()).then(|| line[5].to_owned()));
    }
    Some(messages)
}

/// tshark's note on packets that no router forwards.
const TTL_NOTE: &str = r#""Time To Live" only 1"#;

/// Opcodes of UC SENDs of four packets (IBTA vol. 1, 9.2.1), of RC SENDs, and of RC acknowledgements.
const UC_SEND: [u8; 4] = [0x20, 0x21, 0x21, 0x22];
const RC_SEND: [u8; 4] = [0, 1, 1, 2];
const RC_ACKNOWLEDGE: u8 = 17;

/// Asserts that `packets` are four UC messages in each direction, each packet once.
fn check_uc(packets: &[Captured]) {
    // Queue pairs of two hosts may have the same number.
    let direction = |packet: &Captured| (packet.src, packet.dest_qpn);
    let directions: BTreeSet<_> = packets.iter().map(direction).collect();
    assert_eq!(directions.len(), 2, "{packets:?}");
    for one in directions {
        let of = |packet: &&Captured| direction(packet) == one;
        let opcodes: Vec<u8> = packets.iter().filter(of).map(|p| p.opcode).collect();
        assert_eq!(opcodes, UC_SEND.repeat(4));
        let psns: Vec<u32> = packets.iter().filter(of).map(|p| p.psn).collect();
        let follow = |pair: &[u32]| pair[1] == (pair[0] + 1) & 0xff_ffff;
        assert!(psns.windows(2).all(follow), "{psns:?}");
    }
    assert!(packets.iter().all(|packet| packet.icrc_is_right));
    assert!(packets.iter().all(|packet| packet.ttl == 1));
}

#[test]
fn processes_of_one_host_write_each_packet_once() {
    let host = Host::new();
    let file = host.folder.path().join("one.pcap");
    let flags = ["--pcap", file.to_str().expect("text")];
    // UC sends no packet twice.
    pingpong("ibv_uc_pingpong", [&host, &host], [&flags, &flags]);
    let packets = captured(&file);
    check_uc(&packets);
    tshark(&file, &packets);

    // An explicit path keeps the messages in shared memory and the capture empty.
    let flags = [&flags[..], &["--path", "auto"]].concat();
    pingpong("ibv_uc_pingpong", [&host, &host], [&flags, &flags]);
    assert_eq!(captured(&file), packets);
}

#[test]
fn a_host_captures_what_another_one_sends() {
    let [server, client] = [Host::new(), Host::new()];
    let file = client.folder.path().join("one.pcap");
    let flags = ["--pcap", file.to_str().expect("text")];
    pingpong("ibv_uc_pingpong", [&server, &client], [&[], &flags]);
    let packets = captured(&file);
    check_uc(&packets);
    let sources: BTreeSet<String> = packets.iter().map(|p| p.src.to_string()).collect();
    let hosts = [server.address.clone(), client.address.clone()];
    assert_eq!(sources, BTreeSet::from(hosts));
    tshark(&file, &packets);
}

#[test]
fn acknowledgements_stand_behind_what_they_acknowledge() {
    let host = Host::new();
    let file = host.folder.path().join("rc.pcap");
    let flags = ["--pcap", file.to_str().expect("text")];
    pingpong("ibv_rc_pingpong", [&host, &host], [&flags, &flags]);
    let packets = captured(&file);
    tshark(&file, &packets);
    let is_ack = |packet: &&Captured| packet.opcode == RC_ACKNOWLEDGE;
    for (place, ack) in packets.iter().enumerate().filter(|(_, p)| is_ack(p)) {
        let before = packets[..place].iter().filter(|p| !is_ack(p));
        let mut asked = before.filter(|p| p.dest_qpn != ack.dest_qpn && p.psn == ack.psn);
        assert!(asked.next().is_some(), "{ack:?} in {packets:?}");
    }
    // On a busy machine a request may be repeated.
    let requests = packets.iter().filter(|packet| !is_ack(packet));
    let distinct: BTreeSet<_> = requests.map(|p| (p.dest_qpn, p.psn, p.opcode)).collect();
    assert_eq!(distinct.len(), 2 * 4 * RC_SEND.len());
    assert!(packets.iter().any(|packet| is_ack(&packet)));
}

#[test]
fn faults_are_captured_as_they_leave() {
    let host = Host::new();
    let file = host.folder.path().join("faults.pcap");
    let pcap = ["--pcap", file.to_str().expect("text")];
    // The client sends the first message.
    let plan = "drop,opcode=SEND,count=1; corrupt,opcode=SEND,count=1,after=2";
    let flags = [&pcap[..], &["--fault", plan, "--fault-seed", "3"]].concat();
    pingpong("ibv_rc_pingpong", [&host, &host], [&pcap, &flags]);
    let packets = captured(&file);
    assert_eq!(packets[0].opcode, RC_SEND[1], "{packets:?}");
    let damaged = packets.iter().filter(|packet| !packet.icrc_is_right);
    assert_eq!(damaged.count(), 1, "{packets:?}");
}

/// The client ends when its last acknowledgement is late. The server needs the acknowledgement.
#[test]
fn late_packets_leave_before_their_process_ends() {
    let [server, client] = [Host::new(), Host::new()];
    let late = ["--fault", "delay=20ms", "--fault-seed", "1"];
    pingpong("ibv_rc_pingpong", [&server, &client], [&[], &late]);
}

#[test]
fn connection_management_is_captured() {
    let host = Host::new();
    let file = host.folder.path().join("cm.pcap");
    let flags = ["--pcap", file.to_str().expect("text")];
    let server = host.run(&flags, &["rping", "-s", "-C", "3", "-V"]);
    let server = Server::start(server, || host.listens());
    let client = ["rping", "-c", "-C", "3", "-V", "-a", &host.address];
    check(&host.run(&flags, &client).output().expect("it starts"));
    server.finish();
    let packets = captured(&file);
    assert!(packets.iter().all(|packet| packet.icrc_is_right));
    // SEND, WRITE, READ request and response, acknowledgement, and datagrams of QP1.
    for opcode in [0x04, 0x0a, 0x0c, 0x10, RC_ACKNOWLEDGE, 0x64] {
        let is_it = |packet: &Captured| packet.opcode == opcode;
        assert!(packets.iter().any(is_it), "{opcode:#x}: {packets:?}");
    }
    let Some(mut messages) = tshark(&file, &packets) else {
        return;
    };
    messages.dedup();
    // REQ, REP, RTU, then DREQ and DREP.
    assert_eq!(messages[..4], ["0x0010", "0x0013", "0x0014", "0x0015"]);
}

#[test]
fn what_does_not_go_by_packets_shares_memory() {
    let host = Host::new();
    let file = host.folder.path().join("xrc.pcap");
    let flags = ["--pcap", file.to_str().expect("text")];
    pingpong_xrc(&host, &flags);
    assert_eq!(captured(&file), []);
}

/// Runs an XRC ping-pong of libibverbs with one client.
fn pingpong_xrc(host: &Host, flags: &[&str]) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("there are ports").port().to_string();
    let words = ["ibv_xsrq_pingpong", "-g", "1", "-n", "4", "-p", &port];
    let server = host.run(flags, &[&words[..], &["-c", "1"]].concat());
    let server = Server::start(server, || tcp_listens(&port));
    let client = host.run(flags, &[&words[..], &["127.0.0.1"]].concat());
    let mut client = client;
    check(&client.output().expect("the client starts"));
    server.finish();
}

#[test]
fn the_sequencer_is_captured() {
    let host = Host::new();
    let file = host.folder.path().join("sequencer.pcap");
    let flags = [
        "sequencer",
        "--rounds=1",
        "--duration=50ms",
        "--window=64",
        "--design=atomics",
        "--design=spec-s0",
        "--json",
        "--address",
        &host.address,
        "--pcap",
        file.to_str().expect("text"),
    ];
    let _alone = common::alone();
    let out = host.verbatim(&flags).output().expect("it starts");
    check(&out);
    let designs = common::json_lines(&out);
    let designs: Vec<_> = designs.iter().filter(|l| l["type"] == "design").collect();
    assert_eq!(designs.len(), 2);
    assert!(designs.iter().all(|line| line["data"]["verified"] == true));
    let packets = captured(&file);
    assert!(packets.iter().all(|packet| packet.icrc_is_right));
    // Fetch-and-add with its response, and datagrams with immediates.
    for opcode in [0x14, 0x12, 0x65] {
        let is_it = |packet: &Captured| packet.opcode == opcode;
        assert!(packets.iter().any(is_it), "{opcode:#x}");
    }
    tshark(&file, &packets);
}
