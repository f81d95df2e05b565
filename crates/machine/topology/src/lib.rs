//! What a machine is made of: machine files parsed, checked, drawn, discovered and measured.
//! Not a running model: `longma-runner` builds that from a [`Machine`]. Nothing here prints.
//! Source: the schema is documented key by key in the book (docs/src/reference/machine-files.md), generated from [`book::keys`].

pub mod book;
mod bounded;
mod builtin;
mod check;
mod cpu_list;
mod cycles;
mod discover;
mod draw;
mod harmless;
mod layout;
mod machine;
mod measure;
pub mod parts;
mod problem;
pub mod read;
pub mod units;

pub use bounded::read_text;
pub use builtin::{BUILTIN, Builtin};
pub use cpu_list::format_cpu_list;
pub use discover::{CpuPlace, DiscoverError, Sysfs, discover};
pub use draw::{Detail, draw_svg, draw_text};
pub use harmless::{harmless, harmless_lines, is_order, shown};
pub use layout::{CacheInstance, CoreInstance, HostInstance, Layout, NodeInstance};
pub use machine::{Checked, Machine, OpenError, check};
pub use measure::{CacheLatency, MeasureError, Measured, Progress, Thoroughness, Transfer, Walk, measure};
pub use parts::MachineFile;
pub use problem::{Level, Located, Problem, Report};
pub use read::{Cited, KeyDoc, Map, Matrix, Name, PartDoc};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
