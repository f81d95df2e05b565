//! Startup and shutdown of the service: data directory, database, first token, listening address, and the agents that
//! run in this process.

use crate::access::{digest, new_token};
use crate::agent::{Agent, AllInOne, SHUTDOWN_TIMEOUT};
use crate::certificate::CertificateInfo;
use crate::data_dir::{Access, DataDir};
use crate::oidc::{Oidc, OidcOptions};
use crate::placement_worker::PlacementWorker;
use crate::state::{SILENCE_TIMEOUT, ServiceState, USES_INTERVAL};
use crate::{Log, api, listen, signals};
use longma_placement::allocator::AllocateError;
use longma_placement::store::{StoreError, Token};
use longma_placement::{Allocator, Policy, SqlStore, Store};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;

/// Interval at which the store is checked for changes by other processes.
const STORE_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which old records are deleted.
const PRUNE_INTERVAL: Duration = Duration::from_secs(3600);
/// Longest wait for the hosts of this process before the service answers.
const FIRST_REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which virtual machines are migrated off hosts that must be emptied.
const EMPTY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which silent agents are detected.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Interval between attempts to write the access file.
const ACCESS_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Options of a service.
pub struct Options {
    /// Data directory.
    pub data_dir: PathBuf,
    /// URL of a PostgreSQL database, which other services may share. `None` uses a SQLite file in the data directory.
    pub database: Option<String>,
    /// Listening address; port 0 picks a free one.
    pub address: SocketAddr,
    /// PEM files with the certificate chain and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether it may listen on other than loopback addresses without TLS.
    pub plain: bool,
    /// Directory with one subdirectory of disk images per tenant.
    pub images: PathBuf,
    /// Scheduling policy.
    pub policy: Policy,
    /// How long to keep deleted virtual machines, events, cleared alarms, the audit log and expired tokens; `None` keeps them for good.
    pub retention: Option<Duration>,
    /// An identity provider whose tokens are also accepted.
    pub oidc: Option<OidcOptions>,
    /// Hosts whose agents run in this process.
    pub hosts: Vec<AllInOne>,
    /// Receives log messages.
    pub log: Log,
}

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory cannot be created or locked.
    #[error("the directory {0}: {1}")]
    DataDir(PathBuf, std::io::Error),
    /// The database cannot be opened or failed.
    #[error("the database: {0}")]
    Database(String),
    /// The service cannot listen on the address.
    #[error("cannot listen on {0}: {1}")]
    Address(SocketAddr, std::io::Error),
    /// Tokens would cross the network unencrypted.
    #[error(
        "{0} is reachable from other machines, so tokens would be sent unencrypted: give --tls-cert and \
            --tls-key, or --plain if another layer encrypts the traffic"
    )]
    Clear(SocketAddr),
    /// The service's overcommit ratio differs from that of the registered hosts.
    #[error("--overcommit {0}: {1}")]
    Ratio(u32, String),
    /// The TLS certificate or its key is not usable.
    #[error("TLS: {0}")]
    Tls(String),
    /// The identity provider is not usable.
    #[error("OpenID Connect: {0}")]
    Oidc(String),
    /// The operating system refused a resource.
    #[error("{0}")]
    System(String),
}

/// Runs the service until SIGTERM or SIGINT. Calls `ready` with the URL and the data directory when it accepts
/// requests.
///
/// # Errors
/// If it cannot start.
pub fn serve(options: Options, ready: impl FnOnce(&str, &Path)) -> Result<(), ServeError> {
    let data_dir =
        DataDir::lock(&options.data_dir).map_err(|e| ServeError::DataDir(options.data_dir.clone(), e))?;
    let wrong = |e: &dyn std::fmt::Display| ServeError::Database(e.to_string());
    // The lock of the database file must outlive the store.
    let file = match &options.database {
        Some(_) => None,
        None => Some(data_dir.lock_database().map_err(|e| wrong(&e))?),
    };
    let url = options.database.as_deref().unwrap_or_default();
    let opened = file.as_ref().map_or_else(|| SqlStore::connect(url), |file| SqlStore::open_file(&file.path));
    // Kept until the end, so that no async task is the last owner, which closes the PostgreSQL connections.
    let store: Arc<dyn Store> = Arc::new(opened.map_err(|e| wrong(&e))?);
    let shared = options.database.is_some();
    let percent = options.policy.overcommit_percent;
    let before = conflicting_ratio(&*store, percent, shared)?;
    let token = local_token(&*store, &data_dir.folder, shared).map_err(|e| wrong(&e))?;
    let tls = options.tls.as_ref().map(|(certificate, key)| listen::tls(certificate, key)).transpose();
    let tls = tls.map_err(ServeError::Tls)?;
    if tls.is_none() && !options.address.ip().is_loopback() && !options.plain {
        return Err(ServeError::Clear(options.address));
    }
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|e| ServeError::System(e.to_string()))?;
    let allocator = Allocator::open(store.clone(), options.policy.clone(), u64::from_le_bytes(seed));
    let allocator = allocator.map_err(|error| match (error, before) {
        (AllocateError::Inventory(error), Some(before)) if before > percent => ServeError::Ratio(
            percent,
            format!(
                "existing reservations exceed it: {error}; start with --overcommit {before}, then \
                move or stop virtual machines"
            ),
        ),
        (error, _) => wrong(&error),
    })?;
    let system = |e: std::io::Error| ServeError::System(e.to_string());
    let worker = PlacementWorker::start(allocator, options.log.clone()).map_err(system)?;
    let state = ServiceState::new(
        store.clone(),
        worker,
        options.log.clone(),
        options.images.clone(),
        percent,
        shared,
    );
    let mut state = state.map_err(|e| wrong(&e))?;
    let oidc = options.oidc.clone().map(|oidc| Oidc::new(oidc, options.log.clone())).transpose();
    state.oidc = oidc.map_err(ServeError::Oidc)?;
    let state = Arc::new(state);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(64)
        .build()
        .map_err(system)?;
    let ended = runtime.block_on(run(state, options, &data_dir, token, tls, ready));
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// Returns the overcommit ratio that the registered hosts have, if it differs from this service's. Services that share
/// a database must use the same ratio, because each one checks all reservations against it.
fn conflicting_ratio(store: &dyn Store, percent: u32, shared: bool) -> Result<Option<u32>, ServeError> {
    let wrong = |e: StoreError| ServeError::Database(e.to_string());
    let Some(before) = store.overcommit_ratios().map_err(wrong)?.into_iter().rfind(|ratio| *ratio != percent)
    else {
        return Ok(None);
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let last_report = store.last_reports().map_err(wrong)?.into_iter().map(|(_, at)| at).max();
    if shared && last_report.is_some_and(|at| now.saturating_sub(at) < SILENCE_TIMEOUT.as_secs() as i64) {
        let what = format!(
            "other services use this database with {before}: start with --overcommit {before}, or stop \
                them all and wait {} s",
            SILENCE_TIMEOUT.as_secs()
        );
        return Err(ServeError::Ratio(percent, what));
    }
    Ok(Some(before))
}

/// The local user's token: the existing one if it is still valid, otherwise a new one.
fn local_token(store: &dyn Store, data_dir: &Path, shared: bool) -> Result<String, String> {
    let known = store.tokens().map_err(|e| e.to_string())?;
    let kept = Access::read(data_dir).ok().map(|a| a.token);
    if let Some(token) =
        kept.filter(|t| known.iter().any(|k| k.digest == digest(t) && k.expires_at.is_none()))
    {
        return Ok(token);
    }
    let token = new_token().map_err(|e| e.to_string())?;
    // If the file was lost, a new token replaces the old one.
    let name = match shared {
        false => "local-admin".to_string(),
        // Each service's data directory has its own token.
        true => {
            let node = rustix::system::uname();
            let place = format!("{} {}", node.nodename().to_string_lossy(), data_dir.display());
            format!("local-admin-{}", &digest(&place)[..12])
        }
    };
    store.remove_token(&name).map_err(|e| e.to_string())?;
    let kept = Token { name, digest: digest(&token), role: "admin".into(), ..Token::default() };
    store.put_token(&kept).map_err(|e: StoreError| e.to_string())?;
    Ok(token)
}

/// Access data for clients on this machine.
fn access(
    address: SocketAddr,
    token: String,
    certificate: Option<&CertificateInfo>,
    options: &Options,
) -> Access {
    // A service that listens on all addresses is reachable on the loopback address.
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let at = SocketAddr::new(ip, address.port());
    let Some(info) = certificate else {
        return Access { url: format!("http://{at}"), address: None, token, certificate: None };
    };
    let mut trusted = None;
    if info.has_whole_chain {
        let file = options.tls.as_ref().map(|tls| &tls.0);
        trusted = file.map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
    } else {
        (options.log)("the certificate file lacks the issuer's certificate: clients must have it already");
    }
    let log = &options.log;
    info.warnings.iter().for_each(|warning| log(&format!("the certificate: {warning}")));
    match info.name_at(ip) {
        // The certificate is checked against the name, which need not resolve to this machine.
        Some(name) => {
            let url = format!("https://{name}:{}", at.port());
            Access { url, address: Some(at), token, certificate: trusted }
        }
        None => Access { url: format!("https://{at}"), address: None, token, certificate: trusted },
    }
}

/// Writes the access file. If the disk is full, the service starts anyway and retries in the background.
fn write_access_file(
    access: Access,
    data_dir: PathBuf,
    log: Log,
) -> Result<Option<tokio::task::JoinHandle<()>>, ServeError> {
    let full = |error: &std::io::Error| {
        matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
    };
    let file = Access::file(&data_dir).display().to_string();
    match access.write(&data_dir) {
        Ok(()) => return Ok(None),
        Err(error) if full(&error) => log(&format!(
            "{file}: {error}: clients on this machine cannot find the service at {}: free some space, or \
                pass the address (--server) and a token (--token-file)",
            access.url
        )),
        Err(error) => return Err(ServeError::DataDir(data_dir, error)),
    }
    Ok(Some(tokio::spawn(async move {
        while access.write(&data_dir).is_err() {
            tokio::time::sleep(ACCESS_RETRY_INTERVAL).await;
        }
        log(&format!("{file} is written: clients on this machine can find the service"));
    })))
}

async fn run(
    state: Arc<ServiceState>,
    options: Options,
    data_dir: &DataDir,
    token: String,
    tls: Option<(tokio_rustls::TlsAcceptor, CertificateInfo)>,
    ready: impl FnOnce(&str, &Path),
) -> Result<(), ServeError> {
    let listener =
        TcpListener::bind(options.address).await.map_err(|e| ServeError::Address(options.address, e))?;
    let address = listener.local_addr().map_err(|e| ServeError::Address(options.address, e))?;
    let access = access(address, token, tls.as_ref().map(|t| &t.1), &options);
    let access_writer = write_access_file(access.clone(), data_dir.folder.clone(), options.log.clone())?;

    let mut agents = Vec::new();
    for host in options.hosts {
        let agent = Agent::in_process(state.clone(), tokio::runtime::Handle::current(), host);
        let thread = std::thread::Builder::new().name("placement-agent".into()).spawn(move || agent.run());
        agents.push(thread.map_err(|e| ServeError::System(e.to_string()))?);
    }
    let store_watcher = tokio::spawn(watch_store(state.clone()));
    let pruner = options.retention.map(|retention| tokio::spawn(prune(state.clone(), retention)));
    let mover = tokio::spawn(empty_hosts(state.clone()));
    let signals = tokio::spawn(until_signalled(state.clone()));
    hosts_reported(&state, agents.len()).await;
    ready(&access.url, &data_dir.folder);
    let tls = tls.map(|t| t.0);
    listen::listen(listener, tls, api::router(state.clone()), state.stopping.subscribe(), &options.log).await;
    store_watcher.abort();
    mover.abort();
    // A failure is already logged.
    let _ = state.with(ServiceState::store_token_uses).await;
    state.write_audit().await;
    pruner.inspect(tokio::task::JoinHandle::abort);
    access_writer.inspect(tokio::task::JoinHandle::abort);
    signals.abort();
    // An agent finishes the hypervisor calls that it has begun. It aborts long ones itself.
    let ended = tokio::task::spawn_blocking(move || agents.into_iter().all(|agent| agent.join().is_ok()));
    if !matches!(ended.await, Ok(true)) {
        (options.log)("an agent panicked");
    }
    Ok(())
}

/// Waits until this many hosts have reported, so that the first request finds them; at most [`FIRST_REPORT_TIMEOUT`].
async fn hosts_reported(state: &ServiceState, hosts: usize) {
    let mut stopping = state.stopping.subscribe();
    let reported = async {
        while state.reported_hosts() < hosts {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        _ = tokio::time::timeout(FIRST_REPORT_TIMEOUT, reported) => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
}

/// Starts the shutdown on a signal.
async fn until_signalled(state: Arc<ServiceState>) {
    match signals::ended().await {
        Ok(()) => {
            (state.log)("ending");
            state.shutdown_deadline.begin(SHUTDOWN_TIMEOUT);
            state.stopping.send_replace(true);
        }
        Err(error) => (state.log)(&format!(
            "cannot handle signals, so they end the service at once, which \
            loses no data: {error}"
        )),
    }
}

/// Periodically deletes records older than the retention period.
async fn prune(state: Arc<ServiceState>, retention: Duration) {
    loop {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let before = now.saturating_sub(retention).as_secs() as i64;
        // A failure is already logged, and the next run may succeed.
        if let Ok(1..) = state.with(move |state| state.store.prune(before)).await {
            (state.log)("records older than the retention period were deleted");
        }
        tokio::time::sleep(PRUNE_INTERVAL).await;
    }
}

/// Periodically moves virtual machines off the hosts that are to be emptied.
async fn empty_hosts(state: Arc<ServiceState>) {
    loop {
        tokio::time::sleep(EMPTY_INTERVAL).await;
        // A failure is already logged, and the next round may succeed.
        let _ = state.empty_hosts().await;
    }
}

/// Periodically checks the store for new events and for silent agents.
async fn watch_store(state: Arc<ServiceState>) {
    let mut silence_checked = tokio::time::Instant::now();
    let mut uses_stored = silence_checked;
    loop {
        tokio::time::sleep(STORE_CHECK_INTERVAL).await;
        let listen = silence_checked.elapsed() > SILENCE_CHECK_INTERVAL;
        if listen {
            silence_checked = tokio::time::Instant::now();
        }
        let store_uses = uses_stored.elapsed() > USES_INTERVAL;
        if store_uses {
            uses_stored = tokio::time::Instant::now();
        }
        state.write_audit().await;
        // A failure is already logged, and the next check may succeed.
        let _ = state
            .with(move |state| {
                state.check_database_file();
                if store_uses {
                    state.store_token_uses()?;
                }
                state.read_events()?;
                if listen { state.detect_silent_agents() } else { Ok(()) }
            })
            .await;
    }
}
