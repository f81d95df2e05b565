//! The parts of the command line that the subcommands of `longma` share: output, sizes in options, times, and the
//! terminal's input modes.

mod format;
pub mod output;
pub mod raw_mode;
mod size;
mod time;

pub use format::Format;
pub use size::size;
pub use time::utc_time;
