//! Checks group rules against the members recorded in the database. Two schedulers may decide at the same time, so the
//! database has the last word.

use super::groups::broken_by_node;
use super::sql::{Database, values};
use super::tables::{Result, VM_COLUMNS, read_vm};
use super::{StoreError, Vm, VmId};
use crate::placement::Placement;
use crate::request::{Level, Membership, Relation, Request};
use crate::scheduler::group_key;

/// Returns an error if a group of `request` forbids the placement. `own` is the ID of an existing virtual machine; it
/// stays on its host, so rules by host do not apply.
pub(super) fn check(
    db: &dyn Database,
    host: i64,
    own: Option<VmId>,
    request: &Request,
    placement: &Placement,
) -> Result<()> {
    for member in &request.groups {
        let what = match member.level {
            Level::Host if own.is_some() => None,
            Level::Host => by_host(db, host, request, member)?,
            Level::Node => by_node(db, host, own, request, member, placement)?,
        };
        if let Some(what) = what {
            return Err(StoreError::Conflict { host: placement.host.clone(), what });
        }
    }
    Ok(())
}

/// Number of group members other than `own`: in total, and on a host.
fn count_others(db: &dyn Database, group: &str, host: i64, own: VmId) -> Result<(i64, i64)> {
    let sql =
        "SELECT count(*), count(CASE WHEN host = ?2 THEN 1 END) FROM members WHERE grp = ?1 AND vm <> ?3";
    db.row(sql, values![group, host, own])?.map_or(Ok((0, 0)), |row| Ok((row.get(0)?, row.get(1)?)))
}

fn by_host(db: &dyn Database, host: i64, request: &Request, member: &Membership) -> Result<Option<String>> {
    let (all, here) = count_others(db, &group_key(&request.tenant, &member.group), host, 0)?;
    let is_broken = match member.relation {
        Relation::Affinity => all > 0 && here == 0,
        Relation::AntiAffinity => here > 0,
    };
    Ok(is_broken.then(|| format!("group {} no longer allows this placement", member.group)))
}

fn by_node(
    db: &dyn Database,
    host: i64,
    own: Option<VmId>,
    request: &Request,
    member: &Membership,
    placement: &Placement,
) -> Result<Option<String>> {
    let (key, own) = (group_key(&request.tenant, &member.group), own.unwrap_or(0));
    if count_others(db, &key, host, own)?.0 == 0 {
        return Ok(None);
    }
    let sql = format!(
        "SELECT {VM_COLUMNS} FROM vms
            WHERE id IN (SELECT vm FROM members WHERE grp = ?1 AND host = ?2 AND vm <> ?3) ORDER BY id"
    );
    let here: Result<Vec<Vm>> = db.rows(&sql, values![key, host, own])?.iter().map(read_vm).collect();
    Ok(broken_by_node(member, placement, &here?))
}
