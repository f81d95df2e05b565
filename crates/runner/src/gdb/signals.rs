//! Conversion between Linux's signal numbers and GDB's, which are independent of the system. Source: GDB's
//! include/gdb/signals.def; Linux include/uapi/asm-generic/signal.h.

use gdbstub::common::Signal;

/// Pairs of Linux and GDB numbers. Linux's 33 to 63 are not listed; they are GDB's 45 to 75.
const NUMBERS: [(i32, u8); 32] = [
    (1, 1),
    (2, 2),
    (3, 3),
    (4, 4),
    (5, 5),
    (6, 6),
    (libc::SIGBUS, 10),
    (8, 8),
    (9, 9),
    (libc::SIGUSR1, 30),
    (11, 11),
    (libc::SIGUSR2, 31),
    (13, 13),
    (14, 14),
    (15, 15),
    (libc::SIGCHLD, 20),
    (libc::SIGCONT, 19),
    (libc::SIGSTOP, 17),
    (libc::SIGTSTP, 18),
    (21, 21),
    (22, 22),
    (libc::SIGURG, 16),
    (24, 24),
    (25, 25),
    (26, 26),
    (27, 27),
    (28, 28),
    (libc::SIGIO, 23),
    (libc::SIGPWR, 32),
    (libc::SIGSYS, 12),
    (32, 77),
    (64, 78),
];

/// Signals that GDB passes silently by default. Reporting each one would slow down programs that use them heavily.
const UNREPORTED: [i32; 9] = [
    libc::SIGALRM,
    libc::SIGURG,
    libc::SIGIO,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGCHLD,
    libc::SIGWINCH,
    32,
    33,
];

/// Whether a signal is reported to the debugger.
pub(super) fn is_reported(signal: i32) -> bool {
    !UNREPORTED.contains(&signal)
}

/// GDB's number of a Linux signal.
pub(super) fn to_gdb(signal: i32) -> Signal {
    const UNKNOWN: u8 = 143;
    let number = NUMBERS.iter().find(|(linux, _)| *linux == signal).map(|(_, gdb)| *gdb);
    Signal(number.unwrap_or(if (33..64).contains(&signal) { signal as u8 + 12 } else { UNKNOWN }))
}

/// Linux's number of a GDB signal; `None` if Linux does not have it.
pub(super) fn to_linux(signal: Signal) -> Option<i32> {
    let number = NUMBERS.iter().find(|(_, gdb)| *gdb == signal.0).map(|(linux, _)| *linux);
    number.or((45..76).contains(&signal.0).then_some(i32::from(signal.0) - 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_numbers_convert_to_gdb_and_back() {
        for signal in (1..=64).filter(|&signal| signal != libc::SIGSTKFLT) {
            assert_eq!(to_linux(to_gdb(signal)), Some(signal), "signal {signal}");
        }
        assert_eq!(to_gdb(libc::SIGUSR1), Signal::SIGUSR1);
        assert_eq!(to_gdb(libc::SIGSEGV), Signal::SIGSEGV);
        assert_eq!(to_linux(Signal(0)), None);
    }
}
