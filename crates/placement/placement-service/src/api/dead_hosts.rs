//! Routes for hosts that no longer run: declare one dead, start its virtual machines elsewhere, remove it.

use super::{Body, Path};
use crate::access::{Caller, Role};
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{Drained, Evacuate, Evacuated, Evacuation, NotEvacuated, Problem, ProblemKind};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use longma_placement::allocator::AllocateError;
use longma_placement::inventory::HostStatus;
use longma_placement::store::StoreError;
use std::sync::Arc;

/// Rejects a change that assumes that a host is dead while its agent reports.
async fn must_be_silent(state: &Arc<ServiceState>, host: &str) -> Result<(), HttpProblem> {
    let name = host.to_string();
    let is_alive = state.with(move |state| {
        let seen_at = state.store.host(&name)?.seen_at;
        Ok(state.is_alive(&name, seen_at))
    });
    if !is_alive.await? {
        return Ok(());
    }
    let detail = format!(
        "the agent of {host} has reported within the last 30 s, so the host is not dead: stop the host or its agent \
         and try again, or drain the host"
    );
    Err(HttpProblem::new(ProblemKind::HostAlive, detail))
}

/// Declares a host dead: it accepts no virtual machines until it is undrained, and its virtual machines may be evacuated
/// or deleted by force. Rejected while its agent reports.
#[utoipa::path(post, path = "/v1/hosts/{host}/force-down", operation_id = "force_down_host", tag = "hosts",
    params(("host" = String, Path, description = "its name")),
    responses((status = 200, body = Drained), (status = "4XX", body = Problem)))]
pub(crate) async fn force_down(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(host): Path<String>,
) -> Result<Json<Drained>, HttpProblem> {
    caller.must_be(&super::hosts::OPERATORS)?;
    must_be_silent(&state, &host).await?;
    super::hosts::set(state, caller, host, HostStatus::ForcedDown).await
}

/// Starts the virtual machines of a host that was declared dead on other hosts. Those that fit on no other host stay,
/// and the answer states the reason. Virtual machines that their owners have deleted are removed.
#[utoipa::path(post, path = "/v1/hosts/{host}/evacuate", operation_id = "evacuate_host", tag = "hosts",
    params(("host" = String, Path, description = "its name")), request_body = Evacuate,
    responses((status = 200, body = Evacuation), (status = "4XX", body = Problem)))]
pub(crate) async fn evacuate(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(host): Path<String>,
    Body(request): Body<Evacuate>,
) -> Result<Json<Evacuation>, HttpProblem> {
    caller.must_be(&super::hosts::OPERATORS)?;
    if !request.fenced {
        let problem = "must be true: power the host off, or cut it off from its disks and networks, and say so. \
            Otherwise its virtual machines may run twice and destroy their disks";
        return Err(HttpProblem::field("fenced", problem.into()));
    }
    must_be_silent(&state, &host).await?;
    let name = host.clone();
    let (vms, status) =
        state.with(move |state| Ok((state.store.host_vms(&name)?, state.store.host(&name)?.status))).await?;
    let vms: Vec<_> = vms.into_iter().filter(|vm| vm.is_on(&host)).collect();
    if status != HostStatus::ForcedDown {
        let detail = format!("{host} was not declared dead: use force-down first");
        return Err(HttpProblem::new(ProblemKind::WrongState, detail));
    }
    let mut evacuation = Evacuation {
        assumed: format!(
            "{host} is off or fenced: none of its virtual machines runs there or writes to its disks. Each evacuated \
             virtual machine starts anew, so its disks must be reachable from its new host. If {host} returns, its \
             agent removes the domains that were left behind"
        ),
        ..Evacuation::default()
    };
    for vm in vms {
        let (id, name) = (vm.id, vm.request.name);
        let actor = caller.name.clone();
        let evacuated = state
            .worker
            .query(move |allocator| allocator.on_behalf_of(&actor, |allocator| allocator.evacuate(id)));
        match evacuated.await? {
            Ok(vm) => {
                state.notify_host_of(&vm);
                evacuation.left.push(Evacuated { vm: id, name, to: vm.placement.map(|place| place.host) });
            }
            // Another request has deleted the virtual machine.
            Err(AllocateError::Store(StoreError::Unknown { .. })) => {}
            Err(error) => {
                let why = HttpProblem::of_allocation(error, &state.log).0.summary();
                evacuation.stayed.push(NotEvacuated { vm: id, name, why });
            }
        }
    }
    caller.concerns(|| {
        format!("{} virtual machines left, {} stayed", evacuation.left.len(), evacuation.stayed.len())
    });
    Ok(Json(evacuation))
}

/// Removes a host without virtual machines, and the tokens of its agents. Rejected while its agent reports.
#[utoipa::path(delete, path = "/v1/hosts/{host}", operation_id = "remove_host", tag = "hosts",
    params(("host" = String, Path, description = "its name")), responses((status = 204), (status = "4XX", body = Problem)))]
pub(crate) async fn remove(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(host): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    caller.must_be(&[Role::Admin])?;
    must_be_silent(&state, &host).await?;
    let removed = state.with(move |state| {
        state.store.on_behalf_of(&caller.name).remove_host(&host)?;
        state.forget_host(&host);
        state.refresh_tokens()
    });
    removed.await?;
    Ok(StatusCode::NO_CONTENT)
}
