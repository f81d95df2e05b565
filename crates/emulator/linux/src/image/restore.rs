//! Restores a process from an image. The caller provides the scheduler and the host threads.

use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use longma_guest::elf::stack::StackContents;
use longma_guest::host::descriptors;
use longma_guest::{
    AddressSpace, Backing, GuestMemory, MapRequest, Marks, Origin, PAGE_BYTES, Placement, Protection,
};
use longma_loongarch::State;
use longma_sim::Time;

use super::capture::hash_of;
use super::pages::write_contents;
use super::{ImageError, MappingImage, ProcessImage, ThreadImage, files};
use crate::fixed_identity::FixedIdentity;
use crate::open_files;
use crate::process::dispositions::Action;
use crate::process::{BARRIER_REGISTRATIONS, Parts, ProcessConfig, StoredLimit, is_emulated_only};
use crate::root::Root;
use crate::simulated::timers::Timers;
use crate::simulated::{Simulation, ThreadNumber};
use crate::{Process, Thread};

/// Returns runs of memory contents: guest address and bytes.
type Contents<'a> = dyn FnMut() -> Result<Option<(u64, Vec<u8>)>, ImageError> + 'a;

impl ProcessImage {
    /// Checks the invariants that do not depend on the host.
    fn check(&self) -> Result<(), ImageError> {
        let inconsistent = |what| Err(ImageError::Inconsistent(what));
        if self.actions.len() != 64 {
            return inconsistent("the number of signals differs");
        }
        if self.threads.is_empty() || self.threads.windows(2).any(|pair| pair[0].number >= pair[1].number) {
            return inconsistent("its threads are not sorted");
        }
        if self.threads.iter().any(|thread| thread.number >= self.threads_made) {
            return inconsistent("it has more threads than it has created");
        }
        let page = |address: u64| address.is_multiple_of(PAGE_BYTES);
        let mut at = PAGE_BYTES;
        for mapping in &self.mappings {
            if !page(mapping.start)
                || !page(mapping.end)
                || mapping.start < at
                || mapping.end <= mapping.start
            {
                return inconsistent("its mappings are not sorted");
            }
            at = mapping.end;
        }
        let (start, end) = self.heap;
        if at > self.limit || !page(self.top) || self.top > self.limit || end < start || end > self.top {
            return inconsistent("its mappings reach beyond its memory");
        }
        if self.threads_made > 1 << 20 {
            return inconsistent("it has created more threads than can exist");
        }
        Ok(())
    }
}

impl MappingImage {
    fn length(&self) -> u64 {
        self.end - self.start
    }

    fn protection(&self) -> Protection {
        Protection::from_bits(self.protection.into())
    }

    /// The request for the mapping before its contents are written. Shared memory is mapped writable, because otherwise
    /// the kernel does not permit writing its contents.
    fn request(&self) -> MapRequest {
        let (name, device, inode, is_file) = self.origin.clone();
        MapRequest {
            placement: Placement::Fixed(self.start),
            length: self.length(),
            protection: Protection { write: self.shared || self.protection().write, ..self.protection() },
            shared: self.shared,
            backing: Backing::Saved {
                origin: Arc::new(Origin { name, device, inode, is_file, window: None }),
                offset: self.offset,
            },
            flags: libc::MAP_NORESERVE,
            grows_down: Marks::from_bits(self.marks).grows_down,
        }
    }
}

/// A restored process and its threads in order.
pub type RestoredProcess = (Arc<Process>, Vec<(Thread, State)>);

impl Process {
    /// Restores a process. `config` provides the scheduler, the tracer and the root; program, arguments and environment
    /// come from the image. `contents` is called until it returns `None`.
    ///
    /// # Errors
    /// The image is inconsistent, the program file has changed, or the host refuses an operation.
    pub fn restore(
        mut config: ProcessConfig,
        image: &ProcessImage,
        contents: &mut Contents<'_>,
    ) -> Result<RestoredProcess, ImageError> {
        image.check()?;
        let Some(simulated) = config.simulation.clone() else { return Err(ImageError::NotSimulated) };
        let os = std::ffi::OsString::from_vec;
        config.program = PathBuf::from(os(image.executable.clone()));
        config.arguments = image.arguments.iter().cloned().map(os).collect();
        config.environment = image.environment.iter().cloned().map(os).collect();
        let own_descriptors = open_files::initial_emulator_descriptors();
        let root =
            Root::new(config.root.as_deref()).map_err(|error| ImageError::host("use the root", error))?;
        check_program(&root, image)?;
        let memory = GuestMemory::reserve().map_err(|error| ImageError::host("reserve memory", error))?;
        if memory.limit() < image.limit {
            let error = longma_guest::Errno(libc::ENOMEM);
            return Err(ImageError::host("reserve as much memory as the process had", error));
        }
        let space = space(memory, image, contents)?;
        let simulation = Arc::new(Simulation::new(&simulated, space.memory()));
        let timers = Timers::of_image(&image.timers, image.timers_made);
        let wrong = ImageError::Inconsistent("its timers are invalid");
        simulation.resume(image.random, image.shown_ps, timers.ok_or(wrong)?);
        let work = PathBuf::from(os(image.started_in.clone()));
        let program = match image.first_program.is_empty() {
            true => config.program.clone(),
            false => PathBuf::from(os(image.first_program.clone())),
        };
        let fixed_identity =
            config.fixed_identity.then(|| FixedIdentity::new(&program, &work, root.is_confined()));
        let limits = image.limits.iter();
        config.limits = limits.map(|&(resource, soft, hard)| StoredLimit { resource, soft, hard }).collect();
        let parts = Parts {
            space,
            fixed_identity,
            executable: config.program.clone(),
            arguments: image.arguments.clone(),
            stack: StackContents {
                pointer: image.stack.0,
                arguments: image.stack.1,
                environment: image.stack.2,
                auxiliary: image.stack.3.clone(),
            },
            program_range: image.program_range.0..image.program_range.1,
            signal_return: image.signal_return,
            threads: image.threads.len() as u32,
            threads_made: image.threads_made,
            own_descriptors,
            areas: None,
        };
        let process = Self::assemble(config, root, Some(simulation), parts);
        // Checkpoints do not contain registrations for memory barriers, and a program may rely on the registrations
        // that it has made.
        process.barriers.store(BARRIER_REGISTRATIONS, Ordering::Relaxed);
        let threads = image.threads.iter().map(|saved| saved.thread(&process)).collect::<Result<_, _>>()?;
        process.restore_kernel_state(image)?;
        Ok((process, threads))
    }

    /// Restores process state in the host kernel: signal dispositions, working directory, files.
    fn restore_kernel_state(&self, image: &ProcessImage) -> Result<(), ImageError> {
        for (signal, [handler, flags, mask]) in (1..).zip(image.actions.iter().copied()) {
            let action = Action { handler, flags, mask };
            if self.dispositions.get(signal) != action {
                self.dispositions.set(signal, action);
            }
        }
        let directory = PathBuf::from(std::ffi::OsString::from_vec(image.working_directory.clone()));
        std::env::set_current_dir(&directory).map_err(|error| {
            ImageError::host(format!("change to the working directory {}", directory.display()), error)
        })?;
        // SAFETY: the call takes no pointers.
        unsafe { libc::umask(image.umask) };
        files::restore(&image.files, &self.own_descriptors)?;
        self.limit(image)
    }

    /// Restores the limits that the process had set.
    fn limit(&self, image: &ProcessImage) -> Result<(), ImageError> {
        let limit_error =
            |what: &str, error| ImageError::host(format!("restore the process's limit of {what}"), error);
        for &(resource, soft, hard) in image.limits.iter().filter(|limit| !is_emulated_only(limit.0)) {
            let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
            // SAFETY: the structure is live.
            if unsafe { libc::setrlimit(resource as _, &raw const limit) } != 0 {
                let error = std::io::Error::last_os_error();
                return Err(limit_error(&format!("resource {resource}"), error.into()));
            }
        }
        let (soft, hard) = image.open_files;
        let saved_limit = descriptors::Limit { soft, hard };
        if saved_limit == descriptors::limit() {
            return Ok(());
        }
        descriptors::set_limit(saved_limit).map_err(|error| limit_error("open files", error))
    }
}

impl ThreadImage {
    fn thread(&self, process: &Arc<Process>) -> Result<(Thread, State), ImageError> {
        let mut thread = Thread::new(process.clone(), ThreadNumber(self.number), self.kernel.mask);
        thread.set_kernel_state(&self.kernel);
        thread.name = Some(self.name.clone()).filter(|name| !name.is_empty());
        thread.resumes_until = self.deadline_ps.map(Time::from_ps);
        Ok((thread, self.state()?))
    }
}

fn check_program(root: &Root, image: &ProcessImage) -> Result<(), ImageError> {
    let path = PathBuf::from(std::ffi::OsString::from_vec(image.executable.clone()));
    let opened = root.open_to_read(&path).and_then(hash_of);
    let program_hash = opened.map_err(|error| ImageError::host(format!("read {}", path.display()), error))?;
    if program_hash == image.program_hash {
        Ok(())
    } else {
        Err(ImageError::OtherProgram { path: path.display().to_string() })
    }
}

/// Restores the address space and its contents.
fn space(
    memory: GuestMemory,
    image: &ProcessImage,
    contents: &mut Contents<'_>,
) -> Result<AddressSpace, ImageError> {
    let mut space = AddressSpace::new(memory);
    space.set_top(image.top);
    space.restore_heap(image.heap);
    for mapping in &image.mappings {
        space
            .map(&mapping.request())
            .map_err(|error| ImageError::host(format!("map memory at {:#x}", mapping.start), error))?;
        let kept_from_children =
            [(mapping.wipe_on_fork, libc::MADV_WIPEONFORK), (mapping.dont_fork, libc::MADV_DONTFORK)];
        for (_, advice) in kept_from_children.into_iter().filter(|(is_set, _)| *is_set) {
            space
                .advise(mapping.start, mapping.length(), advice)
                .map_err(|error| ImageError::host("exclude memory from children", error))?;
        }
    }
    let file = File::options()
        .write(true)
        .open("/proc/self/mem")
        .map_err(|error| ImageError::host("open the memory of this process", error))?;
    while let Some((address, bytes)) = contents()? {
        write_contents(&space, &file, address, &bytes)?;
    }
    for mapping in image.mappings.iter().filter(|mapping| mapping.shared) {
        space
            .protect(mapping.start, mapping.length(), mapping.protection())
            .map_err(|error| ImageError::host(format!("protect memory at {:#x}", mapping.start), error))?;
    }
    for mapping in &image.mappings {
        space
            .restore_marks(mapping.start, mapping.length(), Marks::from_bits(mapping.marks))
            .map_err(|error| ImageError::host("restore guards and seals", error))?;
    }
    Ok(space)
}
