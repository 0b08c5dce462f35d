//! The table of commands.

use crate::call::{Command, CommandCall, CommandResult};
use crate::{admin, keys, strings};

type Run = fn(&mut CommandCall<'_>) -> CommandResult;

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

/// All commands, the most frequent ones first.
#[rustfmt::skip]
pub(crate) static COMMANDS: &[Command] = &[
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
