//! Routes for operators: alarms, explanations, audits, metrics, health.

use super::{QueryParams, RawBody};
use crate::access::{Caller, Role};
use crate::metrics::StateGauges;
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{Alarms, Audit, Audited, Problem, ProblemKind};
use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use longma_placement::Request;
use longma_placement::scheduler::Explanation;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Filter parameters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct AlarmQuery {
    /// Whether to include cleared alarms.
    all: bool,
    /// Maximum number of results, 1 to 1000; the default is 100.
    limit: Option<usize>,
}

/// Lists alarms, newest first.
#[utoipa::path(get, path = "/v1/alarms", operation_id = "list_alarms", tag = "operation", params(AlarmQuery),
    responses((status = 200, body = Alarms), (status = "4XX", body = Problem)))]
pub(crate) async fn alarms(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    QueryParams(which): QueryParams<AlarmQuery>,
) -> Result<Json<Alarms>, HttpProblem> {
    caller.must_be(&[Role::Admin, Role::Operator])?;
    let limit = which.limit.unwrap_or(100).clamp(1, 1000);
    let mut items = state.with(move |state| state.store.alarms(!which.all, limit)).await?;
    if let Some(alarm) = state.database_moved_alarm() {
        // This alarm is not in the store, because the database cannot be written.
        items.insert(0, alarm);
        items.truncate(limit);
    }
    Ok(Json(Alarms { items }))
}

/// Scope of an explanation.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExplainQuery {
    /// Only this host.
    host: Option<String>,
    /// Maximum number of hosts to list, 1 to 1000; the default is 10. The counts cover all hosts.
    limit: Option<usize>,
}

/// Explains which hosts and nodes a request fits on and why the others are rejected. Tenants receive only the counts.
#[utoipa::path(post, path = "/v1/explain", operation_id = "explain_request", tag = "operation", request_body = Request, params(ExplainQuery),
    responses((status = 200, body = Explanation), (status = "4XX", body = Problem)))]
pub(crate) async fn explain(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    QueryParams(how): QueryParams<ExplainQuery>,
    RawBody(body): RawBody,
) -> Result<Json<Explanation>, HttpProblem> {
    let request = super::vms::request_of(&caller, &body)?;
    let limit = if caller.tenant()?.is_some() { 0 } else { how.limit.unwrap_or(10).clamp(1, 1000) };
    let own = caller.tenant()?.is_none_or(|own| own == request.tenant);
    if !own {
        return Err(HttpProblem::new(ProblemKind::NotAllowed, "this token is for another tenant".into()));
    }
    let host = how.host.filter(|_| caller.role != Role::Tenant);
    let explanation = state.worker.query(move |allocator| {
        let known = host.as_ref().is_none_or(|h| allocator.scheduler().inventory().usage(h).is_some());
        known.then(|| allocator.scheduler().explain(&request, host.as_deref(), limit))
    });
    let explanation = explanation.await?.ok_or_else(|| HttpProblem::unknown("host of this name"))?;
    explanation.map(Json).map_err(|fields| HttpProblem::fields("the request is invalid", fields))
}

/// Scope of an audit.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct HostQuery {
    /// Only this host.
    host: Option<String>,
}

/// Lists differences from the intended state: threads, memory and domains as last reported by the agents, and the
/// database's totals.
#[utoipa::path(get, path = "/v1/audit", operation_id = "show_audit", tag = "operation", params(HostQuery),
    responses((status = 200, body = Audit), (status = "4XX", body = Problem)))]
pub(crate) async fn audit(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    QueryParams(which): QueryParams<HostQuery>,
) -> Result<Json<Audit>, HttpProblem> {
    caller.must_be(&[Role::Admin, Role::Operator])?;
    let (names, database) = state
        .with(move |state| {
            let names = match which.host {
                Some(name) => vec![state.store.host(&name)?.host.name],
                None => state.store.host_names()?,
            };
            Ok((names, state.store.check()?))
        })
        .await?;
    let audited = |name: String| {
        state.host(&name, |h| Audited {
            host: name.clone(),
            age_s: h.audited.map(|at| at.elapsed().as_secs()),
            findings: h.findings.clone(),
            problems: h.all_problems(),
            foreign: h.foreign.clone(),
        })
    };
    Ok(Json(Audit { hosts: names.into_iter().map(audited).collect(), database }))
}

/// Extent of the metrics.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct MetricsQuery {
    /// Whether to include the gauges of single hosts and nodes: about 60 lines for a host of eight nodes. The default is
    /// true.
    hosts: bool,
}

impl Default for MetricsQuery {
    fn default() -> Self {
        Self { hosts: true }
    }
}

/// Number of hosts read at once, so that decisions do not wait for a scrape.
const HOSTS_PER_READ: usize = 100;

/// Returns metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", operation_id = "show_metrics", tag = "operation", params(MetricsQuery), responses((status = 200, body = String, content_type = "application/openmetrics-text"), (status = "4XX", body = Problem)))]
pub(crate) async fn metrics(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    QueryParams(extent): QueryParams<MetricsQuery>,
) -> Result<Response, HttpProblem> {
    caller.must_be(&[Role::Admin, Role::Operator])?;
    let counts = state.with(|state| state.store.counts()).await?;
    let gauges = StateGauges::new(counts, state.database_moved_alarm().is_some());
    if extent.hosts {
        gauges.add_alarms(&state.with(|state| state.store.alarms(true, 0)).await?);
        let mut after = String::new();
        loop {
            let from = after.clone();
            let page = state.with(move |state| state.store.hosts_after(&from, HOSTS_PER_READ)).await?;
            let Some(last) = page.last() else { break };
            after.clone_from(&last.host.name);
            super::hosts::views(&state, page).await?.iter().for_each(|view| gauges.add_host(view));
        }
    }
    let text = state.metrics.text(&gauges);
    let text = text.map_err(|error| HttpProblem::new(ProblemKind::Internal, error.to_string()))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

/// Reports whether the service is able to read and write. Requires no token.
#[utoipa::path(get, path = "/healthz", operation_id = "check_health", tag = "operation", security(()),
    responses((status = 200, body = String, content_type = "text/plain"), (status = 503, body = Problem)))]
pub(crate) async fn health(State(state): State<Arc<ServiceState>>) -> Result<&'static str, HttpProblem> {
    match state.database_moved_alarm() {
        Some(_) => {
            Err(HttpProblem::new(ProblemKind::DatabaseMoved, "see the service's log for what to do".into()))
        }
        None => Ok("ok\n"),
    }
}
