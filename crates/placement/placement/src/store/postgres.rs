//! A PostgreSQL database, shared by services on several machines. An advisory lock serializes write transactions as a
//! SQLite file does. So no transaction fails because of another one, and events are numbered in commit order.
//!
//! Source: PostgreSQL's manual: 13.3.5 Advisory Locks; 13.5 Serialization Failure Handling; Appendix A; 20.11 Client
//! Connection Defaults (lock_timeout, idle_in_transaction_session_timeout).

mod session;

use self::session::Session;
use super::jobs::MAX_BATCH_AGE;
use super::sql::{Answer, Database, Failure, Kind, Query, Row, Value};
use super::sql_store::SqlStore;
use super::tables::Result;
use super::{StoreError, schema};
use std::cell::{Cell, RefCell};
use std::error::Error;
use std::time::{Duration, Instant};
use tokio_postgres::Config;
use tokio_postgres::error::Severity;

/// "Lpla": the advisory lock of write transactions. One per database, for all schemas.
const WRITE_LOCK_ID: i64 = 0x4c70_6c61;
/// Timeout for connecting to the server and for sending data.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The minimum time for which further changes may join a transaction.
const MIN_BATCH_AGE: Duration = Duration::from_millis(1);
/// How long to wait before reconnecting to a server that was unreachable.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);

impl SqlStore {
    /// Connects to a PostgreSQL database by its URL (`postgresql://user:password@host/database`) or key-value string.
    /// Creates the tables if they do not exist.
    ///
    /// Without `sslmode=disable`, a remote server is contacted only over TLS, and its certificate must be trusted by
    /// this machine's root certificates (`SSL_CERT_FILE` overrides them).
    ///
    /// # Errors
    /// If the server is unreachable, runs with `fsync` off, or the tables have a newer schema version.
    pub fn connect(url: &str) -> Result<Self> {
        let mut config: Config = url
            .parse()
            .map_err(|error| StoreError::Database(format!("the database's URL: {}", with_causes(&error))))?;
        config
            .application_name("longma placement")
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(CONNECT_TIMEOUT);
        let writer = Postgres::new(config.clone())?;
        let kept = writer.row("SHOW fsync", &[])?.map_or(Ok(String::new()), |row| row.get(0))?;
        if kept != "on" {
            let wrong =
                "the server runs with fsync off, so a crash could lose acknowledged changes; set fsync = on";
            return Err(StoreError::Format(wrong.into()));
        }
        schema::prepare_postgres(&writer)?;
        Self::from_connections(Box::new(writer), Box::new(Postgres::new(config)?), None, None)
    }
}

/// A session that is reopened after it is lost.
struct Postgres {
    config: Config,
    session: RefCell<Option<Session>>,
    in_transaction: Cell<bool>,
    /// Statements that begin a transaction, and savepoint statements, to be sent together with the next statement.
    deferred: RefCell<String>,
    /// Whether `deferred` begins a transaction.
    begins: Cell<bool>,
    /// When the server was last unreachable, and the error.
    last_failure: RefCell<Option<(Instant, Failure)>>,
}

fn with_causes(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(database_error) => {
                let kind = match database_error.code().code() {
                    // Serialization failure, deadlock, lock timeout.
                    "40001" | "40P01" | "55P03" => Kind::Busy,
                    "53100" => Kind::Full,
                    // Shutting down or starting up, too many connections, connection lost.
                    "57P01" | "57P02" | "57P03" | "53300" => Kind::Unreachable,
                    code if code.starts_with("08") => Kind::Unreachable,
                    // Class 23: integrity constraint violations.
                    code if code.starts_with("23") => Kind::Constraint,
                    _ => Kind::Other,
                };
                Failure {
                    kind,
                    text: format!("{} ({})", database_error.message(), database_error.code().code()),
                }
            }
            None => Failure {
                kind: if is_unreachable(&error) { Kind::Unreachable } else { Kind::Other },
                text: with_causes(&error),
            },
        }
    }
}

/// Returns whether a client-side error means that the server is unreachable.
fn is_unreachable(error: &tokio_postgres::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<std::io::Error>() {
            return true;
        }
        cause = error.source();
    }
    error.is_closed()
}

/// Returns whether the server closes the connection after this error.
fn ends_session(error: &tokio_postgres::Error) -> bool {
    let severity = error.as_db_error().and_then(|database_error| database_error.parsed_severity());
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

impl Postgres {
    fn new(config: Config) -> std::result::Result<Self, Failure> {
        let session = RefCell::new(Some(Session::open(&config)?));
        let (in_transaction, deferred, begins) = Default::default();
        Ok(Self { config, session, in_transaction, deferred, begins, last_failure: RefCell::new(None) })
    }

    /// Runs `work` in the session. Opens a new session first if the old one is lost and no transaction was open in it.
    fn with_session<T>(
        &self,
        work: impl Fn(&mut Session) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> std::result::Result<T, Failure> {
        let mut held = self.session.borrow_mut();
        for last in [false, true] {
            let session = match &mut *held {
                Some(session) if !session.is_closed() => session,
                _ if self.in_transaction.get() => {
                    let text = "the connection was lost: the open transaction is rolled back".into();
                    return Err(Failure { kind: Kind::Unreachable, text });
                }
                lost => lost.insert(self.reconnect()?),
            };
            match work(session) {
                Err(error) if session.is_closed() || ends_session(&error) => {
                    *held = None;
                    if last || self.in_transaction.get() {
                        return Err(error.into());
                    }
                }
                done => return Ok(done?),
            }
        }
        unreachable!("the second turn returns")
    }

    /// Opens a new session. Shortly after a failed attempt, returns its error again, so that waiting callers do not
    /// each retry.
    fn reconnect(&self) -> std::result::Result<Session, Failure> {
        let mut last_failure = self.last_failure.borrow_mut();
        if let Some((_, failure)) = last_failure.as_ref().filter(|(at, _)| at.elapsed() < RECONNECT_DELAY) {
            return Err(failure.clone());
        }
        let made = Session::open(&self.config);
        *last_failure = made.as_ref().err().map(|failure| (Instant::now(), failure.clone()));
        made
    }

    /// Rolls back a transaction that a change left open by a panic.
    fn end_open_transaction(&self) {
        if self.in_transaction.replace(false) {
            let _ = self.with_session(|s| s.execute("ROLLBACK"));
        }
        self.deferred.take();
        self.begins.set(false);
    }

    /// Sends `work` after the deferred statements. If they begin the transaction, it is open afterwards, even if `work`
    /// failed.
    fn send<T>(
        &self,
        work: impl Fn(&mut Session, &str) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> std::result::Result<T, Failure> {
        let (words, begins) = (self.deferred.take(), self.begins.take());
        let done = self.with_session(|s| work(s, &words));
        if begins {
            let is_open = self.session.borrow().as_ref().is_some_and(|session| !session.is_closed());
            self.in_transaction.set(is_open);
        }
        done
    }
}

impl Database for Postgres {
    fn run(&self, sql: &str, values: &[Value]) -> std::result::Result<usize, Failure> {
        if !values.is_empty() || sql.starts_with(['I', 'U', 'D']) {
            return Ok(self.run_all(&[Query::new(sql, values)])?.first().map_or(0, |answer| answer.changed));
        }
        // Transaction control and DDL.
        let is_inside = self.in_transaction.get() || self.begins.get();
        if is_inside && (sql.starts_with("SAVEPOINT") || sql.starts_with("RELEASE")) {
            *self.deferred.borrow_mut() += &format!("{sql};");
            return Ok(0);
        }
        if self.begins.get() && matches!(sql, "COMMIT" | "ROLLBACK") {
            // The server knows nothing of the transaction yet.
            self.end_open_transaction();
            return Ok(0);
        }
        let done = self.send(|s, words| s.execute(&format!("{words}{sql}")));
        if matches!(sql, "COMMIT" | "ROLLBACK") {
            self.in_transaction.set(false);
        }
        done.map(|()| 0)
    }

    fn rows(&self, sql: &str, values: &[Value]) -> std::result::Result<Vec<Row>, Failure> {
        Ok(self.run_all(&[Query::new(sql, values)])?.into_iter().flat_map(|answer| answer.rows).collect())
    }

    fn run_all(&self, queries: &[Query<'_>]) -> std::result::Result<Vec<Answer>, Failure> {
        self.send(|s, words| s.run_all(words, queries))
    }

    fn batch_age(&self, last_commit: Duration) -> Duration {
        // On a slow disk, more changes share a commit; on a fast one, none waits long for others.
        last_commit.clamp(MIN_BATCH_AGE, MAX_BATCH_AGE)
    }

    fn combines_statements(&self) -> bool {
        true
    }

    fn begin(&self) -> std::result::Result<(), Failure> {
        self.end_open_transaction();
        // In this isolation level, each statement after the lock sees everything committed before it. Both are sent with
        // the first statement, which saves a round trip.
        *self.deferred.borrow_mut() =
            format!("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({WRITE_LOCK_ID});");
        self.begins.set(true);
        Ok(())
    }

    fn begin_snapshot(&self) -> std::result::Result<(), Failure> {
        self.end_open_transaction();
        *self.deferred.borrow_mut() = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;".into();
        self.begins.set(true);
        Ok(())
    }
}
