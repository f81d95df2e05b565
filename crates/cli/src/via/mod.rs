//! `longma via`: ping, bandwidth, serve and info for all kinds of NICs of `longma-via`; list and top for topics.
//! Source: the commands are modelled on `ib_send_lat`, `ib_send_bw` and `ucx_perftest`.

mod report;

use clap::{Args as Arguments, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use longma_topology::Machine;
use longma_topology::units::Size;
use longma_via::provider::shared_memory::{self, Allow, Directory};
use longma_via::{Address, Nic, Reliability};
use longma_via_myrinet::{self as myrinet, Fabric, Settings};
use longma_workloads::via::network::{self, Limits};
use longma_workloads::via::{Endpoint, Measure, MeasurementRequest, ModelError, Modelled, Row};
use serde_json::{Value, json};
use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// File mode passed to NICs that create no names.
const DEFAULT_MODE: u32 = 0o600;

type Outcome = Result<ExitCode, Box<dyn Error>>;

/// `longma via ...`
#[derive(Arguments)]
pub struct Args {
    #[command(subcommand)]
    command: ViaCommand,
}

#[derive(Subcommand)]
enum ViaCommand {
    /// Measure the one-way latency of a message: half the round-trip time.
    Ping {
        #[command(flatten)]
        options: MeasureOptions,
    },
    /// Measure message rate and bandwidth in one direction.
    Bandwidth {
        #[command(flatten)]
        options: MeasureOptions,
        /// Maximum number of outstanding sends.
        #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1000))]
        window: u32,
    },
    /// Serve `ping` and `bandwidth` clients until Ctrl-C or SIGTERM.
    Serve {
        #[command(flatten)]
        nic: NicOptions,
        /// Name for clients to connect to.
        #[arg(long, default_value = "longma")]
        name: String,
        /// File mode of the name, in octal, with --names. Users with write permission may connect.
        #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
        mode: u32,
        /// Exit after one client.
        #[arg(long)]
        once: bool,
        /// How to wait for messages.
        #[arg(long, value_enum, default_value = "poll")]
        wait: Wait,
    },
    /// List the topics of this user: types, publishers and subscribers.
    List(longma_topics_command::ListArguments),
    /// Show rates, lag and losses of all topics, refreshed at an interval.
    Top(longma_topics_command::TopArguments),
    /// Print the attributes of a NIC.
    Info {
        #[command(flatten)]
        nic: NicOptions,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
}

/// Selects the NIC.
#[derive(Arguments)]
struct NicOptions {
    /// Kind of NIC.
    #[arg(long, value_enum, default_value = "shm")]
    provider: Provider,
    /// Local ADDRESS:PORT (udp) or network interface (af_xdp).
    #[arg(long, value_name = "WHERE")]
    at: Option<String>,
    /// Machine of the modelled NICs (bvia, myvia).
    #[arg(long, value_name = "NAME|FILE", default_value = "piii-myrinet")]
    machine: String,
    /// Give a key of the machine another value, such as caches.l2.size=512KiB. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<longma_lab::MachineEdit>,
    /// Keep names in this directory, for shared memory.
    ///
    /// Only its owner may have write permission, so that no other user's process can take a name.
    #[arg(long, value_name = "DIRECTORY")]
    names: Option<PathBuf>,
    /// Accept only peers of these users (numeric IDs), for shared memory [default: all users].
    #[arg(long, value_name = "UIDS", value_delimiter = ',')]
    users: Vec<u32>,
    /// Longest message that bypasses the state machines, for MyVIA.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    fast_path: u32,
}

/// The measurement.
#[derive(Arguments)]
struct MeasureOptions {
    #[command(flatten)]
    nic: NicOptions,
    /// The server: empty (shm), ADDRESS:PORT (udp), or hardware address (af_xdp).
    #[arg(long, value_name = "HOST", default_value = "")]
    to: String,
    /// Name of the server.
    #[arg(long, default_value = "longma")]
    name: String,
    /// Message sizes, for example 8,64,4KiB [default: powers of four from 4 bytes to 1 MiB; to 64 KiB on modelled
    /// NICs].
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    sizes: Vec<u32>,
    /// Number of messages or round trips to measure [default: 1000 pings; 20000 messages, fewer if they are long].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iterations: Option<u32>,
    /// Number of messages before the measurement [default: a tenth of the measured ones, at most 1000].
    #[arg(long, value_name = "COUNT")]
    warm_up: Option<u32>,
    /// Reliability level.
    #[arg(long, value_enum, default_value = "delivery")]
    reliability: Level,
    /// How to wait for messages.
    #[arg(long, value_enum, default_value = "poll")]
    wait: Wait,
    /// Time limit for the whole command.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
    time_limit: f64,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Provider {
    /// Shared memory, between processes of this host.
    Shm,
    /// UDP; needs no privileges.
    Udp,
    /// An Ethernet interface through AF_XDP, bypassing the kernel's network stack; needs privileges.
    #[value(name = "af_xdp")]
    AfXdp,
    /// A modelled Myrinet with the firmware of Berkeley VIA, in simulated time.
    Bvia,
    /// A modelled Myrinet with the firmware of MyVIA, in simulated time.
    Myvia,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Level {
    /// Unreliable delivery: messages may be lost.
    Unreliable,
    /// Reliable delivery.
    Delivery,
    /// Reliable reception: a send completes only when the data is in the peer's memory.
    Reception,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wait {
    /// Poll: lowest latency.
    Poll,
    /// Sleep: lowest CPU use.
    Sleep,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table.
    Table,
    /// JSON.
    Json,
}

fn size(text: &str) -> Result<u32, String> {
    let bytes = match text.parse::<u64>() {
        Ok(bytes) => bytes,
        Err(_) => spaced(text)
            .parse::<Size>()
            .map_err(|error| format!("{}; {}", error.message, error.help))?
            .bytes(),
    };
    let largest = network::MAX_MESSAGE_BYTES as u64;
    let too_long = || {
        format!(
            "`longma via` measures messages of at most {largest} bytes, even if the NIC transfers longer ones"
        )
    };
    u32::try_from(bytes).ok().filter(|_| bytes <= largest).ok_or_else(too_long)
}

/// Inserts the space before the unit that `Size` requires.
fn spaced(text: &str) -> String {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    format!("{} {}", &text[..digits], text[digits..].trim())
}

fn mode(text: &str) -> Result<u32, String> {
    let wrong = || "an octal mode, such as 660".to_string();
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(wrong)
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected seconds, such as 60".to_string())?;
    (0.0..=1e6).contains(&value).then_some(value).ok_or_else(|| "between 0 and a million seconds".into())
}

/// Set by Ctrl-C and SIGTERM.
static STOP: AtomicBool = AtomicBool::new(false);

/// Runs `longma via`.
pub fn run(args: Args) -> Outcome {
    // Without the handlers, Ctrl-C ends the command at once.
    if !matches!(args.command, ViaCommand::List(_) | ViaCommand::Top(_)) {
        stop_on_signals()?;
    }
    match args.command {
        ViaCommand::Ping { options } => measure(&options, Measure::Ping, 1),
        ViaCommand::Bandwidth { options, window } => measure(&options, Measure::Bandwidth, window),
        ViaCommand::Serve { nic, name, mode, once, wait } => serve(&nic, &name, mode, once, wait),
        ViaCommand::List(arguments) => longma_topics_command::list(&arguments),
        ViaCommand::Top(arguments) => longma_topics_command::top(&arguments),
        ViaCommand::Info { nic, format } => info(&nic, format),
    }
}

/// Ctrl-C and SIGTERM set `STOP`; a second Ctrl-C ends the process.
fn stop_on_signals() -> Result<(), Box<dyn Error>> {
    ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?;
    let stop = || STOP.store(true, Ordering::Relaxed);
    // SAFETY: `stop` only stores to an atomic, which is permitted in a signal handler.
    unsafe { signal_hook::low_level::register(signal_hook::consts::SIGTERM, stop)? };
    Ok(())
}

impl NicOptions {
    fn kind(&self) -> Result<network::Kind, myrinet::Kind> {
        match self.provider {
            Provider::Shm => Ok(network::Kind::SharedMemory),
            Provider::Udp => Ok(network::Kind::Udp),
            Provider::AfXdp => Ok(network::Kind::AfXdp),
            Provider::Bvia => Err(myrinet::Kind::Bvia),
            Provider::Myvia => Err(myrinet::Kind::Myvia),
        }
    }

    /// Opens a real NIC. `mode` is the file mode of names that it creates.
    fn open(&self, kind: network::Kind, mode: u32) -> Result<Nic, network::NetworkError> {
        if kind != network::Kind::SharedMemory && (self.names.is_some() || !self.users.is_empty()) {
            let text = "--names and --users are for shared memory (--provider shm): a network does not identify the peer's user";
            return Err(network::NetworkError::Refused(text.into()));
        }
        let allow = if self.users.is_empty() { Allow::Everyone } else { Allow::users(&self.users) };
        let directory = self.names.clone().map(|path| Directory { path, mode });
        let settings = shared_memory::Settings {
            clients: allow.clone(),
            servers: allow,
            directory,
            ..Default::default()
        };
        network::open(kind, self.at.as_deref(), settings)
    }

    fn settings(&self, kind: myrinet::Kind) -> Settings {
        Settings { fast_path: self.fast_path, ..Settings::of(kind) }
    }

    fn machine(&self) -> Result<Machine, Box<dyn Error>> {
        Ok(longma_lab::open_machine(&self.machine, &self.set)?)
    }
}

impl MeasureOptions {
    fn reliability(&self) -> Reliability {
        match self.reliability {
            Level::Unreliable => Reliability::Unreliable,
            Level::Delivery => Reliability::ReliableDelivery,
            Level::Reception => Reliability::ReliableReception,
        }
    }

    fn requests(&self, measure: Measure, window: u32) -> Vec<MeasurementRequest> {
        let largest = if self.nic.kind().is_err() { 64 << 10 } else { 1 << 20 };
        let usual =
            std::iter::successors(Some(4u32), |size| size.checked_mul(4)).take_while(|size| *size <= largest);
        let sizes: Vec<_> = if self.sizes.is_empty() { usual.collect() } else { self.sizes.clone() };
        let request = |bytes: u32| {
            let usual = match measure {
                Measure::Ping => 1000,
                // About a second for each size.
                _ => (1_000_000_000 / bytes.max(1)).clamp(500, 20_000),
            };
            let messages = self.iterations.unwrap_or(usual);
            let warm_up = self.warm_up.unwrap_or((messages / 10).min(1000));
            MeasurementRequest { measure, bytes, messages, warm_up, window }
        };
        sizes.into_iter().map(request).collect()
    }
}

/// Measures all sizes and prints each result as it becomes available.
fn measure(options: &MeasureOptions, measure: Measure, window: u32) -> Outcome {
    let requests = options.requests(measure, window);
    let largest = requests.iter().map(|request| request.bytes).max().unwrap_or(0);
    let limits =
        Limits { stop: &STOP, begin: Instant::now(), time: Duration::from_secs_f64(options.time_limit) };
    let mut printer = Printer::new(options, measure, requests.len());
    match options.nic.kind() {
        Ok(kind) => {
            let nic = options.nic.open(kind, DEFAULT_MODE)?;
            let remote = Address::new(&options.to, &options.name);
            let mut end = network::connect(&nic, &remote, largest, options.reliability(), &limits)?;
            end.sleeps = options.wait == Wait::Sleep;
            for request in requests {
                printer.begin(request.bytes);
                let times = network::measure(&end, request, &limits)?;
                printer.row(Row::new(request, times))?;
            }
            end.send_request(&MeasurementRequest::default())?;
            flush_last_message(&end);
        }
        Err(kind) => {
            let modelled = Modelled::new(
                &options.nic.machine()?,
                options.nic.settings(kind),
                largest,
                options.reliability(),
            )?;
            for request in requests {
                printer.begin(request.bytes);
                let times = timed(&limits, || modelled.measure(request, &STOP))?;
                printer.row(Row::new(request, times))?;
            }
        }
    }
    printer.end()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a modelled measurement under the time limit.
fn timed<T>(limits: &Limits<'_>, work: impl FnOnce() -> Result<T, ModelError>) -> Result<T, Box<dyn Error>> {
    let finished = AtomicBool::new(false);
    let late = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if limits.begin.elapsed() > limits.time {
                    late.store(true, Ordering::Relaxed);
                    STOP.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let outcome = work();
        finished.store(true, Ordering::Relaxed);
        outcome
    });
    if late.load(Ordering::Relaxed) && outcome.is_err() {
        return Err(network::NetworkError::Late(limits.time.as_secs_f64()).into());
    }
    Ok(outcome?)
}

/// Waits up to 200 ms for the final message to be sent.
fn flush_last_message(end: &Endpoint) {
    let begin = Instant::now();
    while end.vi.send_done().is_none() && begin.elapsed() < Duration::from_millis(200) {
        std::thread::yield_now();
    }
}

/// Prints the measurements.
struct Printer {
    format: Format,
    measure: Measure,
    bar: ProgressBar,
    rows: Vec<Value>,
    about: Value,
}

impl Printer {
    fn new(options: &MeasureOptions, measure: Measure, count: usize) -> Self {
        let shown = std::io::stderr().is_terminal();
        let bar = if shown { ProgressBar::new(count as u64) } else { ProgressBar::hidden() };
        let style =
            ProgressStyle::with_template("{bar:28.cyan/dim} {pos}/{len}  {elapsed} elapsed  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let provider = options.nic.provider.to_possible_value().map(|value| value.get_name().to_string());
        let simulated = options.nic.kind().is_err();
        let about = json!({ "measure": measure, "provider": provider, "simulated": simulated });
        if options.format == Format::Table {
            println!("{}", report::head(measure));
        }
        Self { format: options.format, measure, bar, rows: Vec::new(), about }
    }

    fn begin(&self, bytes: u32) {
        self.bar.set_message(format!("{bytes} bytes"));
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn row(&mut self, row: Row) -> Result<(), Box<dyn Error>> {
        self.bar.inc(1);
        match self.format {
            Format::Json => self.rows.push(row.json()),
            Format::Table => {
                let line = report::line(&row);
                self.bar.suspend(|| writeln!(std::io::stdout(), "{line}"))?;
            }
        }
        Ok(())
    }

    fn end(self) -> Result<(), Box<dyn Error>> {
        self.bar.finish_and_clear();
        debug_assert!(self.measure != Measure::End);
        if self.format == Format::Json {
            let mut all = self.about;
            all["results"] = Value::Array(self.rows);
            writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&all)?)?;
        }
        Ok(())
    }
}

fn serve(options: &NicOptions, name: &str, mode: u32, once: bool, wait: Wait) -> Outcome {
    let Ok(kind) = options.kind() else {
        return Err("the modelled NICs need no server: `longma via ping` runs both hosts itself".into());
    };
    let nic = options.open(kind, mode)?;
    let listener = nic.listen(&Address::local(name))?;
    let address = String::from_utf8_lossy(&nic.attributes().local_address).into_owned();
    // Scripts wait for this line.
    println!("serving {name} at {}", if address.is_empty() { "this host" } else { &address });
    std::io::stdout().flush()?;
    network::serve(&nic, &listener, wait == Wait::Sleep, once, &STOP, |text| eprintln!("{text}"))?;
    Ok(ExitCode::SUCCESS)
}

fn info(options: &NicOptions, format: Format) -> Outcome {
    let nic = match options.kind() {
        Ok(kind) => options.open(kind, DEFAULT_MODE)?,
        Err(kind) => {
            let parameters = longma_via_myrinet::Parameters::of(&options.machine()?)?;
            let fabric = Fabric::new(parameters, options.settings(kind))?;
            Nic::with_provider(Box::new(fabric.nic(0)?))
        }
    };
    let facts = nic.attributes();
    let levels = |levels: &[Reliability]| levels.iter().map(|level| format!("{level:?}")).collect::<Vec<_>>();
    let rows = [
        ("name", json!(facts.name)),
        ("address", json!(String::from_utf8_lossy(&facts.local_address))),
        ("max_transfer_bytes", json!(facts.max_transfer_bytes)),
        ("native_mtu_bytes", json!(facts.native_mtu_bytes)),
        ("max_vis", json!(facts.max_vis)),
        ("max_descriptors_per_queue", json!(facts.max_descriptors_per_queue)),
        ("max_segments_per_descriptor", json!(facts.max_segments_per_descriptor)),
        ("max_completion_queues", json!(facts.max_completion_queues)),
        ("max_completion_queue_entries", json!(facts.max_completion_queue_entries)),
        ("max_register_bytes", json!(facts.max_register_bytes)),
        ("max_register_regions", json!(facts.max_register_regions)),
        ("max_protection_tags", json!(facts.max_protection_tags)),
        ("max_discriminator_bytes", json!(facts.max_discriminator_bytes)),
        ("reliability", json!(levels(&facts.reliability))),
        ("rdma_read", json!(levels(&facts.rdma_read))),
    ];
    let mut out = std::io::stdout();
    if format == Format::Json {
        let all: serde_json::Map<_, _> =
            rows.map(|(name, value)| (name.to_string(), value)).into_iter().collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, value) in rows {
        let text = match value {
            Value::String(text) => text,
            Value::Array(words) => words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
            other => other.to_string(),
        };
        writeln!(out, "{name:<30}{text}")?;
    }
    Ok(ExitCode::SUCCESS)
}
