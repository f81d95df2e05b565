//! Discovery from recorded and synthetic trees, mainly unusual ones.

use super::*;
use proptest::prelude::*;
use std::path::Path;

/// Creates a tree of files from pairs of path and text.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn cpu(files: &mut Vec<(String, String)>, id: u32, package: &str, siblings: &str) {
    let topology = format!("sys/devices/system/cpu/cpu{id}/topology");
    files.push((format!("{topology}/physical_package_id"), package.into()));
    files.push((format!("{topology}/core_cpus_list"), siblings.into()));
}

fn cache(files: &mut Vec<(String, String)>, cpu: u32, index: u32, facts: [&str; 5]) {
    let base = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
    for (name, fact) in
        ["level", "type", "size", "ways_of_associativity", "shared_cpu_list"].iter().zip(facts)
    {
        files.push((format!("{base}/{name}"), fact.into()));
    }
}

fn describe_files(files: &[(String, String)]) -> MachineFile {
    let files: Vec<_> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    let folder = tree(&files);
    accepted(folder.path())
}

/// Describes a tree and asserts that `check` accepts the description.
fn accepted(root: &Path) -> MachineFile {
    let file = discover(&Sysfs::recorded(root)).unwrap();
    let checked = check("discovered", &file.to_toml());
    assert_eq!(checked.report.errors(), 0, "{}\n{}", checked.report.render(100, false), file.to_toml());
    file
}

#[test]
fn two_sockets_with_two_threads_a_core_and_an_odd_l3_are_described() {
    let mut files = vec![
        ("sys/devices/system/cpu/online".into(), "0-7\n".into()),
        ("sys/devices/system/node/node0/cpulist".into(), "0-1,4-5".into()),
        ("sys/devices/system/node/node1/cpulist".into(), "2-3,6-7".into()),
        ("sys/devices/system/node/node0/distance".into(), "10 21".into()),
        ("sys/devices/system/node/node1/distance".into(), "21 10".into()),
        ("sys/devices/system/node/node1/meminfo".into(), "Node 1 MemTotal:  16384 kB".into()),
    ];
    for id in 0..8u32 {
        let core = id % 4;
        let pair = format!("{core},{}", core + 4);
        let socket = if core < 2 { "0-1,4-5" } else { "2-3,6-7" };
        cpu(&mut files, id, if core < 2 { "0" } else { "1" }, &pair);
        cache(&mut files, id, 0, ["1", "Data", "48K", "12", &pair]);
        cache(&mut files, id, 1, ["1", "Instruction", "32K", "8", &pair]);
        cache(&mut files, id, 2, ["3", "Unified", "307200K", "20", socket]);
    }
    let file = describe_files(&files);
    let host = &file.hosts[0];
    assert_eq!(host.chips.len(), 2);
    assert_eq!(file.cores["core"].threads, 2);
    assert_eq!(file.caches["l1d"].next.to_string(), "l3");
    assert_eq!(file.caches["l3"].index, CacheIndex::Hashed);
    let node = &file.chips["socket1"].nodes[0];
    assert_eq!((node.clusters[0].cores, node.clusters[0].cpus.as_deref()), (2, Some("2-3,6-7")));
    assert_eq!(node.caches[0].to_string(), "l3");
    assert_eq!(host.distances.as_ref().unwrap().slit.as_ref().unwrap().rows, [[10, 21], [21, 10]]);
}

#[test]
fn a_hybrid_processor_has_two_types_of_cores_and_clusters_that_share_an_l2() {
    let mut files = vec![
        ("sys/devices/system/cpu/online".into(), "0-5".into()),
        ("sys/devices/cpu_core/cpus".into(), "0-1".into()),
        ("sys/devices/cpu_atom/cpus".into(), "2-5".into()),
    ];
    for id in 0..6u32 {
        cpu(&mut files, id, "0", if id < 2 { "0-1" } else { ["2", "3", "4", "5"][id as usize - 2] });
        let sharers = if id < 2 { "0-1".to_string() } else { id.to_string() };
        cache(&mut files, id, 0, ["1", "Data", "32K", "8", &sharers]);
        cache(&mut files, id, 1, ["1", "Instruction", "64K", "8", &sharers]);
        cache(&mut files, id, 2, ["2", "Unified", "2048K", "16", if id < 2 { "0-1" } else { "2-5" }]);
        cache(&mut files, id, 3, ["3", "Unified", "24576K", "12", "0-5"]);
    }
    let file = describe_files(&files);
    assert_eq!(file.cores.keys().collect::<Vec<_>>(), ["efficiency", "performance"]);
    let node = &file.chips["socket0"].nodes[0];
    let atoms = node.clusters.iter().find(|c| &*c.core == "efficiency").unwrap();
    assert_eq!((atoms.cores, atoms.caches.len()), (4, 1));
    assert_eq!(node.caches[0].to_string(), "l3");
}

#[test]
fn a_container_that_only_exposes_a_cpu_list_is_described() {
    let folder = tree(&[("sys/devices/system/cpu/online", "0-2")]);
    let file = accepted(folder.path());
    assert_eq!(file.chips["socket0"].nodes[0].clusters[0].cores, 3);
    assert!(file.caches.is_empty());
    assert_eq!(file.sources["guess"].kind, SourceKind::Estimate);
}

#[test]
fn offline_cpus_negative_packages_and_memory_only_nodes_are_handled() {
    let mut files = vec![
        ("sys/devices/system/cpu/online".into(), "0,2".into()),
        ("sys/devices/system/cpu/offline".into(), "1,3".into()),
        ("sys/devices/system/node/node0/cpulist".into(), "0-3".into()),
        ("sys/devices/system/node/node1/cpulist".into(), "".into()),
        ("sys/devices/system/node/node1/meminfo".into(), "Node 1 MemTotal: 4096 kB".into()),
        ("sys/devices/system/node/node0/distance".into(), "10 14".into()),
        ("sys/devices/system/node/node1/distance".into(), "14 12".into()),
    ];
    for id in [0, 2] {
        cpu(&mut files, id, "-1", "0-3");
        cache(&mut files, id, 0, ["1", "Unified", "100K", "0", "0-3"]);
    }
    let file = describe_files(&files);
    assert_eq!(file.cores["core"].threads, 2);
    assert!(file.hosts[0].distances.is_none());
    let notes = file.description.unwrap();
    assert!(notes.contains("CPUs 1,3 are offline") && notes.contains("no CPU"), "{notes}");
}

#[test]
fn inconsistent_caches_are_omitted() {
    let mut files = vec![("sys/devices/system/cpu/online".into(), "0".into())];
    cache(&mut files, 0, 0, ["2", "Unified", "256K", "8", "0"]);
    let file = describe_files(&files);
    assert!(file.caches.is_empty());
    assert!(file.description.unwrap().contains("caches omitted"));
}

#[test]
fn a_tree_without_cpus_is_an_error_with_its_path() {
    let folder = tree(&[("proc/meminfo", "")]);
    let error = discover(&Sysfs::recorded(folder.path())).unwrap_err();
    assert!(error.to_string().contains("/sys/devices/system/cpu"), "{error}");
}

#[test]
fn this_host_is_described_and_accepted() {
    let file = discover(&Sysfs::live()).unwrap();
    assert_eq!(check("discovered", &file.to_toml()).report.errors(), 0);
}

#[test]
fn nics_and_disks_are_found_and_loop_devices_are_not() {
    let files = [
        ("sys/devices/system/cpu/online", "0"),
        ("sys/class/net/eth0/device/numa_node", "-1"),
        ("sys/class/net/eth0/speed", "25000"),
        ("sys/class/net/eth0/mtu", "9000"),
        ("sys/class/net/lo/mtu", "65536"),
        ("sys/block/loop0/size", "100"),
        ("sys/block/nvme0n1/size", "2097152"),
        ("sys/block/nvme0n1/queue/zoned", "host-managed"),
        ("sys/block/nvme0n1/queue/chunk_sectors", "4096"),
        ("sys/block/nvme0n1/queue/nr_zones", "512"),
    ];
    let folder = tree(&files);
    let file = accepted(folder.path());
    let names: Vec<_> = file.hosts[0].devices.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["eth0", "nvme0n1"]);
    assert_eq!(file.devices["disk1"].zoned.as_ref().unwrap().zones, 512);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_tree_makes_discovery_panic(
        online in "[0-9,-]{0,8}",
        topology in prop::collection::vec(("[0-3]", "[0-9,-]{0,6}", "-?[0-9]{0,3}"), 0..4),
        caches in prop::collection::vec(("[0-3]", "[0-4]", "(Data|Instruction|Unified|Odd)", "[0-9]{0,6}[KM]?", "[0-9]{0,3}", "[0-9,-]{0,6}"), 0..6),
        nodes in prop::collection::vec(("[0-9,-]{0,6}", "[0-9 ]{0,8}"), 0..3),
    ) {
        let mut files = vec![("sys/devices/system/cpu/online".to_string(), online)];
        for (id, siblings, package) in topology {
            cpu(&mut files, id.parse().unwrap(), &package, &siblings);
        }
        for (index, (id, level, kind, size, ways, shared)) in caches.iter().enumerate() {
            cache(&mut files, id.parse().unwrap(), index as u32, [level, kind, size, ways, shared]);
        }
        for (id, (cpus, distances)) in nodes.iter().enumerate() {
            files.push((format!("sys/devices/system/node/node{id}/cpulist"), cpus.clone()));
            files.push((format!("sys/devices/system/node/node{id}/distance"), distances.clone()));
        }
        let files: Vec<_> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        let folder = tree(&files);
        if let Ok(file) = discover(&Sysfs::recorded(folder.path())) {
            prop_assert_eq!(check("discovered", &file.to_toml()).report.errors(), 0);
        }
    }
}

fn one_cpu_of(vendor: &str, family: u32, model: u32) -> MachineFile {
    let info = format!(
        "processor : 0\nvendor_id : {vendor}\ncpu family : {family}\nmodel : {model}\nmodel name : X\ncpu MHz : 2100.000\nflags : lm\n"
    );
    let mut files = vec![("sys/devices/system/cpu/online".into(), "0".into()), ("proc/cpuinfo".into(), info)];
    cache(&mut files, 0, 0, ["1", "Data", "48K", "12", "0"]);
    cache(&mut files, 0, 1, ["1", "Instruction", "32K", "8", "0"]);
    cache(&mut files, 0, 2, ["2", "Unified", "2048K", "16", "0"]);
    describe_files(&files)
}

#[test]
fn a_known_processors_core_and_caches_are_completed_and_their_sources_cited() {
    let file = one_cpu_of("GenuineIntel", 6, 207);
    let core = &file.cores["core"];
    assert_eq!((core.rob_entries, core.clock), (Some(512), Frequency::new(2_100_000_000)));
    assert_eq!(core.isa, Isa::X86_64);
    assert_eq!(file.caches["l2"].mshrs, Some(48));
    assert_eq!(core.source_of["rob_entries"], Cited::one("golden-cove-manual"));
    // The memory latency must be measured: a description without it gives a warning.
    let report = check("discovered", &file.to_toml()).report;
    let all: Vec<_> = report.problems().iter().map(|p| (p.level, &*p.message)).collect();
    let unmeasured = "memory `memory` has no `latency`: models use a default";
    assert_eq!(all, [(crate::Level::Warning, unmeasured)]);
}

#[test]
fn an_unknown_processor_gets_a_generic_core_marked_as_an_estimate() {
    let file = one_cpu_of("CentaurHauls", 7, 59);
    let core = &file.cores["core"];
    let source = &file.sources[&*core.source_of["rob_entries"].0[0]];
    assert_eq!(source.kind, SourceKind::Estimate);
    assert!(file.description.unwrap().contains("CentaurHauls family 7 model 59"));
}
