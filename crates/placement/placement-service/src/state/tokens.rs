//! Access tokens: an in-memory copy of those in the store.

use super::ServiceState;
use crate::access::Caller;
use crate::problem::HttpProblem;
use longma_locks::IgnorePoison;
use longma_placement::store::StoreError;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum interval between reloads of the tokens, to find those added by other processes. It limits the load from
/// unknown tokens.
const TOKEN_REFRESH: Duration = Duration::from_secs(1);

/// The tokens as last read from the store.
#[derive(Default)]
pub(super) struct Tokens {
    by_digest: HashMap<String, Caller>,
    read: Option<Instant>,
}

impl ServiceState {
    /// Reloads all tokens.
    pub fn refresh_tokens(&self) -> Result<(), StoreError> {
        let all = self.store.tokens()?;
        let by_digest: HashMap<_, _> =
            all.iter().filter_map(|t| Some((t.digest.clone(), Caller::of(t)?))).collect();
        let new = Tokens { by_digest, read: Some(Instant::now()) };
        let old = std::mem::replace(&mut *self.tokens.write().ignore_poison(), new);
        let tokens = self.tokens.read().ignore_poison();
        if old.by_digest.keys().any(|digest| !tokens.by_digest.contains_key(digest)) {
            self.token_changes.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }

    /// Returns the caller whose token has this digest.
    pub async fn caller(self: &Arc<Self>, digest: &str) -> Result<Option<Caller>, HttpProblem> {
        let look = |state: &ServiceState, digest: &str| {
            let tokens = state.tokens.read().ignore_poison();
            let fresh = tokens.read.is_some_and(|at| at.elapsed() < TOKEN_REFRESH);
            (tokens.by_digest.get(digest).cloned(), fresh)
        };
        let (found, fresh) = look(self, digest);
        if fresh {
            return Ok(found);
        }
        self.with(ServiceState::refresh_tokens).await?;
        Ok(look(self, digest).0)
    }

    /// Returns whether a caller's token is still valid.
    pub async fn is_token_valid(self: &Arc<Self>, caller: &Caller) -> bool {
        let known = |state: &ServiceState| {
            let tokens = state.tokens.read().ignore_poison();
            let known = tokens.by_digest.contains_key(&caller.digest);
            (known, tokens.read.is_some_and(|at| at.elapsed() < TOKEN_REFRESH))
        };
        match known(self) {
            (known, true) => known,
            (_, false) => self.with(ServiceState::refresh_tokens).await.is_ok() && known(self).0,
        }
    }
}
