//! Lays out a table of results to fit the terminal. Values that are the same in every row are printed above the table.
//! Columns that do not fit follow below, with the parameter columns repeated.

use longma_lab::Table;
use std::fmt::Write as _;

/// Blanks between columns.
const GAP: usize = 2;

/// A column: its heading, split into words, its unit, and its cells.
struct Column {
    heading: Vec<String>,
    unit: String,
    cells: Vec<String>,
    is_number: bool,
    /// Maximum number of heading lines.
    max_heading_lines: usize,
}

/// Maximum numbers of heading lines, tried in this order until the table fits.
const HEADING_LINES: [usize; 4] = [1, 2, 3, usize::MAX];

/// Formats the first `shown` rows of `table` in lines of at most `width` characters if possible.
pub fn lay_out(table: &Table, shown: usize, width: usize) -> String {
    let (parameters, metrics) = (parameters(table, shown), metrics(table, shown));
    let is_same = |column: &Column| {
        column.cells.len() > 1 && column.cells.iter().all(|cell| *cell == column.cells[0] && cell != "-")
    };
    let (same, parameters): (Vec<_>, Vec<_>) = parameters.into_iter().partition(is_same);
    let (common_values, mut parameters) = factor_out_common_values(parameters, width);
    let (same_metrics, mut metrics): (Vec<_>, Vec<_>) = metrics.into_iter().partition(is_same);
    let mut out = String::new();
    let same: Vec<String> = same.iter().chain(&same_metrics).map(Column::describe).collect();
    if !same.is_empty() {
        fill(&format!("In every row: {}.", same.join(", ")), width, &mut out);
    }
    if !common_values.is_empty() {
        fill(&format!("Unless a row says otherwise: {}.", common_values.join(", ")), width, &mut out);
    }
    fit(&mut out, &mut parameters, &mut metrics, width);
    out
}

/// Formats rows under headings, given as text and unit, in lines of at most `width` characters if possible. The first
/// `repeated` columns hold text and are repeated in front of columns that do not fit; the others hold numbers.
pub fn rows(headings: &[(&str, &str)], repeated: usize, rows: &[Vec<String>], width: usize) -> String {
    let column = |(index, (heading, unit)): (usize, &(&str, &str))| Column {
        heading: heading_words(heading),
        unit: (*unit).into(),
        cells: rows.iter().map(|row| row.get(index).cloned().unwrap_or_default()).collect(),
        is_number: index >= repeated,
        max_heading_lines: usize::MAX,
    };
    let mut parameters: Vec<Column> = headings.iter().enumerate().map(column).collect();
    let mut metrics = parameters.split_off(repeated.min(headings.len()));
    let mut out = String::new();
    fit(&mut out, &mut parameters, &mut metrics, width);
    out
}

/// Draws the columns. Headings get more lines only if the table does not fit otherwise.
fn fit(out: &mut String, parameters: &mut [Column], metrics: &mut [Column], width: usize) {
    if let [first, rest @ ..] = &*metrics
        && !rest.is_empty()
        && !first.unit.is_empty()
        && rest.iter().all(|metric| metric.unit == first.unit)
    {
        let _ = writeln!(out, "Values are in {}.", first.unit);
        metrics.iter_mut().for_each(|metric| metric.unit.clear());
    }
    for max_heading_lines in HEADING_LINES {
        parameters
            .iter_mut()
            .chain(&mut *metrics)
            .for_each(|column| column.max_heading_lines = max_heading_lines);
        if parts(parameters, metrics, width).len() == 1 {
            break;
        }
    }
    for (index, part) in parts(parameters, metrics, width).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        draw(&parameters.iter().chain(part).collect::<Vec<_>>(), out);
    }
}

fn parameters(table: &Table, shown: usize) -> Vec<Column> {
    let listed = table.parameters.iter().enumerate().filter(|(_, name)| !table.names.is_represented(name));
    let column = |(index, name): (usize, &String)| Column {
        heading: heading_words(table.names.title(name)),
        unit: String::new(),
        cells: table
            .rows
            .iter()
            .take(shown)
            .map(|row| longma_text::sanitize(&table.names.value(name, &row.settings[index])))
            .collect(),
        is_number: false,
        max_heading_lines: usize::MAX,
    };
    listed.map(column).collect()
}

fn metrics(table: &Table, shown: usize) -> Vec<Column> {
    let column = |(index, metric): (usize, &longma_lab::Column)| Column {
        heading: heading_words(&metric.title),
        // The heading already names the unit.
        unit: if metric.title.contains(&metric.unit) { String::new() } else { metric.unit.clone() },
        cells: table.rows.iter().take(shown).map(|row| row.text(index)).collect(),
        is_number: true,
        max_heading_lines: usize::MAX,
    };
    table.metrics.iter().enumerate().map(column).collect()
}

/// If the parameters are too wide, replaces those that mostly have their first value by one column that lists the
/// differences. Also returns these first values.
fn factor_out_common_values(parameters: Vec<Column>, width: usize) -> (Vec<String>, Vec<Column>) {
    if parameters.iter().map(|column| column.width() + GAP).sum::<usize>() <= width * 2 / 3 {
        return (Vec::new(), parameters);
    }
    let is_mostly_first_value = |column: &Column| {
        let same_as_first = column.cells.iter().filter(|cell| **cell == column.cells[0]).count();
        same_as_first * 2 > column.cells.len()
    };
    let (common_values, mut others): (Vec<_>, Vec<_>) =
        parameters.into_iter().partition(is_mostly_first_value);
    let rows = common_values.first().map_or(0, |column| column.cells.len());
    let different = |row: usize| {
        let columns = common_values.iter().filter(|column| column.cells[row] != column.cells[0]);
        let different: Vec<_> = columns.map(|column| column.describe_cell(row)).collect();
        if different.is_empty() { "nothing".into() } else { different.join(", ") }
    };
    if !common_values.is_empty() {
        others.push(Column {
            heading: heading_words("what is different"),
            unit: String::new(),
            cells: (0..rows).map(different).collect(),
            is_number: false,
            max_heading_lines: usize::MAX,
        });
    }
    (common_values.iter().map(Column::describe).collect(), others)
}

/// The words of a heading. The path of a parameter may be broken after its dots.
fn heading_words(heading: &str) -> Vec<String> {
    heading.split(' ').flat_map(|word| word.split_inclusive('.')).map(String::from).collect()
}

fn length(text: &str) -> usize {
    text.chars().count()
}

impl Column {
    /// The width that fits the cells and lets the heading take at most `max_heading_lines` lines.
    fn width(&self) -> usize {
        let cells = self.cells.iter().chain(&self.heading).chain([&self.unit]);
        let least = cells.map(|cell| length(cell)).max().unwrap_or(0);
        let all = self.heading.iter().map(|word| length(word) + 1).sum::<usize>();
        (least..all)
            .find(|width| self.lines_in(*width).len() <= self.max_heading_lines)
            .unwrap_or(least.max(all.saturating_sub(1)))
    }

    fn lines(&self) -> Vec<String> {
        self.lines_in(self.width())
    }

    /// Breaks the heading into lines of at most `width` characters.
    fn lines_in(&self, width: usize) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in &self.heading {
            let width_with = |line: &String| length(line) + length(word) + usize::from(!line.ends_with('.'));
            match lines.last_mut().filter(|line| width_with(line) <= width) {
                Some(line) if line.ends_with('.') => line.push_str(word),
                Some(line) => *line = format!("{line} {word}"),
                None => lines.push(word.clone()),
            }
        }
        lines
    }

    /// Name, value in the first row, and unit.
    fn describe(&self) -> String {
        self.describe_cell(0)
    }

    fn describe_cell(&self, row: usize) -> String {
        let mut out = self.heading.iter().fold(String::new(), |out, word| {
            let gap = if out.is_empty() || out.ends_with('.') { "" } else { " " };
            out + gap + word
        });
        let _ = write!(out, " {}", self.cells[row]);
        if !self.unit.is_empty() {
            let _ = write!(out, " {}", self.unit);
        }
        out
    }
}

/// Splits the metrics into groups that fit next to the parameters.
fn parts<'a>(parameters: &[Column], metrics: &'a [Column], width: usize) -> Vec<&'a [Column]> {
    let repeated: usize = parameters.iter().map(|column| column.width() + GAP).sum();
    let (mut parts, mut start, mut used) = (Vec::new(), 0, repeated);
    for (index, column) in metrics.iter().enumerate() {
        let wide = column.width() + GAP;
        if index > start && used + wide > width + GAP {
            parts.push(&metrics[start..index]);
            (start, used) = (index, repeated);
        }
        used += wide;
    }
    parts.push(&metrics[start..]);
    parts
}

fn draw(columns: &[&Column], out: &mut String) {
    let headings: Vec<_> = columns.iter().map(|column| column.lines()).collect();
    let max_heading_lines = headings.iter().map(Vec::len).max().unwrap_or(0);
    // Align headings at the bottom.
    for line in 0..max_heading_lines {
        let cell = |heading: &Vec<String>| {
            (line + heading.len())
                .checked_sub(max_heading_lines)
                .map_or(String::new(), |at| heading[at].clone())
        };
        draw_row(columns, &headings.iter().map(cell).collect::<Vec<_>>(), out);
    }
    if columns.iter().any(|column| !column.unit.is_empty()) {
        draw_row(columns, &columns.iter().map(|column| column.unit.clone()).collect::<Vec<_>>(), out);
    }
    for row in 0..columns.first().map_or(0, |column| column.cells.len()) {
        draw_row(columns, &columns.iter().map(|column| column.cells[row].clone()).collect::<Vec<_>>(), out);
    }
}

fn draw_row(columns: &[&Column], cells: &[String], out: &mut String) {
    let padded = columns.iter().zip(cells).map(|(column, cell)| match column.is_number {
        true => format!("{cell:>w$}", w = column.width()),
        false => format!("{cell:w$}", w = column.width()),
    });
    let line = padded.collect::<Vec<_>>().join(&" ".repeat(GAP));
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Appends text, wrapped to lines of at most `width` characters.
fn fill(text: &str, width: usize, out: &mut String) {
    let mut used = 0;
    for word in text.split(' ') {
        let gap = usize::from(used > 0);
        if used > 0 && used + gap + length(word) > width {
            out.push('\n');
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length(word);
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(heading: &str, unit: &str, cells: &[&str], is_number: bool) -> Column {
        let cells = cells.iter().map(|cell| String::from(*cell)).collect();
        Column {
            heading: heading_words(heading),
            unit: unit.into(),
            cells,
            is_number,
            max_heading_lines: usize::MAX,
        }
    }

    #[test]
    fn headings_are_as_wide_as_their_longest_word_or_the_cells() {
        let long = column("machine.devices.nic.ethernet.rate", "", &["10 Gb/s"], false);
        assert_eq!(long.lines(), ["machine.", "devices.", "nic.", "ethernet.", "rate"]);
        assert_eq!(long.describe(), "machine.devices.nic.ethernet.rate 10 Gb/s");
        let short = column("L3 load misses", "accesses", &["1 234 567"], true);
        assert_eq!((short.width(), short.lines().join("|")), (9, "L3 load|misses".to_string()));
    }

    #[test]
    fn many_mostly_equal_parameters_become_one_column_of_differences() {
        let names = ["machine.buses.0.latency", "machine.buses.0.rate", "cost"];
        let parameters = names.iter().enumerate().map(|(at, name)| {
            let cells: Vec<_> = (0..9).map(|row| if row == at + 1 { "2 us" } else { "1 us" }).collect();
            column(name, "", &cells, false)
        });
        let parameters: Vec<_> = parameters.collect();
        let (common_values, columns) = factor_out_common_values(parameters, 30);
        assert_eq!(common_values, ["machine.buses.0.latency 1 us", "machine.buses.0.rate 1 us", "cost 1 us"]);
        assert_eq!(columns.len(), 1);
        assert_eq!(
            columns[0].cells[..4],
            ["nothing", "machine.buses.0.latency 2 us", "machine.buses.0.rate 2 us", "cost 2 us"]
        );
    }

    #[test]
    fn columns_without_space_follow_below_with_the_parameters_repeated() {
        let parameters = [column("size", "", &["64"], false)];
        let metrics = ["first", "second", "third"].map(|name| column(name, "Mb/s", &["1000.5"], true));
        let parts = parts(&parameters, &metrics, 22);
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [2, 1]);
        let mut drawn = String::new();
        draw(&parameters.iter().chain(parts[1]).collect::<Vec<_>>(), &mut drawn);
        assert_eq!(drawn, "size   third\n        Mb/s\n64    1000.5\n");
    }
}
