//! Keys of stored results.
//!
//! Source: SHA-256 (FIPS 180-4) over canonical JSON, truncated to 128 bits.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Key of a point's result. Equal for equal machine, workload, parameters, inputs and version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(pub(crate) String);

impl Key {
    pub(crate) fn of(content: &impl Serialize) -> Self {
        // Cannot fail: the contents have text keys.
        let json = serde_json::to_vec(content).expect("what a key identifies is plain data");
        Self(hexadecimal(&Sha256::digest(json)[..16]))
    }

    /// 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// SHA-256 digest of `bytes` in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// Formats bytes without an allocation for each: there may be a million keys.
fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let halves = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    halves.map(|half| char::from(DIGITS[usize::from(half)])).collect()
}
