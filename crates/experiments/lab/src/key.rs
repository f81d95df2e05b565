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
    pub(crate) fn of(content: &serde_json::Value) -> Self {
        Self(digest(content.to_string().as_bytes())[..32].into())
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
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
