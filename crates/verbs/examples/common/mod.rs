//! Functions that the examples share: rendezvous of two processes by TCP, and polling.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use verbs::{CompletionQueue, WcBuffer, poll_until};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The time limit for a peer or a completion.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The TCP connection by which two processes exchange the data of their queue pairs.
pub(crate) struct Peer(BufReader<TcpStream>);

impl Peer {
    /// With an address, connects to the server there. Without one, is the server: prints its
    /// address and waits for a client.
    pub(crate) fn find(server: Option<&str>) -> Result<Self> {
        let stream = match server {
            Some(address) => TcpStream::connect(address)?,
            None => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                println!("listening at {}", listener.local_addr()?);
                listener.accept()?.0
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a value, and returns the value that the peer sends.
    pub(crate) fn exchange<T: Serialize + DeserializeOwned>(&mut self, own: &T) -> Result<T> {
        let mut line = serde_json::to_string(own)?;
        line.push('\n');
        self.0.get_mut().write_all(line.as_bytes())?;
        line.clear();
        self.0.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Polls until one work request completes; returns its `wr_id`.
pub(crate) fn completion(cq: &CompletionQueue) -> Result<u64> {
    let mut buffer = WcBuffer::<1>::new();
    let found = poll_until(PATIENCE, || match cq.poll(&mut buffer) {
        Ok(mut found) => found.next().map(|wc| match wc {
            Ok(wc) => Ok(wc.wr_id()),
            Err(failed) => Err(format!(
                "work request {} failed: {}",
                failed.wr_id(),
                failed.status()
            )),
        }),
        Err(error) => Some(Err(error.to_string())),
    });
    Ok(found.ok_or("nothing completed in time")??)
}
