//! The database interface of the store: parameterized statements and result rows. It lets the table logic be written
//! once for all databases.
//!
//! Statements use the SQL common to SQLite and PostgreSQL and number their parameters `?1`, `?2`.

use super::StoreError;
use super::jobs::MAX_BATCH_AGE;
use std::borrow::Cow;
use std::time::Duration;

/// Name of the savepoint that each change runs in.
pub(super) const JOB_SAVEPOINT: &str = "job";

/// A parameter or a column value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Int(i64),
    Real(f64),
    Bool(bool),
    Text(String),
}

/// Type of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A constraint was violated: the resource is taken.
    Constraint,
    /// A concurrent transaction interfered, and this one was rolled back. A retry may succeed.
    Busy,
    /// The disk is full, and the transaction was rolled back.
    Full,
    /// The database is unreachable. The transaction was rolled back unless it was being committed. A later attempt may
    /// succeed.
    Unreachable,
    /// Any other failure. The outcome of a commit may be unknown.
    Other,
}

/// A failed statement.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// Kind of failure.
    pub kind: Kind,
    /// The database's message.
    pub text: String,
}

impl Failure {
    /// A failure of kind [`Kind::Other`].
    pub fn other(text: String) -> Self {
        Self { kind: Kind::Other, text }
    }

    /// Returns whether a constraint was violated.
    pub fn is_constraint(&self) -> bool {
        self.kind == Kind::Constraint
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            Kind::Busy => StoreError::Busy(failure.text),
            Kind::Full => StoreError::Full(failure.text),
            Kind::Unreachable => StoreError::Unreachable(failure.text),
            Kind::Constraint | Kind::Other => StoreError::Database(failure.text),
        }
    }
}

/// A result row.
#[derive(Clone, Debug)]
pub(super) struct Row(pub Vec<Value>);

impl Row {
    /// Value of a column, counted from 0.
    pub fn get<T: FromValue>(&self, column: usize) -> Result<T, StoreError> {
        let value = self.0.get(column).unwrap_or(&Value::Null);
        T::from_value(value).ok_or_else(|| {
            StoreError::Database(format!("column {column} of a row has the invalid value {value:?}"))
        })
    }
}

/// A type that a column can be read as.
pub(super) trait FromValue: Sized {
    fn from_value(value: &Value) -> Option<Self>;
}

impl FromValue for i64 {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Int(number) = value { Some(*number) } else { None }
    }
}

impl FromValue for u32 {
    fn from_value(value: &Value) -> Option<Self> {
        i64::from_value(value)?.try_into().ok()
    }
}

impl FromValue for f64 {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Real(number) = value { Some(*number) } else { None }
    }
}

impl FromValue for String {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text.clone()) } else { None }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value) -> Option<Self> {
        if *value == Value::Null { Some(None) } else { T::from_value(value).map(Some) }
    }
}

macro_rules! value_from {
    ($($source:ty, $given:ident => $made:expr;)*) => {
        $(impl From<$source> for Value {
            fn from($given: $source) -> Self { $made }
        })*
    };
}
value_from! {
    i64, n => Value::Int(n);
    u32, n => Value::Int(n.into());
    f64, n => Value::Real(n);
    bool, b => Value::Bool(b);
    &str, s => Value::Text(s.into());
    &String, s => Value::Text(s.clone());
    String, s => Value::Text(s);
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// Converts the arguments to the parameters of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::store::sql::Value::from($value)),*] };
}
pub(super) use values;

/// A statement with its parameters.
#[derive(Clone, Debug)]
pub(super) struct Query<'a> {
    pub sql: Cow<'a, str>,
    pub values: Vec<Value>,
}

impl<'a> Query<'a> {
    pub fn new(sql: impl Into<Cow<'a, str>>, values: &[Value]) -> Self {
        Self { sql: sql.into(), values: values.to_vec() }
    }

    /// Returns whether the statement returns rows.
    fn returns_rows(&self) -> bool {
        self.sql.starts_with("SELECT") || self.sql.contains(" RETURNING ")
    }
}

/// The result of a statement.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// Number of rows changed.
    pub changed: usize,
    pub rows: Vec<Row>,
}

/// A database connection.
pub(super) trait Database {
    /// Runs a statement and returns the number of rows changed. Prepared statements are cached.
    fn run(&self, sql: &str, values: &[Value]) -> Result<usize, Failure>;

    /// Returns all rows of a query.
    fn rows(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure>;

    /// Runs independent statements in order, up to the first that fails. An implementation with a remote server
    /// pipelines them.
    fn run_all(&self, queries: &[Query<'_>]) -> Result<Vec<Answer>, Failure> {
        let one = |query: &Query<'_>| match query.returns_rows() {
            true => Ok(Answer { changed: 0, rows: self.rows(&query.sql, &query.values)? }),
            false => Ok(Answer { changed: self.run(&query.sql, &query.values)?, rows: Vec::new() }),
        };
        queries.iter().map(one).collect()
    }

    /// Begins a write transaction, after rolling back one that was left open. Write transactions of all connections are
    /// serialized.
    fn begin(&self) -> Result<(), Failure>;

    /// Begins a read transaction with a consistent snapshot of all tables.
    fn begin_snapshot(&self) -> Result<(), Failure>;

    /// How long further changes may join a transaction, if the last commit took `last_commit`.
    fn batch_age(&self, _last_commit: Duration) -> Duration {
        MAX_BATCH_AGE
    }

    /// Whether a `WITH` clause may contain statements that change rows, so that several run as one.
    fn combines_statements(&self) -> bool {
        false
    }

    /// The actor that events of this connection are recorded with.
    fn actor(&self) -> Option<&str> {
        None
    }

    /// Performs occasional maintenance. Called when no transaction is open and all answers are sent.
    fn maintain(&self) {}

    /// First row of a query, if there is one.
    fn row(&self, sql: &str, values: &[Value]) -> Result<Option<Row>, Failure> {
        Ok(self.rows(sql, values)?.into_iter().next())
    }
}

/// A connection that records events with an actor.
pub(super) struct ActingDatabase<'a> {
    pub db: &'a dyn Database,
    pub actor: &'a str,
}

impl Database for ActingDatabase<'_> {
    fn run(&self, sql: &str, values: &[Value]) -> Result<usize, Failure> {
        self.db.run(sql, values)
    }

    fn rows(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        self.db.rows(sql, values)
    }

    fn run_all(&self, queries: &[Query<'_>]) -> Result<Vec<Answer>, Failure> {
        self.db.run_all(queries)
    }

    fn begin(&self) -> Result<(), Failure> {
        self.db.begin()
    }

    fn begin_snapshot(&self) -> Result<(), Failure> {
        self.db.begin_snapshot()
    }

    fn combines_statements(&self) -> bool {
        self.db.combines_statements()
    }

    fn actor(&self) -> Option<&str> {
        Some(self.actor)
    }
}

/// A transaction that is rolled back when dropped, also during a panic, unless it was committed.
pub(super) struct OpenTransaction<'a> {
    db: &'a dyn Database,
    ended: bool,
}

impl<'a> OpenTransaction<'a> {
    /// Wraps a transaction that has already begun.
    pub fn begun(db: &'a dyn Database) -> Self {
        Self { db, ended: false }
    }

    /// Commits the transaction.
    pub fn commit(mut self) -> Result<(), Failure> {
        // On failure, the drop handler rolls back.
        self.db.run("COMMIT", &[])?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for OpenTransaction<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // If this fails too, the connection is broken, and the next `begin` reports it.
            let _ = self.db.run("ROLLBACK", &[]);
        }
    }
}
