//! The database schema and its migrations.
//!
//! Source: SQLite's documentation of PRAGMA application_id, user_version, journal_mode and synchronous.

use super::StoreError;
use super::sql::{Database, OpenTransaction, values};
use rusqlite::Connection;

/// "Lpla": the SQLite application ID of this program.
const APPLICATION: i32 = 0x4c70_6c61;

/// One migration per schema version; the last one is the current version. Table constraints reject double reservations.
/// Written in SQLite's dialect; [`postgres_dialect`] translates to PostgreSQL's.
const MIGRATIONS: [&str; 6] = ["
CREATE TABLE hosts (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'up',
    seen_at INTEGER NOT NULL
) STRICT;
-- A node's CPUs without the host's own; the ones taken for good and the virtual CPUs on the rest stay within the ratio.
CREATE TABLE nodes (
    host INTEGER NOT NULL REFERENCES hosts(id),
    node INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    percent INTEGER NOT NULL,
    exclusive INTEGER NOT NULL DEFAULT 0,
    shared INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (host, node),
    CONSTRAINT cpus_of_a_node CHECK (exclusive BETWEEN 0 AND cpus),
    CONSTRAINT over_commit CHECK (shared >= 0 AND shared <= (cpus - exclusive) * percent / 100)
) STRICT, WITHOUT ROWID;
CREATE TABLE pools (
    host INTEGER NOT NULL,
    node INTEGER NOT NULL,
    page_kib INTEGER NOT NULL,
    total_mib INTEGER NOT NULL,
    used_mib INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (host, node, page_kib),
    FOREIGN KEY (host, node) REFERENCES nodes(host, node),
    CONSTRAINT memory_of_a_node CHECK (used_mib BETWEEN 0 AND total_mib)
) STRICT, WITHOUT ROWID;
CREATE TABLE devices (
    host INTEGER NOT NULL REFERENCES hosts(id),
    name TEXT NOT NULL,
    slots INTEGER NOT NULL,
    used INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (host, name),
    CONSTRAINT slots_of_a_device CHECK (used BETWEEN 0 AND slots)
) STRICT, WITHOUT ROWID;
CREATE TABLE vms (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    request TEXT NOT NULL,
    state TEXT NOT NULL,
    intent TEXT NOT NULL DEFAULT 'run',
    host INTEGER REFERENCES hosts(id),
    placement TEXT,
    target TEXT,
    problem TEXT,
    version INTEGER NOT NULL DEFAULT 1,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_living_name ON vms (tenant, name) WHERE state <> 'deleted';
CREATE INDEX vms_of_host ON vms (host) WHERE state <> 'deleted';
CREATE TABLE exclusive_cpus (
    host INTEGER NOT NULL REFERENCES hosts(id),
    cpu INTEGER NOT NULL,
    vm INTEGER NOT NULL REFERENCES vms(id),
    PRIMARY KEY (host, cpu)
) STRICT, WITHOUT ROWID;
CREATE TABLE members (
    grp TEXT NOT NULL,
    vm INTEGER NOT NULL REFERENCES vms(id),
    host INTEGER NOT NULL,
    PRIMARY KEY (grp, vm)
) STRICT, WITHOUT ROWID;
CREATE TABLE keys (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    request TEXT NOT NULL,
    vm INTEGER NOT NULL REFERENCES vms(id),
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    vm INTEGER,
    host INTEGER,
    origin INTEGER NOT NULL DEFAULT 0,
    kind TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE TABLE alarms (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL,
    node INTEGER,
    kind TEXT NOT NULL,
    value REAL NOT NULL,
    raised_at INTEGER NOT NULL,
    cleared_at INTEGER
) STRICT;
CREATE UNIQUE INDEX one_standing_alarm ON alarms (host, coalesce(node, -1), kind) WHERE cleared_at IS NULL;
", "
CREATE TABLE tokens (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    scope TEXT,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- Sums over the virtual machines that live. A quota may be lowered below them: then nothing is added.
CREATE TABLE tenants (
    tenant TEXT PRIMARY KEY,
    most_vms INTEGER,
    most_vcpus INTEGER,
    most_memory_mib INTEGER,
    vms INTEGER NOT NULL DEFAULT 0 CHECK (vms >= 0),
    vcpus INTEGER NOT NULL DEFAULT 0 CHECK (vcpus >= 0),
    memory_mib INTEGER NOT NULL DEFAULT 0 CHECK (memory_mib >= 0)
) STRICT, WITHOUT ROWID;
-- Those of a file of version 1, which is SQLite's.
INSERT INTO tenants (tenant, vms, vcpus, memory_mib)
    SELECT tenant, count(*), sum(request ->> 'vcpus'), sum(request ->> 'memory_mib')
    FROM vms WHERE state <> 'deleted' GROUP BY tenant;
", "
-- The machine whose agent speaks for a host, for all services of the database.
ALTER TABLE hosts ADD COLUMN agent TEXT;
", "
-- What tells this database from all others: domains name it, whose virtual machines' numbers others give too.
CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL
) STRICT;
INSERT INTO identity (one, identity) VALUES (1, lower(hex(randomblob(16))));
", "
-- The token on whose behalf a change was made.
ALTER TABLE events ADD COLUMN actor TEXT;
ALTER TABLE tokens ADD COLUMN expires_at INTEGER;
ALTER TABLE tokens ADD COLUMN used_at INTEGER;
-- Requests that changed something or were refused. Rows are only added, and deleted when the retention period is over.
CREATE TABLE audit_log (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor TEXT,
    role TEXT,
    scope TEXT,
    peer TEXT NOT NULL,
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    status INTEGER NOT NULL,
    problem TEXT
) STRICT;
CREATE INDEX audit_log_of_actor ON audit_log (actor, number);
-- The quota that a tenant gets with its first virtual machine.
CREATE TABLE default_quota (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    most_vms INTEGER,
    most_vcpus INTEGER,
    most_memory_mib INTEGER
) STRICT;
INSERT INTO default_quota (one) VALUES (1);
", "
-- The host that a virtual machine is being migrated to.
ALTER TABLE vms ADD COLUMN target_host INTEGER;
CREATE INDEX vms_of_target_host ON vms (target_host) WHERE target_host IS NOT NULL;
"];

/// Creates the tables of a new file, or migrates an older file.
pub(super) fn prepare_sqlite(connection: &mut Connection) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i32;
    // One process migrates the schema; the others wait for the lock and find it migrated.
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let pragma =
        |name: &str| transaction.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application != APPLICATION && (application != 0 || tables > 0) {
        return Err(StoreError::Format("the file is a database of another program".into()));
    }
    if version > known {
        return Err(too_new(version.into(), known.into()));
    }
    if application == APPLICATION && version == known {
        // Write nothing, so that the database can be read even on a full disk.
        return Ok(());
    }
    for migration in &MIGRATIONS[version.max(0) as usize..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", known)?;
    Ok(transaction.commit()?)
}

/// Checks that an existing file is a database of this program, with a version that it knows.
pub(super) fn check_sqlite(connection: &Connection) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i32;
    let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    match (pragma("application_id")?, pragma("user_version")?) {
        (APPLICATION, version) if version > known => Err(too_new(version.into(), known.into())),
        (APPLICATION, _) => Ok(()),
        _ => Err(StoreError::Format("the file is not a placement database".into())),
    }
}

/// Translates a migration to PostgreSQL's dialect: 64-bit integers and autoincrement columns are spelled differently.
fn postgres_dialect(migration: &str) -> String {
    // PostgreSQL support was added after version 1, so that migration step does not apply.
    let tables = migration.split("-- Those of a file of version 1").next().unwrap_or_default();
    tables
        .replace("lower(hex(randomblob(16)))", "replace(CAST(gen_random_uuid() AS TEXT), '-', '')")
        .replace("one INTEGER PRIMARY KEY", "one BIGINT PRIMARY KEY")
        .replace("INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        .replace("INTEGER PRIMARY KEY", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        .replace("INTEGER", "BIGINT")
        .replace("REAL", "DOUBLE PRECISION")
        .replace(") STRICT, WITHOUT ROWID;", ");")
        .replace(") STRICT;", ");")
        .replace("coalesce(node, -1)", "(coalesce(node, -1))")
}

/// Creates the tables of a new PostgreSQL database, or migrates older ones.
pub(super) fn prepare_postgres(db: &dyn Database) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i64;
    // One process migrates the schema; the others wait for the lock and find it migrated.
    db.begin()?;
    let transaction = OpenTransaction::begun(db);
    db.run("CREATE TABLE IF NOT EXISTS longma_placement_version (version BIGINT NOT NULL)", &[])?;
    let version = db.row("SELECT max(version) FROM longma_placement_version", &[])?;
    let version = version.map_or(Ok(None), |row| row.get::<Option<i64>>(0))?.unwrap_or(0);
    if version > known {
        return Err(too_new(version, known));
    }
    for migration in &MIGRATIONS[version.clamp(0, known) as usize..] {
        db.run(&postgres_dialect(migration), &[])?;
    }
    if version < known {
        db.run("INSERT INTO longma_placement_version (version) VALUES (?1)", values![known])?;
    }
    Ok(transaction.commit()?)
}

fn too_new(version: i64, known: i64) -> StoreError {
    StoreError::Format(format!(
        "the database has version {version} and this program knows versions up to {known}: use the newer program"
    ))
}
