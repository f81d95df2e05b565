//! What each change does to the tables, inside a transaction that is somebody else's.
//! Not when it is committed (`jobs`).

use super::sql::{Database, Failure, Row, Value, values};
use super::{Intent, Reservation, Reserved, StoreError, Vm, VmId, VmState, groups};
use crate::host::{Host, Node};
use crate::placement::Placement;
use crate::request::Request;
use std::time::{SystemTime, UNIX_EPOCH};

impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        StoreError::Database(format!("a body cannot be read: {error}"))
    }
}

pub(super) type Result<T> = std::result::Result<T, StoreError>;

/// Seconds since 1970; 0 if the clock is before that.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}

/// Makes a refusal by a constraint a conflict on `host`.
fn conflict(host: &str, failure: Failure) -> StoreError {
    match failure.is_constraint() {
        true => StoreError::Conflict { host: host.into(), what: failure.text },
        false => failure.into(),
    }
}

pub(super) fn host_id(db: &dyn Database, name: &str) -> Result<(i64, String)> {
    let found = db.row("SELECT id, status FROM hosts WHERE name = ?1", values![name])?;
    let found = found.ok_or_else(|| StoreError::Unknown { what: format!("host called {name}") })?;
    Ok((found.get(0)?, found.get(1)?))
}

fn event(
    db: &dyn Database,
    vm: Option<VmId>,
    host: Option<i64>,
    origin: i64,
    kind: &str,
    text: &str,
) -> Result<()> {
    let sql = "INSERT INTO events (at, vm, host, origin, kind, text) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    db.run(sql, values![now(), vm, host, origin, kind, text])?;
    Ok(())
}

pub(super) fn record(
    db: &dyn Database,
    vm: Option<VmId>,
    host: Option<&str>,
    kind: &str,
    text: &str,
) -> Result<()> {
    let host = host.map(|h| host_id(db, h)).transpose()?.map(|h| h.0);
    event(db, vm, host, 0, kind, text)
}

pub(super) fn claim_host(
    db: &dyn Database,
    host: &str,
    machine: &str,
    instead_of: Option<&str>,
) -> Result<String> {
    let (id, _) = host_id(db, host)?;
    let sql = "UPDATE hosts SET agent = ?2, seen_at = ?4
        WHERE id = ?1 AND (agent IS NULL OR agent = ?2 OR agent = ?3)";
    db.run(sql, values![id, machine, instead_of, now()])?;
    let found = db.row("SELECT agent FROM hosts WHERE id = ?1", values![id])?;
    found
        .map_or(Ok(None), |row| row.get(0))?
        .ok_or_else(|| StoreError::Database("a claim was not kept".into()))
}

/// Adds rows of numbers in one statement: a statement each takes most of the time that a large fleet needs to be described.
fn add(
    db: &dyn Database,
    into: &str,
    rows: &[Vec<Value>],
    on_conflict: &str,
) -> std::result::Result<(), Failure> {
    let Some(width) = rows.first().map(Vec::len) else { return Ok(()) };
    let row = |at: usize| {
        let places: Vec<String> = (1..=width).map(|column| format!("?{}", at * width + column)).collect();
        format!("({})", places.join(", "))
    };
    let places: Vec<String> = (0..rows.len()).map(row).collect();
    let sql = format!("INSERT INTO {into} VALUES {} ON CONFLICT {on_conflict}", places.join(", "));
    db.run(&sql, &rows.concat()).map(drop)
}

pub(super) fn put_host(db: &dyn Database, host: &Host, percent: u32) -> Result<()> {
    let body = serde_json::to_string(host)?;
    let is_new = db.row("SELECT id FROM hosts WHERE name = ?1", values![&host.name])?.is_none();
    let sql = "INSERT INTO hosts (name, body, seen_at) VALUES (?1, ?2, ?3)
        ON CONFLICT (name) DO UPDATE SET body = excluded.body, seen_at = excluded.seen_at";
    db.run(sql, values![&host.name, &body, now()])?;
    let (id, _) = host_id(db, &host.name)?;
    let refused = |error| conflict(&host.name, error);
    if !is_new {
        take_away_what_is_gone(db, id, host)?;
    }
    let cpus = |node: &Node| node.cpus().difference(&host.reserved).len() as i64;
    let nodes = host.nodes.iter().map(|node| values![id, node.id, cpus(node), percent].to_vec());
    let nodes: Vec<_> = nodes.collect();
    let changed = "(host, node) DO UPDATE
        SET cpus = excluded.cpus, percent = excluded.percent, version = nodes.version + 1";
    add(db, "nodes (host, node, cpus, percent)", &nodes, changed).map_err(refused)?;
    let pools = host.nodes.iter().flat_map(|node| {
        node.memory.iter().map(|pool| values![id, node.id, pool.page_kib, pool.mib as i64].to_vec())
    });
    let pools: Vec<_> = pools.collect();
    let changed = "(host, node, page_kib) DO UPDATE
        SET total_mib = excluded.total_mib, version = pools.version + 1";
    add(db, "pools (host, node, page_kib, total_mib)", &pools, changed).map_err(refused)?;
    for device in &host.devices {
        let sql = "INSERT INTO devices (host, name, slots) VALUES (?1, ?2, ?3)
            ON CONFLICT (host, name) DO UPDATE SET slots = excluded.slots";
        db.run(sql, values![id, &device.name, device.slots]).map_err(refused)?;
    }
    if !is_new {
        check_exclusive_cpus(db, id, host)?;
    }
    event(db, None, Some(id), 0, "described", "")
}

/// What is gone from the description must not be in use: its totals become 0, which the constraints refuse if it is.
fn take_away_what_is_gone(db: &dyn Database, id: i64, host: &Host) -> Result<()> {
    let refused = |error| conflict(&host.name, error);
    for row in db.rows("SELECT node FROM nodes WHERE host = ?1", values![id])? {
        let node: u32 = row.get(0)?;
        if !host.nodes.iter().any(|n| n.id == node) {
            let sql = "UPDATE nodes SET cpus = 0 WHERE host = ?1 AND node = ?2";
            db.run(sql, values![id, node]).map_err(refused)?;
        }
    }
    for row in db.rows("SELECT node, page_kib FROM pools WHERE host = ?1", values![id])? {
        let (node, page_kib): (u32, i64) = (row.get(0)?, row.get(1)?);
        let mut pools = host.nodes.iter().filter(|n| n.id == node).flat_map(|n| &n.memory);
        if !pools.any(|p| i64::from(p.page_kib) == page_kib) {
            let sql = "UPDATE pools SET total_mib = 0 WHERE host = ?1 AND node = ?2 AND page_kib = ?3";
            db.run(sql, values![id, node, page_kib]).map_err(refused)?;
        }
    }
    for row in db.rows("SELECT name FROM devices WHERE host = ?1", values![id])? {
        let name: String = row.get(0)?;
        if !host.devices.iter().any(|d| d.name == name) {
            let sql = "UPDATE devices SET slots = 0 WHERE host = ?1 AND name = ?2";
            db.run(sql, values![id, name]).map_err(refused)?;
        }
    }
    Ok(())
}

/// CPUs that are somebody's own must still be there and must not have become the host's.
fn check_exclusive_cpus(db: &dyn Database, id: i64, host: &Host) -> Result<()> {
    let all: crate::cpus::CpuSet =
        host.nodes.iter().flat_map(|n| n.cpus().iter().collect::<Vec<_>>()).collect();
    let free = all.difference(&host.reserved);
    for row in db.rows("SELECT cpu FROM exclusive_cpus WHERE host = ?1", values![id])? {
        let cpu: u32 = row.get(0)?;
        if !free.contains(cpu) {
            let what = format!("CPU {cpu} is a virtual machine's own and missing from the new description");
            return Err(StoreError::Conflict { host: host.name.clone(), what });
        }
    }
    Ok(())
}

/// Takes (`sign` 1) or gives back (`sign` -1) what a placement needs.
fn count(db: &dyn Database, host: i64, placement: &Placement, sign: i64) -> Result<()> {
    let tally = placement.tally();
    let refused = |error| conflict(&placement.host, error);
    let missing = |what: String| StoreError::Conflict { host: placement.host.clone(), what };
    let mut cpus =
        tally.shared.iter().map(|(node, vcpus)| (*node, (0i64, i64::from(*vcpus)))).collect::<Vec<_>>();
    for (node, _) in &tally.exclusive {
        match cpus.iter_mut().find(|c| c.0 == *node) {
            Some(found) => found.1.0 += 1,
            None => cpus.push((*node, (1, 0))),
        }
    }
    for (node, (exclusive, shared)) in cpus {
        let sql = "UPDATE nodes SET exclusive = exclusive + ?3, shared = shared + ?4, version = version + 1
            WHERE host = ?1 AND node = ?2";
        let changed = db.run(sql, values![host, node, exclusive * sign, shared * sign]).map_err(refused)?;
        if changed == 0 {
            return Err(missing(format!("there is no node {node}")));
        }
    }
    for ((node, page_kib), mib) in tally.memory {
        let sql = "UPDATE pools SET used_mib = used_mib + ?4, version = version + 1
            WHERE host = ?1 AND node = ?2 AND page_kib = ?3";
        if db.run(sql, values![host, node, page_kib, mib as i64 * sign]).map_err(refused)? == 0 {
            return Err(missing(format!("node {node} has no pages of {page_kib} KiB")));
        }
    }
    for (name, slots) in tally.devices {
        let sql = "UPDATE devices SET used = used + ?3 WHERE host = ?1 AND name = ?2";
        if db.run(sql, values![host, &name, i64::from(slots) * sign]).map_err(refused)? == 0 {
            return Err(missing(format!("there is no device {name}")));
        }
    }
    Ok(())
}

fn take(db: &dyn Database, host: i64, vm: VmId, placement: &Placement) -> Result<()> {
    for (_, cpu) in placement.tally().exclusive {
        let sql = "INSERT INTO exclusive_cpus (host, cpu, vm) VALUES (?1, ?2, ?3)";
        db.run(sql, values![host, cpu, vm]).map_err(|error| conflict(&placement.host, error))?;
    }
    count(db, host, placement, 1)
}

fn give(db: &dyn Database, host: i64, vm: VmId, placement: &Placement) -> Result<()> {
    for (_, cpu) in placement.tally().exclusive {
        let sql = "DELETE FROM exclusive_cpus WHERE host = ?1 AND cpu = ?2 AND vm = ?3";
        if db.run(sql, values![host, cpu, vm])? == 0 {
            let what = format!("CPU {cpu} is not its own");
            return Err(StoreError::Conflict { host: placement.host.clone(), what });
        }
    }
    count(db, host, placement, -1)
}

/// What a request with this key was answered before.
pub(super) fn answered(db: &dyn Database, request: &Request, key: &str) -> Result<Option<Reserved>> {
    let sql = "SELECT request, vm FROM keys WHERE tenant = ?1 AND key = ?2";
    let Some(known) = db.row(sql, values![&request.tenant, key])? else { return Ok(None) };
    let (earlier, id): (String, VmId) = (known.get(0)?, known.get(1)?);
    if earlier != serde_json::to_string(request)? {
        return Err(StoreError::KeyReused);
    }
    Ok(Some(Reserved { id, placement: vm(db, id)?.placement, replayed: true }))
}

pub(super) fn reserve(db: &dyn Database, reservation: &Reservation) -> Result<Reserved> {
    let (request, placement) = (&reservation.request, &reservation.placement);
    let body = serde_json::to_string(request)?;
    if let Some(key) = &reservation.key
        && let Some(before) = answered(db, request, key)?
    {
        return Ok(before);
    }
    let (host, status) = host_id(db, &placement.host)?;
    if status != "up" {
        return Err(StoreError::Conflict { host: placement.host.clone(), what: format!("it is {status}") });
    }
    groups::check(db, host, None, request, placement)?;
    let sql = "INSERT INTO vms (tenant, name, request, state, host, placement, created_at, updated_at)
        VALUES (?1, ?2, ?3, 'reserved', ?4, ?5, ?6, ?6) RETURNING id";
    let placed = serde_json::to_string(placement)?;
    let named = values![&request.tenant, &request.name, &body, host, placed, now()];
    let made = db.row(sql, named).map_err(|failure| match failure.is_constraint() {
        true => StoreError::Exists { tenant: request.tenant.clone(), name: request.name.clone() },
        false => failure.into(),
    })?;
    let made = made.ok_or_else(|| StoreError::Database("a new row has no number".into()))?;
    let id: VmId = made.get(0)?;
    super::accounts::charge(db, request)?;
    take(db, host, id, placement)?;
    for group in &placement.groups {
        db.run("INSERT INTO members (grp, vm, host) VALUES (?1, ?2, ?3)", values![group, id, host])?;
    }
    if let Some(key) = &reservation.key {
        let sql = "INSERT INTO keys (tenant, key, request, vm, created_at) VALUES (?1, ?2, ?3, ?4, ?5)";
        db.run(sql, values![&request.tenant, key, &body, id, now()])?;
    }
    event(db, Some(id), Some(host), reservation.origin, "reserved", "")?;
    Ok(Reserved { id, placement: Some(placement.clone()), replayed: false })
}

pub(super) const VM_COLUMNS: &str =
    "id, request, state, intent, placement, target, problem, version, created_at";

pub(super) fn read_vm(row: &Row) -> Result<Vm> {
    let id: VmId = row.get(0)?;
    let (request, state, intent): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
    let unknown = |what: &str| StoreError::Database(format!("virtual machine {id} has an unknown {what}"));
    let place = |text: Option<String>| text.map(|t| serde_json::from_str(&t)).transpose();
    Ok(Vm {
        id,
        request: serde_json::from_str(&request)?,
        state: VmState::named(&state).ok_or_else(|| unknown("state"))?,
        intent: Intent::named(&intent).ok_or_else(|| unknown("intent"))?,
        placement: place(row.get(4)?)?,
        target: place(row.get(5)?)?,
        problem: row.get(6)?,
        version: row.get(7)?,
        created_at: row.get(8)?,
    })
}

pub(super) fn vm(db: &dyn Database, id: VmId) -> Result<Vm> {
    let found = db.row(&format!("SELECT {VM_COLUMNS} FROM vms WHERE id = ?1"), values![id])?;
    read_vm(&found.ok_or_else(|| StoreError::Unknown { what: format!("virtual machine {id}") })?)
}

pub(super) fn set_intent(db: &dyn Database, id: VmId, intent: Intent) -> Result<Vm> {
    // What is to be deleted stays so: its owner was told.
    let sql = "UPDATE vms SET intent = ?2, version = version + 1, updated_at = ?3
        WHERE id = ?1 AND state <> 'deleted' AND (intent <> 'delete' OR ?2 = 'delete')";
    if db.run(sql, values![id, intent.name(), now()])? == 0 {
        return Err(StoreError::Unknown { what: format!("virtual machine {id} that lives") });
    }
    event(db, Some(id), None, 0, "intent", intent.name())?;
    vm(db, id)
}

fn expect(vm: &Vm, expected: VmState) -> Result<()> {
    match vm.state == expected {
        true => Ok(()),
        false => Err(StoreError::Stale { id: vm.id, expected, found: vm.state }),
    }
}

pub(super) fn transition(
    db: &dyn Database,
    id: VmId,
    from: VmState,
    to: VmState,
    problem: Option<&str>,
) -> Result<Vm> {
    let old = vm(db, id)?;
    expect(&old, from)?;
    if !from.may_become(to) || matches!((from, to), (VmState::Moving, _) | (_, VmState::Moving)) {
        return Err(StoreError::NotAllowed { from, to });
    }
    let host = old.placement.as_ref().map(|p| host_id(db, &p.host)).transpose()?.map(|h| h.0);
    if to == VmState::Deleted {
        super::accounts::discharge(db, &old.request)?;
    }
    if to == VmState::Deleted
        && let (Some(placement), Some(host)) = (&old.placement, host)
    {
        give(db, host, id, placement)?;
        db.run("DELETE FROM members WHERE vm = ?1", values![id])?;
        db.run("UPDATE vms SET placement = NULL, host = NULL WHERE id = ?1", values![id])?;
    }
    let sql = "UPDATE vms SET state = ?2, problem = ?3, version = version + 1, updated_at = ?4 WHERE id = ?1";
    db.run(sql, values![id, to.name(), problem, now()])?;
    event(db, Some(id), host, 0, to.name(), problem.unwrap_or(""))?;
    vm(db, id)
}

pub(super) fn begin_move(db: &dyn Database, id: VmId, target: &Placement) -> Result<Vm> {
    let old = vm(db, id)?;
    expect(&old, VmState::Running)?;
    if old.placement.as_ref().is_none_or(|p| p.host != target.host) {
        let what = "a move to another host is not made".into();
        return Err(StoreError::Conflict { host: target.host.clone(), what });
    }
    let (host, _) = host_id(db, &target.host)?;
    groups::check(db, host, Some(id), &old.request, target)?;
    take(db, host, id, target)?;
    let sql =
        "UPDATE vms SET state = 'moving', target = ?2, version = version + 1, updated_at = ?3 WHERE id = ?1";
    db.run(sql, values![id, serde_json::to_string(target)?, now()])?;
    event(db, Some(id), Some(host), 0, "moving", "")?;
    vm(db, id)
}

pub(super) fn resize(db: &dyn Database, id: VmId, request: &Request, placement: &Placement) -> Result<Vm> {
    let old = vm(db, id)?;
    expect(&old, VmState::Stopped)?;
    let Some(place) = old.placement.as_ref().filter(|p| p.host == placement.host) else {
        let what = "a virtual machine keeps its host when its size changes".into();
        return Err(StoreError::Conflict { host: placement.host.clone(), what });
    };
    let (host, _) = host_id(db, &place.host)?;
    groups::check(db, host, Some(id), request, placement)?;
    super::accounts::discharge(db, &old.request)?;
    super::accounts::charge(db, request)?;
    give(db, host, id, place)?;
    take(db, host, id, placement)?;
    let sql =
        "UPDATE vms SET request = ?2, placement = ?3, version = version + 1, updated_at = ?4 WHERE id = ?1";
    let (body, placed) = (serde_json::to_string(request)?, serde_json::to_string(placement)?);
    db.run(sql, values![id, body, placed, now()])?;
    event(db, Some(id), Some(host), 0, "resized", "")?;
    vm(db, id)
}

pub(super) fn end_move(db: &dyn Database, id: VmId, arrived: bool) -> Result<Vm> {
    let old = vm(db, id)?;
    expect(&old, VmState::Moving)?;
    let (Some(place), Some(target)) = (&old.placement, &old.target) else {
        return Err(StoreError::Database(format!("virtual machine {id} is moving without a target")));
    };
    let (host, _) = host_id(db, &place.host)?;
    let (stays, leaves) = if arrived { (target, place) } else { (place, target) };
    give(db, host, id, leaves)?;
    let sql = "UPDATE vms SET state = 'running', placement = ?2, target = NULL, version = version + 1, updated_at = ?3
        WHERE id = ?1";
    db.run(sql, values![id, serde_json::to_string(stays)?, now()])?;
    event(db, Some(id), Some(host), 0, if arrived { "moved" } else { "moved-back" }, "")?;
    vm(db, id)
}
