//! One endpoint of a measurement on a real network: opens the NIC, connects, and drives the state machine of
//! `exchange`.

use super::exchange::{Clock, Endpoint, ExchangeError, Measure, MeasurementRequest, Role, StepResult};
use longma_via::provider::af_xdp::AfXdp;
use longma_via::provider::shared_memory::{Settings, SharedMemory};
use longma_via::provider::udp::Udp;
use longma_via::{Address, ConnectionRequest, Error, Listener, Nic, Reliability};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a waiting server checks for a stop request.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// How long a client waits for the server to start, because one shell line may start both.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an end polls without progress before it sleeps between polls, so that a silent peer costs little.
const IDLE_POLLING: Duration = Duration::from_millis(10);
const IDLE_SLEEP: Duration = Duration::from_millis(1);

/// Number of idle polls before the clock is read.
const IDLE_TURNS: u32 = 1024;

/// Maximum message size of the server.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Real NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Shared memory between processes of this host.
    SharedMemory,
    /// UDP sockets.
    Udp,
    /// An Ethernet interface (AF_XDP).
    AfXdp,
}

/// Why a measurement ended.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The NIC cannot be opened, or the other end is missing.
    #[error("{0}")]
    Refused(String),
    /// The measurement failed.
    #[error("{0}")]
    Exchange(#[from] ExchangeError),
    /// A stop was requested.
    #[error("interrupted")]
    Stopped,
    /// The measurement exceeded its time limit.
    #[error("took longer than the --time-limit of {0} s")]
    Late(f64),
}

impl From<Error> for NetworkError {
    fn from(error: Error) -> Self {
        NetworkError::Exchange(error.into())
    }
}

/// When to end early.
pub struct Limits<'a> {
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Start time.
    pub begin: Instant,
    /// Maximum duration.
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

/// Opens a NIC. `at` is the socket address for UDP and the interface for AF_XDP. `settings` apply to shared memory.
///
/// # Errors
/// If `at` is missing or invalid, or if the provider cannot be opened.
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

/// Connects to the server, which may start up to a second later.
///
/// # Errors
/// If no server answers, if the NIC has no resources left, or if a limit is reached.
pub fn connect(
    nic: &Nic,
    remote: &Address,
    bytes: u32,
    reliability: Reliability,
    limits: &Limits<'_>,
) -> Result<Endpoint, NetworkError> {
    let end =
        Endpoint::new(nic, bytes as usize, Clock::Real(limits.begin), |a| a.with_reliability(reliability))?;
    let name = Address::new(&nic.attributes().local_address, format!("client-{}", std::process::id()));
    let local = Address::local(&name.discriminator);
    let request = Instant::now();
    loop {
        match end.vi.connect(&local, remote, Some(limits.left())) {
            Ok(_) => return Ok(end),
            Err(Error::NoMatch(_)) if request.elapsed() < CONNECT_TIMEOUT => {
                limits.check()?;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Error::NoMatch(_)) => {
                return Err(NetworkError::Refused(format!(
                    "no server at {remote}: start `longma via serve` there, with the same --provider and --name"
                )));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes one measurement as the client. Returns its times in picoseconds.
///
/// # Errors
/// If a VIA call fails or a limit is reached.
pub fn measure(
    end: &Endpoint,
    request: MeasurementRequest,
    limits: &Limits<'_>,
) -> Result<Vec<u64>, NetworkError> {
    let side = Role::client_role(request, end)?;
    end.send_request(&request)?;
    drive(side, end, limits)
}

fn drive(mut side: Role, end: &Endpoint, limits: &Limits<'_>) -> Result<Vec<u64>, NetworkError> {
    let mut polls = 0u32;
    let mut idle = Idle::default();
    loop {
        let mut slept = false;
        match side.step(end)? {
            StepResult::Finished(times) => return Ok(times),
            StepResult::Idle => slept = idle.sleep_if_idle(),
            StepResult::Moved => idle = Idle::default(),
        }
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(1024) || end.sleeps || slept {
            limits.check()?;
        }
    }
}

/// The idle polls of an end since its last progress.
#[derive(Default)]
struct Idle {
    polls: u32,
    since: Option<Instant>,
}

impl Idle {
    /// Sleeps if there has been no progress for long. Returns whether it slept.
    fn sleep_if_idle(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        if self.polls < IDLE_TURNS || self.since.get_or_insert_with(Instant::now).elapsed() < IDLE_POLLING {
            return false;
        }
        std::thread::sleep(IDLE_SLEEP);
        true
    }
}

/// Serves the clients of `listener`, which belongs to `nic`, until `stop` is set or, with `once`, until the first
/// connection ends. Reports events through `say`.
///
/// # Errors
/// If the NIC cannot accept connections.
pub fn serve(
    nic: &Nic,
    listener: &Listener,
    sleeps: bool,
    once: bool,
    stop: &AtomicBool,
    say: impl Fn(&str) + Sync,
) -> Result<(), NetworkError> {
    std::thread::scope(|scope| {
        loop {
            let request = match listener.wait(Some(STOP_CHECK_INTERVAL)) {
                Ok(request) => request,
                Err(Error::Timeout) if stop.load(Ordering::Relaxed) => return Ok(()),
                Err(Error::Timeout) => continue,
                Err(error) => return Err(error.into()),
            };
            let client_name = client_name(&request);
            let reliability = request.remote_attributes().reliability;
            let largest = (nic.attributes().max_transfer_bytes as usize).min(MAX_MESSAGE_BYTES);
            // A resource shortage ends this client's connection but not the server.
            let made =
                Endpoint::new(nic, largest, Clock::Real(Instant::now()), |a| a.with_reliability(reliability))
                    .and_then(|end| end.post_receive().map(|()| end))
                    .and_then(|end| request.accept(&end.vi).map(|()| end));
            let end = match made {
                Ok(end) => end,
                Err(error) => {
                    say(&format!("{client_name}: {error}"));
                    continue;
                }
            };
            say(&format!("{client_name} connected"));
            let (say, named) = (&say, client_name.clone());
            let work = move || match serve_client(end, sleeps, stop) {
                Ok(count) => say(&format!("{named} is done after {count} measurements")),
                Err(error) => say(&format!("{named}: {error}")),
            };
            if once {
                work();
                return Ok(());
            }
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, work) {
                say(&format!("{client_name}: cannot start a thread: {error}"));
            }
        }
    })
}

/// The client's name, and the user reported by the operating system.
fn client_name(request: &ConnectionRequest) -> String {
    match request.credentials() {
        Some(credentials) => format!("{} (user {})", request.remote(), credentials.uid),
        None => request.remote().to_string(),
    }
}

/// Serves one client. Returns the number of measurements.
fn serve_client(mut end: Endpoint, sleeps: bool, stop: &AtomicBool) -> Result<u32, NetworkError> {
    let limits = Limits { stop, begin: Instant::now(), time: Duration::MAX };
    for count in 0.. {
        end.sleeps = true;
        let request = loop {
            limits.check()?;
            match end.receive_request() {
                Ok(Some(request)) => break request,
                Ok(None) if end.vi.state() == longma_via::ViState::Connected => {}
                // The client has disconnected, with or without a final request.
                Ok(None) | Err(ExchangeError::Via(Error::ConnectionEnded(_))) => return Ok(count),
                Err(error) => return Err(error.into()),
            }
        };
        if request.measure == Measure::End {
            return Ok(count);
        }
        let side = Role::serving(request, &end)?;
        end.sleeps = sleeps;
        drive(side, &end, &limits)?;
    }
    Ok(0)
}
