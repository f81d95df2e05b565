//! Routes for virtual machines: create, list, start, stop, resize, move, delete.
//!
//! Source: the IETF HTTPAPI draft "The Idempotency-Key HTTP Header Field".

use super::{Body, Path, QueryParams, RawBody};
use crate::access::{Caller, Role};
use crate::libvirt::template_problem;
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{Problem, ProblemKind, Rebind, Resize, VmPage};
use axum::Json;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use longma_placement::allocator::AllocateError;
use longma_placement::inventory::HostStatus;
use longma_placement::request::Boot;
use longma_placement::scheduler::NoPlacement;
use longma_placement::store::{Intent, Vm, VmId, VmQuery, VmState, forbidding_group};
use longma_placement::{Placement, Request};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;

/// Maximum number of virtual machines on a page.
const MAX_PAGE: usize = 1000;
/// How long a request waits for a move.
const MOVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Filter and paging parameters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct VmListQuery {
    /// Only virtual machines of this tenant.
    tenant: Option<String>,
    /// Only those on this host.
    host: Option<String>,
    /// Whether to include deleted ones.
    deleted: bool,
    /// Only those with a higher ID: `next` of the previous page.
    after: VmId,
    /// Maximum number of results, 1 to 1000; the default is 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Disambiguates a name.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct TenantQuery {
    /// Tenant that the name belongs to. Defaults to the caller's tenant, or to `default`.
    tenant: Option<String>,
}

/// Lists virtual machines, page by page.
#[utoipa::path(get, path = "/v1/vms", operation_id = "list_vms", tag = "virtual machines", params(VmListQuery),
    responses((status = 200, body = VmPage), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    QueryParams(which): QueryParams<VmListQuery>,
) -> Result<Json<VmPage>, HttpProblem> {
    let limit = which.limit.unwrap_or(100);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(HttpProblem::new(
            ProblemKind::InvalidQuery,
            format!("limit: is {limit}; must be from 1 to {MAX_PAGE}"),
        ));
    }
    let tenant = match caller.tenant()? {
        Some(own) if which.tenant.as_deref().is_some_and(|asked| asked != own) => {
            return Err(HttpProblem::new(ProblemKind::NotAllowed, "this token is for another tenant".into()));
        }
        Some(own) => Some(own.to_string()),
        None => which.tenant,
    };
    // One extra row shows whether there is a next page.
    let query =
        VmQuery { tenant, host: which.host, deleted: which.deleted, after: which.after, limit: limit + 1 };
    let all_hosts = caller.role != Role::Tenant;
    let listed = state.with(move |state| {
        // A tenant cannot distinguish an unknown host from a host where it has no virtual machines.
        query.host.as_ref().filter(|_| all_hosts).map(|name| state.store.host(name)).transpose()?;
        state.store.vms(&query)
    });
    let mut items = listed.await?;
    let next = (items.len() > limit).then(|| items[limit - 1].id);
    items.truncate(limit);
    Ok(Json(VmPage { items, next }))
}

/// The client's idempotency key, if it sent one.
fn key(headers: &HeaderMap) -> Result<Option<String>, HttpProblem> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key
        .to_str()
        .ok()
        .filter(|k| !k.is_empty() && k.len() <= 128 && k.bytes().all(|b| b.is_ascii_graphic()));
    let wrong = || {
        HttpProblem::new(
            ProblemKind::WrongHeader,
            "Idempotency-Key: 1 to 128 printable ASCII characters".into(),
        )
    };
    Ok(Some(key.ok_or_else(wrong)?.to_string()))
}

/// Rejects requests that tenants must not make: for other tenants' images, and with domain XML, which could name any
/// file of the host.
fn check_allowed(state: &ServiceState, caller: &Caller, request: &Request) -> Result<(), HttpProblem> {
    let Some(tenant) = caller.tenant()? else { return Ok(()) };
    if request.tenant != tenant {
        return Err(HttpProblem::new(ProblemKind::NotAllowed, "this token is for another tenant".into()));
    }
    match &request.boot {
        Boot::Template { .. } => Err(HttpProblem::new(
            ProblemKind::NotAllowed,
            "boot.template needs the role operator, because it can name any file on a host".into(),
        )),
        Boot::Disk { path, .. } => {
            let own = state.images.join(tenant);
            let inside =
                std::path::Path::new(path).strip_prefix(&own).is_ok_and(|rest| rest.iter().count() > 0);
            if inside {
                return Ok(());
            }
            let detail = format!("boot.disk.path: a tenant's images must be in {}", own.display());
            Err(HttpProblem::new(ProblemKind::NotAllowed, detail))
        }
        Boot::Nothing => Ok(()),
    }
}

/// Parses a request. The tenant defaults to the caller's.
pub(super) fn request_of(caller: &Caller, body: &[u8]) -> Result<Request, HttpProblem> {
    /// The part of a body that may name a tenant.
    #[derive(Deserialize)]
    struct Named {
        tenant: Option<IgnoredAny>,
    }
    let own = caller.tenant()?;
    let mut request: Request = super::parse(body)?;
    if let Some(own) = own
        && serde_json::from_slice::<Named>(body).is_ok_and(|named| named.tenant.is_none())
    {
        request.tenant = own.into();
    }
    Ok(request)
}

/// Error for a request that does not fit on the only host. Names the resources that the host lacks.
async fn missing_resource(state: &Arc<ServiceState>, request: Request) -> Result<HttpProblem, HttpProblem> {
    let explained = state.worker.query(move |allocator| allocator.scheduler().explain(&request, None, 1));
    let reason = explained.await?.ok().and_then(|explanation| explanation.hosts.first()?.reason());
    let detail = reason.unwrap_or_else(|| "it does not fit on the only host".into());
    Ok(HttpProblem::new(ProblemKind::NoRoom, detail))
}

/// Creates a virtual machine. The answer means that it is durably reserved; its domain is created soon afterwards.
#[utoipa::path(post, path = "/v1/vms", operation_id = "create_vm", tag = "virtual machines", request_body = Request,
    params(("Idempotency-Key" = Option<String>, Header, pattern = "^[!-~]{1,128}$", description = "a second request with the same key gets the answer of the first")),
    responses((status = 201, body = Vm, description = "reserved"), (status = 200, body = Vm, description = "it was already reserved with this key"),
        (status = "4XX", body = Problem)))]
pub(crate) async fn create(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<Response, HttpProblem> {
    let key = key(&headers)?;
    let request = request_of(&caller, &body)?;
    request.check().map_err(|fields| HttpProblem::fields("the request is invalid", fields))?;
    check_allowed(&state, &caller, &request)?;
    if let Boot::Template { xml } = &request.boot
        && let Some(why) = template_problem(xml)
    {
        return Err(HttpProblem::field("boot.template.xml", why));
    }
    let wanted = request.clone();
    let (tenant, name) = (request.tenant.clone(), request.name.clone());
    let placed = state.worker.place(request, key, caller.name.clone()).await?;
    let reserved = match placed {
        Ok(reserved) => reserved,
        Err(AllocateError::NoPlacement(NoPlacement::NoFit { hosts: 1 })) if caller.tenant()?.is_none() => {
            return Err(missing_resource(&state, wanted).await?);
        }
        Err(error) => {
            caller.concerns(|| format!("virtual machine {name} of tenant {tenant}"));
            return Err(HttpProblem::of_allocation(error, &state.log));
        }
    };
    let vm = reserved.vm;
    caller.concerns_vm(&vm);
    if reserved.replayed {
        return Ok((StatusCode::OK, Json(vm)).into_response());
    }
    state.metrics.placed();
    state.notify_host_of(&vm);
    let location = format!("/v1/vms/{}", vm.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(vm)).into_response())
}

/// Finds the virtual machine named by a path. A virtual machine that the caller must not see is reported as not found.
pub(super) async fn find(
    state: &Arc<ServiceState>,
    caller: &Caller,
    name: String,
    tenant_query: TenantQuery,
) -> Result<Vm, HttpProblem> {
    let own = caller.tenant()?.map(str::to_string);
    let asked = format!("virtual machine {}", name.chars().take(80).collect::<String>());
    let found = if !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) {
        let id = name.parse::<VmId>().map_err(|_| HttpProblem::unknown(&asked))?;
        // IDs are unique, but a tenant given in the query must still match.
        let of = tenant_query.tenant;
        let vm = state.with(move |state| state.store.vm(id)).await?;
        Some(vm).filter(|vm| of.is_none_or(|tenant| tenant == vm.request.tenant))
    } else {
        let tenant = tenant_query.tenant.or(own).unwrap_or_else(|| "default".into());
        state.with(move |state| state.store.find_vm(&tenant, &name)).await?
    };
    let found = found.filter(|vm| caller.sees(vm)).ok_or_else(|| HttpProblem::unknown(&asked))?;
    caller.concerns_vm(&found);
    Ok(found)
}

/// Shows a virtual machine, by ID or by name.
#[utoipa::path(get, path = "/v1/vms/{vm}", operation_id = "show_vm", tag = "virtual machines", params(("vm" = String, Path, description = "number or name"), TenantQuery),
    responses((status = 200, body = Vm), (status = "4XX", body = Problem)))]
pub(crate) async fn show(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(name): Path<String>,
    QueryParams(tenant_query): QueryParams<TenantQuery>,
) -> Result<Json<Vm>, HttpProblem> {
    Ok(Json(find(&state, &caller, name, tenant_query).await?))
}

async fn change_intent(
    state: Arc<ServiceState>,
    caller: Caller,
    name: String,
    tenant_query: TenantQuery,
    intent: Intent,
) -> Result<Json<Vm>, HttpProblem> {
    let vm = find(&state, &caller, name, tenant_query).await?;
    let changed = state.with(move |state| {
        let store = state.store.on_behalf_of(&caller.name);
        let changed = state.set_intent(&*store, &vm, intent)?;
        if changed.state == VmState::Failed && intent == Intent::Run {
            // Retry a failed virtual machine at its owner's request.
            let again = store.transition(vm.id, VmState::Failed, VmState::Creating, None)?;
            state.notify_host_of(&again);
            return Ok(again);
        }
        Ok(changed)
    });
    Ok(Json(changed.await?))
}

/// Starts a virtual machine, or retries to start one that failed.
#[utoipa::path(post, path = "/v1/vms/{vm}/start", operation_id = "start_vm", tag = "virtual machines", params(("vm" = String, Path, description = "number or name"), TenantQuery),
    responses((status = 200, body = Vm), (status = "4XX", body = Problem)))]
pub(crate) async fn start(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(name): Path<String>,
    QueryParams(tenant_query): QueryParams<TenantQuery>,
) -> Result<Json<Vm>, HttpProblem> {
    change_intent(state, caller, name, tenant_query, Intent::Run).await
}

/// Stops a virtual machine. It keeps its placement.
#[utoipa::path(post, path = "/v1/vms/{vm}/stop", operation_id = "stop_vm", tag = "virtual machines", params(("vm" = String, Path, description = "number or name"), TenantQuery),
    responses((status = 200, body = Vm), (status = "4XX", body = Problem)))]
pub(crate) async fn stop(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(name): Path<String>,
    QueryParams(tenant_query): QueryParams<TenantQuery>,
) -> Result<Json<Vm>, HttpProblem> {
    change_intent(state, caller, name, tenant_query, Intent::Stop).await
}

/// How to delete.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeleteQuery {
    /// Tenant that the name belongs to. Defaults to the caller's tenant, or to `default`.
    tenant: Option<String>,
    /// Release everything at once, without the host's agent. Needs the role operator and a host that was declared dead.
    force: bool,
}

/// Deletes a virtual machine. Its resources are released when its domain is gone.
#[utoipa::path(delete, path = "/v1/vms/{vm}", operation_id = "delete_vm", tag = "virtual machines", params(("vm" = String, Path, description = "number or name"), DeleteQuery),
    responses((status = 200, body = Vm), (status = "4XX", body = Problem)))]
pub(crate) async fn delete(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(name): Path<String>,
    QueryParams(how): QueryParams<DeleteQuery>,
) -> Result<Json<Vm>, HttpProblem> {
    let tenant_query = TenantQuery { tenant: how.tenant };
    if !how.force {
        return change_intent(state, caller, name, tenant_query, Intent::Delete).await;
    }
    caller.must_be(&[Role::Admin, Role::Operator])?;
    let vm = find(&state, &caller, name, tenant_query).await?;
    let deleted = state.with(move |state| state.store.on_behalf_of(&caller.name).force_delete(vm.id));
    Ok(Json(deleted.await?))
}

/// Resizes a stopped virtual machine on its host.
#[utoipa::path(post, path = "/v1/vms/{vm}/resize", operation_id = "resize_vm", tag = "virtual machines", params(("vm" = String, Path, description = "number or name"), TenantQuery),
    request_body = Resize, responses((status = 200, body = Vm), (status = "4XX", body = Problem)))]
pub(crate) async fn resize(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(name): Path<String>,
    QueryParams(tenant_query): QueryParams<TenantQuery>,
    Body(size): Body<Resize>,
) -> Result<Json<Vm>, HttpProblem> {
    caller.must_be(&[Role::Admin, Role::Operator, Role::Tenant])?;
    let Vm { id, request, .. } = find(&state, &caller, name, tenant_query).await?;
    let request = Request {
        vcpus: size.vcpus.unwrap_or(request.vcpus),
        memory_mib: size.memory_mib.unwrap_or(request.memory_mib),
        ..request
    };
    request.check().map_err(|fields| HttpProblem::fields("the new size is invalid", fields))?;
    let resized = state.worker.query(move |allocator| {
        allocator.on_behalf_of(&caller.name, |allocator| allocator.resize(id, &request))
    });
    let resized = resized.await?;
    let vm = resized.map_err(|error| HttpProblem::of_allocation(error, &state.log))?;
    state.notify_host_of(&vm);
    Ok(Json(vm))
}

/// Error for a virtual machine that cannot move on its host. `forbidden` is the placement that would be chosen without
/// group rules.
async fn no_target(
    state: &Arc<ServiceState>,
    vm: Vm,
    host: String,
    forbidden: Option<Placement>,
) -> Result<HttpProblem, HttpProblem> {
    let name = host.clone();
    let answer = state.with(move |state| {
        let group = forbidden.map(|place| forbidding_group(&*state.store, &vm, &place)).transpose()?;
        Ok((group.flatten(), state.store.host(&name)?.status))
    });
    let (group, status) = answer.await?;
    if let Some(why) = group {
        return Ok(HttpProblem::new(ProblemKind::ForbiddenByGroup, format!("nothing was moved: {why}")));
    }
    let detail = match status {
        HostStatus::Up => format!(
            "it does not fit on these nodes of {host} with the present load; request an explanation to see what they lack"
        ),
        HostStatus::Draining | HostStatus::Emptying => {
            format!("{host} is draining: nothing can move to its nodes until it is up again")
        }
        HostStatus::Down => format!("{host} is down: nothing can move there until its agent reports again"),
        HostStatus::ForcedDown => {
            format!("{host} was declared dead: its virtual machines can only be evacuated")
        }
    };
    Ok(HttpProblem::new(ProblemKind::NoRoom, detail))
}

/// Moves a running virtual machine live to other nodes of its host. Answers when the move is complete or undone.
#[utoipa::path(post, path = "/v1/vms/{vm}/rebind", operation_id = "rebind_vm", tag = "virtual machines", params(("vm" = String, Path, description = "number or name"), TenantQuery),
    request_body = Rebind, responses((status = 200, body = Vm), (status = "4XX", body = Problem), (status = 504, body = Problem)))]
pub(crate) async fn rebind(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(name): Path<String>,
    QueryParams(tenant_query): QueryParams<TenantQuery>,
    Body(rebind): Body<Rebind>,
) -> Result<Json<Vm>, HttpProblem> {
    caller.must_be(&[Role::Admin, Role::Operator, Role::Tenant])?;
    let vm = find(&state, &caller, name, tenant_query).await?;
    let placement = match (&vm.placement, vm.state) {
        (Some(placement), VmState::Running) => placement.clone(),
        _ => {
            let detail = format!("virtual machine {} is {}; only a running one can move", vm.id, vm.state);
            return Err(HttpProblem::new(ProblemKind::WrongState, detail));
        }
    };
    let (id, host) = (vm.id, placement.host.clone());
    let here: Vec<u32> = placement.cells.iter().map(|c| c.node).collect();
    let (request, name) = (vm.request.clone(), host.clone());
    let decided = state.worker.query(move |allocator| {
        let scheduler = allocator.scheduler();
        let all = scheduler.inventory().usage(&name).map(|u| u.nodes).unwrap_or_default();
        let nodes: Vec<u32> = match rebind.nodes.is_empty() {
            true => all.iter().map(|n| n.node).filter(|n| !here.contains(n)).collect(),
            false => rebind.nodes,
        };
        let unknown = nodes.iter().copied().find(|n| all.iter().all(|a| a.node != *n));
        let target = scheduler.decide_on(&request, &name, &nodes, Some(&placement));
        let forbidden = scheduler.decide_on_without_groups(&request, &name, &nodes);
        (target.ok_or(forbidden), unknown)
    });
    let target = match decided.await? {
        (_, Some(node)) => {
            return Err(HttpProblem::field("nodes", format!("host {host} has no node {node}")));
        }
        (Err(forbidden), None) => return Err(no_target(&state, vm, host, forbidden).await?),
        (Ok(target), None) => target,
    };
    if !state.is_connected(&host) {
        let detail = format!(
            "the agent of {host} is silent or reports to another service, to which the request must go; nothing was moved"
        );
        return Err(HttpProblem::new(ProblemKind::AgentNotHere, detail));
    }
    let (number, answered) = state.order(&host, id, target);
    match tokio::time::timeout(MOVE_TIMEOUT, answered).await {
        Ok(Ok(done)) => match done.problem {
            None => Ok(Json(state.with(move |state| state.store.vm(id)).await?)),
            Some(problem) => Err(HttpProblem::new(ProblemKind::NotMoved, problem)),
        },
        _ => {
            let taken = !state.cancel(&host, number);
            let detail = match taken {
                false => format!("the agent of {host} did not accept the order; nothing was moved"),
                true => {
                    format!("the agent of {host} has not yet reported whether it moved; check again soon")
                }
            };
            Err(HttpProblem::new(ProblemKind::NoAnswer, detail))
        }
    }
}
