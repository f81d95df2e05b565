//! The end of connections and listeners, and its effects on the other side.

use super::*;
use longma_channel::Error;
use longma_via::EndReason;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// The name of the listener to which a child process connects.
const CHILD: &str = "LONGMA_CHANNEL_TEST_CHILD";

/// Not a test: the code of the child process. It sends a message and waits to be killed.
#[test]
fn child() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let mut connection = Connection::connect(name).unwrap();
    connection.send(b"from the child").unwrap();
    let _ = connection.receive();
}

#[test]
fn a_killed_peer_is_an_error_after_what_it_had_sent() {
    let name = name();
    let listener = Listener::bind(&name).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "endings::child"]).env(CHILD, &name).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut connection = listener.accept_within(Some(TIMEOUT)).unwrap();
    connection.set_timeout(Some(TIMEOUT));
    let first = connection.receive().unwrap().unwrap();
    assert_eq!(first.bytes, b"from the child");
    child.kill().unwrap();
    child.wait().unwrap();
    let ended = connection.receive();
    assert!(matches!(ended, Err(Error::Ended(EndReason::PeerExited))), "{ended:?}");
    assert!(matches!(connection.send(&vec![0; 1 << 20]), Err(Error::Ended(_))));
}

#[test]
fn everything_sent_before_a_close_arrives() {
    for transports in transports() {
        let [mut client, mut server] =
            pair(&transports, [options(), Options { receive_slots: 100, ..options() }]);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..100u8 {
                    client.send(&[number; 10_000]).unwrap();
                }
                client.close().unwrap();
            });
            // The sender is ahead by as many messages as the NIC can hold.
            std::thread::sleep(Duration::from_millis(20));
            for number in 0..100u8 {
                assert_eq!(server.receive().unwrap().unwrap().bytes, [number; 10_000]);
            }
        });
        assert_eq!(server.receive().unwrap(), None);
    }
}

#[test]
fn a_stream_dropped_in_the_middle_does_not_look_complete() {
    for transports in transports() {
        let [client, mut server] = pair(&transports, [options(); 2]).map(Connection::into_stream);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut client = client;
                client.write_all(&[1; 1000]).unwrap();
            });
            let mut received = Vec::new();
            let end = server.read_to_end(&mut received).unwrap_err();
            assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
        });
    }
}

#[test]
fn a_panic_does_not_look_like_a_close() {
    let [client, mut server] = shared([options(); 2]);
    let panicking = std::thread::spawn(move || {
        let _client = client;
        std::panic::panic_any("meant");
    });
    assert!(panicking.join().is_err());
    assert!(matches!(server.receive(), Err(Error::Ended(_))));
}

#[test]
fn a_receive_that_times_out_can_be_repeated() {
    let [mut client, mut server] = shared([options(); 2]);
    server.set_timeout(Some(Duration::from_millis(20)));
    assert!(matches!(server.receive(), Err(Error::TimedOut)));
    client.send(b"late").unwrap();
    server.set_timeout(Some(TIMEOUT));
    assert_eq!(server.receive().unwrap().unwrap().bytes, b"late");
}

#[test]
fn a_listener_skips_clients_that_have_gone() {
    let [client, server] = &transports()[0];
    let name = name();
    let listener = server.listen(&name, options()).unwrap();
    // The client gives up before the listener answers.
    let impatient = client.connect(&address(server, &name), Options::with_timeout(Duration::from_millis(10)));
    assert!(matches!(impatient, Err(Error::TimedOut)));
    std::thread::scope(|scope| {
        let accepted =
            scope.spawn(|| listener.accept_within(Some(TIMEOUT)).unwrap().receive().unwrap().unwrap());
        let mut patient = client.connect(&address(server, &name), options()).unwrap();
        patient.send(b"patient").unwrap();
        assert_eq!(accepted.join().unwrap().bytes, b"patient");
    });
}

#[test]
fn a_closed_listener_accepts_no_more_and_keeps_its_connections() {
    let [client, server] = &transports()[0];
    let name = name();
    let listener = server.listen(&name, options()).unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let first = listener.accept().unwrap();
            (first, listener.accept().err())
        });
        let mut connected = client.connect(&address(server, &name), options()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        listener.close();
        let (mut accepted, error) = accepting.join().unwrap();
        assert!(error.is_some());
        assert!(client.connect(&address(server, &name), options()).is_err());
        connected.send(b"still").unwrap();
        assert_eq!(accepted.receive().unwrap().unwrap().bytes, b"still");
    });
}
