//! Metrics of the running tuner in Prometheus's text format: in a file for the node exporter's textfile collector, or over
//! HTTP.
//!
//! Source: prometheus.io, exposition formats (text format 0.0.4), textfile collector (files are replaced whole).

use super::log::{Decision, DecisionKind};
use crate::setting::Setting;
use crate::watch::Observation;
use longma_locks::IgnorePoison;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Media type of the text format.
const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Maximum size of a request in bytes.
const MAX_REQUEST: usize = 8 << 10;
/// How long a client may take to send its request and to receive the answer.
const CLIENT_TIME_LIMIT: Duration = Duration::from_secs(2);
/// Number of clients that are served at once.
const MAX_CLIENTS: usize = 32;

/// The metrics.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    observations: u64,
    cpu_seconds: f64,
    connections: usize,
    flows: usize,
    bytes_per_second: f64,
    decisions: BTreeMap<&'static str, u64>,
    /// CPU and interrupts per second of each queue, by interface and number or name.
    queues: Vec<(String, String, Option<u32>, Option<f64>)>,
}

impl Metrics {
    /// Updates the metrics from an observation. `cpu_seconds` is the CPU time that the tuner has used.
    pub fn observe(&mut self, observation: &Observation, cpu_seconds: f64) {
        self.observations += 1;
        self.cpu_seconds = cpu_seconds;
        (self.connections, self.flows) = (observation.connections, observation.flows.len());
        // An empty sum of floating-point numbers is -0.
        self.bytes_per_second =
            0.0 + observation.flows.iter().filter_map(|flow| flow.known_bytes()).sum::<f64>();
        let of = |queue: &crate::watch::Queue| {
            let label = match (&queue.setting, queue.number) {
                (Setting::Irq(number), None) => format!("irq {number}"),
                (_, Some(number)) => number.to_string(),
                _ => queue.name.clone(),
            };
            (queue.interface.to_string(), label, queue.cpu, queue.interrupts)
        };
        self.queues = observation.queues.iter().map(of).collect();
    }

    /// Counts a decision.
    pub fn count(&mut self, decision: &Decision) {
        *self.decisions.entry(decision.act.key()).or_default() += 1;
    }

    /// The text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let head = |name: &str, kind: &str, help: &str| {
            format!("# HELP longma_affinity_{name} {help}\n# TYPE longma_affinity_{name} {kind}\n")
        };
        let mut single = |name: &str, kind: &str, help: &str, value: f64| {
            let _ = writeln!(text, "{}longma_affinity_{name} {value}", head(name, kind, help));
        };
        single("observations_total", "counter", "Observations of the host.", self.observations as f64);
        single("cpu_seconds_total", "counter", "Processor time that the tuner used.", self.cpu_seconds);
        single("connections", "gauge", "Established TCP connections.", self.connections as f64);
        single("flows", "gauge", "Connections that are followed.", self.flows as f64);
        single("flow_bytes_per_second", "gauge", "Bytes of the followed connections.", self.bytes_per_second);
        text += &head("decisions_total", "counter", "Decisions by kind.");
        for act in
            [DecisionKind::Moved, DecisionKind::WouldMove, DecisionKind::LeftAlone, DecisionKind::Missing]
        {
            let count = self.decisions.get(act.key()).copied().unwrap_or(0);
            let _ = writeln!(text, "longma_affinity_decisions_total{{act=\"{}\"}} {count}", act.key());
        }
        type Figure = fn(&(String, String, Option<u32>, Option<f64>)) -> Option<f64>;
        let figures: [(&str, &str, Figure); 2] = [
            ("queue_cpu", "CPU that processes the queue's packets.", |queue| queue.2.map(f64::from)),
            ("queue_interrupts_per_second", "Interrupts of the queue.", |queue| queue.3),
        ];
        for (name, help, figure) in figures {
            text += &head(name, "gauge", help);
            for queue in &self.queues {
                let Some(value) = figure(queue) else { continue };
                let (interface, number) = (escaped(&queue.0), escaped(&queue.1));
                let _ = writeln!(
                    text,
                    "longma_affinity_{name}{{interface=\"{interface}\",queue=\"{number}\"}} {value}"
                );
            }
        }
        text
    }

    /// Replaces the file at `path` with the text. Readers see either the old file or the new one.
    ///
    /// # Errors
    /// The error of the operating system; a device, a pipe or a folder is not replaced.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(io::Error::other("it exists and is not a file"));
        }
        // If `path` is a symbolic link, its target is replaced and the link stays.
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        // The collector reads only names that end with `.prom`.
        builder.prefix(".longma-").suffix(".part");
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let mut file = builder.tempfile_in(folder)?;
        file.write_all(self.text().as_bytes())?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// A label's value: backslashes, quotes and ends of lines are escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// An HTTP server of the metrics.
pub struct Exporter {
    text: Arc<Mutex<String>>,
    address: SocketAddr,
}

impl Exporter {
    /// Listens on `address`. Each client, up to [`MAX_CLIENTS`], is served by a thread that ends with the process.
    ///
    /// # Errors
    /// The error of the operating system: the address is in use.
    pub fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let text = Arc::new(Mutex::new(Metrics::default().text()));
        let shared = text.clone();
        std::thread::Builder::new().name("metrics".into()).spawn(move || {
            let mut clients = VecDeque::new();
            for client in listener.incoming() {
                match client {
                    Ok(client) => {
                        make_room(&mut clients);
                        let (shared, client) = (shared.clone(), Arc::new(client));
                        clients.push_back(Arc::downgrade(&client));
                        // If a client disconnects, only its own response is lost.
                        let serve = move || drop(answer(&client, &shared));
                        drop(std::thread::Builder::new().name("metrics client".into()).spawn(serve));
                    }
                    // Without free descriptors, accepting fails at once.
                    Err(_) => std::thread::sleep(CLIENT_TIME_LIMIT),
                }
            }
        })?;
        Ok(Self { text, address })
    }

    /// The address, with the port that the system chose if it was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the metrics.
    pub fn show(&self, metrics: &Metrics) {
        *self.text.lock().ignore_poison() = metrics.text();
    }
}

/// Forgets clients that were served. If too many are left, closes the oldest connections: their clients are slow, and new
/// clients would have to wait for them.
fn make_room(clients: &mut VecDeque<Weak<TcpStream>>) {
    clients.retain(|client| client.strong_count() > 0);
    while clients.len() >= MAX_CLIENTS {
        if let Some(oldest) = clients.pop_front().and_then(|client| client.upgrade()) {
            let _ = oldest.shutdown(Shutdown::Both);
        }
    }
}

/// Reads a request and answers it. A client has [`CLIENT_TIME_LIMIT`] for all of its request.
fn answer(mut client: &TcpStream, text: &Mutex<String>) -> io::Result<()> {
    let deadline = std::time::Instant::now() + CLIENT_TIME_LIMIT;
    client.set_write_timeout(Some(CLIENT_TIME_LIMIT))?;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() || request.len() > MAX_REQUEST {
            return respond(
                &mut client,
                "400 Bad Request",
                "a request has at most 8 KiB and takes 2 s\n",
                true,
            );
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut part)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&part[..length]),
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => {
            let text = text.lock().ignore_poison().clone();
            respond(&mut client, "200 OK", &text, method == b"GET")
        }
        (b"GET" | b"HEAD", _) => respond(&mut client, "404 Not Found", "see /metrics\n", method == b"GET"),
        _ => respond(&mut client, "405 Method Not Allowed", "GET /metrics\n", true),
    }
}

fn respond(client: &mut &TcpStream, status: &str, body: &str, has_body: bool) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes())?;
    if has_body { client.write_all(body.as_bytes()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
