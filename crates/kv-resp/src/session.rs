//! A connection's session: decodes and executes commands.

use std::sync::atomic::Ordering;

use crate::call::{
    CommandCall, CommandError, CommandResult, ConnectionState, SharedState, escape_preview,
    find_command,
};
use crate::command_decoder::{CommandDecoder, CommandStrings, ProtocolError};
use crate::commands::COMMANDS;
use crate::reply::ReplyWriter;

/// Returns the beginning of an unknown command's arguments.
fn preview_args(args: CommandStrings<'_>) -> String {
    let mut text = String::new();
    for arg in args.strings_from(1) {
        if text.len() >= 128 {
            break;
        }
        text += &format!("'{}' ", escape_preview(arg));
    }
    text
}

fn execute(call: &mut CommandCall<'_>) -> CommandResult {
    let name = call.args.get_or_empty(0);
    let Some(command) = find_command(call.commands, name) else {
        return Err(CommandError::UnknownCommand {
            name: escape_preview(name),
            args: preview_args(call.args),
        });
    };
    let count = i64::try_from(call.args.count()).unwrap_or(i64::MAX);
    let fits = if command.arity < 0 {
        count >= -command.arity
    } else {
        count == command.arity
    };
    if !fits {
        return Err(CommandError::WrongArgumentCount(command.name.to_owned()));
    }
    (command.run)(call)
}

/// The protocol state of one connection: bytes in, bytes out.
///
/// ```
/// use std::sync::Arc;
/// use kv_resp::{Session, SharedState};
/// use kv::store::{Store, StoreConfig};
/// let store = Store::new(&StoreConfig::for_items(1, 1000, 16, 32))?;
/// let shared = SharedState::new(Arc::new(store));
/// let mut session = Session::new(1);
/// session.feed(b"SET k v\r\nGET k\r\n");
/// let mut out = Vec::new();
/// session.execute_received_unless_output_full(&shared, &mut out, usize::MAX);
/// assert_eq!(out, b"+OK\r\n$1\r\nv\r\n");
/// # Ok::<(), kv::store::NoMemory>(())
/// ```
#[derive(Debug)]
pub struct Session {
    decoder: CommandDecoder,
    state: ConnectionState,
}

impl Session {
    /// Creates the session of the connection with this number, which clients can query.
    pub fn new(id: u64) -> Self {
        Self {
            decoder: CommandDecoder::default(),
            state: ConnectionState {
                id,
                ..ConnectionState::default()
            },
        }
    }

    /// Takes received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.decoder.feed(bytes);
    }

    /// Returns true if the connection must be closed after the last reply.
    pub fn must_close(&self) -> bool {
        self.state.must_close
    }

    /// Executes complete commands as long as `out` is shorter than `most` bytes. Returns false if it stopped for that
    /// reason.
    pub fn execute_received_unless_output_full(
        &mut self,
        shared: &SharedState,
        out: &mut Vec<u8>,
        most: usize,
    ) -> bool {
        let (mut commands, mut errors) = (0, 0);
        while !self.state.must_close && out.len() < most {
            let mut replies = ReplyWriter::new(out, self.state.protocol);
            let args = match self.decoder.next_command() {
                Ok(Some(args)) => args,
                Ok(None) => break,
                Err(error) => {
                    reply_protocol_error(&mut replies, &error);
                    shared.protocol_errors.fetch_add(1, Ordering::Relaxed);
                    self.state.must_close = true;
                    break;
                }
            };
            commands += 1;
            if is_http(args.get_or_empty(0)) {
                tracing::warn!("a connection speaks HTTP, and is ended");
                shared.protocol_errors.fetch_add(1, Ordering::Relaxed);
                self.state.must_close = true;
                break;
            }
            let reply_start = replies.output_length();
            let mut call = CommandCall {
                shared,
                connection_state: &mut self.state,
                args,
                replies,
                commands: COMMANDS,
            };
            if let Err(error) = execute(&mut call) {
                errors += 1;
                call.replies.truncate(reply_start);
                call.replies.write_error(&error.to_string());
            }
        }
        shared
            .commands_received
            .fetch_add(commands, Ordering::Relaxed);
        shared.error_replies.fetch_add(errors, Ordering::Relaxed);
        self.state.must_close || out.len() < most
    }
}

fn reply_protocol_error(replies: &mut ReplyWriter<'_>, error: &ProtocolError) {
    replies.write_error(&format!("ERR Protocol error: {error}"));
}

/// Returns true for a header of HTTP. Like Redis, the session then ends, to stop web pages that make a browser send
/// commands to a local port.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

#[cfg(test)]
mod tests;
