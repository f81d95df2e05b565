//! A SQLite file as a database: durable at every answer (synchronous=FULL), shared by several processes of one machine.
//! Not for several machines: a network file system's locks are not to be trusted (`postgres` is for those).
//! Source: SQLite's documentation: Write-Ahead Logging; PRAGMA synchronous; File Locking And Concurrency.

use super::sql::{Database, Failure, Row, Value};
use super::sql_store::SqlStore;
use super::tables::Result;
use super::{StoreError, schema};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, ErrorCode, ToSql};
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// How long another process may hold the database.
const PATIENCE: Duration = Duration::from_secs(10);

impl SqlStore {
    /// Opens a file, or makes one.
    ///
    /// # Errors
    /// If it cannot be opened, belongs to another program, or is of a later version.
    pub fn open_file(path: &Path) -> Result<Self> {
        let mut connection = connect(path)?;
        schema::prepare_sqlite(&mut connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // Only if the checkpointer does not keep up: a commit that does it keeps others waiting for tens of milliseconds.
        connection.pragma_update(None, "wal_autocheckpoint", 1 << 16)?;
        let reader = connect(path)?;
        let checkpointer = Checkpointer::start(connect(path)?)?;
        Self::over(Box::new(connection), Box::new(reader), Some(checkpointer))
    }
}

fn connect(path: &Path) -> Result<Connection> {
    let error =
        |error: rusqlite::Error| StoreError::Database(format!("cannot open {}: {error}", path.display()));
    let connection = Connection::open(path).map_err(error)?;
    connection.busy_timeout(PATIENCE)?;
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
        let constraint = error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation);
        Failure { constraint, text: error.to_string() }
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
            return Err(Failure { constraint: false, text: "a column holds bytes, not text".into() });
        }
    })
}

/// The statement, prepared, with its values.
fn bound<'c>(db: &'c Connection, sql: &str, values: &[Value]) -> rusqlite::Result<CachedStatement<'c>> {
    let mut statement = db.prepare_cached(sql)?;
    for (at, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, value)?;
    }
    Ok(statement)
}

impl Database for Connection {
    fn run(&self, sql: &str, values: &[Value]) -> std::result::Result<usize, Failure> {
        Ok(bound(self, sql, values)?.raw_execute()?)
    }

    fn rows(&self, sql: &str, values: &[Value]) -> std::result::Result<Vec<Row>, Failure> {
        let mut statement = bound(self, sql, values)?;
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
        // At once: who reads first and then finds that another process writes would have to begin anew.
        self.run("BEGIN IMMEDIATE", &[]).map(drop)
    }

    fn begin_view(&self) -> std::result::Result<(), Failure> {
        if !self.is_autocommit() {
            self.run("ROLLBACK", &[])?;
        }
        self.run("BEGIN DEFERRED", &[]).map(drop)
    }
}

/// The thread that brings what was committed from the log into the database, so that no commit waits for that.
#[derive(Debug)]
pub(super) struct Checkpointer {
    stop: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Checkpointer {
    /// Every so often there is little to bring, and the disk is not kept busy for long.
    const PERIOD: Duration = Duration::from_millis(100);

    fn start(connection: Connection) -> Result<Self> {
        let (sender, receiver) = mpsc::channel::<()>();
        let copy = move || {
            while receiver.recv_timeout(Self::PERIOD) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Passive: it waits for nobody. If it fails the log is longer until the next time, or until the writer does it.
                let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
            }
        };
        let thread = std::thread::Builder::new()
            .name("placement-checkpoint".into())
            .spawn(copy)
            .map_err(|error| StoreError::Database(format!("no thread for checkpoints: {error}")))?;
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
