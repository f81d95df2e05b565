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
            Level::Host => by_host(db, host, own.unwrap_or(0), request, member)?,
            Level::Node => by_node(db, host, own, request, member, placement)?,
        };
        if let Some(what) = what {
            return Err(StoreError::Conflict { host: placement.host.clone(), what });
        }
    }
    Ok(())
}

/// Like [`check`], for an existing virtual machine that is to leave its host: rules by host apply too.
pub(super) fn check_other_host(
    db: &dyn Database,
    host: i64,
    own: VmId,
    request: &Request,
    placement: &Placement,
) -> Result<()> {
    for member in request.groups.iter().filter(|member| member.level == Level::Host) {
        if let Some(what) = by_host(db, host, own, request, member)? {
            return Err(StoreError::Conflict { host: placement.host.clone(), what });
        }
    }
    check(db, host, Some(own), request, placement)
}

/// Number of group members other than `own`.
struct Others {
    all: i64,
    /// Those that are on the host and stay there.
    certainly_here: i64,
    /// Those that are on the host or being migrated to it.
    possibly_here: i64,
}

fn count_others(db: &dyn Database, group: &str, host: i64, own: VmId) -> Result<Others> {
    let sql = "SELECT count(*), count(CASE WHEN m.host = ?2 AND v.target_host IS NULL THEN 1 END),
            count(CASE WHEN m.host = ?2 OR v.target_host = ?2 THEN 1 END)
        FROM members m JOIN vms v ON v.id = m.vm WHERE m.grp = ?1 AND m.vm <> ?3";
    let Some(row) = db.row(sql, values![group, host, own])? else {
        return Ok(Others { all: 0, certainly_here: 0, possibly_here: 0 });
    };
    Ok(Others { all: row.get(0)?, certainly_here: row.get(1)?, possibly_here: row.get(2)? })
}

fn by_host(
    db: &dyn Database,
    host: i64,
    own: VmId,
    request: &Request,
    member: &Membership,
) -> Result<Option<String>> {
    let others = count_others(db, &group_key(&request.tenant, &member.group), host, own)?;
    let is_broken = match member.relation {
        Relation::Affinity => others.all > 0 && others.certainly_here == 0,
        Relation::AntiAffinity => others.possibly_here > 0,
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
    if count_others(db, &key, host, own)?.all == 0 {
        return Ok(None);
    }
    let sql = format!(
        "SELECT {VM_COLUMNS} FROM vms
            WHERE id IN (SELECT vm FROM members WHERE grp = ?1 AND vm <> ?3) AND (host = ?2 OR target_host = ?2) ORDER BY id"
    );
    let here: Result<Vec<Vm>> = db.rows(&sql, values![key, host, own])?.iter().map(read_vm).collect();
    Ok(broken_by_node(member, placement, &here?))
}
