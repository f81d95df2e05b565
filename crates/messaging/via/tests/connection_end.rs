//! When one side of a connection ends, waits of the other side end, even if no descriptor is posted, and its VI keeps
//! the reason.

use longma_via::provider::udp::Udp;
use longma_via::*;
use std::future::Future;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
/// Much longer than any wait in this file takes.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn nics() -> [[Nic; 2]; 2] {
    let udp = || Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()));
    [[(); 2].map(|()| Nic::open().unwrap()), [(); 2].map(|()| udp())]
}

fn vi(nic: &Nic) -> Vi {
    let tag = nic.create_protection_tag().unwrap();
    nic.create_vi(ViAttributes::new(tag), None, None).unwrap()
}

/// A connected VI of each NIC.
fn pair(client: &Nic, server: &Nic, name: &str) -> (Vi, Vi) {
    let name = format!("end-{name}-{}", std::process::id());
    let vis = (vi(client), vi(server));
    let _ = server.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let remote = Address::new(&server.attributes().local_address, &name);
    std::thread::scope(|scope| {
        scope.spawn(|| server.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vis.1).unwrap());
        vis.0.connect(&Address::local("client"), &remote, TIMEOUT).unwrap();
    });
    vis
}

#[test]
fn a_waiter_with_nothing_posted_ends_when_the_peer_disconnects() {
    for [client, server] in nics() {
        let (client, server) = pair(&client, &server, "waiter");
        std::thread::scope(|scope| {
            let waiters = [scope.spawn(|| server.receive_wait(LONG)), scope.spawn(|| server.send_wait(LONG))];
            std::thread::sleep(Duration::from_millis(50));
            drop(client);
            for waiter in waiters {
                assert_eq!(reason(waiter.join().unwrap()), EndReason::Disconnected);
            }
        });
        // A wait that begins later ends too.
        assert_eq!(reason(server.receive_wait(LONG)), EndReason::Disconnected);
        assert_eq!(server.end_reason(), Some(EndReason::Disconnected));
    }
}

fn reason(outcome: Result<Completion, Error>) -> EndReason {
    match outcome {
        Err(Error::ConnectionEnded(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

struct Tell(std::sync::Mutex<std::sync::mpsc::Sender<()>>);

impl Wake for Tell {
    fn wake(self: std::sync::Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (sender, receiver) = channel();
    let waker = Waker::from(std::sync::Arc::new(Tell(sender.into())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        receiver.recv_timeout(LONG.unwrap()).expect("the future is woken");
    }
}

#[test]
fn a_future_with_nothing_posted_ends_when_the_peer_or_this_side_disconnects() {
    for [client, server] in nics() {
        for is_server in [false, true] {
            let (client, server) = pair(&client, &server, &format!("future-{is_server}"));
            std::thread::scope(|scope| {
                let futures = [
                    scope.spawn(|| block_on(server.receive_completion())),
                    scope.spawn(|| block_on(server.send_completion())),
                ];
                std::thread::sleep(Duration::from_millis(50));
                if is_server { &server } else { &client }.disconnect().unwrap();
                let expected = if is_server { EndReason::DisconnectedHere } else { EndReason::Disconnected };
                futures.into_iter().for_each(|future| assert_eq!(reason(future.join().unwrap()), expected));
            });
        }
    }
}

#[test]
fn posted_descriptors_are_collected_before_the_reason() {
    for [client, server] in nics() {
        let (client, server) = pair(&client, &server, "posted");
        server.post_receive(&Descriptor::receive(&[])).unwrap();
        drop(client);
        assert_eq!(server.receive_wait(LONG).unwrap().status, Status::FLUSHED.with(Status::DONE));
        assert_eq!(reason(server.receive_wait(LONG)), EndReason::Disconnected);
    }
}

#[test]
fn both_sides_know_that_a_message_was_refused() {
    for [client, server] in nics() {
        let (client, server) = pair(&client, &server, "refused");
        client.post_send(&Descriptor::send(&[])).unwrap();
        assert_eq!(reason(server.receive_wait(LONG)), EndReason::Error(ErrorCode::ReceiveQueueEmpty));
        let _ = client.send_wait(LONG);
        assert_eq!(reason(client.receive_wait(LONG)), EndReason::MessageRefused);
    }
}

#[test]
fn a_new_attempt_to_connect_forgets_the_reason() {
    let [[client, server], _] = nics();
    let (client, _) = pair(&client, &server, "again");
    assert_eq!(reason(client.receive_wait(LONG)), EndReason::Disconnected);
    client.disconnect().unwrap();
    assert_eq!(client.end_reason(), Some(EndReason::Disconnected));
    let nowhere = Address::local(format!("end-nowhere-{}", std::process::id()));
    client.connect(&Address::local("client"), &nowhere, TIMEOUT).unwrap_err();
    assert_eq!(client.end_reason(), None);
}

const ROLE: &str = "LONGMA_VIA_END_SERVER";

/// A server process that accepts a VI and exits, or never answers.
fn start_server(name: &str, test: &str, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env(ROLE, format!("{role} {name}")).stdout(Stdio::null());
    command.spawn().unwrap()
}

/// Runs the server's role in its process. Returns whether this is that process.
fn is_server() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let (role, name) = role.split_once(' ').unwrap();
    let nic = Nic::open().unwrap();
    if role == "accepts" {
        let vi = vi(&nic);
        nic.connect_wait(&Address::local(name), TIMEOUT).unwrap().accept(&vi).unwrap();
        std::thread::sleep(LONG.unwrap());
    } else {
        // The request is taken and not answered.
        let _request = nic.connect_wait(&Address::local(name), TIMEOUT).unwrap();
        std::process::abort();
    }
    true
}

fn connect_patiently(vi: &Vi, name: &str) -> Result<ViAttributes, Error> {
    let end = Instant::now() + LONG.unwrap();
    loop {
        match vi.connect(&Address::local("client"), &Address::local(name), TIMEOUT) {
            Err(Error::NoMatch(_)) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            other => return other,
        }
    }
}

#[test]
fn a_killed_peer_is_distinguished_from_a_disconnected_one() {
    if is_server() {
        return;
    }
    let name = format!("end-killed-{}", std::process::id());
    let nic = Nic::open().unwrap();
    let vi = vi(&nic);
    let mut server = start_server(&name, "a_killed_peer_is_distinguished_from_a_disconnected_one", "accepts");
    connect_patiently(&vi, &name).unwrap();
    server.kill().unwrap();
    assert_eq!(reason(vi.receive_wait(LONG)), EndReason::PeerExited);
    server.wait().unwrap();
}

#[test]
fn a_server_that_dies_before_it_answers_has_not_rejected() {
    if is_server() {
        return;
    }
    let name = format!("end-silent-{}", std::process::id());
    let nic = Nic::open().unwrap();
    let mut server = start_server(&name, "a_server_that_dies_before_it_answers_has_not_rejected", "dies");
    let outcome = connect_patiently(&vi(&nic), &name);
    assert!(matches!(outcome, Err(Error::NotReachable(_))), "{outcome:?}");
    server.wait().unwrap();
}

#[test]
fn a_post_after_the_peers_end_does_not_discard_its_last_message() {
    let [_, [client, server]] = nics();
    let [blocker, busy, tested] =
        ["blocker", "busy", "tested"].map(|name| pair(&client, &server, &format!("last-{name}")));
    // The NIC's thread waits in a callback, so that it does not poll the tested VI.
    let tag = blocker.0.attributes().tag;
    let context_memory = client.allocate(4096, MemoryAttributes::local(tag)).unwrap();
    let ((sender, receiver), (release, released)) = (channel(), channel::<()>());
    blocker.0.on_completion(move |_| {
        let _ = sender.send(());
        let _ = released.recv();
    });
    let receive = Descriptor {
        context: context_memory.address(),
        context_memory: context_memory.handle(),
        ..Descriptor::receive(&[])
    };
    blocker.0.post_receive(&receive).unwrap();
    tested.0.post_receive(&Descriptor::receive(&[])).unwrap();
    blocker.1.post_send(&Descriptor::send(&[])).unwrap();
    receiver.recv_timeout(TIMEOUT.unwrap()).unwrap();
    tested.1.post_send(&Descriptor::send(&[])).unwrap();
    tested.1.disconnect().unwrap();
    // Polling another VI of the NIC receives the packets of all its VIs.
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        busy.0.progress();
    }
    tested.0.post_send(&Descriptor::send(&[])).unwrap();
    assert!(tested.0.receive_wait(LONG).unwrap().is_success());
    drop(release);
}
