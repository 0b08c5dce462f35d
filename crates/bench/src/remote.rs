//! Measurements on two hosts: one side listens, the other side connects and measures.
//!
//! The connecting side opens one TCP connection for each process at the other end. Each connection
//! begins with a line of JSON in both directions, which describes the measurement. Then a worker
//! takes the connection over. The worker's protocol is the same as with a driver on its own host
//! ([`crate::worker`]).

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::link::{WorkerCommand, WorkerLink};

/// Version of the protocol; every change of the workers' jobs increments it.
pub const PROTOCOL_VERSION: u32 = 2;

/// Time for which the connecting side waits for the listening side.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// First line of either side.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    #[serde(rename = "protocol")]
    protocol_version: u32,
    /// Commit of the program, which is only shown in messages.
    commit: String,
    /// Total number of connections.
    #[serde(rename = "connections")]
    connection_count: usize,
    /// Description of the measurement.
    #[serde(rename = "what")]
    task_description: Value,
}

impl Hello {
    fn new(connections: usize, task_description: &Value) -> Hello {
        Hello {
            protocol_version: PROTOCOL_VERSION,
            commit: env!("VERBATIM_COMMIT").to_owned(),
            connection_count: connections,
            task_description: task_description.clone(),
        }
    }

    /// Fails unless the two sides have the same protocol and the same measurement.
    fn check_same_measurement(&self, peer: &Hello) -> Result<()> {
        if self.protocol_version != peer.protocol_version {
            bail!(
                "the two sides speak different versions: {} here (commit {}) and {} there (commit {}); take the same \
                 program on both",
                self.protocol_version,
                self.commit,
                peer.protocol_version,
                peer.commit
            );
        }
        let mut others = Vec::new();
        collect_differences(
            "",
            &self.task_description,
            &peer.task_description,
            &mut others,
        );
        if !others.is_empty() {
            bail!(
                "the two sides were started with different settings: {}; start both with the same",
                others.join(", ")
            );
        }
        Ok(())
    }
}

/// Adds a description of each difference between two values to `found`.
fn collect_differences(place: &str, here: &Value, there: &Value, found: &mut Vec<String>) {
    match (here, there) {
        (Value::Object(one), Value::Object(other)) => {
            let missing = other.keys().filter(|key| !one.contains_key(*key));
            for key in one.keys().chain(missing) {
                let of = |map: &serde_json::Map<_, _>| map.get(key).cloned().unwrap_or_default();
                collect_differences(key, &of(one), &of(other), found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (one, other) in one.iter().zip(other) {
                collect_differences(place, one, other, found);
            }
        }
        _ if here == there => {}
        _ => found.push(format!("{place} is {here} here and {there} there")),
    }
}

/// Listening side of a measurement.
#[derive(Clone, Debug)]
pub struct ListeningPeer {
    /// Host and port of the listening side.
    pub address: String,
    /// Description of the measurement on this side.
    pub task_description: Value,
    /// Number of processes on the listening side.
    pub process_count: usize,
}

impl ListeningPeer {
    /// Connects to all processes of the listening side.
    ///
    /// # Errors
    /// When no program listens, another program listens, or the descriptions of the measurement
    /// differ.
    pub fn connect(&self) -> Result<Vec<WorkerLink>> {
        let own = Hello::new(self.process_count, &self.task_description);
        let link = |_| -> Result<WorkerLink> {
            let mut link = WorkerLink::tcp(connect_with_retries(&self.address)?)?;
            link.send(&own)?;
            let peer: Hello = link
                .recv()
                .with_context(|| format!("{} is no verbatim bench that listens", self.address))?;
            own.check_same_measurement(&peer)?;
            Ok(link)
        };
        (0..self.process_count).map(link).collect()
    }
}

/// Connects, and retries while the other side does not listen yet.
fn connect_with_retries(address: &str) -> Result<TcpStream> {
    let begin = Instant::now();
    let hint = || {
        format!(
            "cannot connect to {address}; start the other side there with --listen, and mind firewalls"
        )
    };
    loop {
        let mut refusal = None;
        let found = address.to_socket_addrs();
        for one in found.with_context(|| format!("there is no host of {address}"))? {
            match TcpStream::connect_timeout(&one, CONNECT_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => refusal = Some(error),
            }
        }
        if begin.elapsed() >= CONNECT_TIMEOUT {
            return match refusal {
                Some(refusal) => Err(refusal).with_context(hint),
                None => bail!(hint()),
            };
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Serves one connecting side: starts a worker process for each of its connections, and waits until
/// all have ended.
///
/// `on_listening` is called with the address as soon as connections to it succeed.
///
/// # Errors
/// When the address cannot be listened on, the descriptions of the measurement differ, or a worker
/// fails.
pub fn serve_one_peer(
    address: &str,
    task_description: &Value,
    worker: &WorkerCommand,
    on_listening: impl FnOnce(SocketAddr) -> Result<()>,
) -> Result<()> {
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}; name another address or port"))?;
    on_listening(listener.local_addr()?)?;
    let (mut workers, mut wanted) = (Vec::new(), 1);
    while workers.len() < wanted {
        let (stream, from) = listener.accept()?;
        let (more, worker) = start_worker_for_connection(stream, task_description, worker)
            .with_context(|| format!("cannot measure with {from}"))?;
        wanted = more;
        workers.push(worker);
    }
    drop(listener);
    for mut worker in workers {
        let status = worker.wait()?;
        if !status.success() {
            bail!("a process of the measurement failed ({status}); its messages are above");
        }
    }
    Ok(())
}

/// Answers the first line of a new connection and passes the connection to a worker. Returns the
/// total number of connections, and the worker.
fn start_worker_for_connection(
    stream: TcpStream,
    task_description: &Value,
    worker: &WorkerCommand,
) -> Result<(usize, Child)> {
    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    let mut link = WorkerLink::tcp(stream.try_clone()?)?;
    let peer: Hello = link.recv().context("it says nothing of ours")?;
    let own = Hello::new(peer.connection_count, task_description);
    // Send the own description before the check, so that the other side can report the differences
    // too.
    link.send(&own)?;
    own.check_same_measurement(&peer)?;
    stream.set_read_timeout(None)?;
    // The other side waits for the answer before it sends more, so the link's buffer is empty.
    drop(link);
    let socket = OwnedFd::from(stream);
    let child = Command::new(&worker.path)
        .args(&worker.args)
        .stdin(Stdio::from(socket.try_clone()?))
        .stdout(Stdio::from(socket))
        .spawn();
    let child = child.context("cannot start a worker")?;
    Ok((
        peer.connection_count
            .clamp(1, crate::micro::parameters::MAX_THREADS),
        child,
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn different_settings_are_named() {
        let here = Hello::new(
            1,
            &json!({"tasks": [{"stream": {"window": 8, "batch": 1}}]}),
        );
        assert!(here.check_same_measurement(&here).is_ok());
        let there = json!({"tasks": [{"stream": {"window": 16, "batch": 1, "pages": "huge"}}]});
        let error = here
            .check_same_measurement(&Hello::new(1, &there))
            .unwrap_err()
            .to_string();
        assert!(error.contains("window is 8 here and 16 there"), "{error}");
        assert!(
            error.contains("pages is null here and \"huge\" there"),
            "{error}"
        );
        assert!(!error.contains("batch"), "{error}");
        let older = Hello {
            protocol_version: 0,
            ..Hello::new(1, &json!(null))
        };
        let error = here.check_same_measurement(&older).unwrap_err().to_string();
        assert!(error.contains("same program"), "{error}");
    }

    #[test]
    fn a_worker_that_fails_and_a_stranger_are_errors() {
        let worker = |program: &str| WorkerCommand {
            path: program.into(),
            args: Vec::new(),
            envs: Vec::new(),
        };
        let task_description = json!("the same");
        let serve = |program: &str, talk: &(dyn Fn(SocketAddr) + Sync)| {
            let (tell, told) = std::sync::mpsc::channel();
            thread::scope(|scope| {
                scope.spawn(move || talk(told.recv().unwrap()));
                serve_one_peer(
                    "127.0.0.1:0",
                    &task_description,
                    &worker(program),
                    |address| Ok(tell.send(address)?),
                )
            })
        };
        let connects = |address: SocketAddr| {
            let peer = ListeningPeer {
                address: address.to_string(),
                task_description: json!("the same"),
                process_count: 2,
            };
            assert_eq!(peer.connect().unwrap().len(), 2);
        };
        serve("/bin/true", &connects).unwrap();
        let failed = serve("/bin/false", &connects).unwrap_err().to_string();
        assert!(failed.contains("messages are above"), "{failed}");
        let strange = serve("/bin/true", &|address| {
            use std::io::Write;
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        });
        assert!(format!("{:#}", strange.unwrap_err()).contains("nothing of ours"));
    }
}
