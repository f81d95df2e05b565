//! Routes for tokens and quotas.

use super::{Body, Path};
use crate::access::{Caller, Role, digest, new_token};
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{MadeToken, NewToken, Problem, ProblemKind, Tenants, TokenView, Tokens};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use longma_placement::name::name_problem;
use longma_placement::store::{Quota, Token};
use std::sync::Arc;

/// Lists tokens by name, role and scope. The tokens themselves are not stored.
#[utoipa::path(get, path = "/v1/tokens", operation_id = "list_tokens", tag = "access", responses((status = 200, body = Tokens), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
) -> Result<Json<Tokens>, HttpProblem> {
    caller.must_be(&[Role::Admin])?;
    let kept = state.with(|state| state.store.tokens()).await?;
    let view = |t: Token| TokenView { name: t.name, role: t.role, scope: t.scope, created_at: t.created_at };
    Ok(Json(Tokens { items: kept.into_iter().map(view).collect() }))
}

/// Creates a token. It is shown only in this answer.
#[utoipa::path(post, path = "/v1/tokens", operation_id = "create_token", tag = "access", request_body = NewToken,
    responses((status = 201, body = MadeToken), (status = "4XX", body = Problem)))]
pub(crate) async fn create(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Body(wanted): Body<NewToken>,
) -> Result<(StatusCode, Json<MadeToken>), HttpProblem> {
    caller.must_be(&[Role::Admin])?;
    let role = Role::named(&wanted.role);
    let role =
        role.ok_or_else(|| HttpProblem::field("role", "must be admin, operator, tenant or agent".into()))?;
    if let Some(problem) = name_problem(&wanted.name) {
        return Err(HttpProblem::field("name", problem));
    }
    match (role, wanted.scope.as_deref()) {
        (Role::Tenant | Role::Agent, None) => {
            return Err(HttpProblem::field(
                "scope",
                "must name the tenant or, for an agent, the host".into(),
            ));
        }
        (Role::Admin | Role::Operator, Some(_)) => {
            return Err(HttpProblem::field("scope", "must be absent for admins and operators".into()));
        }
        (_, scope) => {
            if let Some(problem) = scope.and_then(name_problem) {
                return Err(HttpProblem::field("scope", problem));
            }
        }
    }
    let token = new_token().map_err(|e| HttpProblem::new(ProblemKind::NoRandomNumbers, e.to_string()))?;
    let name = wanted.name.clone();
    let kept = Token {
        name: wanted.name,
        digest: digest(&token),
        role: role.name().into(),
        scope: wanted.scope,
        created_at: 0,
    };
    state
        .with(move |state| {
            state.store.put_token(&kept)?;
            state.refresh_tokens()
        })
        .await?;
    Ok((StatusCode::CREATED, Json(MadeToken { name, token })))
}

/// Deletes a token. Requests with it are rejected from then on.
#[utoipa::path(delete, path = "/v1/tokens/{name}", operation_id = "remove_token", tag = "access", params(("name" = String, Path, description = "its name")),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub(crate) async fn remove(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    caller.must_be(&[Role::Admin])?;
    if name == caller.name {
        return Err(HttpProblem::new(
            ProblemKind::InUse,
            "a token cannot remove itself: use another admin's token".into(),
        ));
    }
    let was = state.with(move |state| {
        let was = state.store.remove_token(&name)?;
        state.refresh_tokens()?;
        Ok(was)
    });
    if was.await? { Ok(StatusCode::NO_CONTENT) } else { Err(HttpProblem::unknown("token of this name")) }
}

/// Lists tenants with their usage and quotas. A tenant sees only itself.
#[utoipa::path(get, path = "/v1/tenants", operation_id = "list_tenants", tag = "access", responses((status = 200, body = Tenants), (status = "4XX", body = Problem)))]
pub(crate) async fn tenants(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
) -> Result<Json<Tenants>, HttpProblem> {
    let own = caller.tenant()?.map(str::to_string);
    let mut items = state.with(|state| state.store.tenants()).await?;
    items.retain(|t| own.as_ref().is_none_or(|own| *own == t.tenant));
    Ok(Json(Tenants { items }))
}

/// Sets the quota of a tenant. Existing virtual machines above it are kept.
#[utoipa::path(put, path = "/v1/tenants/{tenant}/quota", operation_id = "set_quota", tag = "access", params(("tenant" = String, Path, description = "its name")),
    request_body = Quota, responses((status = 204), (status = "4XX", body = Problem)))]
pub(crate) async fn set_quota(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(tenant): Path<String>,
    Body(quota): Body<Quota>,
) -> Result<StatusCode, HttpProblem> {
    caller.must_be(&[Role::Admin])?;
    if let Some(problem) = name_problem(&tenant) {
        return Err(HttpProblem::field("tenant", problem));
    }
    if quota.memory_mib.is_some_and(|mib| i64::try_from(mib).is_err()) {
        let problem = format!("must be at most {}; omit it for no limit", i64::MAX);
        return Err(HttpProblem::field("memory_mib", problem));
    }
    state.with(move |state| state.store.set_quota(&tenant, &quota)).await?;
    Ok(StatusCode::NO_CONTENT)
}
