//! Checkpoints of a campaign: a program is run to its region of interest once, and all points that differ only in what
//! the program cannot notice before the region continue from there.

use super::inputs::program;
use super::root::root;
use super::{Ended, Program, describe_failure, is_host_failure, run_child};
use longma_lab::{Failure, FailureKind, Point, PointMachine, Setting, Stop, digest};
use longma_locks::IgnorePoison;
use longma_topology::Machine;
use longma_topology::parts::Core;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// The bytes of an ELF file's `e_machine`, for LoongArch.
const ELF_LOONGARCH: [u8; 2] = 258u16.to_le_bytes();

/// A process that is saved at the start of its region of interest.
pub(super) struct Checkpoint {
    folder: TempDir,
    /// The program's output before the checkpoint.
    pub output: String,
}

impl Checkpoint {
    pub(super) fn path(&self) -> PathBuf {
        file_in(&self.folder)
    }
}

fn file_in(folder: &TempDir) -> PathBuf {
    folder.path().join("checkpoint")
}

/// A checkpoint, once it is made, or why the program has none.
type Slot = Mutex<Option<Result<Arc<Checkpoint>, Failure>>>;

/// The checkpoints made so far. A thread that needs a checkpoint waits if another thread is making it.
#[derive(Default)]
pub(super) struct Checkpoints {
    made: Mutex<BTreeMap<String, Arc<Slot>>>,
    /// For each machine of a point, the machine on which its checkpoint is made.
    machines: Mutex<BTreeMap<String, Arc<str>>>,
}

/// Whether the point continues from a checkpoint.
pub(super) fn is_used(point: &Point) -> bool {
    let has = |name: &str| point.parameter(name) == Some(&Setting::Flag(true));
    // Level `functional` has no checkpoints; `check` reports that the parameter has no effect there.
    has("checkpoint") && point.text("level") != "functional"
}

/// Refuses parameters that contradict each other.
pub(super) fn check(point: &Point) -> Result<(), Failure> {
    let has = |name: &str| match point.parameter(name) {
        Some(Setting::Texts(texts)) => !texts.is_empty(),
        Some(Setting::Named(texts)) => !texts.is_empty(),
        Some(Setting::Flag(flag)) => *flag,
        _ => !point.text(name).is_empty(),
    };
    if !is_used(point) {
        return Ok(());
    }
    let is_loongarch = |file: Vec<u8>| file.get(18..20) == Some(&ELF_LOONGARCH[..]);
    let mut problem = match () {
        () if !has("roi") => "`checkpoint` is for a region of interest; add `roi = true`",
        () if has("warm") => {
            "`warm` has no effect after a `checkpoint`, which starts cold; remove one of them"
        }
        () if root(point).is_some() || has("files") => {
            "a `checkpoint` cannot contain the copies of `files` or `root`, which each run gets; remove one of them"
        }
        () if has("wire") => "a `checkpoint` cannot contain the sender of `wire`; remove one of them",
        () => "",
    };
    if problem.is_empty() && !std::fs::read(program(point)).is_ok_and(is_loongarch) {
        problem = "a `checkpoint` cannot contain the translation of a program for another architecture; remove it, or build \
            the program for LoongArch64";
    }
    if problem.is_empty() { Ok(()) } else { Err(Failure::refused(problem)) }
}

/// The properties of a core that a program can observe before its region of interest, where each instruction takes one
/// cycle.
fn noticed(core: &Core) -> impl PartialEq + '_ {
    (core.isa, &core.extensions, core.clock, core.threads, &core.caches, core.vector_width, core.page_size)
}

impl Checkpoints {
    /// The machine on which the point's checkpoint is made: the machine without the point's changes, unless the program
    /// could notice them. Points that vary caches, memories and sizes of cores therefore share a checkpoint.
    pub(super) fn machine(&self, point: &Point) -> Option<Arc<str>> {
        let machine = point.machine.as_ref()?;
        let known = format!("{}\n{}\n{}", point.folder.display(), machine.name, machine.digest);
        let mut machines = self.machines.lock().ignore_poison();
        let made = machines.entry(known).or_insert_with(|| {
            unchanged(machine, &point.folder).map_or_else(|| machine.text.clone(), Into::into)
        });
        Some(made.clone())
    }
}

fn unchanged(machine: &PointMachine, folder: &Path) -> Option<String> {
    let is_path = machine.name.contains(['/', '.']);
    let name = if is_path { folder.join(&machine.name).display().to_string() } else { machine.name.clone() };
    let (base, changed) = (Machine::open(&name).ok()?, Machine::parse("machine", &machine.text).ok()?);
    let same_cores = base.cores.len() == changed.cores.len()
        && base
            .cores
            .iter()
            .all(|(name, core)| changed.cores.get(name).is_some_and(|other| noticed(core) == noticed(other)));
    let rest = |machine: &Machine| -> Option<Value> {
        let parts = machine.parts();
        serde_json::to_value((&parts.chips, &parts.devices, &parts.hosts)).ok()
    };
    (same_cores && rest(&base)? == rest(&changed)?).then(|| base.to_toml())
}

impl Program {
    /// The checkpoint's part of the point's inputs: the machine on which it is made.
    pub(super) fn checkpoint_input(&self, point: &Point) -> Option<String> {
        let machine = || self.checkpoints.machine(point).map(|text| digest(text.as_bytes()));
        is_used(point).then(|| machine().unwrap_or_default())
    }

    /// The checkpoint from which the point continues, if it does.
    pub(super) fn checkpoint(&self, point: &Point, stop: &Stop) -> Result<Option<Arc<Checkpoint>>, Failure> {
        check(point)?;
        if !is_used(point) {
            return Ok(None);
        }
        let text = self.checkpoints.machine(point);
        let mut maker = point.clone();
        if let Some((machine, text)) = maker.machine.as_mut().map(Arc::make_mut).zip(text) {
            machine.digest = digest(text.as_bytes()).into();
            machine.text = text;
        }
        for name in ["core", "max_time"] {
            maker.parameters.insert(name.into(), "".into());
        }
        maker.parameters.insert("level".into(), "cache".into());
        maker.parameters.insert("warm".into(), "0".into());
        maker.parameters.insert("max_instructions".into(), Setting::Integer(1));
        maker.parameters.insert("checkpoint".into(), Setting::Flag(false));
        // Used only after the run.
        ["prints", "status"].iter().for_each(|name| maker.parameters.remove(name));
        let machine = maker.machine.as_ref().map(|machine| &*machine.digest);
        let key = json!([machine, maker.parameters, self.program_digest(point)?, program(point)]).to_string();
        let slot = self.checkpoints.made.lock().ignore_poison().entry(key).or_default().clone();
        let mut slot = slot.lock().ignore_poison();
        let made = match slot.take() {
            Some(made) => made,
            None => self.make(&maker, stop).map(Arc::new),
        };
        // The next point tries again what failed because of the host.
        if made.as_ref().err().is_none_or(|failure| failure.kind.is_of_point()) {
            *slot = Some(made.clone());
        }
        made.map(Some)
    }

    fn make(&self, maker: &Point, stop: &Stop) -> Result<Checkpoint, Failure> {
        let folder = tempfile::tempdir()
            .map_err(|error| Failure::host(format!("cannot create a folder for the checkpoint: {error}")))?;
        let files = super::Files::new(maker)?;
        let mut command = self.command(maker, &files, None, super::Start::Saving(&file_in(&folder)));
        let ended = run_child(&mut command, maker.time_limit, stop)?;
        let refuse = |what: String| {
            let kind = if is_host_failure(&ended) { FailureKind::Host } else { FailureKind::Failed };
            // The file's name differs on every run, and the message is part of a result.
            let what = what.replace(&*file_in(&folder).to_string_lossy(), "its file");
            Failure { kind, message: format!("the process could not be saved for its checkpoint: {what}") }
        };
        if !ended.status.success() {
            return Err(refuse(describe_failure(&ended, &program(maker))));
        }
        if !file_in(&folder).is_file() {
            return Err(refuse(super::first_lines(&ended.errors)));
        }
        let Ended { output, .. } = ended;
        Ok(Checkpoint { folder, output })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A point that continues from a checkpoint of the program `file` in `folder`.
    fn point(machine: Option<PointMachine>, folder: &Path) -> Point {
        let text = |name: &str, value: &str| (name.to_string(), Setting::from(value));
        let flag = |name: &str| (name.to_string(), Setting::Flag(true));
        let parameters = [text("level", "timing"), text("program", "file"), flag("roi"), flag("checkpoint")];
        Point {
            key: longma_lab::Key::from("checkpoint"),
            workload: "program".into(),
            machine: machine.map(Arc::new),
            parameters: parameters.into_iter().collect(),
            refused: None,
            location_parameters: &[],
            varied: longma_lab::Varied::default(),
            folder: folder.into(),
            time_limit: None,
        }
    }

    #[test]
    fn a_program_that_cannot_be_saved_runs_once_for_all_points() {
        let folder = tempfile::tempdir().unwrap();
        let mut elf = [0u8; 64];
        elf[18..20].copy_from_slice(&ELF_LOONGARCH);
        fs::write(folder.path().join("file"), elf).unwrap();
        let (longma, runs) = (folder.path().join("longma"), folder.path().join("runs"));
        let show = "for word; do [ \"$last\" = --checkpoint ] && echo \"not written to $word\" >&2; last=$word; done";
        fs::write(
            &longma,
            format!("#!/bin/sh\n{show}\necho x >> {}\neval \"$(cat $0.status)\"\n", runs.display()),
        )
        .unwrap();
        fs::set_permissions(&longma, fs::Permissions::from_mode(0o755)).unwrap();
        let workload = Program::new(&longma);
        let failure = || workload.checkpoint(&point(None, folder.path()), &Stop::default()).err().unwrap();
        let count = || fs::read_to_string(&runs).unwrap().len() / 2;
        // A run that was ended from outside is tried again.
        fs::write(folder.path().join("longma.status"), "kill -9 $$").unwrap();
        for expected in [1, 2] {
            assert_eq!((failure().kind, count()), (FailureKind::Host, expected));
        }
        fs::write(folder.path().join("longma.status"), "exit 7").unwrap();
        for _ in 0..3 {
            let failure = failure();
            assert!(failure.message.ends_with("exit status 7: not written to its file"), "{failure}");
            assert_eq!((failure.kind, count()), (FailureKind::Failed, 3));
        }
    }

    #[test]
    fn a_checkpoint_is_made_without_the_changes_that_a_program_cannot_notice() {
        let made_on = |edit: &str| {
            let machine = longma_lab::open_machine("loongson-3a5000", &[edit.parse().unwrap()]).unwrap();
            let text: Arc<str> = machine.to_toml().into();
            let digest = digest(text.as_bytes()).into();
            let machine = PointMachine {
                name: "loongson-3a5000".into(),
                text,
                digest,
                changes: Arc::default(),
                refused: None,
            };
            Checkpoints::default().machine(&point(Some(machine), Path::new("/"))).unwrap()
        };
        let shared = made_on("caches.l2.size=128KiB");
        for edit in ["caches.l2.size=512KiB", "caches.l1d.latency=5 cycles", "cores.la464.rob_entries=64"] {
            assert!(made_on(edit) == shared, "{edit}");
        }
        for edit in ["cores.la464.clock=2GHz", "hosts.0.count=2"] {
            assert!(made_on(edit) != shared, "{edit}");
        }
    }
}
