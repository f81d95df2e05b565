//! Tests of `threads`.

use super::*;
use crate::fake::FakeHost;

#[test]
fn a_thread_with_any_name_is_read() {
    let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
    let host = FakeHost::with(&[("proc/7/task/8/stat", &format!("8 (a) b (c) S {}", fields.join(" ")))]);
    let stat = stat(&host, 7, 8).unwrap();
    assert_eq!((stat.name.as_str(), stat.ticks, stat.started, stat.cpu), ("a) b (c", 14 + 15, 22, 39));
    assert_eq!(super::stat(&host, 7, 9), None);
    host.put("proc/7/task/8/stat", "8 (a) S 1 2");
    assert_eq!(super::stat(&host, 7, 8), None);
}

#[test]
fn a_reader_is_identified_by_the_descriptor_it_waits_for() {
    let read = TRANSFERS[0];
    let host = FakeHost::with(&[
        ("proc/7/task/7/syscall", "running"),
        ("proc/7/task/8/syscall", &format!("{read} 0x5 0x7f00 0x1000 0x0 0x0 0x0 0x7ffe 0x7f11")),
        ("proc/7/task/9/syscall", "9999 0x5 0x0"),
        ("proc/7/task/8/children", "11 12"),
    ]);
    let waits: Vec<Option<u32>> = [7, 8, 9, 10].map(|thread| waits_for(&host, 7, thread)).into();
    assert_eq!(waits, [None, Some(5), None, None]);
    assert_eq!((of_process(&host, 7), children(&host, 7)), (vec![7, 8, 9], vec![11, 12]));
}

#[test]
fn only_an_existing_cpuset_restricts_the_allowed_cpus() {
    let online: CpuSet = "0-7".parse().unwrap();
    let host = FakeHost::with(&[
        ("proc/7/cgroup", "0::/a/b"),
        ("sys/fs/cgroup/a/cpuset.cpus.effective", "2-9"),
        ("proc/8/cgroup", "3:cpu,cpuset:/x\n0::/"),
        ("sys/fs/cgroup/cpuset/x/cpuset.effective_cpus", "1"),
    ]);
    let open = |process| open_to(&host, process, &online).to_string();
    assert_eq!((open(7).as_str(), open(8).as_str(), open(9).as_str()), ("2-7", "1", "0-7"));
}
