//! Authentication: the password and the certificate.

use crate::error::ServerError;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// The password of all clients. Only the password's digest is stored.
#[derive(Clone)]
pub struct Password([u8; 32]);

impl Password {
    /// A password.
    pub fn new(password: &[u8]) -> Self {
        Self(Sha256::digest(password).into())
    }

    /// Reads the password from the first line of a file.
    ///
    /// # Errors
    /// If the file cannot be read, its first line is empty, or other users may read it.
    pub fn from_file(path: &Path) -> Result<Self, ServerError> {
        let refused = |what: String| ServerError::File { path: path.to_owned(), what };
        check_private(path)?;
        let text = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        match line.strip_suffix(b"\r").unwrap_or(line) {
            [] => Err(refused("the first line, which is the password, is empty".into())),
            password => Ok(Self::new(password)),
        }
    }

    /// Whether a client has sent this password. The time depends on digests only, which a client cannot choose.
    pub(crate) fn is(&self, sent: &[u8]) -> bool {
        Self::new(sent).0 == self.0
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password")
    }
}

/// Checks that a file is regular and not readable by all users.
fn check_private(path: &Path) -> Result<(), ServerError> {
    let refused = |what: String| ServerError::File { path: path.to_owned(), what };
    let found = std::fs::metadata(path).map_err(|error| refused(error.to_string()))?;
    if !found.is_file() {
        return Err(refused("it is not a regular file".into()));
    }
    if found.mode() & 0o004 != 0 {
        return Err(refused("all users may read this secret: run `chmod o-r` on it".into()));
    }
    Ok(())
}

/// Reads a certificate chain and its key, both in PEM.
///
/// # Errors
/// A file cannot be read, all users may read the key, or the key does not match the certificate.
pub fn tls_config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, ServerError> {
    let refused = |path: &Path, what: &dyn std::fmt::Display| ServerError::File {
        path: path.to_owned(),
        what: what.to_string(),
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| refused(certificate, &error))?;
    if chain.is_empty() {
        return Err(refused(certificate, &"it contains no certificate (PEM: BEGIN CERTIFICATE)"));
    }
    check_private(key)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| refused(key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ServerError::Tls { what: error.to_string() })?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| refused(certificate, &error))?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_password_is_the_first_line_of_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let read = |content: &str, mode| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Password::from_file(&path).map_err(|error| error.to_string())
        };
        for content in ["river map", "river map\n", "river map\r\nother"] {
            let password = read(content, 0o600).unwrap();
            assert!(password.is(b"river map") && !password.is(b"river") && !password.is(b""));
        }
        assert!(read("\nother", 0o600).unwrap_err().contains("is empty"));
        assert!(read("river", 0o644).unwrap_err().contains("chmod o-r"));
        let error = Password::from_file(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}
