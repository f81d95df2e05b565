//! Guest threads in simulated time: they stay threads of the host, and one of them runs at a time.
//! Not how long anything takes: a [`Clockwork`] says that.

mod idle;
mod roster;
mod run;
mod scheduler;

pub use longma_linux::simulated::{CoreSet, ThreadNumber};
pub use roster::{CoreImage, PlacedImage, RosterImage, Turn};
pub(crate) use run::run_thread;
pub use run::{Clockwork, Interlude, KernelWork, Place, Simulated, SimulatedConfig};
pub(crate) use scheduler::Standing;
pub use scheduler::{DeviceClock, Log, Scheduler, SchedulerConfig, ThreadStatus};
