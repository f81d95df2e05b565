//! The audit log: who asked for a change, from where, and with which result.

use super::sql::{Database, Row, Value, values};
use super::tables::Result;
use super::{AuditQuery, AuditRecord};

pub(super) fn append(db: &dyn Database, record: &AuditRecord) -> Result<()> {
    let sql = "INSERT INTO audit_log (at, actor, role, scope, peer, action, object, status, problem)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let (actor, role) = (record.actor.as_deref(), record.role.as_deref());
    let (scope, problem) = (record.scope.as_deref(), record.problem.as_deref());
    let status = u32::from(record.status);
    let values =
        values![record.at, actor, role, scope, &record.peer, &record.action, &record.object, status, problem];
    db.run(sql, values)?;
    Ok(())
}

pub(super) fn records(db: &dyn Database, query: &AuditQuery) -> Result<Vec<AuditRecord>> {
    let before = if query.before == 0 { i64::MAX } else { query.before };
    let mut values: Vec<Value> = values![before, query.since].to_vec();
    let mut sql =
        "SELECT number, at, actor, role, scope, peer, action, object, status, problem FROM audit_log
        WHERE number < ?1 AND at >= ?2"
            .to_string();
    if let Some(actor) = &query.actor {
        values.push(actor.into());
        sql += &format!(" AND actor = ?{}", values.len());
    }
    values.push(super::sql_store::limit(query.limit).into());
    sql += &format!(" ORDER BY number DESC LIMIT ?{}", values.len());
    let record = |r: &Row| {
        let status: u32 = r.get(8)?;
        Ok(AuditRecord {
            number: r.get(0)?,
            at: r.get(1)?,
            actor: r.get(2)?,
            role: r.get(3)?,
            scope: r.get(4)?,
            peer: r.get(5)?,
            action: r.get(6)?,
            object: r.get(7)?,
            status: u16::try_from(status).unwrap_or(u16::MAX),
            problem: r.get(9)?,
        })
    };
    db.rows(&sql, &values)?.iter().map(record).collect()
}
