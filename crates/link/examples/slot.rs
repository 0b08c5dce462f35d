//! A process of a fabric that prints which packets it receives.
//!
//! `slot FOLDER SLOT PORT ADDRESS` prints `ready`, then `got QPN` for each packet. It reads two commands. `refresh`
//! looks for processes that died. `counters` prints the number of forwarded packets and of corrections. The process
//! ends at the end of its input.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use link::{Config, Counters, Endpoint, FabricMembership, ReceiveBuffers};
use rustix::event::{PollFd, PollFlags, poll};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("slot FOLDER SLOT PORT ADDRESS");
    let fabric = FabricMembership {
        folder: PathBuf::from(next()?),
        slot: next()?.parse()?,
    };
    let port = next()?.parse()?;
    let address: std::net::IpAddr = next()?.parse()?;
    let endpoint = Endpoint::open(&Config {
        udp_port: port,
        fabric_membership: Some(fabric),
        ..Config::new(vec![address.into()])
    })?;
    let mut inbox = ReceiveBuffers::default();
    // `Stdin` has a buffer whose contents cannot be queried.
    let mut input = BufReader::new(File::from(std::io::stdin().as_fd().try_clone_to_owned()?));
    let mut output = std::io::stdout();
    writeln!(output, "ready")?;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(endpoint.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(input.get_ref().as_fd(), PollFlags::IN),
        ];
        poll(&mut fds, None)?;
        let [packets, commands] = fds.map(|fd| !fd.revents().is_empty());
        if packets {
            endpoint.receive(&mut inbox, |packet| {
                // An error is ignored: the reader has closed the pipe, and the process ends with its input.
                let _ = writeln!(output, "got {}", packet.dest_qpn());
            });
        }
        if !commands {
            continue;
        }
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            command(&endpoint, line.trim())?;
            if input.buffer().is_empty() {
                break;
            }
        }
    }
}

fn command(endpoint: &Endpoint, line: &str) -> std::io::Result<()> {
    match line {
        "refresh" => endpoint.remove_dead_members(),
        "counters" => {
            let sum = |of: fn(&Counters) -> &AtomicU64| {
                let counts = endpoint.counters_by_address();
                let counts = counts.map(|(_, counters)| of(counters).load(Ordering::Relaxed));
                counts.sum::<u64>()
            };
            let handed_on = sum(|counters| &counters.forwarded_pkts);
            let corrections = sum(|counters| &counters.order_corrections);
            println!("handed on {handed_on}, corrections {corrections}");
        }
        _ => {}
    }
    Ok(())
}
