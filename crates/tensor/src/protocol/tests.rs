//! Tests of the protocol with one end, whose peer is played by the test.

use std::sync::{Mutex, Weak};

use super::*;
use crate::catalogue::TensorCatalogue;
use crate::incoming_room::IncomingRoom;
use crate::link::PeerLink;
use crate::memory::{RegisteredPool, Tensor};
use crate::message::{MESSAGE_BYTES, RequestedTensor, TensorName};
use crate::meta::{DType, TensorMeta};
use crate::pending_operation::PendingOperation;
use crate::queues::{NicResources, PreparedQueues};
use crate::store::{allocate_tensor, remote_memory_of_tensor};

/// Two ends of a connection. Only the first has a protocol: the tests say what the other sends.
struct Connection {
    store: Store,
    queues: [ConnectedQps; 2],
    protocol: ConnectionProtocolState,
}

impl Connection {
    fn new() -> Self {
        let device = verbs::Provider::softnic().device(None);
        let context = device.expect("a device").open().expect("opens");
        let pd = context.alloc_pd().expect("a PD");
        let resources = NicResources {
            port: service::NicConfig::default()
                .port_and_gid(&context, None)
                .expect("a port"),
            channel: context.create_comp_channel().expect("a channel"),
            context,
            pd: pd.clone(),
        };
        let prepared = [0, 1].map(|_| PreparedQueues::new(&resources, 2).expect("queues"));
        let endpoints = [1, 0].map(|i: usize| prepared[i].endpoints());
        let mut connected = prepared
            .into_iter()
            .zip(endpoints)
            .map(|(queues, peer)| queues.connect(&peer).expect("connects"));
        Self {
            store: Store {
                catalogue: Mutex::new(TensorCatalogue::new(150)),
                pool: RegisteredPool::new(pd, 1 << 20),
                incoming_room: IncomingRoom::new(150),
            },
            queues: [(); 2].map(|()| connected.next().expect("two ends")),
            protocol: ConnectionProtocolState::new(Weak::<PeerLink>::new()),
        }
    }

    fn tensor(&self) -> Tensor {
        let meta = TensorMeta::new(DType::U8, vec![100]).expect("small");
        allocate_tensor(&self.store, &meta).expect("memory")
    }

    /// Begins to store a tensor at the peer and returns the index of the offer.
    fn put(&mut self) -> u32 {
        let name = TensorName::new("t", 0).expect("a good key");
        let ask = CallerRequest::Put(name, self.tensor());
        let pending = PendingOperation::default();
        let index = self.protocol.start_request(&self.store, ask, pending);
        self.protocol
            .send_unsent(&mut self.queues[0])
            .expect("sent");
        index.expect("few requests")
    }

    /// The peer has sent this message.
    fn receive(&mut self, message: &PeerMessage) -> Result<(), DisconnectReason> {
        let bytes = message.encode(0);
        let event = QueueEvent::Message(&bytes);
        self.protocol
            .handle_event(&self.store, &mut self.queues[0], event)?;
        self.protocol.send_unsent(&mut self.queues[0])
    }

    /// The peer takes up an offer.
    fn receive_request(&mut self, offer: u32, destination: &Tensor) {
        let message = PeerMessage::Request {
            index: 5,
            tensor: RequestedTensor::ByOffer(offer),
            destination: Some((
                destination.meta().clone(),
                remote_memory_of_tensor(destination),
            )),
        };
        self.receive(&message).expect("a good request");
    }

    /// Takes completions until `done`.
    fn poll_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            let (protocol, store) = (&mut self.protocol, &self.store);
            let polled = self.queues[0].poll(|q, event| protocol.handle_event(store, q, event));
            polled.expect("connected");
        }
    }

    /// Returns the messages that the peer gets, up to a refusal.
    fn messages_up_to_refusal(&mut self) -> Vec<PeerMessage> {
        let mut messages = Vec::new();
        while !matches!(messages.last(), Some(PeerMessage::Refused { .. })) {
            let polled = self.queues[1].poll(|_, event| {
                if let QueueEvent::Message(bytes) = event {
                    assert!(bytes.len() <= MESSAGE_BYTES);
                    messages.push(PeerMessage::decode(bytes).expect("a message").0);
                }
                Ok(())
            });
            polled.expect("connected");
        }
        messages
    }
}

#[test]
fn a_withdrawn_offer_that_the_peer_takes_up_is_missing() {
    let mut connection = Connection::new();
    let destination = connection.tensor();
    let offer = connection.put();
    assert_eq!(
        connection.protocol.cancel_request(offer),
        CallerMemoryInUse::None
    );
    assert!(connection.protocol.is_outstanding(offer));
    connection.receive_request(offer, &destination);
    assert!(connection.protocol.expects_nothing_of_peer());
    let refusal = PeerMessage::Refused {
        index: 5,
        reason: PeerRefusal::Missing,
    };
    assert_eq!(connection.messages_up_to_refusal().pop(), Some(refusal));
    assert_eq!(destination.to_vec(), [0; 100]);
    // Nothing more can come for the offer.
    let stored = PeerMessage::StoredOrRemoved { index: offer };
    assert!(connection.receive(&stored).is_err());
}

#[test]
fn offers_beyond_the_capacity_are_not_asked_for_before_others_have_come() {
    let mut connection = Connection::new();
    let meta = connection.tensor().meta().clone();
    for index in 1..=3 {
        let offer = PeerMessage::Offer {
            index,
            name: TensorName::new("t", u64::from(index)).expect("a good key"),
            meta: meta.clone(),
        };
        connection.receive(&offer).expect("an offer");
    }
    assert_eq!(connection.protocol.requests_to_peer.len(), 1);
    // The peer has withdrawn the first offer: there is room for the second.
    let refusal = PeerMessage::Refused {
        index: 0,
        reason: PeerRefusal::Missing,
    };
    connection.receive(&refusal).expect("an answer");
    let (next, _room) = connection
        .store
        .incoming_room
        .take_next_admitted()
        .expect("room");
    assert_eq!(next.peer_offer_index, 2);
    assert!(
        connection
            .store
            .incoming_room
            .take_next_admitted()
            .is_none()
    );
}

#[test]
fn a_withdrawn_offer_that_the_peer_refuses_is_forgotten() {
    let mut connection = Connection::new();
    let offer = connection.put();
    connection.protocol.cancel_request(offer);
    let refusal = PeerMessage::Refused {
        index: offer,
        reason: PeerRefusal::TooLarge,
    };
    connection.receive(&refusal).expect("an answer");
    assert!(connection.protocol.expects_nothing_of_peer());
}

#[test]
fn an_offer_whose_stripes_are_being_sent_uses_its_memory_until_they_are_sent() {
    let mut connection = Connection::new();
    let destination = connection.tensor();
    let offer = connection.put();
    connection.receive_request(offer, &destination);
    assert_eq!(
        connection.protocol.cancel_request(offer),
        CallerMemoryInUse::Source
    );
    assert!(connection.protocol.is_sending_offer(offer));
    connection.poll_until(|c| !c.protocol.is_sending_offer(offer));
    let stored = PeerMessage::StoredOrRemoved { index: offer };
    connection.receive(&stored).expect("an answer");
    assert!(connection.protocol.expects_nothing_of_peer());
}
