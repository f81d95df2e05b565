//! Migration of a running virtual machine to another host. Until it ends, the virtual machine holds its placements on both
//! hosts; its quota is counted once, because that depends on its request alone.

use super::sql::{Database, values};
use super::tables::{
    self, Result, event, expect, host_id, now, release_placement, require_all, reserve_changes,
};
use super::{Intent, StoreError, Vm, VmId, VmState, members};
use crate::placement::Placement;

/// Reserves `target` on another host. Returns the virtual machine's present placement, and the IDs of both hosts.
fn reserve_elsewhere<'a>(
    db: &dyn Database,
    vm: &'a Vm,
    target: &Placement,
) -> Result<(&'a Placement, i64, i64)> {
    let id = vm.id;
    let conflict = |what: String| Err(StoreError::Conflict { host: target.host.clone(), what });
    let Some(place) = vm.placement.as_ref().filter(|place| place.host != target.host) else {
        return conflict(format!("virtual machine {id} is on it already"));
    };
    if let Some(device) = place.devices.first() {
        return conflict(format!(
            "virtual machine {id} has the device {device}, which cannot move to another host"
        ));
    }
    let (from, _) = host_id(db, &place.host)?;
    let (to, status) = host_id(db, &target.host)?;
    if status != "up" {
        return conflict(format!("it is {status}"));
    }
    members::check_other_host(db, to, id, &vm.request, target)?;
    require_all(db, &target.host, reserve_changes(to, id, target))?;
    Ok((place, from, to))
}

/// Moves a stopped virtual machine to another host, where it will start. Its old domain does not run.
pub(super) fn relocate_stopped(db: &dyn Database, id: VmId, target: &Placement) -> Result<Vm> {
    let old = tables::vm(db, id)?;
    expect(&old, VmState::Stopped)?;
    let (place, from, to) = reserve_elsewhere(db, &old, target)?;
    release_placement(db, from, id, place)?;
    db.run("UPDATE members SET host = ?2 WHERE vm = ?1", values![id, to])?;
    let sql =
        "UPDATE vms SET host = ?2, placement = ?3, version = version + 1, updated_at = ?4 WHERE id = ?1";
    db.run(sql, values![id, to, serde_json::to_string(target)?, now()])?;
    for host in [from, to] {
        event(db, Some(id), Some(host), 0, "relocated", &format!("from {} to {}", place.host, target.host))?;
    }
    tables::vm(db, id)
}

/// Reserves `target` on another host and marks the virtual machine as migrating.
pub(super) fn begin(db: &dyn Database, id: VmId, target: &Placement) -> Result<Vm> {
    let old = tables::vm(db, id)?;
    expect(&old, VmState::Running)?;
    if old.intent != Intent::Run {
        let what = format!("virtual machine {id} is to {}", old.intent.name());
        return Err(StoreError::Conflict { host: target.host.clone(), what });
    }
    let (place, from, to) = reserve_elsewhere(db, &old, target)?;
    let sql = "UPDATE vms SET state = 'migrating', target = ?2, target_host = ?3, version = version + 1, updated_at = ?4
        WHERE id = ?1";
    db.run(sql, values![id, serde_json::to_string(target)?, to, now()])?;
    event(db, Some(id), Some(from), 0, "migrating", &format!("to {}", target.host))?;
    event(db, Some(id), Some(to), 0, "migrating", &format!("from {}", place.host))?;
    tables::vm(db, id)
}

/// Ends a migration, on the target host unless there is a `problem`.
pub(super) fn end(db: &dyn Database, id: VmId, problem: Option<&str>) -> Result<Vm> {
    let old = tables::vm(db, id)?;
    expect(&old, VmState::Migrating)?;
    let (Some(place), Some(target)) = (&old.placement, &old.target) else {
        return Err(StoreError::Database(format!("virtual machine {id} is migrating without a target")));
    };
    let ((from, _), (to, _)) = (host_id(db, &place.host)?, host_id(db, &target.host)?);
    let (stays, at, leaves, left) = match problem {
        None => (target, to, place, from),
        Some(_) => (place, from, target, to),
    };
    release_placement(db, left, id, leaves)?;
    db.run("UPDATE members SET host = ?2 WHERE vm = ?1", values![id, at])?;
    let sql = "UPDATE vms SET state = 'running', host = ?2, placement = ?3, target = NULL, target_host = NULL, problem = ?4,
        version = version + 1, updated_at = ?5 WHERE id = ?1";
    db.run(sql, values![id, at, serde_json::to_string(stays)?, problem, now()])?;
    let (kind, text) = match problem {
        None => ("migrated", format!("from {} to {}", place.host, target.host)),
        Some(why) => ("not-migrated", format!("to {}: {why}", target.host)),
    };
    event(db, Some(id), Some(at), 0, kind, &text)?;
    event(db, Some(id), Some(left), 0, kind, &text)?;
    tables::vm(db, id)
}
