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
    rewrite(flags & PRESERVE_ARGV0 != 0, std::env::args_os().collect())
}

fn rewrite(is_from_kernel: bool, mut arguments: Vec<OsString>) -> Vec<OsString> {
    if is_from_kernel && arguments.len() >= 3 {
        let mut name = OsString::from("--argv0=");
        name.push(&arguments[2]);
        // After `--`, the name of a program may look like an option.
        arguments.splice(1..3, ["run".into(), name, "--".into(), arguments[1].clone()]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Vec<OsString> {
        text.split(' ').map(Into::into).collect()
    }

    #[test]
    fn a_binfmt_command_line_becomes_a_run() {
        let rewritten = rewrite(true, arguments("/usr/bin/longma /opt/tool tool -x -- y"));
        assert_eq!(rewritten, arguments("/usr/bin/longma run --argv0=tool -- /opt/tool -x -- y"));
    }

    #[test]
    fn other_command_lines_are_unchanged() {
        assert_eq!(rewrite(false, arguments("longma run x y")), arguments("longma run x y"));
    }
}
