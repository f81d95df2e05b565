//! Tests of transfers over the loopback interface, where the kernel copies in any case.

use super::*;
use std::net::SocketAddr;

fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || serve(&listener));
    address
}

fn request(sender: Sender, zero_copy: bool) -> Request {
    Request { sender, zero_copy, duration: Duration::from_millis(200) }
}

#[test]
fn either_side_sends_for_the_time_and_the_client_knows_the_rate() {
    let server = server();
    for sender in [Sender::Client, Sender::Server] {
        for zero_copy in [false, true] {
            let report = run(server, &request(sender, zero_copy)).unwrap();
            let seconds = report.elapsed.as_secs_f64();
            assert!((0.1..5.0).contains(&seconds) && report.bytes > 0, "{sender:?}: {report:?}");
            let rate = report.bytes as f64 * 8e-9 / seconds;
            assert!((report.gbps() - rate).abs() < 1e-9);
            let is_here = zero_copy && sender == Sender::Client;
            assert_eq!(report.completions.is_some(), is_here, "{sender:?} {zero_copy}");
        }
    }
}

#[test]
fn every_send_without_copies_is_reported_and_loopback_copies() {
    let completions = run(server(), &request(Sender::Client, true)).unwrap().completions.unwrap();
    assert!(completions.sends > 0 && completions.completed == completions.sends, "{completions:?}");
    assert!(completions.copied > 0, "{completions:?}");
}

#[test]
fn several_clients_are_served_at_once() {
    let server = server();
    let clients: Vec<_> =
        (0..4).map(|_| std::thread::spawn(move || run(server, &request(Sender::Server, false)))).collect();
    for client in clients {
        assert!(client.join().unwrap().unwrap().bytes > 0);
    }
}

#[test]
fn requests_survive_encoding_and_others_are_refused() {
    for request in [request(Sender::Client, true), request(Sender::Server, false)] {
        assert_eq!(Request::decode(request.encode()), Some(request));
    }
    let valid = request(Sender::Client, true).encode();
    for (at, byte) in [(0, b'x'), (4, 9), (5, 2), (6, 2), (8, 0xff)] {
        let mut bytes = valid;
        bytes[at] = byte;
        assert_eq!(Request::decode(bytes), None, "{at}");
    }
    let long = Request { duration: Duration::MAX, ..request(Sender::Client, false) };
    assert_eq!(Request::decode(long.encode()).unwrap().duration, MAX_DURATION);
}

/// A peer that does not speak the protocol, or closes the connection at once, causes an error instead of a rate.
#[test]
fn a_foreign_peer_gets_nothing_and_gives_no_rate() {
    let mut stream = TcpStream::connect(server()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer, b"");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || drop(listener.accept()));
    assert!(run(address, &request(Sender::Client, false)).is_err());
}
