//! The initial RAM disk: a cpio archive that the kernel unpacks. Source: Linux
//! Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::BTreeSet;

/// An archive under construction. Archives of the same files are identical.
#[derive(Debug, Default)]
pub struct RamDisk {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl RamDisk {
    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let name_bytes = path.len() as u32 + 1;
        // Inode, mode, owner, group, links, time, bytes, device, device of a special file, bytes of the name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name_bytes, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Adds a folder and its parent folders.
    pub fn folder(&mut self, path: &str) {
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        if self.folders.insert(path.to_owned()) {
            self.entry(path, 0o040_755, &[]);
        }
    }

    /// Adds a file, with permission to execute it.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
        self.entry(path, 0o100_755, content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, 0o120_777, target.as_bytes());
    }

    /// The whole archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
