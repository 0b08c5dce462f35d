//! Checks captures byte by byte.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use capture::{Capture, CapturedPackets, Datagram, OpenError};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};

const MAGIC: [u8; 4] = [0x4d, 0x3c, 0xb2, 0xa1];

/// Returns the records of a file: seconds, nanoseconds, frame.
fn records(path: &Path) -> Vec<(u32, u32, Vec<u8>)> {
    let bytes = fs::read(path).expect("the file is there");
    let (header, mut rest) = bytes.split_at(24);
    assert_eq!(header[..4], MAGIC);
    // Version 2.4, and link type Ethernet.
    assert_eq!(header[4..8], [2, 0, 4, 0]);
    assert_eq!(header[20..], [1, 0, 0, 0]);
    let mut records = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| {
            u32::from_le_bytes(rest[4 * at..4 * at + 4].try_into().expect("four bytes"))
        };
        let (seconds, nanos, len, original) = (word(0), word(1), word(2), word(3));
        assert_eq!(len, original);
        let end = 16 + usize::try_from(len).expect("a length");
        records.push((seconds, nanos, rest[16..end].to_vec()));
        rest = &rest[end..];
    }
    records
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn datagram<'a>(src: &str, dst: &str, payload: &'a [u8]) -> Datagram<'a> {
    Datagram {
        src: address(src),
        dst: address(dst),
        identification: 0xbeef,
        traffic_class: 0x6b,
        hop_limit: 61,
        payload,
    }
}

#[test]
fn a_record_is_a_frame_with_the_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.pcap");
    let time = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    let capture = Capture::create(&path).expect("it is made");
    capture
        .write_packet(
            time,
            &datagram("192.0.2.1:49152", "192.0.2.2:4791", &[7; 30]),
        )
        .expect("it is written");
    capture
        .write_packet(time, &datagram("[fe80::1]:5", "[fe80::2]:4791", &[8; 31]))
        .expect("it is written");

    let records = records(&path);
    assert_eq!(
        (records.len(), records[0].0, records[0].1),
        (2, 1_700_000_000, 123_456_789)
    );
    let first = SlicedPacket::from_ethernet(&records[0].2).expect("a frame");
    let Some(NetSlice::Ipv4(ip)) = first.net else {
        panic!("it is of IPv4");
    };
    let header = ip.header().to_header();
    assert_eq!(
        (header.source, header.destination),
        ([192, 0, 2, 1], [192, 0, 2, 2])
    );
    assert_eq!(
        (
            header.identification,
            header.dont_fragment,
            header.time_to_live
        ),
        (0xbeef, true, 61)
    );
    assert_eq!((header.dscp.value(), header.ecn.value()), (0x6b >> 2, 3));
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    let Some(TransportSlice::Udp(udp)) = first.transport else {
        panic!("it is UDP");
    };
    assert_eq!(
        (udp.source_port(), udp.destination_port(), udp.payload()),
        (49152, 4791, &[7; 30][..])
    );
    let checksum = udp.to_header().calc_checksum_ipv4(&header, &[7; 30]);
    assert_eq!(checksum, Ok(udp.checksum()));

    let second = SlicedPacket::from_ethernet(&records[1].2).expect("a frame");
    let Some(NetSlice::Ipv6(ip)) = second.net else {
        panic!("it is of IPv6");
    };
    assert_eq!(
        (ip.header().traffic_class(), ip.header().hop_limit()),
        (0x6b, 61)
    );
    let Some(TransportSlice::Udp(udp)) = second.transport else {
        panic!("it is UDP");
    };
    assert_eq!((udp.length(), udp.payload()), (39, &[8; 31][..]));
    let checksum = udp
        .to_header()
        .calc_checksum_ipv6(&ip.header().to_header(), &[8; 31]);
    assert_eq!(checksum, Ok(udp.checksum()));
}

#[test]
fn what_has_no_frame_is_refused_and_not_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("none.pcap");
    let capture = Capture::open(&path).expect("it is made");
    let mixed = capture.write_packet(SystemTime::now(), &datagram("[::1]:1", "127.0.0.1:2", &[]));
    let mixed = mixed.expect_err("of two families").to_string();
    assert_eq!(
        mixed,
        "source ::1 and destination 127.0.0.1 are addresses of two families"
    );
    let long = vec![0; 65_508];
    let long = capture.write_packet(
        SystemTime::now(),
        &datagram("127.0.0.1:1", "127.0.0.1:2", &long),
    );
    assert!(long.is_err());
    let longest = vec![0; 65_507];
    let longest = datagram("127.0.0.1:1", "127.0.0.1:2", &longest);
    assert!(capture.write_packet(SystemTime::now(), &longest).is_ok());
    assert_eq!(records(&path).len(), 1);
}

#[test]
fn many_writers_open_one_file_and_their_records_stay_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("many.pcap");
    let (writers, each) = (8_u8, 200_u16);
    thread::scope(|scope| {
        for writer in 0..writers {
            let path = &path;
            scope.spawn(move || {
                let capture = Capture::open(path).expect("it is opened");
                for number in 0..each {
                    let payload = vec![writer; 20 + usize::from(number) * 4];
                    let mut datagram = datagram("127.0.0.1:1", "127.0.0.2:4791", &payload);
                    datagram.identification = number;
                    capture
                        .write_packet(SystemTime::now(), &datagram)
                        .expect("it is written");
                }
            });
        }
    });
    let mut next = vec![0; usize::from(writers)];
    for (_, _, frame) in records(&path) {
        let writer = usize::from(frame[14 + 20 + 8]);
        assert_eq!(frame[18..20], u16::to_be_bytes(next[writer]));
        assert!(frame[42..].iter().all(|byte| usize::from(*byte) == writer));
        next[writer] += 1;
    }
    assert_eq!(next, vec![each; usize::from(writers)]);
    // The temporary files are gone.
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn a_file_is_continued_or_replaced_and_a_foreign_one_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.pcap");
    for _ in 0..2 {
        let capture = Capture::open(&path).expect("it is opened");
        let datagram = datagram("127.0.0.1:1", "127.0.0.1:2", b"abcd");
        capture
            .write_packet(SystemTime::now(), &datagram)
            .expect("it is written");
    }
    assert_eq!(records(&path).len(), 2);
    let replaced = Capture::create(&path).expect("it is made");
    assert_eq!(records(&path).len(), 0);
    drop(replaced);

    for content in [
        &b"text that is none of ours, of any length"[..],
        b"",
        &MAGIC,
    ] {
        fs::write(&path, content).expect("a file");
        let error = Capture::open(&path).expect_err("it is foreign");
        assert!(matches!(error, OpenError::NotACapture { .. }), "{error}");
        assert_eq!(fs::read(&path).expect("it is there"), content);
    }
    let nowhere = folder.path().join("missing/a.pcap");
    assert!(matches!(Capture::open(&nowhere), Err(OpenError::Io { .. })));
}

#[test]
fn records_are_written_together_without_those_that_have_no_frame() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("batch.pcap");
    let capture = Capture::open(&path).expect("it is made");
    let mut batch = CapturedPackets::default();
    assert!(batch.is_empty());
    for (dst, is_right) in [
        ("192.0.2.2:2", true),
        ("[::1]:2", false),
        ("192.0.2.3:2", true),
    ] {
        let pushed = batch.push(SystemTime::now(), &datagram("192.0.2.1:1", dst, b"abcd"));
        assert_eq!(pushed.is_ok(), is_right, "{dst}");
    }
    capture.append(&batch).expect("it is written");
    let last = |(_, _, frame): &(u32, u32, Vec<u8>)| frame[33];
    let records = records(&path);
    assert_eq!(records.iter().map(last).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_turn_ends_before_the_next_begins_unless_it_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("turns.pcap");
    let open = || Capture::open(&path).expect("it is opened");
    let write = |capture: &Capture, payload: &[u8]| {
        let datagram = datagram("192.0.2.1:1", "192.0.2.2:2", payload);
        let written = capture.write_packet(SystemTime::now(), &datagram);
        written.expect("it is written");
    };
    let (first, second) = (open(), open());
    thread::scope(|scope| {
        let turn = first.lock_for_writing();
        scope.spawn(|| {
            let _turn = second.lock_for_writing();
            write(&second, b"2");
        });
        // Long enough for the other thread to write, if it did not wait for its turn.
        thread::sleep(Duration::from_millis(100));
        write(&first, b"1");
        drop(turn);
    });
    let payloads = |(_, _, frame): &(u32, u32, Vec<u8>)| frame[42];
    let written: Vec<u8> = records(&path).iter().map(payloads).collect();
    assert_eq!(written, b"12");

    // The others continue without a process that keeps its turn.
    let kept = first.lock_for_writing();
    (0..3).for_each(|_| drop(second.lock_for_writing()));
    drop(kept);
    drop(second.lock_for_writing());
    drop(first.lock_for_writing());
}
