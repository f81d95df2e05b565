//! Simulated time and statistics.
//! Not an event queue yet: only the clock and the counters that the functional level needs.
//! Source: none; picoseconds as in most architecture simulators, so that clocks of many GHz divide without drift.

mod statistics;
mod time;

pub use statistics::{Counter, Histogram, Statistic, Statistics, StatisticsError, Value};
pub use time::{Clock, ClockError, Cycle, Duration, Time};
