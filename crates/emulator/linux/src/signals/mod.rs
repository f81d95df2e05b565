//! Signal frames, signal delivery, and the system calls on signals. Actions and masks are in `process`; `longma-guest`
//! has the host's handlers. Source: Linux arch/loongarch/kernel/signal.c, kernel/signal.c; signal(7).

pub(crate) mod calls;
mod deliver;
mod frame;
