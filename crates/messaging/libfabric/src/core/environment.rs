//! Settings from environment variables.

use super::log::warning;
use longma_via::provider::shared_memory::{Allow, Directory, Settings};

/// The default of `FI_LONGMA_UNEXPECTED`, bytes.
const UNEXPECTED_BYTES: usize = 64 << 20;

/// The settings of the NIC. `FI_LONGMA_USERS`: further users, as numbers, or `all`. `FI_LONGMA_NAMES`: the directory of
/// the names, instead of abstract sockets.
pub(crate) fn nic_settings() -> Settings {
    let mut settings = Settings::default();
    // SAFETY: takes no arguments and returns an integer.
    let mut users = vec![unsafe { libc::geteuid() }];
    let mut accepts_all = false;
    for word in
        std::env::var("FI_LONGMA_USERS").unwrap_or_default().split(',').filter(|word| !word.is_empty())
    {
        match word.trim().parse() {
            Ok(user) => users.push(user),
            Err(_) if word.trim() == "all" => accepts_all = true,
            Err(_) => {
                warning!("FI_LONGMA_USERS: ignoring {word:?}, which is neither a user ID nor \"all\"")
            }
        }
    }
    let allowed = if accepts_all { Allow::Everyone } else { Allow::users(&users) };
    settings.clients = allowed.clone();
    settings.servers = allowed;
    if let Some(path) = std::env::var_os("FI_LONGMA_NAMES") {
        let mode = if users.len() > 1 || accepts_all { 0o666 } else { 0o600 };
        settings.directory = Some(Directory { path: path.into(), mode });
    }
    settings
}

/// `FI_LONGMA_UNEXPECTED`: the memory for unexpected messages of an endpoint, bytes. When it is full, senders wait.
pub(crate) fn unexpected_bytes() -> usize {
    match std::env::var("FI_LONGMA_UNEXPECTED") {
        Ok(text) => text.parse().unwrap_or_else(|_| {
            warning!("FI_LONGMA_UNEXPECTED: {text:?} is not a number of bytes; using {UNEXPECTED_BYTES}");
            UNEXPECTED_BYTES
        }),
        Err(_) => UNEXPECTED_BYTES,
    }
}

/// Whether all peers are known to be on this host, so that the provider can claim `FI_REMOTE_COMM`: in an MPI job with
/// all ranks on one host (Open MPI and MPICH set the variables), or with `FI_LONGMA_REMOTE_COMM=1`. Open MPI asks every
/// provider for `FI_REMOTE_COMM`.
pub(crate) fn all_peers_are_here() -> bool {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_one_host = |all, here| number(all).is_some_and(|all| number(here) == Some(all));
    number("FI_LONGMA_REMOTE_COMM") == Some(1)
        || is_one_host("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
        || is_one_host("PMI_SIZE", "MPI_LOCALNRANKS")
}
