//! Blocking calls, and calls that are finished later, over a [`Pipeline`].

use std::collections::HashMap;

use verbs::Context;

use super::error::ClientError;
use super::pipeline::Pipeline;
use super::request::{Answer, ClientStats};
use crate::store::Condition;
use crate::wire::Op;
use crate::{ClientConfig, Connector};

/// A value and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub bytes: Vec<u8>,
    /// Grows with every change of the key.
    pub version: u64,
}

/// What a finished request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A GET found a value.
    Value(Value),
    /// A PUT set the value, or a DELETE removed one, of this version.
    Done(u64),
    /// The key is not there.
    NotFound,
}

impl Outcome {
    /// The version of a change; 0 of one that changed nothing.
    pub(super) fn version(self) -> u64 {
        match self {
            Self::Done(version) => version,
            Self::NotFound | Self::Value(_) => 0,
        }
    }
}

/// A request that is finished later: give it to [`Client::take`] or [`Client::wait`].
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "the outcome is kept until it is taken"]
pub struct Ticket(u64);

/// A client of a [`Server`](crate::Server), for one thread. Dropping it disconnects it.
///
/// ```
/// use kv::{Client, ClientConfig, Outcome, Server, ServerConfig};
///
/// let server = Server::start(ServerConfig { items: 1000, ..Default::default() })?;
/// let mut client = Client::connect(ClientConfig { server: server.address().to_string(), ..Default::default() })?;
/// let version = client.put(b"key", b"value")?;
/// assert_eq!(client.get(b"key")?.map(|v| v.bytes), Some(b"value".to_vec()));
/// client.compare_and_set(b"key", version, b"another")?;
/// assert!(client.compare_and_set(b"key", version, b"a third").is_err());
///
/// // Several at a time.
/// let (one, two) = (client.start_get(b"key")?, client.start_get(b"no key")?);
/// assert_eq!(client.wait(two)?, Outcome::NotFound);
/// assert!(matches!(client.wait(one)?, Outcome::Value(v) if v.bytes == b"another"));
/// assert_eq!(client.multi_get(&[b"key", b"no key"])?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    pipeline: Pipeline,
    next: u64,
    /// Of tickets that were not taken yet; `None` while under way.
    outcomes: HashMap<u64, Option<Result<Outcome, ClientError>>>,
}

impl Client {
    /// Connects to a server; tries for [`ClientConfig::deadline_ms`] if it is not there (yet).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        Pipeline::connect(config).map(Self::over)
    }

    /// Connects through a device that is open already, whatever [`ClientConfig::nic`] says of provider and device.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_on(context: &Context, config: ClientConfig) -> Result<Self, ClientError> {
        Pipeline::connect_on(context, config).map(Self::over)
    }

    /// Connects to a server in this process, whatever [`ClientConfig`] says of provider, device and server.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_through(
        connector: Connector,
        context: &Context,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        Pipeline::connect_through(connector, context, config).map(Self::over)
    }

    fn over(pipeline: Pipeline) -> Self {
        Self {
            pipeline,
            next: 0,
            outcomes: HashMap::new(),
        }
    }

    /// What it has had to do beside its requests.
    pub fn stats(&self) -> &ClientStats {
        self.pipeline.stats()
    }

    /// Starts a request. Waits for others when the window is full.
    ///
    /// # Errors
    /// [`ClientError::TooLong`], and when the server cannot be reached any more.
    pub fn start(&mut self, op: &Op<'_>) -> Result<Ticket, ClientError> {
        self.pipeline.refresh();
        while !self.pipeline.submit(op, self.next)? {
            self.progress()?;
        }
        let token = self.next;
        self.next += 1;
        self.outcomes.insert(token, None);
        Ok(Ticket(token))
    }

    /// Starts a GET.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_get(&mut self, key: &[u8]) -> Result<Ticket, ClientError> {
        self.start(&Op::Get { key })
    }

    /// Starts a PUT.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_put(&mut self, key: &[u8], value: &[u8]) -> Result<Ticket, ClientError> {
        self.start(&put(key, value))
    }

    /// Sends what was started and takes answers, without waiting for any. Returns how many came.
    ///
    /// # Errors
    /// When the server cannot be reached any more; what was under way has [`ClientError::Lost`] as its outcome.
    pub fn progress(&mut self) -> Result<usize, ClientError> {
        let outcomes = &mut self.outcomes;
        self.pipeline.poll(|done| {
            // Nobody asks for one that was forgotten.
            if let Some(place) = outcomes.get_mut(&done.token) {
                *place = Some(outcome(done.answer));
            }
        })
    }

    /// The outcome of a request, if it is finished.
    ///
    /// # Errors
    /// The ticket, if it is not.
    pub fn take(&mut self, ticket: Ticket) -> Result<Result<Outcome, ClientError>, Ticket> {
        match self.outcomes.get_mut(&ticket.0).and_then(Option::take) {
            Some(outcome) => {
                self.outcomes.remove(&ticket.0);
                Ok(outcome)
            }
            None => Err(ticket),
        }
    }

    /// Keeps no outcome of a request. It may still take effect.
    pub fn forget(&mut self, ticket: Ticket) {
        self.outcomes.remove(&ticket.0);
    }

    /// Waits until a request is finished, with its deadline: [`ClientConfig::deadline_ms`].
    ///
    /// # Errors
    /// What became of the request.
    pub fn wait(&mut self, mut ticket: Ticket) -> Result<Outcome, ClientError> {
        loop {
            match self.take(ticket) {
                Ok(outcome) => return outcome,
                Err(again) => ticket = again,
            }
            if let Err(e) = self.progress() {
                self.forget(ticket);
                return Err(e);
            }
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>, ClientError> {
        let ticket = self.start_get(key)?;
        self.wait(ticket).map(value)
    }

    /// The values of several keys, in their order, with as many requests under way as the window allows.
    ///
    /// # Errors
    /// The first that failed.
    pub fn multi_get(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, ClientError> {
        let mut tickets = Vec::with_capacity(keys.len());
        for key in keys {
            match self.start_get(key) {
                Ok(ticket) => tickets.push(ticket),
                Err(e) => {
                    tickets.into_iter().for_each(|ticket| self.forget(ticket));
                    return Err(e);
                }
            }
        }
        let outcomes: Vec<_> = tickets.into_iter().map(|t| self.wait(t)).collect();
        outcomes.into_iter().map(|o| o.map(value)).collect()
    }

    /// Sets the value of a key; its new version.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, ClientError> {
        self.change(&put(key, value))
    }

    /// Sets the value of a key under a condition, and for a time: `ttl_ms` milliseconds, 0 for ever.
    ///
    /// # Errors
    /// [`ClientError::Condition`] when the condition does not hold.
    pub fn put_if(
        &mut self,
        key: &[u8],
        value: &[u8],
        condition: Condition,
        ttl_ms: u64,
    ) -> Result<u64, ClientError> {
        self.change(&Op::Put {
            key,
            value,
            condition,
            ttl_ms,
        })
    }

    /// Sets the value of a key if it has this version; its new version.
    ///
    /// # Errors
    /// [`ClientError::Condition`] when it has another.
    pub fn compare_and_set(
        &mut self,
        key: &[u8],
        version: u64,
        value: &[u8],
    ) -> Result<u64, ClientError> {
        self.put_if(key, value, Condition::Version(version), 0)
    }

    /// Removes a key; whether it was there.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, ClientError> {
        self.delete_if(key, None).map(|version| version != 0)
    }

    /// Removes a key, if it has that version where one is given; the version that it had, 0 if it was not there.
    ///
    /// # Errors
    /// [`ClientError::Condition`] when it has another version.
    pub fn delete_if(&mut self, key: &[u8], version: Option<u64>) -> Result<u64, ClientError> {
        self.change(&Op::Delete { key, version })
    }

    fn change(&mut self, op: &Op<'_>) -> Result<u64, ClientError> {
        let ticket = self.start(op)?;
        self.wait(ticket).map(Outcome::version)
    }
}

pub(super) fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Op<'a> {
    Op::Put {
        key,
        value,
        condition: Condition::Always,
        ttl_ms: 0,
    }
}

pub(super) fn value(outcome: Outcome) -> Option<Value> {
    match outcome {
        Outcome::Value(value) => Some(value),
        Outcome::Done(_) | Outcome::NotFound => None,
    }
}

fn outcome(answer: Answer<'_>) -> Result<Outcome, ClientError> {
    match answer {
        Answer::Value { value, version } => Ok(Outcome::Value(Value {
            bytes: value.to_vec(),
            version,
        })),
        Answer::Done { version } => Ok(Outcome::Done(version)),
        Answer::NotFound => Ok(Outcome::NotFound),
        Answer::Condition { version } => Err(ClientError::Condition { version }),
        Answer::Full => Err(ClientError::Full),
        Answer::TooLong => Err(ClientError::TooLong),
        Answer::Lost => Err(ClientError::Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Server, ServerConfig};

    #[test]
    fn nothing_is_kept_of_requests_that_nobody_can_ask_about() {
        let config = ServerConfig {
            items: 1000,
            ..ServerConfig::default()
        };
        let server = Server::start(config).expect("starts");
        let mut client = Client::connect(ClientConfig {
            server: server.address().to_string(),
            ..ClientConfig::default()
        })
        .expect("connects");
        let too_long = [0; crate::store::MAX_KEY_BYTES + 1];
        let e = client
            .multi_get(&[b"key", &too_long])
            .expect_err("too long");
        assert!(matches!(e, ClientError::TooLong));
        assert_eq!(client.get(b"key").expect("answered"), None);
        assert!(client.outcomes.is_empty());
    }
}
