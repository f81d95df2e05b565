//! Guest threads in simulated time. Each has its own host thread, and only one runs at a time. A [`Clockwork`]
//! determines how long execution takes.

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
