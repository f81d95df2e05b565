//! Advice for inventories in the form that Proxmox VE 8 and python-openstackclient 6 print (`recorded/`).

use super::*;
use crate::fleet_file;
use proptest::prelude::*;

const PROXMOX: &str = include_str!("recorded/proxmox.json");
const SERVERS: &str = include_str!("recorded/openstack-servers.json");
const FLAVORS: &str = include_str!("recorded/openstack-flavors.json");

/// A fleet of hosts with eight nodes of 16 CPUs and 32 GiB.
fn fleet(names: &[&str]) -> Fleet {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fleet.toml");
    let host = |name: &&str| format!("[[hosts]]\nname = {name:?}\ncount = 1\nmachine = \"hygon-8node\"\n");
    std::fs::write(&path, names.iter().map(host).collect::<String>()).unwrap();
    fleet_file::open(&path).unwrap()
}

fn advised(inventory: &Inventory, names: &[&str]) -> Vec<Advice> {
    advise(inventory, &fleet(names), Policy::default()).unwrap()
}

#[test]
fn endless_inventories_are_not_read() {
    assert_eq!(read(Path::new("/dev/zero")).unwrap_err(), "/dev/zero: neither a file nor a pipe");
}

#[test]
fn running_virtual_machines_get_nodes_on_their_host_and_stopped_ones_do_not_count() {
    let inventory = parse(PROXMOX, None).unwrap();
    assert_eq!(inventory.hosts.iter().map(String::as_str).collect::<Vec<_>>(), ["pve1", "pve2"]);
    let advice = advised(&inventory, &["pve1", "pve2"]);
    let ids: Vec<_> = advice.iter().map(|a| &*a.vm.id).collect();
    assert_eq!(ids, ["102", "100", "101"], "the largest first");
    assert!(advice.iter().all(|a| a.host.as_deref() == Some("pve1")), "{advice:?}");
    let nodes: Vec<_> = advice.iter().map(|a| a.nodes.len()).collect();
    // The largest virtual machine leaves 8 GiB on each node.
    assert_eq!(nodes, [8, 2, 1], "{advice:?}");
    let web = &advice[2];
    assert_eq!(web.cpus.len(), 16);
    assert_eq!(web.commands[0], format!("qm set 101 --affinity {}", web.cpus));
    let bound = format!("--numa0 cpus=0-1,hostnodes={},memory=2048,policy=preferred", web.nodes[0]);
    assert!(web.commands[1].ends_with(&bound), "{:?}", web.commands);
    assert!(
        advice.iter().flat_map(|a| &a.commands).all(|c| !c.contains("reboot")),
        "names are not in commands"
    );
}

#[test]
fn what_does_not_fit_on_its_host_goes_to_another_or_nowhere() {
    let mut inventory = parse(PROXMOX, None).unwrap();
    let large = ListedVm { id: "7".into(), ..inventory.vms[2].clone() };
    inventory.vms.extend([large.clone(), ListedVm { id: "8".into(), ..large }]);
    let advice = advised(&inventory, &["pve1", "pve2"]);
    let host = |id: &str| advice.iter().find(|a| a.vm.id == id).unwrap().host.clone();
    assert_eq!([host("102"), host("7"), host("8")], [Some("pve1".into()), Some("pve2".into()), None]);
    let moved = advice.iter().find(|a| a.vm.id == "7").unwrap();
    assert_eq!(moved.commands[0], "qm migrate 7 pve2 --online");
}

#[test]
fn openstack_servers_take_their_size_from_the_flavor() {
    let inventory = parse(SERVERS, Some(FLAVORS)).unwrap();
    let advice = advised(&inventory, &["compute1"]);
    assert_eq!(advice.len(), 1);
    assert_eq!((advice[0].vm.vcpus, advice[0].vm.memory_mib, advice[0].nodes.len()), (4, 8192, 1));
    assert!(advice[0].commands.is_empty(), "it is on its host, and Nova chooses the nodes");
    let unknown = parse(SERVERS, Some("[]")).unwrap_err();
    assert!(unknown.contains("m1.large"), "{unknown}");
}

#[test]
fn wrong_inputs_are_refused_with_the_reason() {
    let inventory = parse(PROXMOX, None).unwrap();
    let missing = advise(&inventory, &fleet(&["pve1"]), Policy::default()).unwrap_err();
    assert!(missing.contains("pve2") && missing.contains("[[hosts]]"), "{missing}");
    assert!(parse("{}", None).unwrap_err().contains("pvesh"));
    assert!(parse(PROXMOX, Some(FLAVORS)).unwrap_err().contains("openstack server list"));
    assert!(parse(SERVERS, Some(PROXMOX)).unwrap_err().contains("--flavors"));
    let none = PROXMOX.replace("\"maxcpu\": 8", "\"maxcpu\": 0");
    let refused =
        advise(&parse(&none, None).unwrap(), &fleet(&["pve1", "pve2"]), Policy::default()).unwrap_err();
    assert!(refused.contains("100 (db)") && refused.contains("vcpus"), "{refused}");
    // A virtual machine on a host that is off.
    let unknown = r#"[{"id": "qemu/104", "node": "pve3", "type": "qemu", "vmid": 104}, "#;
    let with_unknown = parse(&PROXMOX.replacen('[', unknown, 1), None);
    assert_eq!(with_unknown.as_ref(), Ok(&inventory));
}

proptest! {
    #[test]
    fn no_bytes_are_a_panic(text in ".{0,80}", at in 0..PROXMOX.len(), byte in "[ -~]") {
        let _ = parse(&text, None);
        let _ = parse(&text, Some(&text));
        let mut changed = PROXMOX.to_string();
        changed.replace_range(at..=at, &byte);
        if let Ok(inventory) = parse(&changed, None) {
            let _ = advise(&inventory, &fleet(&["pve1", "pve2"]), Policy::default());
        }
    }
}
