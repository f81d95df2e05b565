//! Computes the nodes of a host that the affinity groups of a request allow, from the locations of the other members.
//! The result is not cached in rankings because it depends on the tenant's other virtual machines.

use super::assign::group_key;
use crate::inventory::{Inventory, Member};
use crate::placement::Placement;
use crate::request::{Level, Relation, Request};
use std::borrow::Cow;

/// Group rules of one request.
pub(crate) struct GroupRules<'a> {
    rules: Vec<(Relation, Level, Cow<'a, [Member]>)>,
}

impl<'a> GroupRules<'a> {
    pub fn of(inventory: &'a Inventory, request: &Request) -> Self {
        let rules = request.groups.iter().filter_map(|member| {
            let others = inventory.groups.get(&group_key(&request.tenant, &member.group))?;
            Some((member.relation, member.level, Cow::Borrowed(others.as_slice())))
        });
        Self { rules: rules.collect() }
    }

    /// Rules for a virtual machine that stays on its host: its own placements `own` do not count as another member, and
    /// rules by host are dropped.
    pub fn for_resident<'b>(
        inventory: &'a Inventory,
        request: &Request,
        own: impl IntoIterator<Item = &'b Placement>,
    ) -> Self {
        let mut found = Self::of(inventory, request);
        found.rules.retain(|(_, level, _)| *level == Level::Node);
        for place in own {
            let Some(member) = inventory.member(place) else { continue };
            for (.., members) in &mut found.rules {
                if let Some(at) = members.iter().position(|m| *m == member) {
                    members.to_mut().swap_remove(at);
                }
            }
        }
        found.rules.retain(|(.., members)| !members.is_empty());
        found
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The candidate hosts, if an affinity rule restricts them to the hosts of other members.
    pub fn hosts(&self) -> Option<Vec<u32>> {
        let (_, _, members) = self.rules.iter().find(|(relation, ..)| *relation == Relation::Affinity)?;
        let mut hosts: Vec<u32> = members.iter().map(|m| m.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        Some(hosts)
    }

    /// Bit mask of the allowed nodes of `host`.
    pub fn nodes(&self, host: u32) -> u64 {
        let mut mask = u64::MAX;
        for (relation, level, members) in &self.rules {
            let here = members.iter().filter(|m| m.host == host).fold(0, |nodes, m| nodes | m.nodes);
            mask &= match (relation, level) {
                (Relation::Affinity, Level::Host) if here == 0 => 0,
                (Relation::AntiAffinity, Level::Host) if here != 0 => 0,
                (_, Level::Host) => u64::MAX,
                (Relation::Affinity, Level::Node) => here,
                (Relation::AntiAffinity, Level::Node) => !here,
            };
        }
        mask
    }
}
