//! Changes for hosts that an operator has declared dead: virtual machines leave without an agent's help, and the host
//! is removed. The operator asserts that none of the host's domains runs any more.

use super::sql::{Database, values};
use super::tables::{self, Result, event, host_id, now, release_placement, require_all, reserve_changes};
use super::{Intent, StoreError, Vm, VmId, VmState, accounts, members};
use crate::placement::Placement;

/// ID of the host of a virtual machine.
///
/// # Errors
/// If the virtual machine is deleted, or its host was not forced down.
fn dead_host_of(db: &dyn Database, vm: &Vm) -> Result<i64> {
    let unknown = || StoreError::Unknown { what: format!("virtual machine {} that is not deleted", vm.id) };
    let name = &vm.placement.as_ref().ok_or_else(unknown)?.host;
    let (host, status) = host_id(db, name)?;
    match &*status {
        "forced-down" => Ok(host),
        _ => {
            let what = format!("the host is {status}: declare it dead first (force-down)");
            Err(StoreError::Conflict { host: name.clone(), what })
        }
    }
}

/// Releases all resources of a virtual machine on its host, and on the target of its migration.
fn release_all(db: &dyn Database, vm: &Vm) -> Result<()> {
    for place in vm.placement.iter().chain(&vm.target) {
        let (host, _) = host_id(db, &place.host)?;
        release_placement(db, host, vm.id, place)?;
        if vm.state == VmState::Migrating {
            // Schedulers reread the hosts named in events, here the target of the migration.
            event(db, Some(vm.id), Some(host), 0, "not-migrated", "its host was declared dead")?;
        }
    }
    db.run("DELETE FROM members WHERE vm = ?1", values![vm.id])?;
    Ok(())
}

/// Deletes a virtual machine of a dead host.
pub(super) fn force_delete(db: &dyn Database, id: VmId) -> Result<Vm> {
    let old = tables::vm(db, id)?;
    let host = dead_host_of(db, &old)?;
    accounts::release_usage(db, &old.request)?;
    release_all(db, &old)?;
    let sql =
        "UPDATE vms SET state = 'deleted', intent = 'delete', host = NULL, placement = NULL, target = NULL, target_host = NULL,
        version = version + 1, updated_at = ?2 WHERE id = ?1";
    db.run(sql, values![id, now()])?;
    event(db, Some(id), Some(host), 0, "deleted", "forced: its host was declared dead")?;
    tables::vm(db, id)
}

/// Assigns a virtual machine of a dead host a placement on another host.
pub(super) fn evacuate(db: &dyn Database, id: VmId, placement: &Placement) -> Result<Vm> {
    let old = tables::vm(db, id)?;
    let from = dead_host_of(db, &old)?;
    let conflict = |what: String| Err(StoreError::Conflict { host: placement.host.clone(), what });
    let state = match old.intent {
        Intent::Run => VmState::Reserved,
        Intent::Stop => VmState::Stopped,
        Intent::Delete => return conflict(format!("virtual machine {id} is to be deleted")),
    };
    let (to, status) = host_id(db, &placement.host)?;
    if status != "up" {
        return conflict(format!("it is {status}"));
    }
    release_all(db, &old)?;
    members::check(db, to, None, &old.request, placement)?;
    require_all(db, &placement.host, reserve_changes(to, id, placement))?;
    for group in &placement.groups {
        db.run("INSERT INTO members (grp, vm, host) VALUES (?1, ?2, ?3)", values![group, id, to])?;
    }
    let sql = "UPDATE vms SET state = ?2, host = ?3, placement = ?4, target = NULL, target_host = NULL, problem = NULL,
        version = version + 1, updated_at = ?5 WHERE id = ?1";
    db.run(sql, values![id, state.name(), to, serde_json::to_string(placement)?, now()])?;
    event(db, Some(id), Some(from), 0, "evacuated", &format!("to {}", placement.host))?;
    event(db, Some(id), Some(to), 0, "evacuated", "from a dead host")?;
    tables::vm(db, id)
}

/// Removes a host without virtual machines, its agents' tokens and its alarms.
pub(super) fn remove_host(db: &dyn Database, name: &str) -> Result<()> {
    let (host, _) = host_id(db, name)?;
    let sql = "SELECT count(*) FROM vms WHERE (host = ?1 OR target_host = ?1) AND state <> 'deleted'";
    let vms: i64 = db.row(sql, values![host])?.map_or(Ok(0), |row| row.get(0))?;
    if vms > 0 {
        let what = format!("{vms} virtual machines are on it: evacuate or delete them first");
        return Err(StoreError::Conflict { host: name.into(), what });
    }
    for table in ["exclusive_cpus", "pools", "nodes", "devices"] {
        db.run(&format!("DELETE FROM {table} WHERE host = ?1"), values![host])?;
    }
    // SQLite may use the ID for another host later.
    db.run("UPDATE events SET host = NULL WHERE host = ?1", values![host])?;
    db.run("DELETE FROM hosts WHERE id = ?1", values![host])?;
    let sql = "UPDATE alarms SET cleared_at = ?2 WHERE host = ?1 AND cleared_at IS NULL";
    db.run(sql, values![name, now()])?;
    db.run("DELETE FROM tokens WHERE role = 'agent' AND scope = ?1", values![name])?;
    event(db, None, None, 0, HOST_REMOVED, name)
}

/// Type of the event of a removed host. Its text is the host's name.
pub(super) const HOST_REMOVED: &str = "host-removed";
