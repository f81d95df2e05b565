//! System calls for new threads and processes, futexes, and the end of a thread. Source: clone(2), fork(2), futex(2),
//! exit(2).

pub(crate) mod calls;
mod clone;
mod fork;
mod futex;
