//! The databases that store tests run on: always a SQLite file, and a PostgreSQL server if LONGMA_TEST_POSTGRES is the
//! URL of one on which databases may be created (`tests/postgres.py` starts one).
#![allow(dead_code, reason = "every test program uses a part")]

use longma_placement::SqlStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A database for one test, deleted when dropped.
pub enum Database {
    File(tempfile::TempDir),
    Server { server: String, name: String },
}

/// Runs a test on each database.
pub fn on_each(test: impl Fn(&Database)) {
    test(&Database::File(tempfile::tempdir().unwrap()));
    match std::env::var("LONGMA_TEST_POSTGRES") {
        Ok(server) => test(&Database::on(&server)),
        Err(_) => eprintln!("skipped: PostgreSQL: LONGMA_TEST_POSTGRES names no server"),
    }
}

impl Database {
    /// Creates a database on a server.
    pub fn on(server: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("longma_{}_{count}", std::process::id());
        admin(server, &format!("CREATE DATABASE {name}"));
        Database::Server { server: server.into(), name }
    }

    /// Creates another database of the same kind.
    pub fn another(&self) -> Self {
        match self {
            Database::File(_) => Database::File(tempfile::tempdir().unwrap()),
            Database::Server { server, .. } => Database::on(server),
        }
    }

    /// Opens a store on the database. May be called repeatedly.
    pub fn open(&self) -> Arc<SqlStore> {
        Arc::new(match self {
            Database::File(folder) => SqlStore::open_file(&folder.path().join("placement.db")).unwrap(),
            Database::Server { .. } => SqlStore::connect(&self.url()).unwrap(),
        })
    }

    /// URL of a server's database.
    pub fn url(&self) -> String {
        match self {
            Database::File(_) => unreachable!("a file has no URL"),
            Database::Server { server, name } => format!("{server} dbname={name}"),
        }
    }
}

/// Removes the additions of schema versions 5 and 6, so that the next opening migrates again.
pub const TO_VERSION_4: &str =
    "ALTER TABLE events DROP COLUMN actor; ALTER TABLE tokens DROP COLUMN expires_at;
    ALTER TABLE tokens DROP COLUMN used_at; DROP TABLE audit_log; DROP TABLE default_quota;
    DROP INDEX vms_of_target_host; ALTER TABLE vms DROP COLUMN target_host;";

impl Database {
    /// Takes the database back to version 4 of the schema.
    pub fn downgrade_to_version_4(&self) {
        match self {
            Database::File(folder) => {
                let file = rusqlite::Connection::open(folder.path().join("placement.db")).unwrap();
                file.execute_batch(&format!("{TO_VERSION_4} PRAGMA user_version = 4")).unwrap();
            }
            Database::Server { .. } => {
                let mut client = postgres::Client::connect(&self.url(), postgres::NoTls).unwrap();
                let version = "UPDATE longma_placement_version SET version = 4";
                client.batch_execute(&format!("{TO_VERSION_4} {version}")).unwrap();
            }
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Database::Server { server, name } = self {
            admin(server, &format!("DROP DATABASE {name} WITH (FORCE)"));
        }
    }
}

/// Runs a statement on the server itself.
pub fn admin(server: &str, sql: &str) {
    let url = format!("{server} dbname=postgres");
    let mut client =
        postgres::Client::connect(&url, postgres::NoTls).expect("the server accepts connections");
    client.batch_execute(sql).unwrap();
}
