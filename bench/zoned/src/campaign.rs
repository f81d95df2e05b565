//! Runs a measurement in pieces, each in its own process, and continues from a results file.

use crate::figures::{Figures, figures};
use crate::measure::{Phase, Piece, Task};
use crate::memory::Limit;
use crate::{Options, Outcome};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A campaign: the pieces measured so far, and the engines' folder.
pub struct Campaign {
    options: Options,
    pieces: Vec<Piece>,
    /// How many more pieces may be measured.
    left: usize,
    folder: PathBuf,
    /// Removed with the campaign; `None` if a folder was given.
    _temporary: Option<TempDir>,
}

impl Campaign {
    /// Reads the results file.
    pub fn open(options: &Options) -> Outcome<Self> {
        let text = match &options.results {
            Some(file) if file.exists() => std::fs::read_to_string(file)
                .map_err(|error| format!("{} cannot be read: {error}", file.display()))?,
            _ => String::new(),
        };
        let read = |(number, line): (usize, &str)| {
            serde_json::from_str(line)
                .map_err(|error| format!("line {} of the results is not a piece: {error}", number + 1))
        };
        let pieces = text.lines().enumerate().map(read).collect::<Outcome<Vec<Piece>>>()?;
        let temporary = match (&options.results, &options.folder) {
            (Some(_), _) => None,
            (None, Some(folder)) => Some(tempfile::tempdir_in(folder)),
            (None, None) => Some(tempfile::tempdir()),
        };
        let temporary = temporary.transpose().map_err(|error| format!("cannot make a folder: {error}"))?;
        let folder = temporary.as_ref().map(|made| made.path().to_path_buf()).or(options.folder.clone());
        let left = options.pieces.unwrap_or(usize::MAX);
        let folder = folder.ok_or("say --folder")?;
        Ok(Self { options: options.clone(), pieces, left, folder, _temporary: temporary })
    }

    /// Measures the missing pieces of a task; returns its figures, or `None` if the limit of pieces is reached first.
    pub fn complete(&mut self, task: &Task) -> Outcome<Option<Figures>> {
        let place = self.folder.join(task.name());
        for phase in Phase::ALL {
            loop {
                let of_phase = |piece: &&Piece| piece.task == *task && piece.phase == phase;
                let done = self.pieces.iter().filter(of_phase).map(|piece| piece.to).max().unwrap_or(0);
                if done >= phase.operations(task) {
                    break;
                }
                if self.left == 0 {
                    return Ok(None);
                }
                self.left -= 1;
                if done == 0 && phase.begins_anew() && place.exists() {
                    std::fs::remove_dir_all(&place).map_err(|error| error.to_string())?;
                }
                std::fs::create_dir_all(&place).map_err(|error| error.to_string())?;
                let piece = self.child(task, phase, done, &place)?;
                self.keep(piece)?;
            }
        }
        if place.exists() {
            std::fs::remove_dir_all(&place).map_err(|error| error.to_string())?;
        }
        figures(task, &self.pieces).map(Some)
    }

    fn child(&self, task: &Task, phase: Phase, from: u64, place: &std::path::Path) -> Outcome<Piece> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["--one", &task.engine, "--shape", task.shape.name()]);
        command.args(["--durability", task.durability.name(), "--phase", phase.name()]);
        command.args(["--records", &task.records.to_string(), "--batch", &task.batch.to_string()]);
        command.args(["--cache-mib", &task.cache_mib.to_string(), "--from", &from.to_string()]);
        command.args(["--piece-seconds", &self.options.piece_seconds.to_string()]);
        match task.memory_mib {
            Some(mib) => command.args(["--memory-mib", &mib.to_string()]),
            None => command.arg("--no-memory-limit"),
        };
        command.arg("--folder").arg(place).stderr(Stdio::inherit());
        let limit = task.memory_mib.map(|mib| Limit::new(mib << 20)).transpose()?;
        if let Some(limit) = &limit {
            limit.hold(&mut command);
        }
        let output = command.output().map_err(|error| error.to_string())?;
        if let (Some(9), Some(mib)) = (output.status.signal(), task.memory_mib) {
            return Err(format!(
                "{} from {from} was killed: {mib} MiB of memory may be too little",
                phase.name()
            ));
        }
        if !output.status.success() {
            return Err(format!("{} from {from} ended with {}", phase.name(), output.status));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("a piece cannot be read: {error}"))
    }

    fn keep(&mut self, piece: Piece) -> Outcome {
        let line = serde_json::to_string(&piece).map_err(|error| error.to_string())?;
        let Piece { task, phase, from, to, seconds, .. } = &piece;
        eprintln!("{} {}: {from} to {to} in {seconds:.1} s", task.name(), phase.name());
        if let Some(file) = &self.options.results {
            let opened = std::fs::File::options().append(true).create(true).open(file);
            opened
                .and_then(|mut opened| writeln!(opened, "{line}"))
                .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
        }
        self.pieces.push(piece);
        Ok(())
    }
}
