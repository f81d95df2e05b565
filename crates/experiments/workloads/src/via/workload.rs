//! The workload `via`: measures latency or bandwidth on the modelled Myrinet.
//!
//! Source: Jiao Zhenqiang et al.: half the mean of 1000 ping-pongs; 2000 back-to-back messages.

use super::exchange::{Measure, MeasurementRequest};
use super::modelled::{ModelError, Modelled};
use super::row::Row;
use longma_lab::{
    Failure, FailureKind, Kind, Measure as Measurement, Metrics, Parameter, Point, Rehearsal, Setting, Stop,
    Workload,
};
use longma_topology::Machine;
use longma_topology::units::Size;
use longma_via::Reliability;
use longma_via_myrinet::{self as myrinet, Settings};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Counts of both ends: name, unit, meaning.
const AT_ENDS: [(&str, &str, &str); 5] = [
    ("processor_busy", "share", "of the NIC's processor time"),
    ("interrupts", "interrupts", "of the host"),
    ("bus_accesses", "accesses", "to the host's bus"),
    ("tlb_misses", "misses", "of the TLB on the NIC"),
    ("most_in_big_ring", "descriptors", "at once in MyVIA's big ring"),
];

/// VIA on the modelled Myrinet.
pub struct Via {
    parameters: Vec<Parameter>,
}

impl Default for Via {
    fn default() -> Self {
        let parameter = |name, kind, default: Option<Setting>, description| Parameter {
            name,
            kind,
            default,
            description,
        };
        let parameters = vec![
            parameter("firmware", Kind::Word(&["bvia", "myvia"]), None, "firmware of the NICs"),
            parameter(
                "measure",
                Kind::Word(&["latency", "bandwidth"]),
                Some("latency".into()),
                "what to measure",
            ),
            parameter("size", Kind::Size, None, "a message"),
            parameter("messages", Kind::Integer, Some(1000i64.into()), "measured messages or round trips"),
            parameter("warm_up", Kind::Integer, Some(20i64.into()), "messages before the measured ones"),
            parameter("window", Kind::Integer, Some(256i64.into()), "outstanding sends"),
            parameter("small_ring", Kind::Integer, Some(32i64.into()), "descriptors in MyVIA's small ring"),
            parameter(
                "low_water",
                Kind::Integer,
                Some(8i64.into()),
                "MyVIA's low-water mark, in descriptors",
            ),
            parameter("fast_path", Kind::Size, Some("0 B".into()), "MyVIA: longest message of the fast path"),
            parameter("tlb_entries", Kind::Integer, Some(1024i64.into()), "BVIA's TLB on the NIC"),
            parameter(
                "cost_factor",
                Kind::Number,
                Some(Setting::Number(1.0)),
                "factor of the firmware's cycles",
            ),
        ];
        Self { parameters }
    }
}

impl Workload for Via {
    fn name(&self) -> &str {
        "via"
    }

    fn description(&self) -> &str {
        "VIA on the modelled Myrinet: one-way latency or bandwidth, with BVIA's or MyVIA's firmware"
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn rehearse(&self, point: &Point) -> Result<Rehearsal, Failure> {
        let (request, _) = modelled(point)?;
        let mut measures = if request.measure == Measure::Ping {
            vec![Measurement::new("latency_us", "us", "one way, mean")]
        } else {
            vec![
                Measurement::new("bandwidth_mbps", "MB/s", "of messages"),
                Measurement::new("messages_per_second", "messages/s", "that arrived"),
            ]
        };
        for end in ["sender", "receiver"] {
            measures.extend(
                AT_ENDS.map(|(name, unit, about)| Measurement::new(format!("{end}.{name}"), unit, about)),
            );
        }
        Ok(Rehearsal { measures: Some(measures), ..Rehearsal::default() })
    }

    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure> {
        let (request, modelled) = modelled(point)?;
        let began = modelled.seconds();
        let times = watched(point, stop, |flag| modelled.measure(request, flag))?;
        let row = Row::new(request, times);
        let mut metrics = Metrics::default();
        if request.measure == Measure::Ping {
            metrics.result("latency_us", row.mean_us());
        } else {
            metrics.result("bandwidth_mbps", row.megabytes());
            metrics.result("messages_per_second", row.rate());
        }
        let elapsed = modelled.seconds() - began;
        for (end, station) in [("sender", 0), ("receiver", 1)] {
            let counts = modelled.counts(station);
            let mut add = |what: &str, value: f64| metrics.result(&format!("{end}.{what}"), value);
            add("processor_busy", counts.processor_seconds / elapsed);
            add("interrupts", counts.interrupts as f64);
            add("bus_accesses", counts.bus_accesses as f64);
            add("tlb_misses", counts.tlb_misses as f64);
            add("most_in_big_ring", counts.most_in_big_ring as f64);
        }
        Ok(metrics)
    }
}

/// The measurement of a point, and its network.
fn modelled(point: &Point) -> Result<(MeasurementRequest, Modelled), Failure> {
    let machine =
        point.machine.as_ref().ok_or_else(|| Failure::refused("needs a machine, such as piii-myrinet"))?;
    let machine = Machine::parse(&machine.name, &machine.text)
        .map_err(|report| Failure::refused(report.to_string()))?;
    let (settings, request) = (settings(point)?, request(point)?);
    let modelled = Modelled::new(&machine, settings, request.bytes, Reliability::ReliableDelivery);
    Ok((request, modelled.map_err(failure)?))
}

/// Runs `work`, and requests it to stop when the campaign is stopped or the time limit is over.
fn watched<T>(
    point: &Point,
    stop: &Stop,
    work: impl FnOnce(&AtomicBool) -> Result<T, ModelError>,
) -> Result<T, Failure> {
    let (stop_flag, finished) = (AtomicBool::new(false), AtomicBool::new(false));
    let begin = Instant::now();
    let late = || point.time_limit.filter(|limit| begin.elapsed() > *limit);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if stop.is_requested() || late().is_some() {
                    stop_flag.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let outcome = work(&stop_flag);
        finished.store(true, Ordering::Relaxed);
        outcome
    });
    outcome.map_err(|error| match error {
        ModelError::Stopped => late().map_or_else(Failure::stopped, Failure::late),
        other => failure(other),
    })
}

fn failure(error: ModelError) -> Failure {
    let kind = match error {
        ModelError::Refused(_) => FailureKind::Refused,
        _ => FailureKind::Failed,
    };
    Failure { kind, message: error.to_string() }
}

fn integer(point: &Point, name: &str) -> Result<u32, Failure> {
    let value = point.parameter(name).and_then(Setting::number).unwrap_or(0.0);
    let allowed = (0.0..=1e9).contains(&value);
    allowed
        .then_some(value as u32)
        .ok_or_else(|| Failure::refused(format!("{name} = {value} is not possible")))
}

fn size(point: &Point, name: &str) -> Result<u32, Failure> {
    let bytes = point
        .text(name)
        .parse::<Size>()
        .map_err(|error| Failure::refused(format!("{name}: {}", error.message)))?;
    u32::try_from(bytes.bytes()).map_err(|_| Failure::refused(format!("{name} must be below 4 GiB")))
}

fn settings(point: &Point) -> Result<Settings, Failure> {
    let kind = if point.text("firmware") == "bvia" { myrinet::Kind::Bvia } else { myrinet::Kind::Myvia };
    let cost_factor = point.parameter("cost_factor").and_then(Setting::number).unwrap_or(1.0);
    if !(0.01..=100.0).contains(&cost_factor) {
        return Err(Failure::refused(format!("cost_factor = {cost_factor} is not between 0.01 and 100")));
    }
    Ok(Settings {
        kind,
        small_ring: integer(point, "small_ring")? as usize,
        low_water: integer(point, "low_water")? as usize,
        fast_path: size(point, "fast_path")?,
        tlb_entries: integer(point, "tlb_entries")? as usize,
        cost_factor,
    })
}

fn request(point: &Point) -> Result<MeasurementRequest, Failure> {
    let measure = if point.text("measure") == "latency" { Measure::Ping } else { Measure::Bandwidth };
    let (messages, warm_up) = (integer(point, "messages")?.max(1), integer(point, "warm_up")?);
    Ok(MeasurementRequest {
        measure,
        bytes: size(point, "size")?,
        messages,
        warm_up,
        window: integer(point, "window")?,
    })
}
