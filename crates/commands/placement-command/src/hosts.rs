//! `longma placement hosts`, `drain`, `force-down`, `evacuate`, `remove-host`, `alarms`, `audit` and `defragment`.

use super::Outcome;
use super::connection::{ConnectionOptions, FormatOptions, with_advice};
use super::print::{self, Page, heading, list as listed, mib, percent, print_line, word};
use longma_placement::foreign::ForeignDomain;
use longma_placement_service::Client;
use longma_placement_service::client::part;
use longma_placement_service::wire::{
    Alarms, Audit, Defragmentation, DeviceView, Drained, Evacuate, Evacuation, HostView, Hosts,
};
use std::error::Error;
use std::process::ExitCode;

/// Arguments of `longma placement hosts`.
#[derive(clap::Args)]
pub struct HostsArguments {
    /// Show this host only.
    host: Option<String>,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Arguments of `longma placement drain`.
#[derive(clap::Args)]
pub struct DrainArguments {
    /// The host to drain.
    host: String,
    /// Let the host accept virtual machines again.
    #[arg(long)]
    undo: bool,
    /// Also move its virtual machines to other hosts, running ones live, and wait until it is empty.
    #[arg(long, conflicts_with_all = ["undo", "json"])]
    empty: bool,
    /// How long to wait until it is empty.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, requires = "empty")]
    patience: u64,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Selects a host.
#[derive(clap::Args)]
pub struct HostArguments {
    /// The host.
    host: String,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Arguments of `longma placement evacuate`.
#[derive(clap::Args)]
pub struct EvacuateArguments {
    #[command(flatten)]
    one: HostArguments,
    /// Confirm that the host is powered off, or cut off from the disks and networks of its virtual machines. Otherwise
    /// they may run twice and destroy their disks.
    #[arg(long)]
    fenced: bool,
}

/// Arguments of `longma placement alarms`.
#[derive(clap::Args)]
pub struct AlarmsArguments {
    /// Also list cleared alarms.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Arguments of `longma placement audit`.
#[derive(clap::Args)]
pub struct AuditArguments {
    /// Audit this host only.
    #[arg(long)]
    host: Option<String>,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Arguments of `longma placement defragment`.
#[derive(clap::Args)]
pub struct DefragmentArguments {
    /// Plan moves for this host only.
    host: Option<String>,
    /// Plan at most this many moves per host.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    moves: u32,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

fn page_size(kib: u32) -> String {
    match kib {
        ..1024 => format!("{kib} KiB"),
        1024..1_048_576 => format!("{} MiB", kib / 1024),
        _ => format!("{} GiB", kib / 1_048_576),
    }
}

fn host_rows(hosts: &[HostView]) -> Vec<Vec<String>> {
    let headings = [
        "HOST",
        "STATUS",
        "NODE",
        "CPUS",
        "EXCLUSIVE",
        "SHARED",
        "PAGES",
        "MEMORY",
        "RESERVED",
        "CPU LOAD",
        "MEMORY LOAD",
    ];
    const PAGES: usize = 6;
    let mut rows = vec![heading(headings)];
    for host in hosts {
        for (at, node) in host.nodes.iter().enumerate() {
            let first = at == 0;
            // Pages of different sizes do not replace each other: one row for each size.
            for (pool, (page_kib, total, used)) in node.memory.iter().enumerate() {
                let once = |cell: String| if pool == 0 { cell } else { String::new() };
                rows.push(vec![
                    once(if first { host.name.clone() } else { String::new() }),
                    once(if first { word(&host.status) } else { String::new() }),
                    once(node.node.to_string()),
                    once(node.cpus.to_string()),
                    once(node.exclusive.to_string()),
                    once(node.shared.to_string()),
                    page_size(*page_kib),
                    mib(*total),
                    mib(*used),
                    once(percent(node.load.cpu.into())),
                    once(percent(node.load.memory.into())),
                ]);
            }
        }
    }
    if hosts.iter().flat_map(|host| &host.nodes).all(|node| node.memory.len() <= 1) {
        rows.iter_mut().for_each(|row| drop(row.remove(PAGES)));
    }
    rows
}

/// Describes the resources used by a domain that the service does not manage.
fn foreign_line(domain: &ForeignDomain) -> String {
    if !domain.running {
        return format!("{}: shut off", domain.name);
    }
    let cpus = match domain.cpus.is_empty() {
        true => "any CPU, including CPUs dedicated to other domains".to_string(),
        false => format!("CPUs {}, none of them dedicated to another domain", domain.cpus),
    };
    let pages = domain.huge_page_kib.map(|kib| format!(" in pages of {kib} KiB")).unwrap_or_default();
    let memory = domain.memory_mib.iter().map(|(node, amount)| format!("{} on node {node}", mib(*amount)));
    let memory = memory.collect::<Vec<_>>().join(", ");
    format!("{}: {} virtual CPUs on {cpus}; {memory}{pages}", domain.name, domain.vcpus)
}

/// Describes a device and whether it is free.
fn device_line(view: &DeviceView) -> String {
    let device = &view.device;
    let model = device.id.map(|id| format!(" {id}")).unwrap_or_default();
    let node = device.node.map_or("on no node".into(), |node| format!("on node {node}"));
    let more = device.functions.len().saturating_sub(1);
    let more = if more > 0 { format!(", with {more} other functions") } else { String::new() };
    let state = match (&device.unusable, view.used, device.slots) {
        (Some(why), ..) => format!("not usable: {why}"),
        (None, used, slots) if slots > 1 => format!("{used} of {slots} in use"),
        (None, 0, _) => "free".into(),
        (None, ..) => "in use".into(),
    };
    format!("{}{model} {} {node}{more}: {state}", word(&device.kind), device.name)
}

/// Fetches all hosts, page by page.
fn all_hosts(client: &Client) -> Result<Vec<HostView>, Box<dyn Error>> {
    let (mut hosts, mut next) = (Vec::new(), Some(String::new()));
    while let Some(after) = next {
        let page: Hosts = client.get(&format!("/v1/hosts?after={}", part(&after))).map_err(with_advice)?;
        hosts.extend(page.items);
        next = page.next;
    }
    Ok(hosts)
}

/// Runs `longma placement hosts`.
pub fn hosts(arguments: &HostsArguments) -> Outcome {
    let client = arguments.connection.client()?;
    let hosts = match &arguments.host {
        Some(host) => {
            vec![client.get::<HostView>(&format!("/v1/hosts/{}", part(host))).map_err(with_advice)?]
        }
        None => all_hosts(&client)?,
    };
    if arguments.format.json {
        return print::json(&hosts);
    }
    if hosts.is_empty() {
        return print_line("no hosts; run `longma placement agent` on a host to add it");
    }
    let mut page = Page::new();
    page.table(&host_rows(&hosts));
    for host in &hosts {
        if !host.foreign.is_empty() {
            page.line(&format!("{}: domains not created by longma: {}", host.name, host.foreign.join(", ")));
        }
        host.foreign_domains.iter().for_each(|domain| page.line(&format!("  {}", foreign_line(domain))));
        host.devices.iter().for_each(|device| page.line(&format!("{}: {}", host.name, device_line(device))));
        host.problems.iter().for_each(|problem| page.line(&format!("{}: {problem}", host.name)));
    }
    page.print()
}

/// Runs `longma placement drain`.
pub fn drain(arguments: &DrainArguments) -> Outcome {
    let word = if arguments.undo { "undrain" } else { "drain" };
    let query = if arguments.empty { "?empty=true" } else { "" };
    let path = format!("/v1/hosts/{}/{word}{query}", part(&arguments.host));
    let client = arguments.connection.client()?;
    let drained: Drained = client.post(&path, None, &()).map_err(with_advice)?;
    if arguments.format.json {
        return print::json(&drained);
    }
    let host = &arguments.host;
    if arguments.undo {
        return print_line(&format!("{host} accepts virtual machines again"));
    }
    if arguments.empty {
        let count = drained.left.len();
        print_line(&format!(
            "{host} accepts no more virtual machines; {count} will be moved to other hosts"
        ))?;
        return super::migrate::wait_until_empty(&client, host, arguments.patience);
    }
    let mut page = Page::new();
    page.line(&format!("{host} accepts no more virtual machines; {} stay on it", drained.left.len()));
    for vm in &drained.left {
        page.line(&format!("  {} ({}, {})", vm.id, vm.request.name, vm.state));
    }
    page.print()
}

/// Runs `longma placement force-down`.
pub fn force_down(arguments: &HostArguments) -> Outcome {
    let path = format!("/v1/hosts/{}/force-down", part(&arguments.host));
    let downed: Drained = arguments.connection.client()?.post(&path, None, &()).map_err(with_advice)?;
    if arguments.format.json {
        return print::json(&downed);
    }
    let host = &arguments.host;
    let mut page = Page::new();
    page.line(&format!("{host} is declared dead; {} virtual machines are recorded on it", downed.left.len()));
    if !downed.left.is_empty() {
        page.line("once it is off or cut off from their disks, start them elsewhere with:");
        page.command(&format!("longma placement evacuate {host} --fenced"));
    }
    page.print()
}

/// Runs `longma placement evacuate`; exits with status 1 if a virtual machine stays.
pub fn evacuate(arguments: &EvacuateArguments) -> Outcome {
    let one = &arguments.one;
    let path = format!("/v1/hosts/{}/evacuate", part(&one.host));
    let body = Evacuate { fenced: arguments.fenced };
    let evacuation: Evacuation = one.connection.client()?.post(&path, None, &body).map_err(with_advice)?;
    let code = if evacuation.stayed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if one.format.json {
        return print::json(&evacuation).map(|_| code);
    }
    let mut page = Page::new();
    page.line(&format!("assumed: {}", evacuation.assumed));
    for vm in &evacuation.left {
        let end = vm.to.as_ref().map_or("deleted".to_string(), |to| format!("starts on {to}"));
        page.line(&format!("virtual machine {} ({}): {end}", vm.vm, vm.name));
    }
    for vm in &evacuation.stayed {
        page.line(&format!("virtual machine {} ({}) stays: {}", vm.vm, vm.name, vm.why));
    }
    page.print().map(|_| code)
}

/// Runs `longma placement remove-host`.
pub fn remove(arguments: &HostArguments) -> Outcome {
    let path = format!("/v1/hosts/{}", part(&arguments.host));
    arguments.connection.client()?.delete::<()>(&path).map_err(with_advice)?;
    if arguments.format.json {
        return print::json(&());
    }
    print_line(&format!("{} and the tokens of its agents are removed", arguments.host))
}

/// Formats a time in seconds since 1970 as its age.
fn format_age(at: i64) -> String {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    match (now - at).max(0) {
        s @ 0..120 => format!("{s} s ago"),
        s @ 120..7200 => format!("{} min ago", s / 60),
        s => format!("{} h ago", s / 3600),
    }
}

/// Runs `longma placement alarms`.
pub fn alarms(arguments: &AlarmsArguments) -> Outcome {
    let path = format!("/v1/alarms?all={}", arguments.all);
    let alarms: Alarms = arguments.connection.client()?.get(&path).map_err(with_advice)?;
    if arguments.format.json {
        return print::json(&alarms.items);
    }
    if alarms.items.is_empty() {
        return print_line("no alarms");
    }
    let mut rows = vec![heading(["HOST", "NODE", "ALARM", "VALUE", "RAISED", "CLEARED"])];
    rows.extend(alarms.items.iter().map(|alarm| {
        vec![
            alarm.host.clone(),
            alarm.node.map_or("-".into(), |n| n.to_string()),
            alarm.kind.clone(),
            format!("{:.2}", alarm.value),
            format_age(alarm.raised_at),
            alarm.cleared_at.map_or("-".into(), format_age),
        ]
    }));
    print::table(&rows)
}

/// Formats the findings of an audit and their age.
fn audit_page(audit: &Audit, is_clean: bool) -> Page {
    let mut page = Page::new();
    let mut rows = vec![heading(["HOST", "DOMAIN", "WHAT", "INTENDED", "ACTUAL"])];
    for (host, finding) in audit.hosts.iter().flat_map(|h| h.findings.iter().map(move |f| (&h.host, f))) {
        let (domain, what) = (finding.domain.clone(), word(&finding.what));
        rows.push(vec![host.clone(), domain, what, finding.intended.clone(), finding.actual.clone()]);
    }
    if rows.len() > 1 {
        page.table(&rows);
    }
    for host in &audit.hosts {
        host.problems.iter().for_each(|problem| page.line(&format!("{}: {problem}", host.host)));
        let audited = match host.age_s {
            Some(s) => format!("was audited {s} s ago"),
            None => "was not audited: its agent has not reported to this service".into(),
        };
        let foreign = match host.foreign.len() {
            0 => String::new(),
            n => format!("; {n} domains not created by longma are ignored"),
        };
        page.line(&format!("{} {audited}{foreign}", host.host));
    }
    audit.database.iter().for_each(|line| page.line(&format!("database: {line}")));
    if is_clean {
        page.line("all domains match the service's records");
    }
    page
}

/// Runs `longma placement audit`; exits with status 1 if the audit found a difference.
pub fn audit(arguments: &AuditArguments) -> Outcome {
    let query = arguments.host.as_ref().map(|h| format!("?host={}", part(h))).unwrap_or_default();
    let audit: Audit =
        arguments.connection.client()?.get(&format!("/v1/audit{query}")).map_err(with_advice)?;
    let is_clean = audit.database.is_empty()
        && audit.hosts.iter().all(|h| h.findings.is_empty() && h.problems.is_empty() && h.age_s.is_some());
    if arguments.format.json {
        print::json(&audit)?;
    } else {
        audit_page(&audit, is_clean).print()?;
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs `longma placement defragment`.
pub fn defragment(arguments: &DefragmentArguments) -> Outcome {
    let client = arguments.connection.client()?;
    let names = match &arguments.host {
        Some(host) => vec![host.clone()],
        None => all_hosts(&client)?.into_iter().map(|host| host.name).collect(),
    };
    let mut plans = Vec::new();
    for name in names {
        let path = format!("/v1/hosts/{}/defragmentation?moves={}", part(&name), arguments.moves);
        plans.push(client.get::<Defragmentation>(&path).map_err(with_advice)?);
    }
    if arguments.format.json {
        return print::json(&plans);
    }
    let mut page = Page::new();
    for plan in &plans {
        let now = percent(plan.score_before);
        page.line(&format!(
            "{}: {now} of the free memory cannot be used by virtual machines of common sizes",
            plan.host
        ));
        if plan.moves.is_empty() {
            page.line("  no move between its NUMA nodes reduces this share");
            continue;
        }
        let after = percent(plan.score_after);
        page.line(&format!("  {after} after these moves (not made yet):"));
        for step in &plan.moves {
            page.command(&format!("  longma placement rebind {} --nodes {}", step.vm, listed(&step.to)));
        }
    }
    page.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(memory: &str) -> HostView {
        let node = format!(
            r#"{{"node":0,"cpus":8,"exclusive":2,"shared":3,"memory":{memory},"load":{{"cpu":0,"memory":0}}}}"#
        );
        let host = format!(
            r#"{{"name":"h","status":"up","heard_s":1,"vms":0,"nodes":[{node}],"distances":[[10]],"foreign":[],"problems":[]}}"#
        );
        serde_json::from_str(&host).unwrap()
    }

    #[test]
    fn pages_of_different_sizes_are_not_added() {
        let rows = host_rows(&[host("[[4,8192,1024],[1048576,4096,2048]]")]);
        assert_eq!(rows[0][6..9], ["PAGES", "MEMORY", "RESERVED"]);
        assert_eq!(rows[1][6..9], ["4 KiB", "8 GiB", "1 GiB"]);
        assert_eq!(rows[2][..9], ["", "", "", "", "", "", "1 GiB", "4 GiB", "2 GiB"]);
        let rows = host_rows(&[host("[[4,8192,1024]]")]);
        assert_eq!(rows[1][5..8], ["3", "8 GiB", "1 GiB"], "one size needs no column");
    }
}
