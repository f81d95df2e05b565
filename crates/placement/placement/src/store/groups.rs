//! Checks a placement against group rules by node, from the store's view of the members. `scheduler::groups` applies
//! the same rules during a decision, and `members` inside the database transaction.

use super::{Store, StoreError, Vm, VmQuery};
use crate::placement::Placement;
use crate::request::{Level, Membership, Relation};
use crate::scheduler::group_key;
use std::collections::BTreeSet;

fn nodes(placement: &Placement) -> BTreeSet<u32> {
    placement.cells.iter().map(|cell| cell.node).collect()
}

/// Returns why a rule by node forbids a placement. `here` are the other members on the host; the group has other
/// members, here or elsewhere.
pub(super) fn broken_by_node(member: &Membership, placement: &Placement, here: &[Vm]) -> Option<String> {
    let (group, wanted) = (&member.group, nodes(placement));
    // A member that is moving may end up at either of its placements.
    let possible_nodes = |vm: &Vm| {
        let places = vm.placement.iter().chain(&vm.target);
        // A placement on another host uses no node of this host.
        places
            .map(|place| if place.host == placement.host { nodes(place) } else { BTreeSet::new() })
            .collect::<Vec<_>>()
    };
    match member.relation {
        Relation::AntiAffinity => here.iter().find_map(|vm| {
            let node = *possible_nodes(vm).iter().flatten().find(|node| wanted.contains(node))?;
            let (id, name) = (vm.id, &vm.request.name);
            Some(format!(
                "group {group} forbids node {node}: its member {name} (virtual machine {id}) runs on it"
            ))
        }),
        Relation::Affinity => {
            let certain = |vm| possible_nodes(vm).into_iter().reduce(|a, b| &a & &b).unwrap_or_default();
            let certain: BTreeSet<u32> = here.iter().flat_map(certain).collect();
            let node = wanted.difference(&certain).next()?;
            let members: Vec<String> = here
                .iter()
                .take(3)
                .map(|vm| format!("{} (virtual machine {})", vm.request.name, vm.id))
                .collect();
            let members = if members.is_empty() { "on other hosts".into() } else { members.join(", ") };
            Some(format!("group {group} forbids node {node}: its members are elsewhere, {members}"))
        }
    }
}

/// Returns which group, and which of its members, forbids moving a virtual machine to `target` on its host, by the
/// store's current contents.
///
/// # Errors
/// If the database fails.
pub fn forbidding_group(
    store: &dyn Store,
    vm: &Vm,
    target: &Placement,
) -> Result<Option<String>, StoreError> {
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
        let is_here =
            |other: &Vm| other.placement.iter().chain(&other.target).any(|place| place.host == target.host);
        let here: Vec<Vm> = others.iter().filter(|other| is_here(other)).cloned().collect();
        if others.is_empty() { None } else { broken_by_node(member, target, &here) }
    }))
}
