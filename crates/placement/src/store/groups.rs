//! What groups have against a place, by where their members are reserved: two schedulers may have decided at once, and the store has the last word.
//! Not what a scheduler knows of it beforehand (`scheduler::groups`).

use super::sql::{Database, values};
use super::tables::{Result, VM_COLUMNS, read_vm};
use super::{Store, StoreError, Vm, VmId, VmQuery};
use crate::placement::Placement;
use crate::request::{Level, Membership, Relation, Request};
use crate::scheduler::group_key;
use std::collections::BTreeSet;

/// Refuses a place that groups of `request` forbid. `own` is its number if it has one already: then it stays on its host, and groups by host
/// have no say.
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

/// How many of a group's members there are besides `own`, and how many of them on a host.
fn others(db: &dyn Database, group: &str, host: i64, own: VmId) -> Result<(i64, i64)> {
    let sql =
        "SELECT count(*), count(CASE WHEN host = ?2 THEN 1 END) FROM members WHERE grp = ?1 AND vm <> ?3";
    db.row(sql, values![group, host, own])?.map_or(Ok((0, 0)), |row| Ok((row.get(0)?, row.get(1)?)))
}

fn by_host(db: &dyn Database, host: i64, request: &Request, member: &Membership) -> Result<Option<String>> {
    let (all, here) = others(db, &group_key(&request.tenant, &member.group), host, 0)?;
    let is_broken = match member.relation {
        Relation::Affinity => all > 0 && here == 0,
        Relation::AntiAffinity => here > 0,
    };
    Ok(is_broken.then(|| format!("group {} no longer allows it", member.group)))
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
    if others(db, &key, host, own)?.0 == 0 {
        return Ok(None);
    }
    let sql = format!(
        "SELECT {VM_COLUMNS} FROM vms
            WHERE id IN (SELECT vm FROM members WHERE grp = ?1 AND host = ?2 AND vm <> ?3) ORDER BY id"
    );
    let here: Result<Vec<Vm>> = db.rows(&sql, values![key, host, own])?.iter().map(read_vm).collect();
    Ok(broken_by_node(member, placement, &here?))
}

fn nodes(placement: &Placement) -> BTreeSet<u32> {
    placement.cells.iter().map(|cell| cell.node).collect()
}

/// What a group by node has against a place, by its other members on the host; there are others, here or elsewhere.
fn broken_by_node(member: &Membership, placement: &Placement, here: &[Vm]) -> Option<String> {
    let (group, wanted) = (&member.group, nodes(placement));
    // Who moves has both places, and will be on one of them.
    let places = |vm: &Vm| vm.placement.iter().chain(&vm.target).map(nodes).collect::<Vec<_>>();
    match member.relation {
        Relation::AntiAffinity => here.iter().find_map(|vm| {
            let node = *places(vm).iter().flatten().find(|node| wanted.contains(node))?;
            let (id, name) = (vm.id, &vm.request.name);
            Some(format!(
                "group {group} forbids node {node}: its member {name} (virtual machine {id}) is there"
            ))
        }),
        Relation::Affinity => {
            let sure = |vm| places(vm).into_iter().reduce(|a, b| &a & &b).unwrap_or_default();
            let sure: BTreeSet<u32> = here.iter().flat_map(sure).collect();
            let node = wanted.difference(&sure).next()?;
            let them: Vec<String> = here
                .iter()
                .take(3)
                .map(|vm| format!("{} (virtual machine {})", vm.request.name, vm.id))
                .collect();
            let them = if them.is_empty() { "on other hosts".into() } else { them.join(", ") };
            Some(format!("group {group} forbids node {node}: its members are elsewhere, {them}"))
        }
    }
}

/// What keeps a virtual machine from going to `target` on its host for its groups' sake, by what the store has now: the group and a member.
///
/// # Errors
/// If the database fails.
pub fn forbidding_group(store: &dyn Store, vm: &Vm, target: &Placement) -> Result<Option<String>> {
    let by_node: Vec<&Membership> = vm.request.groups.iter().filter(|m| m.level == Level::Node).collect();
    if by_node.is_empty() {
        return Ok(None);
    }
    let all = store.vms(&VmQuery { tenant: Some(vm.request.tenant.clone()), ..VmQuery::default() })?;
    Ok(by_node.into_iter().find_map(|member| {
        let key = group_key(&vm.request.tenant, &member.group);
        let is_member = |other: &Vm| {
            other.id != vm.id && other.placement.as_ref().is_some_and(|p| p.groups.contains(&key))
        };
        let others: Vec<Vm> = all.iter().filter(|other| is_member(other)).cloned().collect();
        let is_here = |other: &Vm| other.placement.as_ref().is_some_and(|p| p.host == target.host);
        let here: Vec<Vm> = others.iter().filter(|other| is_here(other)).cloned().collect();
        if others.is_empty() { None } else { broken_by_node(member, target, &here) }
    }))
}
