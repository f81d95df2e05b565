//! Formats a measurement as a line of a table.

use longma_workloads::via::{Measure, Row};

/// The column headings.
pub fn head(measure: Measure) -> String {
    match measure {
        Measure::Ping => format!(
            "{:>9} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "bytes", "pings", "min us", "median us", "mean us", "99 % us", "99.9 % us", "max us"
        ),
        _ => {
            format!("{:>9} {:>9} {:>11} {:>14} {:>11}", "bytes", "messages", "seconds", "messages/s", "MB/s")
        }
    }
}

/// Formats a result as a line of the table.
pub fn line(row: &Row) -> String {
    let mut line = format!("{:>9} {:>9}", row.request.bytes, row.request.messages);
    match row.request.measure {
        Measure::Ping => {
            for (_, number) in row.cells() {
                line += &format!(" {number:>10.3}");
            }
        }
        _ => line += &format!(" {:>11.6} {:>14.0} {:>11.2}", row.seconds(), row.rate(), row.megabytes()),
    }
    line
}
