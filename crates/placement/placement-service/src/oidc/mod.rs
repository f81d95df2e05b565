//! OpenID Connect: accepts the JWTs of one issuer beside the service's own tokens. `jsonwebtoken` checks them; a claim
//! decides the role.
//!
//! Source: RFC 7519, RFC 7517, RFC 8725 (best current practices: algorithms by allow list, keys by their type, audience);
//! OpenID Connect Discovery 1.0.

mod configuration;
mod keys;
mod ring_provider;
#[cfg(test)]
mod tests;

pub use configuration::{OidcOptions, RoleRule};

use crate::Log;
use crate::access::{Caller, digest};
use crate::problem::HttpProblem;
use crate::wire::{ProblemKind, plain};
use configuration::claim;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use keys::{KeyCache, NoKey};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Maximum length of the `Authorization` header in bytes.
pub(crate) const MAX_TOKEN_BYTES: usize = 8192;
/// Maximum length of a user's name in events and in the audit log.
const MAX_NAME_CHARS: usize = 120;

/// Checks the tokens of an issuer.
pub(crate) struct Oidc {
    options: OidcOptions,
    validation: Validation,
    keys: Arc<KeyCache>,
}

impl Oidc {
    pub fn new(options: OidcOptions, log: Log) -> Result<Self, String> {
        options.check()?;
        ring_provider::install();
        let mut validation = Validation::new(options.algorithms[0]);
        validation.algorithms.clone_from(&options.algorithms);
        validation.leeway = options.clock_skew_s;
        validation.validate_nbf = true;
        validation.set_audience(&[&options.audience]);
        validation.set_issuer(&[&options.issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let keys = Arc::new(KeyCache::new(&options, log)?);
        Ok(Self { options, validation, keys })
    }

    /// Whether a token has the form of a JWT. The service's own tokens have no dots.
    pub fn is_jwt(token: &str) -> bool {
        token.split('.').count() == 3
    }

    /// The caller with this token.
    pub async fn caller(&self, token: &str) -> Result<Caller, HttpProblem> {
        let refused =
            |why: &str| HttpProblem::new(ProblemKind::NotAuthenticated, format!("the JWT is refused: {why}"));
        let header = decode_header(token).map_err(|_| refused("its header is invalid"))?;
        // Check the algorithm before looking up the key, because the sender chooses the key's name.
        if !self.options.algorithms.contains(&header.alg) {
            return Err(refused("its algorithm is not accepted"));
        }
        let key = self.keys.find(header.kid.as_deref(), header.alg).await.map_err(|none| match none {
            NoKey::Unknown => refused("its issuer has no such key"),
            NoKey::Unreachable => HttpProblem::new(
                ProblemKind::IssuerUnreachable,
                "the issuer's keys cannot be read at present; the service's own tokens work".into(),
            ),
        })?;
        let mut validation = self.validation.clone();
        // `jsonwebtoken` refuses a key if the list has algorithms for keys of another type.
        validation.algorithms = vec![header.alg];
        let decoded = decode::<Map<String, Value>>(token, &key, &validation);
        let claims = decoded.map_err(|error| match error.kind() {
            ErrorKind::ExpiredSignature => {
                HttpProblem::new(ProblemKind::TokenExpired, "the JWT has expired: sign in again".into())
            }
            ErrorKind::InvalidAudience => refused("it is for another audience"),
            ErrorKind::InvalidIssuer => refused("it is of another issuer"),
            ErrorKind::ImmatureSignature => refused("it is not valid yet"),
            ErrorKind::MissingRequiredClaim(claim) => refused(&format!("it has no claim {claim}")),
            ErrorKind::InvalidSignature => refused("its signature is wrong"),
            _ => refused("it is invalid"),
        })?;
        // `jsonwebtoken` also accepts a list; the issuer is one string (RFC 7519, 4.1.1).
        if claims.claims.get("iss").and_then(Value::as_str) != Some(&*self.options.issuer) {
            return Err(refused("it is of another issuer"));
        }
        self.caller_of(token, &claims.claims)
    }

    fn caller_of(&self, token: &str, claims: &Map<String, Value>) -> Result<Caller, HttpProblem> {
        let name = claim(claims, &self.options.name_claim).and_then(Value::as_str).unwrap_or_default();
        let name: String = plain(name).trim().chars().take(MAX_NAME_CHARS).collect();
        if name.is_empty() {
            let detail = format!("the JWT is refused: its claim {} has no name", self.options.name_claim);
            return Err(HttpProblem::new(ProblemKind::NotAuthenticated, detail));
        }
        let rule = self.options.roles.iter().find_map(|rule| rule.apply(claims));
        let Some((role, scope)) = rule else {
            let detail = format!("the JWT of {name} has no claim that gives it a role here");
            return Err(HttpProblem::new(ProblemKind::NotAllowed, detail));
        };
        let expires_at = claims.get("exp").and_then(Value::as_f64);
        let expires_at = expires_at.map(|at| (at as i64).saturating_add(self.options.clock_skew_s as i64));
        // The name cannot equal that of one of the service's tokens, whose names do not contain this character.
        Ok(Caller::of_jwt(format!("oidc:{name}"), role, scope, digest(token), expires_at))
    }
}
