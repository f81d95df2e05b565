//! Connections between two threads or processes, over shared memory and over UDP.

mod endings;
mod forked;
mod futures;
mod hostile;
mod limits;
mod messages;

use longma_channel::{Connection, Listener, Options, Transport};
use longma_via::provider::udp::Udp;
use longma_via::{Address, Nic};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Much longer than any call in these tests takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A name that no other test uses.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("channel-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn options() -> Options {
    Options::with_timeout(TIMEOUT)
}

/// Slots so small and few that messages have many parts and senders wait.
fn small() -> Options {
    Options { slot_bytes: 64, receive_slots: 3, send_slots: 2, ..options() }
}

fn udp() -> Transport {
    Transport::over(Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap())))
}

/// A transport for the client and one for the server, for each provider.
fn transports() -> [[Transport; 2]; 2] {
    [[(); 2].map(|()| Transport::shared_memory().unwrap()), [(); 2].map(|()| udp())]
}

fn address(server: &Transport, name: &str) -> Address {
    Address::new(&server.nic().attributes().local_address, name)
}

/// A connection's two ends, with their options.
fn pair([client, server]: &[Transport; 2], [of_client, of_server]: [Options; 2]) -> [Connection; 2] {
    let name = name();
    let listener: Listener = server.listen(&name, of_server).unwrap();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept_within(Some(TIMEOUT)).unwrap());
        let connected = client.connect(&address(server, &name), of_client).unwrap();
        [connected, accepted.join().unwrap()]
    })
}

/// A pair over shared memory.
fn shared(options: [Options; 2]) -> [Connection; 2] {
    pair(&transports()[0], options)
}
