//! Tests of processes that share an address: each receives the packets of its slot, whichever other process dies.

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use link::QPN_TO_PROCESS_SLOT_SHIFT;

/// Time after which a hanging test fails.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A process with a slot.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// The folder, address and port of a test's processes.
struct Host {
    folder: tempfile::TempDir,
    address: &'static str,
    port: u16,
}

/// Returns the path of an example of this crate, which `cargo test -p verbatim-link` builds.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("examples").join(name)
}

impl Process {
    fn next(&self) -> String {
        self.lines.recv_timeout(WATCHDOG).expect("a line")
    }

    fn ask(&mut self, command: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
    }

    /// Returns the numbers of forwarded packets and of corrections of the order.
    fn counters(&mut self) -> (u64, u64) {
        self.ask("counters");
        loop {
            let line = self.next();
            if let Some(rest) = line.strip_prefix("handed on ") {
                let (handed_on, corrections) = rest.split_once(", corrections ").unwrap();
                return (handed_on.parse().unwrap(), corrections.parse().unwrap());
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn leave(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Host {
    fn new(address: &'static str, port: u16) -> Host {
        Host {
            folder: tempfile::tempdir().unwrap(),
            address,
            port,
        }
    }

    fn start(&self, slot: u16) -> Process {
        let mut child = Command::new(example("slot"))
            .arg(self.folder.path())
            .args([slot.to_string(), self.port.to_string(), self.address.into()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a built example");
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let process = Process {
            input: child.stdin.take(),
            child,
            lines,
        };
        assert_eq!(process.next(), "ready");
        process
    }

    /// Sends a packet from a new port. If the BPF program returns an invalid index, the kernel selects a socket by
    /// ports.
    fn send(&self, qpn: u32) {
        let mut packet = [0; 16];
        packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        let from = match self.address.contains(':') {
            true => "[::1]:0",
            false => "127.0.0.1:0",
        };
        let sender = UdpSocket::bind(from).unwrap();
        let to = (self.address, self.port);
        sender.send_to(&packet, to).unwrap();
    }

    /// Sends a packet to each process and waits until it has arrived.
    fn reach(&self, processes: &[(u16, &Process)]) {
        for (slot, process) in processes {
            let qpn = u32::from(*slot) << QPN_TO_PROCESS_SLOT_SHIFT | 77;
            self.send(qpn);
            assert_eq!(process.next(), format!("got {qpn}"), "slot {slot}");
        }
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(Path::new(self.folder.path())).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|n| n.ends_with(".sock")).collect();
        names.sort();
        names
    }
}

#[test]
fn the_kernel_gives_each_process_its_packets() {
    for (address, port) in [("127.0.10.1", 4811), ("::1", 4812)] {
        let host = Host::new(address, port);
        let mut processes = [7, 1023, 1].map(|slot| (slot, host.start(slot)));
        host.reach(&processes.each_ref().map(|(slot, process)| (*slot, process)));
        for (_, process) in &mut processes {
            assert_eq!(process.counters(), (0, 0));
        }
        host.send(1);
        assert_eq!(processes[0].1.next(), "got 1", "the GSI is at place 0");
    }
}

#[test]
fn a_process_that_leaves_changes_nothing_for_the_others() {
    let host = Host::new("127.0.10.2", 4813);
    let first = host.start(1);
    let [mut second, mut third, mut fourth] = [2, 3, 4].map(|slot| host.start(slot));
    first.leave();
    host.reach(&[(2, &second), (3, &third), (4, &fourth)]);
    let mut fifth = host.start(5);
    host.reach(&[(2, &second), (3, &third), (4, &fourth), (5, &fifth)]);
    for process in [&mut second, &mut third, &mut fourth, &mut fifth] {
        assert_eq!(process.counters(), (0, 0));
    }
    assert_eq!(host.files().len(), 4);
    [second, third, fourth, fifth]
        .into_iter()
        .for_each(Process::leave);
    assert_eq!(host.files(), Vec::<String>::new());
}

#[test]
fn packets_reach_those_who_live_before_anyone_has_noticed_a_death() {
    for dies in [0, 1, 2] {
        let host = Host::new("127.0.10.3", 4814 + dies);
        let mut processes: Vec<_> = [1, 2, 3, 4].map(|slot| (slot, host.start(slot))).into();
        processes.remove(dies.into()).1.kill();
        let all = |p: &[(u16, Process)]| {
            let all: Vec<_> = p.iter().map(|(slot, process)| (*slot, process)).collect();
            host.reach(&all);
        };
        // The first misdirected packet makes its receiver check the group. Some are not misdirected, if the kernel
        // selects the right receiver by chance.
        (0..20).for_each(|_| all(&processes));
        let mut before = Vec::new();
        for (_, process) in &mut processes {
            before.push(process.counters());
        }
        assert!(
            before.iter().any(|(handed_on, _)| *handed_on > 0),
            "{before:?}"
        );
        all(&processes);
        for ((_, process), before) in processes.iter_mut().zip(before) {
            assert_eq!(process.counters().0, before.0);
        }
    }
}

#[test]
fn a_death_that_is_noticed_costs_no_packet_a_detour() {
    let host = Host::new("127.0.10.4", 4818);
    let mut processes = vec![host.start(1), host.start(2), host.start(3)];
    processes.remove(0).kill();
    processes[0].ask("refresh");
    assert_eq!(processes[0].counters(), (0, 0));
    host.reach(&[(2, &processes[0]), (3, &processes[1])]);
    assert_eq!(processes[0].counters(), (0, 0));
    assert_eq!(processes[1].counters(), (0, 0));
}

#[test]
fn after_several_deaths_probes_find_the_order() {
    // In one of the two orders of the deaths, the guess in the file is wrong.
    let mut corrections = 0;
    for order in [[1, 2], [2, 1]] {
        let host = Host::new("127.0.10.5", 4819 + order[0]);
        let mut processes: Vec<_> = (1..=5).map(|slot| (slot, Some(host.start(slot)))).collect();
        for slot in order {
            processes[usize::from(slot) - 1].1.take().unwrap().kill();
        }
        let mut living: Vec<_> = processes
            .into_iter()
            .filter_map(|(slot, p)| Some((slot, p?)))
            .collect();
        living[0].1.ask("refresh");
        assert_eq!(living[0].1.counters().0, 0);
        // A probe arrives before packets that are sent later. So after one packet to each process, all probes were
        // handled.
        for (_, process) in &mut living {
            corrections += process.counters().1;
        }
        let all: Vec<_> = living
            .iter()
            .map(|(slot, process)| (*slot, process))
            .collect();
        host.reach(&all);
        host.reach(&all);
        let mut before = Vec::new();
        for (_, process) in &mut living {
            let counters = process.counters();
            corrections += counters.1;
            before.push(counters.0);
        }
        let all: Vec<_> = living
            .iter()
            .map(|(slot, process)| (*slot, process))
            .collect();
        host.reach(&all);
        for ((slot, process), before) in living.iter_mut().zip(before) {
            assert_eq!(process.counters().0, before, "slot {slot} hands packets on");
        }
    }
    assert!(corrections > 0);
}

#[test]
fn two_fabrics_do_not_share_an_address() {
    let host = Host::new("127.0.10.6", 4825);
    let _first = host.start(1);
    let other = tempfile::tempdir().unwrap();
    let config = link::Config {
        udp_port: host.port,
        fabric_membership: Some(link::FabricMembership {
            folder: other.path().into(),
            slot: 1,
        }),
        ..link::Config::new(vec![
            host.address.parse::<std::net::IpAddr>().unwrap().into(),
        ])
    };
    let error = link::Endpoint::open(&config).unwrap_err();
    assert!(
        matches!(error, link::LinkError::PortInUse { .. }),
        "{error}"
    );
}

#[test]
fn flood_loses_nothing_to_wrong_icrcs() {
    let output = Command::new(example("flood"))
        .args(["8", "4", "0"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("sent 400:"), "{output:?}");
    assert!(text.contains("received 400:"), "{output:?}");
    assert!(text.ends_with("with a wrong ICRC 0\n"), "{output:?}");
}
