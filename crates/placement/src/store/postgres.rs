//! A PostgreSQL database: for several services on several machines. Those that change something take one lock after another, as on a
//! SQLite file, so no transaction fails because of another one and events have their numbers in the order of their commits.
//! Source: PostgreSQL's manual: 13.3.5 Advisory Locks; 13.5 Serialization Failure Handling; Appendix A; 20.11 Client Connection Defaults (lock_timeout, idle_in_transaction_session_timeout).

use super::sql::{Database, Failure, Kind, Row, Value};
use super::sql_store::SqlStore;
use super::tables::Result;
use super::{StoreError, schema};
use postgres::config::{Host, SslMode};
use postgres::error::Severity;
use postgres::types::private::BytesMut;
use postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use postgres::{Client, Config, NoTls, Statement};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

/// "Lpla": the advisory lock of those that change something. One a database, whatever its schema.
const LOCK: i64 = 0x4c70_6c61;
/// How long the server may take to be reached, or to take what was sent.
const PATIENCE: Duration = Duration::from_secs(10);
/// A server that could not be reached is tried again after so long.
const AGAIN: Duration = Duration::from_millis(500);
/// What a session waits for at most, and how long a stopped one may keep others waiting.
const SESSION: &str = "SET synchronous_commit = on; SET lock_timeout = '10s'; SET statement_timeout = '30s';
    SET idle_in_transaction_session_timeout = '10s'; SET client_min_messages = warning";

impl SqlStore {
    /// Connects to a PostgreSQL database by its URL (`postgresql://user:password@host/database`) or key-value string and makes the
    /// tables if there are none. Without `sslmode=disable` a server on another machine is spoken to by TLS only, and its certificate
    /// must be one that this machine's roots vouch for (`SSL_CERT_FILE` names others).
    ///
    /// # Errors
    /// If it cannot be reached, does not keep what it has committed (`fsync` off), or has tables of a later version.
    pub fn connect(url: &str) -> Result<Self> {
        let mut config: Config = url
            .parse()
            .map_err(|error| StoreError::Database(format!("the database's URL: {}", told(&error))))?;
        config.application_name("longma placement").connect_timeout(PATIENCE).tcp_user_timeout(PATIENCE);
        let writer = Postgres::new(config.clone())?;
        let kept = writer.row("SHOW fsync", &[])?.map_or(Ok(String::new()), |row| row.get(0))?;
        if kept != "on" {
            let wrong = "the server runs with fsync off: what was answered could be lost; set fsync = on";
            return Err(StoreError::Format(wrong.into()));
        }
        schema::prepare_postgres(&writer)?;
        Self::over(Box::new(writer), Box::new(Postgres::new(config)?), None)
    }
}

/// A session, made again when it was lost.
struct Postgres {
    config: Config,
    session: RefCell<Option<Session>>,
    in_transaction: Cell<bool>,
    /// When the server could not be reached last, and why.
    refused: RefCell<Option<(Instant, Failure)>>,
}

struct Session {
    client: Client,
    prepared: HashMap<String, Statement>,
}

fn told(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", told(cause)),
        None => error.to_string(),
    }
}

impl From<postgres::Error> for Failure {
    fn from(error: postgres::Error) -> Self {
        match error.as_db_error() {
            Some(said) => {
                let kind = match said.code().code() {
                    // Serialization failure, deadlock, a lock that others held for too long.
                    "40001" | "40P01" | "55P03" => Kind::Busy,
                    "53100" => Kind::Full,
                    // It is shut down or just starting, has no connection left, or the connection is lost.
                    "57P01" | "57P02" | "57P03" | "53300" => Kind::Away,
                    code if code.starts_with("08") => Kind::Away,
                    // The class of constraints that refuse.
                    code if code.starts_with("23") => Kind::Constraint,
                    _ => Kind::Other,
                };
                Failure { kind, text: format!("{} ({})", said.message(), said.code().code()) }
            }
            None => {
                Failure { kind: if is_away(&error) { Kind::Away } else { Kind::Other }, text: told(&error) }
            }
        }
    }
}

/// Whether an error that the server did not send says that it is not there.
fn is_away(error: &postgres::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<std::io::Error>() {
            return true;
        }
        cause = error.source();
    }
    error.is_closed()
}

/// Whether the server ends the session with this, which it says before it closes the connection.
fn ends_session(error: &postgres::Error) -> bool {
    let severity = error.as_db_error().and_then(|said| said.parsed_severity());
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
}

/// Whether nobody on the way can read what is sent.
fn is_local(config: &Config) -> bool {
    let near = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
    };
    config.get_hosts().iter().all(near) && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
}

fn session(config: &Config) -> std::result::Result<Session, Failure> {
    let plain = match config.get_ssl_mode() {
        SslMode::Disable => true,
        SslMode::Prefer => is_local(config),
        _ => false,
    };
    let mut client = if plain {
        config.clone().ssl_mode(SslMode::Disable).connect(NoTls)
    } else {
        config.clone().ssl_mode(SslMode::Require).connect(tls()?)
    }?;
    client.batch_execute(SESSION)?;
    Ok(Session { client, prepared: HashMap::new() })
}

fn tls() -> std::result::Result<tokio_postgres_rustls::MakeRustlsConnect, Failure> {
    let failure = Failure::other;
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(failure(format!("no root certificates for TLS to the database: {:?}", found.errors)));
    }
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failure(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(tokio_postgres_rustls::MakeRustlsConnect::new(config))
}

impl Postgres {
    fn new(config: Config) -> std::result::Result<Self, Failure> {
        let session = RefCell::new(Some(session(&config)?));
        Ok(Self { config, session, in_transaction: Cell::new(false), refused: RefCell::new(None) })
    }

    /// Does something in the session, or in a new one if that was lost and nothing had begun in it.
    fn with<T>(
        &self,
        work: impl Fn(&mut Session) -> std::result::Result<T, postgres::Error>,
    ) -> std::result::Result<T, Failure> {
        let mut held = self.session.borrow_mut();
        for last in [false, true] {
            let session = match &mut *held {
                Some(session) if !session.client.is_closed() => session,
                _ if self.in_transaction.get() => {
                    let text = "the connection was lost: what was begun is undone".into();
                    return Err(Failure { kind: Kind::Away, text });
                }
                lost => lost.insert(self.session_again()?),
            };
            match work(session) {
                Err(error) if session.client.is_closed() || ends_session(&error) => {
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

    /// A new session. Those who waited while one was tried in vain hear the same and do not try one by one.
    fn session_again(&self) -> std::result::Result<Session, Failure> {
        let mut refused = self.refused.borrow_mut();
        if let Some((_, failure)) = refused.as_ref().filter(|(at, _)| at.elapsed() < AGAIN) {
            return Err(failure.clone());
        }
        let made = session(&self.config);
        *refused = made.as_ref().err().map(|failure| (Instant::now(), failure.clone()));
        made
    }

    fn enter(&self, how: &str) -> std::result::Result<(), Failure> {
        if self.in_transaction.replace(false) {
            // Left by a change that panicked.
            let _ = self.with(|s| s.client.batch_execute("ROLLBACK"));
        }
        let begun = self.with(|s| {
            let begun = s.client.batch_execute(how);
            if begun.is_err() && !s.client.is_closed() {
                // It waited too long for the lock: the transaction is begun and failed.
                let _ = s.client.batch_execute("ROLLBACK");
            }
            begun
        });
        self.in_transaction.set(begun.is_ok());
        begun
    }
}

impl Session {
    fn statement(&mut self, sql: &str) -> std::result::Result<Statement, postgres::Error> {
        if let Some(known) = self.prepared.get(sql) {
            return Ok(known.clone());
        }
        let made = self.client.prepare(&sql.replace('?', "$"))?;
        self.prepared.insert(sql.into(), made.clone());
        Ok(made)
    }
}

fn referred(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

impl Database for Postgres {
    fn run(&self, sql: &str, values: &[Value]) -> std::result::Result<usize, Failure> {
        let ends = matches!(sql, "COMMIT" | "ROLLBACK");
        let done = self.with(|s| {
            let changes = values.is_empty() && !sql.starts_with(['I', 'U', 'D']);
            if changes {
                // Words of transactions and tables: there is nothing to prepare.
                return s.client.batch_execute(sql).map(|()| 0);
            }
            let statement = s.statement(sql)?;
            s.client.execute(&statement, &referred(values)).map(|rows| rows as usize)
        });
        if ends {
            self.in_transaction.set(false);
        }
        done
    }

    fn rows(&self, sql: &str, values: &[Value]) -> std::result::Result<Vec<Row>, Failure> {
        let rows = self.with(|s| {
            let statement = s.statement(sql)?;
            s.client.query(&statement, &referred(values))
        })?;
        rows.iter().map(row).collect()
    }

    fn begin(&self) -> std::result::Result<(), Failure> {
        // Each statement after the lock sees all that was committed before it.
        self.enter(&format!("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({LOCK})"))
    }

    fn begin_view(&self) -> std::result::Result<(), Failure> {
        self.enter("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    }
}

fn row(read: &postgres::Row) -> std::result::Result<Row, Failure> {
    let value = |at: usize, kind: &Type| {
        Ok(match *kind {
            Type::INT8 => read.try_get::<_, Option<i64>>(at)?.into(),
            Type::INT4 => read.try_get::<_, Option<i32>>(at)?.map(i64::from).into(),
            Type::FLOAT8 => read.try_get::<_, Option<f64>>(at)?.into(),
            Type::BOOL => read.try_get::<_, Option<bool>>(at)?.into(),
            _ => read.try_get::<_, Option<String>>(at)?.into(),
        })
    };
    let columns = read.columns().iter().enumerate();
    columns.map(|(at, column)| value(at, column.type_())).collect::<std::result::Result<_, _>>().map(Row)
}

impl ToSql for Value {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn Error + Sync + Send>> {
        match (self, kind) {
            (Value::Null, _) => Ok(IsNull::Yes),
            (Value::Int(number), &Type::INT4) => i32::try_from(*number)?.to_sql(kind, out),
            (Value::Int(number), _) => number.to_sql(kind, out),
            (Value::Real(number), _) => number.to_sql(kind, out),
            (Value::Bool(truth), _) => truth.to_sql(kind, out),
            (Value::Text(text), _) => text.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        matches!(*kind, Type::INT8 | Type::INT4 | Type::FLOAT8 | Type::BOOL | Type::TEXT | Type::VARCHAR)
    }

    to_sql_checked!();
}
