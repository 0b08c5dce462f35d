//! Commands about the connection and the server.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::call::{
    CommandCall, CommandDescription, CommandError, CommandResult, SharedState, check_reply_length,
    escape_preview, find_command,
};
use crate::command_decoder::MAX_BULK_BYTES;
use crate::number::parse_canonical_integer;
use crate::reply::{Protocol, ReplyWriter};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The version of Redis whose behaviour these commands imitate; clients check it.
const REDIS_VERSION: &str = "7.0.0";

fn load_relaxed(n: &AtomicU64) -> u64 {
    n.load(Ordering::Relaxed)
}

fn to_i64_saturating(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn ping(call: &mut CommandCall<'_>) -> CommandResult {
    match (call.args.get(1), call.args.count()) {
        (None, _) => call.replies.write_simple_string("PONG"),
        (Some(message), 2) => call.replies.write_bulk_string(message),
        _ => return Err(CommandError::WrongArgumentCount("ping".to_owned())),
    }
    Ok(())
}

pub(crate) fn echo(call: &mut CommandCall<'_>) -> CommandResult {
    call.replies.write_bulk_string(call.args.get_or_empty(1));
    Ok(())
}

pub(crate) fn quit(call: &mut CommandCall<'_>) -> CommandResult {
    call.replies.write_simple_string("OK");
    call.connection_state.must_close = true;
    Ok(())
}

pub(crate) fn select(call: &mut CommandCall<'_>) -> CommandResult {
    match parse_canonical_integer(call.args.get_or_empty(1)) {
        Some(0) => call.replies.write_simple_string("OK"),
        Some(_) => return Err(CommandError::DatabaseIndexOutOfRange),
        None => return Err(CommandError::NotInteger),
    }
    Ok(())
}

pub(crate) fn hello(call: &mut CommandCall<'_>) -> CommandResult {
    let protocol = match call.args.get(1).map(parse_canonical_integer) {
        None => call.connection_state.protocol,
        Some(Some(2)) => Protocol::Resp2,
        Some(Some(3)) => Protocol::Resp3,
        Some(Some(_)) => return Err(CommandError::UnsupportedProtocolVersion),
        Some(None) => return Err(CommandError::ProtocolVersionNotInteger),
    };
    match call.args.get(2) {
        None => {}
        Some(word) if word.eq_ignore_ascii_case(b"auth") => return Err(CommandError::NoUsersExist),
        Some(word) => return Err(CommandError::InvalidHelloOption(escape_preview(word))),
    }
    call.connection_state.protocol = protocol;
    let replies = &mut call.replies;
    replies.set_protocol(protocol);
    replies.begin_map(7);
    for (key, value) in [
        ("server", "verbatim"),
        ("version", REDIS_VERSION),
        ("mode", "standalone"),
        ("role", "master"),
    ] {
        replies.write_bulk_string(key.as_bytes());
        replies.write_bulk_string(value.as_bytes());
    }
    replies.write_bulk_string(b"proto");
    replies.write_integer(match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    });
    replies.write_bulk_string(b"id");
    replies.write_integer(to_i64_saturating(call.connection_state.id));
    replies.write_bulk_string(b"modules");
    replies.begin_array(0);
    Ok(())
}

pub(crate) fn dbsize(call: &mut CommandCall<'_>) -> CommandResult {
    call.replies
        .write_integer(to_i64_saturating(call.shared.store.stats().items));
    Ok(())
}

pub(crate) fn flush(call: &mut CommandCall<'_>) -> CommandResult {
    match (call.args.get(1), call.args.count()) {
        (None, _) => {}
        // The flush is complete when the reply is sent, for both options.
        (Some(how), 2)
            if how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async") => {}
        _ => return Err(CommandError::Syntax),
    }
    call.shared.store.clear();
    call.replies.write_simple_string("OK");
    Ok(())
}

/// Returns the sections of `INFO` with their lines.
fn info_sections(shared: &SharedState) -> [(&'static str, String); 5] {
    let stats = shared.store.stats();
    [
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nserver_name:verbatim\r\nverbatim_version:{VERSION}\r\n\
                 redis_mode:standalone\r\nprocess_id:{}\r\nuptime_in_seconds:{}\r\n",
                std::process::id(),
                shared.start_time.elapsed().as_secs()
            ),
        ),
        (
            "Clients",
            // No command blocks, but clients expect the line.
            format!(
                "connected_clients:{}\r\nblocked_clients:0\r\n",
                load_relaxed(&shared.open_connections)
            ),
        ),
        (
            "Memory",
            format!(
                "used_memory:{}\r\nused_memory_dataset:{}\r\n",
                stats.memory_bytes, stats.data_bytes
            ),
        ),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\nrejected_connections:{}\r\n\
                 total_commands_processed:{}\r\ntotal_error_replies:{}\r\nprotocol_errors:{}\r\n\
                 expired_keys:{}\r\nevicted_keys:{}\r\nrefused_full:{}\r\n",
                load_relaxed(&shared.connections_total),
                load_relaxed(&shared.connections_refused),
                load_relaxed(&shared.commands_received),
                load_relaxed(&shared.error_replies),
                load_relaxed(&shared.protocol_errors),
                stats.expired,
                stats.evictions,
                stats.refused_full
            ),
        ),
        (
            "Keyspace",
            match stats.items {
                0 => String::new(),
                keys => format!("db0:keys={keys}\r\n"),
            },
        ),
    ]
}

pub(crate) fn info(call: &mut CommandCall<'_>) -> CommandResult {
    let wanted = |section: &str| {
        call.args.count() == 1
            || call.args.strings_from(1).any(|name| {
                let all = ["all", "everything", "default"];
                let mut names = all.into_iter().chain([section]);
                names.any(|n| name.eq_ignore_ascii_case(n.as_bytes()))
            })
    };
    let mut text = String::new();
    for (name, lines) in info_sections(call.shared)
        .iter()
        .filter(|(name, _)| wanted(name))
    {
        let gap = if text.is_empty() { "" } else { "\r\n" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{gap}# {name}\r\n{lines}");
    }
    call.replies.write_verbatim_string(&text);
    Ok(())
}

/// Returns the settings that clients read.
fn config_get_settings() -> [(&'static str, String); 4] {
    [
        // The store does not write to a disk.
        ("save", String::new()),
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("proto-max-bulk-len", MAX_BULK_BYTES.to_string()),
    ]
}

pub(crate) fn config(call: &mut CommandCall<'_>) -> CommandResult {
    let part = call.args.get_or_empty(1);
    if !part.eq_ignore_ascii_case(b"get") {
        return Err(CommandError::UnknownSubcommand(escape_preview(part)));
    }
    if call.args.count() < 3 {
        return Err(CommandError::WrongArgumentCount("config|get".to_owned()));
    }
    let mut found = config_get_settings().to_vec();
    found.retain(|(name, _)| {
        let mut names = call.args.strings_from(2);
        names.any(|n| n == b"*" || n.eq_ignore_ascii_case(name.as_bytes()))
    });
    call.replies.begin_map(found.len());
    for (name, value) in found {
        call.replies.write_bulk_string(name.as_bytes());
        call.replies.write_bulk_string(value.as_bytes());
    }
    Ok(())
}

pub(crate) fn command(call: &mut CommandCall<'_>) -> CommandResult {
    let part = call.args.get(1).map(<[u8]>::to_ascii_lowercase);
    let names: Vec<&[u8]> = call.args.strings_from(2).collect();
    let commands = call.commands;
    let replies = &mut call.replies;
    match part.as_deref() {
        None => {
            replies.begin_array(commands.len());
            commands.iter().for_each(|c| reply_command_info(replies, c));
        }
        Some(b"count") => replies.write_integer(i64::try_from(commands.len()).unwrap_or(i64::MAX)),
        Some(b"info") if names.is_empty() => {
            replies.begin_array(commands.len());
            commands.iter().for_each(|c| reply_command_info(replies, c));
        }
        Some(b"info") => {
            let begun = replies.output_length();
            replies.begin_array(names.len());
            for name in names {
                match find_command(commands, name) {
                    Some(command) => reply_command_info(replies, command),
                    None => replies.write_null(),
                }
                check_reply_length(begun, replies)?;
            }
        }
        Some(b"docs") => {
            let all = commands
                .iter()
                .filter(|c| names.is_empty() || is_requested(&names, c));
            let all: Vec<_> = all.collect();
            replies.begin_map(all.len());
            for command in all {
                replies.write_bulk_string(command.name.as_bytes());
                replies.begin_map(2);
                for (key, value) in [("summary", command.summary), ("group", command.group)] {
                    replies.write_bulk_string(key.as_bytes());
                    replies.write_bulk_string(value.as_bytes());
                }
            }
        }
        Some(other) => return Err(CommandError::UnknownSubcommand(escape_preview(other))),
    }
    Ok(())
}

fn is_requested(names: &[&[u8]], command: &CommandDescription) -> bool {
    let mut names = names.iter();
    names.any(|n| n.eq_ignore_ascii_case(command.name.as_bytes()))
}

/// Describes a command as `COMMAND` does: name, arity, flags, first key, last key, step.
fn reply_command_info(replies: &mut ReplyWriter<'_>, command: &CommandDescription) {
    replies.begin_array(6);
    replies.write_bulk_string(command.name.as_bytes());
    replies.write_integer(command.arity);
    replies.begin_set(command.flags.len());
    command
        .flags
        .iter()
        .for_each(|flag| replies.write_simple_string(flag));
    let (first, last, step) = command.key_range_and_step;
    [first, last, step]
        .iter()
        .for_each(|n| replies.write_integer(*n));
}
