//! Routes for hosts: usage, load, draining, and memory fragmentation.

use super::{Path, QueryParams};
use crate::access::{Caller, Role};
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{Defragmentation, DeviceView, Drained, HostView, Hosts, PlannedMove, Problem, ProblemKind};
use axum::Json;
use axum::extract::State;
use longma_placement::defragment::{COMMON_SIZES, plan};
use longma_placement::host::Device;
use longma_placement::inventory::HostStatus;
use longma_placement::store::StoredHost;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Maximum number of hosts on a page.
const MAX_PAGE: usize = 1000;

pub(super) const OPERATORS: [Role; 2] = [Role::Admin, Role::Operator];

/// Converts hosts to the form shown to users.
pub(super) async fn views(
    state: &Arc<ServiceState>,
    stored: Vec<StoredHost>,
) -> Result<Vec<HostView>, HttpProblem> {
    let names: Vec<String> = stored.iter().map(|s| s.host.name.clone()).collect();
    let usage = state.worker.query(move |allocator| {
        let inventory = allocator.scheduler().inventory();
        names.iter().map(|name| inventory.usage(name)).collect::<Vec<_>>()
    });
    let usage = usage.await?;
    let view = |(stored, usage): (StoredHost, Option<longma_placement::inventory::HostUse>)| {
        let name = stored.host.name.clone();
        let used = |device: &Device| {
            let devices = usage.iter().flat_map(|usage| &usage.devices);
            devices.into_iter().find(|(name, _)| *name == device.name).map_or(0, |(_, used)| *used)
        };
        let devices = stored.host.devices.iter();
        let devices =
            devices.map(|device| DeviceView { device: device.clone(), used: used(device) }).collect();
        state.host(&name, |h| HostView {
            name: name.clone(),
            status: stored.status,
            heard_s: h.last_report.map(|at| at.elapsed().as_secs()),
            vms: usage.as_ref().map_or(0, |u| u.vms),
            nodes: usage.map(|u| u.nodes).unwrap_or_default(),
            distances: stored.host.distances.clone(),
            foreign: h.foreign.clone(),
            foreign_domains: h.foreign_domains.clone(),
            problems: h.all_problems(),
            devices,
        })
    };
    Ok(stored.into_iter().zip(usage).map(view).collect())
}

async fn view(state: &Arc<ServiceState>, name: String) -> Result<HostView, HttpProblem> {
    let stored = state.with(move |state| state.store.host(&name)).await?;
    views(state, vec![stored]).await?.pop().ok_or_else(|| HttpProblem::unknown("such host"))
}

/// Paging parameters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct HostListQuery {
    /// Only hosts whose names sort after this one: `next` of the previous page.
    after: String,
    /// Maximum number of results, 1 to 1000; the default is 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Lists hosts, page by page.
#[utoipa::path(get, path = "/v1/hosts", operation_id = "list_hosts", tag = "hosts", params(HostListQuery),
    responses((status = 200, body = Hosts), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    QueryParams(which): QueryParams<HostListQuery>,
) -> Result<Json<Hosts>, HttpProblem> {
    caller.must_be(&OPERATORS)?;
    let limit = which.limit.unwrap_or(MAX_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(HttpProblem::new(
            ProblemKind::InvalidQuery,
            format!("limit: is {limit}; must be from 1 to {MAX_PAGE}"),
        ));
    }
    if which.after.contains('\0') {
        return Err(HttpProblem::new(ProblemKind::InvalidQuery, "after: is not a valid host name".into()));
    }
    // One extra row shows whether there is a next page.
    let mut stored = state.with(move |state| state.store.hosts_after(&which.after, limit + 1)).await?;
    let next = (stored.len() > limit).then(|| stored[limit - 1].host.name.clone());
    stored.truncate(limit);
    Ok(Json(Hosts { items: views(&state, stored).await?, next }))
}

/// Shows a host.
#[utoipa::path(get, path = "/v1/hosts/{host}", operation_id = "show_host", tag = "hosts", params(("host" = String, Path, description = "its name")),
    responses((status = 200, body = HostView), (status = "4XX", body = Problem)))]
pub(crate) async fn show(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(host): Path<String>,
) -> Result<Json<HostView>, HttpProblem> {
    caller.must_be(&OPERATORS)?;
    Ok(Json(view(&state, host).await?))
}

/// Sets the status of a host.
pub(super) async fn set(
    state: Arc<ServiceState>,
    caller: Caller,
    host: String,
    status: HostStatus,
) -> Result<Json<Drained>, HttpProblem> {
    let name = host.clone();
    let left = state
        .with(move |state| {
            state.set_status(&*state.store.on_behalf_of(&caller.name), &name, status)?;
            let vms = state.store.host_vms(&name)?;
            Ok(vms.into_iter().filter(|vm| vm.is_on(&name)).collect())
        })
        .await?;
    // `view` queries the scheduler after it has applied the store's changes.
    Ok(Json(Drained { host: view(&state, host).await?, left }))
}

/// How to drain.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct DrainQuery {
    /// Whether to move its virtual machines to other hosts: running ones live, one after another.
    empty: bool,
}

/// Drains a host: it accepts no more virtual machines. Its current virtual machines stay, unless the host must be
/// emptied.
#[utoipa::path(post, path = "/v1/hosts/{host}/drain", operation_id = "drain_host", tag = "hosts", params(("host" = String, Path, description = "its name"), DrainQuery),
    responses((status = 200, body = Drained), (status = "4XX", body = Problem)))]
pub(crate) async fn drain(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(host): Path<String>,
    QueryParams(how): QueryParams<DrainQuery>,
) -> Result<Json<Drained>, HttpProblem> {
    caller.must_be(&OPERATORS)?;
    let status = if how.empty { HostStatus::Emptying } else { HostStatus::Draining };
    let actor = how.empty.then(|| caller.name.clone());
    let name = host.clone();
    let drained = set(state.clone(), caller, host, status).await?;
    state.host(&name, |h| h.emptied_by = actor);
    Ok(drained)
}

/// Makes a host that was drained or declared dead accept virtual machines again.
#[utoipa::path(post, path = "/v1/hosts/{host}/undrain", operation_id = "undrain_host", tag = "hosts", params(("host" = String, Path, description = "its name")),
    responses((status = 200, body = Drained), (status = "4XX", body = Problem)))]
pub(crate) async fn undrain(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(host): Path<String>,
) -> Result<Json<Drained>, HttpProblem> {
    caller.must_be(&OPERATORS)?;
    set(state, caller, host, HostStatus::Up).await
}

/// Limit of a plan.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct MoveLimit {
    /// Maximum number of moves, 1 to 100; the default is 10.
    moves: Option<usize>,
}

/// Plans moves between the nodes of a host that make more of its free memory usable. Nothing is moved.
#[utoipa::path(get, path = "/v1/hosts/{host}/defragmentation", operation_id = "plan_defragmentation", tag = "hosts", params(("host" = String, Path, description = "its name"), MoveLimit),
    responses((status = 200, body = Defragmentation), (status = "4XX", body = Problem)))]
pub(crate) async fn defragment(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(host): Path<String>,
    QueryParams(limit): QueryParams<MoveLimit>,
) -> Result<Json<Defragmentation>, HttpProblem> {
    caller.must_be(&OPERATORS)?;
    let moves = limit.moves.unwrap_or(10).clamp(1, 100);
    let name = host.clone();
    let vms = state
        .with(move |state| {
            state.store.host(&name)?;
            state.store.host_vms(&name)
        })
        .await?;
    // Planning takes long, so it works on a copy of the scheduler while decisions continue.
    let scheduler = state.worker.query(|allocator| allocator.scheduler().clone()).await?;
    let made = tokio::task::spawn_blocking(move || {
        let plan = plan(&scheduler, &host, &vms, &COMMON_SIZES, moves);
        let nodes = |p: &longma_placement::Placement| p.cells.iter().map(|c| c.node).collect::<Vec<_>>();
        let mut places: std::collections::BTreeMap<_, _> =
            vms.iter().map(|vm| (vm.id, vm.placement.clone())).collect();
        let mut moves = Vec::new();
        for (id, target) in plan.moves {
            let Some(vm) = vms.iter().find(|vm| vm.id == id) else { continue };
            let from = places.insert(id, Some(target.clone())).flatten();
            let (tenant, name) = (vm.request.tenant.clone(), vm.request.name.clone());
            moves.push(PlannedMove {
                vm: id,
                tenant,
                name,
                from: from.as_ref().map(nodes).unwrap_or_default(),
                to: nodes(&target),
            });
        }
        Defragmentation { host, score_before: plan.score.0, score_after: plan.score.1, moves }
    });
    made.await.map(Json).map_err(|e| HttpProblem::new(ProblemKind::Internal, e.to_string()))
}
