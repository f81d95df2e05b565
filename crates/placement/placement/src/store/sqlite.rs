//! A SQLite database file: durable on every answer (synchronous=FULL) and shared by several processes of one machine.
//! Locks of network file systems are unreliable; use `postgres` for several machines.
//!
//! Source: SQLite's documentation: Write-Ahead Logging; PRAGMA synchronous; File Locking And Concurrency.

use super::file_identity::FileIdentity;
use super::sql::{Database, Failure, Kind, Row, Value};
use super::sql_store::SqlStore;
use super::tables::Result;
use super::{StoreError, schema};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, ErrorCode, ToSql};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// How long to wait for another process's lock.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

impl SqlStore {
    /// Opens or creates a database file.
    ///
    /// # Errors
    /// If the file cannot be opened, belongs to another program, or has a newer schema version.
    pub fn open_file(path: &Path) -> Result<Self> {
        let mut connection = connect(path)?;
        schema::prepare_sqlite(&mut connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // A high limit, for the case that the checkpointer cannot keep up: a checkpoint within a commit delays other
        // commits by tens of milliseconds.
        connection.pragma_update(None, "wal_autocheckpoint", 1 << 16)?;
        let reader = connect(path)?;
        let almost_done = Arc::new(AtomicBool::new(false));
        let checkpointer = Checkpointer::start(connect(path)?, almost_done.clone())?;
        let file_identity = Arc::new(FileIdentity::of(path));
        let write_database = WriteDatabase { connection, almost_done, file_identity: file_identity.clone() };
        let (writing, reading) = (Box::new(write_database), Box::new(reader));
        Self::from_connections(writing, reading, Some(checkpointer), Some(file_identity))
    }
}

fn connect(path: &Path) -> Result<Connection> {
    let error =
        |error: rusqlite::Error| StoreError::Database(format!("cannot open {}: {error}", path.display()));
    let connection = Connection::open(path).map_err(error)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        StoreError::Database(error.to_string())
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let extended = error.sqlite_error().map(|e| e.extended_code);
        let kind = match error.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation) => Kind::Constraint,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Kind::Busy,
            Some(ErrorCode::DiskFull) => Kind::Full,
            // SQLite reports this error if the disk has no space for the WAL index.
            _ if extended == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => Kind::Full,
            // The disk was removed or became read-only, or the directory is no longer accessible.
            Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure | ErrorCode::ReadOnly) => {
                Kind::Unreachable
            }
            _ => Kind::Other,
        };
        Failure { kind, text: error.to_string() }
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Int(number) => ValueRef::Integer(*number),
            Value::Real(number) => ValueRef::Real(*number),
            Value::Bool(truth) => ValueRef::Integer((*truth).into()),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

fn value(read: ValueRef<'_>) -> std::result::Result<Value, Failure> {
    Ok(match read {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Int(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(_) => Value::Text(read.as_str().map_err(rusqlite::Error::from)?.into()),
        ValueRef::Blob(_) => {
            return Err(Failure::other("a column holds bytes, not text".into()));
        }
    })
}

/// Prepares the statement and binds its values.
fn prepare_bound<'c>(
    db: &'c Connection,
    sql: &str,
    values: &[Value],
) -> rusqlite::Result<CachedStatement<'c>> {
    let mut statement = db.prepare_cached(sql)?;
    for (at, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, value)?;
    }
    Ok(statement)
}

impl Database for Connection {
    fn run(&self, sql: &str, values: &[Value]) -> std::result::Result<usize, Failure> {
        Ok(prepare_bound(self, sql, values)?.raw_execute()?)
    }

    fn rows(&self, sql: &str, values: &[Value]) -> std::result::Result<Vec<Row>, Failure> {
        let mut statement = prepare_bound(self, sql, values)?;
        let columns = statement.column_count();
        let (mut rows, mut all) = (statement.raw_query(), Vec::new());
        while let Some(row) = rows.next()? {
            all.push(Row((0..columns)
                .map(|at| value(row.get_ref(at)?))
                .collect::<std::result::Result<_, _>>()?));
        }
        Ok(all)
    }

    fn begin(&self) -> std::result::Result<(), Failure> {
        if !self.is_autocommit() {
            self.run("ROLLBACK", &[])?;
        }
        // Take the write lock at once. A transaction that reads first and then finds another writer must be restarted.
        self.run("BEGIN IMMEDIATE", &[]).map(drop)
    }

    fn begin_snapshot(&self) -> std::result::Result<(), Failure> {
        if !self.is_autocommit() {
            self.run("ROLLBACK", &[])?;
        }
        self.run("BEGIN DEFERRED", &[]).map(drop)
    }
}

/// The write connection. SQLite restarts the write-ahead log only when the whole log is checkpointed while no writer is
/// active. Under load the checkpointer thread never finds such a moment, so this connection checkpoints the last few
/// pages between two commits.
struct WriteDatabase {
    connection: Connection,
    almost_done: Arc<AtomicBool>,
    file_identity: Arc<FileIdentity>,
}

impl Database for WriteDatabase {
    fn run(&self, sql: &str, values: &[Value]) -> std::result::Result<usize, Failure> {
        self.connection.run(sql, values)
    }

    fn rows(&self, sql: &str, values: &[Value]) -> std::result::Result<Vec<Row>, Failure> {
        Database::rows(&self.connection, sql, values)
    }

    fn begin(&self) -> std::result::Result<(), Failure> {
        // If the file was moved or replaced, fail instead of committing to a file that no other process will open.
        self.file_identity.check().map_err(|text| Failure { kind: Kind::Unreachable, text })?;
        self.connection.begin()
    }

    fn begin_snapshot(&self) -> std::result::Result<(), Failure> {
        self.connection.begin_snapshot()
    }

    fn maintain(&self) {
        if self.almost_done.swap(false, Ordering::Relaxed) {
            checkpoint(&self.connection);
        }
    }
}

/// Checkpoints as much of the log as is possible without blocking. Returns the number of pages in the log.
fn checkpoint(connection: &Connection) -> i64 {
    // After a failure the log merely stays longer until the next attempt.
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1)).unwrap_or(0)
}

/// A thread that checkpoints the log in the background, so that commits do not have to.
#[derive(Debug)]
pub(super) struct Checkpointer {
    stop: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Checkpointer {
    /// Interval between checkpoints. Short enough that each checkpoint has little to copy and does not saturate the
    /// disk.
    const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);

    /// Log size in pages above which the log is to be restarted: 16 MiB.
    const MAX_LOG_PAGES: i64 = 1 << 12;

    fn start(connection: Connection, almost_done: Arc<AtomicBool>) -> Result<Self> {
        let (sender, receiver) = mpsc::channel::<()>();
        let copy = move || {
            while receiver.recv_timeout(Self::CHECKPOINT_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                if checkpoint(&connection) >= Self::MAX_LOG_PAGES {
                    // A second pass copies the pages added during the first, so that almost none remain for the write
                    // connection.
                    checkpoint(&connection);
                    almost_done.store(true, Ordering::Relaxed);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("placement-checkpoint".into())
            .spawn(copy)
            .map_err(|error| StoreError::Database(format!("cannot start the checkpoint thread: {error}")))?;
        Ok(Self { stop: Some(sender), thread: Some(thread) })
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Reservation, Store, VmQuery};
    use crate::{Host, Policy, Request, Scheduler};
    use longma_topology::Machine;

    /// A store whose file may grow by at most `pages`.
    fn with_room_for(path: &Path, pages: i64) -> SqlStore {
        let writer = connect(path).unwrap();
        let now: i64 = writer.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        writer.pragma_update(None, "max_page_count", now + pages).unwrap();
        SqlStore::from_connections(Box::new(writer), Box::new(connect(path).unwrap()), None, None).unwrap()
    }

    #[test]
    fn opening_an_existing_database_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("placement.db");
        drop(SqlStore::open_file(&path).unwrap());
        let _store = SqlStore::open_file(&path).unwrap();
        let log = std::fs::metadata(folder.path().join("placement.db-wal"));
        assert_eq!(log.map_or(0, |log| log.len()), 0, "there may be no room for it");
    }

    #[test]
    fn no_change_is_acknowledged_after_the_file_was_moved_or_deleted() {
        for name in ["placement.db", "placement.db-wal"] {
            let folder = tempfile::tempdir().unwrap();
            let store = SqlStore::open_file(&folder.path().join("placement.db")).unwrap();
            let quota = crate::store::Quota::default();
            store.set_quota("a", &quota).unwrap();
            let (original, away) = (folder.path().join(name), folder.path().join("away"));
            std::fs::rename(&original, &away).unwrap();
            let refused = store.set_quota("b", &quota).unwrap_err();
            let StoreError::Unreachable(message) = &refused else { panic!("{refused:?}") };
            assert!(message.contains(name) && message.contains("moved, deleted or replaced"), "{message}");
            assert_eq!(store.check_files_in_place(), Err(refused));
            assert_eq!(store.tenants().unwrap().len(), 1, "reads still work");
            std::fs::write(&original, "another one").unwrap();
            assert!(store.set_quota("b", &quota).is_err(), "another file of the name");
            std::fs::rename(&away, &original).unwrap();
            store.set_quota("b", &quota).unwrap();
            assert_eq!(store.check_files_in_place(), Ok(()));
        }
    }

    #[test]
    fn the_log_stays_short_while_changes_never_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("placement.db");
        let store = SqlStore::open_file(&path).unwrap();
        let text = "x".repeat(100_000);
        let longest = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..500 {
                            let (kind, text) = ("test".to_string(), text.clone());
                            let (number, at, vm, host, actor) = (0, 0, None, None, None);
                            let event = crate::store::Event { number, at, vm, host, kind, text, actor };
                            store.record_event(&event).unwrap();
                        }
                    })
                })
                .collect();
            let mut longest = 0;
            while threads.iter().any(|thread| !thread.is_finished()) {
                let log = std::fs::metadata(folder.path().join("placement.db-wal"));
                longest = longest.max(log.map_or(0, |log| log.len()));
                std::thread::sleep(Duration::from_millis(2));
            }
            longest
        });
        // 200 MB went through the log.
        assert!(longest < 150_000_000, "{longest} bytes");
    }

    #[test]
    fn all_waiting_changes_fail_together_when_the_database_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("placement.db");
        drop(SqlStore::open_file(&path).unwrap());
        let writer = connect(&path).unwrap();
        writer.busy_timeout(Duration::from_millis(10)).unwrap();
        let store =
            SqlStore::from_connections(Box::new(writer), Box::new(connect(&path).unwrap()), None, None)
                .unwrap();
        let other = connect(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let longest = std::thread::scope(|scope| {
            let change = || {
                let began = std::time::Instant::now();
                let refused = store.raise_alarm("h", None, "test", 1.0);
                assert!(matches!(refused, Err(StoreError::Busy(_))), "{refused:?}");
                began.elapsed()
            };
            let waiting: Vec<_> = (0..6).map(|_| scope.spawn(change)).collect();
            waiting.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
        });
        // The first job was in progress when the others arrived; those were tried together. Each of the two attempts
        // takes 3 s.
        assert!(longest < Duration::from_secs(9), "{longest:?}");
        other.execute_batch("ROLLBACK").unwrap();
        assert!(store.raise_alarm("h", None, "test", 1.0).unwrap());
    }

    #[test]
    fn a_full_database_refuses_changes_as_a_whole_and_recovers_with_free_space() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("placement.db");
        let host = Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap();
        SqlStore::open_file(&path).unwrap().put_host(&host, 10_000).unwrap();
        let mut scheduler = Scheduler::new(Policy { overcommit_percent: 10_000, ..Policy::default() }, 1);
        scheduler.put_host(&host).unwrap();
        let mut wanted = Vec::new();
        for v in 0..400 {
            let request = Request::new(&format!("v{v}"), 1, 64);
            let placement = scheduler.place(&request).unwrap();
            wanted.push(Reservation { request, placement, key: Some(format!("k{v}")), origin: 1 });
        }
        let store = with_room_for(&path, 12);
        let (mut kept, mut refused) = (Vec::new(), 0);
        // Some reservations are submitted alone and some in groups.
        for some in wanted.chunks(7) {
            let pending: Vec<_> = some.iter().map(|r| store.reserve(r.clone())).collect();
            for (reservation, answer) in some.iter().zip(pending) {
                match answer.wait() {
                    Ok(reserved) => kept.push((reserved.vm.id, reservation.request.name.clone())),
                    Err(StoreError::Full(_)) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        assert!(!kept.is_empty() && refused > 100, "{} kept, {refused} refused", kept.len());
        let names = |store: &SqlStore| {
            let vms = store.vms(&VmQuery::default()).unwrap();
            vms.into_iter().map(|vm| (vm.id, vm.request.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(&store), kept, "exactly the acknowledged changes are stored");
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        drop(store);
        let store = SqlStore::open_file(&path).unwrap();
        for reservation in wanted {
            store.reserve(reservation).wait().unwrap();
        }
        assert_eq!(names(&store).len(), 400);
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
    }
}
