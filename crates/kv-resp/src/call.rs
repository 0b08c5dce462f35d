//! The execution context of a command, and the errors of commands.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use kv::store::{Refusal, Store};

use crate::command_decoder::CommandStrings;
use crate::reply::{Protocol, ReplyWriter};

/// The state that all connections of a front end share.
#[derive(Debug)]
pub struct SharedState {
    pub(crate) store: Arc<Store>,
    pub(crate) start_time: Instant,
    pub(crate) open_connections: AtomicU64,
    pub(crate) connections_total: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) commands_received: AtomicU64,
    pub(crate) error_replies: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
}

impl SharedState {
    /// Creates the shared state for a store.
    pub fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            start_time: Instant::now(),
            open_connections: AtomicU64::new(0),
            connections_total: AtomicU64::new(0),
            connections_refused: AtomicU64::new(0),
            commands_received: AtomicU64::new(0),
            error_replies: AtomicU64::new(0),
            protocol_errors: AtomicU64::new(0),
        }
    }
}

/// Bytes of the longest reply, since a reply is built in memory.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// Returns an error if the reply that began at offset `reply_start` is too long.
pub(crate) fn check_reply_length(reply_start: usize, replies: &ReplyWriter<'_>) -> CommandResult {
    if replies.output_length() - reply_start > MAX_REPLY_BYTES {
        return Err(CommandError::ReplyTooLong);
    }
    Ok(())
}

/// The reason why a command failed, in Redis's words if Redis has the error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR value is not an integer or out of range")]
    NotInteger,
    #[error("ERR increment or decrement would overflow")]
    Overflow,
    #[error("ERR decrement would overflow")]
    DecrementOverflow,
    #[error("ERR {0} options at the same time are not compatible")]
    IncompatibleOptions(&'static str),
    #[error("ERR Unsupported option {0}")]
    UnsupportedOption(String),
    #[error("ERR invalid expire time in '{0}' command")]
    InvalidExpireTime(&'static str),
    #[error("OOM {0}")]
    StoreFull(Refusal),
    #[error("ERR {0}")]
    StoreRefused(Refusal),
    #[error("ERR what was asked for together is longer than {MAX_REPLY_BYTES} bytes")]
    ReplyTooLong,
    #[error("ERR wrong number of arguments for '{0}' command")]
    WrongArgumentCount(String),
    #[error("ERR unknown command '{name}', with args beginning with: {args}")]
    UnknownCommand { name: String, args: String },
    #[error("ERR unknown subcommand '{0}'")]
    UnknownSubcommand(String),
    #[error("ERR Syntax error in HELLO option '{0}'")]
    InvalidHelloOption(String),
    #[error("NOPROTO unsupported protocol version")]
    UnsupportedProtocolVersion,
    #[error("ERR Protocol version is not an integer or out of range")]
    ProtocolVersionNotInteger,
    #[error("ERR there are no users and no passwords")]
    NoUsersExist,
    #[error("ERR DB index is out of range")]
    DatabaseIndexOutOfRange,
}

impl From<Refusal> for CommandError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::StoreFull => Self::StoreFull(refusal),
            other => Self::StoreRefused(other),
        }
    }
}

pub(crate) type CommandResult = Result<(), CommandError>;

/// A command in execution.
pub(crate) struct CommandCall<'c> {
    pub(crate) shared: &'c SharedState,
    pub(crate) connection_state: &'c mut ConnectionState,
    pub(crate) args: CommandStrings<'c>,
    pub(crate) replies: ReplyWriter<'c>,
    /// All supported commands.
    pub(crate) commands: &'static [CommandDescription],
}

/// The state of one connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    pub(crate) id: u64,
    pub(crate) protocol: Protocol,
    pub(crate) must_close: bool,
}

/// The properties of a command. Source of the numbers: <https://redis.io/docs/latest/commands/command/>.
pub(crate) struct CommandDescription {
    /// The name in lower case.
    pub(crate) name: &'static str,
    /// Number of strings including the name; if negative, the minimum.
    pub(crate) arity: i64,
    /// Redis's flags of the command.
    pub(crate) flags: &'static [&'static str],
    /// The first key, the last key (negative: from the end), and the step between keys.
    pub(crate) key_range_and_step: (i64, i64, i64),
    /// Redis's group of the command.
    pub(crate) group: &'static str,
    /// A summary for people.
    pub(crate) summary: &'static str,
    /// The function that executes the command.
    pub(crate) run: fn(&mut CommandCall<'_>) -> CommandResult,
}

/// Finds a command by name, ignoring case.
pub(crate) fn find_command(
    commands: &'static [CommandDescription],
    name: &[u8],
) -> Option<&'static CommandDescription> {
    commands
        .iter()
        .find(|c| c.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Returns the beginning of a client's string for a message, with non-printable bytes escaped.
pub(crate) fn escape_preview(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(128)].escape_ascii().to_string()
}
