//! Routes for hosts: usage, load, draining, and memory fragmentation.

use super::{Asked, Path};
use crate::access::{Caller, Role};
use crate::desk::Desk;
use crate::refusal::Refusal;
use crate::wire::{Defragmentation, Drained, HostView, Hosts, PlannedMove, Problem};
use axum::Json;
use axum::extract::State;
use longma_placement::defragment::{COMMON_SIZES, plan};
use longma_placement::inventory::HostStatus;
use longma_placement::store::{StoredHost, VmQuery};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Maximum number of hosts on a page.
const MOST: usize = 1000;

const OPERATORS: [Role; 2] = [Role::Admin, Role::Operator];

/// Converts hosts to the form shown to users.
pub(super) async fn views(desk: &Arc<Desk>, stored: Vec<StoredHost>) -> Result<Vec<HostView>, Refusal> {
    let names: Vec<String> = stored.iter().map(|s| s.host.name.clone()).collect();
    let usage = desk.decider.ask(move |allocator| {
        let inventory = allocator.scheduler().inventory();
        names.iter().map(|name| inventory.usage(name)).collect::<Vec<_>>()
    });
    let usage = usage.await?;
    let view = |(stored, usage): (StoredHost, Option<longma_placement::inventory::HostUse>)| {
        let name = stored.host.name.clone();
        desk.host(&name, |h| HostView {
            name: name.clone(),
            status: stored.status,
            heard_s: h.heard.map(|at| at.elapsed().as_secs()),
            vms: usage.as_ref().map_or(0, |u| u.vms),
            nodes: usage.map(|u| u.nodes).unwrap_or_default(),
            distances: stored.host.distances.clone(),
            foreign: h.foreign.clone(),
            problems: h.all_problems(),
        })
    };
    Ok(stored.into_iter().zip(usage).map(view).collect())
}

async fn view(desk: &Arc<Desk>, name: String) -> Result<HostView, Refusal> {
    let stored = desk.with(move |d| d.store.host(&name)).await?;
    views(desk, vec![stored]).await?.pop().ok_or_else(|| Refusal::unknown("such host"))
}

/// Paging parameters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct WhichHosts {
    /// Only those whose names sort after this one: `next` of the previous page.
    after: String,
    /// Maximum number of results, 1 to 1000; the default is 1000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Lists hosts, page by page.
#[utoipa::path(get, path = "/v1/hosts", tag = "hosts", params(WhichHosts),
    responses((status = 200, body = Hosts), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(desk): State<Arc<Desk>>,
    caller: Caller,
    Asked(which): Asked<WhichHosts>,
) -> Result<Json<Hosts>, Refusal> {
    caller.must_be(&OPERATORS)?;
    let limit = which.limit.unwrap_or(MOST);
    if !(1..=MOST).contains(&limit) {
        return Err(Refusal::new(400, "invalid query", format!("limit: is {limit}; must be from 1 to {MOST}")));
    }
    if which.after.contains('\0') {
        return Err(Refusal::new(400, "invalid query", "after: is not a valid host name".into()));
    }
    // One extra row shows whether there is a next page.
    let mut stored = desk.with(move |d| d.store.hosts_after(&which.after, limit + 1)).await?;
    let next = (stored.len() > limit).then(|| stored[limit - 1].host.name.clone());
    stored.truncate(limit);
    Ok(Json(Hosts { items: views(&desk, stored).await?, next }))
}

/// Shows a host.
#[utoipa::path(get, path = "/v1/hosts/{host}", tag = "hosts", params(("host" = String, Path, description = "its name")),
    responses((status = 200, body = HostView), (status = "4XX", body = Problem)))]
pub(crate) async fn show(
    State(desk): State<Arc<Desk>>,
    caller: Caller,
    Path(host): Path<String>,
) -> Result<Json<HostView>, Refusal> {
    caller.must_be(&OPERATORS)?;
    Ok(Json(view(&desk, host).await?))
}

async fn set(
    desk: Arc<Desk>,
    caller: Caller,
    host: String,
    status: HostStatus,
) -> Result<Json<Drained>, Refusal> {
    caller.must_be(&OPERATORS)?;
    let name = host.clone();
    let left = desk
        .with(move |d| {
            d.set_status(&name, status)?;
            d.store.vms(&VmQuery { host: Some(name), ..VmQuery::default() })
        })
        .await?;
    // `view` queries the scheduler after it has applied the store's changes.
    Ok(Json(Drained { host: view(&desk, host).await?, left }))
}

/// Drains a host: it accepts no more virtual machines, and the present ones stay.
#[utoipa::path(post, path = "/v1/hosts/{host}/drain", tag = "hosts", params(("host" = String, Path, description = "its name")),
    responses((status = 200, body = Drained), (status = "4XX", body = Problem)))]
pub(crate) async fn drain(
    State(desk): State<Arc<Desk>>,
    caller: Caller,
    Path(host): Path<String>,
) -> Result<Json<Drained>, Refusal> {
    set(desk, caller, host, HostStatus::Draining).await
}

/// Makes a drained host accept virtual machines again.
#[utoipa::path(post, path = "/v1/hosts/{host}/undrain", tag = "hosts", params(("host" = String, Path, description = "its name")),
    responses((status = 200, body = Drained), (status = "4XX", body = Problem)))]
pub(crate) async fn undrain(
    State(desk): State<Arc<Desk>>,
    caller: Caller,
    Path(host): Path<String>,
) -> Result<Json<Drained>, Refusal> {
    set(desk, caller, host, HostStatus::Up).await
}

/// Limit of a plan.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Most {
    /// Maximum number of moves, 1 to 100; the default is 10.
    moves: Option<usize>,
}

/// Plans moves between the nodes of a host that make more of its free memory usable. Nothing is moved.
#[utoipa::path(get, path = "/v1/hosts/{host}/defragmentation", tag = "hosts", params(("host" = String, Path, description = "its name"), Most),
    responses((status = 200, body = Defragmentation), (status = "4XX", body = Problem)))]
pub(crate) async fn defragment(
    State(desk): State<Arc<Desk>>,
    caller: Caller,
    Path(host): Path<String>,
    Asked(most): Asked<Most>,
) -> Result<Json<Defragmentation>, Refusal> {
    caller.must_be(&OPERATORS)?;
    let moves = most.moves.unwrap_or(10).clamp(1, 100);
    let name = host.clone();
    let vms = desk
        .with(move |d| {
            d.store.host(&name)?;
            d.store.vms(&VmQuery { host: Some(name), ..VmQuery::default() })
        })
        .await?;
    // Planning takes long, so it works on a copy of the scheduler while decisions continue.
    let scheduler = desk.decider.ask(|allocator| allocator.scheduler().clone()).await?;
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
    made.await.map(Json).map_err(|e| Refusal::new(500, "internal error", e.to_string()))
}
