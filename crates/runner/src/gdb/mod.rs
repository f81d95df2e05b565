//! gdb's remote protocol: a process is watched and steered from outside, all its threads stopped or running together.
//! Not a debugger. A forked child and a program that execve starts run on without one.
//! Source: GDB manual, appendix E; the crate gdbstub does the packets.

mod files;
mod follower;
mod registers;
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

/// A place where a debugger can connect.
#[derive(Debug)]
pub struct Debugger {
    listener: TcpListener,
}

impl Debugger {
    /// Listens on this port of the loopback interface; 0: any free one.
    ///
    /// # Errors
    /// The port is taken or not permitted.
    pub fn listen(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        Ok(Self { listener: descriptors::move_to_reserved(listener.into())?.into() })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The host does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A session, in which the process is stopped before its first instruction.
pub(crate) fn session() -> io::Result<Arc<Session>> {
    let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?;
    Ok(Arc::new(Session::new(descriptors::move_to_reserved(wake)?)))
}

/// Serves one debugger, on a thread of its own, until it lets go or the process ends; `translated` is there if the program is for another
/// architecture.
pub(crate) fn serve(
    debugger: Debugger,
    session: Arc<Session>,
    cores: Arc<Cores>,
    translated: Option<Arc<dyn Translation>>,
) -> io::Result<()> {
    cores.process().intercept_signals(true);
    if let Some(translated) = &translated {
        translated.watch(&cores, true);
    }
    std::thread::Builder::new().name("gdb".into()).spawn(move || {
        faults::shield_thread();
        let stream = debugger
            .listener
            .accept()
            .map(|(stream, _)| OwnedFd::from(stream))
            .and_then(descriptors::move_to_reserved);
        drop(debugger);
        let let_go = || {
            if let Some(translated) = &translated {
                translated.watch(&cores, false);
            }
            session.detach(&cores);
        };
        let Ok(stream) = stream else { return let_go() };
        let mut target = target::Target::new(session.clone(), cores.clone(), translated.clone());
        let stub = GdbStub::new(TcpStream::from(stream));
        match stub.run_blocking::<target::Events>(&mut target) {
            Ok(DisconnectReason::TargetExited(_) | DisconnectReason::TargetTerminated(_)) => {
                session.tell_ended()
            }
            Ok(DisconnectReason::Kill) => longma_guest::host::die_by(libc::SIGKILL),
            // A debugger that is gone without a word has let go too.
            Ok(DisconnectReason::Disconnect) | Err(_) => let_go(),
        }
    })?;
    Ok(())
}
