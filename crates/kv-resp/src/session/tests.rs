use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Session, SharedState};
use crate::reply::tests::{Reply, read};
use kv::store::{FullPolicy, Store, StoreConfig};

/// Returns the test's own time: each test runs in its own thread.
fn clock() -> u64 {
    NOW.with(|now| now.load(Ordering::Relaxed))
}

thread_local! {
    static NOW: AtomicU64 = const { AtomicU64::new(1_000_000) };
}

fn pass(ms: u64) {
    NOW.with(|now| now.fetch_add(ms, Ordering::Relaxed));
}

struct TestSession {
    shared: SharedState,
    session: Session,
}

impl TestSession {
    fn new() -> Self {
        Self::with(StoreConfig::for_items(2, 1000, 16, 32))
    }

    fn with(config: StoreConfig) -> Self {
        let config = StoreConfig {
            clock_ms: clock,
            ..config
        };
        let store = Arc::new(Store::new(&config).expect("memory"));
        Self {
            shared: SharedState::new(store),
            session: Session::new(7),
        }
    }

    /// Returns the replies to inline commands.
    fn all(&mut self, lines: &str) -> Vec<Reply> {
        self.session.feed(lines.as_bytes());
        let mut out = Vec::new();
        assert!(self.session.execute_received_unless_output_full(
            &self.shared,
            &mut out,
            usize::MAX
        ));
        let mut bytes = &out[..];
        let mut replies = Vec::new();
        while !bytes.is_empty() {
            replies.push(read(&mut bytes));
        }
        replies
    }

    /// Returns the reply to one inline command as text.
    fn reply_to(&mut self, line: &str) -> String {
        let replies = self.all(&format!("{line}\r\n"));
        replies.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    fn check(&mut self, lines: &[(&str, &str)]) {
        for (line, expected) in lines {
            assert_eq!(self.reply_to(line), *expected, "{line}");
        }
    }
}

fn shown(reply: &Reply) -> String {
    let all = |parts: &[Reply]| parts.iter().map(shown).collect::<Vec<_>>().join(" ");
    match reply {
        Reply::Simple(text) | Reply::Text(text) => text.clone(),
        Reply::Error(text) => format!("-{text}"),
        Reply::Integer(n) => format!(":{n}"),
        Reply::Bulk(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
        Reply::Null => "nil".to_owned(),
        Reply::Array(parts) => format!("[{}]", all(parts)),
        Reply::Map(parts) => format!("{{{}}}", all(parts)),
        Reply::Set(parts) => format!("~[{}]", all(parts)),
    }
}

#[test]
fn values_are_set_under_conditions() {
    TestSession::new().check(&[
        ("get k", "nil"),
        ("set k v xx", "nil"),
        ("SET k v NX", "OK"),
        ("SET k w NX", "nil"),
        ("GET k", "\"v\""),
        ("SET k w XX GET", "\"v\""),
        ("SET k x NX GET", "\"w\""),
        ("SET new x GET", "nil"),
        ("GET k", "\"w\""),
        ("STRLEN k", ":1"),
        ("MSET a 1 b 2 c 3", "OK"),
        ("MGET a none c", "[\"1\" nil \"3\"]"),
        ("EXISTS a a none", ":2"),
        ("DBSIZE", ":5"),
        ("DEL a a none b", ":2"),
        ("FLUSHALL async", "OK"),
        ("DBSIZE", ":0"),
        ("GET k", "nil"),
    ]);
}

#[test]
fn numbers_are_counted() {
    TestSession::new().check(&[
        ("INCR n", ":1"),
        ("INCRBY n 9", ":10"),
        ("DECR n", ":9"),
        ("DECRBY n 10", ":-1"),
        ("GET n", "\"-1\""),
        ("SET n 9223372036854775807", "OK"),
        ("INCR n", "-ERR increment or decrement would overflow"),
        (
            "DECRBY n -9223372036854775808",
            "-ERR decrement would overflow",
        ),
        ("GET n", "\"9223372036854775807\""),
        ("INCRBY n x", "-ERR value is not an integer or out of range"),
        ("SET n 01", "OK"),
        ("INCR n", "-ERR value is not an integer or out of range"),
        ("SET n 1 EX 100", "OK"),
        ("INCR n", ":2"),
        ("TTL n", ":100"),
    ]);
}

#[test]
fn keys_expire() {
    let mut talk = TestSession::new();
    talk.check(&[
        ("TTL k", ":-2"),
        ("SET k v", "OK"),
        ("TTL k", ":-1"),
        ("EXPIRE k 10 XX", ":0"),
        ("EXPIRE k 10", ":1"),
        ("EXPIRE k 10 NX", ":0"),
        ("EXPIRE k 9 GT", ":0"),
        ("EXPIRE k 20 GT", ":1"),
        ("EXPIRE k 30 LT", ":0"),
        ("PTTL k", ":20000"),
        ("SET k w KEEPTTL", "OK"),
    ]);
    pass(5_400);
    talk.check(&[("TTL k", ":15"), ("PTTL k", ":14600")]);
    talk.check(&[("PERSIST k", ":1"), ("PERSIST k", ":0"), ("TTL k", ":-1")]);
    talk.check(&[("PEXPIRE k 100", ":1"), ("GET k", "\"w\"")]);
    pass(100);
    talk.check(&[("GET k", "nil"), ("EXPIRE k 1", ":0")]);
    talk.check(&[
        ("SET k v PX 50", "OK"),
        ("PTTL k", ":50"),
        ("SET k v", "OK"),
        ("TTL k", ":-1"),
        ("SET k v EXAT 1010", "OK"),
        ("SET k v PXAT 9000000 KEEPTTL", "-ERR syntax error"),
        ("EXPIRE k -1", ":1"),
        ("EXISTS k", ":0"),
    ]);
    let wrong = "-ERR invalid expire time in 'set' command";
    talk.check(&[
        ("SET k v EX 0", wrong),
        ("SET k v PX -1", wrong),
        ("SET k v EX 9223372036854775807", wrong),
        (
            "SET k v EX a",
            "-ERR value is not an integer or out of range",
        ),
        ("SET k v EX", "-ERR syntax error"),
        ("SET k v NX XX", "-ERR syntax error"),
        ("SET k v EX 1 PX 1", "-ERR syntax error"),
        ("SET k v", "OK"),
        (
            "EXPIRE k 1 GT LT",
            "-ERR GT and LT options at the same time are not compatible",
        ),
        (
            "EXPIRE k 9223372036854775807",
            "-ERR invalid expire time in 'expire' command",
        ),
        ("TTL k", ":-1"),
    ]);
}

#[test]
fn what_cannot_be_done_is_said() {
    let mut talk = TestSession::new();
    talk.check(&[
        ("PING", "PONG"),
        ("PING 'a b'", "\"a b\""),
        ("ECHO x", "\"x\""),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        (
            "MSET a 1 b",
            "-ERR wrong number of arguments for 'mset' command",
        ),
        (
            "nosuch a 'b c'",
            "-ERR unknown command 'nosuch', with args beginning with: 'a' 'b c' ",
        ),
        ("SELECT 0", "OK"),
        ("SELECT 1", "-ERR DB index is out of range"),
        ("CONFIG SET save x", "-ERR unknown subcommand 'SET'"),
        ("CONFIG GET save nosuch", "[\"save\" \"\"]"),
    ]);
    let long = format!("SET k {}", "v".repeat(70_000));
    // The value is too long for an inline command.
    let words = talk.reply_to(&long);
    assert_eq!(words, "-ERR Protocol error: too big inline request");
    assert!(talk.session.must_close());
    assert_eq!(talk.shared.protocol_errors.load(Ordering::Relaxed), 1);
    assert_eq!(talk.all("PING\r\n"), []);
}

#[test]
fn a_long_value_and_a_full_store_are_refused() {
    let mut talk = TestSession::with(StoreConfig {
        full_policy: FullPolicy::Store,
        log_bytes: 1 << 16,
        ..StoreConfig::for_items(1, 10_000, 16, 32)
    });
    let long = format!(
        "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$70000\r\n{}",
        "v".repeat(70_000)
    );
    assert!(
        talk.reply_to(&long)
            .starts_with("-ERR the item is too long")
    );
    let value = "v".repeat(1000);
    let mut last = String::new();
    for i in 0..100 {
        last = talk.reply_to(&format!("SET k{i} {value}"));
    }
    assert!(last.starts_with("-OOM the store is full"), "{last}");
    assert_eq!(talk.reply_to("GET k0"), format!("{value:?}"));
    assert_eq!(talk.reply_to("GET k99"), "nil");
}

#[test]
fn the_protocol_is_chosen() {
    let mut talk = TestSession::new();
    talk.check(&[
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        (
            "HELLO 3 AUTH a b",
            "-ERR there are no users and no passwords",
        ),
        ("CONFIG GET appendonly", "[\"appendonly\" \"no\"]"),
    ]);
    let hello = talk.reply_to("HELLO 3");
    assert!(
        hello.starts_with('{') && hello.contains("\"proto\" :3 \"id\" :7"),
        "{hello}"
    );
    talk.check(&[("CONFIG GET appendonly", "{\"appendonly\" \"no\"}")]);
    assert_eq!(talk.all("GET none\r\n"), [Reply::Null]);
    assert!(talk.reply_to("HELLO 2").starts_with('['));
    talk.check(&[("SET k v", "OK")]);
    let info = talk.reply_to("INFO keyspace");
    assert_eq!(info, "\"# Keyspace\\r\\ndb0:keys=1\\r\\n\"");
    assert!(
        talk.reply_to("INFO")
            .contains("total_error_replies:2\\r\\n")
    );
    talk.check(&[("QUIT\r\nPING", "OK")]);
    assert!(talk.session.must_close());
}

#[test]
fn commands_describe_themselves() {
    let mut talk = TestSession::new();
    talk.check(&[(
        "COMMAND INFO mset nosuch",
        "[[\"mset\" :-3 [write denyoom] :1 :-1 :2] nil]",
    )]);
    let Reply::Array(all) = &talk.all("COMMAND\r\n")[0] else {
        panic!("COMMAND gives an array");
    };
    assert_eq!(talk.reply_to("COMMAND COUNT"), format!(":{}", all.len()));
    assert!(
        talk.reply_to("COMMAND DOCS get")
            .starts_with("[\"get\" [\"summary\" ")
    );
    for command in super::COMMANDS {
        // A command with the right number of arguments is executed, whatever they are.
        let arguments = usize::try_from(command.arity.abs() - 1).expect("a number");
        let line = format!("{}{}", command.name, " 1".repeat(arguments));
        let words = TestSession::new().reply_to(&line);
        assert!(!words.contains("unknown command"), "{line}: {words}");
        let arity = words.contains("wrong number");
        assert!(!arity || command.name == "config", "{line}: {words}");
    }
}

#[test]
fn a_web_page_is_sent_away() {
    let mut talk = TestSession::new();
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nFLUSHALL\r\n";
    talk.check(&[("SET k v", "OK")]);
    assert_eq!(
        talk.reply_to(request),
        "-ERR wrong number of arguments for 'get' command"
    );
    assert!(talk.session.must_close());
    assert_eq!(talk.shared.store.stats().items, 1);
}

#[test]
fn a_client_that_does_not_read_is_held() {
    let mut talk = TestSession::new();
    talk.check(&[("SET k vvvvvvvvvv", "OK")]);
    talk.session.feed("GET k\r\n".repeat(100).as_bytes());
    let mut out = Vec::new();
    let mut rounds = 0;
    while !talk
        .session
        .execute_received_unless_output_full(&talk.shared, &mut out, 50)
    {
        assert!(out.len() < 100);
        out.clear();
        rounds += 1;
    }
    assert!(rounds >= 20);
}
