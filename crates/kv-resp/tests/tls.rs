//! The front end over TLS: with certificates of both sides, with clients that know nothing of TLS, and with more replies
//! than the socket takes.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use kv::{Server, ServerConfig};
use kv_resp::{FrontEnd, ListenAddress, TlsError, TlsFiles, TlsListener, TlsSettings};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use tempfile::TempDir;

/// An authority, and certificates that it has signed, as files.
struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ca.crt"), issuer.pem()).expect("a file");
        let authority = Self { folder, issuer };
        authority.sign("server");
        authority.sign("client");
        authority
    }

    fn sign(&self, name: &str) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        fs::write(self.path(&format!("{name}.crt")), certificate.pem()).expect("a file");
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("a file");
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn server_files(&self) -> TlsFiles {
        TlsFiles {
            certificates: self.path("server.crt"),
            private_key: self.path("server.key"),
            client_authorities: None,
        }
    }

    fn client(&self, version: &'static SupportedProtocolVersion, has_certificate: bool) -> Client {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(self.path("ca.crt")).expect("a certificate");
        roots.add(authority).expect("an authority");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_root_certificates(roots);
        let config = if has_certificate {
            let own = CertificateDer::from_pem_file(self.path("client.crt")).expect("a file");
            let key = PrivateKeyDer::from_pem_file(self.path("client.key")).expect("a key");
            builder
                .with_client_auth_cert(vec![own], key)
                .expect("a pair")
        } else {
            builder.with_no_client_auth()
        };
        let name = "localhost".try_into().expect("a name");
        Client(ClientConnection::new(Arc::new(config), name).expect("a session"))
    }
}

struct Client(ClientConnection);

impl Client {
    fn on<S: Read + Write>(self, socket: S) -> BufReader<StreamOwned<ClientConnection, S>> {
        BufReader::new(StreamOwned::new(self.0, socket))
    }
}

fn start(files: &[TlsFiles], addresses: &[ListenAddress]) -> (Server, FrontEnd) {
    let server = Server::start(ServerConfig {
        listen: "127.0.0.1:0".into(),
        ..ServerConfig::default()
    });
    let server = server.expect("starts");
    let listeners = files.iter().zip(addresses).map(|(files, address)| {
        let settings = TlsSettings::load(files).expect("files");
        TlsListener::listen(address, settings).expect("listens")
    });
    let front = FrontEnd::start(server.service().store().clone(), listeners.collect());
    (server, front.expect("starts"))
}

fn any_tcp() -> ListenAddress {
    ListenAddress::Tcp("127.0.0.1:0".into())
}

fn connect(front: &FrontEnd) -> TcpStream {
    TcpStream::connect(front.addresses()[0].to_string()).expect("connects")
}

/// Sends PING; returns the answer.
fn ping<S: Read + Write>(client: &mut BufReader<S>) -> std::io::Result<String> {
    client.get_mut().write_all(b"PING\r\n")?;
    let mut line = String::new();
    client.read_line(&mut line)?;
    Ok(line)
}

#[test]
fn tcp_and_unix_sockets_carry_both_versions() {
    let authority = Authority::new();
    let path = authority.path("socket");
    let addresses = [any_tcp(), ListenAddress::Unix(path.clone())];
    let files = [authority.server_files(), authority.server_files()];
    let (_server, front) = start(&files, &addresses);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut client = authority.client(version, false).on(connect(&front));
        assert_eq!(ping(&mut client).expect("answers"), "+PONG\r\n");
        let socket = UnixStream::connect(&path).expect("connects");
        let mut client = authority.client(version, false).on(socket);
        client.get_mut().write_all(b"QUIT\r\n").expect("it reads");
        let mut all = String::new();
        // The read ends without an error only if the server has said that nothing follows.
        client.read_to_string(&mut all).expect("ends");
        assert_eq!(all, "+OK\r\n");
    }
}

/// Replies are far more than sockets hold, and the client reads only after it has sent every command.
#[test]
fn replies_wait_for_room_in_the_socket() {
    const GETS: usize = 500;
    let authority = Authority::new();
    let (_server, front) = start(&[authority.server_files()], &[any_tcp()]);
    let client = authority.client(&rustls::version::TLS13, false);
    let mut client = client.on(connect(&front));
    let value: String = ('a'..='z').cycle().take(60_000).collect();
    let set = format!("SET key {value}\r\n");
    let set = set.replace("SET key ", "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$60000\r\n");
    client
        .get_mut()
        .write_all(set.as_bytes())
        .expect("it reads");
    let mut line = String::new();
    client.read_line(&mut line).expect("answers");
    assert_eq!(line, "+OK\r\n");
    let gets = "GET key\r\n".repeat(GETS);
    client
        .get_mut()
        .write_all(gets.as_bytes())
        .expect("it reads");
    std::thread::sleep(std::time::Duration::from_millis(300));
    let expected = format!("$60000\r\n{value}\r\n");
    let mut reply = vec![0; expected.len()];
    for _ in 0..GETS {
        client.read_exact(&mut reply).expect("a reply");
        assert!(reply == expected.as_bytes(), "wrong bytes");
    }
}

#[test]
fn a_client_that_ends_after_its_last_command_is_answered_and_closed() {
    let authority = Authority::new();
    let (_server, front) = start(&[authority.server_files()], &[any_tcp()]);
    let socket = connect(&front);
    let timeout = Some(std::time::Duration::from_secs(20));
    socket.set_read_timeout(timeout).expect("a socket");
    let client = authority.client(&rustls::version::TLS13, false);
    let mut client = client.on(socket);
    assert_eq!(ping(&mut client).expect("answers"), "+PONG\r\n");
    // The command and the message that nothing follows come in one packet, and the socket stays open.
    let StreamOwned { conn, sock } = client.get_mut();
    conn.writer().write_all(b"PING\r\n").expect("memory");
    conn.send_close_notify();
    let mut bytes = Vec::new();
    conn.write_tls(&mut bytes).expect("memory");
    sock.write_all(&bytes).expect("it reads");
    let mut rest = String::new();
    client.read_to_string(&mut rest).expect("ends");
    assert_eq!(rest, "+PONG\r\n");
}

#[test]
fn a_client_without_tls_disturbs_nobody() {
    let authority = Authority::new();
    let (_server, front) = start(&[authority.server_files()], &[any_tcp()]);
    let mut plain = connect(&front);
    plain.write_all(b"PING\r\nPING\r\n").expect("it reads");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    // An alert: type 21, of the version TLS 1.2.
    assert!(answer.starts_with(&[21, 3, 3]), "{answer:?}");
    let mut silent = connect(&front);
    silent.write_all(&[22, 3, 1, 0, 100, 1]).expect("it reads");
    drop(silent);
    let client = authority.client(&rustls::version::TLS13, false);
    let mut client = client.on(connect(&front));
    assert_eq!(ping(&mut client).expect("answers"), "+PONG\r\n");
}

#[test]
fn clients_need_a_certificate_of_the_authority_if_there_is_one() {
    let (authority, other) = (Authority::new(), Authority::new());
    let files = TlsFiles {
        client_authorities: Some(authority.path("ca.crt")),
        ..authority.server_files()
    };
    let (_server, front) = start(&[files], &[any_tcp()]);
    let version = &rustls::version::TLS13;
    let mut client = authority.client(version, true).on(connect(&front));
    assert_eq!(ping(&mut client).expect("answers"), "+PONG\r\n");
    // A client that trusts the server, but has no certificate, or that of another authority.
    fs::copy(authority.path("ca.crt"), other.path("ca.crt")).expect("a file");
    for refused in [
        authority.client(version, false),
        other.client(version, true),
    ] {
        let answer = ping(&mut refused.on(connect(&front)));
        let kind = answer.expect_err("refused").kind();
        let kinds = [
            ErrorKind::InvalidData,
            ErrorKind::ConnectionReset,
            ErrorKind::BrokenPipe,
        ];
        assert!(kinds.contains(&kind), "{kind}");
    }
    assert_eq!(front.stats().commands, 1);
}

#[test]
fn wrong_files_are_named() {
    let (authority, other) = (Authority::new(), Authority::new());
    let good = authority.server_files();
    let said = |files: &TlsFiles| {
        let error = TlsSettings::load(files).expect_err("wrong");
        let is_file = matches!(error, TlsError::File { .. });
        (error.to_string(), is_file)
    };
    for (files, text) in [
        (
            TlsFiles {
                certificates: authority.path("none.crt"),
                ..good.clone()
            },
            "certificate file",
        ),
        (
            TlsFiles {
                private_key: authority.path("server.crt"),
                ..good.clone()
            },
            "private key file",
        ),
        (
            TlsFiles {
                client_authorities: Some(authority.path("server.key")),
                ..good.clone()
            },
            "authority file",
        ),
    ] {
        let (said, is_file) = said(&files);
        assert!(is_file && said.starts_with(text), "{said}");
    }
    let files = TlsFiles {
        private_key: other.path("server.key"),
        ..good
    };
    let (said, is_file) = said(&files);
    assert!(!is_file && said.contains("private key"), "{said}");
}
