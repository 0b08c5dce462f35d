//! Measures the packets per second from 127.0.20.1 to 127.0.20.2: `flood [PAYLOAD_BYTES [PACKETS_A_BATCH [SECONDS]]]`.
//!
//! Both sides poll. The receiver checks ICRCs. Packets for which its buffer has no room are lost; only packets that
//! arrive are counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use link::{Config, Counters, Endpoint, PacketFlow, ReceiveBuffers};
use roce::icrc::{self, IpAddressPair};

/// Bytes of the BTH.
const BTH_BYTES: usize = 12;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |or: u64| arguments.next().map_or(Ok(or), |a| a.parse());
    let payload_bytes = usize::try_from(next(8)?)?;
    let batch_packets = next(64)?;
    let time = Duration::from_secs(next(1)?);
    let open = |last| {
        let ip = std::net::IpAddr::from([127, 0, 20, last]);
        Endpoint::open(&Config::new(vec![ip.into()]))
    };
    let (sender, receiver) = (open(1)?, open(2)?);
    let stop = AtomicBool::new(false);
    let (good, bad) = thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, &stop));
        let begin = Instant::now();
        loop {
            send(&sender, payload_bytes, batch_packets);
            if begin.elapsed() >= time {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        receiving.join().map_err(|_| "the receiver panicked")
    })?;
    let sent = |(_, counters): (_, &Counters)| counters.sent_pkts.load(Ordering::Relaxed);
    let sent: u64 = sender.counters_by_address().map(sent).sum();
    let seconds = time.as_secs_f64();
    println!("sent {sent}: {:.2} M/s", sent as f64 / seconds / 1e6);
    println!("received {good}: {:.2} M/s", good as f64 / seconds / 1e6);
    let lost: u64 = receiver
        .kernel_drops_by_address()
        .map(|(_, count)| count)
        .sum();
    println!("lost {lost}, with a wrong ICRC {bad}");
    Ok(())
}

/// Sends 100 batches, so that reading the clock takes a negligible share of the time.
fn send(sender: &Endpoint, payload_bytes: usize, batch_packets: u64) {
    let flow = PacketFlow {
        addresses: IpAddressPair::V4 {
            src: [127, 0, 20, 1].into(),
            dst: [127, 0, 20, 2].into(),
        },
        traffic_class: 0,
        hop_limit: 0,
    };
    let mut batch = sender.new_batch();
    let packet = vec![7; BTH_BYTES + payload_bytes];
    for _ in 0..100 {
        (0..batch_packets).for_each(|_| batch.push(&flow, &packet));
        while !batch.is_all_sent() {
            sender.send(&mut batch);
        }
    }
}

/// Returns the numbers of packets with correct and with wrong ICRCs, until `stop` is set and no more packets arrive.
fn receive(receiver: &Endpoint, stop: &AtomicBool) -> (u64, u64) {
    let mut inbox = ReceiveBuffers::default();
    let (mut good, mut bad) = (0, 0);
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        let count = receiver.receive(&mut inbox, |received| {
            let fine = icrc::split_off_icrc(received.bytes).and_then(|(transport, icrc)| {
                icrc::recover_identification_if_icrc_valid(&received.icrc_fields, transport, icrc)
            });
            *(if fine.is_some() { &mut good } else { &mut bad }) += 1;
        });
        if stopping && count == 0 {
            return (good, bad);
        }
    }
}
