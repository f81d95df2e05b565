//! Building blocks of simulations: time, events, contention for resources, statistics, traces and manifests. Times are
//! in picoseconds, as in most architecture simulators, so that clocks of several GHz divide without drift.

mod calendar;
mod event_queue;
mod manifest;
mod resource;
mod statistics;
mod time;
mod trace_events;
mod windows;

pub use calendar::{Calendar, Served};
pub use event_queue::{EventId, EventQueue};
pub use manifest::{Manifest, ManifestMachine, ManifestProgram, Region};
pub use resource::Resource;
pub use statistics::{Counter, Histogram, Statistic, Statistics, StatisticsError, Value};
pub use time::{Clock, ClockError, Cycle, Duration, Time};
pub use trace_events::{TraceEvents, Track};
