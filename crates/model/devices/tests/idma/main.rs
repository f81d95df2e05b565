//! Compares an IDMA engine with plain byte loops.
//!
//! Source: Su et al., 2012; the properties are those in the documentation of `Idma`.

mod copies;
mod faults;
mod machine;
mod registers;
mod tags;
mod time;
