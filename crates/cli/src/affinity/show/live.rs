//! The live view of CPUs, queues, flows and applications, refreshed until q or Ctrl-C is pressed. Restores the terminal
//! afterwards.

use super::super::{INTERRUPTED, Outcome, interruption, width};
use longma_affinity::host::{Host, Tree};
use longma_affinity::interface::Nic;
use longma_affinity::watch::{Flow, Observation, Protocol, Watch};
use longma_command_line::output::table;
use longma_command_line::raw_mode::RawMode;
use longma_text::sanitize;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Read, Stdin, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of flows listed.
const MAX_FLOWS: usize = 12;
/// Width of a load bar, in characters.
const BAR_WIDTH: usize = 20;
/// Interval at which keys and signals are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The terminal in its alternate screen, without cursor, line buffering and echo. Dropping it restores the terminal.
struct Screen {
    _mode: RawMode<Stdin>,
}

impl Screen {
    fn begin() -> io::Result<Self> {
        let screen = Self { _mode: RawMode::with_signals(io::stdin())? };
        write_terminal("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Fails if the terminal is closed.
        let _ = write_terminal("\x1b[?25h\x1b[?1049l");
    }
}

fn write_terminal(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The reason for leaving the view.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExitReason {
    Key,
    Signal,
}

/// Refreshes the view every `pause`.
pub fn run(host: &Tree, nic: &Nic, pause: Duration) -> Outcome {
    let stop = interruption()?;
    let mut watch = Watch::new(vec![nic.name.clone()]);
    watch.observe(host);
    let screen = Screen::begin()?;
    write_terminal(&format!("\x1b[H\x1b[2J{}: observing; press q to quit", sanitize(nic.name.name())))?;
    let end = loop {
        if let Some(end) = wait(pause, &stop)? {
            break end;
        }
        let observation = watch.observe(host);
        let rows = terminal_size::terminal_size().map_or(24, |(_, height)| usize::from(height.0));
        write_terminal(&frame(&render(nic, &totals(host, nic), &observation), rows))?;
    };
    drop(screen);
    Ok(if end == ExitReason::Key { ExitCode::SUCCESS } else { ExitCode::from(INTERRUPTED) })
}

/// Waits for `pause`. Returns early at q, Escape, end of input or a signal.
fn wait(pause: Duration, stop: &AtomicBool) -> io::Result<Option<ExitReason>> {
    let until = Instant::now() + pause;
    let stdin = io::stdin();
    while Instant::now() < until {
        if stop.load(Ordering::Relaxed) {
            return Ok(Some(ExitReason::Signal));
        }
        let left = until.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
        let mut ready = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut ready, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut keys = [0; 64];
        let count = stdin.lock().read(&mut keys)?;
        if count == 0 || keys[..count].iter().any(|key| matches!(key, b'q' | b'Q' | 0x1b)) {
            return Ok(Some(ExitReason::Key));
        }
    }
    Ok(stop.load(Ordering::Relaxed).then_some(ExitReason::Signal))
}

/// The lines that fit the terminal, drawn over the previous frame.
fn frame(text: &str, rows: usize) -> String {
    let columns = width();
    let lines = text.lines().take(rows.saturating_sub(1));
    // Program names may contain control characters.
    let cut = |line: &str| sanitize(line).chars().take(columns).collect::<String>();
    let body: String = lines.map(|line| format!("{}\x1b[K\r\n", cut(line))).collect();
    format!("\x1b[H{body}\x1b[J")
}

/// Bytes received and sent since the interface was created.
fn totals(host: &Tree, nic: &Nic) -> [Option<u64>; 2] {
    ["rx", "tx"].map(|way| {
        host.read(&format!("sys/class/net/{}/statistics/{way}_bytes", nic.name)).ok()?.parse().ok()
    })
}

/// Tables of the CPUs and of the flows.
fn render(nic: &Nic, totals: &[Option<u64>; 2], observation: &Observation) -> String {
    let gigabytes =
        |bytes: Option<u64>| bytes.map_or("?".into(), |bytes| format!("{:.2}", bytes as f64 * 1e-9));
    let mut text = format!(
        "{} ({}), node {}: {} GB in, {} GB out; {} connections; press q to quit\n\n",
        nic.name,
        nic.driver.as_deref().unwrap_or("virtual"),
        nic.node.map_or("?".into(), |node| node.to_string()),
        gigabytes(totals[0]),
        gigabytes(totals[1]),
        observation.connections
    );
    let head = ["CPU", "SOCKET", "BUSY", "", "SOFTIRQ", "QUEUES", "APPLICATIONS"].map(String::from).to_vec();
    let row = |place: &longma_topology::CpuLocation| {
        let shares = observation.cpus.get(&place.cpu).copied().unwrap_or_default();
        let queues: Vec<&str> = observation
            .queues
            .iter()
            .filter(|queue| queue.cpu == Some(place.cpu))
            .map(|queue| queue.name.as_str())
            .collect();
        let threads: Vec<String> = observation
            .threads
            .iter()
            .filter(|thread| thread.cpu == place.cpu)
            .map(|thread| format!("{} ({})", sanitize(&thread.name), thread.thread))
            .collect();
        vec![
            place.cpu.to_string(),
            place.socket.to_string(),
            bar(shares.busy()),
            format!("{:>3.0} %", shares.busy() * 100.0),
            format!("{:>3.0} %", shares.softirq * 100.0),
            if queues.is_empty() { "-".into() } else { queues.join(", ") },
            if threads.is_empty() { "-".into() } else { threads.join(", ") },
        ]
    };
    text += &table(&std::iter::once(head).chain(observation.places.iter().map(row)).collect::<Vec<_>>());
    text += "\n";
    let head = ["FLOW", "Gb/s IN", "OUT", "APPLICATION", "ON CPU", "MAY RUN ON"].map(String::from).to_vec();
    let row = |flow: &Flow| {
        let gbps = |bytes: Option<f64>| bytes.map_or("?".into(), |bytes| format!("{:.3}", bytes * 8e-9));
        let thread = flow.thread.map(|index| &observation.threads[index]);
        let of = |what: &dyn Fn(&longma_affinity::watch::Thread) -> String| thread.map_or("?".into(), what);
        vec![
            match (flow.protocol, flow.remote.port()) {
                (Protocol::Tcp, _) => format!("{} <- {}", flow.local, flow.remote),
                (Protocol::Udp, 0) => format!("UDP {} <- any", flow.local),
                (Protocol::Udp, _) => format!("UDP {} <- {}", flow.local, flow.remote),
            },
            gbps(flow.received),
            gbps(flow.sent),
            of(&|thread| sanitize(&thread.name)),
            of(&|thread| thread.cpu.to_string()),
            of(&|thread| thread.bound.to_string()),
        ]
    };
    text += &table(
        &std::iter::once(head).chain(observation.flows.iter().take(MAX_FLOWS).map(row)).collect::<Vec<_>>(),
    );
    for missing in &observation.missing {
        text += &format!("{missing}\n");
    }
    text
}

fn bar(part: f64) -> String {
    let full = (part.clamp(0.0, 1.0) * BAR_WIDTH as f64).round() as usize;
    "█".repeat(full) + &"░".repeat(BAR_WIDTH - full)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_affinity::counters::CpuShares;
    use longma_affinity::fake::topology;
    use longma_affinity::setting::Setting;
    use longma_affinity::watch::{Queue, Thread};

    #[test]
    fn the_live_view_shows_each_cpu_and_fits_the_terminal() {
        let name: longma_affinity::setting::Interface = "eth0".parse().unwrap();
        let nic = Nic {
            name: name.clone(),
            kind: Default::default(),
            lower: vec![],
            distances: Default::default(),
            driver: Some("mlx4".into()),
            device: None,
            node: Some(0),
            speed_mbps: None,
            mtu: None,
            state: "up".into(),
            rx_queues: vec![0],
            tx_queues: vec![0],
            irqs: vec![],
        };
        let shares = CpuShares { softirq: 0.5, idle: 0.5, ..Default::default() };
        let observation = Observation {
            places: topology(1, 1, 2, 1),
            cpus: [(0, shares)].into(),
            queues: vec![Queue {
                number: None,
                interface: name.clone(),
                node: Some(0),
                setting: Setting::Irq(40),
                name: "irq 40".into(),
                cpu: Some(0),
                interrupts: Some(1.0),
                load: 0.5,
                taken: None,
            }],
            flows: vec![Flow {
                protocol: Protocol::Tcp,
                drops: None,
                arrives: vec![],
                local: "10.0.0.1:80".parse().unwrap(),
                remote: "10.0.0.2:4000".parse().unwrap(),
                interface: name,
                received: Some(1.25e9),
                sent: None,
                thread: Some(0),
            }],
            threads: vec![Thread {
                process: 7,
                thread: 8,
                started: 1,
                name: "reader".into(),
                names: Default::default(),
                cpu: 1,
                load: 0.2,
                bound: "1".parse().unwrap(),
                open: "0-1".parse().unwrap(),
            }],
            ..Default::default()
        };
        let mut named = observation.clone();
        named.threads[0].name = "\x1b[31mr\n\u{9b}2J".into();
        let full_frame = frame(&render(&nic, &[None, None], &named), 40);
        let shown: String = full_frame.split("\x1b[K\r\n").collect();
        let body = shown.strip_prefix("\x1b[H").and_then(|rest| rest.strip_suffix("\x1b[J")).unwrap();
        assert!(!body.chars().any(char::is_control) && body.contains("[31mr"), "{body:?}");
        let text = render(&nic, &[Some(2_500_000_000), None], &observation);
        let line =
            |with: &str| text.lines().find(|line| line.contains(with)).unwrap_or_else(|| panic!("{text}"));
        assert!(line("irq 40").contains("██████████░░░░░░░░░░") && line("irq 40").contains("50 %"));
        assert!(line("reader (8)").starts_with("1 ") && line("2.50 GB in").contains("? GB out"));
        assert!(line("10.0.0.1:80 <- 10.0.0.2:4000").contains("10.000"));
        let frame = frame(&text, 6);
        assert_eq!(frame.matches("\r\n").count(), 5);
        assert!(frame.starts_with("\x1b[H") && frame.ends_with("\x1b[J"));
    }
}
