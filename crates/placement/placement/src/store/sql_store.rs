//! The store on top of any database supported by `sql`, with one connection for writing and one for reading. `tables`
//! and `accounts` hold the table logic, and `jobs` commits.

use super::file_identity::FileIdentity;
use super::jobs::{Change, ChangeTimes, WriteConnection, Writer};
use super::pending::Pending;
use super::sql::{ActingDatabase, Answer, Database, OpenTransaction, Query, Row, Value, values};
use super::sqlite::Checkpointer;
use super::tables::{self, Result, now, read_vm};
use super::{
    AgentStore, Alarm, AuditQuery, AuditRecord, Counts, Event, Intent, Quota, Reservation, Reserved, Store,
    StoreError, StoredHost, TenantUse, Token, Vm, VmId, VmQuery, VmState, accounts, audit_log, dead_hosts,
    migrations, retention,
};
use crate::host::Host;
use crate::inventory::HostStatus;
use crate::placement::Placement;
use crate::request::Request;
use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A store in a SQLite file ([`SqlStore::open_file`]) or a PostgreSQL database ([`SqlStore::connect`]).
pub struct SqlStore {
    connections: Arc<Connections>,
    /// Recorded in events.
    actor: Option<Arc<str>>,
}

struct Connections {
    // Declared first, so that it is dropped before the writer: the last connection to close empties SQLite's log.
    _checkpointer: Option<Checkpointer>,
    writer: Writer,
    reader: Mutex<WriteConnection>,
    file_identity: Option<Arc<FileIdentity>>,
}

impl std::fmt::Debug for SqlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlStore").finish_non_exhaustive()
    }
}

impl SqlStore {
    /// Creates a store from a write and a read connection. The tables must exist. With `file_identity` the store checks
    /// that the database's files stay in place.
    pub(super) fn from_connections(
        writing: WriteConnection,
        reading: WriteConnection,
        checkpointer: Option<Checkpointer>,
        file_identity: Option<Arc<FileIdentity>>,
    ) -> Result<Self> {
        let (writer, reader) = (Writer::start(writing)?, Mutex::new(reading));
        let connections = Connections { _checkpointer: checkpointer, writer, reader, file_identity };
        Ok(Self { connections: Arc::new(connections), actor: None })
    }

    /// From now on, records how long each phase of a change takes. Returns the times recorded so far.
    pub fn record_times(&self) -> Vec<ChangeTimes> {
        self.connections.writer.record_times()
    }

    fn read(&self) -> MutexGuard<'_, WriteConnection> {
        // A panic while reading leaves no inconsistent state.
        self.connections.reader.lock().ignore_poison()
    }

    fn change<T: Send + 'static>(
        &self,
        change: impl FnMut(&dyn Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.connections.writer.change(self.acting(change))
    }

    /// Makes a change record this store's actor.
    fn acting<T>(
        &self,
        mut change: impl FnMut(&dyn Database) -> Result<T> + Send + 'static,
    ) -> impl FnMut(&dyn Database) -> Result<T> + Send + 'static {
        let actor = self.actor.clone();
        move |db| with_actor(db, actor.as_deref(), &mut change)
    }
}

/// A reservation that is made by one statement where possible.
struct NewReservation {
    reservation: Reservation,
    actor: Option<Arc<str>>,
    /// Seconds since 1970, as in the last statement.
    created_at: i64,
}

/// Runs `work` on a connection that records the actor, if one is known.
fn with_actor<T>(db: &dyn Database, actor: Option<&str>, work: impl FnOnce(&dyn Database) -> T) -> T {
    match actor {
        Some(actor) => work(&ActingDatabase { db, actor }),
        None => work(db),
    }
}

impl Change<Reserved> for NewReservation {
    fn statement(&mut self, db: &dyn Database) -> Option<Query<'static>> {
        self.created_at = now();
        with_actor(db, self.actor.as_deref(), |db| {
            tables::reserve_statement(db, &self.reservation, self.created_at)
        })
    }

    fn result(&mut self, answer: &Answer) -> Option<Reserved> {
        tables::reserved_by(&self.reservation, self.created_at, answer).ok().flatten()
    }

    fn run(&mut self, db: &dyn Database) -> Result<Reserved> {
        with_actor(db, self.actor.as_deref(), |db| tables::reserve(db, &self.reservation))
    }
}

fn status_name(status: HostStatus) -> &'static str {
    match status {
        HostStatus::Up => "up",
        HostStatus::Draining => "draining",
        HostStatus::Emptying => "emptying",
        HostStatus::Down => "down",
        HostStatus::ForcedDown => "forced-down",
    }
}

fn parse_status(name: &str) -> HostStatus {
    match name {
        "up" => HostStatus::Up,
        "draining" => HostStatus::Draining,
        "emptying" => HostStatus::Emptying,
        "forced-down" => HostStatus::ForcedDown,
        _ => HostStatus::Down,
    }
}

fn read_host(row: &Row) -> Result<StoredHost> {
    let (body, status): (String, String) = (row.get(0)?, row.get(1)?);
    let host = serde_json::from_str(&body)?;
    Ok(StoredHost { host, status: parse_status(&status), seen_at: row.get(2)?, agent: row.get(3)? })
}

/// Number of hosts whose virtual machines are read by one statement.
const HOSTS_PER_QUERY: usize = 32;

fn reservations_on(db: &dyn Database, hosts: &[String]) -> Result<Vec<(StoredHost, Vec<Vm>)>> {
    let Some(last) = hosts.last() else { return Ok(Vec::new()) };
    // A fixed number of parameters, so that the statement can be prepared once. Unused ones repeat the last name.
    let names: Vec<Value> = (0..HOSTS_PER_QUERY).map(|at| hosts.get(at).unwrap_or(last).into()).collect();
    let places: Vec<String> = (1..=HOSTS_PER_QUERY).map(|at| format!("?{at}")).collect();
    let places = places.join(", ");
    let of_hosts = format!("SELECT body, status, seen_at, agent, id FROM hosts WHERE name IN ({places})");
    let of_vms = format!(
        "SELECT {}, host, target_host FROM vms WHERE state <> 'deleted'
            AND (host IN (SELECT id FROM hosts WHERE name IN ({places}))
                OR target_host IN (SELECT id FROM hosts WHERE name IN ({places})))
            ORDER BY id",
        tables::VM_COLUMNS
    );
    let read = db.run_all(&[Query::new(of_hosts, &names), Query::new(of_vms, &names)])?;
    let target_at = read[1].rows.first().map_or(0, |row| row.0.len() - 1);
    let mut by_host: BTreeMap<i64, Vec<Vm>> = BTreeMap::new();
    for row in &read[1].rows {
        let (host, target): (i64, Option<i64>) = (row.get(target_at - 1)?, row.get(target_at)?);
        let vm = read_vm(row)?;
        if let Some(target) = target {
            by_host.entry(target).or_default().push(vm.clone());
        }
        by_host.entry(host).or_default().push(vm);
    }
    let rows = read[0].rows.iter();
    rows.map(|row| Ok((read_host(row)?, by_host.remove(&row.get::<i64>(4)?).unwrap_or_default()))).collect()
}

/// SQL row limit; 0 means no limit.
pub(super) fn limit(limit: usize) -> i64 {
    if limit == 0 { i64::MAX } else { i64::try_from(limit).unwrap_or(i64::MAX) }
}

impl AgentStore for SqlStore {
    fn identity(&self) -> Result<String> {
        let row = self.read().row("SELECT identity FROM identity", &[])?;
        row.ok_or_else(|| StoreError::Database("the database has no identity".into()))?.get(0)
    }

    fn host_vms(&self, host: &str) -> Result<Vec<Vm>> {
        self.vms(&VmQuery { host: Some(host.into()), ..VmQuery::default() })
    }

    fn vm(&self, id: VmId) -> Result<Vm> {
        tables::vm(&**self.read(), id)
    }

    fn transition(&self, id: VmId, from: VmState, to: VmState, problem: Option<&str>) -> Result<Vm> {
        let problem = problem.map(str::to_string);
        self.change(move |db| tables::transition(db, id, from, to, problem.as_deref()))
    }

    fn begin_move(&self, id: VmId, target: &Placement) -> Result<Vm> {
        let target = target.clone();
        self.change(move |db| tables::begin_move(db, id, &target))
    }

    fn end_move(&self, id: VmId, arrived: bool) -> Result<Vm> {
        self.change(move |db| tables::end_move(db, id, arrived))
    }

    fn begin_migration(&self, id: VmId, target: &Placement) -> Result<Vm> {
        let target = target.clone();
        self.change(move |db| migrations::begin(db, id, &target))
    }

    fn end_migration(&self, id: VmId, problem: Option<&str>) -> Result<Vm> {
        let problem = problem.map(str::to_string);
        self.change(move |db| migrations::end(db, id, problem.as_deref()))
    }
}

impl Store for SqlStore {
    fn on_behalf_of(&self, actor: &str) -> Arc<dyn Store> {
        Arc::new(Self { connections: self.connections.clone(), actor: Some(actor.into()) })
    }

    fn put_host(&self, host: &Host, overcommit_percent: u32) -> Result<()> {
        host.check().map_err(|e| StoreError::Conflict { host: e.host, what: e.problem })?;
        let host = host.clone();
        self.change(move |db| tables::put_host(db, &host, overcommit_percent))
    }

    fn hosts_after(&self, name: &str, count: usize) -> Result<Vec<StoredHost>> {
        let db = self.read();
        let sql = "SELECT body, status, seen_at, agent FROM hosts WHERE name > ?1 ORDER BY name LIMIT ?2";
        db.rows(sql, values![name, limit(count)])?.iter().map(read_host).collect()
    }

    fn last_reports(&self) -> Result<Vec<(String, i64)>> {
        let rows = self.read().rows("SELECT name, seen_at FROM hosts ORDER BY name", &[])?;
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    fn claim_host(&self, host: &str, machine: &str, instead_of: Option<&str>) -> Result<String> {
        let (host, machine) = (host.to_string(), machine.to_string());
        let instead_of = instead_of.map(str::to_string);
        self.change(move |db| tables::claim_host(db, &host, &machine, instead_of.as_deref()))
    }

    fn host(&self, name: &str) -> Result<StoredHost> {
        let db = self.read();
        let found =
            db.row("SELECT body, status, seen_at, agent FROM hosts WHERE name = ?1", values![name])?;
        read_host(&found.ok_or_else(|| StoreError::Unknown { what: format!("host called {name}") })?)
    }

    fn reservations_on(&self, hosts: &[String]) -> Result<Vec<(StoredHost, Vec<Vm>)>> {
        let db = self.read();
        let mut all = Vec::with_capacity(hosts.len());
        for some in hosts.chunks(HOSTS_PER_QUERY) {
            all.extend(reservations_on(&**db, some)?);
        }
        Ok(all)
    }

    fn set_host_status(&self, host: &str, status: HostStatus, seen: bool) -> Result<()> {
        let host = host.to_string();
        self.change(move |db| {
            let (id, old) = tables::host_id(db, &host)?;
            let sql =
                "UPDATE hosts SET status = ?2, seen_at = CASE WHEN ?3 THEN ?4 ELSE seen_at END WHERE id = ?1";
            db.run(sql, values![id, status_name(status), seen, now()])?;
            if old != status_name(status) {
                tables::record(db, None, Some(&host), status_name(status), "")?;
            }
            Ok(())
        })
    }

    fn overcommit_ratios(&self) -> Result<Vec<u32>> {
        let rows = self.read().rows("SELECT DISTINCT percent FROM nodes ORDER BY percent", &[])?;
        rows.iter().map(|row| row.get(0)).collect()
    }

    fn reserve(&self, reservation: Reservation) -> Pending<Reserved> {
        self.connections.writer.submit(NewReservation {
            reservation,
            actor: self.actor.clone(),
            created_at: 0,
        })
    }

    fn earlier_answer(&self, request: &Request, key: &str) -> Result<Option<Reserved>> {
        tables::earlier_answer(&**self.read(), request, key)
    }

    fn find_vm(&self, tenant: &str, name: &str) -> Result<Option<Vm>> {
        let db = self.read();
        let columns = tables::VM_COLUMNS;
        let sql = format!("SELECT {columns} FROM vms WHERE tenant = ?1 AND name = ?2 AND state <> 'deleted'");
        db.row(&sql, values![tenant, name])?.as_ref().map(read_vm).transpose()
    }

    fn vms(&self, query: &VmQuery) -> Result<Vec<Vm>> {
        let db = self.read();
        let mut sql = format!("SELECT {} FROM vms WHERE id > ?1", tables::VM_COLUMNS);
        let mut values = vec![Value::from(query.after)];
        if let Some(host) = &query.host {
            values.push(host.into());
            let host = format!("(SELECT id FROM hosts WHERE name = ?{})", values.len());
            sql += &format!(" AND (host = {host} OR target_host = {host})");
        }
        if let Some(tenant) = &query.tenant {
            values.push(tenant.into());
            sql += &format!(" AND tenant = ?{}", values.len());
        }
        if !query.deleted {
            sql += " AND state <> 'deleted'";
        }
        values.push(limit(query.limit).into());
        sql += &format!(" ORDER BY id LIMIT ?{}", values.len());
        db.rows(&sql, &values)?.iter().map(read_vm).collect()
    }

    fn set_intent(&self, id: VmId, intent: Intent) -> Result<Vm> {
        self.change(move |db| tables::set_intent(db, id, intent))
    }

    fn resize(&self, id: VmId, request: &Request, placement: &Placement) -> Result<Vm> {
        let (request, placement) = (request.clone(), placement.clone());
        self.change(move |db| tables::resize(db, id, &request, &placement))
    }

    fn evacuate(&self, id: VmId, placement: &Placement) -> Result<Vm> {
        let placement = placement.clone();
        self.change(move |db| dead_hosts::evacuate(db, id, &placement))
    }

    fn relocate_stopped(&self, id: VmId, placement: &Placement) -> Result<Vm> {
        let placement = placement.clone();
        self.change(move |db| migrations::relocate_stopped(db, id, &placement))
    }

    fn force_delete(&self, id: VmId) -> Result<Vm> {
        self.change(move |db| dead_hosts::force_delete(db, id))
    }

    fn remove_host(&self, host: &str) -> Result<()> {
        let host = host.to_string();
        self.change(move |db| dead_hosts::remove_host(db, &host))
    }

    fn events(&self, after: i64, count: usize) -> Result<Vec<Event>> {
        let db = self.read();
        let sql = "SELECT number, at, vm, hosts.name, kind, text, actor FROM events
            LEFT JOIN hosts ON hosts.id = events.host WHERE number > ?1 ORDER BY number LIMIT ?2";
        let event = |r: &Row| {
            Ok(Event {
                number: r.get(0)?,
                at: r.get(1)?,
                vm: r.get(2)?,
                host: r.get(3)?,
                kind: r.get(4)?,
                text: r.get(5)?,
                actor: r.get(6)?,
            })
        };
        db.rows(sql, values![after, limit(count)])?.iter().map(event).collect()
    }

    fn record_event(&self, event: &Event) -> Result<()> {
        let event = event.clone();
        self.change(move |db| tables::record(db, event.vm, event.host.as_deref(), &event.kind, &event.text))
    }

    fn changes_since(&self, after: i64, origin: i64) -> Result<(Vec<String>, i64)> {
        let db = self.read();
        let last = db.row("SELECT coalesce(max(number), 0) FROM events", &[])?;
        let last: i64 = last.map_or(Ok(0), |row| row.get(0))?;
        let sql = "SELECT DISTINCT hosts.name FROM events JOIN hosts ON hosts.id = events.host
            WHERE number > ?1 AND number <= ?2 AND origin <> ?3
            UNION SELECT text FROM events WHERE number > ?1 AND number <= ?2 AND kind = ?4";
        let names = db.rows(sql, values![after, last, origin, dead_hosts::HOST_REMOVED])?;
        Ok((names.iter().map(|row| row.get(0)).collect::<Result<_>>()?, last))
    }

    fn raise_alarm(&self, host: &str, node: Option<u32>, kind: &str, value: f64) -> Result<bool> {
        let (host, kind) = (host.to_string(), kind.to_string());
        self.change(move |db| {
            let sql = "INSERT INTO alarms (host, node, kind, value, raised_at) VALUES (?1, ?2, ?3, ?4, ?5)
                ON CONFLICT DO NOTHING";
            Ok(db.run(sql, values![&host, node, &kind, value, now()])? > 0)
        })
    }

    fn clear_alarm(&self, host: &str, node: Option<u32>, kind: &str) -> Result<bool> {
        let (host, kind) = (host.to_string(), kind.to_string());
        self.change(move |db| {
            let sql = "UPDATE alarms SET cleared_at = ?4
                WHERE host = ?1 AND node IS NOT DISTINCT FROM ?2 AND kind = ?3 AND cleared_at IS NULL";
            Ok(db.run(sql, values![&host, node, &kind, now()])? > 0)
        })
    }

    fn alarms(&self, active_only: bool, count: usize) -> Result<Vec<Alarm>> {
        let db = self.read();
        let sql = "SELECT host, node, kind, value, raised_at, cleared_at FROM alarms
            WHERE cleared_at IS NULL OR NOT ?1 ORDER BY number DESC LIMIT ?2";
        let alarm = |r: &Row| {
            Ok(Alarm {
                host: r.get(0)?,
                node: r.get(1)?,
                kind: r.get(2)?,
                value: r.get(3)?,
                raised_at: r.get(4)?,
                cleared_at: r.get(5)?,
            })
        };
        db.rows(sql, values![active_only, limit(count)])?.iter().map(alarm).collect()
    }

    fn put_token(&self, token: &Token) -> Result<()> {
        let token = token.clone();
        self.change(move |db| accounts::put_token(db, &token))
    }

    fn tokens(&self) -> Result<Vec<Token>> {
        accounts::tokens(&**self.read())
    }

    fn remove_token(&self, name: &str) -> Result<bool> {
        let name = name.to_string();
        self.change(move |db| Ok(db.run("DELETE FROM tokens WHERE name = ?1", values![&name])? > 0))
    }

    fn record_token_uses(&self, uses: &[(String, i64)]) -> Result<()> {
        let uses = uses.to_vec();
        self.change(move |db| accounts::record_token_uses(db, &uses))
    }

    fn append_audit(&self, records: &[AuditRecord]) -> Result<()> {
        let records = records.to_vec();
        self.change(move |db| records.iter().try_for_each(|record| audit_log::append(db, record)))
    }

    fn audit_log(&self, query: &AuditQuery) -> Result<Vec<AuditRecord>> {
        audit_log::records(&**self.read(), query)
    }

    fn default_quota(&self) -> Result<Quota> {
        accounts::default_quota(&**self.read())
    }

    fn set_default_quota(&self, quota: &Quota) -> Result<()> {
        let quota = *quota;
        self.change(move |db| accounts::set_default_quota(db, &quota))
    }

    fn set_quota(&self, tenant: &str, quota: &Quota) -> Result<()> {
        let (tenant, quota) = (tenant.to_string(), *quota);
        self.change(move |db| accounts::set_quota(db, &tenant, &quota))
    }

    fn tenants(&self) -> Result<Vec<TenantUse>> {
        accounts::tenants(&**self.read())
    }

    fn prune(&self, before: i64) -> Result<usize> {
        let mut all = 0;
        loop {
            match self.change(move |db| retention::prune(db, before))? {
                0 => return Ok(all),
                deleted => all += deleted,
            }
        }
    }

    fn check_files_in_place(&self) -> Result<()> {
        self.connections
            .file_identity
            .as_ref()
            .map_or(Ok(()), |files| files.check().map_err(StoreError::Unreachable))
    }

    fn counts(&self) -> Result<Counts> {
        let db = self.read();
        let by = |sql: &str| -> Result<Vec<(String, i64)>> {
            db.rows(sql, &[])?.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
        };
        let vms = by("SELECT state, count(*) FROM vms WHERE state <> 'deleted' GROUP BY state")?;
        let hosts = by("SELECT status, count(*) FROM hosts GROUP BY status")?;
        let alarms =
            by("SELECT kind, count(*) FROM alarms WHERE cleared_at IS NULL GROUP BY kind ORDER BY kind")?;
        Ok(Counts {
            vms: vms.iter().filter_map(|(state, n)| Some((VmState::named(state)?, *n as u64))).collect(),
            hosts: hosts.iter().map(|(status, n)| (parse_status(status), *n as u64)).collect(),
            alarms: alarms.into_iter().map(|(kind, n)| (kind, n as u64)).collect(),
        })
    }

    fn check(&self) -> Result<Vec<String>> {
        let db = self.read();
        let db: &dyn Database = &**db;
        // A consistent snapshot of all tables.
        db.begin_snapshot()?;
        let view = OpenTransaction::begun(db);
        let mut wrong = Vec::new();
        let mut sums: BTreeMap<(String, String), i64> = BTreeMap::new();
        let mut tenants: BTreeMap<String, (u32, u32, u64)> = BTreeMap::new();
        let sql = format!("SELECT {} FROM vms WHERE state <> 'deleted'", tables::VM_COLUMNS);
        for row in db.rows(&sql, &[])? {
            let vm = read_vm(&row)?;
            let tenant = tenants.entry(vm.request.tenant.clone()).or_default();
            *tenant = (tenant.0 + 1, tenant.1 + vm.request.vcpus, tenant.2 + vm.request.memory_mib);
            for place in vm.placement.iter().chain(&vm.target) {
                let tally = place.tally();
                let mut add =
                    |what: String, n: i64| *sums.entry((place.host.clone(), what)).or_default() += n;
                for (node, cpu) in tally.exclusive {
                    add(format!("CPU {cpu} of virtual machine {}", vm.id), 1);
                    add(format!("exclusive CPUs of node {node}"), 1);
                }
                tally
                    .shared
                    .iter()
                    .for_each(|(node, n)| add(format!("virtual CPUs of node {node}"), (*n).into()));
                let memory = tally.memory.into_iter();
                memory
                    .for_each(|((node, kib), mib)| add(format!("MiB of node {node}, {kib} KiB"), mib as i64));
                tally.devices.into_iter().for_each(|(name, n)| add(format!("slots of {name}"), n.into()));
            }
        }
        let tables = "SELECT h.name, 'exclusive CPUs of node ' || node, exclusive FROM nodes JOIN hosts h ON h.id = host
            UNION ALL SELECT h.name, 'virtual CPUs of node ' || node, shared FROM nodes JOIN hosts h ON h.id = host
            UNION ALL SELECT h.name, 'MiB of node ' || node || ', ' || page_kib || ' KiB', used_mib
                FROM pools JOIN hosts h ON h.id = host
            UNION ALL SELECT h.name, 'slots of ' || d.name, used FROM devices d JOIN hosts h ON h.id = host
            UNION ALL SELECT h.name, 'CPU ' || cpu || ' of virtual machine ' || vm, CAST(1 AS BIGINT)
                FROM exclusive_cpus JOIN hosts h ON h.id = host";
        for row in db.rows(tables, &[])? {
            let (host, what, kept): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let sum = sums.remove(&(host.clone(), what.clone())).unwrap_or(0);
            if sum != kept {
                wrong.push(format!("{host}: {what}: {kept} recorded, but the placements add up to {sum}"));
            }
        }
        for kept in accounts::tenants(db)? {
            let sum = tenants.remove(&kept.tenant).unwrap_or_default();
            if sum != (kept.vms, kept.vcpus, kept.memory_mib) {
                wrong.push(format!(
                    "tenant {}: {kept:?} recorded, but its virtual machines add up to {sum:?}",
                    kept.tenant
                ));
            }
        }
        wrong.extend(tenants.into_keys().map(|tenant| format!("tenant {tenant}: its totals are missing")));
        wrong.extend(sums.into_iter().map(|((host, what), n)| {
            format!("{host}: {what}: none recorded, but the placements add up to {n}")
        }));
        view.commit()?;
        Ok(wrong)
    }
}
