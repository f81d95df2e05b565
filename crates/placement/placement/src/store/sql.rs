//! What a store asks of a database: statements with values, and rows; so that the tables' rules are written once for all databases.
//! Statements keep to what SQLite and PostgreSQL both understand and number their values `?1`, `?2`. Not how either is reached (`sqlite`, `postgres`).

use super::StoreError;
use std::borrow::Cow;

/// A value in a statement or a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Int(i64),
    Real(f64),
    Bool(bool),
    Text(String),
}

/// What kind of failure it is: what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A constraint of the tables refused it: what was wanted is not free.
    Constraint,
    /// Somebody else was in the way, and the transaction is undone: made anew it may succeed.
    Busy,
    /// There is no room on the disk, and the transaction is undone.
    Full,
    /// The database cannot be reached, and the transaction is undone unless it was being committed: later it may be there again.
    Away,
    /// Anything else; whether a commit was made may not be known.
    Other,
}

/// Why a statement failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// Its kind.
    pub kind: Kind,
    /// What the database says.
    pub text: String,
}

impl Failure {
    /// One that only its text tells.
    pub fn other(text: String) -> Self {
        Self { kind: Kind::Other, text }
    }

    /// Whether a constraint refused.
    pub fn is_constraint(&self) -> bool {
        self.kind == Kind::Constraint
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            Kind::Busy => StoreError::Busy(failure.text),
            Kind::Full => StoreError::Full(failure.text),
            Kind::Away => StoreError::Away(failure.text),
            Kind::Constraint | Kind::Other => StoreError::Database(failure.text),
        }
    }
}

/// A row of an answer.
#[derive(Clone, Debug)]
pub(super) struct Row(pub Vec<Value>);

impl Row {
    /// The value of a column, counted from 0.
    pub fn get<T: FromValue>(&self, column: usize) -> Result<T, StoreError> {
        let value = self.0.get(column).unwrap_or(&Value::Null);
        T::from_value(value).ok_or_else(|| {
            StoreError::Database(format!("column {column} of a row is {value:?}, which it cannot be"))
        })
    }
}

/// What a column can be read as.
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

/// The values of a statement, in order.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::store::sql::Value::from($value)),*] };
}
pub(super) use values;

/// A statement with its values.
#[derive(Clone, Debug)]
pub(super) struct Asked<'a> {
    pub sql: Cow<'a, str>,
    pub values: Vec<Value>,
}

impl<'a> Asked<'a> {
    pub fn new(sql: impl Into<Cow<'a, str>>, values: &[Value]) -> Self {
        Self { sql: sql.into(), values: values.to_vec() }
    }

    /// Whether it answers with rows.
    fn answers(&self) -> bool {
        self.sql.starts_with("SELECT") || self.sql.contains(" RETURNING ")
    }
}

/// What a statement did, and what it answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// Rows that it changed.
    pub changed: usize,
    pub rows: Vec<Row>,
}

/// A connection to a database.
pub(super) trait Database {
    /// Runs a statement; how many rows it changed. Statements recur, so they are kept prepared.
    fn run(&self, sql: &str, values: &[Value]) -> Result<usize, Failure>;

    /// All rows of an answer.
    fn rows(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure>;

    /// Runs statements one after another up to the first that fails. None of them wants to know what another one answers: where a database is
    /// far, they are sent together.
    fn ask(&self, asked: &[Asked<'_>]) -> Result<Vec<Answer>, Failure> {
        let one = |asked: &Asked<'_>| match asked.answers() {
            true => Ok(Answer { changed: 0, rows: self.rows(&asked.sql, &asked.values)? }),
            false => Ok(Answer { changed: self.run(&asked.sql, &asked.values)?, rows: Vec::new() }),
        };
        asked.iter().map(one).collect()
    }

    /// Begins a transaction that changes something; what a dead one left open is rolled back first. Those that change something
    /// follow one another, whoever makes them.
    fn begin(&self) -> Result<(), Failure>;

    /// Begins a transaction that sees all tables at one moment.
    fn begin_view(&self) -> Result<(), Failure>;

    /// Puts in order what is to be put in order now and then; called when no transaction is open and all answers are sent.
    fn settle(&self) {}

    /// The answer's first row, if there is one.
    fn row(&self, sql: &str, values: &[Value]) -> Result<Option<Row>, Failure> {
        Ok(self.rows(sql, values)?.into_iter().next())
    }
}

/// A transaction that is rolled back unless it is committed, also when what is done in it panics.
pub(super) struct Open<'a> {
    db: &'a dyn Database,
    ended: bool,
}

impl<'a> Open<'a> {
    /// A transaction that has begun.
    pub fn begun(db: &'a dyn Database) -> Self {
        Self { db, ended: false }
    }

    /// Makes what was done durable.
    pub fn commit(mut self) -> Result<(), Failure> {
        // If it fails the drop rolls back.
        self.db.run("COMMIT", &[])?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // If this fails too the connection is broken, and the next beginning says so.
            let _ = self.db.run("ROLLBACK", &[]);
        }
    }
}
