//! Blocking calls over a [`PipelinedClient`].

use verbs::Context;

use super::error::ClientError;
use super::pipeline::PipelinedClient;
use super::request::{Answer, ClientStats};
use crate::config::ClientConfig;
use crate::key_or_value::KeyOrValue;
use crate::rendezvous::RendezvousProtocol;
use crate::tree::PutCondition;
use crate::wire::Operation;

/// A blocking client of a [`Server`](crate::Server) for one thread, with one request at a time. Dropping the client
/// disconnects it.
///
/// ```
/// use btree::{ByteString, Client, ClientConfig, Server, ServerConfig};
///
/// let server = Server::<u64>::start(ServerConfig { key_capacity: 1000, ..Default::default() })?;
/// let mut client = Client::<u64>::connect(ClientConfig { server: server.address().to_string(), ..Default::default() })?;
/// assert!(!client.put(0, 7, 700)?, "the key is new");
/// assert!(client.insert_if_absent(0, 7, 701)?, "the key is there, and keeps its value");
/// assert_eq!(client.get(0, 7)?, Some(700));
/// assert_eq!(client.scan(0, 0, None, 10)?, [(7, 700)]);
/// assert!(client.delete(0, 7)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client<T: KeyOrValue = u64> {
    pipeline: PipelinedClient<T>,
    scan_entries: Vec<(T, T)>,
}

/// An answer without borrowed data.
enum OwnedAnswer<T> {
    Value(Option<T>),
    Found(bool),
    Entries,
}

impl<T: KeyOrValue> Client<T> {
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
        connector: service::LocalConnector<RendezvousProtocol>,
        context: &Context,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        PipelinedClient::connect_to_local_server(connector, context, config)
            .map(Self::from_pipeline)
    }

    fn from_pipeline(pipeline: PipelinedClient<T>) -> Self {
        Self {
            pipeline,
            scan_entries: Vec::new(),
        }
    }

    /// Returns the client's statistics, such as retries.
    pub fn stats(&self) -> &ClientStats {
        self.pipeline.stats()
    }

    fn request(&mut self, tree: u8, op: &Operation<T>) -> Result<OwnedAnswer<T>, ClientError> {
        self.pipeline.refresh_clock();
        while !self.pipeline.submit(tree, op, 0)? {
            self.pipeline.poll(|_| {})?;
        }
        let mut outcome = None;
        let entries = &mut self.scan_entries;
        while outcome.is_none() {
            self.pipeline.poll(|done| {
                outcome = Some(match done.answer {
                    Answer::Value(value) => Ok(OwnedAnswer::Value(value)),
                    Answer::Changed { found } => Ok(OwnedAnswer::Found(found)),
                    Answer::Entries { entries: all, .. } => {
                        entries.clear();
                        entries.extend_from_slice(all);
                        Ok(OwnedAnswer::Entries)
                    }
                    Answer::Moved(moved) => Err(ClientError::Moved {
                        first_key: moved.first_key.to_string(),
                        server: moved.owner.server_number,
                    }),
                    Answer::HandoverStepDone { .. } | Answer::HandoverStepRefused => {
                        Err(ClientError::NoAnswerInTime)
                    }
                    Answer::StoreFull => Err(ClientError::StoreFull),
                    Answer::NoAnswerInTime => Err(ClientError::NoAnswerInTime),
                });
            })?;
        }
        outcome.unwrap_or(Err(ClientError::NoAnswerInTime))
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&mut self, tree: u8, key: T) -> Result<Option<T>, ClientError> {
        match self.request(tree, &Operation::Get { key })? {
            OwnedAnswer::Value(value) => Ok(value),
            _ => Err(ClientError::NoAnswerInTime),
        }
    }

    /// Sets the value of a key. Returns true if the key was present before.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn put(&mut self, tree: u8, key: T, value: T) -> Result<bool, ClientError> {
        self.execute_change(tree, &put_op(key, value, PutCondition::Always))
    }

    /// Sets the value of a key if it is absent. Returns true if the key was present; its value is then unchanged.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn insert_if_absent(&mut self, tree: u8, key: T, value: T) -> Result<bool, ClientError> {
        self.execute_change(tree, &put_op(key, value, PutCondition::Absent))
    }

    /// Sets the value of a key if it is present. Returns true if the key was present.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn update(&mut self, tree: u8, key: T, value: T) -> Result<bool, ClientError> {
        self.execute_change(tree, &put_op(key, value, PutCondition::Present))
    }

    /// Removes a key. Returns true if the key was present.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn delete(&mut self, tree: u8, key: T) -> Result<bool, ClientError> {
        self.execute_change(tree, &Operation::Delete { key })
    }

    fn execute_change(&mut self, tree: u8, op: &Operation<T>) -> Result<bool, ClientError> {
        match self.request(tree, op)? {
            OwnedAnswer::Found(found) => Ok(found),
            _ => Err(ClientError::NoAnswerInTime),
        }
    }

    /// Returns up to `limit` entries in ascending order, from `from` on and below `end`, if given.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn scan(
        &mut self,
        tree: u8,
        from: T,
        end: Option<T>,
        limit: u32,
    ) -> Result<Vec<(T, T)>, ClientError> {
        self.request(tree, &Operation::Scan { from, end, limit })?;
        Ok(std::mem::take(&mut self.scan_entries))
    }
}

fn put_op<T: KeyOrValue>(key: T, value: T, when: PutCondition) -> Operation<T> {
    Operation::Put { key, value, when }
}
