//! How a session at a server is opened: by TCP, or through a door in this process.

use std::time::Duration;

use rpc::exchange::{Answer, Call};
use rpc::{UdPortConfig, herd};

use super::{Held, Pipeline, Way};
use crate::client::ClientError;
use crate::client::lane::Lane;
use crate::client::one_sided;
use crate::client::reach::Reach;
use crate::client::records::Records;
use crate::rendezvous::{self, Accepted, Hello, LaneHello, Reached, Welcome};
use crate::{Design, session, wire};

/// A session that has been opened.
pub(super) struct Opened {
    pub(super) lanes: Vec<Lane>,
    pub(super) reach: Option<Way>,
    pub(super) held: Held,
    pub(super) seed: u64,
    pub(super) design: Design,
}

/// This side's queue pairs before the server has answered.
struct Introduced {
    lanes: Vec<herd::PreparedClient>,
    reach: Option<one_sided::Prepared>,
    seed: u64,
    design: Design,
}

impl Pipeline {
    pub(super) fn open(&self) -> Result<Opened, ClientError> {
        let Some(door) = &self.door else {
            return self.dial();
        };
        let welcome = door.welcome();
        let (prepared, hello) = self.introduce(&welcome)?;
        let (accepted, pass) = door.enter(&hello)?;
        self.settle(prepared, &accepted, Held::Local(pass))
    }

    /// Opens a session by TCP.
    fn dial(&self) -> Result<Opened, ClientError> {
        let server = &self.config.server;
        let reach = |source| ClientError::Reach {
            server: server.clone(),
            source,
        };
        let patience = self.config.deadline().max(Duration::from_secs(1));
        let (call, welcome) = Call::dial(server, rendezvous::WHOSE, patience).map_err(reach)?;
        let (prepared, hello) = self.introduce(&welcome)?;
        let (answer, stream) = call.introduce(&hello).map_err(reach)?;
        match answer {
            Answer::Accepted(accepted) => self.settle(prepared, &accepted, Held::Tcp(stream)),
            Answer::Refused(refused) => Err(refused.into()),
        }
    }

    /// Looks at what the server offers; this side's queue pairs, and what to say to the server.
    fn introduce(&self, welcome: &Welcome) -> Result<(Introduced, Hello), ClientError> {
        let refused = |reason: String| ClientError::Refused {
            reason,
            retry: false,
        };
        if welcome.protocol != rendezvous::PROTOCOL || welcome.version != rendezvous::VERSION {
            return Err(refused(format!(
                "it speaks {} {}, this client {} {}",
                welcome.protocol,
                welcome.version,
                rendezvous::PROTOCOL,
                rendezvous::VERSION
            )));
        }
        let window = self.config.window;
        if window > welcome.max_window {
            return Err(refused(format!(
                "its largest window is {}, not {window}",
                welcome.max_window
            )));
        }
        if !(1..=64).contains(&welcome.partitions) {
            return Err(refused(format!("it has {} partitions", welcome.partitions)));
        }
        welcome.design.check(self.context.capabilities()?)?;
        // Room for a chunk's header and a little, whatever values there are.
        let answer = (wire::ANSWER_HEADER + self.config.value_bytes).max(40);
        let answer = answer.min(welcome.max_answer);
        // A value in parts may have all of them under way beside the other answers.
        let depth = u32::try_from(window.max(64) + rpc::MAX_BATCH).unwrap_or(u32::MAX);
        let port = UdPortConfig {
            port_num: self.port.port_num,
            gid_index: Some(self.port.gid_index),
            send_depth: (2 * depth).max(256),
            recv_depth: depth,
            recv_payload: answer,
            ..UdPortConfig::default()
        };
        let payload = welcome.layout.payload;
        let prepared = (0..welcome.partitions)
            .map(|_| herd::PreparedClient::new(&self.pd, payload, &port))
            .collect::<Result<Vec<_>, _>>()?;
        let requests = match welcome.design {
            Design::Herd => None,
            Design::Reads => Some(1),
            // A change: two WRITEs and an atomic.
            Design::Atomics => Some(3),
        };
        let batch = self.config.batch;
        let reach = requests
            .map(|n| one_sided::Prepared::new(&self.pd, self.port, window, batch, n))
            .transpose()?;
        let lanes = prepared.iter().map(|c| LaneHello {
            uc: c.uc_endpoint(),
            ud: c.ud_endpoint(),
        });
        let hello = Hello {
            version: rendezvous::VERSION,
            session: self.session,
            window,
            answer,
            lanes: lanes.collect(),
            rc: reach.as_ref().map(one_sided::Prepared::endpoint),
        };
        let introduced = Introduced {
            lanes: prepared,
            reach,
            seed: welcome.seed,
            design: welcome.design,
        };
        Ok((introduced, hello))
    }

    /// Connects this side as the server answered.
    fn settle(
        &self,
        introduced: Introduced,
        accepted: &Accepted,
        held: Held,
    ) -> Result<Opened, ClientError> {
        let lacks = |what: &str| ClientError::Refused {
            reason: format!("its answer lacks {what}"),
            retry: false,
        };
        let Introduced {
            lanes,
            reach,
            seed,
            design,
        } = introduced;
        if accepted.lanes.len() != lanes.len() {
            return Err(lacks("partitions"));
        }
        let span = session::span(self.config.window);
        let lanes = lanes
            .into_iter()
            .zip(&accepted.lanes)
            .map(|(client, lane)| {
                let client = client.connect(&lane.endpoint, lane.slots, lane.layout)?;
                Ok::<_, ClientError>(Lane::new(client, self.config.batch, span))
            });
        let lanes: Vec<Lane> = lanes.collect::<Result<_, _>>()?;
        let reach = match reach {
            None => None,
            Some(prepared) => {
                let reach = accepted.reach.as_ref().ok_or_else(|| lacks("its memory"))?;
                let peer = &reach.endpoint;
                let (way, partitions) = match &reach.memory {
                    Reached::Logs {
                        partitions,
                        item_bytes,
                    } => {
                        let memory = (&partitions[..], *item_bytes);
                        let value_bytes = self.config.value_bytes;
                        let logs = Reach::new(prepared, peer, memory, value_bytes, seed)?;
                        let partitions = logs.partitions();
                        (Way::Logs(Box::new(logs)), partitions)
                    }
                    Reached::Records {
                        partitions,
                        shape,
                        writes,
                    } => {
                        let memory = (&partitions[..], *shape, *writes);
                        let deadline = self.config.deadline();
                        let records = Records::new(prepared, peer, memory, seed, deadline)?;
                        let partitions = records.partitions();
                        (Way::Records(Box::new(records)), partitions)
                    }
                };
                if partitions != lanes.len() {
                    return Err(lacks("memory of partitions"));
                }
                Some(way)
            }
        };
        Ok(Opened {
            lanes,
            reach,
            held,
            seed,
            design,
        })
    }
}
