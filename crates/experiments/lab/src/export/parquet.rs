//! Encodes a table as a Parquet file.
//!
//! Source: Apache Parquet format 2.

use crate::setting::Setting;
use crate::table::{Row, Table};
use ::parquet::basic::{LogicalType, Repetition, Type as Physical};
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::Type;
use std::io::Write;
use std::sync::Arc;

/// A column of the Parquet file.
enum Cells {
    Text(Vec<Option<String>>),
    Integer(Vec<Option<i64>>),
    Number(Vec<Option<f64>>),
}

/// The values of the parameter at `index`: as integers if all are integers, as numbers if all are numbers, otherwise as
/// text.
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
    let has_intervals = rows.iter().any(|row| !row.intervals.is_empty());
    for (index, metric) in table.metrics.iter().enumerate() {
        let values = Cells::Number(rows.iter().map(|row| row.values[index]).collect());
        columns.push((metric.name.clone(), values));
        if has_intervals {
            let intervals: Vec<_> = rows.iter().map(|row| row.interval(index)).collect();
            let half = intervals.iter().map(|interval| interval.and_then(|interval| interval.half));
            let runs = intervals.iter().map(|interval| interval.map(|interval| interval.count as i64));
            columns.push((format!("{}.half", metric.name), Cells::Number(half.collect())));
            columns.push((format!("{}.runs", metric.name), Cells::Integer(runs.collect())));
        }
    }
    columns.push(("failure".into(), text(|row| row.failure.clone())));
    columns
}

/// Encodes rows of a table as a Parquet file. The key-value metadata `unit:METRIC` is the unit of a metric.
pub fn encode(table: &Table, rows: &[&Row]) -> Result<Vec<u8>, ParquetError> {
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
                write_column::<ByteArrayType, _>(&mut group, &arrays)?;
            }
            Cells::Integer(cells) => write_column::<Int64Type, _>(&mut group, cells)?,
            Cells::Number(cells) => write_column::<DoubleType, _>(&mut group, cells)?,
        }
    }
    group.close()?;
    writer.close()?;
    Ok(bytes)
}

type Group<'a, W> = ::parquet::file::writer::SerializedRowGroupWriter<'a, W>;

fn write_column<T: DataType, W: Write + Send>(
    group: &mut Group<'_, W>,
    cells: &[Option<T::T>],
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else { return Ok(()) };
    let present: Vec<_> = cells.iter().flatten().cloned().collect();
    let levels: Vec<_> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
    column.typed::<T>().write_batch(&present, Some(&levels), None)?;
    column.close()
}
