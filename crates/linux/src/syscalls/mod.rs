//! System calls: the table, the dispatcher, and the calls themselves by subject.
//! Not signals, threads, processes, sockets and events, which have folders of their own.
//! Source: Linux include/uapi/asm-generic/unistd.h; man-pages section 2.

mod host;

pub(crate) use host::host_call;
