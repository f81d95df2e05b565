//! Parses the first line of a script. Source: execve(2) (interpreter scripts); Linux fs/binfmt_script.c.

use crate::Errno;

/// BINPRM_BUF_SIZE: the maximum length of a script's first line in bytes.
pub const LINE_BYTES: usize = 256;
/// The maximum depth of scripts whose interpreter is a script.
pub const MAX_SCRIPTS: usize = 5;

/// An interpreter and an optional argument.
pub type Interpreter = (Vec<u8>, Option<Vec<u8>>);

/// The interpreter that a script's first line specifies. `None` if the file is not a script.
///
/// # Errors
/// ENOEXEC if the line names no interpreter, or is longer than the kernel reads.
pub fn interpreter(start: &[u8]) -> Result<Option<Interpreter>, Errno> {
    let Some(line) = start.strip_prefix(b"#!") else { return Ok(None) };
    let is_space = |&byte: &u8| byte == b' ' || byte == b'\t';
    // In a file shorter than the buffer, the end of the file ends the line.
    let end =
        line.iter().position(|&byte| byte == b'\n').or((start.len() < LINE_BYTES).then_some(line.len()));
    let line = &line[..end.unwrap_or(line.len())];
    let from = line.iter().position(|byte| !is_space(byte)).ok_or(Errno(libc::ENOEXEC))?;
    let line = &line[from..];
    let to = line.iter().position(is_space);
    if to.is_none() && end.is_none() {
        // The path is longer than the buffer.
        return Err(Errno(libc::ENOEXEC));
    }
    let (path, rest) = line.split_at(to.unwrap_or(line.len()));
    let argument = rest.trim_ascii();
    Ok(Some((path.to_vec(), (!argument.is_empty()).then(|| argument.to_vec()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<(String, Option<String>)> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        interpreter(line.as_bytes()).unwrap().map(|(path, argument)| (text(path), argument.map(text)))
    }

    #[test]
    fn a_script_names_its_interpreter_and_at_most_one_argument() {
        assert_eq!(parsed("#!/bin/sh\necho"), Some(("/bin/sh".into(), None)));
        assert_eq!(
            parsed("#! /usr/bin/env  python3 -u \n"),
            Some(("/usr/bin/env".into(), Some("python3 -u".into())))
        );
        assert_eq!(parsed("\x7fELF"), None);
        assert_eq!(parsed("#!/bin/sh"), Some(("/bin/sh".into(), None)));
    }

    #[test]
    fn a_script_without_an_interpreter_cannot_be_executed() {
        assert_eq!(interpreter(b"#!  \n"), Err(Errno(libc::ENOEXEC)));
        assert_eq!(interpreter(&[b"#!".as_slice(), &[b'x'; 254]].concat()), Err(Errno(libc::ENOEXEC)));
    }
}
