//! The test bed of the conformance cases: a provider at a reliability level, connected pairs of VIs, and polling with a
//! timeout.

use longma_via::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The timeout of every operation.
pub const TIME_LIMIT: Duration = Duration::from_secs(10);
pub const TIMEOUT: Option<Duration> = Some(TIME_LIMIT);

type Open = Arc<dyn Fn() -> Nic + Send + Sync>;
type AddressOf = Arc<dyn Fn(&Nic, &str) -> Address + Send + Sync>;

/// A provider at a reliability level.
#[derive(Clone)]
pub struct Bed {
    name: &'static str,
    pub level: Reliability,
    open: Open,
    address_of: AddressOf,
}

/// One side of a connection.
pub struct Side {
    pub nic: Nic,
    pub tag: ProtectionTag,
    pub vi: Vi,
    pub memory: MemoryRegion,
    pub errors: Receiver<AsynchronousError>,
}

pub const MEMORY_BYTES: usize = 256 * 1024;

impl Bed {
    /// Creates a test bed from a function that opens a NIC (any two must reach each other) and one that makes the
    /// address of a NIC.
    pub fn new(
        name: &'static str,
        open: impl Fn() -> Nic + Send + Sync + 'static,
        address_of: impl Fn(&Nic, &str) -> Address + Send + Sync + 'static,
    ) -> Bed {
        Bed {
            name,
            level: Reliability::ReliableDelivery,
            open: Arc::new(open),
            address_of: Arc::new(address_of),
        }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn at(&self, level: Reliability) -> Bed {
        Bed { level, ..self.clone() }
    }

    pub fn open(&self) -> Nic {
        (self.open)()
    }

    pub fn address(&self, nic: &Nic, discriminator: &str) -> Address {
        (self.address_of)(nic, discriminator)
    }

    /// A unique discriminator.
    pub fn fresh(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        format!("conf-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
    }

    pub fn attributes(&self, tag: ProtectionTag) -> ViAttributes {
        ViAttributes::new(tag).with_reliability(self.level)
    }

    /// An unconnected side whose VI has modified attributes.
    pub fn side_like(&self, change: impl FnOnce(ViAttributes) -> ViAttributes) -> Side {
        self.side_on(self.open(), change)
    }

    /// Several sides on one NIC. An Ethernet NIC does not reach itself, so a server's clients share the other NIC.
    pub fn sides_of_one_nic<const N: usize>(&self) -> [Side; N] {
        let nic = self.open();
        std::array::from_fn(|_| self.side_on(nic.clone(), |attributes| attributes))
    }

    fn side_on(&self, nic: Nic, change: impl FnOnce(ViAttributes) -> ViAttributes) -> Side {
        let tag = nic.create_protection_tag().unwrap();
        let vi = nic.create_vi(change(self.attributes(tag)), None, None).unwrap();
        let memory = nic.allocate(MEMORY_BYTES, MemoryAttributes::remote(tag)).unwrap();
        let (send, errors) = channel();
        nic.on_error(move |error| {
            let _ = send.send(*error);
        })
        .unwrap();
        Side { nic, tag, vi, memory, errors }
    }

    pub fn side(&self) -> Side {
        self.side_like(|attributes| attributes)
    }

    /// Connects `client` to `server`, given as a NIC and a VI of it.
    pub fn connect(&self, server: (&Nic, &Vi), client: &Vi) {
        let name = self.fresh();
        let (local, remote) = (Address::local(&name), self.address(server.0, &name));
        std::thread::scope(|scope| {
            let accept =
                scope.spawn(|| server.0.connect_wait(&local, TIMEOUT).unwrap().accept(server.1).unwrap());
            connect_patiently(client, &remote).unwrap();
            accept.join().unwrap();
        });
    }

    /// A connected server and client.
    pub fn pair(&self) -> (Side, Side) {
        self.pair_like(|attributes| attributes)
    }

    /// A pair whose server VI has modified attributes.
    pub fn pair_like(&self, change: impl FnOnce(ViAttributes) -> ViAttributes) -> (Side, Side) {
        let (server, client) = (self.side_like(change), self.side());
        self.connect((&server.nic, &server.vi), &client.vi);
        (server, client)
    }
}

/// Requests a connection until a VI is waiting there.
pub fn connect_patiently(vi: &Vi, remote: &Address) -> Result<ViAttributes, Error> {
    let end = Instant::now() + TIME_LIMIT;
    loop {
        match vi.connect(&Address::local("client"), remote, TIMEOUT) {
            Err(Error::NoMatch(_)) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            outcome => return outcome,
        }
    }
}

/// Polls until `found` returns a value. Both sides make progress during the wait.
pub fn until<T>(sides: [&Vi; 2], what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIME_LIMIT;
    loop {
        // On a modelled NIC a poll takes about 30 ns of simulated time and a message about a thousand polls. On a busy
        // machine, where a yield may take tens of milliseconds, one poll per yield would exceed the timeout.
        for _ in 0..500 {
            if let Some(found) = found() {
                return found;
            }
            sides.iter().for_each(|vi| vi.progress());
        }
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::yield_now();
    }
}

impl Side {
    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(offset, bytes);
    }

    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes);
        bytes
    }

    pub fn receive_into(&self, offset: usize, length: usize) {
        self.vi.post_receive(&Descriptor::receive(&[self.memory.segment(offset, length)])).unwrap();
    }

    /// Posts to the send queue and polls until the completion.
    pub fn post_and_collect(&self, other: &Side, descriptor: &Descriptor<'_>) -> Completion {
        self.vi.post_send(descriptor).unwrap();
        until([&self.vi, &other.vi], "the completion of a send", || self.vi.send_done())
    }

    pub fn collect_receive(&self, other: &Side) -> Completion {
        until([&self.vi, &other.vi], "the completion of a receive", || self.vi.receive_done())
    }

    /// The next error delivered to the callback.
    pub fn error(&self, other: &Side) -> AsynchronousError {
        until([&self.vi, &other.vi], "an asynchronous error", || self.errors.try_recv().ok())
    }

    pub fn await_state(&self, other: &Side, state: ViState) {
        until([&self.vi, &other.vi], &format!("the state {state:?}"), || {
            (self.vi.state() == state).then_some(())
        });
    }
}

/// Bytes whose values depend on their position.
pub fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 253 + seed * 17) as u8).collect()
}
