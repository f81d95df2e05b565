//! The file that names the issuer whose tokens are accepted and assigns roles to them.

use crate::access::Role;
use jsonwebtoken::Algorithm;
use longma_placement::name::name_problem;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The issuer whose tokens are accepted, and the roles assigned to them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcOptions {
    /// The issuer, exactly as in its tokens.
    pub issuer: String,
    /// The audience that tokens must be for.
    pub audience: String,
    /// URL of the issuer's keys. By default the issuer's configuration names it.
    pub jwks: Option<String>,
    /// PEM file with the certificate to trust for the issuer. By default the system's certificates.
    pub certificate: Option<PathBuf>,
    /// Signature algorithms that are accepted.
    #[serde(default = "usual_algorithms")]
    pub algorithms: Vec<Algorithm>,
    /// By how many seconds the issuer's clock may differ.
    #[serde(default = "usual_skew")]
    pub clock_skew_s: u64,
    /// Claim that names the user in events and in the audit log.
    #[serde(default = "usual_name")]
    pub name_claim: String,
    /// Rules that give roles; the first that matches counts.
    pub roles: Vec<RoleRule>,
}

/// A rule that assigns a role to tokens with a claim.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleRule {
    /// The claim, with dots between nested names.
    pub claim: String,
    /// Value that the claim has, or that is in its list. Without it, the claim's only value is the name of the tenant.
    pub value: Option<String>,
    /// `admin`, `operator` or `tenant`.
    pub role: String,
    /// The tenant. Required with the role `tenant` and a value, and not permitted otherwise.
    pub tenant: Option<String>,
}

fn usual_algorithms() -> Vec<Algorithm> {
    vec![Algorithm::RS256, Algorithm::ES256]
}

fn usual_skew() -> u64 {
    60
}

fn usual_name() -> String {
    "sub".into()
}

/// The longest accepted difference between the clocks, in seconds.
const MAX_SKEW_S: u64 = 300;

/// Whether a URL is protected from others on the network: by TLS, or because it is local.
pub(super) fn is_protected(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return url.starts_with("https://") };
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        // The host follows a user's name, which may look like a local address.
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A claim by its path.
pub(super) fn claim<'a>(claims: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    // Names of claims may contain dots themselves, such as URLs.
    if let Some(found) = claims.get(path) {
        return Some(found);
    }
    let (first, rest) = path.split_once('.')?;
    claim(claims.get(first)?.as_object()?, rest)
}

impl OidcOptions {
    /// Reads the options from a TOML file.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid; the message names it.
    pub fn open(file: &Path) -> Result<Self, String> {
        let named = |error: String| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
        let mut options: Self = toml::from_str(&text).map_err(|error| named(error.to_string()))?;
        options.check().map_err(named)?;
        // The path is relative to the folder of the configuration file.
        options.certificate =
            options.certificate.map(|path| file.parent().unwrap_or(Path::new("")).join(path));
        Ok(options)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        for (name, url) in [("issuer", Some(&self.issuer)), ("jwks", self.jwks.as_ref())] {
            if url.is_some_and(|url| !is_protected(url)) {
                return Err(format!(
                    "{name}: must begin with https://; a forged answer with other keys would give access to anyone"
                ));
            }
        }
        if self.audience.is_empty() {
            return Err("audience: must not be empty".into());
        }
        if self.clock_skew_s > MAX_SKEW_S {
            return Err(format!("clock_skew_s: is {}; at most {MAX_SKEW_S}", self.clock_skew_s));
        }
        let symmetric = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
        if self.algorithms.is_empty() || self.algorithms.iter().any(|one| symmetric.contains(one)) {
            return Err("algorithms: give RS, PS, ES or EdDSA algorithms: others have no public keys".into());
        }
        if self.roles.is_empty() {
            return Err("roles: is empty, so that no token has any right".into());
        }
        self.roles
            .iter()
            .enumerate()
            .try_for_each(|(at, rule)| rule.check().map_err(|e| format!("roles[{at}]: {e}")))
    }
}

impl RoleRule {
    fn check(&self) -> Result<(), String> {
        match (Role::named(&self.role), &self.value, &self.tenant) {
            (Some(Role::Admin | Role::Operator), Some(_), None) => Ok(()),
            (Some(Role::Admin | Role::Operator), ..) => {
                Err(format!("the role {} needs a value and no tenant", self.role))
            }
            (Some(Role::Tenant), Some(_), Some(tenant)) => name_problem(tenant).map_or(Ok(()), Err),
            (Some(Role::Tenant), None, None) => Ok(()),
            (Some(Role::Tenant), ..) => {
                Err("the role tenant needs a value and a tenant, or neither: then the claim names the tenant"
                    .into())
            }
            _ => Err(format!("{:?} is not admin, operator or tenant", self.role)),
        }
    }

    /// The role and tenant of a token with these claims, if the rule matches.
    pub(super) fn apply(&self, claims: &Map<String, Value>) -> Option<(Role, Option<String>)> {
        let found = claim(claims, &self.claim)?;
        let role = Role::named(&self.role)?;
        let Some(wanted) = &self.value else {
            let tenant = found.as_str().filter(|name| name_problem(name).is_none())?;
            return Some((role, Some(tenant.into())));
        };
        let is_it = |value: &Value| value.as_str() == Some(wanted);
        let has = is_it(found) || found.as_array().is_some_and(|list| list.iter().any(is_it));
        has.then(|| (role, self.tenant.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_addresses_need_no_tls() {
        for url in ["https://id.example", "http://localhost:8080/x", "http://127.0.0.1", "http://[::1]:1/"] {
            assert!(is_protected(url), "{url}");
        }
        for url in [
            "http://id.example",
            "http://localhost:x@id.example/",
            "http://127.0.0.1@id.example",
            "ftp://localhost",
        ] {
            assert!(!is_protected(url), "{url}");
        }
    }
}
