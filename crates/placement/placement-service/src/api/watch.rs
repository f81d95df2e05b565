//! Streams events as server-sent events.
//!
//! Source: the HTML standard, "Server-sent events".

use super::QueryParams;
use crate::access::{Caller, Role, now};
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{Problem, ProblemKind, Watched};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream;
use longma_locks::IgnorePoison;
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use utoipa::IntoParams;

/// Maximum number of watchers.
const MAX_WATCHERS: usize = 256;
/// Maximum number of watchers of a tenant, so that one tenant cannot exclude others.
const MAX_WATCHERS_PER_TENANT: usize = 16;
/// Number of events read per query.
const EVENTS_PER_QUERY: usize = 500;

/// Longest interval at which a silent stream checks that its token is still valid.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Number of watchers of each tenant; operators count together under `None`.
static WATCHERS: Mutex<BTreeMap<Option<String>, usize>> = Mutex::new(BTreeMap::new());

fn watchers() -> MutexGuard<'static, BTreeMap<Option<String>, usize>> {
    WATCHERS.lock().ignore_poison()
}

/// A permit for one watcher.
struct WatchSlot(Option<String>);

impl WatchSlot {
    fn take(tenant: Option<&str>) -> Result<Self, HttpProblem> {
        let tenant = tenant.map(str::to_string);
        let mut watchers = watchers();
        let busy = |limit: usize| {
            HttpProblem::new(ProblemKind::Busy, format!("{limit} clients watch already; try again later"))
        };
        if watchers.values().sum::<usize>() >= MAX_WATCHERS {
            return Err(busy(MAX_WATCHERS));
        }
        let own = watchers.entry(tenant.clone()).or_default();
        if tenant.is_some() && *own >= MAX_WATCHERS_PER_TENANT {
            return Err(busy(MAX_WATCHERS_PER_TENANT));
        }
        *own += 1;
        Ok(Self(tenant))
    }
}

impl Drop for WatchSlot {
    fn drop(&mut self) {
        let mut watchers = watchers();
        if let Some(own) = watchers.get_mut(&self.0) {
            *own -= 1;
            if *own == 0 {
                watchers.remove(&self.0);
            }
        }
    }
}

/// Where to start.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// Number of the last known event; new events only if omitted. The header Last-Event-ID takes precedence.
    after: Option<i64>,
}

struct Watcher {
    state: Arc<ServiceState>,
    caller: Caller,
    after: i64,
    ready: VecDeque<Watched>,
    _slot: WatchSlot,
}

impl Watcher {
    /// Reads new events and drops those that the caller must not see.
    async fn read(&mut self) -> Result<(), HttpProblem> {
        let (after, caller) = (self.after, self.caller.clone());
        let found = self.state.with(move |state| {
            let mut events = state.store.events(after, EVENTS_PER_QUERY)?;
            let last = events.last().map_or(after, |e| e.number);
            if caller.role == Role::Tenant {
                events.retain(|e| e.vm.is_some_and(|vm| state.store.vm(vm).is_ok_and(|vm| caller.sees(&vm))));
                // A tenant does not learn the names of others' tokens.
                let own = |name: &String| {
                    caller.scope.as_ref().is_some_and(|tenant| state.is_token_of_tenant(name, tenant))
                };
                events.iter_mut().for_each(|event| event.actor = event.actor.take().filter(own));
            }
            Ok((events, last))
        });
        let (events, last) = found.await?;
        (self.ready, self.after) = (events.into(), last);
        Ok(())
    }

    async fn next(mut self) -> Option<(Result<sse::Event, Infallible>, Self)> {
        let mut changed = self.state.last_event.subscribe();
        let mut stopping = self.state.stopping.subscribe();
        let mut tokens = self.state.token_changes.subscribe();
        loop {
            if let Some(event) = self.ready.pop_front() {
                let number = event.number.to_string();
                let sent = sse::Event::default().id(number).event(&event.kind).json_data(&event).ok()?;
                return Some((Ok(sent), self));
            }
            let after = self.after;
            let left_s = self.caller.expires_at.map_or(i64::MAX, |end| end.saturating_sub(now()).max(0));
            let check_interval = TOKEN_CHECK_INTERVAL.min(Duration::from_secs(left_s as u64));
            tokio::select! {
                later = changed.wait_for(|last| *last > after) => { later.ok()?; }
                _ = stopping.wait_for(|s| *s) => return None,
                _ = tokens.changed() => {}
                // Another service may have removed the token from the shared database, or the token may have expired.
                () = tokio::time::sleep(check_interval) => {}
            }
            if !self.state.is_token_valid(&self.caller).await {
                return None;
            }
            if *changed.borrow() > self.after {
                self.read().await.ok()?;
            }
        }
    }
}

/// Streams events as they happen. A tenant receives only events of its virtual machines.
#[utoipa::path(get, path = "/v1/watch", operation_id = "watch_events", tag = "operation", params(EventQuery),
    responses((status = 200, body = Watched, content_type = "text/event-stream"), (status = "4XX", body = Problem)))]
pub(crate) async fn watch(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    headers: HeaderMap,
    QueryParams(since): QueryParams<EventQuery>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, HttpProblem> {
    let slot = WatchSlot::take(caller.tenant()?)?;
    let header = headers.get("last-event-id").and_then(|h| h.to_str().ok()?.parse::<i64>().ok());
    let after = header.or(since.after).unwrap_or_else(|| *state.last_event.borrow());
    let watcher = Watcher { state, caller, after, ready: VecDeque::new(), _slot: slot };
    Ok(Sse::new(stream::unfold(watcher, Watcher::next)).keep_alive(KeepAlive::default()))
}
