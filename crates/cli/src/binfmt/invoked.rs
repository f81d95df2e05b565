//! The arguments of the command, rewritten when the kernel started it through binfmt_misc. The kernel then passes the
//! program's path, its argv[0] and its arguments.
//! Source: Linux Documentation/admin-guide/binfmt-misc.rst, flag P; include/uapi/linux/binfmts.h
//! (AT_FLAGS_PRESERVE_ARGV0).

use std::ffi::OsString;

/// Bit of AT_FLAGS that the kernel sets when it passes argv[0], since Linux 5.12.
const PRESERVE_ARGV0: u64 = 1;

/// The command line, or the equivalent `longma run` command line if binfmt_misc started the command.
pub fn command_line() -> Vec<OsString> {
    // SAFETY: getauxval has no preconditions; it reads the auxiliary vector that the kernel put on the stack.
    let flags = unsafe { libc::getauxval(libc::AT_FLAGS) };
    of(flags & PRESERVE_ARGV0 != 0, std::env::args_os().collect())
}

fn of(is_by_kernel: bool, mut words: Vec<OsString>) -> Vec<OsString> {
    if is_by_kernel && words.len() >= 3 {
        let mut name = OsString::from("--argv0=");
        name.push(&words[2]);
        // After `--`, the name of a program may look like an option.
        words.splice(1..3, ["run".into(), name, "--".into(), words[1].clone()]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(Into::into).collect()
    }

    #[test]
    fn a_binfmt_command_line_becomes_a_run() {
        let by_kernel = of(true, words("/usr/bin/longma /opt/tool tool -x -- y"));
        assert_eq!(by_kernel, words("/usr/bin/longma run --argv0=tool -- /opt/tool -x -- y"));
    }

    #[test]
    fn other_command_lines_are_unchanged() {
        assert_eq!(of(false, words("longma run x y")), words("longma run x y"));
    }
}
