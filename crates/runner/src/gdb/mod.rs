//! A GDB server: the remote protocol in all-stop mode. Forked children and programs started by execve run without a
//! debugger. Source: GDB manual, appendix E. The crate gdbstub implements the packets.

mod files;
mod follower;
mod session;
mod signals;
mod target;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
};

use gdbstub::stub::{DisconnectReason, GdbStub};
use longma_guest::host::{descriptors, faults};
use rustix::fd::OwnedFd;

pub(crate) use follower::Follower;
pub(crate) use session::Session;

use crate::{cores::Cores, translated::Translation};

/// A socket that a debugger can connect to.
#[derive(Debug)]
pub struct Debugger {
    listener: TcpListener,
}

impl Debugger {
    /// Listens on a port of the loopback interface; 0 selects a free one.
    ///
    /// # Errors
    /// The port is in use or not permitted.
    pub fn listen(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        Ok(Self { listener: descriptors::move_to_reserved(listener.into())?.into() })
    }

    /// The address of the socket.
    ///
    /// # Errors
    /// The host cannot determine it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Creates a session. The process is stopped before its first instruction.
pub(crate) fn session() -> io::Result<Arc<Session>> {
    let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?;
    Ok(Arc::new(Session::new(descriptors::move_to_reserved(wake)?)))
}

/// Serves one debugger on a separate thread, until it detaches or the process ends. `translated` is the translation, if
/// the program is not for LoongArch.
pub(crate) fn serve(
    debugger: Debugger,
    session: Arc<Session>,
    cores: Arc<Cores>,
    translated: Option<Arc<dyn Translation>>,
) -> io::Result<()> {
    cores.process().intercept_signals(true);
    if let Some(translated) = &translated {
        translated.set_debug_mode(&cores, true);
    }
    std::thread::Builder::new().name("gdb".into()).spawn(move || {
        faults::shield_thread();
        let stream = debugger
            .listener
            .accept()
            .map(|(stream, _)| OwnedFd::from(stream))
            .and_then(descriptors::move_to_reserved);
        drop(debugger);
        let released = || {
            if let Some(translated) = &translated {
                translated.set_debug_mode(&cores, false);
            }
            session.detach(&cores);
        };
        let Ok(stream) = stream else { return released() };
        let mut target = target::Target::new(session.clone(), cores.clone(), translated.clone());
        let stub = GdbStub::new(TcpStream::from(stream));
        match stub.run_blocking::<target::Events>(&mut target) {
            Ok(DisconnectReason::TargetExited(_) | DisconnectReason::TargetTerminated(_)) => {
                session.set_reported()
            }
            Ok(DisconnectReason::Kill) => longma_guest::host::terminate_by_signal(libc::SIGKILL),
            // A lost connection is treated as a detach.
            Ok(DisconnectReason::Disconnect) | Err(_) => released(),
        }
    })?;
    Ok(())
}
