//! Events as they happen, by server-sent events.
//! Not their recording: that is the store's.
//! Source: the HTML standard, "Server-sent events".

use super::Asked;
use crate::access::{Caller, Role};
use crate::desk::Desk;
use crate::refusal::Refusal;
use crate::wire::{Problem, Watched};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream;
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use utoipa::IntoParams;

/// Watchers at once.
const MOST: usize = 256;
/// Events that are read at once.
const TOGETHER: usize = 500;

static WATCHERS: AtomicUsize = AtomicUsize::new(0);

/// One of the watchers that there may be.
struct Seat;

impl Seat {
    fn take() -> Result<Self, Refusal> {
        let free =
            WATCHERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < MOST).then_some(n + 1));
        free.map(|_| Self)
            .map_err(|_| Refusal::new(503, "busy", format!("{MOST} watch already; try again later")))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        WATCHERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// From where on.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Since {
    /// Number of the last event that is known; from now on if left out. The header Last-Event-ID says the same and counts more.
    after: Option<i64>,
}

struct Watcher {
    desk: Arc<Desk>,
    caller: Caller,
    after: i64,
    ready: VecDeque<Watched>,
    _seat: Seat,
}

impl Watcher {
    /// Reads what came after the last event, without what the caller must not see.
    async fn read(&mut self) -> Result<(), Refusal> {
        let (after, caller) = (self.after, self.caller.clone());
        let found = self.desk.with(move |d| {
            let mut events = d.store.events(after, TOGETHER)?;
            let last = events.last().map_or(after, |e| e.number);
            if caller.role == Role::Tenant {
                events.retain(|e| e.vm.is_some_and(|vm| d.store.vm(vm).is_ok_and(|vm| caller.sees(&vm))));
            }
            Ok((events, last))
        });
        let (events, last) = found.await?;
        (self.ready, self.after) = (events.into(), last);
        Ok(())
    }

    async fn next(mut self) -> Option<(Result<sse::Event, Infallible>, Self)> {
        let mut changed = self.desk.last_event.subscribe();
        let mut stopping = self.desk.stopping.subscribe();
        loop {
            if let Some(event) = self.ready.pop_front() {
                let number = event.number.to_string();
                let sent = sse::Event::default().id(number).event(&event.kind).json_data(&event).ok()?;
                return Some((Ok(sent), self));
            }
            let after = self.after;
            tokio::select! {
                later = changed.wait_for(|last| *last > after) => { later.ok()?; }
                _ = stopping.wait_for(|s| *s) => return None,
            }
            if !self.desk.knows(&self.caller).await {
                return None;
            }
            self.read().await.ok()?;
        }
    }
}

/// Sends events as they happen; a tenant is sent its own virtual machines' only.
#[utoipa::path(get, path = "/v1/watch", tag = "operation", params(Since),
    responses((status = 200, body = Watched, content_type = "text/event-stream"), (status = "4XX", body = Problem)))]
pub(crate) async fn watch(
    State(desk): State<Arc<Desk>>,
    caller: Caller,
    headers: HeaderMap,
    Asked(since): Asked<Since>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Refusal> {
    caller.tenant()?;
    let header = headers.get("last-event-id").and_then(|h| h.to_str().ok()?.parse::<i64>().ok());
    let after = header.or(since.after).unwrap_or_else(|| *desk.last_event.borrow());
    let watcher = Watcher { desk, caller, after, ready: VecDeque::new(), _seat: Seat::take()? };
    Ok(Sse::new(stream::unfold(watcher, Watcher::next)).keep_alive(KeepAlive::default()))
}
