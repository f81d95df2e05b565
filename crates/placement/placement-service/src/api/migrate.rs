//! The route that migrates a virtual machine to another host.

use super::vms::{TenantQuery, find};
use super::{Body, Path, QueryParams};
use crate::access::Caller;
use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::{Migrate, Problem, ProblemKind};
use axum::Json;
use axum::extract::State;
use longma_placement::store::Vm;
use std::sync::Arc;
use std::time::Duration;

/// How long a request waits for a migration. It continues after that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Migrates a running virtual machine live to another host. Answers when the virtual machine has arrived or the
/// migration has failed. After a minute, answers with 504 while the migration continues.
#[utoipa::path(post, path = "/v1/vms/{vm}/migrate", operation_id = "migrate_vm", tag = "virtual machines", params(("vm" = String, Path, description = "number or name"), TenantQuery),
    request_body = Migrate, responses((status = 200, body = Vm), (status = "4XX", body = Problem), (status = 504, body = Problem)))]
pub(crate) async fn migrate(
    State(state): State<Arc<ServiceState>>,
    caller: Caller,
    Path(name): Path<String>,
    QueryParams(tenant_query): QueryParams<TenantQuery>,
    Body(migrate): Body<Migrate>,
) -> Result<Json<Vm>, HttpProblem> {
    caller.must_be(&super::hosts::OPERATORS)?;
    let vm = find(&state, &caller, name, tenant_query).await?;
    let id = vm.id;
    let done = state.migrate(&vm, migrate.to, &caller.name).await?;
    match tokio::time::timeout(ANSWER_TIMEOUT, done).await {
        Ok(Ok(done)) => match done.problem {
            None => Ok(Json(state.with(move |state| state.store.vm(id)).await?)),
            Some(problem) => Err(HttpProblem::new(ProblemKind::NotMoved, problem)),
        },
        _ => {
            let detail =
                "the migration has not ended yet and continues: see the state of the virtual machine";
            Err(HttpProblem::new(ProblemKind::NoAnswer, detail.into()))
        }
    }
}
