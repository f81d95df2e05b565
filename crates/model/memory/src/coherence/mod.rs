//! Directory state and the coherence invariants. `system` implements the protocol.
//!
//! Source: MESI after Papamarcos and Patel, ISCA 1984; directories after Censier and Feautrier, IEEE Transactions on
//! Computers, 1978; Nagarajan, Sorin, Hill and Wood, A Primer on Memory Consistency and Cache Coherence, 2nd edition,
//! chapter 8.

mod check;
mod line_table;

pub use check::Violation;
pub(crate) use line_table::{Holders, LineTable, MAX_HOLDERS};
