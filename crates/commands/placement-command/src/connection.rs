//! Options that select the service: a state directory on this machine, or an address and a token.

use longma_placement_service::client::ClientError;
use longma_placement_service::wire::ProblemKind;
use longma_placement_service::{Access, Client, default_data_dir};
use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Options that select the service.
#[derive(clap::Args)]
pub struct ConnectionOptions {
    /// Address of the service [default: the one recorded in the state directory].
    #[arg(long, value_name = "URL", env = "LONGMA_PLACEMENT_URL", requires = "token_file")]
    server: Option<String>,
    /// File with the access token; required with --server.
    #[arg(long, value_name = "FILE", env = "LONGMA_PLACEMENT_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// PEM file with the certificate to trust [default: the system's certificates].
    #[arg(long, value_name = "FILE", env = "LONGMA_PLACEMENT_CERTIFICATE")]
    certificate: Option<PathBuf>,
    /// State directory of the service on this machine [default: /var/lib/longma/placement for root, else
    /// ~/.local/state/longma/placement].
    #[arg(long, value_name = "FOLDER", env = "LONGMA_PLACEMENT_STATE")]
    state: Option<PathBuf>,
}

/// Output format.
#[derive(clap::Args)]
pub struct FormatOptions {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl ConnectionOptions {
    fn access(&self) -> Result<Access, Box<dyn Error>> {
        let token = self.token_file.as_ref().map(|file| read_token(file));
        let token = token.transpose()?;
        if let (Some(url), Some(token)) = (&self.server, &token) {
            return Ok(Access {
                url: url.clone(),
                address: None,
                token: token.clone(),
                certificate: self.certificate.clone(),
            });
        }
        let home = self.state.clone().unwrap_or_else(default_data_dir);
        let mut access = Access::read(&home).map_err(|error| {
            let file = Access::file(&home);
            let advice = match error.kind() {
                std::io::ErrorKind::NotFound => {
                    "start the service (longma placement serve --all-in-one), name its folder (--state), \
                     or name another machine's service (--server and --token-file)"
                }
                std::io::ErrorKind::PermissionDenied => "only the user that runs the service may read it",
                _ => "the service rewrites it at its next start",
            };
            format!("no service is known here: {}: {error}\n  {advice}", file.display())
        })?;
        if let Some(token) = token {
            access.token = token;
        }
        if self.certificate.is_some() {
            access.certificate.clone_from(&self.certificate);
        }
        Ok(access)
    }

    /// Connects to the service.
    pub fn client(&self) -> Result<Client, Box<dyn Error>> {
        let client = Client::new(&self.access()?)?;
        warn_if_token_is_visible(&client);
        Ok(client)
    }
}

/// Warns if the client sends its token unencrypted over a network.
pub fn warn_if_token_is_visible(client: &Client) {
    if let Some(url) = client.plaintext_url() {
        // A closed standard error must not stop the command.
        let _ = writeln!(
            std::io::stderr().lock(),
            "longma placement: warning: the token is sent unencrypted to {url}: use https://, unless a tunnel encrypts it"
        );
    }
}

/// Reads a token from a file.
pub fn read_token(file: &Path) -> Result<String, String> {
    let name = file.display();
    let text =
        std::fs::read_to_string(file).map_err(|error| format!("cannot read the token in {name}: {error}"))?;
    let mut words = text.split_whitespace();
    match (words.next(), words.next()) {
        (Some(token), None) if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token.into()),
        (None, _) => Err(format!("{name} is empty: it must contain only a token")),
        _ => Err(format!(
            "{name} has {} lines and must contain only a token: keep only the line `longma-...`",
            text.lines().count()
        )),
    }
}

/// Adds advice to an error of the service.
pub fn with_advice(error: ClientError) -> Box<dyn Error> {
    let advice = match &error {
        ClientError::Unreachable { .. } => {
            "is the service running? start it with: longma placement serve --all-in-one"
        }
        ClientError::Refused(problem) => match problem.kind {
            ProblemKind::NotAuthenticated => {
                "the token is wrong or was removed: an admin can make a new one with: longma placement token add"
            }
            ProblemKind::NoRoom => {
                "see which resource is missing on which host with: longma placement explain, with the same options"
            }
            ProblemKind::Exists => "choose another name, or delete the existing one first",
            _ => return error.into(),
        },
        ClientError::Untrusted { .. } => return error.into(),
        ClientError::Unexpected { .. } => "is the address right?",
    };
    format!("{error}\n  {advice}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_contains_only_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read_token(&file)
        };
        assert_eq!(read("longma-0123\n"), Ok("longma-0123".into()));
        let two = read("longma-0123\nlongma-4567\n").unwrap_err();
        assert!(two.contains("token has 2 lines and must contain only a token"), "{two}");
        assert!(read("token: longma-0123").is_err() && read("longma-0123\u{7}").is_err());
        assert!(read("\n").unwrap_err().contains("is empty"));
    }
}
