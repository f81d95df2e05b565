//! Workloads with virtual machines placed by `longma-placement`: a guest program in one virtual machine (`vm`), several
//! virtual machines on a modelled host over time (`vm-host`), and a data centre over months (`vm-churn`).

mod churn;
mod guest;
mod host;
mod modelled;

pub use churn::Churn;
pub use guest::Guest;
pub use host::VmHost;

use longma_lab::{Failure, Kind, Parameter, Point, Setting};
use longma_placement::Host;
use longma_topology::Machine;

fn parameter(
    name: &'static str,
    kind: Kind,
    default: Option<Setting>,
    description: &'static str,
) -> Parameter {
    Parameter { name, kind, default, description }
}

/// A numeric parameter, at least `least`.
fn number(point: &Point, name: &str, least: f64) -> Result<f64, Failure> {
    let value = point.parameter(name).and_then(Setting::number).unwrap_or(f64::NAN);
    if value >= least {
        Ok(value)
    } else {
        Err(Failure::refused(format!("{name} is {value}: give {least} or more")))
    }
}

/// The point's machine, and its first host as the scheduler sees it.
fn host_of(point: &Point) -> Result<(Machine, Host), Failure> {
    let machine = point.machine.as_ref();
    let machine =
        machine.ok_or_else(|| Failure::refused("a virtual machine needs a host: name one in `machines`"))?;
    let machine = Machine::parse(&machine.name, &machine.text)
        .map_err(|report| Failure::refused(report.to_string()))?;
    let host = Host::of_machine(&machine, "host").map_err(|error| Failure::refused(error.to_string()))?;
    Ok((machine, host))
}
