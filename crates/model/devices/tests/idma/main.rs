//! What an IDMA engine promises, held against plain loops over bytes.
//! Not the engine on a modelled machine.
//! Source: Su et al., 2012; the promises are those of `Idma`'s description.

mod copies;
mod faults;
mod machine;
mod registers;
mod tags;
mod time;
