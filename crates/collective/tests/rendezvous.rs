//! Two ends find each other by TCP, whoever else comes to the port.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use collective::{Config, Error, ListenHandle, Listener, PendingConnect, Receiver, Sender};
use verbs::{Access, ProtectionDomain, Provider, poll_until};

const WAIT: Duration = Duration::from_secs(20);

fn domain() -> ProtectionDomain {
    let device = Provider::softnic().device(None).expect("there is one");
    device.open().expect("opens").alloc_pd().expect("a domain")
}

fn listener(pd: &ProtectionDomain, config: &Config) -> Listener {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Listener::new(pd, config, here).expect("a free port")
}

/// Calls both ends in turns until each has its connection.
fn meet(listener: &mut Listener, mut connecting: PendingConnect) -> (Sender, Receiver) {
    let (mut sender, mut receiver) = (None, None);
    poll_until(WAIT, || {
        if sender.is_none() {
            sender = connecting.poll().expect("it connects");
        }
        if receiver.is_none() {
            receiver = listener.poll().expect("it accepts");
        }
        (sender.is_some() && receiver.is_some()).then_some(())
    });
    (sender.expect("a sender"), receiver.expect("a receiver"))
}

#[test]
fn the_smaller_number_of_queue_pairs_holds() {
    let pd = domain();
    for (ours, theirs) in [(1, 1), (4, 2), (2, 4)] {
        let lanes = |lanes| Config {
            lane_count: lanes,
            ..Config::default()
        };
        let mut listener = listener(&pd, &lanes(theirs));
        let connecting =
            PendingConnect::new(&pd, &lanes(ours), &listener.handle()).expect("begins");
        let (mut sender, mut receiver) = meet(&mut listener, connecting);
        assert_eq!(
            (sender.lane_count(), receiver.lane_count()),
            (ours.min(theirs), ours.min(theirs))
        );
        let (from, to) = (pd.alloc(999, Access::ALL), pd.alloc(999, Access::ALL));
        let (from, to) = (from.expect("memory"), to.expect("memory"));
        from.write_at(0, &[7; 999]).expect("inside");
        let receive = receiver
            .irecv(&[(&to, 0..999, 1)])
            .expect("posted")
            .expect("room");
        let send = poll_until(WAIT, || sender.isend(&from, 0..999, 1).expect("sent"));
        poll_until(WAIT, || receiver.test(receive).expect("good")).expect("it comes");
        poll_until(WAIT, || sender.test(send.expect("cleared")).expect("good"))
            .expect("it is there");
        let mut bytes = [0; 999];
        to.read_at(0, &mut bytes).expect("inside");
        assert_eq!(bytes, [7; 999]);
    }
}

#[test]
fn strangers_do_not_keep_the_sender_out() {
    let pd = domain();
    let mut listener = listener(&pd, &Config::default());
    let handle = listener.handle();
    let silent: Vec<_> = (0..70)
        .map(|_| TcpStream::connect(handle.listener_addr).expect("connects"))
        .collect();
    let texts: [&[u8]; 4] = [
        b"GET / HTTP/1.0\r\n\r\n",
        &[255; 8],
        &[2, 0, 0, 0, b'{', b'}'],
        &[0; 4],
    ];
    for text in texts {
        TcpStream::connect(handle.listener_addr)
            .and_then(|mut s| s.write_all(text))
            .expect("writes");
    }
    // One that speaks the protocol, and has another listener's handle.
    let mut other = handle.to_bytes();
    other[8] ^= 1;
    let other = ListenHandle::from_bytes(&other).expect("a handle");
    let mut wrong = PendingConnect::new(&pd, &Config::default(), &other).expect("begins");
    let refused = poll_until(WAIT, || {
        assert!(listener.poll().expect("no error of a sender's").is_none());
        wrong.poll().err()
    });
    assert!(
        refused
            .expect("it is sent away")
            .to_string()
            .contains("closed the connection")
    );
    let connecting = PendingConnect::new(&pd, &Config::default(), &handle).expect("begins");
    drop(meet(&mut listener, connecting));
    drop(silent);
}

#[test]
fn an_end_that_goes_away_is_an_error_for_the_other() {
    let pd = domain();
    // Nobody listens any more.
    let gone = listener(&pd, &Config::default()).handle();
    let refused = PendingConnect::new(&pd, &Config::default(), &gone)
        .map_or_else(Some, |mut connecting| {
            poll_until(WAIT, || connecting.poll().err())
        });
    assert!(
        refused
            .expect("refused")
            .to_string()
            .contains(&gone.listener_addr.to_string())
    );

    // The sender gives up between its hello and its word that it is ready.
    let mut listener = listener(&pd, &Config::default());
    let mut connecting =
        PendingConnect::new(&pd, &Config::default(), &listener.handle()).expect("begins");
    assert!(connecting.poll().expect("it says hello").is_none());
    poll_until(Duration::from_millis(50), || {
        assert!(listener.poll().expect("good").is_none());
        None::<()>
    });
    drop(connecting);
    let left = poll_until(WAIT, || listener.poll().err());
    assert!(matches!(left, Some(Error::Rendezvous { .. })), "{left:?}");

    // A sender that is connected goes away while the receiver waits for it, and the other way around.
    let connecting =
        PendingConnect::new(&pd, &Config::default(), &listener.handle()).expect("begins");
    let (sender, mut receiver) = meet(&mut listener, connecting);
    let buffer = pd.alloc(64, Access::ALL).expect("memory");
    let receive = receiver
        .irecv(&[(&buffer, 0..64, 0)])
        .expect("posted")
        .expect("room");
    drop(sender);
    let failed = poll_until(WAIT, || receiver.test(receive).err());
    assert!(
        matches!(failed, Some(Error::PeerGone("receives"))),
        "{failed:?}"
    );
    assert!(
        receiver.irecv(&[(&buffer, 0..64, 0)]).is_err(),
        "it stays broken"
    );

    let connecting =
        PendingConnect::new(&pd, &Config::default(), &listener.handle()).expect("begins");
    let (mut sender, receiver) = meet(&mut listener, connecting);
    drop(receiver);
    let failed = poll_until(WAIT, || sender.isend(&buffer, 0..64, 0).err());
    assert!(matches!(failed, Some(Error::PeerGone(_))), "{failed:?}");
}

#[test]
fn a_flush_is_behind_what_came_before() {
    let pd = domain();
    let (_sender, mut receiver) =
        collective::connected_pair(&pd, &pd, &Config::default()).expect("a pair");
    let buffer = pd.alloc(64, Access::ALL).expect("memory");
    for _ in 0..100 {
        let flush = receiver
            .try_start_flush(&buffer, 3)
            .expect("posted")
            .expect("room");
        let sizes = poll_until(WAIT, || receiver.test(flush).expect("good")).expect("it is done");
        assert_eq!(sizes.as_slice(), [0; 0]);
    }
    assert!(
        receiver.try_start_flush(&buffer, 64).is_err(),
        "past the end"
    );
}
