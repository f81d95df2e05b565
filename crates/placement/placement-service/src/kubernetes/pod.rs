//! The resources of one NUMA node that a pod needs.
//!
//! Source: Kubernetes' manual, "Configure Quality of Service for Pods", "Control CPU Management Policies on the Node"
//! (the static policy), "Sidecar Containers" (resources of a pod).

use super::api::{Container, Pod};
use super::quantity::thousandths;
use std::collections::BTreeMap;

/// Name of the resource of huge pages, without their size.
const HUGE_PAGES: &str = "hugepages-";

/// Requests of a pod by resource: CPUs in thousandths, memory in thousandths of a byte.
type Resources = BTreeMap<String, u64>;

/// The needs of a pod whose CPUs and memory the kubelet takes from one NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodNeed {
    /// CPUs that no other pod uses.
    pub cpus: u32,
    /// Memory in ordinary pages, MiB.
    pub memory_mib: u64,
    /// Page size in KiB and amount of memory in MiB in huge pages.
    pub huge_pages: Option<(u32, u64)>,
}

/// Reads the needs of a pod. `Ok(None)` means that the kubelet does not align the pod: it is not of the class
/// Guaranteed, or a container requests a fraction of a CPU.
pub(super) fn need(pod: &Pod) -> Result<Option<PodNeed>, String> {
    let spec = &pod.spec;
    let all = || spec.init_containers.iter().chain(&spec.containers);
    for container in all() {
        for (resource, text) in container.resources.requests.iter().chain(&container.resources.limits) {
            if thousandths(text).is_none() {
                let text: String = text.chars().take(80).collect();
                return Err(format!("the pod's {resource:?}: {text:?} is not a quantity"));
            }
        }
    }
    if !all().all(has_whole_cpus) || spec.containers.is_empty() {
        return Ok(None);
    }
    let total = total_requests(pod).ok_or("the pod's requests add up to too much")?;
    let mut huge = total.iter().filter_map(|(name, bytes)| Some((name.strip_prefix(HUGE_PAGES)?, *bytes)));
    let huge_pages = huge.next();
    if huge.next().is_some() {
        return Err(
            "the pod asks for huge pages of several sizes, which the extender does not support".into()
        );
    }
    let huge_pages = huge_pages.map(|(size, bytes)| {
        let page_kib = thousandths(size).map(|size| size / 1000 / 1024);
        let page_kib = page_kib.and_then(|kib| u32::try_from(kib).ok()).filter(|kib| kib.is_power_of_two());
        Ok((page_kib.ok_or_else(|| format!("{HUGE_PAGES}{size:.40} is not a page size"))?, mib(bytes)))
    });
    let amount = |name: &str| total.get(name).copied().unwrap_or(0);
    let cpus = u32::try_from(amount("cpu") / 1000).map_err(|_| "the pod asks for too many CPUs")?;
    let huge_pages = huge_pages.transpose().map_err(|e: String| e)?.filter(|(_, mib)| *mib > 0);
    Ok(Some(PodNeed { cpus, memory_mib: mib(amount("memory")), huge_pages }))
}

/// MiB of thousandths of a byte, rounded up.
fn mib(thousandths: u64) -> u64 {
    thousandths.div_ceil(1000 << 20)
}

/// Whether a container has limits equal to its requests (the API server copies missing requests from the limits) and
/// whole CPUs.
fn has_whole_cpus(container: &Container) -> bool {
    let resources = &container.resources;
    let equal = |name: &str| {
        let limit = resources.limits.get(name).and_then(|text| thousandths(text)).filter(|limit| *limit > 0);
        let request = resources.requests.get(name).map_or(limit, |text| thousandths(text));
        limit.filter(|_| limit == request)
    };
    equal("memory").is_some() && equal("cpu").is_some_and(|cpus| cpus % 1000 == 0)
}

/// The largest requests of a pod at any time: a sidecar runs together with all containers that start after it, other
/// init containers run one at a time.
fn total_requests(pod: &Pod) -> Option<Resources> {
    let (mut most, mut running) = (Resources::new(), Resources::new());
    for container in &pod.spec.init_containers {
        let own = requests(container);
        let along = sum(&running, &own)?;
        if container.restart_policy.as_deref() == Some("Always") {
            running = along.clone();
        }
        raise(&mut most, along);
    }
    for container in &pod.spec.containers {
        running = sum(&running, &requests(container))?;
    }
    raise(&mut most, running);
    Some(most)
}

fn requests(container: &Container) -> Resources {
    let resources = &container.resources;
    let all = resources.limits.iter().chain(&resources.requests);
    all.filter_map(|(name, text)| Some((name.clone(), thousandths(text)?))).collect()
}

fn sum(a: &Resources, b: &Resources) -> Option<Resources> {
    let mut all = a.clone();
    for (name, amount) in b {
        let total = all.entry(name.clone()).or_default();
        *total = total.checked_add(*amount)?;
    }
    Some(all)
}

fn raise(most: &mut Resources, other: Resources) {
    for (name, amount) in other {
        let known = most.entry(name).or_default();
        *known = amount.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(spec: Value) -> Result<Option<PodNeed>, String> {
        need(&serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap())
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({ "name": "c", "resources": { "limits": { "cpu": cpu, "memory": memory } } })
    }

    #[test]
    fn only_pods_with_whole_cpus_and_equal_limits_are_aligned() {
        let whole = PodNeed { cpus: 4, memory_mib: 2048, huge_pages: None };
        assert_eq!(of(json!({ "containers": [container("4", "2Gi")] })), Ok(Some(whole.clone())));
        assert_eq!(
            of(json!({ "containers": [container("3", "1Gi"), container("1", "1Gi")] })),
            Ok(Some(whole))
        );
        for other in [
            json!({ "containers": [] }),
            json!({ "containers": [{ "name": "c" }] }),
            json!({ "containers": [container("1500m", "1Gi")] }),
            json!({ "containers": [container("4", "2Gi"), container("500m", "1Gi")] }),
            json!({ "containers": [{ "resources": { "limits": { "cpu": "4", "memory": "2Gi" }, "requests": { "cpu": "2" } } }] }),
            json!({ "containers": [{ "resources": { "requests": { "cpu": "4", "memory": "2Gi" } } }] }),
        ] {
            assert_eq!(of(other.clone()), Ok(None), "{other}");
        }
    }

    #[test]
    fn init_containers_count_by_the_largest_and_sidecars_along_with_the_rest() {
        let mut sidecar = container("1", "512Mi");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({
            "initContainers": [container("2", "1Gi"), sidecar, container("6", "1Gi")],
            "containers": [container("4", "4Gi")],
        });
        assert_eq!(of(spec), Ok(Some(PodNeed { cpus: 7, memory_mib: 4608, huge_pages: None })));
    }

    #[test]
    fn huge_pages_are_a_need_of_their_own() {
        let mut one = container("2", "256Mi");
        one["resources"]["limits"]["hugepages-1Gi"] = json!("4Gi");
        let need = PodNeed { cpus: 2, memory_mib: 256, huge_pages: Some((1 << 20, 4096)) };
        assert_eq!(of(json!({ "containers": [one.clone()] })), Ok(Some(need)));
        one["resources"]["limits"]["hugepages-2Mi"] = json!("4Mi");
        assert!(of(json!({ "containers": [one] })).unwrap_err().contains("several sizes"));
    }

    #[test]
    fn malformed_amounts_are_errors() {
        for (cpu, memory) in [("4x", "1Gi"), ("4", ""), ("-1", "1Gi"), ("99999999999999", "1Gi")] {
            assert!(of(json!({ "containers": [container(cpu, memory)] })).is_err(), "{cpu} {memory}");
        }
        let huge = container("9000000000000000", "1Gi");
        assert!(of(json!({ "containers": [huge.clone(), huge.clone(), huge] })).is_err());
    }
}
