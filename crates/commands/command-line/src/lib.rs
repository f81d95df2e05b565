//! What the subcommands of `longma` share: their output, sizes in options, and the terminal's input modes.

pub mod output;
pub mod raw_mode;
mod size;

pub use size::size;
