//! Captures a process as an image. `pages` reads the contents of its memory.

use longma_locks::IgnorePoison;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use longma_guest::host::descriptors;
use longma_guest::{Mapping, Protection};
use sha2::{Digest, Sha256};

use super::{ImageError, MappingImage, ProcessImage, ThreadImage, files};
use crate::fixed_identity::FixedIdentity;
use crate::simulated::{Simulation, ThreadNumber};
use crate::{Process, open_files};
use longma_guest::elf::Architecture;

/// The SHA-256 of a file in hexadecimal.
pub(super) fn hash_of(mut file: File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn protection_bits(protection: Protection) -> u8 {
    u8::from(protection.read) | u8::from(protection.write) << 1 | u8::from(protection.execute) << 2
}

fn mapping_image(range: Range<u64>, mapping: &Mapping) -> Result<MappingImage, ImageError> {
    let origin = &mapping.origin;
    if origin.window.is_some() {
        return Err(ImageError::Device {
            name: origin.name.clone(),
            use_of: format!("mapped at {:#x}", range.start),
        });
    }
    let shared_with_others = mapping.shared
        && (origin.is_file && mapping.protection.write
            || origin.inode != 0 && !origin.is_file
            || mapping.is_segment());
    if shared_with_others {
        return Err(ImageError::Mapping { start: range.start, name: origin.name.clone() });
    }
    Ok(MappingImage {
        start: range.start,
        end: range.end,
        protection: protection_bits(mapping.protection),
        shared: mapping.shared,
        origin: (origin.name.clone(), origin.device, origin.inode, origin.is_file),
        offset: mapping.offset,
        wipe_on_fork: mapping.wipe_on_fork,
        dont_fork: mapping.dont_fork,
        marks: mapping.marks.bits(),
    })
}

/// Refuses shared memory with two overlapping mappings, which would become separate memory when restored.
fn check_views(mappings: &[(Range<u64>, Mapping)]) -> Result<(), ImageError> {
    let shared = mappings.iter().filter(|(_, mapping)| mapping.shared && !mapping.origin.is_file);
    let mut parts: Vec<_> = shared
        .map(|(range, mapping)| {
            let end = mapping.offset.saturating_add(range.end - range.start);
            (Arc::as_ptr(&mapping.origin), mapping.offset, end, range.start)
        })
        .collect();
    parts.sort_unstable();
    // Within one memory object, a mapping that starts before the previous one ends.
    let overlapping = parts.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[1].1 < pair[0].2);
    overlapping.map_or(Ok(()), |pair| Err(ImageError::Views { start: pair[0].3, other: pair[1].3 }))
}

impl Process {
    /// Captures the process without its memory contents ([`contents`](crate::image::contents)). Its threads must be
    /// stopped, each between two instructions or at a call that has had no effect. `threads` holds the live threads in
    /// order.
    ///
    /// # Errors
    /// The process has state that cannot be captured.
    pub fn image(&self, mut threads: Vec<ThreadImage>) -> Result<ProcessImage, ImageError> {
        let simulation = self.simulation().ok_or(ImageError::NotSimulated)?;
        self.check_capturable(simulation)?;
        let program_hash = self
            .root
            .open_to_read(&self.executable)
            .and_then(hash_of)
            .map_err(|error| ImageError::host("read the program", error))?;
        threads.iter_mut().try_for_each(|thread| complete(thread, simulation))?;
        let mappings = self.mapping_images()?;
        let mut timers = simulation.timers.lock().ignore_poison();
        timers.remove_closed();
        let working_directory =
            std::env::current_dir().map_err(|error| ImageError::host("find the working directory", error))?;
        let open_files = descriptors::limit();
        Ok(ProcessImage {
            executable: path_bytes(&self.executable),
            program_hash,
            arguments: self.arguments.clone(),
            environment: self.config.environment.iter().map(|text| text.as_bytes().to_vec()).collect(),
            working_directory: path_bytes(&working_directory),
            started_in: self
                .fixed_identity
                .as_ref()
                .and_then(FixedIdentity::work)
                .map_or_else(Vec::new, path_bytes),
            first_program: self
                .fixed_identity
                .as_ref()
                .map(FixedIdentity::program)
                .filter(|program| *program != self.executable)
                .map_or_else(Vec::new, path_bytes),
            limits: self.limits.all().iter().map(|limit| (limit.resource, limit.soft, limit.hard)).collect(),
            open_files: (open_files.soft, open_files.hard),
            umask: open_files::umask(),
            limit: self.memory().limit(),
            top: self.space.top(),
            heap: self.space.heap(),
            stack: (
                self.stack.pointer,
                self.stack.arguments,
                self.stack.environment,
                self.stack.auxiliary.clone(),
            ),
            program_range: (self.program_range.start, self.program_range.end),
            signal_return: self.signal_return_address(),
            mappings,
            actions: self.dispositions.lock().iter().map(|action| action.words()).collect(),
            files: files::capture(
                &self.own_descriptors,
                &self.standard_files,
                &self.config.devices,
                &simulation.inherited,
            )?,
            threads,
            threads_made: self.threads_made.load(std::sync::atomic::Ordering::Acquire),
            random: simulation.random_state(),
            shown_ps: simulation.shown_time().ps(),
            timers: timers.image().ok_or(ImageError::Timer)?,
            timers_made: timers.made(),
        })
    }

    fn mapping_images(&self) -> Result<Vec<MappingImage>, ImageError> {
        let mappings = self.space.mappings();
        check_views(&mappings)?;
        mappings.into_iter().map(|(range, mapping)| mapping_image(range, &mapping)).collect()
    }

    /// Refuses a process with kernel or engine state that an image does not contain.
    fn check_capturable(&self, simulation: &Simulation) -> Result<(), ImageError> {
        if self.architecture() != Architecture::LoongArch64 {
            return Err(ImageError::Translated);
        }
        if has_children().map_err(|error| ImageError::host("check for children", error))? {
            return Err(ImageError::Children);
        }
        if let Some(state) = self.uncaptured() {
            return Err(ImageError::UnsupportedState(state));
        }
        if simulation.sched_attributes.is_changed(&simulation.identities.alive()) {
            return Err(ImageError::UnsupportedState("changed its priority"));
        }
        Ok(())
    }
}

/// Adds a thread's state in the host kernel to its image.
fn complete(thread: &mut ThreadImage, simulation: &Simulation) -> Result<(), ImageError> {
    let host = simulation.identities.host_thread(ThreadNumber(thread.number));
    thread.name = host.map(name_of).unwrap_or_default();
    match host.and_then(pending_signals) {
        None => Ok(()),
        Some(signals) => {
            let what = format!("has pending signals (set {signals:#x})");
            Err(ImageError::Thread { number: thread.number, what })
        }
    }
}

fn path_bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// The name of a host thread (PR_SET_NAME).
fn name_of(thread: i32) -> Vec<u8> {
    let mut name = std::fs::read(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
    // Remove the newline.
    name.pop();
    name
}

/// Whether this process has children, including zombies.
fn has_children() -> io::Result<bool> {
    let every_change = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
    let options = libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: `libc::siginfo_t` is plain data.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is valid for writes.
    if unsafe { libc::waitid(libc::P_ALL, 0, &mut info, every_change | options) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ECHILD) { Ok(false) } else { Err(error) }
}

/// The signals that are pending for a host thread or its process; `None` if there are none.
fn pending_signals(thread: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let set = |name| u64::from_str_radix(open_files::fact(&text, name)?, 16).ok();
    let signals = set("SigPnd").unwrap_or(0) | set("ShdPnd").unwrap_or(0);
    (signals != 0).then_some(signals)
}
