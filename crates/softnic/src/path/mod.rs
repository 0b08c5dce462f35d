//! How one queue pair reaches another.
//!
//! There are two paths, and everything above them (posting, order, completions, rights, states) is the same:
//!
//! - *Shared memory*, for the processes of one fabric: SENDs are records in a ring, one-sided verbs are executed by the
//!   requester (`send::out_ring`, `send::one_sided`).
//! - *Messages*: requests and answers as bytes, which a network carries ([`message`]); the [`requester`] repeats what
//!   is lost, the [`responder`] executes each request once. The network of this crate is a [`loopback`] within
//!   one process, with delay and loss, for tests.
//!
//! The modules here are pure: they know neither queue pairs nor memory. `send::messages` makes requests of work
//! requests and takes answers, `recv::messages` takes requests.

pub(crate) mod loopback;
pub(crate) mod message;
pub(crate) mod requester;
pub(crate) mod responder;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use shm::clock::now_ns;

use loopback::{BadPath, Loopback, PATH_VAR, Settings};
use message::Message;

/// The process has a network: every poll lets it deliver.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether queue pairs of this process reach each other by messages.
#[inline]
pub(crate) fn uses_messages() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// The network that carries the messages of this process.
pub(crate) struct Network {
    loopback: Mutex<Loopback>,
    /// Held by the thread that delivers, so that messages keep their order.
    delivering: Mutex<()>,
}

impl Network {
    /// The network that the environment asks for; `None`: shared memory.
    ///
    /// # Errors
    /// Where `VERBATIM_PATH` has no known value.
    pub(crate) fn from_env() -> Result<Option<Self>, BadPath> {
        let Some(value) = std::env::var_os(PATH_VAR) else {
            return Ok(None);
        };
        let settings = Settings::parse(&value.to_string_lossy())?;
        IN_USE.store(settings.is_some(), Ordering::Relaxed);
        Ok(settings.map(|settings| Self {
            loopback: Mutex::new(Loopback::new(settings)),
            delivering: Mutex::new(()),
        }))
    }

    /// Sends the bytes of a message.
    pub(crate) fn send(&self, message: Vec<u8>) {
        self.with_loopback(|loopback| loopback.send(message, now_ns()));
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.with_loopback(|loopback| loopback.is_empty())
    }

    /// Calls `deliver` with each message that has arrived.
    pub(crate) fn deliver(&self, mut deliver: impl FnMut(Message)) {
        let _delivering = self
            .delivering
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while let Some(bytes) = self.with_loopback(|loopback| loopback.receive(now_ns())) {
            // What cannot be read is lost, as a damaged packet is.
            if let Some(message) = Message::decode(&bytes) {
                deliver(message);
            }
        }
    }

    fn with_loopback<T>(&self, f: impl FnOnce(&mut Loopback) -> T) -> T {
        f(&mut self.loopback.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
