//! Deletes records that only history needs: deleted virtual machines with their idempotency keys, old events, cleared
//! alarms, the audit log, expired tokens.

use super::sql::{Database, values};
use super::tables::Result;

/// Maximum number of records of one kind deleted in a transaction, so that other changes do not wait long.
pub(super) const MAX_RECORDS: i64 = 1000;

/// Deletes up to [`MAX_RECORDS`] records of each kind that ended before `before`, in seconds since 1970. Returns the
/// number of deleted records.
pub(super) fn prune(db: &dyn Database, before: i64) -> Result<usize> {
    let ended = "SELECT id FROM vms WHERE state = 'deleted' AND updated_at < ?1 ORDER BY id LIMIT ?2";
    db.run(&format!("DELETE FROM keys WHERE vm IN ({ended})"), values![before, MAX_RECORDS])?;
    let vms = db.run(&format!("DELETE FROM vms WHERE id IN ({ended})"), values![before, MAX_RECORDS])?;
    // The last event is never deleted, because schedulers compare their positions with its number.
    let sql = "DELETE FROM events WHERE number IN (SELECT number FROM events
        WHERE at < ?1 AND number < (SELECT max(number) FROM events) ORDER BY number LIMIT ?2)";
    let events = db.run(sql, values![before, MAX_RECORDS])?;
    let sql = "DELETE FROM alarms WHERE number IN (SELECT number FROM alarms
        WHERE cleared_at < ?1 ORDER BY number LIMIT ?2)";
    let alarms = db.run(sql, values![before, MAX_RECORDS])?;
    let sql = "DELETE FROM audit_log WHERE number IN (SELECT number FROM audit_log
        WHERE at < ?1 ORDER BY number LIMIT ?2)";
    let requests = db.run(sql, values![before, MAX_RECORDS])?;
    let tokens = db.run("DELETE FROM tokens WHERE expires_at < ?1", values![before])?;
    Ok(vms + events + alarms + requests + tokens)
}
