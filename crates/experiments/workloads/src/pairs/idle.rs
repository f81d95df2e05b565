//! Detects settings of a modelled sweep that have no effect, and explains why: there is one flow, one NIC queue per
//! flow, and one program.
//!
//! Source: the receiver, `guests/c/flow_receive.c`, `flow_steer.h` and `flow_path.h`.

use longma_affinity::pairs::Pair;
use longma_topology::CpuLocation;

use super::{Nic, ReceiverSetting};

/// Default values.
const DEFAULTS: [(&str, u64); 12] = [
    ("gro", 0),
    ("lro", 0),
    ("rfs", 0),
    ("send_queues", 0),
    ("xps", 0),
    ("busy_us", 0),
    ("threaded", 0),
    ("ring", 1024),
    ("delay_ns", 0),
    ("frames", 0),
    ("budget", 64),
    ("near", 1),
];

/// Describes the first setting that names a core or queue which does not exist.
pub fn missing_resource(settings: &[ReceiverSetting], places: &[CpuLocation], nic: &Nic) -> Option<String> {
    let queues =
        |setting: &&ReceiverSetting| setting.name == "send_queues" && setting.value > nic.queues.into();
    if let Some(more) = settings.iter().find(queues) {
        return Some(format!("{}={}: {} has {} queues", more.name, more.value, nic.name, nic.queues));
    }
    let is_core = |setting: &&ReceiverSetting| matches!(setting.name, "rps" | "napi");
    let is_there =
        |setting: &&ReceiverSetting| places.iter().any(|place| u64::from(place.cpu) == setting.value);
    let lost = settings.iter().filter(is_core).find(|setting| !is_there(setting))?;
    let last = places.iter().map(|place| place.cpu).max().unwrap_or(0);
    Some(format!("{}={}: the machine has no such core: its cores are 0 to {last}", lost.name, lost.value))
}

/// Describes, in one sentence each, the `settings` that have no effect on some of the `pairs`.
pub fn idle(settings: &[ReceiverSetting], pairs: &[Pair], places: &[CpuLocation]) -> Vec<String> {
    let of = |name: &str| settings.iter().find(|setting| setting.name == name).map(|setting| setting.value);
    let node = |core: u32| places.iter().find(|place| place.cpu == core).map(|place| place.node);
    let rings = of("send_queues").unwrap_or(0);
    // The core that runs protocol processing.
    let protocol = |pair: &Pair| match (of("rfs"), of("rps")) {
        (Some(1), _) => pair.application.into(),
        (_, Some(core)) => core,
        _ => pair.flow.into(),
    };
    let mut remarks = Vec::new();
    for setting in settings {
        let label = format!("{}={}", setting.name, setting.value);
        if DEFAULTS.contains(&(setting.name, setting.value)) {
            remarks.push(format!("{label} is the default"));
            continue;
        }
        let everywhere = match setting.name {
            "rps" if of("rfs") == Some(1) => Some("rfs=1 overrides it"),
            "xps" if rings < 2 => Some("there is only one transmit ring: give send_queues=2 or more"),
            "send_queues" if of("xps").unwrap_or(0) == 0 => {
                Some("one flow uses one ring: give xps=1, which chooses by core")
            }
            "napi" if of("threaded").unwrap_or(0) == 0 => Some("no thread takes frames: give threaded=1"),
            "frames" if of("delay_ns").unwrap_or(0) == 0 => Some("interrupts are not delayed: give delay_ns"),
            _ => None,
        };
        if let Some(why) = everywhere {
            remarks.push(format!("{label} does nothing: {why}"));
            continue;
        }
        let partial: (&dyn Fn(&Pair) -> bool, &str) = match setting.name {
            "rps" => (&|pair| u64::from(pair.flow) == setting.value, "that is the flow's own core"),
            "rfs" => (&|pair| pair.flow == pair.application, "the program runs on the flow's own core"),
            "napi" => {
                (&|pair| u64::from(pair.flow) == setting.value, "the thread is on the flow's core without it")
            }
            "near" => (
                &|pair| node(pair.flow) == node(pair.application),
                "flow and application are on one NUMA node",
            ),
            "xps" => (
                &|pair| protocol(pair) % rings.max(1) == u64::from(pair.application) % rings.max(1),
                "the sending cores share a ring",
            ),
            _ => continue,
        };
        match pairs.iter().filter(|pair| partial.0(pair)).count() {
            0 => {}
            all if all == pairs.len() => remarks.push(format!("{label} does nothing: {}", partial.1)),
            some => remarks.push(format!(
                "{label} does nothing on {some} of {} pairs: {}",
                pairs.len(),
                partial.1
            )),
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_affinity::pairs::{all_pairs, of_machine};
    use longma_topology::Machine;

    fn remarks(settings: &[&str], pairs: &[(u32, u32)]) -> Vec<String> {
        let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
        let settings: Vec<ReceiverSetting> =
            settings.iter().map(|setting| setting.parse().unwrap()).collect();
        let pairs: Vec<Pair> =
            pairs.iter().map(|(flow, application)| Pair { flow: *flow, application: *application }).collect();
        idle(&settings, &pairs, &places)
    }

    #[test]
    fn ineffective_settings_are_reported_with_their_reason() {
        for (settings, pair, why) in [
            (&["rps=1"][..], (1, 2), "rps=1 does nothing: that is the flow's own core"),
            (&["rfs=1"], (1, 1), "rfs=1 does nothing: the program runs on the flow's own core"),
            (&["rfs=1", "rps=3"], (1, 2), "rps=3 does nothing: rfs=1 overrides it"),
            (
                &["xps=1"],
                (1, 2),
                "xps=1 does nothing: there is only one transmit ring: give send_queues=2 or more",
            ),
            (
                &["send_queues=4"],
                (1, 2),
                "send_queues=4 does nothing: one flow uses one ring: give xps=1, which chooses by core",
            ),
            (&["send_queues=4", "xps=1"], (1, 5), "xps=1 does nothing: the sending cores share a ring"),
            (
                &["send_queues=4", "xps=1", "rfs=1"],
                (1, 2),
                "xps=1 does nothing: the sending cores share a ring",
            ),
            (&["napi=3"], (1, 2), "napi=3 does nothing: no thread takes frames: give threaded=1"),
            (
                &["napi=1", "threaded=1"],
                (1, 2),
                "napi=1 does nothing: the thread is on the flow's core without it",
            ),
            (&["frames=8"], (1, 2), "frames=8 does nothing: interrupts are not delayed: give delay_ns"),
            (&["near=0"], (1, 2), "near=0 does nothing: flow and application are on one NUMA node"),
            (&["gro=0"], (1, 2), "gro=0 is the default"),
        ] {
            assert_eq!(remarks(settings, &[pair]), [why]);
        }
        for settings in [
            &["rps=3"][..],
            &["rfs=1"],
            &["send_queues=4", "xps=1"],
            &["napi=3", "threaded=1"],
            &["frames=8", "delay_ns=16000"],
            &["gro=1"],
            &["ring=256"],
        ] {
            assert_eq!(remarks(settings, &[(1, 2)]), [""; 0], "{settings:?}");
        }
        assert_eq!(remarks(&["near=0"], &[(1, 7)]), [""; 0]);
    }

    #[test]
    fn missing_cores_and_queues_are_reported_with_the_available_ones() {
        let places = of_machine(&Machine::open("sandybridge-2x6").unwrap());
        let nic = Nic { name: "eth0".into(), gbps: 40.0, mtu: 9000, socket: None, queues: 8 };
        let missing = |text: &str| missing_resource(&[text.parse().unwrap()], &places, &nic);
        for setting in ["rps=11", "napi=0", "ring=64", "rfs=1", "send_queues=8"] {
            assert_eq!(missing(setting), None);
        }
        assert_eq!(missing("send_queues=9").as_deref(), Some("send_queues=9: eth0 has 8 queues"));
        assert_eq!(
            missing("rps=99").as_deref(),
            Some("rps=99: the machine has no such core: its cores are 0 to 11")
        );
    }

    #[test]
    fn remarks_on_many_pairs_state_their_number() {
        let pairs: Vec<(u32, u32)> = all_pairs(&(0..12).collect::<Vec<_>>())
            .iter()
            .map(|pair| (pair.flow, pair.application))
            .collect();
        assert_eq!(
            remarks(&["rfs=1"], &pairs),
            ["rfs=1 does nothing on 12 of 144 pairs: the program runs on the flow's own core"]
        );
    }
}
