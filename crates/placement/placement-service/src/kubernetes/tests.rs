//! The extender with requests as kube-scheduler 1.31 encodes them (`recorded/`, written by a Go program with the types of
//! k8s.io/api and k8s.io/kube-scheduler), and the labels that it reads.

use super::*;
use longma_cpu_set::CpuSet;
use longma_placement::Host;
use longma_topology::Machine;
use proptest::prelude::*;
use serde_json::{Value, json};

const GUARANTEED: &str = include_str!("recorded/guaranteed.json");
const HUGE_PAGES: &str = include_str!("recorded/huge-pages.json");
const FRACTION: &str = include_str!("recorded/fraction.json");
const NAMES: &str = include_str!("recorded/names.json");

fn filtered(body: &str) -> Value {
    serde_json::from_str(&filter(body.as_bytes()).unwrap()).unwrap()
}

fn kept(answer: &Value) -> Vec<&str> {
    answer["Nodes"]["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n["metadata"]["name"].as_str().unwrap())
        .collect()
}

fn scores(body: &str) -> Vec<(String, i64)> {
    let answer: Vec<Value> = serde_json::from_str(&prioritize(body.as_bytes()).unwrap()).unwrap();
    let score = |s: &Value| (s["Host"].as_str().unwrap().to_string(), s["Score"].as_i64().unwrap());
    answer.iter().map(score).collect()
}

#[test]
fn a_pod_is_kept_off_nodes_without_a_numa_node_for_it() {
    let answer = filtered(GUARANTEED);
    assert_eq!(kept(&answer), ["empty", "half", "unlabelled"]);
    assert_eq!(answer["Error"], "");
    let failed = answer["FailedNodes"].as_object().unwrap();
    let reason = |node: &str| failed[node].as_str().unwrap();
    // Six CPUs are free, but on two NUMA nodes.
    assert!(
        reason("split").contains("no NUMA node has 4") && reason("split").contains("has 3"),
        "{failed:?}"
    );
    assert!(reason("little-memory").contains("2048"), "{failed:?}");
    // kube-scheduler continues with the nodes of the answer, so they are complete.
    let sent: Value = serde_json::from_str(GUARANTEED).unwrap();
    assert_eq!(answer["Nodes"]["items"][1], sent["Nodes"]["items"][3]);
}

/// The recorded request with these labels at its first node.
fn with_labels(labels: &[(&str, &str)]) -> Value {
    let mut args: Value = serde_json::from_str(GUARANTEED).unwrap();
    for (key, value) in labels {
        args["Nodes"]["items"][0]["metadata"]["labels"][format!("{PREFIX}{key}")] = json!(value);
    }
    args
}

#[test]
fn a_pod_may_take_the_last_free_cpu() {
    let answer = filtered(&with_labels(&[("node-0.free-cpus", "4"), ("node-1.free-cpus", "0")]).to_string());
    assert_eq!(kept(&answer), ["empty", "half", "unlabelled"]);
    let answer = filtered(&with_labels(&[("node-0.free-cpus", "3"), ("node-1.free-cpus", "0")]).to_string());
    let why = answer["FailedNodes"]["empty"].as_str().unwrap();
    assert!(why.contains("no NUMA node has 4") && why.contains("NUMA node 0 has 3"), "{why}");
}

#[test]
fn scores_are_from_0_to_10_and_fuller_nodes_come_first() {
    let scores = scores(GUARANTEED);
    let of = |node: &str| scores.iter().find(|s| s.0 == node).unwrap().1;
    assert_eq!(scores.len(), 5);
    assert!(of("half") > 0 && of("empty") > 0 && of("half") <= 10, "{scores:?}");
    assert!(of("half") >= of("empty"), "a node in use is filled before an empty one: {scores:?}");
    assert_eq!((of("split"), of("unlabelled")), (0, 0));
}

#[test]
fn huge_and_ordinary_pages_come_from_the_same_numa_node() {
    let answer = filtered(HUGE_PAGES);
    // "little-memory" has huge pages on one NUMA node with a GiB of memory, which the pod needs too.
    assert_eq!(kept(&answer), ["empty", "little-memory", "half", "unlabelled"]);
    let more = HUGE_PAGES.replace("\"memory\":\"1Gi\"", "\"memory\":\"2Gi\"");
    assert_eq!(kept(&filtered(&more)), ["empty", "half", "unlabelled"]);
}

#[test]
fn pods_that_the_kubelet_does_not_align_run_anywhere() {
    let answer = filtered(FRACTION);
    assert_eq!(kept(&answer).len(), 5);
    assert!(scores(FRACTION).iter().all(|(_, score)| *score == 0));
}

#[test]
fn malformed_requests_are_refused_with_the_place() {
    let refused = |body: &str| filter(body.as_bytes()).unwrap_err();
    assert!(refused(NAMES).contains("nodeCacheCapable"), "{}", refused(NAMES));
    assert!(refused("{}").contains("Pod"));
    assert!(refused("").contains("EOF"));
    assert!(refused(&GUARANTEED.replace("\"4Gi\"", "\"4Gb\"")).contains("4Gb"));
    let args = |items: Value| json!({ "Pod": {}, "Nodes": { "items": items } }).to_string();
    assert!(refused(&args(json!([{ "metadata": {} }]))).contains("Nodes.items[0]"));
    assert!(refused(&args(json!([7]))).contains("Nodes.items[0]"));
    assert!(refused(&args(Value::Array(vec![json!(0); 10_001]))).contains("at most 10000"));
    // Earlier releases of Kubernetes spell the keys in lower case.
    let early = GUARANTEED.replace("\"Pod\":", "\"pod\":").replace("\"Nodes\":", "\"nodes\":");
    assert_eq!(filtered(&early), filtered(GUARANTEED));
}

#[test]
fn wrong_labels_keep_pods_off_and_say_which() {
    let with = |key: &str, value: &str| {
        let answer = filtered(&with_labels(&[(key, value)]).to_string());
        answer["FailedNodes"]["empty"].as_str().map(str::to_string)
    };
    for (key, value) in [
        ("node-0.free-cpus", "many"),
        ("node-0.free-cpus", "513"),
        ("node-0.free-cpus", "-1"),
        ("node-x.free-cpus", "1"),
        ("node-7.free-cpus", "1"),
        ("node-0.free-mib-3", "1"),
        ("nodes", "two"),
        ("nodes", "4"),
        ("node-0.free-cpus", "\u{1b}[2J"),
    ] {
        let why = with(key, value).unwrap_or_else(|| panic!("{key}={value} was accepted"));
        assert!(why.contains("labels are wrong") && !why.contains('\u{1b}') && why.len() < 400, "{why}");
    }
    assert_eq!(with("some-later-label", "x"), None);
}

fn hygon() -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), "worker-1").unwrap().with_first_core_reserved()
}

/// Checkpoints as the kubelet of Kubernetes 1.31 writes them, shortened to two NUMA nodes.
const CPU_MANAGER: &str = r#"{"policyName":"static","defaultCpuSet":"0,3-127","entries":{"6a5f6f2e-6d3f":{"db":"1-2"}},"checksum":2957219352}"#;
const MEMORY_MANAGER: &str = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"hugepages-1Gi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":34359738368,"systemReserved":1073741824,"allocatable":33285996544,"reserved":4294967296,"free":28991029248}},"cells":[0]},"1":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":34359738368,"systemReserved":0,"allocatable":34359738368,"reserved":0,"free":34359738368}},"cells":[1]}},"entries":{},"checksum":1437382101}"#;

#[test]
fn labels_describe_what_the_kubelet_has_not_given_away() {
    let used = KubeletUse::parse(Some(CPU_MANAGER), Some(MEMORY_MANAGER)).unwrap();
    assert_eq!(used.cpus, "1-2".parse::<CpuSet>().unwrap());
    let made = labels(&hygon(), &used);
    let label = |key: &str| made[&format!("{PREFIX}{key}")].as_str();
    assert_eq!((label("nodes"), label("node-0.cpus"), label("node-0.free-cpus")), ("8", "14", "12"));
    assert_eq!((label("node-1.free-cpus"), label("node-0.threads")), ("16", "2"));
    assert_eq!((label("node-0.mib-4"), label("node-0.free-mib-4")), ("32768", "27648"));
    assert_eq!((label("most-free-cpus"), label("most-free-mib")), ("16", "32768"));
    for (key, value) in &made {
        let name = key.strip_prefix(PREFIX).unwrap();
        assert!(name.len() <= 63 && name.ends_with(|c: char| c.is_ascii_alphanumeric()), "{key}");
        assert!(value.bytes().all(|b| b.is_ascii_digit()), "{key}={value}");
    }
    // Without checkpoints, everything is free. Written labels can be read.
    let free = labels::free_host("n0", &labels(&hygon(), &KubeletUse::default())).unwrap().unwrap();
    // Another CPU is reserved for the kubelet.
    assert_eq!((free.nodes.len(), free.cpu_count(), free.reserved.len()), (8, 127, 1));
    let rest = labels::free_host("n0", &made).unwrap().unwrap();
    assert_eq!((rest.cpu_count(), rest.nodes[0].memory[0].mib), (125, 27_648));
    let wrong = KubeletUse::parse(Some(r#"{"entries":{"a":{"b":"1-x"}}}"#), None).unwrap_err();
    assert!(wrong.contains("cpu_manager_state") && wrong.contains("1-x"), "{wrong}");
    assert!(KubeletUse::parse(None, Some("7")).unwrap_err().contains("memory_manager_state"));
    assert_eq!(
        KubeletUse::parse(Some(r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#), None),
        Ok(KubeletUse::default())
    );
}

proptest! {
    #[test]
    fn no_labels_and_no_bytes_are_a_panic(
        labels in prop::collection::btree_map("longma-placement/(nodes|node-[0-9]{1,3}\\.(free-cpus|threads|free-mib-[0-9]{1,5}))", "[0-9]{0,12}", 0..12),
        noise in ".{0,40}",
    ) {
        let node = json!({ "metadata": { "name": "n", "labels": labels } });
        let mut args: Value = serde_json::from_str(GUARANTEED).unwrap();
        args["Nodes"]["items"] = json!([node]);
        let text = args.to_string();
        prop_assert!(filter(text.as_bytes()).is_ok() && prioritize(text.as_bytes()).is_ok());
        let _ = filter(noise.as_bytes());
        let _ = KubeletUse::parse(Some(&noise), Some(&noise));
    }
}
