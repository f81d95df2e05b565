//! A process saved.
//! Not its memory's contents: see `pages`.
//! Source: our own.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;

use sha2::{Digest, Sha256};

use super::{ImageError, MappingImage, ProcessImage, ThreadImage, files};
use crate::simulated::{ThreadNumber, lock};
use crate::{Mapping, Process, Protection};

/// SHA-256 of a file, hexadecimal.
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

fn mapping_image(range: std::ops::Range<u64>, mapping: &Mapping) -> Result<MappingImage, ImageError> {
    let origin = &mapping.origin;
    if origin.window.is_some() {
        return Err(ImageError::Device {
            name: origin.name.clone(),
            use_of: format!("mapped at {:#x}", range.start),
        });
    }
    let shared_with_others = mapping.shared
        && (origin.is_file && mapping.protection.write || origin.inode != 0 && !origin.is_file);
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
    })
}

impl Process {
    /// Saves the process but for its memory's contents ([`crate::AddressSpace::contents`]). Its threads must stand still, each
    /// between two instructions or at a call that has had no effect; `threads` are those that are alive, in order.
    ///
    /// # Errors
    /// The process has something that is not kept.
    pub fn image(&self, threads: Vec<ThreadImage>) -> Result<ProcessImage, ImageError> {
        let simulation = self.simulation().ok_or(ImageError::NotSimulated)?;
        if has_children().map_err(|error| ImageError::host("look for children", error))? {
            return Err(ImageError::Children);
        }
        let executable = self.executable.as_os_str().as_bytes().to_vec();
        let program = self
            .root
            .open_to_read(&self.executable)
            .and_then(hash_of)
            .map_err(|error| ImageError::host("read the program", error))?;
        for thread in &threads {
            let host = simulation.identities.host_thread(ThreadNumber(thread.number));
            if let Some(signals) = host.and_then(pending_signals) {
                let what = format!("has signals pending (a set of {signals:#x})");
                return Err(ImageError::Thread { number: thread.number, what });
            }
        }
        let mappings = self.space.mappings();
        let mut timers = lock(&simulation.timers);
        timers.forget_closed();
        let heap = self.space.heap();
        let working_directory =
            std::env::current_dir().map_err(|error| ImageError::host("find the working directory", error))?;
        Ok(ProcessImage {
            executable,
            program_hash: program,
            arguments: self.arguments.clone(),
            environment: self.config.environment.iter().map(|text| text.as_bytes().to_vec()).collect(),
            working_directory: working_directory.as_os_str().as_bytes().to_vec(),
            umask: umask(),
            limit: self.memory().limit(),
            top: self.space.top(),
            heap,
            stack: (
                self.stack.pointer,
                self.stack.arguments,
                self.stack.environment,
                self.stack.auxiliary.clone(),
            ),
            program_range: (self.program_range.start, self.program_range.end),
            signal_return: self.signal_return_address(),
            mappings: mappings
                .into_iter()
                .map(|(range, mapping)| mapping_image(range, &mapping))
                .collect::<Result<_, _>>()?,
            actions: self
                .dispositions
                .lock()
                .iter()
                .map(|action| [action.handler, action.flags, action.mask])
                .collect(),
            files: files::capture(&self.own_descriptors, &self.standard_files, &self.config.devices)?,
            threads,
            threads_made: self.threads_made.load(std::sync::atomic::Ordering::Acquire),
            random: simulation.random_state(),
            shown_ps: simulation.shown_time().ps(),
            timers: timers.image().ok_or(ImageError::Timer)?,
            timers_made: timers.made(),
        })
    }
}

fn umask() -> u32 {
    // It can only be read by setting it.
    // SAFETY: no pointers.
    unsafe {
        let mask = libc::umask(0o022);
        libc::umask(mask);
        mask
    }
}

/// Whether this process has children, those that nobody has waited for yet included.
fn has_children() -> io::Result<bool> {
    let every_change = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
    let only_look = libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: plain data.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is there to be filled.
    if unsafe { libc::waitid(libc::P_ALL, 0, &mut found, every_change | only_look) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ECHILD) { Ok(false) } else { Err(error) }
}

/// The signals that wait for a host thread or its process; `None` if there are none.
fn pending_signals(thread: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(found.trim(), 16).ok()
    };
    let signals = line("SigPnd:").unwrap_or(0) | line("ShdPnd:").unwrap_or(0);
    (signals != 0).then_some(signals)
}
