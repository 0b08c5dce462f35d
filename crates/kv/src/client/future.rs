//! Requests as futures, for any single-threaded executor.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::blocking::{Client, RequestResult, RequestTicket, Value, put_op, value_of_outcome};
use super::error::ClientError;
use crate::store::SetCondition;
use crate::wire::Op;

/// A [`Client`] whose requests are futures. Clones share the same client.
///
/// The client has no reactor: a pending future polls the NIC whenever it is polled, and asks to be polled again. So the
/// executor's thread spins while requests are outstanding. Futures that are polled together (`join_all`, tasks of one
/// executor) are sent together, up to [`ClientConfig::window`](crate::ClientConfig::window). One more blocks until
/// another is completed. A request whose future is dropped may still take effect.
///
/// ```
/// use futures::executor::block_on;
/// use futures::future::try_join_all;
/// use kv::{AsyncClient, Client, ClientConfig, Server, ServerConfig};
///
/// let server = Server::start(ServerConfig { item_capacity: 1000, ..Default::default() })?;
/// let config = ClientConfig { server: server.address().to_string(), ..Default::default() };
/// let client = AsyncClient::new(Client::connect(config)?);
/// block_on(async {
///     client.put(b"one", b"1").await?;
///     client.put(b"two", b"2").await?;
///     let values = try_join_all([&b"one"[..], b"two", b"three"].map(|key| client.get(key))).await?;
///     let there: Vec<bool> = values.iter().map(Option::is_some).collect();
///     assert_eq!(there, [true, true, false]);
///     Ok::<(), kv::ClientError>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct AsyncClient {
    client: Rc<RefCell<Client>>,
}

impl AsyncClient {
    /// Wraps a connected client.
    pub fn new(client: Client) -> Self {
        let client = Rc::new(RefCell::new(client));
        Self { client }
    }

    /// Executes any request.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn request(&self, op: &Op<'_>) -> Result<RequestResult, ClientError> {
        let ticket = self.client.borrow_mut().start(op)?;
        RequestFuture {
            client: &self.client,
            ticket: Some(ticket),
            was_polled: false,
        }
        .await
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>, ClientError> {
        self.request(&Op::Get { key }).await.map(value_of_outcome)
    }

    /// Sets the value of a key, and returns its new version.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<u64, ClientError> {
        self.request(&put_op(key, value))
            .await
            .map(RequestResult::change_version_or_zero)
    }

    /// Sets the value of a key if it has this version, and returns its new version.
    ///
    /// # Errors
    /// [`ClientError::ConditionNotMet`] if the key has another version.
    pub async fn compare_and_set(
        &self,
        key: &[u8],
        version: u64,
        value: &[u8],
    ) -> Result<u64, ClientError> {
        let op = Op::Put {
            key,
            value,
            condition: SetCondition::Version(version),
            ttl_ms: 0,
        };
        self.request(&op)
            .await
            .map(RequestResult::change_version_or_zero)
    }

    /// Removes a key. Returns true if the key was present.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, ClientError> {
        let op = Op::Delete { key, version: None };
        self.request(&op)
            .await
            .map(|done| done.change_version_or_zero() != 0)
    }
}

/// The future of a started request.
struct RequestFuture<'a> {
    client: &'a RefCell<Client>,
    /// `None` once the request is completed.
    ticket: Option<RequestTicket>,
    was_polled: bool,
}

impl Future for RequestFuture<'_> {
    type Output = Result<RequestResult, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.client;
        let mut client = shared.borrow_mut();
        // The first poll only starts the request, so that one doorbell covers all requests that are polled together.
        if std::mem::replace(&mut self.was_polled, true)
            && let Err(error) = client.poll_without_waiting()
        {
            return Poll::Ready(Err(error));
        }
        let ticket = self.ticket.take().expect("not polled after it was ready");
        match client.take_outcome(ticket) {
            Ok(outcome) => Poll::Ready(outcome),
            Err(ticket) => {
                self.ticket = Some(ticket);
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

impl Drop for RequestFuture<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.client.borrow_mut().forget(ticket);
        }
    }
}
