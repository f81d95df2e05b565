//! Accepts clients, starts a thread for each, and disconnects them when the server ends.

use crate::commit::Committer;
use crate::connection::serve;
use crate::error::ServerError;
use crate::limits::Limits;
use crate::peers::{Peer, Peers};
use crate::security::Password;
use crate::shared::Shared;
use longma_zoned::{Store, ZonedDevice};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ServerConfig;
use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The interval at which the server checks whether it should end.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Idle connections are probed after this time, so that those of vanished hosts end.
const KEEPALIVE: Duration = Duration::from_secs(300);
/// Size of a socket's send buffer, bytes; the kernel doubles it. The server detects a client's progress when a third of
/// the buffer is free, so the buffer must not be much longer than the 64 KiB that a client must read in time.
const SEND_BUFFER_BYTES: usize = 96 << 10;
/// Stack of a client's thread, bytes.
const STACK_BYTES: usize = 512 << 10;
/// Upper bound of open files besides connections.
const OTHER_FILES: u64 = 64;

/// Settings of a server.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The password of all clients. Without it, the server listens on loopback addresses only.
    pub password: Option<Password>,
    /// Certificate and key, from [`crate::tls_config`]. `None`: connections are not encrypted.
    pub tls: Option<Arc<ServerConfig>>,
    /// Whether other machines may connect without TLS.
    pub plain: bool,
    /// Limits on the resources of clients.
    pub limits: Limits,
    /// `None`: replies to changes are sent when the changes are durable; the map needs
    /// [`longma_zoned::Durability::EachBatch`]. Otherwise changes are made durable after this time; the map needs
    /// [`longma_zoned::Durability::Relaxed`].
    pub sync_every: Option<Duration>,
}

/// A server that listens. [`Server::run`] serves a map.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    settings: Settings,
}

impl Server {
    /// Listens on an address; port 0 picks a free port.
    ///
    /// # Errors
    /// [`ServerError::Limit`], [`ServerError::NoPassword`], [`ServerError::NotEncrypted`], [`ServerError::Listen`].
    pub fn bind(address: SocketAddr, settings: Settings) -> Result<Self, ServerError> {
        settings.limits.check()?;
        // Map IPv4-mapped IPv6 addresses to IPv4.
        if !address.ip().to_canonical().is_loopback() {
            if settings.password.is_none() {
                return Err(ServerError::NoPassword { address });
            }
            if settings.tls.is_none() && !settings.plain {
                return Err(ServerError::NotEncrypted { address });
            }
        }
        let failed = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, settings })
    }

    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the map until `stop` is true, finishes the requests that have arrived, and closes the map. The map must
    /// not be changed by other means in the meantime.
    ///
    /// # Errors
    /// [`ServerError::Thread`], [`ServerError::Committer`], and those of [`Store::close`].
    pub fn run<D: ZonedDevice>(self, store: Store<D>, stop: &AtomicBool) -> Result<(), ServerError> {
        let Settings { password, tls, limits, sync_every, .. } = self.settings;
        allow_files(limits.clients as u64 + OTHER_FILES);
        return_large_blocks();
        let shared = Shared::new(store, limits, password, sync_every, self.address.port());
        let peers = Peers::default();
        let served = thread::scope(|scope| {
            let committer = Committer {
                store: &shared.store,
                queue: &shared.queue,
                watches: &shared.watches,
                counts: &shared.commits,
                sync_every,
            };
            let committing = thread::Builder::new()
                .name("commit".into())
                .spawn_scoped(scope, move || committer.run())
                .map_err(ServerError::Thread)?;
            let (mut last_id, mut spare) = (0, File::open("/dev/null").ok());
            while !stop.load(Ordering::Relaxed) && !committing.is_finished() {
                let Some(socket) = accept(&self.listener, &mut spare, &shared.counts.refused) else {
                    continue;
                };
                shared.counts.connections.fetch_add(1, Ordering::Relaxed);
                last_id += 1;
                let is_admitted = AtomicBool::new(shared.password.is_none());
                let peer = Arc::new(Peer { id: last_id, socket: Arc::new(socket), is_admitted });
                start_client(scope, &shared, &peers, peer, tls.as_ref());
            }
            drop(self.listener);
            peers.end();
            shared.queue.close();
            committing.join().map_err(|_| ServerError::Committer)
        });
        let Shared { store, .. } = shared;
        served?;
        Ok(store.close()?)
    }
}

/// Waits up to [`CHECK_INTERVAL`] for a client. If all file descriptors are in use, refuses a client by means of the descriptor
/// `spare`.
fn accept(listener: &TcpListener, spare: &mut Option<File>, refused: &AtomicU64) -> Option<TcpStream> {
    let limit = Timespec::try_from(CHECK_INTERVAL).ok();
    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], limit.as_ref());
    match listener.accept() {
        Ok((socket, _)) => {
            // Do not delay short replies (Nagle's algorithm).
            let _ = socket.set_nodelay(true);
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
            let _ = rustix::net::sockopt::set_socket_keepalive(&socket, true);
            let _ = rustix::net::sockopt::set_tcp_keepidle(&socket, KEEPALIVE);
            Some(socket)
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        // The usual cause is too many open files.
        Err(_) => {
            drop(spare.take());
            if let Ok((mut socket, _)) = listener.accept() {
                refused.fetch_add(1, Ordering::Relaxed);
                let _ = socket.write_all(b"-ERR the server has too many open files: try again later\r\n");
            } else {
                thread::sleep(CHECK_INTERVAL);
            }
            *spare = File::open("/dev/null").ok();
            None
        }
    }
}

/// Starts a thread for a client, or refuses the client.
fn start_client<'scope, D: ZonedDevice>(
    scope: &'scope thread::Scope<'scope, '_>,
    shared: &'scope Shared<D>,
    peers: &'scope Peers,
    peer: Arc<Peer>,
    tls: Option<&Arc<ServerConfig>>,
) {
    let refuse = |reason: &str| {
        shared.counts.refused.fetch_add(1, Ordering::Relaxed);
        // The socket's buffer is empty, so this write does not block. A TLS client would not understand the text.
        if tls.is_none() {
            let _ = (&*peer.socket).write_all(format!("-ERR {reason}\r\n").as_bytes());
        }
    };
    if peers.len() >= shared.limits.clients {
        peers.evict_unauthenticated();
    }
    if peers.len() >= shared.limits.clients {
        return refuse("max number of clients reached: try again later");
    }
    peers.insert(&peer);
    shared.counts.clients.fetch_add(1, Ordering::Relaxed);
    let (own, tls) = (Arc::clone(&peer), tls.cloned());
    let spawned = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, move || {
        /// Removes the client, also after a panic.
        struct Leave<'s, D>(&'s Shared<D>, &'s Peers, u64);
        impl<D> Drop for Leave<'_, D> {
            fn drop(&mut self) {
                self.0.counts.clients.fetch_sub(1, Ordering::Relaxed);
                self.1.remove(self.2);
            }
        }
        let _leave = Leave(shared, peers, own.id);
        // A panic ends only this client. Its message is on standard error.
        let _ = catch_unwind(AssertUnwindSafe(|| serve(shared, &own, tls.as_ref())));
    });
    if spawned.is_err() {
        shared.counts.clients.fetch_sub(1, Ordering::Relaxed);
        peers.remove(peer.id);
        refuse("the server cannot start another thread: try again later");
    }
}

/// Makes the allocator return blocks of 128 KiB and more to the system as soon as they are freed. By default, glibc
/// adapts its threshold to large blocks and then keeps them for reuse, up to several hundred megabytes.
fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` changes a parameter of the allocator, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// Raises the limit on open files as far as permitted. If it stays too low, connections are refused with an error.
fn allow_files(wanted: u64) {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_some_and(|current| current < wanted) {
        let current = Some(now.maximum.map_or(wanted, |most| most.min(wanted)));
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..now });
    }
}
