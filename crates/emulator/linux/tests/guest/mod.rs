//! A guest that executes no instructions: tests make its system calls by setting registers.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use longma_guest::host::locks::Mutex;
use longma_linux::{Engine, Outcome, Process, ProcessConfig, Thread};
use longma_loongarch::State;

/// The size of the memory for `put`.
const SCRATCH_BYTES: u64 = 1 << 20;

/// A loaded process and its first thread.
pub struct Guest {
    pub process: Arc<Process>,
    pub thread: Thread,
    state: State,
    scratch: u64,
    used: u64,
    /// Contains the program and the files of the test.
    pub directory: tempfile::TempDir,
}

/// One loadable segment for [`elf`].
#[derive(Clone, Copy)]
pub struct Load {
    pub address: u64,
    pub offset: u64,
    pub file_bytes: u64,
    pub memory_bytes: u64,
    pub flags: u32,
}

/// Builds an ELF file of `total` bytes with these segments.
pub fn elf(kind: u16, entry: u64, loads: &[Load], total: usize) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [kind, 258] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes());
    for word in [entry, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0x43u32.to_le_bytes());
    for half in [64, 56, loads.len() as u16, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    for load in loads {
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(load.flags.to_le_bytes());
        for word in [load.offset, load.address, load.address, load.file_bytes, load.memory_bytes, 0x4000] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.resize(total.max(bytes.len()), 0);
    bytes
}

/// The smallest program: one page of code at 2 MiB.
pub fn smallest() -> Vec<u8> {
    let code = Load { address: 0x20_0000, offset: 0, file_bytes: 0x4000, memory_bytes: 0x4000, flags: 5 };
    elf(2, 0x20_0100, &[code], 0x4000)
}

impl Guest {
    /// Loads the smallest program, without a root.
    pub fn new() -> Self {
        Self::with(|directory| ProcessConfig {
            program: directory.join("program"),
            ..ProcessConfig::default()
        })
    }

    /// Loads the smallest program with the fixture's directory `root` as its root.
    pub fn confined() -> Self {
        Self::with(|directory| ProcessConfig {
            program: PathBuf::from("/program"),
            root: Some(directory.to_owned()),
            ..ProcessConfig::default()
        })
    }

    /// Loads this program, without a root.
    pub fn of(program: &[u8]) -> Self {
        let config = |directory: &Path| ProcessConfig {
            program: directory.join("program"),
            ..ProcessConfig::default()
        };
        Self::of_program(program, config)
    }

    /// Loads the smallest program with the configuration that `config` returns for the fixture's directory.
    pub fn with(config: impl FnOnce(&Path) -> ProcessConfig) -> Self {
        Self::of_program(&smallest(), config)
    }

    fn of_program(program: &[u8], config: impl FnOnce(&Path) -> ProcessConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("program"), program).unwrap();
        let mut config = config(directory.path());
        config.arguments = vec!["program".into()];
        let (process, thread, state) = Process::load(config).unwrap();
        let mut guest = Self { process, thread, state, scratch: 0, used: 0, directory };
        guest.scratch = guest.map(SCRATCH_BYTES, 3);
        guest
    }

    /// Makes a system call; a negative result is an error number.
    pub fn call(&mut self, number: u64, arguments: &[u64]) -> i64 {
        self.state.set_r(11, number);
        for index in 0..6 {
            self.state.set_r(4 + index, arguments.get(usize::from(index)).copied().unwrap_or(0));
        }
        assert_eq!(self.thread.syscall(&mut self.state), Outcome::Continue);
        self.state.r(4) as i64
    }

    /// Maps new private memory.
    pub fn map(&mut self, bytes: u64, protection: u64) -> u64 {
        let address = self.call(222, &[0, bytes, protection, 0x22, u64::MAX, 0]);
        assert!(address > 0, "{address}");
        address as u64
    }

    /// Writes bytes to guest memory and returns their address.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        let address = self.scratch + self.used;
        self.used += (bytes.len() as u64).next_multiple_of(16);
        assert!(self.used <= SCRATCH_BYTES, "the fixture's memory is full");
        self.process.memory().write(address, bytes).unwrap();
        address
    }

    /// Writes a terminated path to guest memory.
    pub fn path(&mut self, path: impl AsRef<Path>) -> u64 {
        use std::os::unix::ffi::OsStrExt;
        let bytes = [path.as_ref().as_os_str().as_bytes(), b"\0"].concat();
        self.put(&bytes)
    }

    /// Reads guest memory.
    pub fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.process.memory().read(address, &mut bytes).unwrap();
        bytes
    }

    /// Opens a path (openat).
    pub fn open(&mut self, path: impl AsRef<Path>, flags: i32) -> i64 {
        let path = self.path(path);
        self.call(56, &[libc::AT_FDCWD as u64, path, flags as u64, 0o600])
    }

    /// Reads up to 64 KiB from a descriptor.
    pub fn read(&mut self, descriptor: i64) -> Vec<u8> {
        let buffer = self.map(1 << 16, 3);
        let mut all = Vec::new();
        loop {
            let count = self.call(63, &[descriptor as u64, buffer, 1 << 16]);
            assert!(count >= 0, "{count}");
            if count == 0 {
                return all;
            }
            all.extend(self.bytes(buffer, count as usize));
        }
    }
}

/// A system call's number and its first arguments.
pub type Call = (u64, [u64; 3]);

/// An engine that runs the guest's second thread, which repeats the same calls.
struct Repeater {
    calls: Vec<Call>,
    stop: Arc<AtomicBool>,
    running: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl Engine for Repeater {
    fn spawn(&self, mut thread: Thread, mut state: State) -> std::io::Result<i32> {
        let (calls, stop) = (self.calls.clone(), self.stop.clone());
        let (sender, receiver) = mpsc::channel();
        let running = std::thread::spawn(move || {
            thread.begin(&mut state);
            sender.send(thread.tid()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                for (number, arguments) in &calls {
                    state.set_r(11, *number);
                    (0..3).for_each(|index| state.set_r(4 + index, arguments[usize::from(index)]));
                    assert_eq!(thread.syscall(&mut state), Outcome::Continue);
                }
            }
        });
        *self.running.lock().unwrap() = Some(running);
        receiver.recv().map_err(std::io::Error::other)
    }

    fn invalidate(&self, _: std::ops::Range<u64>) {}
}

/// The guest's second thread, which is stopped on drop.
pub struct OtherThread {
    stop: Arc<AtomicBool>,
    running: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl Drop for OtherThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(running) = self.running.lock().unwrap().take() {
            running.join().unwrap();
        }
    }
}

impl Guest {
    /// Starts a second thread that repeats these calls. Only one may exist.
    pub fn other_thread(&mut self, calls: &[Call]) -> OtherThread {
        /// CLONE_VM, FS, FILES, SIGHAND and THREAD.
        const THREAD: u64 = 0x1_0f00;
        let (stop, running) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let other = OtherThread { stop: stop.clone(), running: Arc::clone(&running) };
        self.process.set_engine(Arc::new(Repeater { calls: calls.to_vec(), stop, running }));
        let stack = self.map(1 << 16, 3) + (1 << 16);
        let returned = self.call(220, &[THREAD, stack]);
        assert!(returned > 0, "{returned}");
        other
    }
}

/// An error number as a call returns it.
pub fn error(number: i32) -> i64 {
    -i64::from(number)
}
