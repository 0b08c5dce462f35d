//! `verbatim kv serve --resp` as seen by Redis's own programs.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::{self, ANYWHERE, KillOnDrop, json_lines};

fn run(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).args(args);
    command
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e} (packages redis-tools and redis-server)"))
}

/// Returns the output of a program that must succeed.
fn text(program: &str, args: &[&str]) -> String {
    let output = run(program, args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {err}");
    assert_eq!(err, "", "{program} {args:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn verbatim(args: &[&str]) -> Output {
    common::run(&[&["kv"], args].concat())
}

/// A store with both protocols, stopped when the test ends.
struct Server(common::Server);

impl Server {
    fn start(resp: &str) -> Server {
        let flags = ["--workers", "2", "--resp", resp];
        Server(common::Server::start("kv", ANYWHERE, &flags))
    }

    /// Returns the address for Redis clients.
    fn resp(&self) -> &str {
        self.0.said["resp"].as_str().expect("an address")
    }

    /// Returns the address as arguments of Redis's programs.
    fn flags(&self) -> Vec<&str> {
        match self.resp().rsplit_once(':') {
            Some((host, port)) => vec!["-h", host, "-p", port],
            None => vec!["-s", self.resp()],
        }
    }

    fn cli(&self, args: &[&str]) -> String {
        let flags = self.flags();
        let args: Vec<&str> = flags.iter().chain(args).copied().collect();
        text("redis-cli", &args)
    }

    /// Ends the server; returns the statistics of its front end.
    fn stop(self) -> Value {
        self.0.told("resp")
    }
}

/// Runs redis-cli and redis-benchmark on a server.
fn look_at(server: &Server) {
    for (args, printed) in [
        (&["ping"][..], "PONG\n"),
        (&["set", "colour", "green"], "OK\n"),
        (&["get", "colour"], "green\n"),
        (&["-3", "get", "none"], "\n"),
        (&["set", "colour", "red", "nx"], "\n"),
        (&["set", "colour", "red", "xx", "ex", "1000"], "OK\n"),
        (&["mset", "a", "1", "b", "2"], "OK\n"),
        (&["-3", "mget", "a", "none", "b"], "1\n\n2\n"),
        (&["incr", "a"], "2\n"),
        (&["exists", "a", "b", "none"], "2\n"),
        (&["expire", "a", "1000"], "1\n"),
        (&["persist", "a"], "1\n"),
        (&["del", "b"], "1\n"),
        (&["dbsize"], "2\n"),
        (
            &["nosuch"],
            "ERR unknown command 'nosuch', with args beginning with: \n\n",
        ),
    ] {
        assert_eq!(server.cli(args), printed, "{args:?}");
    }
    let left: u64 = server
        .cli(&["ttl", "colour"])
        .trim()
        .parse()
        .expect("a number");
    assert!((1..=1000).contains(&left));

    // Values that one protocol sets are visible through the other.
    let get = verbatim(&["get", &server.0.address, "colour"]);
    let printed = String::from_utf8_lossy(&get.stdout);
    assert_eq!(printed, "colour = red (version 2)\n");
    let put = verbatim(&["put", &server.0.address, "sky", "blue"]);
    assert!(put.status.success());
    assert_eq!(server.cli(&["get", "sky"]), "blue\n");

    for tests in [
        &["-P", "16", "-t", "ping,set,get,incr,mset"][..],
        &["-3", "-t", "set,get"],
    ] {
        let size = ["-q", "-n", "3200", "-c", "20", "-r", "100", "-d", "30"];
        let args: Vec<&str> = server
            .flags()
            .into_iter()
            .chain(size)
            .chain(tests.iter().copied())
            .collect();
        let printed = text("redis-benchmark", &args);
        for name in ["SET", "GET"] {
            let done = format!("{name}: ");
            assert!(
                printed
                    .lines()
                    .any(|l| l.rsplit('\r').next().is_some_and(|l| l.starts_with(&done))),
                "{printed}"
            );
        }
    }
    // 3200 INCRs, a whole number of pipelines of 16, were each carried out once.
    let keys: Vec<String> = (0..100).map(|i| format!("counter:{i:012}")).collect();
    let mget: Vec<&str> = ["mget"]
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .collect();
    let counted: u64 = server
        .cli(&mget)
        .lines()
        .filter_map(|n| n.parse::<u64>().ok())
        .sum();
    assert_eq!(counted, 3200);
    assert_eq!(
        server.cli(&["get", "key:000000000001"]).trim_end().len(),
        30
    );

    let info = server.cli(&["info"]);
    assert!(
        info.contains("server_name:verbatim\r\n") && info.contains("db0:keys="),
        "{info}"
    );
    assert_eq!(server.cli(&["flushall"]), "OK\n");
    assert_eq!(server.cli(&["dbsize"]), "0\n");
}

#[test]
fn redis_programs_on_tcp() {
    let server = Server::start("127.0.0.1:0");
    look_at(&server);
    let did = server.stop();
    assert!(did["commands"].as_u64() > Some(20_000), "{did}");
    assert_eq!(did["protocol_errors"], 0, "{did}");
}

#[test]
fn redis_programs_on_a_unix_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let path = path.to_str().expect("text");
    // The socket of a killed server is replaced; one in use is not.
    drop(Server::start(path));
    assert!(Path::new(path).exists());
    let server = Server::start(path);
    let second = verbatim(&["serve", "--listen", "127.0.0.1:0", "--resp", path]);
    let err = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{err}");
    assert!(err.contains("cannot speak the Redis protocol on"), "{err}");
    look_at(&server);
    server.stop();
    assert!(!Path::new(path).exists());
}

#[test]
fn redis_programs_over_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let [certificate, key] = ["server.crt", "server.key"].map(|name| folder.path().join(name));
    let [certificate, key] = [&certificate, &key].map(|path| path.to_str().expect("text"));
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    let request = [
        "req",
        "-x509",
        "-newkey",
        "ed25519",
        "-nodes",
        "-subj",
        "/CN=localhost",
    ];
    let files = ["-addext", names, "-keyout", key, "-out", certificate];
    let made = run("openssl", &[&request[..], &files].concat());
    let err = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{err}");
    let flags = ["--resp-tls", "127.0.0.1:0", "--tls-cert-file", certificate];
    let flags = [&flags[..], &["--tls-key-file", key]].concat();
    let server = common::Server::start("kv", ANYWHERE, &flags);
    let address = server.said["resp_tls"].as_str().expect("an address");
    assert!(server.said.get("resp").is_none(), "{}", server.said);
    let (host, port) = address.rsplit_once(':').expect("a port");
    let flags = ["-h", host, "-p", port, "--tls", "--cacert", certificate];
    let redis = |program: &str, args: &[&str]| text(program, &[&flags[..], args].concat());
    assert_eq!(redis("redis-cli", &["set", "colour", "green"]), "OK\n");
    assert_eq!(redis("redis-cli", &["get", "colour"]), "green\n");
    let size = ["-q", "-n", "3200", "-c", "20", "-P", "16", "-d", "3000"];
    let printed = redis("redis-benchmark", &[&size[..], &["-t", "set,get"]].concat());
    assert!(
        printed.contains("SET: ") && printed.contains("GET: "),
        "{printed}"
    );
    // A client that does not know the certificate's authority refuses the server.
    let stranger = run("redis-cli", &["-h", host, "-p", port, "--tls", "ping"]);
    assert!(!String::from_utf8_lossy(&stranger.stdout).contains("PONG"));
    let did = server.told("resp");
    assert!(did["commands"].as_u64() > Some(6400), "{did}");
}

/// Commands whose replies must equal Redis's, byte for byte.
const AS_REDIS: &str = r#"
PING
PING "a \x00b"
PING a b
ECHO
SELECT 0
SELECT 1a
SET k v
SET k w NX
SET k w NX GET
SET k w XX GET
SET new w XX GET
SET k w EX 10 PX 10
SET k w EX
SET k w EX 0
SET k w PX -1
SET k w EX 9223372036854775807
SET k w EX a
SET k w foo
SET k w KEEPTTL EX 1
SET k w NX XX
SET k w NX GET EX 10
SET k 'a b' GET
GET k
GET
GET a b
MSET a
MSET a 1 b
MSET a 1 b 2 a 3
MGET a b none k
STRLEN k
STRLEN none
INCR k
INCR n
INCRBY n 41
DECR n
SET n 9223372036854775807
INCR n
DECRBY n -9223372036854775808
DECRBY n -1
INCRBY n 1.5
SET n " 1"
INCR n
DEL a b none n
UNLINK none
EXISTS k k none
EXPIRE k 1000 XX
EXPIRE k 1000 NX
EXPIRE k 1000 NX
EXPIRE k 500 GT
EXPIRE k 2000 GT
EXPIRE k 2000000 LT
EXPIRE k 1 NX XX
EXPIRE k 1 GT LT
EXPIRE k 1 foo
EXPIRE k a
EXPIRE k 9223372036854775807
EXPIRE none 1
PERSIST k
PERSIST k
TTL k
EXPIRE k 10 GT
EXPIRE k 1000 LT
SET k v
TTL k
SET k v EXAT 99999999999
SET k w KEEPTTL
PERSIST k
PEXPIRE k -1
TTL k
PTTL none
HELLO 4
HELLO a
HELLO 2 foo
CONFIG GET save
CONFIG GET appendonly nosuch
CONFIG GET
COMMAND INFO nosuch
FLUSHALL foo
FLUSHALL SYNC
FLUSHDB ASYNC
DBSIZE
nosuch a 'b c'
QUIT
"#;

#[test]
fn replies_are_those_of_redis() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path().join("ours").to_str().expect("text"));
    let path = folder.path().join("redis");
    let path = path.to_str().expect("text");
    let redis = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket", path, "--dir"])
        .arg(folder.path())
        .stdout(Stdio::null())
        .spawn();
    let redis = redis.unwrap_or_else(|e| panic!("redis-server: {e} (package redis-server)"));
    let mut redis = KillOnDrop(redis);
    while UnixStream::connect(path).is_err() {
        let ended = redis.0.try_wait().expect("a child");
        assert!(ended.is_none(), "redis-server: {ended:?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let said = |path: &str| {
        let mut stream = UnixStream::connect(path).expect("it listens");
        let mut replies = BufReader::new(stream.try_clone().expect("a descriptor"));
        let lines = AS_REDIS.trim().lines();
        let asked: String = lines.flat_map(|line| [line, "\r\n"]).collect();
        stream.write_all(asked.as_bytes()).expect("it reads");
        let mut said = String::new();
        replies.read_to_string(&mut said).expect("it ends");
        said
    };
    let (ours, theirs) = (said(server.resp()), said(path));
    assert!(theirs.ends_with("+OK\r\n"), "{theirs}");
    assert_eq!(
        ours.lines().collect::<Vec<_>>(),
        theirs.lines().collect::<Vec<_>>()
    );
}

#[test]
fn clients_that_misbehave_disturb_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let server = Server::start(path.to_str().expect("text"));
    let connect = || UnixStream::connect(&path).expect("it listens");

    let mut bad = connect();
    bad.write_all(b"PING\r\n*1\r\n!\r\n").expect("it reads");
    let mut said = String::new();
    bad.read_to_string(&mut said).expect("it ends");
    assert_eq!(
        said,
        "+PONG\r\n-ERR Protocol error: expected '$', got '!'\r\n"
    );

    // Send half a command and disconnect.
    connect().write_all(b"*2\r\n$3\r\nGE").expect("it reads");

    // Request 40 MB in one write, and close the sending side before reading.
    let value = "v".repeat(40_000);
    assert_eq!(server.cli(&["set", "long", &value]), "OK\n");
    let mut greedy = connect();
    greedy
        .write_all("GET long\r\n".repeat(1000).as_bytes())
        .expect("it reads");
    greedy
        .shutdown(std::net::Shutdown::Write)
        .expect("it is there");
    assert_eq!(server.cli(&["ping"]), "PONG\n");
    let mut all = String::new();
    greedy.read_to_string(&mut all).expect("it ends");
    assert_eq!(all, format!("$40000\r\n{value}\r\n").repeat(1000));

    let did = server.stop();
    assert_eq!(did["protocol_errors"], 1);
    assert_eq!(did["connections_total"], 5);
}

#[test]
fn an_address_that_is_none_is_refused() {
    let output = verbatim(&["serve", "--resp", "6379"]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("is neither HOST:PORT"), "{err}");
}

#[test]
fn the_front_is_measured_beside_redis() {
    let size = [
        "--rounds",
        "1",
        "--duration",
        "20ms",
        "--keys",
        "1000",
        "--json",
    ];
    let output = verbatim(&[&["resp"][..], &size].concat());
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let lines = json_lines(&output).into_iter();
    let rows: Vec<Value> = lines.filter(|l| l["type"] == "row").collect();
    let names: Vec<(&str, u64)> = rows
        .iter()
        .map(|r| (r["data"]["test"].as_str(), r["data"]["pipeline"].as_u64()))
        .map(|(test, pipeline)| (test.expect("a name"), pipeline.expect("a number")))
        .collect();
    assert_eq!(names, [("set", 64), ("get", 64), ("set", 1), ("get", 1)]);
    assert!(
        rows.iter()
            .all(|r| r["data"]["ratio"]["median"].as_f64() > Some(0.0))
    );
}
