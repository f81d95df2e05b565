//! The commands that apply a recommendation: in a shell, in a systemd unit, and by udev whenever the NIC appears.

use super::queue_placement::{Group, QueuePlacement, Queues, Target};
use crate::interface::Nic;
use crate::setting::{Interface, Setting};
use longma_cpu_set::CpuSet;
use longma_text::quote_for_shell;
use serde::Serialize;
use std::fmt::Write as _;

/// Commands that apply a recommendation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Commands {
    /// Commands for a root shell that take effect immediately.
    pub now: Vec<String>,
    /// A systemd drop-in for the application's service.
    pub systemd: String,
    /// Path of the script that the udev rule runs.
    pub script_path: String,
    /// The script. It finds interrupts by their names, since their numbers may differ after the next start.
    pub script: String,
    /// A udev rule that runs the script whenever the NIC's device appears.
    pub udev: String,
    /// Instructions that keep services from reverting the settings.
    pub keep: Vec<String>,
}

/// Shell functions of scripts that find interrupts by name.
pub(super) const FUNCTIONS: &str = concat!(
    r#"irq() { awk -v name="$1" '$NF == name { sub(":", "", $1); print $1; exit }' /proc/interrupts; }"#,
    "\n",
    r#"await() { for try in $(seq 60); do [ -n "$(irq "$1")" ] && return; sleep 1; done; }"#
);
/// Shell function that prints the number of the interrupt with a name.
const IRQ: &str =
    r#"irq() { awk -v name="$1" '$NF == name { sub(":", "", $1); print $1; exit }' /proc/interrupts; }"#;

/// The commands that direct the queues of `nics` according to `placement`. Both have the same NICs in the same order.
pub fn commands(nics: &[&Nic], placement: &QueuePlacement) -> Commands {
    let each = || nics.iter().copied().zip(&placement.nics);
    // The driver may give the interrupts other numbers when the number of queues changes.
    let is_renumbered = placement.nics.iter().any(|queues| count_command(queues).is_some());
    let mut now: Vec<String> = is_renumbered.then(|| IRQ.into()).into_iter().collect();
    now.extend(each().flat_map(|(nic, queues)| settings(nic, queues, is_renumbered)));
    now.extend(bindings(placement));
    let name = nics.first().map_or("", |nic| nic.name.name());
    let script_path = format!("/usr/local/sbin/longma-affinity-{name}");
    Commands {
        now,
        systemd: drop_in(placement),
        script: script(&each().collect::<Vec<_>>()),
        udev: nics.iter().map(|nic| udev(nic, &script_path)).collect(),
        script_path,
        keep: bans(nics, placement),
    }
}

/// The commands that bind applications, for each group of queues.
fn bindings(placement: &QueuePlacement) -> Vec<String> {
    let cpus = &placement.applications;
    let [_, _, ..] = &placement.groups[..] else {
        return vec![
            format!("taskset -cp {cpus} PID          # a running application"),
            format!("taskset -c {cpus} COMMAND       # or a new one"),
        ];
    };
    let of =
        |group: &Group| format!("taskset -cp {} PID   # of flows by {}", group.applications, arrival(group));
    placement.groups.iter().map(of).collect()
}

/// The queues on which the flows of a group arrive.
fn arrival(group: &Group) -> String {
    let names: Vec<&str> = group.interfaces.iter().map(Interface::name).collect();
    format!("the queues of {} on CPUs {}", names.join(", "), group.flows)
}

/// The systemd drop-in. A single process receives flows by all queues, so it may run on the CPUs of all groups. Its
/// comments give the CPUs of each group, for services with one instance per group.
fn drop_in(placement: &QueuePlacement) -> String {
    let mut text = format!("[Service]\nCPUAffinity={}\n", placement.applications);
    if let [_, _, ..] = &placement.groups[..] {
        for group in &placement.groups {
            let _ = writeln!(
                text,
                "# An instance for flows by {}:\n# CPUAffinity={}",
                arrival(group),
                group.applications
            );
        }
    }
    text
}

/// The command that changes the number of queues, if it changes.
fn count_command(queues: &Queues) -> Option<String> {
    let is_combined = queues.abilities.is_combined.filter(|_| queues.used.len() < queues.count)?;
    let kind = if is_combined { "combined" } else { "rx" };
    Some(format!("ethtool -L {} {kind} {}", quoted(queues), queues.used.len()))
}

fn quoted(queues: &Queues) -> String {
    quote_for_shell(queues.interface.name())
}

/// The commands for the queues of a NIC, with interrupts by name.
pub(super) fn settings_by_name(nic: &Nic, queues: &Queues) -> Vec<String> {
    settings(nic, queues, true)
}

/// The commands for the queues of a NIC.
fn settings(nic: &Nic, queues: &Queues, by_name: bool) -> Vec<String> {
    let mut lines = Vec::new();
    // A driver refuses fewer queues than its table uses.
    if queues.abilities.has_table && queues.used.len() < queues.count {
        lines.push(format!("ethtool -X {} equal {}", quoted(queues), queues.used.len()));
    }
    lines.extend(count_command(queues));
    let write = |setting: Setting, value: &str| {
        let path = setting.path().unwrap_or_default();
        format!("echo {value} > {}", quote_for_shell(&format!("/{path}")))
    };
    let queue_of = |queue: u32| (nic.name.clone(), queue);
    let mut is_by_interrupt = false;
    for (target, cpu) in &queues.used {
        lines.push(match target {
            Target::Irq { name, .. } if by_name => {
                is_by_interrupt = true;
                format!("echo {cpu} > /proc/irq/$(irq {})/smp_affinity_list", quote_for_shell(name))
            }
            Target::Irq { number, .. } => {
                is_by_interrupt = true;
                write(Setting::Irq(*number), &cpu.to_string())
            }
            Target::Rps { queue } => {
                let (interface, queue) = queue_of(*queue);
                write(Setting::Rps { interface, queue }, &CpuSet::one(*cpu).mask())
            }
        });
    }
    // RPS and RFS would move the packets to other CPUs.
    let folder = quote_for_shell(&format!("/sys/class/net/{}", nic.name));
    let off = if is_by_interrupt { "echo 0 > $queue/rps_cpus; " } else { "" };
    let flows = "[ ! -e $queue/rps_flow_cnt ] || echo 0 > $queue/rps_flow_cnt";
    lines.push(format!("for queue in {folder}/queues/rx-*; do {off}{flows}; done"));
    lines
}

/// The script that applies everything, with interrupts by name.
fn script(nics: &[(&Nic, &Queues)]) -> String {
    let mut text = String::from("#!/bin/sh\n");
    let names = |queues: &Queues| -> Vec<String> {
        let name = |(target, _): &(Target, u32)| match target {
            Target::Irq { name, .. } => Some(name.clone()),
            Target::Rps { .. } => None,
        };
        queues.used.iter().filter_map(name).collect()
    };
    if nics.iter().any(|(_, queues)| !names(queues).is_empty()) {
        let _ = writeln!(text, "{FUNCTIONS}");
    }
    for (nic, queues) in nics {
        let first = names(queues).into_iter().next();
        text.extend(first.map(|name| format!("await {}\n", quote_for_shell(&name))));
        text.extend(settings(nic, queues, true).into_iter().map(|line| line + "\n"));
    }
    text
}

/// A udev rule that runs the script when the NIC's device appears, or the interface if it has no device.
fn udev(nic: &Nic, script: &str) -> String {
    let name = nic.name.name();
    let device = nic.device.as_ref().map(|device| (device.name.as_str(), device.port));
    let (key, value, port) = match device {
        Some((device, port)) => ("KERNELS", device, port),
        None => ("NAME", name, None),
    };
    if ![value, script].iter().all(|text| text.chars().all(is_plain)) {
        // udev would interpret patterns, substitutions and quotes in the name.
        return format!(
            "# no rule: the name `{name}` has characters that are special in udev rules; rename the interface\n"
        );
    }
    let port = port.map_or(String::new(), |port| format!("ATTR{{dev_port}}==\"{port}\", "));
    // systemd-run, because udev kills programs of a rule that run for long.
    let run = format!("/usr/bin/systemd-run --collect --no-block /bin/sh {script}");
    format!("ACTION==\"add\", SUBSYSTEM==\"net\", {key}==\"{value}\", {port}RUN+=\"{run}\"\n")
}

/// Characters without special meaning to shells and udev.
fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-' | '/' | '@' | '+' | ':')
}

/// Excludes the interrupts from irqbalance, by device or by name, because their numbers change.
fn bans(nics: &[&Nic], placement: &QueuePlacement) -> Vec<String> {
    let name = |(target, _): &(Target, u32)| match target {
        Target::Irq { name, .. } => Some(name.clone()),
        Target::Rps { .. } => None,
    };
    let mut lines = Vec::new();
    for (nic, queues) in nics.iter().zip(&placement.nics) {
        let names: Vec<String> = queues.used.iter().filter_map(name).collect();
        // The names of other buses' devices are not in the path that irqbalance reports.
        let device = nic.device.as_ref().map(|device| device.name.as_str());
        let device = device.filter(|name| name.contains(':') && name.chars().all(is_plain));
        match device {
            _ if names.is_empty() => {}
            Some(device) => lines.push(format!("case \"$1\" in */{device}) echo ban=true;; esac")),
            None => {
                let names: Vec<String> = names.iter().map(|name| quote_for_shell(name)).collect();
                lines.push(format!(
                    "for name in {}; do [ \"$(irq \"$name\")\" != \"$2\" ] || echo ban=true; done",
                    names.join(" ")
                ));
            }
        }
    }
    if lines.is_empty() {
        return Vec::new();
    }
    let needs_names = lines.iter().any(|line| line.starts_with("for"));
    let mut script = vec!["#!/bin/sh".into()];
    script.extend(needs_names.then(|| IRQ.into()));
    script.extend(lines);
    let path = "/usr/local/sbin/longma-affinity-policy";
    let mut keep =
        vec![format!("irqbalance: IRQBALANCE_ARGS=\"--policyscript={path}\", an executable file with")];
    keep.extend(script);
    keep
}

#[cfg(test)]
mod tests;
