//! The recommendation as files for the programs that administrators use: a tuned profile, a systemd unit, an Ansible task
//! file. All run one script that sets the queues, and restores them when its service or profile ends.
//!
//! Source: tuned-profiles(7) and the manual of tuned (plug-in `script`: called with `start` and `stop`), systemd.unit(5),
//! systemd.device(5), systemd-escape(1), docs.ansible.com (ansible.builtin.copy, ansible.builtin.systemd).

use super::commands::{FUNCTIONS, settings_by_name};
use super::queue_placement::{QueuePlacement, Queues, Target};
use crate::interface::Nic;
use longma_text::quote_for_shell;
use std::fmt::Write as _;

/// A file to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationFile {
    /// Absolute path.
    pub path: String,
    /// Whether it is a program.
    pub is_program: bool,
    /// Contents.
    pub text: String,
}

/// A program that applies files of [`ConfigurationFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    /// A profile of tuned.
    Tuned,
    /// A service of systemd.
    Systemd,
    /// Tasks of Ansible that install the service.
    Ansible,
}

impl Package {
    /// The files for the queues of `nics`. `placement` names the same NICs in the same order.
    pub fn files(self, nics: &[&Nic], placement: &QueuePlacement) -> Vec<ConfigurationFile> {
        let label = label(nics);
        let script = script(&label, &nics.iter().copied().zip(&placement.nics).collect::<Vec<_>>());
        let program = |path: String| ConfigurationFile { path, is_program: true, text: script.clone() };
        let plain = |path: String, text: String| ConfigurationFile { path, is_program: false, text };
        let script_path = format!("/usr/local/sbin/longma-affinity-{label}-service");
        let unit_name = format!("longma-affinity-{label}.service");
        let unit = unit(nics, &label, &script_path, &placement.applications.to_string());
        match self {
            Self::Tuned => {
                let folder = format!("/etc/tuned/longma-affinity-{label}");
                let profile = profile(&label, &placement.applications.to_string());
                vec![plain(format!("{folder}/tuned.conf"), profile), program(format!("{folder}/script.sh"))]
            }
            Self::Systemd => {
                vec![plain(format!("/etc/systemd/system/{unit_name}"), unit), program(script_path)]
            }
            Self::Ansible => {
                let text = tasks(&label, (&script_path, &script), (&unit_name, &unit));
                vec![plain(format!("longma-affinity-{label}.yml"), text)]
            }
        }
    }
}

/// Base name of the files: the name of the first NIC, with `_` for every character except letters, digits, `.` and `-`.
fn label(nics: &[&Nic]) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    let name = nics.first().map_or("host", |nic| nic.name.name());
    name.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect()
}

/// The script: `start` saves the present settings and applies the recommendation, `stop` restores them.
fn script(label: &str, nics: &[(&Nic, &Queues)]) -> String {
    let mut text = format!(
        "#!/bin/sh\n# Directs network queues to CPUs. Written by `longma affinity advise`.\n\
         saved=/run/longma-affinity-{label}.saved\n{FUNCTIONS}\n\
         keep() {{ [ ! -e \"$1\" ] || printf 'file %s %s\\n' \"$(cat \"$1\")\" \"$1\"; }}\n\
         keep_irq() {{ n=$(irq \"$1\"); [ -z \"$n\" ] || printf 'irq %s %s\\n' \"$(cat \"/proc/irq/$n/smp_affinity_list\")\" \"$1\"; }}\n"
    );
    let (mut save, mut apply, mut undo) = (String::new(), String::new(), String::new());
    for (nic, queues) in nics {
        let name = quote_for_shell(queues.interface.name());
        let irqs: Vec<&str> = queues.used.iter().filter_map(|(target, _)| irq_name(target)).collect();
        if let Some(first) = irqs.first() {
            let _ = writeln!(save, "  await {}", quote_for_shell(first));
        }
        for irq in irqs {
            let _ = writeln!(save, "  keep_irq {}", quote_for_shell(irq));
        }
        let folder = quote_for_shell(&format!("/sys/class/net/{}", nic.name));
        let _ = writeln!(
            save,
            "  for queue in {folder}/queues/rx-*; do keep \"$queue/rps_cpus\"; keep \"$queue/rps_flow_cnt\"; done"
        );
        for line in settings_by_name(nic, queues) {
            let _ = writeln!(apply, "  {line}");
        }
        if queues.used.len() < queues.count {
            if let Some(is_combined) = queues.abilities.is_combined {
                let kind = if is_combined { "combined" } else { "rx" };
                let _ = writeln!(undo, "  ethtool -L {name} {kind} {}", queues.count);
            }
            if queues.abilities.has_table {
                let _ = writeln!(undo, "  ethtool -X {name} default");
            }
        }
    }
    let _ = write!(
        text,
        "save() {{\n{save}}}\napply() {{\n{apply}}}\nundo() {{\n  :\n{undo}  while read -r kind value name; do\n    \
         [ \"$kind\" = irq ] && name=/proc/irq/$(irq \"$name\")/smp_affinity_list\n    \
         [ ! -e \"$name\" ] || echo \"$value\" > \"$name\"\n  done < \"$saved\"\n  rm -f \"$saved\"\n}}\n\
         case \"$1\" in\n  start) [ -e \"$saved\" ] || {{ save > \"$saved.new\" && mv \"$saved.new\" \"$saved\"; }} && apply;;\n  \
         stop) [ ! -e \"$saved\" ] || undo;;\n  verify) :;;\n  *) echo \"$0 start|stop\" >&2; exit 2;;\nesac\n"
    );
    text
}

fn irq_name(target: &Target) -> Option<&str> {
    match target {
        Target::Irq { name, .. } => Some(name),
        Target::Rps { .. } => None,
    }
}

fn profile(label: &str, applications: &str) -> String {
    format!(
        "# Written by `longma affinity advise`. `tuned-adm profile PRESENT_PROFILE longma-affinity-{label}` adds it.\n\
         # Bind applications to CPUs {applications}.\n[main]\nsummary=Directs the network queues of {label} to CPUs of their node\n\n\
         [script]\nscript=${{i:PROFILE_DIR}}/script.sh\n"
    )
}

/// The unit that applies the script whenever the devices of the NICs appear.
fn unit(nics: &[&Nic], label: &str, script: &str, applications: &str) -> String {
    let devices: Vec<String> = nics.iter().map(|nic| device_unit(nic.name.name())).collect();
    let devices = devices.join(" ");
    format!(
        "# Written by `longma affinity advise`. Bind applications to CPUs {applications}: CPUAffinity= in their units.\n\
         [Unit]\nDescription=Directs the network queues of {label} to CPUs of their node\nBindsTo={devices}\n\
         After={devices} irqbalance.service\n\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={script} start\n\
         ExecStop={script} stop\n\n[Install]\nWantedBy={devices}\n"
    )
}

/// Name of the device unit of an interface, escaped as systemd-escape(1) describes.
fn device_unit(interface: &str) -> String {
    let mut name = String::from("sys-subsystem-net-devices-");
    for (at, byte) in interface.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' => name.push(byte.into()),
            b'.' if at > 0 => name.push('.'),
            _ => {
                let _ = write!(name, "\\x{byte:02x}");
            }
        }
    }
    name + ".device"
}

fn tasks(label: &str, (script_path, script): (&str, &str), (unit_name, unit): (&str, &str)) -> String {
    let block = |text: &str| -> String {
        // Ansible expands these even in quoted text.
        let text = text.replace("{{", "{{ '{{' }}").replace("{%", "{{ '{%' }}").replace("{#", "{{ '{#' }}");
        text.lines()
            .map(|line| if line.is_empty() { "\n".into() } else { format!("      {line}\n") })
            .collect()
    };
    let copy = |what: &str, path: &str, mode: &str, text: &str, register: &str| {
        format!(
            "- name: {what}\n  ansible.builtin.copy:\n    dest: \"{path}\"\n    mode: \"{mode}\"\n    content: |\n{}  register: {register}\n\n",
            block(text)
        )
    };
    let mut text = String::from(
        "# Written by `longma affinity advise`: tasks for a host with this topology, to be run as root.\n---\n",
    );
    text += &copy(
        &format!("Script that directs the queues of {label}"),
        script_path,
        "0755",
        script,
        "longma_script",
    );
    let path = format!("/etc/systemd/system/{unit_name}");
    text += &copy("Unit that runs it", &path, "0644", unit, "longma_unit");
    let _ = write!(
        text,
        "- name: Apply it now and whenever the device appears\n  ansible.builtin.systemd:\n    name: \"{unit_name}\"\n    \
         enabled: true\n    daemon_reload: true\n    \
         state: \"{{{{ 'restarted' if longma_script is changed or longma_unit is changed else 'started' }}}}\"\n"
    );
    text
}

#[cfg(test)]
mod tests;
