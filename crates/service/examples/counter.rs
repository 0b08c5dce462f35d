//! Skeleton of a new service: a counter behind HERD RPC, to which clients add.
//!
//! The service defines its configuration and design, the three messages of its rendezvous, its
//! operations, and a check of the clients' results. A new service begins as a copy of this file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rpc::herd::{self, BatchPolicy, ConnectedClient, RequestRegionLayout};
use rpc::{BufferedUdQpConfig, Request, RequestReplier, RpcError, RpcHandler, RpcWorkerCounts};
use serde::{Deserialize, Serialize};
use service::worker::{self, Mailbox, ResultSender, WakeEventfd, WorkerLoop};
use service::{
    Capabilities, ClientRefusal, ClientSlot, ClientsConnected, FreeSlots, NicConfig, Protocol,
    ServerError, ServerLocation, Service, UnsupportedDesign, config::check_in_range,
};
use verbs::{
    CompletionQueue, Context, PortAndGidIndex, ProtectionDomain, QpEndpoint, RemoteMemory, Waiter,
};

service::designs! {
    /// Access of the clients to the counter.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Design {
        /// HERD RPC.
        Rpc: "rpc", "UC WRITE in, UD SEND out", [herd::NEEDED_CAPABILITIES];
    }
}

/// Configuration of a server.
#[derive(Debug, Default)]
struct Config {
    nic: NicConfig,
    /// Maximum number of simultaneous clients, 1 to 64.
    max_clients: usize,
}

impl service::ServerConfig for Config {
    fn check(&self) -> Result<(), String> {
        check_in_range("max_clients", self.max_clients, 1..=64)
    }
    fn check_device(&self, device: &Capabilities) -> Result<(), UnsupportedDesign> {
        Design::Rpc.check(device)
    }
    fn listen_address(&self) -> &str {
        "127.0.0.1:0"
    }
    fn nic(&self) -> &NicConfig {
        &self.nic
    }
    fn max_window(&self) -> usize {
        LAYOUT.slots_per_client as usize
    }
}

/// Layout of a client's request slots: 8 bytes, the number to add.
const LAYOUT: RequestRegionLayout = RequestRegionLayout {
    slots_per_client: 16,
    max_payload_bytes: 8,
};

/// The messages of the rendezvous.
#[derive(Debug, Clone, Copy)]
enum Rendezvous {}

#[derive(Serialize, Deserialize)]
struct ServerOffer {
    protocol: String,
    version: u32,
    max_window: usize,
}

#[derive(Serialize, Deserialize)]
struct Hello {
    version: u32,
    window: usize,
    uc: QpEndpoint,
    ud: QpEndpoint,
}

#[derive(Serialize, Deserialize)]
struct Accepted {
    endpoint: QpEndpoint,
    slots: RemoteMemory,
}

impl Protocol for Rendezvous {
    const SERVICE: &'static str = "counter";
    const NAME: &'static str = "example-counter";
    const VERSION: u32 = 1;
    type ServerOffer = ServerOffer;
    type Hello = Hello;
    type Accepted = Accepted;
}

impl service::ServerOffer for ServerOffer {
    fn protocol(&self) -> &str {
        &self.protocol
    }
    fn version(&self) -> u32 {
        self.version
    }
    fn max_window(&self) -> usize {
        self.max_window
    }
}

impl service::Hello for Hello {
    fn version(&self) -> u32 {
        self.version
    }
    fn window(&self) -> usize {
        self.window
    }
}

/// The service with its storage.
#[derive(Debug)]
struct Counter {
    config: Config,
    port: PortAndGidIndex,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    value: AtomicU64,
    region: RemoteMemory,
    slots: FreeSlots,
    mailbox: Mailbox<Command, RpcWorkerCounts>,
}

/// Command to the worker.
#[derive(Debug)]
enum Command {
    Add(u32, ConnectedClient, ResultSender),
    Remove(Arc<ClientSlot>),
    Stop,
}

/// A client's session at the server; dropping it removes the client.
#[derive(Debug)]
struct Session(Arc<Counter>, Arc<ClientSlot>);

impl Drop for Session {
    fn drop(&mut self) {
        self.0.mailbox.send(Command::Remove(Arc::clone(&self.1)));
    }
}

impl Service for Counter {
    type Protocol = Rendezvous;
    type Config = Config;
    type Environment = ();
    type Worker = herd::Server;
    type WorkerError = RpcError;
    type Session = Session;
    type Stats = (u64, ClientsConnected);

    fn new(
        context: &Context,
        config: Config,
        (): (),
    ) -> Result<(Arc<Self>, Vec<herd::Server>), ServerError> {
        let (port, pd) = (
            service::ServerConfig::port_and_gid(&config, context)?,
            context.alloc_pd()?,
        );
        let doorbells = BatchPolicy {
            max_batch: 16,
            ..BatchPolicy::default()
        };
        let ud = BufferedUdQpConfig::default();
        let worker = herd::Server::new(&pd, LAYOUT, config.max_clients, doorbells, &ud);
        let worker = worker.map_err(ServerError::service_failed)?;
        let counter = Self {
            cq: context.create_cq(1)?,
            port,
            pd,
            value: AtomicU64::new(0),
            region: worker.request_region(),
            slots: FreeSlots::new(config.max_clients),
            mailbox: Mailbox::new()?,
            config,
        };
        Ok((Arc::new(counter), vec![worker]))
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn server_offer(&self) -> ServerOffer {
        ServerOffer {
            protocol: Rendezvous::NAME.to_owned(),
            version: Rendezvous::VERSION,
            max_window: LAYOUT.slots_per_client as usize,
        }
    }

    fn accept(self: &Arc<Self>, hello: &Hello) -> Result<(Accepted, Session), ClientRefusal> {
        let slot = self
            .slots
            .take_free_slot()
            .ok_or_else(|| ClientRefusal::temporary("it is full"))?;
        let (index, session) = (slot.index(), Session(Arc::clone(self), Arc::new(slot)));
        let ends = (&hello.uc, &hello.ud);
        let connected = herd::connect_client(&self.pd, self.port, &self.cq, ends);
        let connected = connected.map_err(ClientRefusal::temporary)?;
        let slots = herd::client_region(&self.region, &LAYOUT, index);
        let accepted = Accepted {
            endpoint: connected.server_endpoint,
            slots: slots.ok_or_else(|| ClientRefusal::temporary("there are no such slots"))?,
        };
        let added = self
            .mailbox
            .send_and_wait(|done| Command::Add(index, connected, done));
        added.map_err(ClientRefusal::temporary)?;
        Ok((accepted, session))
    }

    fn run_worker(&self, _index: usize, engine: herd::Server) -> Result<(), RpcError> {
        let add = Add(&self.value);
        worker::run(&mut Worker { engine, add }, &self.mailbox)
    }

    fn stats(&self, clients: ClientsConnected) -> (u64, ClientsConnected) {
        (self.value.load(Ordering::Relaxed), clients)
    }

    fn stop(&self) {
        self.mailbox.send(Command::Stop);
    }
}

/// Adapter of the RPC server to the worker's loop.
struct Worker<'c> {
    engine: herd::Server,
    add: Add<'c>,
}

impl WorkerLoop for Worker<'_> {
    type Error = RpcError;
    type Command = Command;
    type Counts = RpcWorkerCounts;

    fn execute_and_continue(&mut self, command: Command) -> bool {
        match command {
            Command::Add(
                index,
                ConnectedClient {
                    qp,
                    client_destination: to,
                    ..
                },
                done,
            ) => {
                let added = self
                    .engine
                    .add_client(index, qp, to, LAYOUT.slots_per_client);
                // Sending fails if the client is gone meanwhile.
                let _ = done.send(added.map_err(|e| e.to_string()));
            }
            Command::Remove(slot) => self.engine.remove_client(slot.index()),
            Command::Stop => return false,
        }
        true
    }

    fn poll(&mut self) -> Result<usize, RpcError> {
        self.engine.poll(&mut self.add)
    }

    fn counts(&self) -> RpcWorkerCounts {
        self.engine.counts().clone()
    }

    fn wait_briefly(&self, waiter: &mut Waiter) {
        waiter.idle_polling_memory(self.engine.polled_memory());
    }

    fn sleep(&mut self, wake: &WakeEventfd, waiter: &mut Waiter) -> Result<(), RpcError> {
        wake.wait(self.engine.has_clients().then(|| waiter.next_sleep()));
        waiter.record_external_wait();
        Ok(())
    }
}

/// The operation: adds to the counter and answers with the sum.
struct Add<'c>(&'c AtomicU64);

impl RpcHandler for Add<'_> {
    type BatchState = ();

    fn prepare_batch(&mut self, _requests: usize) {}

    fn handle(&mut self, (): &mut (), request: Request<'_>, reply: RequestReplier<'_>) {
        let Ok(n) = request.payload.try_into().map(u64::from_le_bytes) else {
            return;
        };
        let sum = self.0.fetch_add(n, Ordering::Relaxed).wrapping_add(n);
        reply.send_payload(&sum.to_le_bytes());
    }
}

/// Runs a client with one thread: adds the numbers and returns the sums in the answers.
fn add_all(
    target: &ServerLocation<Rendezvous>,
    numbers: &[u64],
) -> Result<Vec<u64>, Box<dyn std::error::Error>> {
    let context = NicConfig::default().open()?;
    let (pd, patience) = (context.alloc_pd()?, std::time::Duration::from_secs(5));
    let (client, accepted, _connection) = target.open_session(1, patience, |_welcome| {
        let config = BufferedUdQpConfig {
            max_recv_payload_bytes: 8,
            ..BufferedUdQpConfig::default()
        };
        let client = herd::PreparedClient::new(&pd, LAYOUT.max_payload_bytes, &config)?;
        let hello = Hello {
            version: Rendezvous::VERSION,
            window: 1,
            uc: client.uc_endpoint(),
            ud: client.ud_endpoint(),
        };
        Ok::<_, Box<dyn std::error::Error>>((client, hello))
    })?;
    let mut client = client.connect(&accepted.endpoint, accepted.slots, LAYOUT)?;
    let mut sums = Vec::new();
    for n in numbers {
        let request = n.to_le_bytes();
        client.send(1, |_| &request[..])?;
        let before = sums.len();
        let answered = verbs::poll_until(patience, || {
            let polled = client.poll(|answer| sums.extend(answer.u64_le()));
            (polled.is_err() || sums.len() > before).then_some(polled)
        });
        answered.ok_or("no answer came")??;
    }
    Ok(sums)
}

/// Checks that each sum was returned once, and that the sums of each client grow.
fn check(clients: &[Vec<u64>], numbers: usize) -> bool {
    let mut all = clients.concat();
    all.sort_unstable();
    all.dedup();
    all.len() == numbers && clients.iter().all(|sums| sums.is_sorted())
}

fn run() -> Result<(u64, ClientsConnected), Box<dyn std::error::Error>> {
    let config = Config {
        max_clients: 2,
        ..Config::default()
    };
    let server = service::Server::<Counter>::start(config)?;
    let target = ServerLocation::Tcp(server.address().to_string());
    let clients: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let add = || add_all(&target, &[1; 1000]).map_err(|e| e.to_string());
        let clients = [scope.spawn(add), scope.spawn(add)];
        let sums = clients.map(|client| client.join().expect("it ends"));
        sums.into_iter().collect::<Result<_, _>>()
    })?;
    if !check(&clients, 2000) {
        return Err("sums were given twice, or do not grow".into());
    }
    Ok(server.stop())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (value, clients) = run()?;
    println!("{value} after {} clients", clients.ever);
    Ok(())
}

#[test]
fn two_clients_add_to_one_counter() {
    let (value, clients) = run().expect("runs");
    assert_eq!((value, clients.now, clients.ever), (2000, 0, 2));
}
