//! What the Ethernet MAC promises, held against a driver that remembers every frame.
//! Not a network stack.
//! Source: the promises are those of `Mac`'s description.

mod driver;
mod hostile;
mod interrupts;
mod merge;
mod pause;
mod queues;
mod receive;
mod send;
