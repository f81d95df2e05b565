//! The figures and tables of experiments as files, for papers and other programs.

use super::status::{HostError, io_error};
use longma_lab::{Chapter, FigureFile, figures, write_atomically};
use std::error::Error;
use std::path::Path;

/// Files by name.
pub type Files = Vec<(String, Vec<u8>)>;

/// The files of all chapters: each figure as SVG and PDF, each table as CSV and Parquet.
///
/// # Errors
/// If a figure or a table cannot be encoded.
pub fn files(chapters: &[Chapter<'_>]) -> Result<Files, HostError> {
    let mut files = Files::new();
    for chapter in chapters {
        let figures = figures(chapter).into_iter().map(|FigureFile { name, svg }| (name, svg));
        files.extend(charts(figures)?);
        let name = &chapter.campaign.experiment.parts().name;
        files.push((format!("{name}.csv"), chapter.table.to_csv().into_bytes()));
        #[cfg(feature = "parquet")]
        {
            let encoded = chapter.table.to_parquet();
            let encoded =
                encoded.map_err(|what| HostError(format!("cannot encode {name}.parquet: {what}")))?;
            files.push((format!("{name}.parquet"), encoded));
        }
    }
    Ok(files)
}

/// Charts, given as the name `NAME.svg` and the SVG document, as SVG and as PDF.
///
/// # Errors
/// If a chart cannot be converted.
pub fn charts(charts: impl Iterator<Item = (String, String)>) -> Result<Files, HostError> {
    let mut files = Files::new();
    for (name, svg) in charts {
        #[cfg(feature = "pdf")]
        {
            let pdf = longma_lab::pdf(&svg);
            let pdf = pdf.map_err(|what| HostError(format!("cannot convert {name} to PDF: {what}")))?;
            files.push((name.replace(".svg", ".pdf"), pdf));
        }
        files.push((name, svg.into_bytes()));
    }
    Ok(files)
}

/// Writes the files to a folder.
///
/// # Errors
/// If one cannot be written.
pub fn write(folder: &Path, files: Files) -> Result<(), Box<dyn Error>> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error| io_error(format!("cannot write {path}: {error}"), &error)
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    for (name, bytes) in files {
        let path = folder.join(name);
        write_atomically(&path, &bytes).map_err(failed(&path))?;
    }
    Ok(())
}
