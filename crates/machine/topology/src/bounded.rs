//! Reads text files named by the user, up to a maximum length.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The text of a file or of a pipe, such as the shell's `<(...)`; `None` if it is longer than `max_bytes`.
///
/// # Errors
/// If the file cannot be read, if the path is a device, a socket or a directory, or if the text is not UTF-8.
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<Option<String>> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        return Err(io::Error::other("neither a file nor a pipe"));
    }
    let mut text = String::new();
    let read = File::open(path)?.take(max_bytes.saturating_add(1)).read_to_string(&mut text)?;
    Ok((read as u64 <= max_bytes).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn endless_files_are_not_read() {
        assert!(read_text(Path::new("/dev/zero"), 100).is_err());
        assert!(read_text(Path::new("/"), 100).is_err());
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[b'x'; 100]).unwrap();
        assert_eq!(read_text(file.path(), 100).unwrap().map(|text| text.len()), Some(100));
        assert_eq!(read_text(file.path(), 99).unwrap(), None);
    }
}
