//! Routes for tokens and quotas.

use super::{Body, Path};
use crate::access::{Caller, Role, digest, new_token, now};
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{MadeToken, NewToken, Problem, ProblemKind, Tenants, TokenView, Tokens};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use longma_placement::name::name_problem;
use longma_placement::store::{Quota, Token};
use std::sync::Arc;

/// Longest lifetime of a token that expires: ten years, in seconds.
const MAX_LIFETIME_S: u64 = 10 * 365 * 86_400;

/// Lists tokens with role, scope, expiry and last use. The tokens themselves are not stored.
#[utoipa::path(get, path = "/v1/tokens", operation_id = "list_tokens", tag = "access", responses((status = 200, body = Tokens), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
) -> Result<Json<Tokens>, HttpProblem> {
    caller.must_be(&[Role::Admin])?;
    let kept = state.with(ServiceState::tokens_with_uses).await?;
    let view = |t: Token| TokenView {
        name: t.name,
        role: t.role,
        scope: t.scope,
        created_at: t.created_at,
        expires_at: t.expires_at,
        used_at: t.used_at,
    };
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
    let role = role.ok_or_else(|| {
        HttpProblem::field("role", "must be admin, operator, tenant, agent or scheduler".into())
    })?;
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
        (Role::Admin | Role::Operator | Role::Scheduler, Some(_)) => {
            let problem = "must be absent for admins, operators and schedulers";
            return Err(HttpProblem::field("scope", problem.into()));
        }
        (_, scope) => {
            if let Some(problem) = scope.and_then(name_problem) {
                return Err(HttpProblem::field("scope", problem));
            }
        }
    }
    if wanted.lifetime_s.is_some_and(|lifetime| !(1..=MAX_LIFETIME_S).contains(&lifetime)) {
        let problem = format!("must be from 1 to {MAX_LIFETIME_S}; omit it for a token that does not expire");
        return Err(HttpProblem::field("lifetime_s", problem));
    }
    caller.concerns(|| {
        let scope = wanted.scope.as_ref().map(|scope| format!(" for {scope}")).unwrap_or_default();
        format!("token {} with the role {}{scope}", wanted.name, role.name())
    });
    let token = new_token().map_err(|e| HttpProblem::new(ProblemKind::NoRandomNumbers, e.to_string()))?;
    let name = wanted.name.clone();
    let expires_at = wanted.lifetime_s.map(|lifetime| now() + lifetime as i64);
    let kept = Token {
        name: wanted.name,
        digest: digest(&token),
        role: role.name().into(),
        scope: wanted.scope,
        expires_at,
        ..Token::default()
    };
    state
        .with(move |state| {
            state.store.put_token(&kept)?;
            state.refresh_tokens()
        })
        .await?;
    Ok((StatusCode::CREATED, Json(MadeToken { name, token, expires_at })))
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

/// Sets the quota of a tenant. Existing virtual machines that exceed it continue to run.
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
    check_quota(&quota)?;
    caller.concerns(|| quota_in_words(&quota));
    state.with(move |state| state.store.set_quota(&tenant, &quota)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check_quota(quota: &Quota) -> Result<(), HttpProblem> {
    if quota.memory_mib.is_none_or(|mib| i64::try_from(mib).is_ok()) {
        return Ok(());
    }
    let problem = format!("must be at most {}; omit it for no limit", i64::MAX);
    Err(HttpProblem::field("memory_mib", problem))
}

/// The limits of a quota in words, for the audit log.
fn quota_in_words(quota: &Quota) -> String {
    let limit = |limit: Option<u64>| limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string());
    let (vms, vcpus) = (quota.vms.map(u64::from), quota.vcpus.map(u64::from));
    let memory = limit(quota.memory_mib);
    format!("quota: virtual machines {}, virtual CPUs {}, MiB {memory}", limit(vms), limit(vcpus))
}

/// Shows the quota assigned to a tenant with its first virtual machine.
#[utoipa::path(get, path = "/v1/default-quota", operation_id = "show_default_quota", tag = "access",
    responses((status = 200, body = Quota), (status = "4XX", body = Problem)))]
pub(crate) async fn default_quota(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
) -> Result<Json<Quota>, HttpProblem> {
    caller.must_be(&[Role::Admin, Role::Operator])?;
    Ok(Json(state.with(|state| state.store.default_quota()).await?))
}

/// Sets the quota assigned to a tenant with its first virtual machine. Present tenants keep theirs.
#[utoipa::path(put, path = "/v1/default-quota", operation_id = "set_default_quota", tag = "access", request_body = Quota,
    responses((status = 204), (status = "4XX", body = Problem)))]
pub(crate) async fn set_default_quota(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Body(quota): Body<Quota>,
) -> Result<StatusCode, HttpProblem> {
    caller.must_be(&[Role::Admin])?;
    check_quota(&quota)?;
    caller.concerns(|| quota_in_words(&quota));
    state.with(move |state| state.store.set_default_quota(&quota)).await?;
    Ok(StatusCode::NO_CONTENT)
}
