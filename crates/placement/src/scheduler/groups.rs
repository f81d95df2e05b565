//! Which nodes of a host the groups of a request allow, by where their other members are.
//! Not kept in rankings: it depends on the tenant's other virtual machines.

use super::assign::group_key;
use crate::inventory::{Inventory, Member};
use crate::request::{Level, Relation, Request};

/// What the groups of one request say.
pub(crate) struct GroupRules<'a> {
    rules: Vec<(Relation, Level, &'a [Member])>,
}

impl<'a> GroupRules<'a> {
    pub fn of(inventory: &'a Inventory, request: &Request) -> Self {
        let rules = request.groups.iter().filter_map(|member| {
            let others = inventory.groups.get(&group_key(&request.tenant, &member.group))?;
            Some((member.relation, member.level, others.as_slice()))
        });
        Self { rules: rules.collect() }
    }

    /// Whether they say nothing.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The hosts that come into question, if they are only those where others are.
    pub fn hosts(&self) -> Option<Vec<u32>> {
        let (_, _, members) = self.rules.iter().find(|(relation, ..)| *relation == Relation::Affinity)?;
        let mut hosts: Vec<u32> = members.iter().map(|m| m.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        Some(hosts)
    }

    /// The nodes of `host` that are allowed.
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
