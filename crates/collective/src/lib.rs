//! A receiver-driven transport for collectives, and ring collectives over it.
//!
//! The receiver posts first: it WRITEs clear-to-send entries (address, R_Key, tag) into a FIFO in the sender's memory.
//! The sender then WRITEs its bytes straight to their destination, divided among queue pairs, and ends each with a
//! WRITE_WITH_IMM. So there is no copy, no unexpected message, and no receive that is too small. NCCL's own InfiniBand
//! transport works this way; `libnccl-net-verbatim.so` puts this crate behind NCCL's plugin interface.
//!
//! - [`SendQueue`], [`ReceiveQueue`]: the protocol as state machines, without verbs.
//! - [`Sender`], [`Receiver`]: the two ends over reliable queue pairs. Every call returns at once: `None` means try again.
//! - [`PreparedSender`], [`PreparedReceiver`]: ends before they are connected, for any means of exchanging [`Hello`]s.
//! - [`Listener`], [`PendingConnect`]: the exchange by TCP, without blocking and without threads.
//! - [`Ring`]: all-reduce, all-gather, reduce-scatter, broadcast over a ring of ranks.
//! - [`Group`]: collectives of processes on memory that is not registered, as `torch.distributed` has them;
//!   [`RankMessenger`]: their sends and receives.
//!
//! ```
//! use std::time::Duration;
//! use collective::{Config, RequestHandle, connected_pair};
//! use verbs::{Access, poll_until};
//!
//! let pd = verbs::Provider::softnic().device(None)?.open()?.alloc_pd()?;
//! let (mut sender, mut receiver) = connected_pair(&pd, &pd, &Config::default())?; // usually in two processes
//! let (from, to) = (pd.alloc(4096, Access::ALL)?, pd.alloc(4096, Access::ALL)?);
//! from.write_at(0, b"tensor")?;
//!
//! let tag = 7;
//! let receive = receiver.irecv(&[(&to, 0..4096, tag)])?.expect("requests are free");
//! let wait = Duration::from_secs(5);
//! let send = poll_until(wait, || sender.isend(&from, 0..6, tag).transpose()).expect("cleared to send")?;
//! let sizes = poll_until(wait, || receiver.test(receive).transpose()).expect("it comes")?;
//! assert_eq!(sizes.as_slice(), [6]);
//! assert_eq!(poll_until(wait, || sender.test(send).transpose()).expect("it is acknowledged")?, 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod comm;
mod config;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod group;
mod memory_layout;
mod peer_watch;
mod progress;
mod receive_state;
mod rendezvous;
mod request_pool;
mod ring;
mod send_state;
mod unconnected_ends;

pub use comm::{Receiver, Sender};
pub use config::Config;
pub use error::Error;
pub use group::{Group, MessageMemory, PreparedGroup, RankMessenger};
pub use memory_layout::{ClearToSend, MAX_RECEIVES_PER_GROUP, MAX_REQUESTS};
pub use peer_watch::PeerLiveness;
pub use receive_state::{GroupPartSizes, ImmediateResult, ReceiveQueue};
pub use rendezvous::{ListenHandle, Listener, PendingConnect};
pub use request_pool::RequestHandle;
pub use ring::{DataType, Reduction, Ring, connect_local_ring, slice_bytes_for_block};
pub use send_state::{MatchedGroup as SendGroup, MatchedSend, SendMatch, SendQueue};
pub use unconnected_ends::{Hello, PreparedReceiver, PreparedSender, connected_pair};
