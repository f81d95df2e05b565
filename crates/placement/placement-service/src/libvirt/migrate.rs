//! Live migration by libvirt: the source's libvirtd connects to that of the target, so that the death of an agent does not
//! interrupt it. The domain stays paused on the target, because libvirtd resumes the source if it loses the connection
//! while the target starts.
//!
//! Source: virsh(1), `migrate`, `domstate`, `domjobinfo`; libvirt, "Guest migration". The states were tested with libvirt
//! 9.0.

use super::domain;
use super::tree;
use super::virsh::{self, Fault};
use super::{Libvirt, image};
use longma_placement::hypervisor::{Destination, Domain, HypervisorError, Outgoing};
use longma_placement::reconcile::MAX_MIGRATION_S;
use longma_placement::request::Boot;
use std::net::Ipv6Addr;
use std::path::Path;
use std::time::Duration;

/// How long libvirtd may queue a request whose client has died. During this time, a migration may still begin.
const QUEUE_TIME: Duration = Duration::from_secs(3);

fn refused(what: &str, why: impl ToString) -> HypervisorError {
    HypervisorError::Refused { what: what.into(), why: why.to_string() }
}

/// Arguments of `virsh migrate` that depend on how the target's libvirtd is reached. If the connection is encrypted,
/// the memory is sent over it too. Otherwise QEMU connects to the address in the URI, because the target's own name may
/// resolve to another address.
fn transport(address: &str) -> Vec<String> {
    let (scheme, rest) = address.split_once("://").unwrap_or((address, ""));
    let transport = scheme.split_once('+').map_or("tls", |(_, transport)| transport);
    if matches!(transport, "tls" | "ssh" | "libssh" | "libssh2") {
        return vec!["--tunnelled".into()];
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((v6, _)) => format!("[{v6}]"),
        None => host.split(':').next().unwrap_or_default().to_string(),
    };
    if host.is_empty() { Vec::new() } else { vec!["--migrateuri".into(), format!("tcp://{host}")] }
}

/// Checks the address of another host's libvirtd. That host's agent chooses it, but libvirtd of this host opens it as root,
/// and libvirt's URIs can name a program to run (`ext`, `command=`, `netcat=`) and files to read.
///
/// # Errors
/// What is wrong with it.
pub fn check_migration_uri(uri: &str) -> Result<(), String> {
    let wrong = |why: &str| {
        let shown: String = uri.chars().take(100).collect();
        Err(format!("{shown:?} is not an address for migrations: {why}"))
    };
    let Some((scheme, rest)) = uri.split_once("://") else { return wrong("expected qemu+tls://HOST/system") };
    if !matches!(scheme, "qemu" | "qemu+tls" | "qemu+tcp" | "qemu+ssh") {
        return wrong("it must begin with qemu+tls://, qemu+ssh:// or qemu+tcp://");
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !matches!(path, "system" | "session") {
        return wrong("it must end with /system, without parameters");
    }
    let (user, host) =
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let is_plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    let (host, port) = match host.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((v6, "")) if v6.parse::<Ipv6Addr>().is_ok() => ("v6", None),
        Some((v6, rest)) if v6.parse::<Ipv6Addr>().is_ok() => {
            ("v6", Some(rest.strip_prefix(':').unwrap_or(rest)))
        }
        _ => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
    };
    if !is_plain(host) || !user.is_none_or(is_plain) || port.is_some_and(|port| port.parse::<u16>().is_err())
    {
        return wrong("it needs the name or the IP address of a host");
    }
    Ok(())
}

/// Interprets the output of `virsh domstate --reason`, and of `virsh domjobinfo` if the domain is active.
fn outgoing(state: &str, job: &str) -> Outgoing {
    let field = |name: &str| {
        let line = job.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_default()
    };
    let has_job = !matches!(&*field("Job type"), "" | "None");
    if has_job && matches!(&*field("Operation"), "" | "Outgoing migration") {
        let elapsed = field("Time elapsed");
        let ms: u64 = elapsed.split(' ').next().and_then(|ms| ms.parse().ok()).unwrap_or(0);
        return Outgoing::InProgress { for_s: ms / 1000 };
    }
    match state.trim() {
        "paused (migrating)" | "paused (post-migration)" => Outgoing::Suspended,
        "shut off (migrated)" => Outgoing::Left,
        other if other.starts_with("shut off") || other.starts_with("crashed") || other.is_empty() => {
            Outgoing::Gone
        }
        _ => Outgoing::Stays,
    }
}

impl Libvirt {
    /// Sets the URI under which other hosts' libvirtd reaches this one.
    #[must_use]
    pub fn with_migration_uri(mut self, uri: Option<String>) -> Self {
        self.migration_uri = uri;
        self
    }

    pub(super) fn accept(&self, wanted: &Domain) -> Result<String, HypervisorError> {
        let what = format!("accept {}", wanted.name);
        if let Boot::Disk { path, format } = &wanted.request.boot {
            image::check(Path::new(path), format).map_err(|why| refused(&what, why))?;
        }
        self.migration_uri
            .clone()
            .ok_or_else(|| refused(&what, "its agent was started without --migration-uri"))
    }

    pub(super) fn send(&mut self, name: &str, to: &Destination) -> Result<(), HypervisorError> {
        let what = format!("migrate {name}");
        check_migration_uri(&to.address).map_err(|why| refused(&what, why))?;
        let io = |error: std::io::Error| refused(&what, error);
        let described = self.virsh.run(&["dumpxml", "--domain", name, "--migratable"]);
        let described = described.map_err(|fault| fault.error(&what))?;
        let xml = tree::parse(&described).and_then(|xml| domain::for_destination(xml, &to.domain).write());
        let folder = tempfile::tempdir().map_err(io)?;
        let file = folder.path().join("domain.xml");
        std::fs::write(&file, xml.map_err(|why| refused(&what, why))?).map_err(io)?;
        let file = file.to_string_lossy();
        let mut arguments = vec!["migrate", "--domain", name, "--desturi", &to.address, "--live", "--p2p"];
        arguments.extend(["--persistent", "--suspend", "--auto-converge", "--abort-on-error"]);
        arguments.extend(["--xml", &file, "--persistent-xml", &file]);
        let transport = transport(&to.address);
        arguments.extend(transport.iter().map(String::as_str));
        self.sent.insert(name.into());
        let sent = self.virsh.run_for(&arguments, None, Duration::from_secs(MAX_MIGRATION_S));
        if let Err(Fault::Unavailable(_)) = &sent {
            // virsh was killed, but libvirtd continues the migration. If the abort fails, too, a later check repeats
            // it.
            let _ = self.abort(name);
        }
        sent.map(drop).map_err(|fault| fault.error(&what))
    }

    pub(super) fn abort(&self, name: &str) -> Result<(), HypervisorError> {
        let is_over = |fault: &Fault| fault.is_not_running() || fault.is_no_domain() || fault.is_no_job();
        let what = format!("abort the migration of {name}");
        self.call(&what, &["domjobabort", "--domain", name], virsh::CALL_TIMEOUT, is_over)
    }

    pub(super) fn what_is_left(&self, name: &str) -> Result<Outgoing, HypervisorError> {
        if !self.sent.contains(name) && self.connected_at.elapsed() < QUEUE_TIME {
            return Ok(Outgoing::InProgress { for_s: 0 });
        }
        let what = format!("describe {name}");
        let state = match self.virsh.run(&["domstate", "--domain", name, "--reason"]) {
            Ok(state) => state,
            Err(fault) if fault.is_no_domain() => return Ok(Outgoing::Gone),
            Err(fault) => return Err(fault.error(&what)),
        };
        // The guest is paused during this time, so make no unnecessary calls.
        if outgoing(&state, "") == Outgoing::Left {
            return Ok(Outgoing::Left);
        }
        let job = match self.virsh.run(&["domjobinfo", "--domain", name]) {
            Ok(job) => job,
            Err(fault) if fault.is_not_running() || fault.is_no_domain() => String::new(),
            Err(fault) => return Err(fault.error(&what)),
        };
        // The state may have changed before the job was examined.
        let again = self.virsh.run(&["domstate", "--domain", name, "--reason"]);
        match again {
            Ok(again) if again == state => Ok(outgoing(&state, &job)),
            _ => Ok(Outgoing::InProgress { for_s: 0 }),
        }
    }

    pub(super) fn resume_on(&self, address: &str, name: &str) -> Result<(), HypervisorError> {
        check_migration_uri(address).map_err(|why| refused(&format!("resume {name}"), why))?;
        match self.virsh.at(address).run(&["resume", "--domain", name]) {
            Err(fault) if !fault.is_running() => Err(fault.error(&format!("resume {name} at {address}"))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_sent_over_an_encrypted_connection_or_to_the_address_in_the_uri() {
        for uri in ["qemu+tls://h2/system", "qemu://h2/system", "qemu+ssh://root@h2/system"] {
            assert_eq!(transport(uri), ["--tunnelled"], "{uri}");
        }
        let cases = [
            ("qemu+tcp://10.0.0.2/system", "tcp://10.0.0.2"),
            ("qemu+tcp://me@h2:16509/system?x=y", "tcp://h2"),
            ("qemu+tcp://[fe80::1]:16509/system", "tcp://[fe80::1]"),
        ];
        for (uri, to) in cases {
            assert_eq!(transport(uri), ["--migrateuri", to], "{uri}");
        }
        assert_eq!(transport("qemu+unix:///system?socket=/x"), Vec::<String>::new());
        assert_eq!(transport("nonsense"), ["--tunnelled"]);
    }

    #[test]
    fn an_address_of_another_host_names_no_program() {
        for good in [
            "qemu+tls://host2/system",
            "qemu://h.example:16514/system",
            "qemu+ssh://root@10.0.0.2/system",
            "qemu+tcp://[fe80::1]:16509/system",
            "qemu+tcp://[::1]/session",
        ] {
            assert_eq!(check_migration_uri(good), Ok(()), "{good}");
        }
        for hostile in [
            "qemu+ext:///system?command=/tmp/x",
            "qemu+ssh://h2/system?command=/tmp/x",
            "qemu+ssh://h2/system?netcat=/tmp/x",
            "qemu+tls://h2/system?pkipath=/tmp",
            "qemu+tls://h2/system?no_verify=1",
            "qemu+tls://h2/system#x",
            "qemu+unix:///system?socket=/tmp/x",
            "qemu+libssh2://h2/system",
            "qemu+ssh://-oProxyCommand=x/system",
            "qemu+ssh://-lx@h2/system",
            "qemu+ssh://a b/system",
            "qemu+ssh://h2;x/system",
            "qemu+ssh://h2:x/system",
            "qemu+ssh://[h2]/system",
            "qemu+ssh://[::1]x/system",
            "qemu:///system",
            "qemu+tls://h2/../x",
            "qemu+tls://h2",
            "test:///default",
            "xen+ssh://h2/system",
            "--help",
            "",
        ] {
            assert!(check_migration_uri(hostile).is_err(), "{hostile}");
        }
    }

    #[test]
    fn what_is_left_is_read_as_virsh_prints_it() {
        let none = "Job type:         None        \n\n";
        let running = "Job type:         Unbounded   \nOperation:        Outgoing migration\nTime elapsed:     61437        ms\n";
        assert_eq!(outgoing("running (booted)\n\n", none), Outgoing::Stays);
        assert_eq!(outgoing("running (migration canceled)\n", none), Outgoing::Stays);
        assert_eq!(outgoing("paused (user)\n", none), Outgoing::Stays);
        assert_eq!(outgoing("in shutdown\n", none), Outgoing::Stays);
        assert_eq!(outgoing("running (booted)\n", running), Outgoing::InProgress { for_s: 61 });
        assert_eq!(outgoing("paused (migrating)\n", running), Outgoing::InProgress { for_s: 61 });
        assert_eq!(outgoing("paused (migrating)\n", none), Outgoing::Suspended);
        assert_eq!(outgoing("shut off (migrated)\n", ""), Outgoing::Left);
        assert_eq!(outgoing("shut off (destroyed)\n", ""), Outgoing::Gone);
        assert_eq!(outgoing("shut off (unknown)\n", ""), Outgoing::Gone);
        assert_eq!(outgoing("crashed (panicked)\n", ""), Outgoing::Gone);
        // Another job, such as a dump.
        let dump = "Job type: Bounded\nOperation: Dump\n";
        assert_eq!(outgoing("running (booted)\n", dump), Outgoing::Stays);
    }
}
