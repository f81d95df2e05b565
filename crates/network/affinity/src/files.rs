//! Opens files named by the user without blocking. Opening a named pipe whose other end is not open would block.
//!
//! Source: fifo(7), open(2) (O_NONBLOCK).

use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file. `flags` are added to those set here.
///
/// # Errors
/// As for open(2), or if it is not a regular file.
pub fn regular(options: &mut OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let other = || io::Error::other("it is not a regular file");
    match options.custom_flags(flags.bits() as i32).open(path) {
        // Error for a pipe or socket whose other end is not open.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Err(other()),
        Err(error) => Err(error),
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) => Err(other()),
    }
}

/// Opens a regular file or a pipe, such as the shell's `<(...)`, for reading. A pipe without a writer is empty.
///
/// # Errors
/// As for open(2), or if it is a device, socket or directory.
pub fn readable(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_fifo() {
        // From here on, reads block until data arrives or the writer closes the pipe.
        rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    } else if !kind.is_file() {
        return Err(io::Error::other("it is neither a file nor a pipe"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_named_pipe_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let mut text = String::new();
        readable(&pipe).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
        for options in [OpenOptions::new().read(true).write(true), OpenOptions::new().append(true)] {
            let error = regular(options, OFlags::empty(), &pipe).unwrap_err();
            assert_eq!(error.to_string(), "it is not a regular file");
        }
        assert!(readable(Path::new("/dev/zero")).is_err() && readable(folder.path()).is_err());
    }
}
