//! The files in a package. Source: deb(5), ar(5), tar(5).

use std::io::{self, Read};

use lzma_rust2::XzReader;

/// The maximum size of a file in a package, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// The maximum total size of a package's files, in bytes.
const MAX_TOTAL_BYTES: u64 = 4 << 30;

/// A package cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// The file is not in the format of Debian's packages.
    #[error("not a Debian package: {0}")]
    Format(&'static str),
    /// The archive in the package is damaged.
    #[error("the package is damaged: {0}")]
    Damaged(#[from] io::Error),
}

/// The member of an ar archive whose name starts with `name`.
fn member<'a>(package: &'a [u8], name: &str) -> Result<(&'a str, &'a [u8]), PackageError> {
    let mut rest =
        package.strip_prefix(b"!<arch>\n").ok_or(PackageError::Format("it is not an ar archive"))?;
    while let Some((header, after_header)) = rest.split_first_chunk::<60>() {
        let field = |from: usize, to: usize| std::str::from_utf8(&header[from..to]).map(str::trim_end);
        let (Ok(found), Ok(size)) = (field(0, 16), field(48, 58)) else {
            return Err(PackageError::Format("a header is not text"));
        };
        let size: usize = size.parse().map_err(|_| PackageError::Format("a size is not a number"))?;
        let content =
            after_header.get(..size).ok_or(PackageError::Format("it ends in the middle of a file"))?;
        if found.starts_with(name) {
            return Ok((found.trim_end_matches('/'), content));
        }
        // Members start at even offsets.
        rest = after_header.get(size + size % 2..).unwrap_or_default();
    }
    Err(PackageError::Format("it has no files"))
}

/// The regular files of a package whose path `choose` accepts, as path and content. Paths have no `./` at the start.
///
/// # Errors
/// The package is malformed, damaged or too large.
pub fn files(
    package: &[u8],
    choose: &mut dyn FnMut(&str) -> bool,
) -> Result<Vec<(String, Vec<u8>)>, PackageError> {
    let (name, content) = member(package, "data.tar")?;
    let bytes: Box<dyn Read + '_> = match name {
        "data.tar" => Box::new(content),
        "data.tar.xz" => Box::new(XzReader::new(content, true)),
        _ => return Err(PackageError::Format("its files are compressed by a program other than xz")),
    };
    let mut archive = tar::Archive::new(bytes.take(MAX_TOTAL_BYTES));
    let mut found = Vec::new();
    for entry in archive.entries()? {
        let entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
        if choose(&path) {
            found.push((path, read_all(entry)?));
        }
    }
    Ok(found)
}

/// The content of a file that may be compressed with xz, as kernel modules are.
pub fn unpack(path: &str, content: Vec<u8>) -> io::Result<Vec<u8>> {
    if path.ends_with(".xz") { read_all(XzReader::new(&content[..], true)) } else { Ok(content) }
}

/// Reads up to the limit of a file.
pub fn read_all(from: impl Read) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    from.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)?;
    match content.len() as u64 > MAX_FILE_BYTES {
        true => Err(io::Error::other(format!("a file has more than {MAX_FILE_BYTES} bytes"))),
        false => Ok(content),
    }
}

/// Decompresses a list of packages.
pub fn unpack_index(content: &[u8]) -> io::Result<Vec<u8>> {
    read_all(XzReader::new(content, true))
}
