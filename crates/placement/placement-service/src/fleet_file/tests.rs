//! Fleet files and descriptions of hosts: their meaning, and the line and field of each error.

use super::*;
use proptest::prelude::*;
use std::time::{Duration, Instant};

/// Written by `lstopo --input "package:2 [numa(memory=64GB)] l3:1 core:2 pu:2" --of xml`, shortened.
const LSTOPO: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x000000ff">
    <object type="Package" os_index="0" cpuset="0x0000000f">
      <object type="NUMANode" os_index="0" cpuset="0x0000000f" local_memory="64000000000">
        <page_type size="4096" count="15100713"/>
        <page_type size="2097152" count="1024"/>
      </object>
      <object type="L3Cache" cpuset="0x0000000f">
        <object type="Core" os_index="0"><object type="PU" os_index="0"/><object type="PU" os_index="1"/></object>
        <object type="Core" os_index="1"><object type="PU" os_index="2"/><object type="PU" os_index="3"/></object>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x000000f0">
      <object type="NUMANode" os_index="1" cpuset="0x000000f0" local_memory="64000000000"/>
      <object type="Core" os_index="2"><object type="PU" os_index="4"/><object type="PU" os_index="5"/></object>
      <object type="Core" os_index="3"><object type="PU" os_index="6"/><object type="PU" os_index="7"/></object>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
    <indexes length="4">0 1 </indexes>
    <u64values length="12">10 21 21 10 </u64values>
  </distances2>
</topology>
"#;

const LSCPU: &str =
    "# CPU,Core,Socket,Node\n0,0,0,0\n1,1,0,0\n2,0,1,1\n3,1,1,1\n4,0,0,0\n5,1,0,0\n6,0,1,1\n7,1,1,1\n";

fn fleet(text: &str) -> Result<Fleet, InputError> {
    let read = |path: &Path| match path.to_str() {
        Some("topology.xml") => Ok((LSTOPO.to_string(), path.to_path_buf())),
        Some("lscpu.txt") => Ok((LSCPU.to_string(), path.to_path_buf())),
        _ => Err(Fault::at(None, "", "does not exist").within(path)),
    };
    parse(text, &read).map_err(|failure| match failure {
        Failure::Here(fault) => fault.within(Path::new("fleet.toml")),
        Failure::Elsewhere(error) => error,
    })
}

#[test]
fn hosts_come_from_machine_files_and_from_the_output_of_lstopo_and_lscpu() {
    let fleet = fleet(
        "[[hosts]]\nname = \"big\"\ncount = 2\nmachine = \"hygon-8node\"\nreserved = \"0,64\"\nreserved_memory_mib = 1024\n\
        [[hosts]]\nname = \"xml\"\ncount = 1\nlstopo = \"topology.xml\"\n\
        [[hosts]]\nname = \"text\"\ncount = 1\nlscpu = \"lscpu.txt\"\nnode_memory_mib = 4096\n",
    )
    .unwrap();
    let names: Vec<&str> = fleet.hosts.iter().map(|host| &*host.name).collect();
    assert_eq!(names, ["big-1", "big-2", "xml-1", "text-1"]);
    let [big, _, xml, text] = &fleet.hosts[..] else { panic!() };
    assert_eq!((big.reserved.to_string(), big.nodes[3].memory[0].mib), ("0,64".into(), 31 * 1024));
    let memory = &xml.nodes[0].memory;
    assert_eq!(memory[1], Pool { page_kib: 2048, mib: 2048 });
    assert_eq!(memory[0], Pool { page_kib: 4, mib: 64_000_000_000 / 1_048_576 - 2048 });
    assert_eq!(xml.nodes[1].cores, ["4-5".parse().unwrap(), "6-7".parse().unwrap()]);
    assert_eq!(xml.distances, [[10, 21], [21, 10]]);
    assert_eq!(text.nodes[1].cores, ["2,6".parse().unwrap(), "3,7".parse().unwrap()]);
    assert_eq!((text.nodes.len(), text.nodes[0].memory[0].mib), (2, 4096));
}

#[test]
fn faults_of_a_fleet_file_name_the_line_and_the_field() {
    let kind = "[[hosts]]\nname = \"a\"\ncount = 1\nmachine = \"hygon-8node\"\n";
    for (text, expected) in [
        ("hosts = 3", "fleet.toml:1: "),
        ("[[hosts]]\nname = \"a\"\ncount = -1\nmachine = \"x\"\n", "fleet.toml:3: "),
        (&format!("{kind}color = 1\n"), "fleet.toml:5: unknown field `color`"),
        (
            &format!("{kind}[[hosts]]\nname = \"a\"\ncount = 1\nmachine = \"hygon-8node\"\n"),
            "fleet.toml:6: hosts[1].name: is used twice",
        ),
        (&kind.replace("count = 1", "count = 20000"), "fleet.toml:3: hosts[0].count: is 20000"),
        (&kind.replace("hygon-8node", "none-such"), "fleet.toml:4: hosts[0].machine: "),
        (&kind.replace("\"a\"", "\"a b\""), "fleet.toml:2: hosts[0].name: "),
        (&format!("{kind}reserved = \"4000\"\n"), "fleet.toml:5: hosts[0].reserved: "),
        (
            &format!("{kind}reserved_memory_mib = 99999999\n"),
            "fleet.toml:5: hosts[0].reserved_memory_mib: node 0 has",
        ),
        (&format!("{kind}lstopo = \"topology.xml\"\n"), "fleet.toml:2: hosts[0].name: needs exactly one"),
        (
            "[[hosts]]\nname = \"a\"\ncount = 1\nlscpu = \"lscpu.txt\"\n",
            "fleet.toml:4: hosts[0].node_memory_mib: is missing",
        ),
        ("[[hosts]]\nname = \"a\"\ncount = 1\nlstopo = \"gone.xml\"\n", "gone.xml: does not exist"),
        ("hosts = []", "fleet.toml: hosts: is empty"),
    ] {
        let error = fleet(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}\nexpected {expected}");
    }
}

#[test]
fn faults_of_descriptions_name_the_line_and_the_field() {
    for (from, to, line, field) in [
        ("version=\"2.0\"", "version=\"1.0\"", 3, "topology: version"),
        ("local_memory=\"64000000000\"", "local_memory=\"-1\"", 6, "object: local_memory"),
        ("os_index=\"0\" cpuset=\"0x0000000f\" local", "cpuset=\"0x0000000f\" local", 6, "object: os_index"),
        ("cpuset=\"0x0000000f\" local", "cpuset=\"0xz\" local", 6, "object: cpuset"),
        ("count=\"1024\"", "count=\"9999999\"", 8, "page_type: count"),
        ("10 21 21 10", "10 21 x 10", 23, "u64values"),
        (
            "<object type=\"PU\" os_index=\"7\"/>",
            "<object type=\"PU\" os_index=\"6\"/>",
            18,
            "object: os_index",
        ),
        (
            "<object type=\"PU\" os_index=\"7\"/>",
            "<object type=\"PU\" os_index=\"8192\"/>",
            18,
            "object: os_index",
        ),
        ("</topology>", "", 26, ""),
    ] {
        let fault = lstopo::parse(&LSTOPO.replacen(from, to, 1), "h").unwrap_err();
        assert_eq!((fault.line, &*fault.field), (Some(line), field), "{to}: {fault:?}");
    }
    for (text, line, field) in [
        ("0,0,0,0\n0,0,0,0\n", 2, "CPU"),
        ("0,x,0,0\n", 1, "Core"),
        ("# c\n0 0 0 0\n", 2, ""),
        ("0,0,0,-\n", 1, "Node"),
        ("8192,0,0,0\n", 1, "CPU"),
    ] {
        let fault = lscpu::parse(text, "h", 1024).unwrap_err();
        assert_eq!((fault.line, &*fault.field), (Some(line), field), "{text}: {fault:?}");
    }
    assert!(lscpu::parse("", "h", 1024).is_err());
}

#[test]
fn many_attributes_take_no_quadratic_time() {
    let attributes: String = (0..200_000).map(|at| format!(" a{at}='1'")).collect();
    let began = Instant::now();
    lstopo::parse(&format!("<topology version='2.0'{attributes}/>"), "h").unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let fault = lstopo::parse("<topology version='2.0' a='1' a='2'/>", "h").unwrap_err();
    assert_eq!((&*fault.field, &*fault.problem), ("topology: a", "is given twice"));
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,300}") {
        let _ = (fleet(&text), lstopo::parse(&text, "h"), lscpu::parse(&text, "h", 1));
    }

    /// A valid file with a few bytes replaced.
    #[test]
    fn damaged_files_are_parsed_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), "[\"<>/0-9a-z,.=]"), 1..6),
    ) {
        for whole in [LSTOPO, LSCPU] {
            let mut text = whole.to_string();
            for (at, with) in &changes {
                let at = at.index(text.len());
                text.replace_range(at..=at, with);
            }
            for parsed in [lstopo::parse(&text, "h"), lscpu::parse(&text, "h", 1)].into_iter().flatten() {
                prop_assert_eq!(parsed.check(), Ok(()));
            }
        }
    }

    #[test]
    fn any_table_of_cpus_has_all_of_them_on_its_nodes(nodes in prop::collection::vec(0u32..70, 0..80)) {
        let rows = (0..).zip(&nodes).map(|(cpu, node)| format!("{cpu},{},{node},{node}\n", cpu / 2));
        if let Ok(host) = lscpu::parse(&rows.collect::<String>(), "h", 64) {
            prop_assert_eq!(host.cpu_count(), nodes.len());
        }
    }
}
