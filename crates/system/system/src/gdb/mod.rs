//! A GDB server for the machine, in all-stop mode. Its threads are the cores. Source: GDB manual, appendix E (remote
//! protocol). The crate gdbstub implements the packets.

mod connection;
mod registers;
mod target;

use std::io;
use std::time::Duration;

use gdbstub::common::Signal;
use gdbstub::conn::Connection as _;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub, MultiThreadStopReason};

use crate::machine::{Machine, Stop};
use connection::{Connection, Listener};
use target::thread;

/// The longest time that [`Debugger::run`] waits for the debugger.
const WAIT: Duration = Duration::from_millis(100);

type Stub = GdbStubStateMachine<'static, Machine, Connection>;
type Reason = MultiThreadStopReason<u64>;

/// Serves one debugger after the other. The machine does not run before the first has connected, and stops when another
/// connects.
pub struct Debugger {
    listener: Listener,
    stub: Option<Stub>,
    /// Whether a debugger has been connected.
    was_attached: bool,
}

/// The result of [`Debugger::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The machine ran, and stopped for this reason.
    Ran(Stop),
    /// The machine is stopped by the debugger.
    Halted,
    /// The debugger has killed the machine.
    Killed,
}

impl Debugger {
    /// Listens at `place`: a port of the loopback interface, `ADDRESS:PORT`, or the path of a Unix socket, which
    /// contains a slash. Port 0 selects a free one.
    ///
    /// # Errors
    /// The address has none of these forms, is in use, or is not permitted.
    pub fn listen(place: &str) -> io::Result<Self> {
        Ok(Self { listener: Listener::new(place)?, stub: None, was_attached: false })
    }

    /// Where a debugger connects to, as for gdb's command `target remote`.
    pub fn place(&self) -> String {
        self.listener.place()
    }

    /// Whether a debugger is connected, so that the machine may be stopped and changed from outside.
    pub fn is_attached(&self) -> bool {
        self.stub.is_some()
    }

    /// Runs the machine for `cycles` cycles, unless the debugger has stopped it. Returns after 100 ms if it is stopped.
    pub fn run(&mut self, machine: &mut Machine, cycles: u64) -> Turn {
        let Some(stub) = self.stub.take() else { return self.run_without(machine, cycles) };
        match self.turn(stub, machine, cycles) {
            Some((stub, turn)) => {
                self.stub = Some(stub);
                turn
            }
            None => {
                machine.bus.debug.clear();
                Turn::Halted
            }
        }
    }

    /// Waits for the first debugger; later, polls for another one.
    fn run_without(&mut self, machine: &mut Machine, cycles: u64) -> Turn {
        let wait = if self.was_attached { Duration::ZERO } else { WAIT };
        let Some(connection) = self.listener.accept(wait) else {
            return if self.was_attached { Turn::Ran(machine.run(cycles)) } else { Turn::Halted };
        };
        self.was_attached = true;
        self.stub = GdbStub::new(connection).run_state_machine(machine).ok();
        Turn::Halted
    }

    /// Answers the debugger, or runs the machine. Returns `None` if the debugger has disconnected.
    fn turn(&mut self, mut stub: Stub, machine: &mut Machine, cycles: u64) -> Option<(Stub, Turn)> {
        loop {
            stub = match stub {
                GdbStubStateMachine::Idle(mut inner) => match inner.borrow_conn().receive(WAIT) {
                    Ok(Some(byte)) => inner.incoming_data(machine, byte).ok()?,
                    Ok(None) => return Some((inner.into(), Turn::Halted)),
                    Err(_) => return None,
                },
                GdbStubStateMachine::Running(mut inner) => {
                    match inner.borrow_conn().receive(Duration::ZERO) {
                        Ok(Some(byte)) => inner.incoming_data(machine, byte).ok()?,
                        Ok(None) => {
                            let stop = machine.run(cycles);
                            let Some(reason) = reason_of(stop, machine) else {
                                return Some((inner.into(), Turn::Ran(stop)));
                            };
                            let reported = inner.report_stop(machine, reason);
                            let turn = if stop == Stop::Debugger { Turn::Halted } else { Turn::Ran(stop) };
                            return reported.ok().map(|stub| (stub, turn));
                        }
                        Err(_) => return None,
                    }
                }
                GdbStubStateMachine::CtrlCInterrupt(inner) => {
                    let reason = Reason::SignalWithThread { tid: thread(0), signal: Signal::SIGINT };
                    inner.interrupt_handled(machine, Some(reason)).ok()?
                }
                GdbStubStateMachine::Disconnected(mut inner) => {
                    // The answer to a detach is still in the buffer.
                    let _ = inner.borrow_conn().flush();
                    let is_killed = inner.get_reason() == DisconnectReason::Kill;
                    return is_killed.then(|| (inner.into(), Turn::Killed));
                }
            };
        }
    }
}

/// The reason of a stop for the debugger; `None` if the machine runs on.
fn reason_of(stop: Stop, machine: &Machine) -> Option<Reason> {
    match stop {
        Stop::Debugger => machine.bus.debug.take_event().map(target::reason),
        Stop::PowerOff => Some(Reason::Exited(machine.exit_status())),
        Stop::Reset => Some(Reason::Exited(1)),
        Stop::Limit | Stop::Idle | Stop::Mark(_) => None,
    }
}
