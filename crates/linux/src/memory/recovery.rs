//! Makes the access routines' recovery known to the host's fault handling.
//! Not that handling itself.
//! Source: sigaction(2).

use std::sync::Once;

use super::access::recover;

/// Installs the handler; later calls do nothing.
pub(super) fn install_recovery() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: the handler only changes the interrupted context, and restores the default action when it cannot.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    });
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to a SA_SIGINFO handler.
    unsafe {
        if !recover(signal, &*info, &mut *context.cast()) {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}
