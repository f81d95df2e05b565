//! One session with a PostgreSQL server. Caches prepared statements and pipelines independent ones. `postgres` handles
//! a lost session.
//!
//! Source: PostgreSQL's manual, 55.2.4 Pipelining; the documentation of tokio-postgres, which sends queries in the
//! order of their first polls.

use crate::store::sql::{Answer, Failure, Query, Row, Value};
use futures_util::TryStreamExt;
use futures_util::future::{join, join_all};
use std::collections::HashMap;
use std::pin::pin;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, Error, NoTls, Socket, Statement};

/// Limits how long a session waits, and how long an idle one may block others. No plan depends on the values of parameters, so each
/// statement is planned once.
const SESSION_SETTINGS: &str =
    "SET synchronous_commit = on; SET lock_timeout = '10s'; SET statement_timeout = '30s';
    SET idle_in_transaction_session_timeout = '10s'; SET client_min_messages = warning;
    SET plan_cache_mode = force_generic_plan";
/// Half of the maximum number of statements that a session keeps prepared. Reservations with different numbers of CPUs
/// and nodes are different statements, and each statement takes three quarters of a MiB of the server's memory.
const MAX_RECENT: usize = 64;
/// Maximum number of statements sent before their answers are awaited.
const MAX_PIPELINED: usize = 16;

/// A session with a server.
pub(super) struct Session {
    runtime: Runtime,
    client: Client,
    prepared: RecentlyUsed<Statement>,
}

/// Values by text, of which the least recently used are forgotten.
struct RecentlyUsed<T> {
    recent: HashMap<String, T>,
    /// The values that were in `recent` when it was last full.
    older: HashMap<String, T>,
}

impl Session {
    /// Opens a session. Uses TLS unless the connection is local.
    ///
    /// # Errors
    /// If the server is unreachable or refuses the connection.
    pub fn open(config: &Config) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            Failure::other(format!("cannot start the database session's runtime: {error}"))
        })?;
        let plain = match config.get_ssl_mode() {
            SslMode::Disable => true,
            SslMode::Prefer => is_local(config),
            _ => false,
        };
        let mut config = config.clone();
        config.ssl_mode(if plain { SslMode::Disable } else { SslMode::Require });
        let client = match plain {
            true => runtime.block_on(connect(&config, NoTls)),
            false => runtime.block_on(connect(&config, tls()?)),
        };
        let session = Self { client: client?, runtime, prepared: RecentlyUsed::default() };
        session.execute(SESSION_SETTINGS)?;
        Ok(session)
    }

    /// Returns whether the connection is lost.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs statements without parameters, such as transaction control and DDL, by the simple query protocol.
    ///
    /// # Errors
    /// The server's error, or a lost connection.
    pub fn execute(&self, words: &str) -> Result<(), Error> {
        self.runtime.block_on(self.client.batch_execute(words))
    }

    /// Sends `words`, if not empty, followed by the statements, and then waits for all answers.
    ///
    /// # Errors
    /// The first error. The server rejects all later statements, because they belong to the same transaction.
    pub fn run_all(&mut self, words: &str, queries: &[Query<'_>]) -> Result<Vec<Answer>, Error> {
        let mut statements = Vec::with_capacity(queries.len());
        for each in queries {
            statements.push(self.statement(&each.sql)?);
        }
        let (client, mut words) = (&self.client, Some(words).filter(|words| !words.is_empty()));
        self.runtime.block_on(async {
            let mut answers = Vec::with_capacity(queries.len());
            for (queries, statements) in queries.chunks(MAX_PIPELINED).zip(statements.chunks(MAX_PIPELINED)) {
                let statements =
                    queries.iter().zip(statements).map(|(query, known)| answer(client, known, query));
                // `join` polls its first future first, so `words` is sent before the statements.
                let (result, some) = join(execute(client, words.take()), join_all(statements)).await;
                result?;
                answers.extend(some.into_iter().collect::<Result<Vec<_>, _>>()?);
            }
            execute(client, words).await.map(|()| answers)
        })
    }

    fn statement(&mut self, sql: &str) -> Result<Statement, Error> {
        if let Some(known) = self.prepared.get(sql) {
            return Ok(known);
        }
        let made = self.runtime.block_on(self.client.prepare(&sql.replace('?', "$")))?;
        self.prepared.insert(sql, made.clone());
        Ok(made)
    }
}

impl<T> Default for RecentlyUsed<T> {
    fn default() -> Self {
        Self { recent: HashMap::new(), older: HashMap::new() }
    }
}

impl<T: Clone> RecentlyUsed<T> {
    fn get(&mut self, text: &str) -> Option<T> {
        if let Some((text, value)) = self.older.remove_entry(text) {
            self.insert(&text, value);
        }
        self.recent.get(text).cloned()
    }

    fn insert(&mut self, text: &str, value: T) {
        if self.recent.len() >= MAX_RECENT {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(text.into(), value);
    }
}

async fn execute(client: &Client, words: Option<&str>) -> Result<(), Error> {
    match words {
        Some(words) => client.batch_execute(words).await,
        None => Ok(()),
    }
}

async fn answer(client: &Client, statement: &Statement, query: &Query<'_>) -> Result<Answer, Error> {
    let mut stream = pin!(client.query_raw(statement, &query.values).await?);
    let mut rows = Vec::new();
    while let Some(read) = stream.try_next().await? {
        rows.push(row(&read)?);
    }
    Ok(Answer { changed: stream.rows_affected().unwrap_or(0) as usize, rows })
}

fn row(read: &tokio_postgres::Row) -> Result<Row, Error> {
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
    columns.map(|(at, column)| value(at, column.type_())).collect::<Result<_, _>>().map(Row)
}

/// Connects, and spawns the task that drives the connection.
async fn connect<T>(config: &Config, tls: T) -> Result<Client, Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (client, connection) = config.connect(tls).await?;
    // A connection error is reported by the statement that is waiting, and by the next one.
    tokio::spawn(async { drop(connection.await) });
    Ok(client)
}

/// Whether the connection stays on this machine and therefore needs no encryption.
fn is_local(config: &Config) -> bool {
    let near = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
    };
    config.get_hosts().iter().all(near) && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
}

fn tls() -> Result<tokio_postgres_rustls::MakeRustlsConnect, Failure> {
    let failure = Failure::other;
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(failure(format!(
            "cannot load root certificates for TLS to the database: {:?}",
            found.errors
        )));
    }
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failure(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(tokio_postgres_rustls::MakeRustlsConnect::new(config))
}

impl ToSql for Value {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_in_use_stay_prepared_and_others_are_forgotten() {
        let mut kept = RecentlyUsed::default();
        kept.insert("often", 0);
        for number in 1..10 * MAX_RECENT {
            kept.insert(&number.to_string(), number);
            assert_eq!(kept.get("often"), Some(0));
            assert!(kept.recent.len() + kept.older.len() <= 2 * MAX_RECENT);
        }
        assert_eq!(
            (kept.get("1"), kept.get(&(10 * MAX_RECENT - 1).to_string())),
            (None, Some(10 * MAX_RECENT - 1))
        );
    }
}
