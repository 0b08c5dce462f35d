//! The table of commands.

use crate::call::{CommandCall, CommandDescription, CommandResult};
use crate::{admin, key_commands, strings};

type CommandFunction = fn(&mut CommandCall<'_>) -> CommandResult;

const fn new_command(
    (name, arity, run): (&'static str, i64, CommandFunction),
    flags: &'static [&'static str],
    keys: (i64, i64, i64),
    group: &'static str,
    summary: &'static str,
) -> CommandDescription {
    CommandDescription {
        name,
        arity,
        flags,
        key_range_and_step: keys,
        group,
        summary,
        run,
    }
}

const READ_FLAGS: &[&str] = &["readonly", "fast"];
const GROWING_WRITE_FLAGS: &[&str] = &["write", "denyoom", "fast"];
const NO_GROWTH_WRITE_FLAGS: &[&str] = &["write", "fast"];
const SERVER_FLAGS: &[&str] = &["loading", "stale"];
const FAST_SERVER_FLAGS: &[&str] = &["loading", "stale", "fast"];
const ONE_KEY: (i64, i64, i64) = (1, 1, 1);
const ALL_KEYS: (i64, i64, i64) = (1, -1, 1);
const NO_KEYS: (i64, i64, i64) = (0, 0, 0);
const STRING_GROUP: &str = "string";
const GENERIC_GROUP: &str = "generic";
const CONNECTION_GROUP: &str = "connection";
const SERVER_GROUP: &str = "server";

/// All commands, the most frequent ones first.
#[rustfmt::skip]
pub(crate) static COMMANDS: &[CommandDescription] = &[
    new_command(("get", 2, strings::get), READ_FLAGS, ONE_KEY, STRING_GROUP, "Returns the value of a key."),
    new_command(("set", -3, strings::set), &["write", "denyoom"], ONE_KEY, STRING_GROUP, "Sets the value of a key: NX, XX, GET, EX, PX, EXAT, PXAT, KEEPTTL."),
    new_command(("ping", -1, admin::ping), FAST_SERVER_FLAGS, NO_KEYS, CONNECTION_GROUP, "Answers PONG, or the message."),
    new_command(("incr", 2, strings::incr), GROWING_WRITE_FLAGS, ONE_KEY, STRING_GROUP, "Adds one to the number of a key."),
    new_command(("decr", 2, strings::decr), GROWING_WRITE_FLAGS, ONE_KEY, STRING_GROUP, "Takes one from the number of a key."),
    new_command(("incrby", 3, strings::incrby), GROWING_WRITE_FLAGS, ONE_KEY, STRING_GROUP, "Adds to the number of a key."),
    new_command(("decrby", 3, strings::decrby), GROWING_WRITE_FLAGS, ONE_KEY, STRING_GROUP, "Takes from the number of a key."),
    new_command(("mget", -2, strings::mget), READ_FLAGS, ALL_KEYS, STRING_GROUP, "Returns the values of keys."),
    new_command(("mset", -3, strings::mset), &["write", "denyoom"], (1, -1, 2), STRING_GROUP, "Sets the values of keys, one after the other."),
    new_command(("strlen", 2, strings::strlen), READ_FLAGS, ONE_KEY, STRING_GROUP, "Returns the length of a value."),
    new_command(("del", -2, key_commands::del), &["write"], ALL_KEYS, GENERIC_GROUP, "Removes keys."),
    new_command(("unlink", -2, key_commands::del), NO_GROWTH_WRITE_FLAGS, ALL_KEYS, GENERIC_GROUP, "Removes keys."),
    new_command(("exists", -2, key_commands::exists), READ_FLAGS, ALL_KEYS, GENERIC_GROUP, "Counts the keys that are there."),
    new_command(("ttl", 2, key_commands::ttl), READ_FLAGS, ONE_KEY, GENERIC_GROUP, "Returns the seconds until a key expires."),
    new_command(("pttl", 2, key_commands::pttl), READ_FLAGS, ONE_KEY, GENERIC_GROUP, "Returns the milliseconds until a key expires."),
    new_command(("expire", -3, key_commands::expire), NO_GROWTH_WRITE_FLAGS, ONE_KEY, GENERIC_GROUP, "Sets the seconds until a key expires: NX, XX, GT, LT."),
    new_command(("pexpire", -3, key_commands::pexpire), NO_GROWTH_WRITE_FLAGS, ONE_KEY, GENERIC_GROUP, "Sets the milliseconds until a key expires: NX, XX, GT, LT."),
    new_command(("persist", 2, key_commands::persist), NO_GROWTH_WRITE_FLAGS, ONE_KEY, GENERIC_GROUP, "Lets a key not expire."),
    new_command(("echo", 2, admin::echo), FAST_SERVER_FLAGS, NO_KEYS, CONNECTION_GROUP, "Returns the message."),
    new_command(("hello", -1, admin::hello), FAST_SERVER_FLAGS, NO_KEYS, CONNECTION_GROUP, "Chooses the version of the protocol: 2 or 3."),
    new_command(("select", 2, admin::select), FAST_SERVER_FLAGS, NO_KEYS, CONNECTION_GROUP, "Chooses the database: there is 0."),
    new_command(("quit", -1, admin::quit), FAST_SERVER_FLAGS, NO_KEYS, CONNECTION_GROUP, "Ends the connection."),
    new_command(("info", -1, admin::info), SERVER_FLAGS, NO_KEYS, SERVER_GROUP, "Tells about the server and what it did."),
    new_command(("dbsize", 1, admin::dbsize), READ_FLAGS, NO_KEYS, SERVER_GROUP, "Counts all keys."),
    new_command(("flushall", -1, admin::flush), &["write"], NO_KEYS, SERVER_GROUP, "Removes all keys."),
    new_command(("flushdb", -1, admin::flush), &["write"], NO_KEYS, SERVER_GROUP, "Removes all keys."),
    new_command(("command", -1, admin::command), SERVER_FLAGS, NO_KEYS, SERVER_GROUP, "Tells about commands: COUNT, INFO, DOCS."),
    new_command(("config", -2, admin::config), &["admin", "loading", "stale"], NO_KEYS, SERVER_GROUP, "Returns settings: GET."),
];
