//! A command under way: what it works on, and why it may fail.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use kv::store::{Refusal, Store};

use crate::frame::Args;
use crate::reply::{Protocol, Replies};

/// The state that all connections of a front end share.
#[derive(Debug)]
pub struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) started: Instant,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_total: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
}

impl Shared {
    /// Before this store.
    pub fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            started: Instant::now(),
            connections: AtomicU64::new(0),
            connections_total: AtomicU64::new(0),
            connections_refused: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            protocol_errors: AtomicU64::new(0),
        }
    }
}

/// The longest reply: one is made in memory.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// Refuses a reply that was begun at so many bytes, once it is too long.
pub(crate) fn check_length(begun: usize, replies: &Replies<'_>) -> Done {
    if replies.bytes() - begun > MAX_REPLY_BYTES {
        return Err(CommandError::ReplyTooLong);
    }
    Ok(())
}

/// Why a command was not carried out, in Redis's words where it has some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR value is not an integer or out of range")]
    NotInteger,
    #[error("ERR increment or decrement would overflow")]
    Overflow,
    #[error("ERR decrement would overflow")]
    Negation,
    #[error("ERR {0} options at the same time are not compatible")]
    Together(&'static str),
    #[error("ERR Unsupported option {0}")]
    Option(String),
    #[error("ERR invalid expire time in '{0}' command")]
    Expire(&'static str),
    #[error("OOM {0}")]
    Full(Refusal),
    #[error("ERR {0}")]
    Refused(Refusal),
    #[error("ERR what was asked for together is longer than {MAX_REPLY_BYTES} bytes")]
    ReplyTooLong,
    #[error("ERR wrong number of arguments for '{0}' command")]
    Count(String),
    #[error("ERR unknown command '{name}', with args beginning with: {args}")]
    Unknown { name: String, args: String },
    #[error("ERR unknown subcommand '{0}'")]
    Subcommand(String),
    #[error("ERR Syntax error in HELLO option '{0}'")]
    Hello(String),
    #[error("NOPROTO unsupported protocol version")]
    NoProtocol,
    #[error("ERR Protocol version is not an integer or out of range")]
    BadProtocol,
    #[error("ERR there are no users and no passwords")]
    NoAuth,
    #[error("ERR DB index is out of range")]
    Database,
}

impl From<Refusal> for CommandError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => Self::Full(refusal),
            other => Self::Refused(other),
        }
    }
}

pub(crate) type Done = Result<(), CommandError>;

/// A command that is carried out.
pub(crate) struct Call<'c> {
    pub(crate) shared: &'c Shared,
    pub(crate) session: &'c mut State,
    pub(crate) args: Args<'c>,
    pub(crate) replies: Replies<'c>,
    /// All commands that there are.
    pub(crate) commands: &'static [Command],
}

/// The state that a connection has set for itself.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) id: u64,
    pub(crate) protocol: Protocol,
    pub(crate) ends: bool,
}

/// Properties of a command. Source of the numbers: <https://redis.io/docs/latest/commands/command/>.
pub(crate) struct Command {
    /// In lower case.
    pub(crate) name: &'static str,
    /// How many strings it has with its name, at least so many if negative.
    pub(crate) arity: i64,
    /// Redis's words for what it does.
    pub(crate) flags: &'static [&'static str],
    /// The first key, the last one (negative: from the end), and the step between them.
    pub(crate) keys: (i64, i64, i64),
    /// Redis's group of commands.
    pub(crate) group: &'static str,
    /// For people.
    pub(crate) summary: &'static str,
    /// Carries it out.
    pub(crate) run: fn(&mut Call<'_>) -> Done,
}

/// The command of a name, in any case of letters.
pub(crate) fn find(commands: &'static [Command], name: &[u8]) -> Option<&'static Command> {
    commands
        .iter()
        .find(|c| c.name.as_bytes().eq_ignore_ascii_case(name))
}

/// A string of a client in a message: its beginning, and no byte that is not to be seen.
pub(crate) fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(128)].escape_ascii().to_string()
}
