//! The REST API: routes, common extractors, authentication and logging.
//!
//! Source: RFC 9110; RFC 9457 for error answers.

mod agent;
mod audit_log;
mod body;
mod dead_hosts;
mod document;
mod hosts;
mod kubernetes;
mod migrate;
mod operate;
mod page;
mod tokens;
mod vms;
mod watch;

use crate::access::{Caller, Role, digest, now};
use crate::client::{PROTOCOL_HEADER, update_service_first};
use crate::oidc::{MAX_TOKEN_BYTES, Oidc};
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{PROTOCOL, Problem, ProblemKind, plain};
use axum::Router;
use axum::extract::{FromRequestParts, MatchedPath, Query, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
pub use body::key_given_twice;
use body::{Body, RawBody, parse};
use document::complete_document;
use longma_placement::store::AuditRecord;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Query parameters.
pub(crate) struct QueryParams<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<ServiceState>> for QueryParams<T> {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<ServiceState>) -> Result<Self, HttpProblem> {
        let asked = Query::try_from_uri(&parts.uri);
        asked
            .map(|Query(value)| Self(value))
            .map_err(|e| HttpProblem::new(ProblemKind::InvalidQuery, e.body_text()))
    }
}

/// Path parameters.
pub(crate) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<ServiceState>> for Path<T> {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<ServiceState>) -> Result<Self, HttpProblem> {
        let named = axum::extract::Path::from_request_parts(parts, state).await;
        named
            .map(|axum::extract::Path(name)| Self(name))
            .map_err(|e| HttpProblem::new(ProblemKind::WrongPath, e.body_text()))
    }
}

impl FromRequestParts<Arc<ServiceState>> for Caller {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<ServiceState>) -> Result<Self, HttpProblem> {
        let refused = |detail: &str| HttpProblem::new(ProblemKind::NotAuthenticated, detail.into());
        let header = parts.headers.get(AUTHORIZATION).and_then(|h| h.to_str().ok());
        let header = header.ok_or_else(|| refused("send the header `Authorization: Bearer TOKEN`"))?;
        let route = parts.extensions.get::<MatchedPath>();
        let takes_basic = route.is_some_and(|route| route.as_str().starts_with("/v1/kubernetes/"));
        if header.len() > MAX_TOKEN_BYTES {
            return Err(refused(&format!("the header Authorization is longer than {MAX_TOKEN_BYTES} bytes")));
        }
        let token = token_of(header, takes_basic);
        let token =
            token.ok_or_else(|| refused("the header Authorization does not have the form `Bearer TOKEN`"))?;
        let caller = match &state.oidc {
            Some(oidc) if Oidc::is_jwt(&token) => oidc.caller(&token).await?,
            _ => {
                let caller = state.caller(&digest(&token)).await?;
                caller.ok_or_else(|| refused("this token is unknown or was removed"))?
            }
        };
        if let Some(cell) = parts.extensions.get::<CallerCell>() {
            // The cell of a request is empty before its only extraction.
            let _ = cell.0.set(caller.clone());
        }
        if caller.role == Role::Agent {
            // Before the body is parsed, since a newer agent sends fields that this service does not know.
            let agent: Option<u32> =
                parts.headers.get(PROTOCOL_HEADER).and_then(|h| h.to_str().ok()?.parse().ok());
            if let Some(agent) = agent.filter(|version| *version > PROTOCOL) {
                let detail = update_service_first(agent, Some(PROTOCOL));
                return Err(HttpProblem::new(ProblemKind::WrongState, detail));
            }
        }
        if let Some(late) = caller.expired_for_s() {
            let detail = format!("this token expired {late} s ago: ask an admin for a new one");
            return Err(HttpProblem::new(ProblemKind::TokenExpired, detail));
        }
        if !caller.is_jwt {
            state.note_token_use(&caller.digest);
        }
        Ok(caller)
    }
}

/// The token in the header Authorization. kube-scheduler can send no header of its own, only the user and password of the
/// extender's URL, so `takes_basic` also accepts a token as password of HTTP Basic authentication.
///
/// Source: RFC 6750; RFC 7617.
fn token_of(header: &str, takes_basic: bool) -> Option<String> {
    let (scheme, credentials) = header.split_once(' ')?;
    let credentials = credentials.trim();
    // Scheme names are case-insensitive (RFC 9110, 11.1).
    let token = if scheme.eq_ignore_ascii_case("Bearer") {
        credentials.to_string()
    } else if takes_basic && scheme.eq_ignore_ascii_case("Basic") {
        let text = String::from_utf8(BASE64_STANDARD.decode(credentials).ok()?).ok()?;
        text.split_once(':')?.1.to_string()
    } else {
        return None;
    };
    Some(token).filter(|token| token.len() <= 256 || Oidc::is_jwt(token))
}

/// Passes the caller of a request to the middleware.
#[derive(Clone, Default)]
struct CallerCell(Arc<OnceLock<Caller>>);

/// Address of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub SocketAddr);

/// Maximum number of characters of a path in the service's log and in the audit log.
const MAX_PATH_CHARS: usize = 200;

/// Routes whose POST requests change nothing that the audit log records: agents report every few seconds, and events
/// name the actor of their changes.
const NOT_AUDITED: [&str; 6] = [
    "/v1/explain",
    "/v1/agents/{host}/report",
    "/v1/agents/{host}/changes",
    "/v1/agents/{host}/migrations/{vm}/prepare",
    "/v1/kubernetes/filter",
    "/v1/kubernetes/prioritize",
];

/// Returns whether the audit log records a request: it may have changed something, or the caller was not entitled to it.
fn is_audited(
    method: &axum::http::Method,
    route: Option<&str>,
    caller: Option<&Caller>,
    status: u16,
) -> bool {
    let may_change = !method.is_safe() && route.is_some_and(|route| !NOT_AUDITED.contains(&route));
    // 503 means that nothing was changed and the database is probably unreachable.
    (may_change && caller.is_some() && status != 503) || matches!(status, 401 | 403)
}

/// Counts every answer, logs errors and writes the audit log.
async fn record_request(
    State(state): State<Arc<ServiceState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let cell = CallerCell::default();
    request.extensions_mut().insert(cell.clone());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let peer = request.extensions().get::<Peer>().map(|p| p.0);
    let mut response = next.run(request).await;
    let status = response.status().as_u16();
    state.metrics.record_answer(&method, status, began.elapsed().as_secs_f64());
    if path.starts_with("/v1/agents/") {
        response.headers_mut().insert(PROTOCOL_HEADER, PROTOCOL.into());
    }
    let why = response.extensions().get::<Problem>().map(Problem::summary);
    let peer = peer.map(|p| p.to_string()).unwrap_or_default();
    if status >= 400 {
        // Debug format escapes control characters, so neither a path nor a detail can forge a log line.
        let path: String = path.chars().take(MAX_PATH_CHARS).collect();
        (state.log)(&format!(
            "{status} {method} {path:?} from {peer}: {:?}",
            why.as_deref().unwrap_or_default()
        ));
    }
    let caller = cell.0.get();
    if is_audited(&method, route.as_ref().map(MatchedPath::as_str), caller, status) {
        let record = AuditRecord {
            actor: caller.map(|c| c.name.clone()),
            role: caller.map(|c| c.role.name().into()),
            scope: caller.and_then(|c| c.scope.clone()),
            peer,
            action: plain(&format!("{method} {path}{query}")).chars().take(MAX_PATH_CHARS).collect(),
            object: plain(caller.map_or("", |c| c.object())),
            status,
            problem: why.map(|why| plain(&why)),
            at: now(),
            number: 0,
        };
        // The event of such a change names the actor and is already durable; a second commit would double the time of
        // a request. The events of a rebind are those of the agent.
        let of_vm = |route: &str| {
            route.starts_with("/v1/vms") && !route.ends_with("/rebind") && !route.ends_with("/migrate")
        };
        let has_event = status < 400 && route.as_ref().is_some_and(|route| of_vm(route.as_str()));
        state.record_audit(caller, record, !has_event).await;
    }
    response
}

fn routes_with_document() -> OpenApiRouter<Arc<ServiceState>> {
    OpenApiRouter::new()
        .routes(routes!(vms::list, vms::create))
        .routes(routes!(vms::show, vms::delete))
        .routes(routes!(vms::start))
        .routes(routes!(vms::stop))
        .routes(routes!(vms::rebind))
        .routes(routes!(migrate::migrate))
        .routes(routes!(vms::resize))
        .routes(routes!(hosts::list))
        .routes(routes!(hosts::show, dead_hosts::remove))
        .routes(routes!(dead_hosts::force_down))
        .routes(routes!(dead_hosts::evacuate))
        .routes(routes!(hosts::drain))
        .routes(routes!(hosts::undrain))
        .routes(routes!(hosts::defragment))
        .routes(routes!(operate::alarms))
        .routes(routes!(operate::explain))
        .routes(routes!(operate::audit))
        .routes(routes!(operate::metrics))
        .routes(routes!(operate::health))
        .routes(routes!(watch::watch))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::remove))
        .routes(routes!(tokens::tenants))
        .routes(routes!(tokens::set_quota))
        .routes(routes!(tokens::default_quota, tokens::set_default_quota))
        .routes(routes!(audit_log::list))
        .routes(routes!(kubernetes::filter))
        .routes(routes!(kubernetes::prioritize))
        .routes(routes!(agent::report))
        .routes(routes!(agent::vms))
        .routes(routes!(agent::made))
        .routes(routes!(agent::database))
        .routes(routes!(agent::change))
        .routes(routes!(agent::prepare))
}

/// The OpenAPI document of the API.
pub fn openapi() -> OpenApi {
    complete_document(routes_with_document().split_for_parts().1)
}

/// All routes.
pub(crate) fn router(state: Arc<ServiceState>) -> Router {
    let (routes, document) = routes_with_document().split_for_parts();
    let document = Arc::new(complete_document(document));
    let unknown = || async { HttpProblem::unknown("such path; GET /openapi.json lists them") };
    let method = || async {
        HttpProblem::new(ProblemKind::WrongMethod, "GET /openapi.json lists the allowed methods".into())
    };
    routes
        .route(
            "/openapi.json",
            axum::routing::get(move || {
                let document = document.clone();
                async move { axum::Json((*document).clone()) }
            }),
        )
        .route("/", axum::routing::get(page::page))
        .fallback(unknown)
        .method_not_allowed_fallback(method)
        .layer(axum::middleware::from_fn_with_state(state.clone(), record_request))
        .with_state(state)
}
