//! Exports the table of an experiment as Parquet and JSON lines. The bytes depend only on the results, and the files
//! can be regenerated from the store at any time.
//!
//! Source: Apache Parquet format 2; JSON Lines 1.0.

use crate::setting::Setting;
use crate::store::Results;
use crate::table::{Row, Table, object};
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A table that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {what}; the results are still safe in the store")]
pub struct ExportError {
    /// Path of the file.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
}

/// The files written.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The table as Parquet.
    pub parquet: PathBuf,
    /// The table as JSON lines.
    pub lines: PathBuf,
    /// Host-dependent metrics as JSON lines. They differ on every run and are not part of the result.
    pub host: PathBuf,
}

/// Writes the table, sorted by key, to `folder`/`name`.parquet, .jsonl and .host.jsonl.
///
/// # Errors
/// If a file cannot be written. The old file is then unchanged.
pub fn export(folder: &Path, name: &str, table: &Table, results: &Results) -> Result<Exported, ExportError> {
    let mut rows: Vec<_> = table.rows.iter().collect();
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows.dedup_by(|a, b| a.key == b.key);
    let path = |ending: &str| folder.join(format!("{name}.{ending}"));
    let files = Exported { parquet: path("parquet"), lines: path("jsonl"), host: path("host.jsonl") };
    let failed = |path: &Path, what: String| ExportError { path: path.into(), what };
    let parquet = parquet(table, &rows).map_err(|error| failed(&files.parquet, error.to_string()))?;
    let lines: String = rows.iter().map(|row| format!("{}\n", object(table, row))).collect();
    let costs = rows.iter().filter_map(|row| results.get(&row.key));
    let costs: String = costs.map(|r| format!("{}\n", json!({ "key": r.key, "host": r.host }))).collect();
    let all =
        [(&files.parquet, parquet), (&files.lines, lines.into_bytes()), (&files.host, costs.into_bytes())];
    // Do not rewrite identical files, so that a read-only directory works too.
    let is_news = |(path, bytes): &(&PathBuf, Vec<u8>)| !std::fs::read(path).is_ok_and(|old| old == *bytes);
    for (path, bytes) in all.into_iter().filter(is_news) {
        write_whole(path, &bytes).map_err(|error| failed(path, error.to_string()))?;
    }
    Ok(files)
}

/// Writes a file atomically.
///
/// # Errors
/// The error of the operating system.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it is not a file name"))?;
    let part =
        path.with_file_name(part_of(&name.to_string_lossy(), &crate::store::host(), std::process::id()));
    let written = File::create(&part).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.and_then(|()| std::fs::rename(&part, path)).inspect_err(|_| {
        // Ignored: the temporary file may not exist.
        let _ = std::fs::remove_file(&part);
    })
}

/// Name of the temporary file. It includes the host, because processes on hosts that share the directory may have the
/// same ID.
fn part_of(name: &str, host: &str, process: u32) -> String {
    format!(".{name}.{host}-{process}.part")
}

/// A column of the Parquet file.
enum Cells {
    Text(Vec<Option<String>>),
    Integer(Vec<Option<i64>>),
    Number(Vec<Option<f64>>),
}

/// Values of the parameter at `index`: as integers or numbers if all are, otherwise as text.
fn settings(rows: &[&Row], index: usize) -> Cells {
    let values: Vec<_> = rows.iter().map(|row| &row.settings[index]).collect();
    let whole = |s: &&Setting| if let Setting::Integer(n) = s { Some(*n) } else { None };
    let number = |s: &&Setting| if matches!(s, Setting::Text(_)) { None } else { s.number() };
    if values.iter().all(|s| whole(s).is_some()) {
        Cells::Integer(values.iter().map(whole).collect())
    } else if values.iter().all(|s| number(s).is_some()) {
        Cells::Number(values.iter().map(number).collect())
    } else {
        Cells::Text(values.iter().map(|s| Some(s.to_string())).collect())
    }
}

fn columns(table: &Table, rows: &[&Row]) -> Vec<(String, Cells)> {
    let text = |cell: fn(&Row) -> Option<String>| Cells::Text(rows.iter().map(|row| cell(row)).collect());
    let mut columns = vec![
        ("key".to_string(), text(|row| Some(row.key.to_string()))),
        ("machine".into(), text(|row| row.machine.clone())),
    ];
    let varied = table.parameters.iter().enumerate().filter(|(_, name)| *name != "machine");
    columns.extend(varied.map(|(index, name)| (name.clone(), settings(rows, index))));
    let metric = |index: usize| Cells::Number(rows.iter().map(|row| row.values[index]).collect());
    columns.extend(table.metrics.iter().enumerate().map(|(index, m)| (m.name.clone(), metric(index))));
    columns.push(("failure".into(), text(|row| row.failure.clone())));
    columns
}

fn parquet(table: &Table, rows: &[&Row]) -> Result<Vec<u8>, ParquetError> {
    let columns = columns(table, rows);
    let fields = columns.iter().map(|(name, cells)| {
        let (physical, logical) = match cells {
            Cells::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Cells::Integer(_) => (Physical::INT64, None),
            Cells::Number(_) => (Physical::DOUBLE, None),
        };
        let field = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
        field.with_logical_type(logical).build().map(Arc::new)
    });
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Arc::new(Type::group_type_builder("schema").with_fields(fields).build()?);
    let units = table.metrics.iter().map(|m| KeyValue::new(format!("unit:{}", m.name), m.unit.clone()));
    let properties = WriterProperties::builder().set_created_by("longma".into());
    let properties = properties.set_key_value_metadata(Some(units.collect())).build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for (_, cells) in &columns {
        match cells {
            Cells::Text(cells) => {
                let arrays: Vec<_> = cells.iter().map(|c| c.as_deref().map(ByteArray::from)).collect();
                put::<ByteArrayType, _>(&mut group, &arrays)?;
            }
            Cells::Integer(cells) => put::<Int64Type, _>(&mut group, cells)?,
            Cells::Number(cells) => put::<DoubleType, _>(&mut group, cells)?,
        }
    }
    group.close()?;
    writer.close()?;
    Ok(bytes)
}

type Group<'a, W> = parquet::file::writer::SerializedRowGroupWriter<'a, W>;

fn put<T: DataType, W: Write + Send>(
    group: &mut Group<'_, W>,
    cells: &[Option<T::T>],
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else { return Ok(()) };
    let present: Vec<_> = cells.iter().flatten().cloned().collect();
    let levels: Vec<_> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
    column.typed::<T>().write_batch(&present, Some(&levels), None)?;
    column.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_two_hosts_with_one_number_write_to_different_files() {
        assert_ne!(part_of("t.jsonl", "a", 7), part_of("t.jsonl", "b", 7));
        // A directory with the name of the temporary file makes the write fail.
        let folder = tempfile::tempdir().unwrap();
        let part = part_of("t.jsonl", &crate::store::host(), std::process::id());
        std::fs::create_dir(folder.path().join(part)).unwrap();
        let error = write_whole(&folder.path().join("t.jsonl"), b"{}").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        write_whole(&folder.path().join("u.jsonl"), b"{}").unwrap();
    }
}
