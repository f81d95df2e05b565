//! Guest threads in simulated time. Each has its own host thread, and only one runs at a time. A [`TimingBackend`]
//! determines how long execution takes.

mod idle;
mod scheduler;
mod simulated_process;
mod thread_table;

pub use longma_linux::simulated::{CoreSet, ThreadNumber};
pub(crate) use scheduler::StoppedState;
pub use scheduler::{DeviceClock, Log, Scheduler, SchedulerConfig, ThreadStatus};
pub(crate) use simulated_process::run_thread;
pub use simulated_process::{
    KernelWork, SimulatedProcess, SimulatedProcessConfig, StopTheWorld, ThreadSlot, TimingBackend,
};
pub use thread_table::{CoreImage, ScheduledThreadImage, ThreadTableImage, Turn};
