//! Connections over TLS, on TCP and Unix sockets.

use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mio::event::Source;
use mio::{Interest, Registry, Token};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::connection::{Connection, ListenAddress, Listener};

/// The PEM files of a TLS server, as Redis's options `tls-cert-file`, `tls-key-file` and `tls-ca-cert-file` name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and then those of the authorities between it and the root.
    pub certificates: PathBuf,
    /// The private key of the server's certificate.
    pub private_key: PathBuf,
    /// The certificates of the authorities that sign clients' certificates. `None` accepts clients without certificate.
    pub client_authorities: Option<PathBuf>,
}

/// An error in the files of a TLS server.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or has no such PEM section.
    #[error("{what} file {}: {reason}", path.display())]
    File {
        /// The content that the file should have.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The certificate and the private key do not belong together, or have an unknown type.
    #[error("the certificate and the private key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// No authority can be used to check clients.
    #[error("the clients' authorities cannot be used: {0}")]
    Authorities(#[from] VerifierBuilderError),
}

/// The settings of a TLS server: TLS 1.2 and 1.3.
#[derive(Debug, Clone)]
pub struct TlsSettings(Arc<ServerConfig>);

impl TlsSettings {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or has no such content, or the private key is not that of the certificate.
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let certificates = read_certificates("certificate", &files.certificates)?;
        let key = PrivateKeyDer::from_pem_file(&files.private_key);
        let key = key.map_err(|e| file_error("private key", &files.private_key, e))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match &files.client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in read_certificates("authority", path)? {
                    roots.add(authority)?;
                }
                let roots = Arc::new(roots);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build()?)
            }
        };
        Ok(Self(Arc::new(builder.with_single_cert(certificates, key)?)))
    }
}

fn read_certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(none) if none.is_empty() => Err(file_error(what, path, "no certificate in PEM form")),
        Ok(some) => Ok(some),
        Err(e) => Err(file_error(what, path, e)),
    }
}

fn file_error(what: &'static str, path: &Path, reason: impl ToString) -> TlsError {
    TlsError::File {
        what,
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// A listener whose connections speak TLS.
pub struct TlsListener {
    sockets: Box<dyn Listener>,
    settings: TlsSettings,
}

impl TlsListener {
    /// Listens for TLS at the address of a TCP or Unix socket.
    ///
    /// # Errors
    /// As [`ListenAddress::listen`].
    pub fn listen(at: &ListenAddress, settings: TlsSettings) -> io::Result<Box<dyn Listener>> {
        let sockets = at.listen()?;
        Ok(Box::new(Self { sockets, settings }))
    }
}

impl Listener for TlsListener {
    fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        let socket = self.sockets.accept()?;
        let session = ServerConnection::new(Arc::clone(&self.settings.0));
        Ok(Box::new(TlsConnection {
            session: session.map_err(io::Error::other)?,
            socket,
            encrypted_bytes: 0,
            has_ended: false,
            error_after_bytes: None,
        }))
    }

    fn address(&self) -> ListenAddress {
        self.sockets.address()
    }
}

impl Source for TlsListener {
    fn register(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.sockets.register(r, token, interests)
    }

    fn reregister(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.sockets.reregister(r, token, interests)
    }

    fn deregister(&mut self, r: &Registry) -> io::Result<()> {
        self.sockets.deregister(r)
    }
}

/// A connection over TLS.
///
/// As `SSL_write(3)`, a write that returned [`ErrorKind::WouldBlock`] must be repeated with the same bytes: they are
/// encrypted, and wait for room in the socket.
struct TlsConnection {
    session: ServerConnection,
    socket: Box<dyn Connection>,
    /// Number of bytes that are encrypted, while the caller of `write` has not been told so.
    encrypted_bytes: usize,
    /// True if a read has found the end of the stream.
    has_ended: bool,
    /// The error that a read found after bytes.
    error_after_bytes: Option<io::Error>,
}

impl TlsConnection {
    /// Sends records until the socket has no room.
    fn send_records(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            if self.session.write_tls(&mut self.socket)? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Receives and decrypts records. Returns false if the socket has no more bytes now.
    fn receive_records(&mut self) -> io::Result<bool> {
        match self.session.read_tls(&mut self.socket) {
            // The session remembers the end of the stream.
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        }
        let processed = self.session.process_new_packets();
        // The answer of a handshake, or the alert that tells the client what was wrong. Without room in the socket the
        // next flush sends it.
        match self.send_records() {
            Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
            _ => {}
        }
        let invalid = |e| io::Error::new(ErrorKind::InvalidData, e);
        processed.map_err(invalid).map(|_| true)
    }
}

impl Connection for TlsConnection {
    fn has_unreported_end(&self) -> bool {
        self.has_ended || self.error_after_bytes.is_some()
    }
}

impl Read for TlsConnection {
    /// Reads until the buffer is full, or the socket has no more bytes.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(error) = self.error_after_bytes.take() {
            return Err(error);
        }
        let mut done = 0;
        while done < into.len() {
            match self.session.reader().read(&mut into[done..]) {
                Ok(0) => {
                    self.has_ended = true;
                    break;
                }
                Ok(n) => done += n,
                // The client ended without a message, as Redis's clients do.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    self.has_ended = true;
                    break;
                }
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                Err(e) => match self.receive_records() {
                    Ok(true) => {}
                    Ok(false) if done == 0 => return Err(e),
                    Ok(false) => break,
                    Err(e) if done == 0 => return Err(e),
                    Err(e) => {
                        self.error_after_bytes = Some(e);
                        break;
                    }
                },
            }
        }
        Ok(done)
    }
}

impl Write for TlsConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send_records()?;
        if self.encrypted_bytes == 0 {
            self.encrypted_bytes = self.session.writer().write(bytes)?;
            self.send_records()?;
        }
        Ok(std::mem::take(&mut self.encrypted_bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_records()
    }
}

impl Source for TlsConnection {
    fn register(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.socket.register(r, token, interests)
    }

    fn reregister(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.socket.reregister(r, token, interests)
    }

    fn deregister(&mut self, r: &Registry) -> io::Result<()> {
        self.socket.deregister(r)
    }
}

impl Drop for TlsConnection {
    /// Tells the client that nothing was cut off, if the socket has room.
    fn drop(&mut self) {
        self.session.send_close_notify();
        let _ = self.send_records();
    }
}
