//! `longma zoned serve`: a map for clients of the Redis protocol.

use super::Outcome;
use super::device::DeviceOptions;
use super::map::only_tree;
use longma_command_line::output::print;
use longma_command_line::size;
use longma_zoned::{Durability, Options};
use longma_zoned_server::{Limits, Password, Server, ServerError, Settings, tls_config};
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Arguments of `longma zoned serve`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// Address to listen on; port 0 picks a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    listen: SocketAddr,
    /// File with the password of all clients in its first line. Required if other machines can connect.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// PEM file with the certificate chain.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Accept connections from other machines without TLS. Passwords and data are then sent unencrypted.
    #[arg(long)]
    plain: bool,
    /// Reply to changes before they are durable, and make them durable once a second. A power cut may lose the last
    /// second; a kill loses no write.
    #[arg(long)]
    relaxed: bool,
    /// Memory for leaves and inner nodes.
    #[arg(long, value_name = "SIZE", default_value = "256 MiB", value_parser = size)]
    cache: u64,
    /// Maximum number of clients.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_clients: u32,
    /// Maximum length of a command, and of a transaction.
    #[arg(long, value_name = "SIZE", default_value = "16 MiB", value_parser = size)]
    max_command: u64,
    /// Maximum length of a reply, and of the replies that a client may leave unread.
    #[arg(long, value_name = "SIZE", default_value = "16 MiB", value_parser = size)]
    max_reply: u64,
    /// Maximum memory of all clients' commands and replies.
    #[arg(long, value_name = "SIZE", default_value = "256 MiB", value_parser = size)]
    max_buffers: u64,
    /// Time limit in seconds for a client to send the rest of a command, and to read each 64 KiB of replies.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// Serves the map until Ctrl-C or SIGTERM.
pub fn run(arguments: &Arguments) -> Outcome {
    let password = arguments.password_file.as_deref().map(Password::from_file).transpose()?;
    let tls = arguments.tls_cert.as_deref().zip(arguments.tls_key.as_deref());
    let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let settings = Settings {
        password,
        tls: tls.map(|(certificate, key)| tls_config(certificate, key)).transpose()?,
        plain: arguments.plain,
        limits: Limits {
            clients: arguments.max_clients as usize,
            command_bytes: bytes(arguments.max_command),
            reply_bytes: bytes(arguments.max_reply),
            buffer_bytes: bytes(arguments.max_buffers),
            stall: Duration::from_secs(arguments.timeout),
            ..Limits::default()
        },
        sync_every: arguments.relaxed.then_some(Duration::from_secs(1)),
    };
    let durability = if arguments.relaxed { Durability::Relaxed } else { Durability::EachBatch };
    let server = Server::bind(arguments.listen, settings).map_err(|error| match error {
        ServerError::Listen { .. } => format!("{error}\n  --listen 127.0.0.1:0 picks a free port"),
        ServerError::NoPassword { .. } => format!("{error}\n  --password-file FILE sets a password"),
        ServerError::NotEncrypted { .. } => {
            format!("{error}\n  --tls-cert FILE --tls-key FILE give a certificate, --plain permits it")
        }
        ServerError::Limit { what, given, least } => {
            format!("{} {given}: it must be at least {least}", option_of(what))
        }
        error => error.to_string(),
    })?;
    warn_of_too_few_files(arguments.max_clients);
    only_tree(&arguments.device.open_to_read()?, "serve")?;
    let map = arguments.device.map(Options { durability, ..Options::with_cache(arguments.cache) })?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    print(&format!("serving {} keys on {}\n", map.len(), server.address()))?;
    server.run(map, &stop)?;
    Ok(ExitCode::SUCCESS)
}

/// The option that sets a limit of the server.
fn option_of(limit: &str) -> &str {
    match limit {
        "clients" => "--max-clients",
        "command_bytes" => "--max-command",
        "reply_bytes" => "--max-reply",
        "buffer_bytes" => "--max-buffers",
        other => other,
    }
}

/// Files that the server itself has open, with some to spare.
const OWN_FILES: u64 = 32;

fn warn_of_too_few_files(clients: u32) {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if files < u64::from(clients) + OWN_FILES {
        let enough = u64::from(clients) + OWN_FILES;
        eprintln!(
            "longma: this process may open {files} files, too few for {clients} clients: ulimit -n {enough}, or a lower --max-clients"
        );
    }
}
