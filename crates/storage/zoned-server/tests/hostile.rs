//! Clients that send garbage, too much or too little, or do not read. The server continues to serve other clients, and
//! its memory stays bounded.

mod support;

use longma_zoned_server::{Limits, Password, Server, ServerError, Settings, tls_config};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Client, REPLY_TIMEOUT, Reply, Running, encoded};

fn with_limits(limits: Limits) -> Running {
    Running::new(Settings { limits, ..Settings::default() })
}

/// The field of INFO.
fn info(server: &Running, field: &str) -> u64 {
    let text = String::from_utf8(server.client().ask("INFO").bytes()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_else(|| panic!("{field}: {text}")).parse().unwrap()
}

/// Waits until `holds` returns true, which may take long on a busy machine.
#[track_caller]
fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + REPLY_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "it did not happen in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_is_no_request_is_answered_with_the_reason_and_disconnected() {
    let server = with_limits(Limits { command_bytes: 10_000, ..Limits::default() });
    for (request, reason) in [
        (&b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a 1\r\n"[..], "expected '*', got 'P'"),
        (b"PING\r\n", "expected '*', got 'P'"),
        (b"*1\r\nPING\r\n", "expected '$'"),
        (b"*-5\r\n", "not a number"),
        (b"*100000000\r\n", "longer than 10000 bytes"),
        (b"*2\r\n$3\r\nGET\r\n$18446744073709551615\r\n", "longer than 10000 bytes"),
        (b"*2\r\n$3\r\nGET\r\n$999999999999999999999999\r\n", "not a number"),
        (b"\x16\x03\x01\x02\x00\x01", "expected '*', got '\\x16'"),
    ] {
        let mut client = server.client();
        // The requests before the invalid one are executed.
        client.send(&[&encoded(&["SET", "before", "1"]), request].concat());
        assert_eq!(client.reply(), Reply::ok());
        let error = client.reply().error();
        assert!(error.starts_with("ERR Protocol error") && error.contains(reason), "{error}");
        assert_eq!(client.try_reply(), None);
    }
    assert_eq!(info(&server, "limit_disconnections"), 8);
    assert_eq!(server.client().ask("GET a"), Reply::Bulk(None));
}

#[test]
fn requests_with_strange_words_are_answered() {
    let server = with_limits(Limits::default());
    let mut client = server.client();
    client.send(b"*0\r\n*1\r\n$0\r\n\r\n");
    assert!(client.reply().error().contains("unknown command ''"));
    assert!(client.ask_words(&[&b"\r\n\x00\xff"[..]]).error().contains("unknown command '\\r\\n\\x00\\xff'"));
    assert!(client.ask(&format!("X{}", "y".repeat(100_000))).error().len() < 200);
    assert!(client.ask_words(&[&b"GET"[..], &[0; 100_000]]).error().contains("keys have at most"));
    for key in [&b""[..], b"\r\n", b"\xff\x00"] {
        assert_eq!(client.ask_words(&[&b"SET"[..], key, b""]), Reply::ok());
        assert_eq!(client.ask_words(&[&b"GET"[..], key]), Reply::bulk(""));
    }
}

#[test]
fn a_client_that_does_not_read_is_disconnected_and_others_are_served() {
    let limits = Limits { stall: Duration::from_millis(500), reply_bytes: 1 << 20, ..Limits::default() };
    let server = with_limits(limits);
    let mut honest = server.client();
    assert_eq!(honest.ask_words(&[&b"SET"[..], b"big", &[7; 500_000]]), Reply::ok());
    let mut slow = server.client();
    slow.send(&encoded(&["GET", "big"]).repeat(100));
    // Unread replies stay within the limit and one reply.
    let mut most = 0;
    eventually(|| {
        most = most.max(info(&server, "buffer_bytes"));
        assert_eq!(honest.ask("PING"), Reply::Simple("PONG".into()));
        info(&server, "limit_disconnections") == 1
    });
    assert!(most < 4 << 20, "{most} bytes");
    eventually(|| info(&server, "buffer_bytes") == 0);
    let mut rest = Vec::new();
    let _ = slow.socket.read_to_end(&mut rest);
    assert!(rest.len() < 100 * 500_000);
}

#[test]
fn a_long_pipeline_is_read_while_its_replies_are_not() {
    let server = with_limits(Limits::default());
    let mut client = server.client();
    assert_eq!(client.ask_words(&[&b"SET"[..], b"k", &[7; 100]]), Reply::ok());
    // Enough requests to fill the socket buffers in both directions.
    let count = 120_000;
    client.send(&encoded(&["GET", "k"]).repeat(count));
    (0..count).for_each(|_| assert_eq!(client.reply(), Reply::bulk([7; 100])));
}

#[test]
fn half_a_command_is_not_waited_for_without_end() {
    let server = with_limits(Limits { stall: Duration::from_millis(300), ..Limits::default() });
    let mut client = server.client();
    client.send(b"*2\r\n$3\r\nGET\r\n$100\r\nabc");
    assert!(client.reply().error().contains("did not arrive in time"));
    assert_eq!(client.try_reply(), None);
    // Single bytes do not extend the time.
    let mut client = server.client();
    client.send(b"*2\r\n$3\r\nGET\r\n$1000000\r\n");
    let mut socket = client.socket.get_ref().try_clone().unwrap();
    std::thread::spawn(move || {
        while socket.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(client.reply().error().contains("did not arrive in time"));
    // An idle client between two commands is not disconnected.
    let mut idle = server.client();
    assert_eq!(idle.ask("PING"), Reply::Simple("PONG".into()));
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(idle.ask("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn buffers_of_all_clients_together_are_bounded() {
    let limits = Limits { buffer_bytes: 1 << 20, ..Limits::default() };
    let server = with_limits(limits);
    let announced = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10000000\r\n";
    let mut clients: Vec<Client> = (0..8).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(announced);
        let _ = client.socket.get_mut().write_all(&[0; 300_000]);
    }
    // Some clients are refused, and the server continues to serve others.
    eventually(|| info(&server, "limit_disconnections") >= 4);
    assert!(info(&server, "buffer_bytes") <= 1 << 20);
    drop(clients);
    eventually(|| info(&server, "buffer_bytes") == 0);
    let mut client = server.client();
    let value = vec![b'v'; 100_000];
    assert_eq!(client.ask_words(&[&b"SET"[..], b"k", &value]), Reply::ok());
    assert_eq!(client.ask("GET k"), Reply::bulk(&value));
    let many = format!("MGET{}", " k".repeat(20));
    assert!(client.ask(&many).error().contains("buffers of all clients"));
    assert_eq!(client.ask("GET k"), Reply::bulk(&value));
}

#[test]
fn a_reply_beyond_the_limit_is_an_error() {
    let server = with_limits(Limits { reply_bytes: 10_000, ..Limits::default() });
    let mut client = server.client();
    (0..10).for_each(|n| assert_eq!(client.ask(&format!("SET k{n} {}", "v".repeat(2000))), Reply::ok()));
    for request in ["MGET k0 k1 k2 k3 k4 k5", "RANGE - +", "RANGE - + REV"] {
        assert!(client.ask(request).error().contains("longer than 10000 bytes"), "{request}");
    }
    assert_eq!(client.ask("RANGE - + COUNT 2").array().len(), 4);
    client.ask("MULTI");
    client.ask("SET new 1");
    client.ask("MGET k0 k1 k2 k3 k4 k5");
    assert!(client.ask("EXEC").error().contains("nothing was changed"));
    assert_eq!(client.ask("GET new"), Reply::Bulk(None));
    assert_eq!(client.ask("GET k1"), Reply::bulk("v".repeat(2000)));
}

#[test]
fn every_request_has_one_whole_reply_or_one_error() {
    let server = with_limits(Limits { reply_bytes: 1024, buffer_bytes: 1 << 20, ..Limits::default() });
    let mut client = server.client();
    client.send(&encoded(&["MSET", "a", "1", "b", "2"]));
    assert_eq!(client.reply(), Reply::ok());
    let long = "x".repeat(1000);
    let names: Vec<&str> = ["COMMAND", "INFO"].into_iter().chain(["get"; 20]).collect();
    for request in [vec!["ECHO", &long], vec!["COMMAND"], names] {
        client.send(&[encoded(&request), encoded(&["GET", "a"]), encoded(&["GET", "b"])].concat());
        assert!(client.reply().error().contains("longer than 1024 bytes"), "{request:?}");
        assert_eq!((client.reply(), client.reply()), (Reply::bulk("1"), Reply::bulk("2")), "{request:?}");
    }
    // Replies that exceed the buffers of all clients.
    let server = with_limits(Limits { buffer_bytes: 64 << 10, ..Limits::default() });
    let mut client = server.client();
    client.send(&encoded(&["SET", "a", "1"]));
    let many: Vec<&str> = ["COMMAND", "INFO"].into_iter().chain(["x"; 400]).chain(["get"; 4000]).collect();
    client.send(&[encoded(&many), encoded(&["GET", "a"])].concat());
    assert_eq!(client.reply(), Reply::ok());
    assert!(client.reply().error().contains("buffers of all clients"));
    assert_eq!(client.reply(), Reply::bulk("1"));
}

#[test]
fn a_client_that_reads_slowly_is_served() {
    let limits = Limits { stall: Duration::from_secs(3), ..Limits::default() };
    let server = with_limits(limits);
    let mut client = server.client();
    rustix::net::sockopt::set_socket_recv_buffer_size(client.socket.get_ref(), 64 << 10).unwrap();
    let value = vec![7; 1 << 20];
    assert_eq!(client.ask_words(&[&b"SET"[..], b"big", &value]), Reply::ok());
    client.send(&encoded(&["GET", "big"]).repeat(12));
    // Read 200 KB a second for longer than the stall limit.
    let mut piece = vec![0; 100_000];
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(500));
        client.socket.read_exact(&mut piece).unwrap();
    }
    let mut rest = vec![0; 12 * (value.len() + 12) - 12 * piece.len()];
    client.socket.read_exact(&mut rest).unwrap();
    assert_eq!(client.ask("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn limits_that_permit_nothing_are_refused() {
    let default = Limits::default();
    for (limits, what) in [
        (Limits { command_bytes: 0, ..default }, "command_bytes is 0: it must be at least 1024"),
        (Limits { reply_bytes: 1023, ..default }, "reply_bytes is 1023"),
        (Limits { buffer_bytes: 0, ..default }, "buffer_bytes is 0"),
        (Limits { clients: 0, ..default }, "clients is 0"),
    ] {
        let settings = Settings { limits, ..Settings::default() };
        let error = Server::bind("127.0.0.1:0".parse().unwrap(), settings).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn strangers_cannot_take_all_places() {
    let limits = Limits { clients: 3, login: Duration::from_secs(3600), ..Limits::default() };
    let password = Some(Password::new(b"secret"));
    let server = Running::new(Settings { limits, password, ..Settings::default() });
    let mut member = server.client();
    assert_eq!(member.ask("AUTH secret"), Reply::ok());
    let mut strangers: Vec<Client> = (0..2).map(|_| server.client()).collect();
    let mut other = server.client();
    assert_eq!(other.ask("AUTH secret"), Reply::ok());
    assert_eq!(strangers[0].try_reply(), None, "the oldest stranger has to go");
    let mut third = server.client();
    assert_eq!(third.ask("AUTH secret"), Reply::ok());
    assert!(server.client().reply().error().contains("max number of clients"));
    for client in [&mut member, &mut other, &mut third] {
        assert_eq!(client.ask("PING"), Reply::Simple("PONG".into()));
    }
    drop(third);
    let mut next = None;
    eventually(|| {
        let mut client = server.client();
        let admitted = matches!(client.try_reply_to("AUTH secret"), Some(Reply::Simple(_)));
        next = admitted.then_some(client);
        admitted
    });
}

#[test]
fn a_stranger_has_little_time_and_space() {
    let limits = Limits { login: Duration::from_millis(300), ..Limits::default() };
    let password = Some(Password::new(b"secret"));
    let server = Running::new(Settings { limits, password, ..Settings::default() });
    assert!(server.client().reply().error().contains("the time to authenticate is over"));
    let mut large = server.client();
    large.send(b"*2\r\n$4\r\nAUTH\r\n$100000\r\n");
    assert!(large.reply().error().contains("longer than 16384 bytes"));
    let mut member = server.client();
    assert_eq!(member.ask("AUTH secret"), Reply::ok());
    assert_eq!(member.ask_words(&[&b"SET"[..], b"k", &[1; 100_000]]), Reply::ok());
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(member.ask("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn many_idle_clients_do_not_hinder_an_active_one() {
    let server = with_limits(Limits::default());
    let idle: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    let mut client = server.client();
    (0..200).for_each(|n| assert_eq!(client.ask(&format!("SET k{n} v")), Reply::ok()));
    drop(idle);
    server.end().unwrap();
}

#[test]
fn other_machines_need_a_password_and_tls() {
    let address = "0.0.0.0:0".parse().unwrap();
    let password = Some(Password::new(b"secret"));
    let bound = |settings| Server::bind(address, settings).map(|_| ());
    assert!(matches!(bound(Settings::default()), Err(ServerError::NoPassword { .. })));
    assert!(matches!(
        bound(Settings { plain: true, ..Settings::default() }),
        Err(ServerError::NoPassword { .. })
    ));
    let with_password = Settings { password, ..Settings::default() };
    assert!(matches!(bound(with_password.clone()), Err(ServerError::NotEncrypted { .. })));
    bound(Settings { plain: true, ..with_password }).unwrap();
    // The loopback address, mapped to IPv6. Hosts without IPv6 cannot listen on it.
    let mapped = Server::bind("[::ffff:127.0.0.1]:0".parse().unwrap(), Settings::default());
    assert!(matches!(mapped, Ok(_) | Err(ServerError::Listen { .. })));
}

#[test]
fn connections_are_encrypted_with_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    assert!(tls_config(&key, &certificate).is_err());
    let set_mode = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o644);
    assert!(tls_config(&certificate, &key).unwrap_err().to_string().contains("chmod o-r"));
    set_mode(0o600);
    let tls = Some(tls_config(&certificate, &key).unwrap());
    let limits = Limits { login: Duration::from_millis(700), ..Limits::default() };
    let server = Running::new(Settings { tls, limits, ..Settings::default() });

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection =
        rustls::ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let socket = TcpStream::connect(server.address).unwrap();
    socket.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, socket);
    let value = vec![b'v'; 1 << 20];
    let mut expect = |request: &[u8], reply: &[u8]| {
        stream.write_all(request).unwrap();
        let mut got = vec![0; reply.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == reply);
    };
    expect(&encoded(&[&b"SET"[..], b"k", &value]), b"+OK\r\n");
    // A client that has completed the handshake may be idle.
    std::thread::sleep(Duration::from_millis(1200));
    let reply = [&b"$1048576\r\n"[..], &value, b"\r\n"].concat();
    expect(&encoded(&["GET", "k"]).repeat(5), &reply.repeat(5));

    // A client without TLS gets no reply, and a silent client is disconnected.
    let mut plain = TcpStream::connect(server.address).unwrap();
    plain.write_all(&encoded(&["GET", "k"])).unwrap();
    plain.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
    let mut got = Vec::new();
    let _ = plain.read_to_end(&mut got);
    assert!(!got.starts_with(b"$"), "{got:?}");
    let mut silent = TcpStream::connect(server.address).unwrap();
    silent.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
    let mut got = Vec::new();
    let _ = silent.read_to_end(&mut got);
    assert!(!got.starts_with(b"$"));
}
