//! VIA measurements: client and server endpoints on a real network or on the modelled Myrinet, and the workload `via`.
//! `longma-via` and `longma-via-myrinet` implement the interface and the NICs.

mod exchange;
mod modelled;
pub mod network;
mod row;
mod workload;

pub use exchange::{Endpoint, Measure, MeasurementRequest};
pub use modelled::{ModelError, Modelled};
pub use row::Row;
pub use workload::Via;
