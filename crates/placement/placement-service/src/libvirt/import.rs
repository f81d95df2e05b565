//! Reads a domain that Longma did not create, so that a virtual machine can be made of it.

use super::virsh::Virsh;
use super::{domain, tree};

/// A domain's size, and its XML as a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Page size, KiB; `None` for ordinary pages.
    pub huge_page_kib: Option<u32>,
    /// The domain's definition.
    pub xml: String,
}

/// Reads the domain `name` of the libvirt at `uri`.
///
/// # Errors
/// libvirt does not answer, or the domain does not exist, is running, or belongs to a virtual machine.
pub fn import(uri: &str, name: &str) -> Result<Imported, String> {
    let virsh = Virsh::new(uri);
    // The live XML shows whether the domain runs. The inactive XML has no run-time addresses.
    let text = |more: &[&str]| {
        let arguments = [&["dumpxml", "--domain", name][..], more].concat();
        virsh.run(&arguments).map_err(|fault| fault.text())
    };
    of_xml(name, &text(&[])?, text(&["--inactive"])?)
}

fn of_xml(name: &str, live: &str, inactive: String) -> Result<Imported, String> {
    let live = tree::parse(live)?;
    if domain::name_of(&live) != name {
        return Err(format!("give the domain's name, {}", longma_text::sanitize(domain::name_of(&live))));
    }
    if let Some(vm) = domain::vm_of(&live) {
        return Err(format!("the domain is labelled as virtual machine {vm} of a placement service"));
    }
    let actual = domain::actual(&tree::parse(&inactive)?)?;
    if live.get("id").is_some() {
        return Err("the domain runs: shut it down first, so that its disks are never used twice".into());
    }
    let memory_mib =
        actual.size_mib.filter(|mib| *mib > 0).ok_or("the domain's memory size cannot be read")?;
    let (vcpus, huge_page_kib) = (actual.vcpus().len() as u32, actual.huge_page_kib);
    Ok(Imported { vcpus, memory_mib, huge_page_kib, xml: inactive })
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = "<domain type='kvm'><name>their vm</name><memory unit='MiB'>512</memory>\
        <memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking><vcpu current='2'>4</vcpu></domain>";

    #[test]
    fn a_domain_that_is_shut_off_becomes_a_template() {
        let found = of_xml("their vm", XML, XML.into()).unwrap();
        assert_eq!((found.vcpus, found.memory_mib, found.huge_page_kib), (2, 512, Some(2048)));
        assert_eq!(found.xml, XML);
    }

    #[test]
    fn running_and_managed_domains_are_refused() {
        let refused = |xml: &str| of_xml("their vm", xml, xml.into()).unwrap_err();
        assert!(refused(&XML.replace("<domain", "<domain id='3'")).contains("runs: shut it down"));
        let label = "<metadata><longma:vm xmlns:longma='urn:longma:placement' id='7'/></metadata><vcpu";
        assert!(refused(&XML.replace("<vcpu", label)).contains("virtual machine 7"));
        assert!(refused(&XML.replace("their vm", "other")).contains("give the domain's name, other"));
        assert!(refused(&XML.replace("512", "0")).contains("memory size"));
        assert!(of_xml("a", "<domain", "<domain".into()).is_err());
    }
}
