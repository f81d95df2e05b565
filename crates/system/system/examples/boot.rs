//! Boots a Linux kernel with the console on standard output and input:
//! `cargo run -p longma-system --example boot -- --kernel vmlinuz --initrd initrd.cpio.gz --append "console=ttyS0"`.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use clap::Parser;
use longma_system::boot::{self, Kernel};
use longma_system::{Configuration, Machine, Stop};

/// Boots a Linux kernel for LoongArch64.
#[derive(Parser)]
struct Arguments {
    /// The kernel: vmlinuz.efi (zstd), vmlinux.efi or vmlinux
    #[arg(long)]
    kernel: PathBuf,
    /// The initial RAM disk
    #[arg(long)]
    initrd: Option<PathBuf>,
    /// The kernel's command line
    #[arg(long, default_value = "console=ttyS0,115200")]
    append: String,
    /// Memory in MiB
    #[arg(long, default_value_t = 1024)]
    memory: u64,
    /// Stop after this many cycles
    #[arg(long)]
    cycles: Option<u64>,
}

/// Cycles between looks at standard input.
const SLICE: u64 = 10_000_000;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(stop) => {
            eprintln!("boot: {stop}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("boot: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<String, Box<dyn std::error::Error>> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let image = read(&arguments.kernel)?;
    let initrd = arguments.initrd.as_ref().map(read).transpose()?;
    let memory_bytes = arguments.memory << 20;
    let mut machine = Machine::new(&Configuration { memory_bytes, ..Configuration::default() })?;
    let kernel = Kernel { image: &image, initrd: initrd.as_deref(), command_line: &arguments.append };
    boot::load(&mut machine, &kernel)?;

    let typed = standard_input();
    let mut waiting = Vec::new();
    let limit = arguments.cycles.unwrap_or(u64::MAX);
    loop {
        let stop = machine.run(SLICE.min(limit - machine.cycles()));
        let mut output = std::io::stdout().lock();
        output.write_all(&machine.take_console_output())?;
        output.flush()?;
        if stop == Stop::Idle && waiting.is_empty() {
            match typed.recv_timeout(Duration::from_secs(3600)) {
                Ok(bytes) => waiting = bytes,
                Err(_) => return Ok("the core waits and there is no input".into()),
            }
        }
        waiting.extend(typed.try_iter().flatten());
        let taken = machine.type_on_console(&waiting);
        waiting.drain(..taken);
        match stop {
            Stop::PowerOff | Stop::Reset => return Ok(format!("{stop:?} after {} cycles", machine.cycles())),
            Stop::Limit if machine.cycles() >= limit => {
                return Ok(format!("{} cycles, at {:#x}", machine.cycles(), machine.state().pc));
            }
            Stop::Limit | Stop::Idle => {}
        }
    }
}

/// Reads standard input on a thread of its own, since reading waits.
fn standard_input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(count @ 1..) = std::io::stdin().read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}
