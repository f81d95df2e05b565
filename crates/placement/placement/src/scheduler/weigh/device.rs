//! Prefers nodes close to the requested devices, and keeps requests without devices away from nodes that have some.

use super::{Candidate, NodeWeigher, Weights};
use crate::request::DeviceNeed;

pub(crate) struct Device;

impl NodeWeigher for Device {
    fn name(&self) -> &'static str {
        "device"
    }
    fn weigh(&self, c: &Candidate<'_>) -> f32 {
        let shape = &c.host.shape;
        let nearest_distance = |need: &DeviceNeed| {
            let nodes = shape.devices.iter().zip(&shape.device_nodes).zip(&*c.host.devices);
            nodes
                .filter(|((d, _), used)| need.matches(d) && d.slots > u32::from(**used))
                .filter_map(|((_, node), _)| *node)
                .map(|node| shape.distances[c.at][usize::from(node)])
                .min()
        };
        if c.demand.devices.is_empty() {
            return if shape.device_nodes.contains(&Some(c.at as u8)) { 0.5 } else { 1.0 };
        }
        let closeness =
            |need: &DeviceNeed| nearest_distance(need).map_or(0.5, |distance| 10.0 / distance as f32);
        c.demand.devices.iter().map(closeness).sum::<f32>() / c.demand.devices.len() as f32
    }
    fn weight(&self, weights: &Weights) -> f32 {
        weights.device
    }
}
