//! A load in the Redis protocol as memtier_benchmark generates it, with every value checked. The load has many
//! connections over TCP and a Unix socket, and ten GETs per SET. Pipeline depths and value lengths vary, and an RDMA
//! client runs at the same time.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;

use kv::load::{Random, verified_stamp, write_value_bytes};
use kv::store::FullPolicy;
use kv::{Client, ClientConfig, Server, ServerConfig};
use kv_resp::load_generator::{LoadCommand, LoadConnections, LoadParameters};
use kv_resp::{FrontEnd, ListenAddress};

const CONNECTIONS: u64 = 24;
const PIPELINES: u64 = 250;
/// Number of keys that all connections set and get; they exist from the start.
const SHARED: u64 = 100;
/// Number of keys that each connection has for itself.
const OWN: u64 = 40;

fn key(number: u64) -> String {
    format!("memtier-{number}")
}

/// Returns a value of a key. The stamp determines the length: mostly short, sometimes tens of thousands of bytes.
fn value(key: u64, stamp: u64) -> Vec<u8> {
    let length = match stamp % 32 {
        0 => 8 + stamp / 32 % 40_000,
        1..8 => 8 + stamp / 32 % 4_000,
        _ => 8 + stamp / 32 % 200,
    };
    let mut value = vec![0; usize::try_from(length).expect("short")];
    write_value_bytes(key, stamp, &mut value);
    value
}

fn set(key_number: u64, value: &[u8], into: &mut Vec<u8>) {
    let key = key(key_number);
    write!(
        into,
        "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n",
        key.len(),
        value.len()
    )
    .expect("memory");
    into.extend_from_slice(value);
    into.extend_from_slice(b"\r\n");
}

fn get(key_number: u64, into: &mut Vec<u8>) {
    let key = key(key_number);
    write!(into, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).expect("memory");
}

fn line(replies: &mut impl BufRead) -> String {
    let mut line = String::new();
    replies.read_line(&mut line).expect("it answers");
    line.strip_suffix("\r\n").expect("a whole line").to_owned()
}

/// Reads a bulk string; returns `None` for a null.
fn bulk(replies: &mut impl BufRead) -> Option<Vec<u8>> {
    let head = line(replies);
    let length = head.strip_prefix('$').unwrap_or_else(|| panic!("{head}"));
    let length = usize::try_from(length.parse::<i64>().expect("a length")).ok()?;
    let mut value = vec![0; length + 2];
    replies.read_exact(&mut value).expect("the whole of it");
    assert_eq!(value.split_off(length), b"\r\n");
    Some(value)
}

enum Asked {
    Set,
    Shared(u64),
    /// A key of this connection only, with its expected value.
    Own(Option<Vec<u8>>),
}

/// Runs one connection, and returns its numbers of SETs and GETs.
fn talk(number: u64, mut out: impl Write, replies: impl Read) -> (u64, u64) {
    let mut replies = BufReader::new(replies);
    let mut random = Random::new(number);
    let mut own: HashMap<u64, Vec<u8>> = HashMap::new();
    let (mut sets, mut gets, mut stamps) = (0, 0, 0u64);
    for _ in 0..PIPELINES {
        let (mut request, mut asked) = (Vec::new(), Vec::new());
        let most = 1 << random.next_below(7);
        let depth = 1 + random.next_below(most);
        // With longer requests, the server would wait until its replies are read, which happens only after the write.
        while (asked.len() as u64) < depth && request.len() < 48 << 10 {
            let is_own = random.next_below(2) == 0;
            let key = if is_own {
                SHARED + number * OWN + random.next_below(OWN)
            } else {
                random.next_below(SHARED)
            };
            if random.next_below(11) == 0 {
                stamps += 1;
                let value = value(key, random.next_u64() << 16 | number << 12 | stamps & 0xfff);
                set(key, &value, &mut request);
                if is_own {
                    own.insert(key, value);
                }
                asked.push(Asked::Set);
                sets += 1;
            } else {
                get(key, &mut request);
                asked.push(if is_own {
                    Asked::Own(own.get(&key).cloned())
                } else {
                    Asked::Shared(key)
                });
                gets += 1;
            }
        }
        out.write_all(&request).expect("it reads");
        for asked in asked {
            match asked {
                Asked::Set => assert_eq!(line(&mut replies), "+OK"),
                Asked::Own(expected) => assert!(bulk(&mut replies) == expected),
                Asked::Shared(key) => {
                    let found = bulk(&mut replies).expect("it was there from the start");
                    let stamp =
                        verified_stamp(key, &found).expect("a value of this key, and whole");
                    assert!(found == value(key, stamp));
                }
            }
        }
    }
    (sets, gets)
}

#[test]
fn many_connections_with_pipelines_get_what_was_set() {
    let server = Server::start(ServerConfig {
        full_policy: FullPolicy::Store,
        item_capacity: 10_000,
        workers: 2,
        log_bytes: Some(256 << 20),
        ..ServerConfig::default()
    })
    .expect("starts");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let listen = |address: &ListenAddress| {
        let listener = address.listen().expect("free");
        FrontEnd::start(server.service().store().clone(), vec![listener]).expect("starts")
    };
    let unix = listen(&ListenAddress::Unix(path.clone()));
    let tcp = listen(&ListenAddress::Tcp("127.0.0.1:0".to_owned()));
    let mut client = Client::connect(ClientConfig {
        server: server.address().to_string(),
        ..ClientConfig::default()
    })
    .expect("connects");
    for number in 0..SHARED {
        let value = value(number, number << 16);
        client.put(key(number).as_bytes(), &value).expect("room");
    }
    let (sets, gets) = std::thread::scope(|scope| {
        let talks: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                let (path, tcp) = (&path, &tcp.addresses()[0]);
                scope.spawn(move || {
                    if number % 2 == 0 {
                        let stream = UnixStream::connect(path).expect("it listens");
                        return talk(number, &stream, &stream);
                    }
                    let stream = TcpStream::connect(tcp.to_string()).expect("it listens");
                    talk(number, &stream, &stream)
                })
            })
            .collect();
        // An RDMA client reads the same keys at the same time.
        let mut random = Random::new(99);
        while talks.iter().any(|talk| !talk.is_finished()) {
            let number = random.next_below(SHARED);
            let found = client.get(key(number).as_bytes()).expect("answered");
            let found = found.expect("it was there from the start").bytes;
            let stamp = verified_stamp(number, &found).expect("a value of this key, and whole");
            assert!(found == value(number, stamp));
        }
        let all = talks
            .into_iter()
            .map(|talk| talk.join().expect("all was right"));
        all.fold((0, 0), |sum, did| (sum.0 + did.0, sum.1 + did.1))
    });
    assert!(gets > 5 * sets && sets > 1_000, "{sets} SETs, {gets} GETs");
    let (unix, tcp) = (unix.stats(), tcp.stats());
    assert_eq!(unix.commands + tcp.commands, sets + gets);
    assert_eq!((unix.errors, tcp.errors), (0, 0));
    assert_eq!(unix.connections_total + tcp.connections_total, CONNECTIONS);
}

/// A thread of a busy machine may begin when the time of the load is over.
#[test]
fn a_load_whose_time_is_over_at_its_begin_has_an_answer() {
    let server = Server::start(ServerConfig {
        full_policy: FullPolicy::Store,
        item_capacity: 100,
        ..ServerConfig::default()
    })
    .expect("starts");
    let listener = ListenAddress::Tcp("127.0.0.1:0".to_owned()).listen();
    let store = server.service().store().clone();
    let front = FrontEnd::start(store, vec![listener.expect("free")]).expect("starts");
    let parameters = LoadParameters {
        command: LoadCommand::Set,
        key_count: 10,
        value_bytes: 8,
        outstanding_commands: 1,
        seed: 1,
    };
    let connections = LoadConnections::connect(&front.addresses()[0], None, 1);
    let result = connections
        .expect("connects")
        .run(&parameters, &AtomicBool::new(true));
    assert_eq!(result.expect("answered").answer_count, 1);
}
