//! `longma affinity transfer`: a load for sweeps that can send with MSG_ZEROCOPY. The transfer itself is in
//! `longma-transfer`.

use super::terminal::{print, print_json};
use super::{Format, Outcome};
use longma_text::sanitize;
use longma_transfer::{PORT, Request, Sender, run as transfer, serve};
use serde_json::json;
use std::net::TcpListener;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Arguments {
    /// The host on which `longma affinity transfer --listen` runs.
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "listen")]
    server: Option<String>,
    /// Serve transfers at this address until the command is ended.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        default_missing_value = "[::]:5202",
        conflicts_with_all = ["server", "seconds", "zero_copy", "reverse"]
    )]
    listen: Option<String>,
    /// Send for this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = |text: &str| super::seconds(text, 3600))]
    seconds: u32,
    /// Whether to send with MSG_ZEROCOPY: 0 or 1.
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=1))]
    zero_copy: u8,
    /// Receive from the server instead of sending.
    #[arg(long)]
    reverse: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

pub fn run(arguments: &Arguments) -> Outcome {
    if let Some(address) = &arguments.listen {
        let listener = TcpListener::bind(address)
            .map_err(|error| format!("cannot listen at {}: {error}", sanitize(address)))?;
        serve(&listener)?;
    }
    let server = arguments.server.as_deref().unwrap_or_default();
    let has_port = server.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
    });
    let bare = server.trim_start_matches('[').trim_end_matches(']');
    let request = Request {
        sender: if arguments.reverse { Sender::Server } else { Sender::Client },
        zero_copy: arguments.zero_copy == 1,
        duration: Duration::from_secs(arguments.seconds.into()),
    };
    let report = match has_port {
        true => transfer(server, &request),
        false => transfer((bare, PORT), &request),
    }
    .map_err(|error| format!("transfer with {}: {error}", sanitize(server)))?;
    let completions = report.completions;
    if arguments.format == Format::Json {
        return print_json(&json!({
            "gbps": report.gbps(),
            "bytes": report.bytes,
            "seconds": report.elapsed.as_secs_f64(),
            "sends": completions.map(|of| of.sends),
            "copied": completions.map(|of| of.copied),
        }));
    }
    let copies = completions.map_or(String::new(), |of| {
        format!("MSG_ZEROCOPY: {} sends, of which the kernel copied {}\n", of.sends, of.copied)
    });
    print(&format!("{copies}{:.3} Gbit/s\n", report.gbps()))
}
