//! Panics in callbacks of the program do not affect other VIs, futures and errors of the same NIC.
//!
//! Source: std::panic, catch_unwind.

use longma_via::provider::udp::Udp;
use longma_via::*;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

struct Side {
    vi: Vi,
    memory: MemoryRegion,
}

fn side(nic: &Nic) -> Side {
    let tag = nic.create_protection_tag().unwrap();
    let memory = nic.allocate(1 << 12, MemoryAttributes::local(tag)).unwrap();
    Side { vi: nic.create_vi(ViAttributes::new(tag), None, None).unwrap(), memory }
}

/// A VI of each NIC, connected.
fn pair(client: &Nic, server: &Nic) -> (Side, Side) {
    let name = format!("panics-{}-{:?}", std::process::id(), std::thread::current().id());
    let sides = (side(client), side(server));
    let _ = server.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let remote = Address::new(&server.attributes().local_address, &name);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            server.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&sides.1.vi).unwrap();
        });
        sides.0.vi.connect(&Address::local("client"), &remote, TIMEOUT).unwrap();
    });
    sides
}

fn say(from: &Side) {
    from.vi.post_send(&Descriptor::send(&[from.memory.segment(0, 8)])).unwrap();
    from.vi.send_wait(TIMEOUT).unwrap();
}

fn nics() -> [[Nic; 2]; 2] {
    let udp = || Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()));
    [[(); 2].map(|()| Nic::open().unwrap()), [(); 2].map(|()| udp())]
}

#[test]
fn a_panicking_completion_callback_does_not_affect_other_vis() {
    for [client, server] in nics() {
        let (bad, good) = (pair(&client, &server), pair(&client, &server));
        let (sender, receiver) = channel();
        let (panics, has_panicked) = channel();
        bad.1.vi.on_completion(move |_| {
            let _ = panics.send(());
            panic!("the program's");
        });
        good.1.vi.on_completion(move |completion| _ = sender.send(*completion));
        for (client, server) in [&bad, &good] {
            for _ in 0..2 {
                let (context, context_memory) = (server.memory.address(), server.memory.handle());
                let segments = [server.memory.segment(64, 64)];
                let receive = Descriptor { context, context_memory, ..Descriptor::receive(&segments) };
                server.vi.post_receive(&receive).unwrap();
            }
            say(client);
            if std::ptr::eq(server, &bad.1) {
                has_panicked.recv_timeout(TIMEOUT.unwrap()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        assert!(receiver.recv_timeout(TIMEOUT.unwrap()).is_ok_and(|receiver| receiver.is_success()));
        // The message whose callback panicked is received exactly once.
        assert!(bad.1.vi.receive_wait(TIMEOUT).unwrap().is_success());
        assert!(bad.1.vi.receive_wait(Some(Duration::from_millis(100))).is_err());
        // The second receive is flushed, which panics too, and the VI is dropped nevertheless.
        let tag = bad.1.vi.attributes().tag;
        let Side { vi, memory } = bad.1;
        drop(vi);
        drop(memory);
        server.destroy_protection_tag(tag).unwrap();
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the program's");
    }
}

struct Tells(std::sync::Mutex<std::sync::mpsc::Sender<()>>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().send(()).unwrap();
    }
}

#[test]
fn a_panicking_waker_does_not_affect_other_futures() {
    for [client, server] in nics() {
        let (bad, good) = (pair(&client, &server), pair(&client, &server));
        let (sender, receiver) = channel();
        let wakers: [Waker; 2] = [Arc::new(Panics).into(), Arc::new(Tells(sender.into())).into()];
        for ((_, server), waker) in [&bad, &good].into_iter().zip(&wakers) {
            server.vi.post_receive(&Descriptor::receive(&[server.memory.segment(0, 64)])).unwrap();
            let mut future = std::pin::pin!(server.vi.receive_completion());
            assert!(future.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        }
        say(&bad.0);
        std::thread::sleep(Duration::from_millis(50));
        say(&good.0);
        assert!(receiver.recv_timeout(TIMEOUT.unwrap()).is_ok());
    }
}

#[test]
fn errors_are_reported_after_a_callback_has_panicked() {
    let [[client, server], _] = nics();
    let (sender, receiver) = channel();
    server
        .on_error(move |error| {
            sender.send(error.vi).unwrap();
            panic!("the program's");
        })
        .unwrap();
    for _ in 0..2 {
        let (client, server) = pair(&client, &server);
        client.vi.disconnect().unwrap();
        assert!(server.vi.receive_wait(Some(Duration::from_millis(100))).is_err());
        assert_eq!(receiver.recv_timeout(TIMEOUT.unwrap()), Ok(Some(server.vi.number())));
    }
}
