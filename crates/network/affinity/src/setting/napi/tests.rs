//! Tests of `setting::napi`.

use super::*;
use crate::fake::FakeHost;
use crate::setting::Setting;

fn values(timeout: u64) -> NapiValues {
    NapiValues {
        defer_hard_irqs: Some(timeout as u32 / 10),
        gro_flush_timeout: Some(timeout),
        irq_suspend_timeout: Some(0),
        threaded: Some(0),
    }
}

fn instance(id: u32, thread: Option<u32>, timeout: u64) -> NapiInstance {
    NapiInstance { id, thread, values: values(timeout) }
}

/// A line of /proc/N/stat of a thread with a nice value, a real-time priority and a policy.
fn stat(nice: i32, priority: u32, policy: u32) -> String {
    let mut fields = vec!["0".to_string(); 52];
    fields[1] = "(napi/eth0-8193)".into();
    fields[18] = nice.to_string();
    fields[39] = priority.to_string();
    fields[40] = policy.to_string();
    fields.join(" ")
}

fn put_thread(host: &FakeHost, thread: u32, id: u32, cpus: &str, stat: &str) {
    host.put(&format!("proc/{thread}/comm"), &format!("napi/eth0-{id}\n"));
    host.put(&format!("proc/{thread}/stat"), stat);
    host.put_thread(thread, cpus.parse().unwrap());
}

fn setting() -> Setting {
    Setting::Napi("eth0".parse().unwrap())
}

#[test]
fn instances_and_threads_that_are_made_anew_get_the_values_of_the_old_ones_in_order() {
    let host = FakeHost::default();
    host.put_napi(vec![instance(8194, Some(71), 20), instance(8193, Some(70), 10)]);
    put_thread(&host, 70, 8193, "3", &stat(0, 50, 1));
    put_thread(&host, 71, 8194, "5-6", &stat(-5, 0, 0));
    let before = setting().read(&host).unwrap();
    host.put_napi(vec![instance(9000, Some(80), 0), instance(9001, Some(81), 0)]);
    for (thread, id) in [(80, 9000), (81, 9001)] {
        put_thread(&host, thread, id, "0-7", &stat(0, 0, 0));
    }
    assert!(!setting().means_same(&setting().read(&host).unwrap(), &before));
    setting().write(&host, &before).unwrap();
    let now = setting().read(&host).unwrap();
    assert!(setting().means_same(&now, &before), "{now}");
    assert_eq!(host.napi("eth0").unwrap(), [instance(9000, Some(80), 10), instance(9001, Some(81), 20)]);
    let cpus = [80, 81].map(|thread| host.thread_cpus(thread).unwrap().to_string());
    assert_eq!(cpus, ["3", "5-6"]);
    let schedules = [80, 81].map(|thread| threads::schedule(&host, thread).unwrap());
    assert_eq!(schedules[0], Schedule { policy: 1, priority: 50, nice: 0 });
    assert_eq!(schedules[1], Schedule { policy: 0, priority: 0, nice: -5 });
}

#[test]
fn an_instance_keeps_its_own_values_if_only_others_are_made_anew() {
    let host = FakeHost::default();
    host.put_napi(vec![instance(1, None, 10), instance(2, None, 20), instance(3, None, 30)]);
    let before = setting().read(&host).unwrap();
    host.put_napi(vec![instance(2, None, 0), instance(3, None, 0), instance(9, None, 0)]);
    setting().write(&host, &before).unwrap();
    assert_eq!(
        host.napi("eth0").unwrap(),
        [instance(2, None, 20), instance(3, None, 30), instance(9, None, 10)]
    );
    host.put_napi(vec![instance(2, None, 0)]);
    assert!(setting().write(&host, &before).unwrap_err().to_string().contains("but 3 are recorded"));
}

#[test]
fn a_kernel_that_lists_no_instances_shows_their_threads() {
    let host = FakeHost::default();
    assert_eq!(setting().read(&host).unwrap_err().kind(), io::ErrorKind::NotFound);
    put_thread(&host, 70, 8193, "3", &stat(0, 0, 0));
    // The thread of another interface, and another program.
    host.put("proc/71/comm", "napi/eth01-1");
    host.put("proc/72/comm", "iperf3");
    let before = setting().read(&host).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Recorded>>(&before).unwrap().len(), 1);
    host.put_thread(70, "0-7".parse().unwrap());
    setting().write(&host, &before).unwrap();
    assert_eq!(host.thread_cpus(70).unwrap().to_string(), "3");
}

#[test]
fn a_number_that_belongs_to_another_thread_here_is_left_alone() {
    let host = FakeHost::default();
    host.put_napi(vec![instance(1, Some(70), 10)]);
    host.put("proc/70/comm", "iperf3");
    let before = setting().read(&host).unwrap();
    assert!(!before.contains("thread\":{"), "{before}");
    host.put_napi(vec![instance(1, Some(70), 0)]);
    setting().write(&host, &before).unwrap();
    assert_eq!(host.napi("eth0").unwrap(), [instance(1, Some(70), 10)]);
}

#[test]
fn suspend_timeouts_that_differ_are_restored_one_by_one() {
    let host = FakeHost::default();
    let timeout = Setting::IrqSuspendTimeout("eth0".parse().unwrap());
    assert!(timeout.read(&host).is_err());
    let with = |id, timeout| NapiInstance {
        values: NapiValues { irq_suspend_timeout: Some(timeout), ..values(1) },
        ..instance(id, None, 1)
    };
    host.put_napi(vec![with(1, 5), with(2, 7)]);
    assert_eq!(timeout.read(&host).unwrap(), "5,7");
    timeout.write(&host, "20000").unwrap();
    assert_eq!(timeout.read(&host).unwrap(), "20000");
    timeout.write(&host, "5,7").unwrap();
    assert_eq!(host.napi("eth0").unwrap(), [with(1, 5), with(2, 7)]);
    assert!(timeout.write(&host, "1,2,3").is_err() && timeout.write(&host, "x").is_err());
    host.put_napi(vec![NapiInstance { id: 1, thread: None, values: NapiValues::default() }]);
    let words = timeout.read(&host).unwrap_err().to_string();
    assert!(words.contains("the kernel does not report its timeout"), "{words}");
}
