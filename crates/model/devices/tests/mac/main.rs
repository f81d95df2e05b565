//! Compares the Ethernet MAC with a driver that records every frame. The properties are those in the documentation of
//! `Mac`.

mod driver;
mod hostile;
mod interrupts;
mod merge;
mod pause;
mod queues;
mod receive;
mod send;
