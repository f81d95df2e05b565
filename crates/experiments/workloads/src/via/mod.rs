//! VIA measured: two ends as programs to its interface, on a real network or on the modelled Myrinet; and the workload `via`.
//! Not the library, nor its NICs: those are `longma-via` and `longma-via-myrinet`.

mod exchange;
mod modelled;
pub mod network;
mod row;
mod workload;

pub use exchange::{End, Measure, Order};
pub use modelled::{ModelError, Modelled};
pub use row::Row;
pub use workload::Via;
