//! `verbatim stream serve`: runs an echo server until a signal stops it.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use liveness::socket_file::SocketFile;
use serde::{Deserialize, Serialize};
use stream::{Listener, RdmaPolicy};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixListener;

use super::messages::MAX_READ_BYTES;
use crate::CommandOutcome;
use crate::args::{self, NicArgs, PortArgs};
use crate::output::{print_line, print_typed_json};
use crate::stop::stop_request_channel;
use crate::streams::{
    new_tokio_runtime, parse_socket_address, raise_descriptor_limit, stream_config,
};

/// Arguments of `verbatim stream serve`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8002", value_parser = parse_socket_address)]
    listen: SocketAddr,
    /// Listen at this Unix socket, too
    #[arg(long, value_name = "FILE")]
    unix: Option<PathBuf>,
    /// Listen at this address by rsockets, too; the software NIC alone has them
    #[arg(long, value_name = "IP:PORT", value_parser = parse_socket_address)]
    rsocket: Option<SocketAddr>,
    /// Decline RDMA: clients fall back to TCP
    #[arg(long)]
    tcp_only: bool,
    /// WRs of each queue, and so blocks of 8 KiB that a connection has posted
    #[arg(long, value_name = "N", default_value = "128", value_parser = args::integer_parser_in_range("a count of WRs", 16..=4096u16))]
    queue: u16,
    /// Stop at the end of standard input, too
    #[arg(long)]
    until_eof: bool,
    /// Print a JSON object when it listens
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
Examples:
  verbatim stream serve
  verbatim stream serve --listen 10.0.0.7:8002";

/// The line that the server prints when it listens.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ListeningLine {
    pub(super) address: SocketAddr,
    /// Address of the rsocket, if one was asked for.
    pub(super) rsocket: Option<SocketAddr>,
}

/// Runs `verbatim stream serve`.
pub(super) fn run(args: &Args) -> Result<CommandOutcome> {
    let policy = if args.tcp_only {
        RdmaPolicy::TcpOnly
    } else {
        RdmaPolicy::FallBack
    };
    let mut config = stream_config(&args.nic, &args.port, policy)?;
    config.queue_size = args.queue;
    raise_descriptor_limit()?;
    let rsocket = args
        .rsocket
        .map(super::rsockets::start_echo_server)
        .transpose()?;
    let stop = stop_request_channel(args.until_eof)?;
    let (tell, stopped) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // The server ends at a message, or when the sending side of the channel is dropped.
        let _ = stop.recv();
        let _ = tell.send(());
    });
    new_tokio_runtime()?.block_on(async {
        let listener = Listener::bind_with_config(args.listen, config).await;
        let mut listener = listener.with_context(|| format!("cannot listen at {}", args.listen))?;
        // The file of the Unix socket is removed when the server ends.
        let _unix_file = args.unix.as_deref().map(listen_unix).transpose()?;
        let address = listener.local_addr()?;
        if args.json {
            print_typed_json("listening", &ListeningLine { address, rsocket })?;
        } else {
            print_line(format_args!("echo at {address}, by RDMA and by TCP"))?;
            if let Some(rsocket) = rsocket {
                print_line(format_args!("echo at {rsocket}, by rsockets"))?;
            }
        }
        let serving = async {
            loop {
                match listener.accept().await {
                    Ok(stream) => drop(tokio::spawn(echo(stream))),
                    // Descriptors may have run out; wait until other connections end.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        tokio::select! {
            () = serving => {}
            _ = stopped => {}
        }
        Ok(CommandOutcome::Done)
    })
}

/// Serves a Unix socket at `path` in a task.
fn listen_unix(path: &Path) -> Result<SocketFile> {
    let listen = || {
        let (listener, file) = SocketFile::listen(path)?;
        listener.set_nonblocking(true)?;
        Ok::<_, io::Error>((UnixListener::from_std(listener)?, file))
    };
    let (listener, file) =
        listen().with_context(|| format!("cannot listen at {}", path.display()))?;
    tokio::spawn(serve_unix(listener));
    Ok(file)
}

async fn serve_unix(listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(echo(stream))),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Sends all received bytes back, until the client closes its side.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut room = vec![0; MAX_READ_BYTES];
    loop {
        let read = stream.read(&mut room).await?;
        if read == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&room[..read]).await?;
    }
}
