//! New threads and processes, futexes, and the end of a thread: the system calls.
//! Not a thread itself: that is in `process`.
//! Source: clone(2), fork(2), futex(2), exit(2).

pub(crate) mod calls;
mod clone;
mod fork;
mod futex;
