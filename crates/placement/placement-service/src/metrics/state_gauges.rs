//! Gauges of the current state, recreated for each scrape so that removed hosts, nodes and alarms disappear.

use crate::wire::HostView;
use longma_placement::inventory::HostStatus;
use longma_placement::store::{Alarm, Counts};
use prometheus_client::encoding::{EncodeLabelSet, text::encode_registry};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

/// Alarms that have a series even while none of them is active, so that a query finds 0.
const ALARM_KINDS: [&str; 8] = [
    "agent-problem",
    "agent-silent",
    "cpu",
    "database-moved",
    "host-lost",
    "host-undescribed",
    "memory",
    "second-agent",
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhatLabel {
    what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AlarmLabel {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HostLabel {
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HostAlarmLabels {
    host: String,
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabels {
    host: String,
    node: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    host: String,
    node: u32,
    page_kib: u32,
}

type FloatGauge = Gauge<f64, AtomicU64>;

/// Gauges of virtual machines, alarms, hosts and nodes.
pub(crate) struct StateGauges {
    registry: Registry,
    vms: Family<WhatLabel, Gauge>,
    hosts: Family<WhatLabel, Gauge>,
    alarms: Family<AlarmLabel, Gauge>,
    host_up: Family<HostLabel, Gauge>,
    host_vms: Family<HostLabel, Gauge>,
    host_report_age: Family<HostLabel, Gauge>,
    host_problems: Family<HostLabel, Gauge>,
    host_alarms: Family<HostAlarmLabels, Gauge>,
    node_cpus: Family<NodeLabels, Gauge>,
    node_exclusive_cpus: Family<NodeLabels, Gauge>,
    node_shared_vcpus: Family<NodeLabels, Gauge>,
    node_memory: Family<PoolLabels, Gauge>,
    node_reserved_memory: Family<PoolLabels, Gauge>,
    node_cpu_load: Family<NodeLabels, FloatGauge>,
    node_memory_load: Family<NodeLabels, FloatGauge>,
}

impl StateGauges {
    /// The gauges of all objects together: `counts`, and `database_moved` if the database file is not at its path.
    pub fn new(counts: Counts, database_moved: bool) -> Self {
        let mut registry = Registry::with_prefix(super::PREFIX);
        macro_rules! gauges {
            ($($gauge:ident: $name:literal, $help:literal;)*) => {{
                $(
                    let $gauge = Family::default();
                    registry.register($name, $help, Family::clone(&$gauge));
                )*
                Self { $($gauge,)* registry }
            }};
        }
        let gauges = gauges! {
            vms: "vms", "Virtual machines by state";
            hosts: "hosts", "Hosts by status";
            alarms: "alarms", "Active alarms by kind";
            host_up: "host_up", "Whether the host accepts virtual machines";
            host_vms: "host_vms", "Virtual machines on the host";
            host_report_age: "host_report_age_seconds", "Time since the host's agent last reported to this service";
            host_problems: "host_problems", "Problems of the host";
            host_alarms: "host_alarms", "Active alarms of the host by kind";
            node_cpus: "node_cpus", "CPUs of the node that virtual machines may use";
            node_exclusive_cpus: "node_exclusive_cpus", "CPUs of the node that are dedicated to a virtual machine";
            node_shared_vcpus: "node_shared_vcpus", "Virtual CPUs on the node's other CPUs";
            node_memory: "node_memory_bytes", "Memory of the node that virtual machines may use";
            node_reserved_memory: "node_reserved_memory_bytes", "Memory of the node that is reserved for virtual machines";
            node_cpu_load: "node_cpu_load_ratio", "Load of the node's CPUs as last reported";
            node_memory_load: "node_memory_load_ratio", "Use of the node's memory as last reported";
        };
        gauges.count(counts, database_moved);
        gauges
    }

    fn count(&self, counts: Counts, database_moved: bool) {
        for (state, count) in counts.vms {
            self.vms.get_or_create(&WhatLabel { what: state.name() }).set(count as i64);
        }
        for (status, count) in counts.hosts {
            let what = match status {
                HostStatus::Up => "up",
                HostStatus::Draining => "draining",
                HostStatus::Emptying => "emptying",
                HostStatus::Down => "down",
                HostStatus::ForcedDown => "forced-down",
            };
            self.hosts.get_or_create(&WhatLabel { what }).inc_by(count as i64);
        }
        for kind in ALARM_KINDS {
            self.alarms.get_or_create(&AlarmLabel { kind: kind.into() }).set(0);
        }
        let moved = ("database-moved".to_string(), u64::from(database_moved));
        for (kind, count) in counts.alarms.into_iter().chain([moved]) {
            self.alarms.get_or_create(&AlarmLabel { kind }).inc_by(count as i64);
        }
    }

    /// Counts each alarm for its host.
    pub fn add_alarms(&self, alarms: &[Alarm]) {
        for alarm in alarms {
            let (host, kind) = (alarm.host.clone(), alarm.kind.clone());
            self.host_alarms.get_or_create(&HostAlarmLabels { host, kind }).inc();
        }
    }

    /// Adds the gauges of a host and its nodes.
    pub fn add_host(&self, view: &HostView) {
        let label = HostLabel { host: view.name.clone() };
        self.host_up.get_or_create(&label).set((view.status == HostStatus::Up).into());
        self.host_vms.get_or_create(&label).set(view.vms.into());
        self.host_problems.get_or_create(&label).set(view.problems.len() as i64);
        if let Some(age) = view.heard_s {
            self.host_report_age.get_or_create(&label).set(age as i64);
        }
        for node in &view.nodes {
            let labels = NodeLabels { host: view.name.clone(), node: node.node };
            self.node_cpus.get_or_create(&labels).set(node.cpus.into());
            self.node_exclusive_cpus.get_or_create(&labels).set(node.exclusive.into());
            self.node_shared_vcpus.get_or_create(&labels).set(node.shared.into());
            self.node_cpu_load.get_or_create(&labels).set(node.load.cpu.into());
            self.node_memory_load.get_or_create(&labels).set(node.load.memory.into());
            for (page_kib, mib, reserved_mib) in &node.memory {
                let labels = PoolLabels { host: view.name.clone(), node: node.node, page_kib: *page_kib };
                self.node_memory.get_or_create(&labels).set((mib << 20) as i64);
                self.node_reserved_memory.get_or_create(&labels).set((reserved_mib << 20) as i64);
            }
        }
    }

    /// Appends the gauges in the text format, without the end marker.
    pub fn encode(&self, text: &mut String) -> std::fmt::Result {
        encode_registry(text, &self.registry)
    }
}
