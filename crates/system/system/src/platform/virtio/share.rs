//! A folder of the host as a file system that a driver mounts by its tag. Source: Virtual I/O Device Version 1.2, section
//! 5.9 (9P device); Linux, net/9p/trans_virtio.c.

use std::io::{Read, Write};

use longma_share::{MAX_MESSAGE_BYTES, Share};

/// The features that the device offers: a tag (VIRTIO_9P_MOUNT_TAG).
pub const FEATURES: u64 = 1;
/// Cycles that a request takes besides the copying of its bytes. The time of the host does not change the guest's.
pub const REQUEST_CYCLES: u64 = 10_000;
/// The maximum length of a tag in bytes.
const MAX_TAG_BYTES: usize = 64;

/// A tag that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the tag {0:?} must have from 1 to {MAX_TAG_BYTES} characters, each a letter, a digit, `.`, `_` or `-`"
)]
pub struct TagError(String);

/// A folder of the host, with the tag under which the guest mounts it.
#[derive(Debug)]
pub struct SharedFolder {
    share: Share,
    tag: String,
}

impl SharedFolder {
    /// Names a folder.
    ///
    /// # Errors
    /// The tag is empty or too long, or has a character other than letters, digits, `.`, `_` and `-`.
    pub fn new(share: Share, tag: &str) -> Result<Self, TagError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match tag.len() {
            1..=MAX_TAG_BYTES if tag.bytes().all(is_plain) => Ok(Self { share, tag: tag.to_owned() }),
            _ => Err(TagError(tag.to_owned())),
        }
    }

    /// The device configuration: the tag and its length.
    pub fn configuration(&self) -> Vec<u8> {
        [&(self.tag.len() as u16).to_le_bytes(), self.tag.as_bytes()].concat()
    }

    /// The tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Whether the driver has mounted the folder.
    pub fn is_in_use(&self) -> bool {
        self.share.is_in_use()
    }

    /// Closes the driver's open files.
    pub fn reset(&mut self) {
        self.share.reset();
    }

    /// Serves a request of `bytes` bytes, with `space` bytes for the reply. Returns how many bytes were written; 0 if the
    /// request is too long or malformed.
    pub fn serve(
        &mut self,
        bytes: usize,
        input: &mut impl Read,
        space: usize,
        output: &mut impl Write,
    ) -> u32 {
        if bytes > MAX_MESSAGE_BYTES {
            return 0;
        }
        let mut request = vec![0; bytes];
        let reply = match input.read_exact(&mut request) {
            Ok(()) => self.share.serve(&request, space),
            Err(_) => None,
        };
        reply.filter(|reply| output.write_all(reply).is_ok()).map_or(0, |reply| reply.len() as u32)
    }
}
