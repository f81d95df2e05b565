//! Route of the audit log.

use super::QueryParams;
use crate::access::{Caller, Role};
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{AuditPage, Problem, ProblemKind};
use axum::Json;
use axum::extract::State;
use longma_placement::store::AuditQuery;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Maximum number of records on a page.
const MAX_PAGE: usize = 1000;

/// Filter and paging parameters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditLogQuery {
    /// Only requests with the token of this name.
    actor: Option<String>,
    /// Only those at or after this time, in seconds since 1970.
    since: i64,
    /// Only those with a lower number: `next` of the previous page. 0 begins with the newest.
    #[param(minimum = 0)]
    before: i64,
    /// Maximum number of results, 1 to 1000; the default is 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Lists the requests that changed something or were refused, newest first.
#[utoipa::path(get, path = "/v1/audit-log", operation_id = "list_audit_log", tag = "access", params(AuditLogQuery),
    responses((status = 200, body = AuditPage), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    QueryParams(which): QueryParams<AuditLogQuery>,
) -> Result<Json<AuditPage>, HttpProblem> {
    caller.must_be(&[Role::Admin])?;
    let limit = which.limit.unwrap_or(100);
    let invalid = |problem: String| Err(HttpProblem::new(ProblemKind::InvalidQuery, problem));
    if !(1..=MAX_PAGE).contains(&limit) {
        return invalid(format!("limit: is {limit}; must be from 1 to {MAX_PAGE}"));
    }
    if which.before < 0 {
        return invalid(format!("before: is {}; must not be negative", which.before));
    }
    if which.actor.as_ref().is_some_and(|actor| actor.contains('\0')) {
        return invalid("actor: is not a valid name".into());
    }
    state.write_audit().await;
    // One extra record shows whether there is a next page.
    let query = AuditQuery { actor: which.actor, before: which.before, since: which.since, limit: limit + 1 };
    let mut items = state.with(move |state| state.store.audit_log(&query)).await?;
    let next = (items.len() > limit).then(|| items[limit - 1].number);
    items.truncate(limit);
    Ok(Json(AuditPage { items, next }))
}
