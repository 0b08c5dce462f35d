//! Blocking calls, and calls whose result is fetched later, over a [`PipelinedClient`].

use std::collections::HashMap;

use verbs::Context;

use super::error::ClientError;
use super::pipeline::PipelinedClient;
use super::request::{Answer, ClientStats};
use crate::store::SetCondition;
use crate::wire::Op;
use crate::{ClientConfig, LocalConnector};

/// A value and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub bytes: Vec<u8>,
    /// Grows with every change of the key.
    pub version: u64,
}

/// The result of a completed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestResult {
    /// A GET found a value.
    Value(Value),
    /// A PUT set the value, or a DELETE removed one. The field is its version.
    ChangedWithVersion(u64),
    /// The key is absent.
    NotFound,
}

impl RequestResult {
    /// Returns the version of a change; 0 if nothing was changed.
    pub(super) fn change_version_or_zero(self) -> u64 {
        match self {
            Self::ChangedWithVersion(version) => version,
            Self::NotFound | Self::Value(_) => 0,
        }
    }
}

/// A started request. [`Client::take_outcome`] and [`Client::wait`] return its outcome.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "the outcome is kept until it is taken"]
pub struct RequestTicket(u64);

/// A client of a [`Server`](crate::Server), for one thread. Dropping the client disconnects it.
///
/// ```
/// use kv::{Client, ClientConfig, RequestResult, Server, ServerConfig};
///
/// let server = Server::start(ServerConfig { item_capacity: 1000, ..Default::default() })?;
/// let mut client = Client::connect(ClientConfig { server: server.address().to_string(), ..Default::default() })?;
/// let version = client.put(b"key", b"value")?;
/// assert_eq!(client.get(b"key")?.map(|v| v.bytes), Some(b"value".to_vec()));
/// client.compare_and_set(b"key", version, b"another")?;
/// assert!(client.compare_and_set(b"key", version, b"a third").is_err());
///
/// // Several at a time.
/// let (one, two) = (client.start_get(b"key")?, client.start_get(b"no key")?);
/// assert_eq!(client.wait(two)?, RequestResult::NotFound);
/// assert!(matches!(client.wait(one)?, RequestResult::Value(v) if v.bytes == b"another"));
/// assert_eq!(client.multi_get(&[b"key", b"no key"])?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    pipeline: PipelinedClient,
    next_ticket: u64,
    /// The outcomes of tickets that were not taken yet; `None` while the request is outstanding.
    outcomes: HashMap<u64, Option<Result<RequestResult, ClientError>>>,
}

impl Client {
    /// Connects to a server. Retries for [`ClientConfig::deadline_ms`] if the server is not reachable yet.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(config: ClientConfig) -> Result<Self, ClientError> {
        PipelinedClient::connect(config).map(Self::from_pipeline)
    }

    /// Connects through an open device, ignoring provider and device of [`ClientConfig::nic`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_on(context: &Context, config: ClientConfig) -> Result<Self, ClientError> {
        PipelinedClient::connect_on(context, config).map(Self::from_pipeline)
    }

    /// Connects to a server in this process, ignoring provider, device and server of [`ClientConfig`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_to_local_server(
        connector: LocalConnector,
        context: &Context,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        PipelinedClient::connect_to_local_server(connector, context, config)
            .map(Self::from_pipeline)
    }

    fn from_pipeline(pipeline: PipelinedClient) -> Self {
        Self {
            pipeline,
            next_ticket: 0,
            outcomes: HashMap::new(),
        }
    }

    /// Returns the client's statistics, such as retries.
    pub fn stats(&self) -> &ClientStats {
        self.pipeline.stats()
    }

    /// Starts a request. Waits for other requests if the window is full.
    ///
    /// # Errors
    /// [`ClientError::TooLong`], or an error if the server cannot be reached any more.
    pub fn start(&mut self, op: &Op<'_>) -> Result<RequestTicket, ClientError> {
        self.pipeline.refresh_clock();
        while !self.pipeline.submit(op, self.next_ticket)? {
            self.poll_without_waiting()?;
        }
        let token = self.next_ticket;
        self.next_ticket += 1;
        self.outcomes.insert(token, None);
        Ok(RequestTicket(token))
    }

    /// Starts a GET.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_get(&mut self, key: &[u8]) -> Result<RequestTicket, ClientError> {
        self.start(&Op::Get { key })
    }

    /// Starts a PUT.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_put(&mut self, key: &[u8], value: &[u8]) -> Result<RequestTicket, ClientError> {
        self.start(&put_op(key, value))
    }

    /// Sends the started requests and takes answers, without waiting for any. Returns the number of answers.
    ///
    /// # Errors
    /// If the server cannot be reached any more. Outstanding requests then have the outcome
    /// [`ClientError::NoAnswerInTime`].
    pub fn poll_without_waiting(&mut self) -> Result<usize, ClientError> {
        let outcomes = &mut self.outcomes;
        self.pipeline.poll(|done| {
            // The ticket of a missing entry was forgotten.
            if let Some(place) = outcomes.get_mut(&done.token) {
                *place = Some(outcome_of_answer(done.answer));
            }
        })
    }

    /// Returns the outcome of a request if it is completed.
    ///
    /// # Errors
    /// The ticket, if the request is still outstanding.
    pub fn take_outcome(
        &mut self,
        ticket: RequestTicket,
    ) -> Result<Result<RequestResult, ClientError>, RequestTicket> {
        match self.outcomes.get_mut(&ticket.0).and_then(Option::take) {
            Some(outcome) => {
                self.outcomes.remove(&ticket.0);
                Ok(outcome)
            }
            None => Err(ticket),
        }
    }

    /// Discards the outcome of a request. The request may still take effect.
    pub fn forget(&mut self, ticket: RequestTicket) {
        self.outcomes.remove(&ticket.0);
    }

    /// Waits until a request is completed, at most until its deadline ([`ClientConfig::deadline_ms`]).
    ///
    /// # Errors
    /// The error of the request.
    pub fn wait(&mut self, mut ticket: RequestTicket) -> Result<RequestResult, ClientError> {
        loop {
            match self.take_outcome(ticket) {
                Ok(outcome) => return outcome,
                Err(again) => ticket = again,
            }
            if let Err(e) = self.poll_without_waiting() {
                self.forget(ticket);
                return Err(e);
            }
        }
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>, ClientError> {
        let ticket = self.start_get(key)?;
        self.wait(ticket).map(value_of_outcome)
    }

    /// Returns the values of several keys, in their order. As many requests are outstanding as the window allows.
    ///
    /// # Errors
    /// The error of the first request that failed.
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
        outcomes
            .into_iter()
            .map(|o| o.map(value_of_outcome))
            .collect()
    }

    /// Sets the value of a key, and returns its new version.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, ClientError> {
        self.execute_change(&put_op(key, value))
    }

    /// Sets the value of a key under a condition. The item expires after `ttl_ms` milliseconds; 0 means never.
    ///
    /// # Errors
    /// [`ClientError::ConditionNotMet`] if the condition does not hold.
    pub fn put_if(
        &mut self,
        key: &[u8],
        value: &[u8],
        condition: SetCondition,
        ttl_ms: u64,
    ) -> Result<u64, ClientError> {
        self.execute_change(&Op::Put {
            key,
            value,
            condition,
            ttl_ms,
        })
    }

    /// Sets the value of a key if it has this version, and returns its new version.
    ///
    /// # Errors
    /// [`ClientError::ConditionNotMet`] if the key has another version.
    pub fn compare_and_set(
        &mut self,
        key: &[u8],
        version: u64,
        value: &[u8],
    ) -> Result<u64, ClientError> {
        self.put_if(key, value, SetCondition::Version(version), 0)
    }

    /// Removes a key. Returns true if the key was present.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, ClientError> {
        self.delete_if(key, None).map(|version| version != 0)
    }

    /// Removes a key, if its version is `version` or no version is given. Returns the removed version, or 0 if the key
    /// was absent.
    ///
    /// # Errors
    /// [`ClientError::ConditionNotMet`] if a version is given and the key is absent or has another version.
    pub fn delete_if(&mut self, key: &[u8], version: Option<u64>) -> Result<u64, ClientError> {
        self.execute_change(&Op::Delete { key, version })
    }

    fn execute_change(&mut self, op: &Op<'_>) -> Result<u64, ClientError> {
        let ticket = self.start(op)?;
        self.wait(ticket).map(RequestResult::change_version_or_zero)
    }
}

pub(super) fn put_op<'a>(key: &'a [u8], value: &'a [u8]) -> Op<'a> {
    Op::Put {
        key,
        value,
        condition: SetCondition::Always,
        ttl_ms: 0,
    }
}

pub(super) fn value_of_outcome(outcome: RequestResult) -> Option<Value> {
    match outcome {
        RequestResult::Value(value) => Some(value),
        RequestResult::ChangedWithVersion(_) | RequestResult::NotFound => None,
    }
}

fn outcome_of_answer(answer: Answer<'_>) -> Result<RequestResult, ClientError> {
    match answer {
        Answer::Value { value, version } => Ok(RequestResult::Value(Value {
            bytes: value.to_vec(),
            version,
        })),
        Answer::Changed { version } => Ok(RequestResult::ChangedWithVersion(version)),
        Answer::NotFound => Ok(RequestResult::NotFound),
        Answer::ConditionNotMet { version } => Err(ClientError::ConditionNotMet { version }),
        Answer::StoreFull => Err(ClientError::StoreFull),
        Answer::TooLong => Err(ClientError::TooLong),
        Answer::NoAnswerInTime => Err(ClientError::NoAnswerInTime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Server, ServerConfig};

    #[test]
    fn nothing_is_kept_of_requests_that_nobody_can_ask_about() {
        let config = ServerConfig {
            item_capacity: 1000,
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
