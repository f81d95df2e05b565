//! Tests that a late packet may complete more messages at once than a VI queues ([`MAX_EVENTS`]).

use super::Peer;
use super::paths::{MAX_EVENTS, Path, Paths};
use longma_reliable::{Config, Connection, Opening, Packet};
use std::time::Duration;

/// The datagrams that `connection` transmits now.
fn transmitted(connection: &mut Connection, now: Duration) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| {
        let mut out = Vec::new();
        connection.transmit(now, &mut out).then_some(out)
    })
    .collect()
}

fn receive_all(connection: &mut Connection, now: Duration, datagrams: &[Vec<u8>]) {
    datagrams.iter().for_each(|datagram| connection.receive(now, &Packet::parse(datagram).unwrap()));
}

#[test]
fn a_late_packet_releases_all_messages_it_completes() {
    let (config, mut now) = (Config::default(), Duration::ZERO);
    let mut client = Connection::open(config, 7, b"", now);
    let open = transmitted(&mut client, now);
    let opening = Opening::read(&Packet::parse(&open[0]).unwrap()).unwrap();
    let mut server = Connection::accept(config, 8, &opening, b"", now);
    receive_all(&mut client, now, &transmitted(&mut server, now));
    receive_all(&mut server, now, &transmitted(&mut client, now));
    // Acknowledgements open the congestion window, so repeat until more packets are in flight than events are queued.
    let (mut rounds, mut flight) = (0, Vec::new());
    while flight.len() <= MAX_EVENTS {
        now += Duration::from_millis(1);
        receive_all(&mut server, now, &flight);
        while server.take_event().is_some() {}
        receive_all(&mut client, now, &transmitted(&mut server, now));
        (0..200).for_each(|_| _ = client.send(&[b"message"]));
        flight = transmitted(&mut client, now);
        rounds += 1;
        assert!(rounds < 100, "the number of packets in flight does not grow");
    }
    let count = flight.len();
    receive_all(&mut server, now, &flight[1..]);
    receive_all(&mut server, now, &flight[..1]);
    let mut paths = Paths::default();
    let mut path = Path::new(server, Peer::Hardware([0; 6]), 3, Duration::ZERO);
    assert!(path.listen());
    paths.insert(8, path);
    paths.holding.insert(8);
    let taken = std::iter::from_fn(|| paths.take_event(8)).count();
    assert_eq!(taken, count);
    assert!(paths.holding.is_empty());
}
