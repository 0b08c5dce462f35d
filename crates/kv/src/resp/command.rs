//! Commands: which there are, and how one is carried out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::frame::{Args, Decoder, ProtocolError};
use super::reply::{Protocol, Replies};
use super::{admin, keys, strings};
use crate::store::{Refusal, Store};

/// What all connections of a front share.
#[derive(Debug)]
pub struct Shared {
    pub(super) store: Arc<Store>,
    pub(super) started: Instant,
    pub(super) connections: AtomicU64,
    pub(super) connections_total: AtomicU64,
    pub(super) connections_refused: AtomicU64,
    pub(super) commands: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) protocol_errors: AtomicU64,
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
pub(super) fn check_length(begun: usize, replies: &Replies<'_>) -> Done {
    if replies.bytes() - begun > MAX_REPLY_BYTES {
        return Err(CommandError::ReplyTooLong);
    }
    Ok(())
}

/// Why a command was not carried out, in Redis's words where it has some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CommandError {
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

pub(super) type Done = Result<(), CommandError>;

/// A command that is carried out.
pub(super) struct Call<'c> {
    pub(super) shared: &'c Shared,
    pub(super) session: &'c mut State,
    pub(super) args: Args<'c>,
    pub(super) replies: Replies<'c>,
}

/// What a connection has said of itself.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) id: u64,
    pub(super) protocol: Protocol,
    pub(super) ends: bool,
}

/// What there is to know of a command. Source of the numbers: <https://redis.io/docs/latest/commands/command/>.
pub(super) struct Command {
    /// In lower case.
    pub(super) name: &'static str,
    /// How many strings it has with its name, at least so many if negative.
    pub(super) arity: i64,
    /// Redis's words for what it does.
    pub(super) flags: &'static [&'static str],
    /// The first key, the last one (negative: from the end), and the step between them.
    pub(super) keys: (i64, i64, i64),
    /// Redis's group of commands.
    pub(super) group: &'static str,
    /// For people.
    pub(super) summary: &'static str,
    run: fn(&mut Call<'_>) -> Done,
}

type Run = fn(&mut Call<'_>) -> Done;

const fn command(
    (name, arity, run): (&'static str, i64, Run),
    flags: &'static [&'static str],
    keys: (i64, i64, i64),
    group: &'static str,
    summary: &'static str,
) -> Command {
    Command {
        name,
        arity,
        flags,
        keys,
        group,
        summary,
        run,
    }
}

const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const CHANGE: &[&str] = &["write", "fast"];
const SERVER: &[&str] = &["loading", "stale"];
const QUICK: &[&str] = &["loading", "stale", "fast"];
const ONE: (i64, i64, i64) = (1, 1, 1);
const ALL: (i64, i64, i64) = (1, -1, 1);
const NONE: (i64, i64, i64) = (0, 0, 0);
const STRING: &str = "string";
const GENERIC: &str = "generic";
const CONNECTION: &str = "connection";
const ADMIN: &str = "server";

/// All commands; those that are asked for most come first.
#[rustfmt::skip]
pub(super) static COMMANDS: &[Command] = &[
    command(("get", 2, strings::get), READ, ONE, STRING, "Returns the value of a key."),
    command(("set", -3, strings::set), &["write", "denyoom"], ONE, STRING, "Sets the value of a key: NX, XX, GET, EX, PX, EXAT, PXAT, KEEPTTL."),
    command(("ping", -1, admin::ping), QUICK, NONE, CONNECTION, "Answers PONG, or the message."),
    command(("incr", 2, strings::incr), WRITE, ONE, STRING, "Adds one to the number of a key."),
    command(("decr", 2, strings::decr), WRITE, ONE, STRING, "Takes one from the number of a key."),
    command(("incrby", 3, strings::incrby), WRITE, ONE, STRING, "Adds to the number of a key."),
    command(("decrby", 3, strings::decrby), WRITE, ONE, STRING, "Takes from the number of a key."),
    command(("mget", -2, strings::mget), READ, ALL, STRING, "Returns the values of keys."),
    command(("mset", -3, strings::mset), &["write", "denyoom"], (1, -1, 2), STRING, "Sets the values of keys, one after the other."),
    command(("strlen", 2, strings::strlen), READ, ONE, STRING, "Returns the length of a value."),
    command(("del", -2, keys::del), &["write"], ALL, GENERIC, "Removes keys."),
    command(("unlink", -2, keys::del), CHANGE, ALL, GENERIC, "Removes keys."),
    command(("exists", -2, keys::exists), READ, ALL, GENERIC, "Counts the keys that are there."),
    command(("ttl", 2, keys::ttl), READ, ONE, GENERIC, "Returns the seconds until a key expires."),
    command(("pttl", 2, keys::pttl), READ, ONE, GENERIC, "Returns the milliseconds until a key expires."),
    command(("expire", -3, keys::expire), CHANGE, ONE, GENERIC, "Sets the seconds until a key expires: NX, XX, GT, LT."),
    command(("pexpire", -3, keys::pexpire), CHANGE, ONE, GENERIC, "Sets the milliseconds until a key expires: NX, XX, GT, LT."),
    command(("persist", 2, keys::persist), CHANGE, ONE, GENERIC, "Lets a key not expire."),
    command(("echo", 2, admin::echo), QUICK, NONE, CONNECTION, "Returns the message."),
    command(("hello", -1, admin::hello), QUICK, NONE, CONNECTION, "Chooses the version of the protocol: 2 or 3."),
    command(("select", 2, admin::select), QUICK, NONE, CONNECTION, "Chooses the database: there is 0."),
    command(("quit", -1, admin::quit), QUICK, NONE, CONNECTION, "Ends the connection."),
    command(("info", -1, admin::info), SERVER, NONE, ADMIN, "Tells about the server and what it did."),
    command(("dbsize", 1, admin::dbsize), READ, NONE, ADMIN, "Counts all keys."),
    command(("flushall", -1, admin::flush), &["write"], NONE, ADMIN, "Removes all keys."),
    command(("flushdb", -1, admin::flush), &["write"], NONE, ADMIN, "Removes all keys."),
    command(("command", -1, admin::command), SERVER, NONE, ADMIN, "Tells about commands: COUNT, INFO, DOCS."),
    command(("config", -2, admin::config), &["admin", "loading", "stale"], NONE, ADMIN, "Returns settings: GET."),
];

/// The command of a name, in any case of letters.
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS
        .iter()
        .find(|c| c.name.as_bytes().eq_ignore_ascii_case(name))
}

/// A string of a client in a message: its beginning, and no byte that is not to be seen.
pub(super) fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(128)].escape_ascii().to_string()
}

/// The beginning of the arguments of a command that is not known.
fn beginning(args: Args<'_>) -> String {
    let mut text = String::new();
    for arg in args.from(1) {
        if text.len() >= 128 {
            break;
        }
        text += &format!("'{}' ", shown(arg));
    }
    text
}

fn carry_out(call: &mut Call<'_>) -> Done {
    let name = call.args.at(0);
    let Some(command) = find(name) else {
        return Err(CommandError::Unknown {
            name: shown(name),
            args: beginning(call.args),
        });
    };
    let count = i64::try_from(call.args.count()).unwrap_or(i64::MAX);
    let fits = if command.arity < 0 {
        count >= -command.arity
    } else {
        count == command.arity
    };
    if !fits {
        return Err(CommandError::Count(command.name.to_owned()));
    }
    (command.run)(call)
}

/// One connection: its bytes in, its bytes out.
///
/// ```
/// use std::sync::Arc;
/// use kv::resp::{Session, Shared};
/// use kv::store::{Store, StoreConfig};
/// let store = Store::new(&StoreConfig::for_items(1, 1000, 16, 32))?;
/// let shared = Shared::new(Arc::new(store));
/// let mut session = Session::new(1);
/// session.feed(b"SET k v\r\nGET k\r\n");
/// let mut out = Vec::new();
/// session.run(&shared, &mut out, usize::MAX);
/// assert_eq!(out, b"+OK\r\n$1\r\nv\r\n");
/// # Ok::<(), kv::store::NoMemory>(())
/// ```
#[derive(Debug)]
pub struct Session {
    decoder: Decoder,
    state: State,
}

impl Session {
    /// A connection by its number, which clients may ask for.
    pub fn new(id: u64) -> Self {
        Self {
            decoder: Decoder::default(),
            state: State {
                id,
                ..State::default()
            },
        }
    }

    /// Takes what came.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.decoder.feed(bytes);
    }

    /// Whether it ends once everything is said.
    pub fn ends(&self) -> bool {
        self.state.ends
    }

    /// Carries out what has come, as long as `out` is shorter than `most` bytes; false if it stopped because of that.
    pub fn run(&mut self, shared: &Shared, out: &mut Vec<u8>, most: usize) -> bool {
        let (mut commands, mut errors) = (0, 0);
        while !self.state.ends && out.len() < most {
            let mut replies = Replies::new(out, self.state.protocol);
            let args = match self.decoder.next_command() {
                Ok(Some(args)) => args,
                Ok(None) => break,
                Err(error) => {
                    refuse(&mut replies, &error);
                    shared.protocol_errors.fetch_add(1, Ordering::Relaxed);
                    self.state.ends = true;
                    break;
                }
            };
            commands += 1;
            if is_http(args.at(0)) {
                tracing::warn!("a connection speaks HTTP, and is ended");
                shared.protocol_errors.fetch_add(1, Ordering::Relaxed);
                self.state.ends = true;
                break;
            }
            let begun = replies.bytes();
            let mut call = Call {
                shared,
                session: &mut self.state,
                args,
                replies,
            };
            if let Err(error) = carry_out(&mut call) {
                errors += 1;
                call.replies.take_back(begun);
                call.replies.error(&error.to_string());
            }
        }
        shared.commands.fetch_add(commands, Ordering::Relaxed);
        shared.errors.fetch_add(errors, Ordering::Relaxed);
        self.state.ends || out.len() < most
    }
}

fn refuse(replies: &mut Replies<'_>, error: &ProtocolError) {
    replies.error(&format!("ERR Protocol error: {error}"));
}

/// A web page that makes a browser send commands to a local port is stopped as Redis stops it: at a header of HTTP.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

#[cfg(test)]
mod tests;
