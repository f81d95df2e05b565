//! The table updates of each operation, inside a transaction that the caller begins and commits.

mod at_once;

pub(super) use at_once::result as reserved_by;

use super::sql::{Database, Failure, JOB_SAVEPOINT, Query, Row, Value, values};
use super::{Intent, Reservation, Reserved, StoreError, Vm, VmId, VmState, members};
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

/// Seconds since 1970; 0 if the clock is earlier.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}

/// Converts a constraint violation into a conflict on `host`.
fn conflict(host: &str, failure: Failure) -> StoreError {
    match failure.is_constraint() {
        true => StoreError::Conflict { host: host.into(), what: failure.text },
        false => failure.into(),
    }
}

fn host_query(name: &str) -> Query<'static> {
    Query::new("SELECT id, status FROM hosts WHERE name = ?1", values![name])
}

pub(super) fn host_id(db: &dyn Database, name: &str) -> Result<(i64, String)> {
    let query = host_query(name);
    parse_host_id(name, db.row(&query.sql, &query.values)?.as_ref())
}

fn parse_host_id(name: &str, found: Option<&Row>) -> Result<(i64, String)> {
    let found = found.ok_or_else(|| StoreError::Unknown { what: format!("host called {name}") })?;
    Ok((found.get(0)?, found.get(1)?))
}

fn event_query(
    db: &dyn Database,
    vm: Option<VmId>,
    host: Option<i64>,
    origin: i64,
    kind: &str,
    text: &str,
) -> Query<'static> {
    let sql =
        "INSERT INTO events (at, vm, host, origin, kind, text, actor) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    Query::new(sql, values![now(), vm, host, origin, kind, text, db.actor()])
}

pub(super) fn event(
    db: &dyn Database,
    vm: Option<VmId>,
    host: Option<i64>,
    origin: i64,
    kind: &str,
    text: &str,
) -> Result<()> {
    let query = event_query(db, vm, host, origin, kind, text);
    db.run(&query.sql, &query.values)?;
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
        .ok_or_else(|| StoreError::Database("a resource claim was not stored".into()))
}

/// Inserts several rows with one statement. With one statement per row, describing a large fleet would take most of its
/// time here.
fn insert_query(into: &str, rows: &[Vec<Value>], on_conflict: &str) -> Option<Query<'static>> {
    let width = rows.first()?.len();
    let row = |at: usize| {
        let parameters: Vec<String> = (1..=width).map(|column| format!("?{}", at * width + column)).collect();
        format!("({})", parameters.join(", "))
    };
    let parameters: Vec<String> = (0..rows.len()).map(row).collect();
    let sql = format!("INSERT INTO {into} VALUES {} {on_conflict}", parameters.join(", "));
    Some(Query::new(sql, &rows.concat()))
}

fn insert_rows(
    db: &dyn Database,
    into: &str,
    rows: &[Vec<Value>],
    on_conflict: &str,
) -> std::result::Result<(), Failure> {
    insert_query(into, rows, on_conflict).map_or(Ok(0), |query| db.run(&query.sql, &query.values)).map(drop)
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
        remove_missing(db, id, host)?;
    }
    let cpus = |node: &Node| {
        let usable = node.cpus().difference(&host.reserved).len() as u32;
        i64::from(usable.saturating_sub(host.foreign.node_cpus(node.id, percent)))
    };
    let nodes = host.nodes.iter().map(|node| values![id, node.id, cpus(node), percent].to_vec());
    let nodes: Vec<_> = nodes.collect();
    let changed = "ON CONFLICT (host, node) DO UPDATE
        SET cpus = excluded.cpus, percent = excluded.percent, version = nodes.version + 1";
    insert_rows(db, "nodes (host, node, cpus, percent)", &nodes, changed).map_err(refused)?;
    let pools = host.nodes.iter().flat_map(|node| {
        node.memory.iter().map(|pool| values![id, node.id, pool.page_kib, pool.mib as i64].to_vec())
    });
    let pools: Vec<_> = pools.collect();
    let changed = "ON CONFLICT (host, node, page_kib) DO UPDATE
        SET total_mib = excluded.total_mib, version = pools.version + 1";
    insert_rows(db, "pools (host, node, page_kib, total_mib)", &pools, changed).map_err(refused)?;
    let devices = host.devices.iter().map(|device| values![id, &device.name, device.slots].to_vec());
    let devices: Vec<_> = devices.collect();
    let changed = "ON CONFLICT (host, name) DO UPDATE SET slots = excluded.slots";
    insert_rows(db, "devices (host, name, slots)", &devices, changed).map_err(refused)?;
    if !is_new {
        check_exclusive_cpus(db, id, host)?;
    }
    event(db, None, Some(id), 0, "described", "")
}

/// Sets the totals of removed nodes, pools and devices to 0. The constraints reject that if any of them is in use.
fn remove_missing(db: &dyn Database, id: i64, host: &Host) -> Result<()> {
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

/// Dedicated CPUs must still exist and must not have become reserved for the host.
fn check_exclusive_cpus(db: &dyn Database, id: i64, host: &Host) -> Result<()> {
    let all: crate::cpus::CpuSet =
        host.nodes.iter().flat_map(|n| n.cpus().iter().collect::<Vec<_>>()).collect();
    let free = all.difference(&host.reserved);
    for row in db.rows("SELECT cpu FROM exclusive_cpus WHERE host = ?1", values![id])? {
        let cpu: u32 = row.get(0)?;
        if !free.contains(cpu) {
            let what =
                format!("CPU {cpu} is dedicated to a virtual machine, but the new description lacks it");
            return Err(StoreError::Conflict { host: host.name.clone(), what });
        }
    }
    Ok(())
}

/// A statement that must change at least one row, and the error text if it does not.
pub(super) struct RequiredChange {
    query: Query<'static>,
    error_if_unchanged: String,
}

impl RequiredChange {
    fn new(sql: &'static str, values: &[Value], error_if_unchanged: String) -> Self {
        Self { query: Query::new(sql, values), error_if_unchanged }
    }
}

/// Runs all statements. A failure is a conflict on `host`.
pub(super) fn require_all(db: &dyn Database, host: &str, all: Vec<RequiredChange>) -> Result<()> {
    let (queries, wrong): (Vec<_>, Vec<_>) =
        all.into_iter().map(|must| (must.query, must.error_if_unchanged)).unzip();
    let answers = db.run_all(&queries).map_err(|failure| conflict(host, failure))?;
    match answers.iter().zip(wrong).find(|(answer, _)| answer.changed == 0) {
        Some((_, what)) => Err(StoreError::Conflict { host: host.into(), what }),
        None => Ok(()),
    }
}

/// Adds (`sign` 1) or subtracts (`sign` -1) a placement's resources from its host's totals.
fn total_changes(host: i64, placement: &Placement, sign: i64) -> Vec<RequiredChange> {
    let (tally, mut all) = (placement.tally(), Vec::new());
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
        let values = values![host, node, exclusive * sign, shared * sign];
        all.push(RequiredChange::new(sql, values, format!("there is no node {node}")));
    }
    for ((node, page_kib), mib) in tally.memory {
        let sql = "UPDATE pools SET used_mib = used_mib + ?4, version = version + 1
            WHERE host = ?1 AND node = ?2 AND page_kib = ?3";
        let values = values![host, node, page_kib, mib as i64 * sign];
        all.push(RequiredChange::new(sql, values, format!("node {node} has no pages of {page_kib} KiB")));
    }
    for (name, slots) in tally.devices {
        let sql = "UPDATE devices SET used = used + ?3 WHERE host = ?1 AND name = ?2";
        all.push(RequiredChange::new(
            sql,
            values![host, &name, i64::from(slots) * sign],
            format!("there is no device {name}"),
        ));
    }
    all
}

/// Reserves a placement: its dedicated CPUs, and its share of the host's totals.
pub(super) fn reserve_changes(host: i64, vm: VmId, placement: &Placement) -> Vec<RequiredChange> {
    let dedicated = placement.tally().exclusive;
    let dedicated: Vec<_> = dedicated.iter().map(|(_, cpu)| values![host, *cpu, vm].to_vec()).collect();
    let dedicated = insert_query("exclusive_cpus (host, cpu, vm)", &dedicated, "");
    let dedicated = dedicated
        .map(|query| RequiredChange { query, error_if_unchanged: "its CPUs were not reserved".into() });
    dedicated.into_iter().chain(total_changes(host, placement, 1)).collect()
}

fn reserve_placement(db: &dyn Database, host: i64, vm: VmId, placement: &Placement) -> Result<()> {
    require_all(db, &placement.host, reserve_changes(host, vm, placement))
}

pub(super) fn release_placement(db: &dyn Database, host: i64, vm: VmId, placement: &Placement) -> Result<()> {
    let sql = "DELETE FROM exclusive_cpus WHERE host = ?1 AND cpu = ?2 AND vm = ?3";
    let dedicated = placement.tally().exclusive.into_iter();
    let dedicated = dedicated.map(|(_, cpu)| {
        RequiredChange::new(sql, values![host, cpu, vm], format!("CPU {cpu} is not dedicated to it"))
    });
    require_all(db, &placement.host, dedicated.chain(total_changes(host, placement, -1)).collect())
}

fn key_query(request: &Request, key: &str) -> Query<'static> {
    Query::new("SELECT request, vm FROM keys WHERE tenant = ?1 AND key = ?2", values![&request.tenant, key])
}

fn answered_by_key(db: &dyn Database, request: &Request, known: Option<&Row>) -> Result<Option<Reserved>> {
    let Some(known) = known else { return Ok(None) };
    let (earlier, id): (String, VmId) = (known.get(0)?, known.get(1)?);
    if earlier != serde_json::to_string(request)? {
        return Err(StoreError::KeyReused);
    }
    Ok(Some(Reserved { vm: vm(db, id)?, replayed: true }))
}

/// Returns the earlier answer to a request with this key.
pub(super) fn earlier_answer(db: &dyn Database, request: &Request, key: &str) -> Result<Option<Reserved>> {
    let query = key_query(request, key);
    answered_by_key(db, request, db.row(&query.sql, &query.values)?.as_ref())
}

/// A reservation as one statement, unless it has groups, which are checked step by step. The answer is read by
/// [`reserved_by`].
pub(super) fn reserve_statement(
    db: &dyn Database,
    reservation: &Reservation,
    created_at: i64,
) -> Option<Query<'static>> {
    let can_be_one = db.combines_statements() && reservation.request.groups.is_empty();
    can_be_one.then(|| at_once::statement(db, reservation, created_at).ok()).flatten()
}

/// Makes a reservation in one round trip. If that fails, undoes the attempt and makes the reservation step by step,
/// which finds an earlier answer or the reason of the failure. A request with groups is always checked step by step.
///
/// Must run inside the savepoint [`JOB_SAVEPOINT`].
pub(super) fn reserve(db: &dyn Database, reservation: &Reservation) -> Result<Reserved> {
    if reservation.request.groups.is_empty() {
        if let Some(reserved) = at_once::reserve(db, reservation)? {
            return Ok(reserved);
        }
        db.run(&format!("ROLLBACK TO SAVEPOINT {JOB_SAVEPOINT}"), &[])?;
    }
    reserve_by_steps(db, reservation)
}

/// Makes a reservation in three round trips: one reads the host and earlier answers, one inserts the row that assigns
/// the ID, and one makes all other changes.
fn reserve_by_steps(db: &dyn Database, reservation: &Reservation) -> Result<Reserved> {
    let (request, placement) = (&reservation.request, &reservation.placement);
    let queries: Vec<_> = [host_query(&placement.host)]
        .into_iter()
        .chain(reservation.key.iter().map(|key| key_query(request, key)))
        .collect();
    let known = db.run_all(&queries)?;
    let key = known.get(1).and_then(|answer| answer.rows.first());
    if let Some(before) = answered_by_key(db, request, key)? {
        return Ok(before);
    }
    let Some(found) = known[0].rows.first() else {
        let what = "it was removed".into();
        return Err(StoreError::Conflict { host: placement.host.clone(), what });
    };
    let (host, status) = parse_host_id(&placement.host, Some(found))?;
    if status != "up" {
        return Err(StoreError::Conflict { host: placement.host.clone(), what: format!("it is {status}") });
    }
    members::check(db, host, None, request, placement)?;
    let created_at = now();
    let id = insert_vm(db, host, request, placement, created_at)?;
    require_all(db, &placement.host, reservation_changes(db, host, id, reservation)?)?;
    Ok(reserved(id, reservation, created_at))
}

/// A new virtual machine.
fn reserved(id: VmId, reservation: &Reservation, created_at: i64) -> Reserved {
    let vm = Vm {
        id,
        request: reservation.request.clone(),
        state: VmState::Reserved,
        intent: Intent::Run,
        placement: Some(reservation.placement.clone()),
        target: None,
        problem: None,
        version: 1,
        created_at,
    };
    Reserved { vm, replayed: false }
}

/// Inserts the row of a new virtual machine within its tenant's quota. The row's key is the virtual machine's ID.
fn insert_vm(
    db: &dyn Database,
    host: i64,
    request: &Request,
    placement: &Placement,
    created_at: i64,
) -> Result<VmId> {
    let sql = "INSERT INTO vms (tenant, name, request, state, host, placement, created_at, updated_at)
        VALUES (?1, ?2, ?3, 'reserved', ?4, ?5, ?6, ?6) RETURNING id";
    let (body, placed) = (serde_json::to_string(request)?, serde_json::to_string(placement)?);
    let named = Query::new(sql, values![&request.tenant, &request.name, &body, host, placed, created_at]);
    let made =
        db.run_all(&[named, super::accounts::charge_query(request)]).map_err(|failure| {
            match failure.is_constraint() {
                true => StoreError::Exists { tenant: request.tenant.clone(), name: request.name.clone() },
                false => failure.into(),
            }
        })?;
    super::accounts::check_quota(request, &made[1])?;
    made[0].rows.first().ok_or_else(|| StoreError::Database("a new row has no id".into()))?.get(0)
}

/// The statements of a reservation other than inserting its row.
fn reservation_changes(
    db: &dyn Database,
    host: i64,
    id: VmId,
    reservation: &Reservation,
) -> Result<Vec<RequiredChange>> {
    let (request, placement) = (&reservation.request, &reservation.placement);
    let mut all = reserve_changes(host, id, placement);
    for group in &placement.groups {
        let sql = "INSERT INTO members (grp, vm, host) VALUES (?1, ?2, ?3)";
        all.push(RequiredChange::new(
            sql,
            values![group, id, host],
            format!("it is not a member of group {group}"),
        ));
    }
    if let Some(key) = &reservation.key {
        let sql = "INSERT INTO keys (tenant, key, request, vm, created_at) VALUES (?1, ?2, ?3, ?4, ?5)";
        let values = values![&request.tenant, key, serde_json::to_string(request)?, id, now()];
        all.push(RequiredChange::new(sql, values, "its idempotency key was not stored".into()));
    }
    let event = event_query(db, Some(id), Some(host), reservation.origin, "reserved", "");
    all.push(RequiredChange { query: event, error_if_unchanged: "nothing was recorded".into() });
    Ok(all)
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
    // A deletion is final, because it has already been acknowledged to the owner.
    let sql = "UPDATE vms SET intent = ?2, version = version + 1, updated_at = ?3
        WHERE id = ?1 AND state <> 'deleted' AND (intent <> 'delete' OR ?2 = 'delete')";
    if db.run(sql, values![id, intent.name(), now()])? == 0 {
        return Err(StoreError::Unknown { what: format!("virtual machine {id} that is not deleted") });
    }
    event(db, Some(id), None, 0, "intent", intent.name())?;
    vm(db, id)
}

pub(super) fn expect(vm: &Vm, expected: VmState) -> Result<()> {
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
    let moves = |state| matches!(state, VmState::Moving | VmState::Migrating);
    if !from.may_become(to) || moves(from) || moves(to) {
        return Err(StoreError::NotAllowed { from, to });
    }
    let host = old.placement.as_ref().map(|p| host_id(db, &p.host)).transpose()?.map(|h| h.0);
    if to == VmState::Deleted {
        super::accounts::release_usage(db, &old.request)?;
    }
    if to == VmState::Deleted
        && let (Some(placement), Some(host)) = (&old.placement, host)
    {
        release_placement(db, host, id, placement)?;
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
        let what = "it is another host, which needs a migration".into();
        return Err(StoreError::Conflict { host: target.host.clone(), what });
    }
    let (host, _) = host_id(db, &target.host)?;
    members::check(db, host, Some(id), &old.request, target)?;
    reserve_placement(db, host, id, target)?;
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
    members::check(db, host, Some(id), request, placement)?;
    super::accounts::release_usage(db, &old.request)?;
    let charged = db.run_all(&[super::accounts::charge_query(request)])?;
    super::accounts::check_quota(request, &charged[0])?;
    release_placement(db, host, id, place)?;
    reserve_placement(db, host, id, placement)?;
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
    release_placement(db, host, id, leaves)?;
    let sql = "UPDATE vms SET state = 'running', placement = ?2, target = NULL, version = version + 1, updated_at = ?3
        WHERE id = ?1";
    db.run(sql, values![id, serde_json::to_string(stays)?, now()])?;
    event(db, Some(id), Some(host), 0, if arrived { "moved" } else { "moved-back" }, "")?;
    vm(db, id)
}
