//! One end of a measurement on a real network: opening the NIC, meeting the other end, and driving this one.
//! Not the measures themselves: those are `exchange`.

use super::exchange::{Clock, End, Measure, Order, Side, Step, Trouble};
use longma_via::provider::af_xdp::AfXdp;
use longma_via::provider::shared_memory::{Settings, SharedMemory};
use longma_via::provider::udp::Udp;
use longma_via::{Address, ConnectionRequest, Error, Nic, Reliability};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a serving end waits before it looks whether it should stop.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long an end that asks waits for one that serves to have begun: both may have been started by one line of a shell.
const BEGINNING: Duration = Duration::from_secs(1);

/// Messages of the serving end are no longer than this.
pub const LARGEST: usize = 16 << 20;

/// Real NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Between processes of this host.
    SharedMemory,
    /// Over UDP.
    Udp,
    /// Over an Ethernet interface.
    AfXdp,
}

/// Why a measurement ended.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The NIC cannot be opened, or the other end is not there.
    #[error("{0}")]
    Refused(String),
    /// It went wrong.
    #[error("{0}")]
    Trouble(#[from] Trouble),
    /// Somebody asked to stop.
    #[error("interrupted")]
    Stopped,
    /// It took too long.
    #[error("took longer than the --time-limit of {0} s")]
    Late(f64),
}

impl From<Error> for NetworkError {
    fn from(error: Error) -> Self {
        NetworkError::Trouble(error.into())
    }
}

/// When to end early.
pub struct Limits<'a> {
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// When it began, and how long it may take.
    pub begin: Instant,
    /// See `begin`.
    pub time: Duration,
}

impl Limits<'_> {
    fn check(&self) -> Result<(), NetworkError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(NetworkError::Stopped);
        }
        let late = self.begin.elapsed() > self.time;
        if late { Err(NetworkError::Late(self.time.as_secs_f64())) } else { Ok(()) }
    }

    fn left(&self) -> Duration {
        self.time.saturating_sub(self.begin.elapsed())
    }
}

/// Opens a NIC. `at` is the socket's address for UDP, and the interface for AF_XDP; `settings` are those of shared memory.
pub fn open(kind: Kind, at: Option<&str>, settings: Settings) -> Result<Nic, NetworkError> {
    let refused = |error: Error| NetworkError::Refused(error.to_string());
    match kind {
        Kind::SharedMemory => {
            let provider = SharedMemory::open_with(settings).map_err(refused)?;
            Ok(Nic::with_provider(Box::new(provider)))
        }
        Kind::Udp => {
            let text = at.unwrap_or("0.0.0.0:0");
            let address: SocketAddr = text.parse().map_err(|_| {
                NetworkError::Refused(format!(
                    "--at {text}: for udp, an address and port such as 0.0.0.0:7471"
                ))
            })?;
            Ok(Nic::with_provider(Box::new(Udp::open(address).map_err(refused)?)))
        }
        Kind::AfXdp => {
            let name = at.ok_or_else(|| {
                NetworkError::Refused("af_xdp needs the network interface: --at eth0".into())
            })?;
            Ok(Nic::with_provider(Box::new(AfXdp::open(name).map_err(refused)?)))
        }
    }
}

/// Connects to the serving end, which may begin up to a second later.
pub fn connect(
    nic: &Nic,
    remote: &Address,
    bytes: u32,
    reliability: Reliability,
    limits: &Limits<'_>,
) -> Result<End, NetworkError> {
    let end = End::new(nic, bytes as usize, Clock::Real(limits.begin), |a| a.with_reliability(reliability))?;
    let name = Address::new(&nic.attributes().local_address, format!("client-{}", std::process::id()));
    let local = Address::local(&name.discriminator);
    let asked = Instant::now();
    loop {
        match end.vi.connect(&local, remote, Some(limits.left())) {
            Ok(_) => return Ok(end),
            Err(Error::NoMatch(_)) if asked.elapsed() < BEGINNING => {
                limits.check()?;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Error::NoMatch(_)) => {
                return Err(NetworkError::Refused(format!(
                    "nobody serves at {remote}: start `longma via serve` there, with the same --provider and --name"
                )));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// One measurement by the asking end.
pub fn measure(end: &End, order: Order, limits: &Limits<'_>) -> Result<Vec<u64>, NetworkError> {
    let side = Side::asking(order, end)?;
    end.give_order(&order)?;
    drive(side, end, limits)
}

fn drive(mut side: Side, end: &End, limits: &Limits<'_>) -> Result<Vec<u64>, NetworkError> {
    let mut turns = 0u32;
    loop {
        match side.step(end)? {
            Step::Finished(times) => return Ok(times),
            Step::Idle | Step::Moved => {}
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1024) || end.sleeps {
            limits.check()?;
        }
    }
}

/// Serves until stopped, or one connection with `once`. Says what happens by `say`.
pub fn serve(
    nic: &Nic,
    name: &str,
    sleeps: bool,
    once: bool,
    stop: &AtomicBool,
    say: impl Fn(&str) + Sync,
) -> Result<(), NetworkError> {
    let here = Address::local(name);
    std::thread::scope(|scope| {
        loop {
            let asked = match nic.connect_wait(&here, Some(LOOK_EVERY)) {
                Ok(asked) => asked,
                Err(Error::Timeout) if stop.load(Ordering::Relaxed) => return Ok(()),
                Err(Error::Timeout) => continue,
                Err(error) => return Err(error.into()),
            };
            let who = who(&asked);
            let reliability = asked.remote_attributes().reliability;
            let largest = (nic.attributes().max_transfer_bytes as usize).min(LARGEST);
            // What one client would take that is not there ends its connection, and not the server.
            let made =
                End::new(nic, largest, Clock::Real(Instant::now()), |a| a.with_reliability(reliability))
                    .and_then(|end| end.post_receive().map(|()| end))
                    .and_then(|end| asked.accept(&end.vi).map(|()| end));
            let end = match made {
                Ok(end) => end,
                Err(error) => {
                    say(&format!("{who}: {error}"));
                    continue;
                }
            };
            say(&format!("{who} connected"));
            let (say, named) = (&say, who.clone());
            let work = move || match attend(end, sleeps, stop) {
                Ok(count) => say(&format!("{named} is done after {count} measurements")),
                Err(error) => say(&format!("{named}: {error}")),
            };
            if once {
                work();
                return Ok(());
            }
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, work) {
                say(&format!("{who}: no thread could be started: {error}"));
            }
        }
    })
}

/// The name that a client says, and the user that the system says.
fn who(asked: &ConnectionRequest) -> String {
    match asked.credentials() {
        Some(credentials) => format!("{} (user {})", asked.remote(), credentials.uid),
        None => asked.remote().to_string(),
    }
}

/// Does what one asking end orders. Gives the number of measurements.
fn attend(mut end: End, sleeps: bool, stop: &AtomicBool) -> Result<u32, NetworkError> {
    let limits = Limits { stop, begin: Instant::now(), time: Duration::MAX };
    for count in 0.. {
        end.sleeps = true;
        let order = loop {
            limits.check()?;
            match end.hear_order() {
                Ok(Some(order)) => break order,
                Ok(None) if end.vi.state() == longma_via::ViState::Connected => {}
                // It has gone without a word, or its farewell came with the end of the connection.
                Ok(None) | Err(Trouble::Failed { .. }) => return Ok(count),
                Err(error) => return Err(error.into()),
            }
        };
        if order.measure == Measure::End {
            return Ok(count);
        }
        let side = Side::serving(order, &end)?;
        end.sleeps = sleeps;
        drive(side, &end, &limits)?;
    }
    Ok(0)
}
