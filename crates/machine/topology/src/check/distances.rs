//! Checks the distance matrices between nodes and between cores: their size, their symmetry, and that local memory is
//! nearest.
//!
//! Source: ACPI 6.5, 5.2.17 (SLIT: 10 on the diagonal, never less elsewhere).

use crate::layout::Layout;
use crate::parts::MachineFile;
use crate::read::{Matrix, Problems};
use std::fmt::Display;

pub(super) fn check(file: &MachineFile, layout: &Layout, problems: &mut Problems) {
    for (index, host) in file.hosts.iter().enumerate() {
        let Some(instance) = layout.hosts.iter().find(|h| h.of == index) else { continue };
        let chips_exist = host.chips.iter().all(|c| file.chips.contains_key(&**c));
        let nodes = instance.nodes.len();
        if let Some(distances) = host.distances.as_ref().filter(|_| chips_exist) {
            let rule = |symmetric| Rule { size: nodes, of: "NUMA node", what: "distance", symmetric };
            if let Some(latency) = &distances.latency
                && rule(distances.symmetric).shape(latency, problems)
            {
                nearest_is_self(latency, problems);
            }
            if let Some(slit) = &distances.slit
                && rule(true).shape(slit, problems)
            {
                slit_is_ten(slit, problems);
            }
            if let Some(bandwidth) = &distances.bandwidth {
                rule(false).shape(bandwidth, problems);
            }
        }
        if let Some(c2c) = &host.core_to_core {
            let rule = Rule { size: c2c.cpus.len(), of: "CPU", what: "latency", symmetric: true };
            rule.shape(&c2c.latency, problems);
        }
    }
}

struct Rule {
    size: usize,
    of: &'static str,
    what: &'static str,
    symmetric: bool,
}

impl Rule {
    /// Records a wrong number of rows or columns and asymmetric pairs; true if the matrix is square.
    fn shape<T: PartialEq + Display>(&self, matrix: &Matrix<T>, problems: &mut Problems) -> bool {
        let rows = matrix.rows.len();
        let short = matrix.rows.iter().position(|r| r.len() != rows);
        if rows != self.size {
            let start = matrix.row_span(0).start;
            let message = format!("{rows} rows for {} {}s", self.size, self.of);
            let help = format!("give one row and one column for each {}", self.of);
            problems.error(start..matrix.row_span(rows.max(1) - 1).end.max(start), message, "here", help);
        }
        if let Some(row) = short {
            let message =
                format!("row {row} has {} columns, but the table has {rows} rows", matrix.rows[row].len());
            problems.error(
                matrix.row_span(row),
                message,
                "not square",
                "give as many columns as rows".into(),
            );
            return false;
        }
        if self.symmetric {
            for (row, column) in (0..rows).flat_map(|r| (0..r).map(move |c| (r, c))) {
                let (mirrored, value) = (&matrix.rows[column][row], &matrix.rows[row][column]);
                if mirrored != value {
                    let (what, of) = (self.what, self.of);
                    let message = format!(
                        "the {what} from {of} {row} to {column} is {value}, but from {column} to {row} it is {mirrored}"
                    );
                    let help = format!(
                        "write the same value in row {column}, column {row} and in row {row}, column {column}"
                    );
                    problems.error(matrix.span(row, column), message, "not symmetric", help);
                }
            }
        }
        rows == self.size
    }
}

fn nearest_is_self<T: PartialOrd + Display>(matrix: &Matrix<T>, problems: &mut Problems) {
    for (node, row) in matrix.rows.iter().enumerate() {
        if let Some(nearer) = (0..row.len()).find(|&to| row[to] < row[node]) {
            let message = format!(
                "node {nearer} is nearer to node {node} ({}) than its own memory ({})",
                row[nearer], row[node]
            );
            problems.error(
                matrix.span(node, nearer),
                message,
                "nearer than local",
                "local memory must be nearest: correct the row".into(),
            );
        }
    }
}

fn slit_is_ten(matrix: &Matrix<u32>, problems: &mut Problems) {
    for (node, row) in matrix.rows.iter().enumerate() {
        if row[node] != 10 {
            let message = format!("the relative distance of node {node} to itself is {}", row[node]);
            problems.error(matrix.span(node, node), message, "not 10", "local is 10 by definition".into());
        }
        if let Some(too_near) = (0..row.len()).find(|&to| row[to] < 10) {
            let message = format!("the relative distance from node {node} to {too_near} is below 10");
            problems.error(
                matrix.span(node, too_near),
                message,
                "nearer than local",
                "local is 10 by definition".into(),
            );
        }
    }
}
