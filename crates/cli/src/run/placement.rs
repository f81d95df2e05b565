//! Parses options for the placement of a program's pages and threads on a modelled machine.
//! Source: numactl(8) and taskset(1) for the notation.

use longma_cpu_set::{CpuSet, MAX_CPU};
use longma_runner::simulation::Policy;

use super::failure::Failure;

const REMEDY: &str = "write first-touch, bind:NODES, interleave:NODES or preferred:NODE, with nodes as 0,2-3";

/// Parses `--numa`; without it, returns the default policy.
///
/// # Errors
/// The text is not a policy.
pub fn policy(text: Option<&str>) -> Result<Policy, Failure> {
    let Some(text) = text else { return Ok(Policy::default()) };
    let (name, nodes) = text.split_once(':').unwrap_or((text, ""));
    match (name, nodes) {
        ("first-touch", "") => Ok(Policy::FirstTouch),
        ("bind", nodes) if !nodes.is_empty() => Ok(Policy::Bind(numbers("--numa", nodes)?)),
        ("interleave", nodes) if !nodes.is_empty() => Ok(Policy::Interleave(numbers("--numa", nodes)?)),
        ("preferred", node) if !node.is_empty() => match *numbers("--numa", node)? {
            [node] => Ok(Policy::Preferred(node)),
            _ => Err(Failure::own(&format!("--numa preferred names one node, not `{node}`"), REMEDY)),
        },
        _ => Err(Failure::own(&format!("there is no memory policy `{text}`"), REMEDY)),
    }
}

/// Parses a list of nodes or cores such as `0,2-3` into ascending numbers.
///
/// # Errors
/// The text is not a list of numbers.
pub fn numbers(option: &str, list: &str) -> Result<Vec<usize>, Failure> {
    match list.parse::<CpuSet>() {
        Ok(set) if !set.is_empty() => Ok(set.iter().map(|number| number as usize).collect()),
        _ => Err(Failure::own(
            &format!("{option}: `{list}` is not a list of numbers below {MAX_CPU}"),
            "write it as 0,2-3",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_numactl_users_write_them() {
        assert_eq!(
            [policy(None), policy(Some("first-touch"))],
            [Ok(Policy::FirstTouch), Ok(Policy::FirstTouch)]
        );
        assert_eq!(policy(Some("bind:1")), Ok(Policy::Bind(vec![1])));
        assert_eq!(policy(Some("interleave:4,0-2")), Ok(Policy::Interleave(vec![0, 1, 2, 4])));
        assert_eq!(policy(Some("preferred:3")), Ok(Policy::Preferred(3)));
    }

    #[test]
    fn invalid_policies_are_rejected() {
        for wrong in
            ["", "bind", "bind:", "bind:x", "bind:3-1", "preferred:0,1", "first-touch:0", "bind:99999999"]
        {
            assert!(policy(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
