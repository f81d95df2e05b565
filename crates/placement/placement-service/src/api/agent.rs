//! Routes for agents on other machines: their host's virtual machines, state changes, reports and orders. An agent's
//! token gives access to one host only.

use super::{Body, Path, QueryParams};
use crate::access::{Caller, Role};
use crate::client::MACHINE_HEADER;
use crate::problem::HttpProblem;
use crate::state::MAX_WAIT;
use crate::state::SECOND_AGENT;
use crate::state::ServiceState;
use crate::wire::{AgentChange, AgentOrders, AgentReport, Preparation, Problem, ProblemKind, plain};
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use longma_placement::store::{StoreError, Vm, VmId};
use std::sync::Arc;
use std::time::Duration;

/// Checks that the caller is the agent of this host and runs on the machine that manages the host. A token copied to
/// another machine must not start the same virtual machines there.
async fn require_agent_of(
    state: &Arc<ServiceState>,
    caller: &Caller,
    host: &str,
    headers: &HeaderMap,
) -> Result<(), HttpProblem> {
    caller.must_be(&[Role::Agent])?;
    if caller.scope.as_deref() != Some(host) {
        return Err(HttpProblem::new(
            ProblemKind::NotAllowed,
            "this token is for another host's agent".into(),
        ));
    }
    let machine = headers.get(MACHINE_HEADER).and_then(|m| m.to_str().ok()).unwrap_or_default();
    let machine: String = machine.chars().take(64).collect();
    let name = host.to_string();
    let claimed = state.with(move |state| match state.claim(&name, &machine)? {
        true => Ok(true),
        false => state.note_second_agent(&name).map(|()| false),
    });
    if claimed.await? {
        return Ok(());
    }
    Err(HttpProblem::new(ProblemKind::AnotherAgent, SECOND_AGENT.into()))
}

/// Accepts an agent's report. Answers when there is work or the wait time has passed.
#[utoipa::path(post, path = "/v1/agents/{host}/report", operation_id = "report_host", tag = "agents", params(("host" = String, Path, description = "its host")),
    request_body = AgentReport, responses((status = 200, body = AgentOrders), (status = "4XX", body = Problem)))]
pub(crate) async fn report(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    headers: HeaderMap,
    Path(host): Path<String>,
    Body(report): Body<AgentReport>,
) -> Result<Json<AgentOrders>, HttpProblem> {
    require_agent_of(&state, &caller, &host, &headers).await?;
    let (generation, wait) = (report.generation, Duration::from_millis(report.wait_ms));
    let (name, at_work) = (host.clone(), report.at_work);
    state
        .with(move |state| {
            state.store.host(&name)?;
            if at_work { state.record_contact(&name) } else { state.report(&name, report) }
        })
        .await?;
    if at_work {
        return Ok(Json(AgentOrders::default()));
    }
    Ok(Json(state.wait_for_orders(&host, generation, wait).await))
}

/// Lists all virtual machines of the host.
#[utoipa::path(get, path = "/v1/agents/{host}/vms", operation_id = "list_host_vms", tag = "agents", params(("host" = String, Path, description = "its host")),
    responses((status = 200, body = Vec<Vm>), (status = "4XX", body = Problem)))]
pub(crate) async fn vms(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    headers: HeaderMap,
    Path(host): Path<String>,
) -> Result<Json<Vec<Vm>>, HttpProblem> {
    require_agent_of(&state, &caller, &host, &headers).await?;
    let vms = state.with(move |state| state.store.host_vms(&host)).await?;
    Ok(Json(vms.into_iter().map(for_agent).collect()))
}

/// Orders the agent of a migration's target to prepare its host. Answers with `pending` after a few seconds, after
/// which the agent repeats the request.
#[utoipa::path(post, path = "/v1/agents/{host}/migrations/{vm}/prepare", operation_id = "prepare_migration", tag = "agents",
    params(("host" = String, Path, description = "its host"), ("vm" = i64, Path, description = "number")),
    responses((status = 200, body = Preparation), (status = "4XX", body = Problem)))]
pub(crate) async fn prepare(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    headers: HeaderMap,
    Path((host, vm)): Path<(String, VmId)>,
) -> Result<Json<Preparation>, HttpProblem> {
    require_agent_of(&state, &caller, &host, &headers).await?;
    let is_on_host = state.with(move |state| Ok(state.store.vm(vm).is_ok_and(|vm| vm.is_on(&host)))).await?;
    if !is_on_host {
        return Err(HttpProblem::unknown(&format!("virtual machine {vm} on this host")));
    }
    Ok(Json(state.prepare_migration(vm, MAX_WAIT).await))
}

/// Creation time of a virtual machine as recorded by its domain.
#[derive(serde::Deserialize)]
pub(crate) struct CreationQuery {
    created_at: Option<i64>,
}

/// Returns whether this database ever created a virtual machine with this ID. If not, its domain belongs to another
/// service and is left alone.
#[utoipa::path(get, path = "/v1/agents/{host}/made/{vm}", operation_id = "has_created_vm", tag = "agents",
    params(("host" = String, Path, description = "its host"), ("vm" = i64, Path, description = "number"),
        ("created_at" = Option<i64>, Query, description = "creation time of the virtual machine in \
            seconds since 1970, if the domain records it")),
    responses((status = 200, body = bool), (status = "4XX", body = Problem)))]
pub(crate) async fn made(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    headers: HeaderMap,
    Path((host, vm)): Path<(String, VmId)>,
    QueryParams(creation): QueryParams<CreationQuery>,
) -> Result<Json<bool>, HttpProblem> {
    require_agent_of(&state, &caller, &host, &headers).await?;
    Ok(Json(state.with(move |state| state.store.has_created(vm, creation.created_at)).await?))
}

/// Returns the database's identity, which domains record. A domain with another identity belongs to another service,
/// even if it has the same ID.
#[utoipa::path(get, path = "/v1/agents/{host}/database", operation_id = "show_database_identity", tag = "agents", params(("host" = String, Path, description = "its host")),
    responses((status = 200, body = String), (status = "4XX", body = Problem)))]
pub(crate) async fn database(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    headers: HeaderMap,
    Path(host): Path<String>,
) -> Result<Json<String>, HttpProblem> {
    require_agent_of(&state, &caller, &host, &headers).await?;
    Ok(Json(state.with(|state| state.store.identity()).await?))
}

/// Applies a change to the host or to one of its virtual machines. Returns the virtual machine after the change.
#[utoipa::path(post, path = "/v1/agents/{host}/changes", operation_id = "apply_agent_change", tag = "agents", params(("host" = String, Path, description = "its host")),
    request_body = AgentChange, responses((status = 200, body = Option<Vm>), (status = "4XX", body = Problem)))]
pub(crate) async fn change(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    headers: HeaderMap,
    Path(host): Path<String>,
    Body(mut change): Body<AgentChange>,
) -> Result<Json<Option<Vm>>, HttpProblem> {
    require_agent_of(&state, &caller, &host, &headers).await?;
    if let AgentChange::Describe(described) = &mut change {
        // Users see these texts: strip control characters.
        described
            .devices
            .iter_mut()
            .filter_map(|device| device.unusable.as_mut())
            .for_each(|why| *why = plain(why));
        if described.name != host {
            return Err(HttpProblem::new(
                ProblemKind::NotAllowed,
                "this token is for another host's agent".into(),
            ));
        }
        described.check().map_err(|e| HttpProblem::field("describe", e.to_string()))?;
    }
    let changed = state.with(move |state| {
        let store = state.store.on_behalf_of(&caller.name);
        // Report a virtual machine of another host as unknown, so that an agent learns nothing about it.
        let check_is_on_host = |id| match state.store.vm(id) {
            Ok(vm) if vm.placement.as_ref().is_some_and(|p| p.host == host) => Ok(()),
            _ => Err(StoreError::Unknown { what: format!("virtual machine {id} on this host") }),
        };
        match change {
            AgentChange::Describe(described) => state.describe(&described).map(|()| None),
            AgentChange::Transition { vm, from, to, problem } => {
                check_is_on_host(vm)?;
                // The text comes from another machine and is shown to users: strip control characters and limit its
                // length.
                let problem = problem.as_deref().map(plain);
                store.transition(vm, from, to, problem.as_deref()).map(Some)
            }
            AgentChange::BeginMove { vm, target } => {
                check_is_on_host(vm)?;
                let current = state.store.vm(vm)?.placement;
                let described = state.store.host(&host)?.host;
                if let Some(what) = current.and_then(|current| target.mismatch(&current, &described)) {
                    return Err(StoreError::Conflict { host: host.clone(), what });
                }
                store.begin_move(vm, &target).map(Some)
            }
            AgentChange::EndMove { vm, arrived } => {
                check_is_on_host(vm)?;
                store.end_move(vm, arrived).map(Some)
            }
            AgentChange::BeginMigration { vm, target } => {
                check_is_on_host(vm)?;
                state.begin_migration(vm, &target).map(Some)
            }
            AgentChange::EndMigration { vm, problem } => {
                check_is_on_host(vm)?;
                state.end_migration(vm, problem.as_deref().map(plain).as_deref()).map(Some)
            }
        }
    });
    Ok(Json(changed.await?.map(for_agent)))
}

/// Removes fields that agents do not need and older agents do not know.
fn for_agent(mut vm: Vm) -> Vm {
    vm.request.lifetime_s = None;
    vm
}
