//! Waiting for many things at once: poll, select, epoll, signalfd.
//! Not the files themselves; eventfd and timerfd need nothing but their rows in the table of calls.
//! Source: poll(2), select(2), epoll(7), signalfd(2).

pub(crate) mod calls;
