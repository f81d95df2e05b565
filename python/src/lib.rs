//! The native module of the Python package: reads, changes, checks and draws machines. Programs and experiments run
//! through the `longma` command; see python/longma.

mod topics;
mod zoned;

use longma_topology::{BUILTIN, Detail, Machine, OpenError, Report, draw_svg, draw_text};
use pyo3::exceptions::{PyFileNotFoundError, PyOSError, PyValueError};
use pyo3::prelude::*;

/// Width of error reports in columns.
const COLUMNS: usize = 100;

/// A ValueError with the problems of a machine file and their positions.
fn invalid(report: &Report) -> PyErr {
    PyValueError::new_err(format!("{report}\n\n{}", report.render(COLUMNS, false)))
}

/// The names of the machines that come with Longma.
#[pyfunction]
fn machine_names() -> Vec<&'static str> {
    BUILTIN.iter().map(|builtin| builtin.name).collect()
}

/// The machine of this name or file, as JSON with every default.
#[pyfunction]
fn open_machine(name: &str) -> PyResult<String> {
    let machine = Machine::open(name).map_err(|error| match error {
        OpenError::Invalid(report) => invalid(&report),
        OpenError::Unknown { .. } => PyFileNotFoundError::new_err(error.to_string()),
        other => PyOSError::new_err(other.to_string()),
    })?;
    json(&machine)
}

/// The machine of this text, as JSON with every default.
#[pyfunction]
fn parse_machine(text: &str) -> PyResult<String> {
    json(&Machine::parse("machine", text).map_err(|report| invalid(&report))?)
}

/// The machine file of these parts, checked.
#[pyfunction]
fn machine_toml(parts: &str) -> PyResult<String> {
    machine(parts).map(|machine| machine.to_toml())
}

/// Every core, cache and node counted out, as JSON.
#[pyfunction]
fn machine_layout(parts: &str) -> PyResult<String> {
    let machine = machine(parts)?;
    serde_json::to_string(machine.layout()).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The machine drawn with letters, or as SVG.
#[pyfunction]
fn draw_machine(parts: &str, width: usize, svg: bool) -> PyResult<String> {
    let machine = machine(parts)?;
    let width = width.clamp(40, 1000);
    Ok(if svg {
        draw_svg(&machine, width, Detail::Fitting)
    } else {
        draw_text(&machine, width, Detail::Fitting, false)
    })
}

fn json(machine: &Machine) -> PyResult<String> {
    serde_json::to_string(machine.parts()).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn machine(parts: &str) -> PyResult<Machine> {
    let value: toml::Value = serde_json::from_str(parts)
        .map_err(|error| PyValueError::new_err(format!("these are no parts of a machine: {error}")))?;
    let text = toml::to_string(&value).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Machine::parse("machine", &text).map_err(|report| invalid(&report))
}

/// The native half of the package `longma`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(machine_names, module)?)?;
    module.add_function(wrap_pyfunction!(open_machine, module)?)?;
    module.add_function(wrap_pyfunction!(parse_machine, module)?)?;
    module.add_function(wrap_pyfunction!(machine_toml, module)?)?;
    module.add_function(wrap_pyfunction!(machine_layout, module)?)?;
    module.add_function(wrap_pyfunction!(draw_machine, module)?)?;
    module.add("TopicClosed", module.py().get_type::<topics::TopicClosed>())?;
    module.add("PublisherDied", module.py().get_type::<topics::PublisherDied>())?;
    module.add_function(wrap_pyfunction!(topics::list_topics, module)?)?;
    module.add_class::<topics::NativePublisher>()?;
    module.add_class::<topics::NativeSubscriber>()?;
    module.add_class::<topics::Loan>()?;
    module.add_class::<topics::Sample>()?;
    module.add("StoreError", module.py().get_type::<zoned::StoreError>())?;
    module.add("Conflict", module.py().get_type::<zoned::Conflict>())?;
    module.add_class::<zoned::NativeStore>()?;
    module.add_class::<zoned::NativeSnapshot>()?;
    module.add_class::<zoned::NativeTransaction>()
}
