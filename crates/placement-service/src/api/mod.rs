//! The REST API: routes, and what they have in common.
//! Not what is done: that is the desk's, the scheduler's and the store's.
//! Source: RFC 9110; RFC 9457 for answers that refuse.

mod agent;
mod document;
mod hosts;
mod operate;
mod page;
mod tokens;
mod vms;
mod watch;

use crate::access::{Caller, digest};
use crate::desk::Desk;
use crate::refusal::Refusal;
use crate::wire::Problem;
use axum::Router;
use axum::extract::{FromRequest, FromRequestParts, Query, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use document::finished;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The longest body: the largest domain XML with room for its escapes.
pub(crate) const MOST_BYTES: usize = 1 << 20;
/// A body must be here after so long.
pub(crate) const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// A JSON body: of the right kind, not too long, here in time, and without a field that is unknown.
pub(crate) struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<Desk>> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &Arc<Desk>) -> Result<Self, Refusal> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|h| h.to_str().ok()).unwrap_or("");
        if kind.split(';').next().map(str::trim) != Some("application/json") {
            return Err(Refusal::new(415, "wrong kind of body", "send it as application/json".into()));
        }
        let read = axum::body::to_bytes(request.into_body(), MOST_BYTES);
        let bytes = match tokio::time::timeout(BODY_PATIENCE, read).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(_)) => {
                let detail = format!("the body is cut off or has more than {MOST_BYTES} bytes");
                return Err(Refusal::new(413, "body too long", detail));
            }
            Err(_) => {
                let detail = format!("the body took more than {} s", BODY_PATIENCE.as_secs());
                return Err(Refusal::new(408, "too slow", detail));
            }
        };
        parse(&bytes).map(Self)
    }
}

/// A value from JSON; what is wrong is told with its place. `2.0` is the whole number 2, as it is to JSON Schema.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    parse_strictly(bytes).or_else(|refusal| {
        let whole = || {
            let mut value: Value = serde_json::from_slice(bytes).ok()?;
            let changed = make_whole(&mut value);
            changed.then(|| serde_json::from_value(value).ok())?
        };
        whole().ok_or(refusal)
    })
}

/// Makes numbers whole that are so but for how they are written; whether there were any.
fn make_whole(value: &mut Value) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => {
            // Up to here every whole number is one of these, and is itself.
            let whole = number.as_f64().filter(|x| x.fract() == 0.0 && x.abs() <= (1u64 << 53) as f64);
            let Some(whole) = whole else { return false };
            *value = (whole as i64).into();
            true
        }
        Value::Array(all) => all.iter_mut().fold(false, |changed, v| make_whole(v) | changed),
        Value::Object(all) => all.values_mut().fold(false, |changed, v| make_whole(v) | changed),
        _ => false,
    }
}

fn parse_strictly<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let field = error.path().to_string();
        let inner = error.into_inner();
        match inner.classify() {
            serde_json::error::Category::Data => Refusal::field(&field, inner.to_string()),
            _ => Refusal::new(400, "not JSON", inner.to_string()),
        }
    })?;
    text.end().map_err(|error| Refusal::new(400, "not JSON", error.to_string()))?;
    // The library would take a list of a structure's fields for it.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(Refusal::field("", "the body must be an object, not a list".into()));
    }
    Ok(value)
}

/// The words after `?`.
pub(crate) struct Asked<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<Desk>> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Desk>) -> Result<Self, Refusal> {
        let asked = Query::try_from_uri(&parts.uri);
        asked.map(|Query(value)| Self(value)).map_err(|e| Refusal::new(400, "wrong query", e.body_text()))
    }
}

impl FromRequestParts<Arc<Desk>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, desk: &Arc<Desk>) -> Result<Self, Refusal> {
        let refused = |detail: &str| Refusal::new(401, "who are you?", detail.into());
        let header = parts.headers.get(AUTHORIZATION).and_then(|h| h.to_str().ok());
        let header = header.ok_or_else(|| refused("send the header `Authorization: Bearer TOKEN`"))?;
        let token = header.strip_prefix("Bearer ").map(str::trim).filter(|t| t.len() <= 256);
        let token = token.ok_or_else(|| refused("the header Authorization is not `Bearer TOKEN`"))?;
        let caller = desk.caller(&digest(token)).await?;
        caller.ok_or_else(|| refused("this token is not known here, or was removed"))
    }
}

/// Whose connection it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub SocketAddr);

/// Counts every answer, and logs those that refuse.
async fn account(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let peer = request.extensions().get::<Peer>().map(|p| p.0);
    let response = next.run(request).await;
    let status = response.status().as_u16();
    desk.metrics.answered(&method, status, began.elapsed().as_secs_f64());
    if status >= 400 {
        let why = response.extensions().get::<Problem>().map(|p| p.detail.clone()).unwrap_or_default();
        let peer = peer.map(|p| p.to_string()).unwrap_or_default();
        // As Rust text: neither a path nor a detail can break out of its line.
        let path: String = path.chars().take(200).collect();
        (desk.log)(&format!("{status} {method} {path:?} from {peer}: {why:?}"));
    }
    response
}

fn described() -> OpenApiRouter<Arc<Desk>> {
    OpenApiRouter::new()
        .routes(routes!(vms::list, vms::create))
        .routes(routes!(vms::show, vms::delete))
        .routes(routes!(vms::start))
        .routes(routes!(vms::stop))
        .routes(routes!(vms::rebind))
        .routes(routes!(vms::resize))
        .routes(routes!(hosts::list))
        .routes(routes!(hosts::show))
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
        .routes(routes!(agent::report))
        .routes(routes!(agent::vms))
        .routes(routes!(agent::change))
}

/// The OpenAPI document of the API.
pub fn openapi() -> OpenApi {
    finished(described().split_for_parts().1)
}

/// All routes.
pub(crate) fn router(desk: Arc<Desk>) -> Router {
    let (routes, document) = described().split_for_parts();
    let document = Arc::new(finished(document));
    let unknown = || async { Refusal::unknown("such path; GET /openapi.json lists them") };
    let method =
        || async { Refusal::new(405, "wrong method", "GET /openapi.json lists what there is".into()) };
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
        .layer(axum::middleware::from_fn_with_state(desk.clone(), account))
        .with_state(desk)
}
