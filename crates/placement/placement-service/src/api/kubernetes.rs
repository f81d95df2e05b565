//! Routes for kube-scheduler: the verbs of its extender.
//!
//! Source: Kubernetes, pkg/scheduler/extender.go: POST with JSON; any status but 200 is an error of the extender.

use super::body::{BODY_TIMEOUT, must_be_json};
use crate::access::{Caller, Role};
use crate::kubernetes;
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{Problem, ProblemKind};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Maximum size of a body: some hundred complete nodes.
const MAX_BODY_BYTES: usize = 8 << 20;
/// Number of requests that are read and answered at once, since they are large. kube-scheduler sends one at a time.
const MAX_REQUESTS: usize = 2;
/// How long a request waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);

static TURNS: Semaphore = Semaphore::const_new(MAX_REQUESTS);

async fn answer(
    caller: Caller,
    request: Request,
    decide: fn(&[u8]) -> Result<String, String>,
) -> Result<Response, HttpProblem> {
    caller.must_be(&[Role::Admin, Role::Operator, Role::Scheduler])?;
    must_be_json(request.headers())?;
    let turn = tokio::time::timeout(TURN_TIMEOUT, TURNS.acquire()).await;
    let busy = || HttpProblem::new(ProblemKind::Busy, "too many requests of schedulers; try again".into());
    let _turn = turn.map_err(|_| busy())?.map_err(|_| busy())?;
    let body: Bytes =
        match tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(request.into_body(), MAX_BODY_BYTES))
            .await
        {
            Ok(Ok(body)) => body,
            Ok(Err(_)) => {
                let detail = format!("the body is cut off or has more than {MAX_BODY_BYTES} bytes");
                return Err(HttpProblem::new(ProblemKind::BodyTooLong, detail));
            }
            Err(_) => {
                let detail = format!("the body took more than {} s", BODY_TIMEOUT.as_secs());
                return Err(HttpProblem::new(ProblemKind::TooSlow, detail));
            }
        };
    let decided = tokio::task::spawn_blocking(move || decide(&body)).await;
    let text = decided
        .map_err(|error| HttpProblem::new(ProblemKind::Internal, error.to_string()))?
        .map_err(|problem| HttpProblem::field("", problem))?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// Filters the nodes that a pod may run on, for kube-scheduler: `ExtenderArgs` in, `ExtenderFilterResult` out. Also takes
/// HTTP Basic authentication with the token as password.
#[utoipa::path(post, path = "/v1/kubernetes/filter", operation_id = "filter_kubernetes_nodes", tag = "kubernetes", request_body = Value,
    responses((status = 200, body = Value), (status = "4XX", body = Problem)))]
pub(crate) async fn filter(
    State(_): State<Arc<ServiceState>>,
    caller: Caller,
    request: Request,
) -> Result<Response, HttpProblem> {
    answer(caller, request, kubernetes::filter).await
}

/// Scores the nodes that a pod may run on, for kube-scheduler: `ExtenderArgs` in, `HostPriorityList` out. Also takes HTTP
/// Basic authentication with the token as password.
#[utoipa::path(post, path = "/v1/kubernetes/prioritize", operation_id = "prioritize_kubernetes_nodes", tag = "kubernetes", request_body = Value,
    responses((status = 200, body = Value), (status = "4XX", body = Problem)))]
pub(crate) async fn prioritize(
    State(_): State<Arc<ServiceState>>,
    caller: Caller,
    request: Request,
) -> Result<Response, HttpProblem> {
    answer(caller, request, kubernetes::prioritize).await
}
