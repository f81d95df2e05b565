//! The issuer's public keys: read when first needed, again every ten minutes, and when a token names an unknown one.
//! Tokens with invented key names cannot make the service fetch the keys more often than every 30 s.

use super::configuration::OidcOptions;
use crate::Log;
use crate::client::{certificates, trusted_roots};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use longma_locks::IgnorePoison;
use serde::Deserialize;
use std::str::FromStr;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use ureq::Agent;

/// Age at which the keys are read again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);
/// Minimum interval between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Age up to which keys are used while the issuer cannot be reached.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// How long a token whose key is known waits for newer keys, so that a slow issuer delays no request by more than this.
const NEWER_KEYS_WAIT: Duration = Duration::from_millis(500);
/// Time limit of a request to the issuer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Why there is no key for a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoKey {
    /// The issuer has no key that suits the token.
    Unknown,
    /// The issuer's keys could never be read.
    Unreachable,
}

#[derive(Clone, Default)]
struct Known {
    keys: Arc<Vec<Jwk>>,
    read: Option<Instant>,
    tried: Option<Instant>,
}

/// The issuer's keys.
pub(super) struct KeyCache {
    agent: Agent,
    issuer: String,
    jwks: Option<String>,
    known: RwLock<Known>,
    /// Held while the keys are fetched from the issuer.
    refresh: tokio::sync::Mutex<()>,
    log: Log,
}

/// The part of the issuer's configuration that names its keys.
#[derive(Deserialize)]
struct Discovered {
    issuer: String,
    jwks_uri: String,
}

impl KeyCache {
    pub fn new(options: &OidcOptions, log: Log) -> Result<Self, String> {
        let roots = match &options.certificate {
            Some(file) => {
                Some(certificates(file).map_err(|e| format!("the certificate {}: {e}", file.display()))?)
            }
            None => None,
        };
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .timeout_global(Some(TIMEOUT))
            .tls_config(trusted_roots(roots.as_deref()))
            .build();
        let (issuer, jwks) = (options.issuer.clone(), options.jwks.clone());
        let (known, refresh) = Default::default();
        Ok(Self { agent: config.into(), issuer, jwks, known, refresh, log })
    }

    /// The key that a token with this header is signed with.
    pub async fn find(
        self: &Arc<Self>,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<DecodingKey, NoKey> {
        let known = self.known.read().ignore_poison().clone();
        let is_fresh = known.read.is_some_and(|at| at.elapsed() < REFRESH_INTERVAL);
        let found = suitable(&known.keys, kid, algorithm);
        if let Some(key) = found.clone().filter(|_| is_fresh) {
            return Ok(key);
        }
        if known.tried.is_none_or(|at| at.elapsed() >= RETRY_INTERVAL) {
            let cache = self.clone();
            let refresh = tokio::spawn(async move { cache.refresh(known.tried).await });
            let is_usable = found.is_some() && known.read.is_some_and(|at| at.elapsed() <= MAX_AGE);
            match is_usable {
                // A longer fetch continues in the background.
                true => drop(tokio::time::timeout(NEWER_KEYS_WAIT, refresh).await),
                false => drop(refresh.await),
            }
        }
        let known = self.known.read().ignore_poison().clone();
        match known.read {
            None => Err(NoKey::Unreachable),
            Some(at) if at.elapsed() > MAX_AGE => Err(NoKey::Unreachable),
            Some(_) => suitable(&known.keys, kid, algorithm).ok_or(NoKey::Unknown),
        }
    }

    /// Fetches the keys from the issuer, unless another request has done so since `before`.
    async fn refresh(self: &Arc<Self>, before: Option<Instant>) {
        let _held = self.refresh.lock().await;
        if self.known.read().ignore_poison().tried != before {
            return;
        }
        let cache = self.clone();
        let read = tokio::task::spawn_blocking(move || cache.fetch()).await;
        let read = read.unwrap_or_else(|error| Err(error.to_string()));
        let mut known = self.known.write().ignore_poison();
        known.tried = Some(Instant::now());
        match read {
            Ok(keys) => (known.keys, known.read) = (Arc::new(keys), known.tried),
            Err(error) => (self.log)(&format!("the keys of {} cannot be read: {error}", self.issuer)),
        }
    }

    /// Allows the next unknown key name to cause a fetch.
    #[cfg(test)]
    pub fn forget_attempt(&self) {
        self.known.write().ignore_poison().tried = None;
    }

    /// Makes the keys as old as if they had been read this long ago.
    #[cfg(test)]
    pub fn age(&self, by: Duration) {
        let mut known = self.known.write().ignore_poison();
        (known.read, known.tried) = (Instant::now().checked_sub(by), Instant::now().checked_sub(by));
    }

    fn fetch(&self) -> Result<Vec<Jwk>, String> {
        let url = match &self.jwks {
            Some(url) => url.clone(),
            None => {
                let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
                let found: Discovered =
                    serde_json::from_str(&self.get(&url)?).map_err(|e| format!("{url}: {e}"))?;
                if found.issuer != self.issuer {
                    return Err(format!("{url} is of the issuer {:?}", found.issuer));
                }
                found.jwks_uri
            }
        };
        if !super::configuration::is_protected(&url) {
            return Err(format!("{url} does not begin with https://"));
        }
        let set: JwkSet =
            serde_json::from_str(&self.get(&url)?).map_err(|error| format!("{url}: {error}"))?;
        Ok(set.keys)
    }

    fn get(&self, url: &str) -> Result<String, String> {
        let wrong = |error: ureq::Error| format!("{url}: {error}");
        let mut answer = self.agent.get(url).call().map_err(wrong)?;
        answer.body_mut().with_config().limit(MAX_BYTES).read_to_string().map_err(wrong)
    }
}

/// The only key that suits a token's header. A token without a key name is accepted only if a single key suits it.
fn suitable(keys: &[Jwk], kid: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
    let suits = |key: &&Jwk| {
        let common = &key.common;
        let is_for_signatures = matches!(common.public_key_use, None | Some(PublicKeyUse::Signature));
        let same = |name: String| Algorithm::from_str(&name).is_ok_and(|own| own == algorithm);
        let is_for_algorithm = common.key_algorithm.as_ref().is_none_or(|own| same(own.to_string()));
        let is_named = kid.is_none_or(|kid| common.key_id.as_deref() == Some(kid));
        is_for_signatures && is_for_algorithm && is_named && is_of_type(&key.algorithm, algorithm)
    };
    let mut all = keys.iter().filter(suits);
    let only = all.next()?;
    if all.next().is_some() {
        return None;
    }
    DecodingKey::from_jwk(only).ok()
}

/// Whether a key has the type and curve of an algorithm.
fn is_of_type(key: &AlgorithmParameters, algorithm: Algorithm) -> bool {
    match algorithm {
        Algorithm::ES256 => {
            matches!(key, AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256)
        }
        Algorithm::ES384 => {
            matches!(key, AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384)
        }
        Algorithm::EdDSA => {
            matches!(key, AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519)
        }
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => false,
        _ => matches!(key, AlgorithmParameters::RSA(_)),
    }
}
