//! `verbatim kv cli`: sends one command of the Redis protocol.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kv_resp::{Answer, ListenAddress};
use resp_rdma::{Config, Connection, Connector};

use crate::CommandOutcome;
use crate::args::{NicArgs, PortArgs};
use crate::nic::OpenNic;
use crate::output::print_line;

/// Arguments of `verbatim kv cli`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where the server is: HOST:PORT, or the path of a Unix socket
    #[arg(value_name = "ADDR")]
    server: ListenAddress,
    /// The command and its arguments
    #[arg(value_name = "WORD", required = true, trailing_var_arg = true)]
    words: Vec<String>,
    /// Connect by RDMA, as `valkey-cli --rdma`
    #[arg(long)]
    rdma: bool,
    #[command(flatten)]
    nic: NicArgs,
    #[command(flatten)]
    port: PortArgs,
}

const EXAMPLES: &str = "\
It prints the answer as redis-cli does for programs: text as it is, each element of a list on a line, nothing for what is not \
there.

Examples:
  verbatim kv cli 127.0.0.1:6379 ping
  verbatim kv cli --rdma 127.0.0.1:6379 set colour green
  verbatim kv cli --rdma 127.0.0.1:6379 get colour

Exit status 1 when the answer is an error.";

/// The time that the server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `verbatim kv cli`.
pub(crate) fn run(args: &Args) -> Result<CommandOutcome> {
    let mut server = connect(args).with_context(|| format!("cannot reach {}", args.server))?;
    server.write_all(&kv_resp::encode_command(
        args.words.iter().map(String::as_bytes),
    ))?;
    let mut came = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let answer = loop {
        if let Some((answer, _)) = Answer::parse(&came)? {
            break answer;
        }
        match server
            .read(&mut buffer)
            .context("the server has not answered")?
        {
            0 => bail!("the server ended the connection before its answer was whole"),
            n => came.extend_from_slice(buffer.get(..n).unwrap_or_default()),
        }
    };
    let failed = matches!(answer, Answer::Error(_));
    print_line(answer)?;
    Ok(if failed {
        CommandOutcome::NegativeAnswer
    } else {
        CommandOutcome::Done
    })
}

/// A connection whose calls block.
trait BlockingConnection: Read + Write {}

impl<T: Read + Write> BlockingConnection for T {}

fn connect(args: &Args) -> Result<Box<dyn BlockingConnection>> {
    if args.rdma {
        let ListenAddress::Rdma(at) = args.server.to_rdma_address()? else {
            bail!("--rdma needs HOST:PORT");
        };
        let nic = OpenNic::open(&args.nic, &args.port)?;
        let connector = Connector::new(&nic.context, Config::default())?;
        return Ok(Box::new(BlockingRdmaConnection(
            connector.connect(at, ANSWER_TIMEOUT)?,
        )));
    }
    Ok(match &args.server {
        ListenAddress::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            Box::new(stream)
        }
        other => {
            let stream = TcpStream::connect(other.to_string())?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            Box::new(stream)
        }
    })
}

/// A connection over RDMA whose calls block.
struct BlockingRdmaConnection(Connection);

impl BlockingRdmaConnection {
    fn retry_until_ready(
        &mut self,
        mut act: impl FnMut(&mut Connection) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match act(&mut self.0) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.0.wait_for_arrival(left)? && left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Read for BlockingRdmaConnection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.retry_until_ready(|c| c.read(into))
    }
}

impl Write for BlockingRdmaConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry_until_ready(|c| c.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
