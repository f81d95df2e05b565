//! Access tokens: an in-memory copy of those in the store, and when they were last used.

use super::ServiceState;
use crate::access::{Caller, now};
use crate::problem::HttpProblem;
use longma_locks::IgnorePoison;
use longma_placement::store::{StoreError, Token};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum interval between reloads of the tokens, to find those added by other processes. It limits the load from
/// unknown tokens.
const TOKEN_REFRESH: Duration = Duration::from_secs(1);

/// Interval at which the last uses of tokens are written to the store. A crash loses the uses in the last interval.
pub(crate) const USES_INTERVAL: Duration = Duration::from_secs(60);

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

    /// Returns the caller whose token has this digest, even if the token has expired.
    pub async fn caller(self: &Arc<Self>, digest: &str) -> Result<Option<Caller>, HttpProblem> {
        let look = |state: &ServiceState, digest: &str| {
            let tokens = state.tokens.read().ignore_poison();
            let fresh = tokens.read.is_some_and(|at| at.elapsed() < TOKEN_REFRESH);
            (tokens.by_digest.get(digest).map(Caller::with_new_object), fresh)
        };
        let (found, fresh) = look(self, digest);
        if fresh {
            return Ok(found);
        }
        self.with(ServiceState::refresh_tokens).await?;
        Ok(look(self, digest).0)
    }

    /// Returns whether a caller's token still exists and has not expired.
    pub async fn is_token_valid(self: &Arc<Self>, caller: &Caller) -> bool {
        if caller.expired_for_s().is_some() {
            return false;
        }
        if caller.is_jwt {
            return true;
        }
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

    /// Returns whether this tenant has a token of this name.
    pub fn is_token_of_tenant(&self, name: &str, tenant: &str) -> bool {
        let tokens = self.tokens.read().ignore_poison();
        tokens.by_digest.values().any(|c| c.name == name && c.scope.as_deref() == Some(tenant))
    }

    /// Notes that a token was used now.
    pub fn note_token_use(&self, digest: &str) {
        let mut uses = self.token_uses.lock().ignore_poison();
        match uses.get_mut(digest) {
            Some(at) => *at = now(),
            None => drop(uses.insert(digest.into(), now())),
        }
    }

    /// Writes the last uses of tokens to the store.
    pub fn store_token_uses(&self) -> Result<(), StoreError> {
        let uses = std::mem::take(&mut *self.token_uses.lock().ignore_poison());
        if uses.is_empty() {
            return Ok(());
        }
        let stored = self.store.record_token_uses(&uses.clone().into_iter().collect::<Vec<_>>());
        if stored.is_err() {
            let mut newer = self.token_uses.lock().ignore_poison();
            for (digest, at) in uses {
                newer.entry(digest).or_insert(at);
            }
        }
        stored
    }

    /// All tokens with their last uses, including uses that are not in the store yet.
    pub fn tokens_with_uses(&self) -> Result<Vec<Token>, StoreError> {
        let mut all = self.store.tokens()?;
        let uses = self.token_uses.lock().ignore_poison();
        all.iter_mut().for_each(|token| token.used_at = token.used_at.max(uses.get(&token.digest).copied()));
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_placement::{SqlStore, Store};

    #[test]
    fn uses_are_listed_at_once_and_stored_later() {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(SqlStore::open_file(&folder.path().join("placement.db")).unwrap());
        let token = Token { name: "a".into(), digest: "d".into(), role: "admin".into(), ..Token::default() };
        store.put_token(&token).unwrap();
        let state = ServiceState::of_store(&store, false);
        let used = |tokens: Vec<Token>| tokens[0].used_at;
        assert_eq!(used(state.tokens_with_uses().unwrap()), None);
        state.note_token_use("d");
        state.note_token_use("gone");
        assert!(used(state.tokens_with_uses().unwrap()).is_some());
        assert_eq!(used(store.tokens().unwrap()), None);
        state.store_token_uses().unwrap();
        let stored = used(store.tokens().unwrap());
        assert!(stored.is_some());
        assert_eq!(used(state.tokens_with_uses().unwrap()), stored);
        // If the database fails, no uses are lost.
        state.token_uses.lock().unwrap().insert("d".into(), i64::MAX);
        std::fs::rename(folder.path().join("placement.db"), folder.path().join("away")).unwrap();
        state.store_token_uses().unwrap_err();
        std::fs::rename(folder.path().join("away"), folder.path().join("placement.db")).unwrap();
        state.store_token_uses().unwrap();
        assert_eq!(used(store.tokens().unwrap()), Some(i64::MAX));
    }
}
