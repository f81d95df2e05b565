//! The store in one SQLite file: durable at every answer (synchronous=FULL), shared by several processes of one machine.
//! Not for several machines: a network file system's locks are not to be trusted.
//! Source: SQLite's documentation: Write-Ahead Logging; PRAGMA synchronous; File Locking And Concurrency.

use super::jobs::{Checkpointer, Pending, Writer};
use super::tables::{self, Result, now, read_vm, run};
use super::{
    Alarm, Event, Intent, Quota, Reservation, Reserved, Store, StoreError, StoredHost, TenantUse, Token, Vm,
    VmId, VmQuery, VmState, accounts,
};
use crate::host::Host;
use crate::inventory::HostStatus;
use crate::placement::Placement;
use rusqlite::{Connection, OptionalExtension, ToSql, params};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long another process may hold the database.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store in one file.
#[derive(Debug)]
pub struct SqliteStore {
    // Ends before the writer, whose connection is the last to close and empties the log.
    _checkpointer: Checkpointer,
    writer: Writer,
    reader: Mutex<Connection>,
}

fn open(path: &Path) -> Result<Connection> {
    let error =
        |error: rusqlite::Error| StoreError::Database(format!("cannot open {}: {error}", path.display()));
    let connection = Connection::open(path).map_err(error)?;
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

impl SqliteStore {
    /// Opens a file, or makes one.
    ///
    /// # Errors
    /// If it cannot be opened, belongs to another program, or is of a later version.
    pub fn open(path: &Path) -> Result<Self> {
        let mut connection = open(path)?;
        super::schema::prepare(&mut connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // Only if the checkpointer does not keep up: a commit that does it keeps others waiting for tens of milliseconds.
        connection.pragma_update(None, "wal_autocheckpoint", 1 << 16)?;
        let reader = Mutex::new(open(path)?);
        let _checkpointer = Checkpointer::start(open(path)?)?;
        Ok(Self { _checkpointer, writer: Writer::start(connection)?, reader })
    }

    fn read(&self) -> MutexGuard<'_, Connection> {
        // Reading leaves nothing half done.
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.change(change)
    }
}

fn status_name(status: HostStatus) -> &'static str {
    match status {
        HostStatus::Up => "up",
        HostStatus::Draining => "draining",
        HostStatus::Down => "down",
    }
}

fn status_named(name: &str) -> HostStatus {
    match name {
        "up" => HostStatus::Up,
        "draining" => HostStatus::Draining,
        _ => HostStatus::Down,
    }
}

fn read_host(row: &rusqlite::Row<'_>) -> rusqlite::Result<Result<StoredHost>> {
    let (body, status, seen_at): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let host = serde_json::from_str(&body).map_err(StoreError::from);
    Ok(host.map(|host| StoredHost { host, status: status_named(&status), seen_at }))
}

/// SQLite has no unlimited but a negative number.
fn limit(limit: usize) -> i64 {
    if limit == 0 { -1 } else { i64::try_from(limit).unwrap_or(-1) }
}

impl Store for SqliteStore {
    fn put_host(&self, host: &Host, overcommit_percent: u32) -> Result<()> {
        host.check().map_err(|e| StoreError::Conflict { host: e.host, what: e.problem })?;
        let host = host.clone();
        self.change(move |db| tables::put_host(db, &host, overcommit_percent))
    }

    fn hosts(&self) -> Result<Vec<StoredHost>> {
        let db = self.read();
        let mut all = db.prepare_cached("SELECT body, status, seen_at FROM hosts ORDER BY name")?;
        all.query_map([], read_host)?.map(|row| row?).collect()
    }

    fn host(&self, name: &str) -> Result<StoredHost> {
        let db = self.read();
        let mut find = db.prepare_cached("SELECT body, status, seen_at FROM hosts WHERE name = ?1")?;
        let found = find.query_row([name], read_host).optional()?;
        found.unwrap_or_else(|| Err(StoreError::Unknown { what: format!("host called {name}") }))
    }

    fn set_host_status(&self, host: &str, status: HostStatus, seen: bool) -> Result<()> {
        let host = host.to_string();
        self.change(move |db| {
            let (id, old) = tables::host_id(db, &host)?;
            let sql =
                "UPDATE hosts SET status = ?2, seen_at = CASE WHEN ?3 THEN ?4 ELSE seen_at END WHERE id = ?1";
            run(db, sql, params![id, status_name(status), seen, now()])?;
            if old != status_name(status) {
                tables::record(db, None, Some(&host), status_name(status), "")?;
            }
            Ok(())
        })
    }

    fn reserve(&self, reservation: Reservation) -> Pending<Reserved> {
        self.writer.submit(move |db| tables::reserve(db, &reservation))
    }

    fn vm(&self, id: VmId) -> Result<Vm> {
        tables::vm(&self.read(), id)
    }

    fn find_vm(&self, tenant: &str, name: &str) -> Result<Option<Vm>> {
        let db = self.read();
        let columns = tables::VM_COLUMNS;
        let sql = format!("SELECT {columns} FROM vms WHERE tenant = ?1 AND name = ?2 AND state <> 'deleted'");
        db.prepare_cached(&sql)?.query_row([tenant, name], read_vm).optional()?.transpose()
    }

    fn vms(&self, query: &VmQuery) -> Result<Vec<Vm>> {
        let db = self.read();
        let mut sql = format!("SELECT {} FROM vms WHERE id > ?1", tables::VM_COLUMNS);
        let mut values: Vec<&dyn ToSql> = vec![&query.after];
        if let Some(host) = &query.host {
            values.push(host);
            sql += &format!(" AND host = (SELECT id FROM hosts WHERE name = ?{})", values.len());
        }
        if let Some(tenant) = &query.tenant {
            values.push(tenant);
            sql += &format!(" AND tenant = ?{}", values.len());
        }
        if !query.deleted {
            sql += " AND state <> 'deleted'";
        }
        let most = limit(query.limit);
        values.push(&most);
        sql += &format!(" ORDER BY id LIMIT ?{}", values.len());
        let mut find = db.prepare_cached(&sql)?;
        let rows = find.query_map(&*values, read_vm)?;
        rows.map(|row| row?).collect()
    }

    fn set_intent(&self, id: VmId, intent: Intent) -> Result<Vm> {
        self.change(move |db| tables::set_intent(db, id, intent))
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

    fn events(&self, after: i64, most: usize) -> Result<Vec<Event>> {
        let db = self.read();
        let mut find = db.prepare_cached(
            "SELECT number, at, vm, hosts.name, kind, text FROM events LEFT JOIN hosts ON hosts.id = events.host
             WHERE number > ?1 ORDER BY number LIMIT ?2",
        )?;
        let event = |r: &rusqlite::Row<'_>| {
            Ok(Event {
                number: r.get(0)?,
                at: r.get(1)?,
                vm: r.get(2)?,
                host: r.get(3)?,
                kind: r.get(4)?,
                text: r.get(5)?,
            })
        };
        Ok(find.query_map(params![after, limit(most)], event)?.collect::<rusqlite::Result<_>>()?)
    }

    fn record(&self, event: &Event) -> Result<()> {
        let event = event.clone();
        self.change(move |db| tables::record(db, event.vm, event.host.as_deref(), &event.kind, &event.text))
    }

    fn news(&self, after: i64, origin: i64) -> Result<(Vec<String>, i64)> {
        let db = self.read();
        let last: i64 = db.query_row("SELECT ifnull(max(number), 0) FROM events", [], |r| r.get(0))?;
        let mut find = db.prepare_cached(
            "SELECT DISTINCT hosts.name FROM events JOIN hosts ON hosts.id = events.host
             WHERE number > ?1 AND number <= ?2 AND origin <> ?3",
        )?;
        let names = find.query_map([after, last, origin], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
        Ok((names, last))
    }

    fn raise_alarm(&self, host: &str, node: Option<u32>, kind: &str, value: f64) -> Result<bool> {
        let (host, kind) = (host.to_string(), kind.to_string());
        self.change(move |db| {
            let sql = "INSERT INTO alarms (host, node, kind, value, raised_at) VALUES (?1, ?2, ?3, ?4, ?5)
                ON CONFLICT DO NOTHING";
            Ok(run(db, sql, params![host, node, kind, value, now()])? > 0)
        })
    }

    fn clear_alarm(&self, host: &str, node: Option<u32>, kind: &str) -> Result<bool> {
        let (host, kind) = (host.to_string(), kind.to_string());
        self.change(move |db| {
            let sql = "UPDATE alarms SET cleared_at = ?4
                WHERE host = ?1 AND node IS ?2 AND kind = ?3 AND cleared_at IS NULL";
            Ok(run(db, sql, params![host, node, kind, now()])? > 0)
        })
    }

    fn alarms(&self, standing_only: bool, most: usize) -> Result<Vec<Alarm>> {
        let db = self.read();
        let mut find = db.prepare_cached(
            "SELECT host, node, kind, value, raised_at, cleared_at FROM alarms
             WHERE cleared_at IS NULL OR NOT ?1 ORDER BY number DESC LIMIT ?2",
        )?;
        let alarm = |r: &rusqlite::Row<'_>| {
            Ok(Alarm {
                host: r.get(0)?,
                node: r.get(1)?,
                kind: r.get(2)?,
                value: r.get(3)?,
                raised_at: r.get(4)?,
                cleared_at: r.get(5)?,
            })
        };
        Ok(find.query_map(params![standing_only, limit(most)], alarm)?.collect::<rusqlite::Result<_>>()?)
    }

    fn put_token(&self, token: &Token) -> Result<()> {
        let token = token.clone();
        self.change(move |db| accounts::put_token(db, &token))
    }

    fn tokens(&self) -> Result<Vec<Token>> {
        accounts::tokens(&self.read())
    }

    fn remove_token(&self, name: &str) -> Result<bool> {
        let name = name.to_string();
        self.change(move |db| Ok(run(db, "DELETE FROM tokens WHERE name = ?1", params![name])? > 0))
    }

    fn set_quota(&self, tenant: &str, quota: &Quota) -> Result<()> {
        let (tenant, quota) = (tenant.to_string(), *quota);
        self.change(move |db| accounts::set_quota(db, &tenant, &quota))
    }

    fn tenants(&self) -> Result<Vec<TenantUse>> {
        accounts::tenants(&self.read())
    }

    fn check(&self) -> Result<Vec<String>> {
        let mut db = self.read();
        // One view of all tables.
        let db = db.transaction()?;
        let mut wrong = Vec::new();
        let mut sums: BTreeMap<(String, String), i64> = BTreeMap::new();
        let mut tenants: BTreeMap<String, (u32, u32, u64)> = BTreeMap::new();
        let sql = format!("SELECT {} FROM vms WHERE state <> 'deleted'", tables::VM_COLUMNS);
        for vm in db.prepare(&sql)?.query_map([], read_vm)? {
            let vm = vm??;
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
            UNION ALL SELECT h.name, 'CPU ' || cpu || ' of virtual machine ' || vm, 1
                FROM exclusive_cpus JOIN hosts h ON h.id = host";
        for row in db.prepare(tables)?.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get::<_, i64>(2)?)))? {
            let (host, what, kept): (String, String, i64) = row?;
            let sum = sums.remove(&(host.clone(), what.clone())).unwrap_or(0);
            if sum != kept {
                wrong.push(format!("{host}: {what}: {kept} kept, {sum} by the placements"));
            }
        }
        for kept in accounts::tenants(&db)? {
            let sum = tenants.remove(&kept.tenant).unwrap_or_default();
            if sum != (kept.vms, kept.vcpus, kept.memory_mib) {
                wrong.push(format!("tenant {}: {kept:?} kept, {sum:?} by its virtual machines", kept.tenant));
            }
        }
        wrong.extend(tenants.into_keys().map(|tenant| format!("tenant {tenant}: its sums are missing")));
        wrong.extend(
            sums.into_iter()
                .map(|((host, what), n)| format!("{host}: {what}: none kept, {n} by the placements")),
        );
        Ok(wrong)
    }
}
