//! The checks of `longma doctor`. Each check examines a part of the host, and lists the commands that need it, the
//! commands that work without it, and how to install it on Debian.

use crate::{probes, programs, system};

/// The result of checking one part of the host.
pub struct Check {
    /// Heading of the part's group.
    pub group: &'static str,
    /// Name of the part.
    pub name: &'static str,
    /// Whether it works.
    pub is_ok: bool,
    /// Whether the emulator needs it.
    pub is_vital: bool,
    /// A description of the part, or of the fault.
    pub found: String,
    /// The commands that need it.
    pub needed_for: &'static str,
    /// The commands that work without it.
    pub without: &'static str,
    /// How to get it.
    pub get: &'static str,
}

impl Check {
    /// The description, shortened if it is very long.
    pub fn shown(&self) -> String {
        const MAX_SHOWN: usize = 200;
        let cut = self.found.char_indices().nth(MAX_SHOWN).map(|(at, _)| format!("{}...", &self.found[..at]));
        cut.unwrap_or_else(|| self.found.clone())
    }
}

/// A part of the host to check.
struct Part {
    name: &'static str,
    needed_for: &'static str,
    without: &'static str,
    get: &'static str,
    /// Returns a description of the part if it works, otherwise of the fault.
    probe: fn() -> Result<String, String>,
}

const EMULATOR: &str = "Emulator";

/// Checks every part.
pub fn all() -> Vec<Check> {
    let groups = [(EMULATOR, EMULATOR_PARTS), ("Measuring", MEASURING), ("Messages and storage", DEVICES)];
    let groups =
        groups.into_iter().chain([("Virtual machines", MACHINES), ("Building and testing longma", TOOLS)]);
    let probe = |group| move |part: &Part| part.probe(group);
    let mut checks: Vec<_> =
        groups.flat_map(|(group, parts)| parts.iter().map(probe(group)).collect::<Vec<_>>()).collect();
    if let Some(first) = checks.first_mut() {
        first.is_vital = true;
    }
    checks
}

impl Part {
    fn probe(&self, group: &'static str) -> Check {
        let found = (self.probe)();
        let is_ok = found.is_ok();
        let found = longma_text::sanitize(&found.unwrap_or_else(|wrong| wrong));
        let Self { name, needed_for, without, get, .. } = *self;
        Check { group, name, is_ok, is_vital: false, found, needed_for, without, get }
    }
}

/// The first part, running a program, is the one that the emulator needs.
const EMULATOR_PARTS: &[Part] = &[
    Part {
        name: "run of a program",
        needed_for: "longma run, and every experiment on programs",
        without: "machine files, longma zoned, longma affinity, longma via",
        get: "lift limits on virtual memory (ulimit -v unlimited), mount /proc, and use Linux on x86-64",
        probe: probes::run,
    },
    Part {
        name: "processor features",
        needed_for: "translating programs to x86-64 code",
        without: "programs are interpreted: the results are the same, but much slower",
        get: "a processor with AVX2, FMA, BMI1, BMI2, LZCNT, SSE4.2 and PCLMULQDQ (Intel from Haswell, AMD from Zen); in a virtual machine, let the hypervisor pass them on",
        probe: probes::features,
    },
    Part {
        name: "protection keys",
        needed_for: "fast writes to translated code, in programs for other architectures",
        without: "everything works; such writes take a system call",
        get: "a processor with protection keys (Intel servers from Skylake, AMD from Zen 3), and a container filter that allows pkey_alloc",
        probe: probes::protection_keys,
    },
    Part {
        name: "membarrier",
        needed_for: "cheap changes to translated code that other threads may run; waiting in longma via without fences",
        without: "everything works; each change of code costs a remapping and an interrupt",
        get: "a kernel with CONFIG_MEMBARRIER, and a container filter that allows membarrier",
        probe: probes::membarrier,
    },
    Part {
        name: "openat2",
        needed_for: "longma run --root",
        without: "programs that see the host's files",
        get: "Linux 5.6 or later, and a container filter that allows openat2",
        probe: probes::openat2,
    },
    Part {
        name: "Landlock",
        needed_for: "longma run --sandbox",
        without: "longma run --root, which confines the program, but not the emulator",
        get: "Linux 6.12 or later with landlock in its list of security modules (lsm=)",
        probe: probes::landlock,
    },
    Part {
        name: "user namespaces",
        needed_for: "longma run --sandbox",
        without: "longma run --root, which confines the program, but not the emulator",
        get: "sysctl kernel.unprivileged_userns_clone=1 or user.max_user_namespaces above 0, outside of containers that forbid it",
        probe: probes::user_namespaces,
    },
    Part {
        name: "binfmt_misc",
        needed_for: "longma binfmt: the kernel starts programs of other architectures with longma",
        without: "longma run PROGRAM",
        get: "Debian: binfmt-support, or mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc",
        probe: system::binfmt,
    },
];

const MEASURING: &[Part] = &[
    Part {
        name: "perf counters",
        needed_for: "cycles, instructions and cache misses in longma affinity sweep",
        without: "sweeps that measure throughput and time alone",
        get: "run as root or with CAP_PERFMON, or sysctl kernel.perf_event_paranoid=0; a virtual machine needs a hypervisor that passes counters on",
        probe: probes::counters,
    },
    Part {
        name: "huge pages",
        needed_for: "memory latencies without misses of the TLB in longma machine measure",
        without: "longma machine measure, whose latencies then include page walks",
        get: "sysctl vm.nr_hugepages=128, or echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        probe: probes::huge_pages,
    },
    Part {
        name: "iperf3",
        needed_for: "longma affinity sweep --lab and --connect",
        without: "sweeps with a load of your own, and on modelled hosts",
        get: "Debian: iperf3",
        probe: || programs::version("iperf3", &["--version"]),
    },
    Part {
        name: "ip",
        needed_for: "longma affinity sweep --lab",
        without: "sweeps on an interface",
        get: "Debian: iproute2",
        probe: || programs::version("ip", &["-Version"]),
    },
];

const DEVICES: &[Part] = &[
    Part {
        name: "AF_XDP",
        needed_for: "longma via with the provider af_xdp",
        without: "the providers for shared memory, UDP, and the modelled Myrinet",
        get: "a kernel with CONFIG_XDP_SOCKETS, and CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (root has them)",
        probe: probes::af_xdp,
    },
    Part {
        name: "io_uring",
        needed_for: "several requests at once on kernel zoned devices",
        without: "longma zoned, with one request at a time on kernel devices",
        get: "sysctl kernel.io_uring_disabled=0, and a container filter that allows io_uring_setup",
        probe: probes::io_uring,
    },
    Part {
        name: "zoned block device",
        needed_for: "longma zoned on a kernel device",
        without: "longma zoned on files and on the modelled drive",
        get: "a zoned drive, or modprobe null_blk nr_devices=1 zoned=1 memory_backed=1",
        probe: system::zoned_devices,
    },
    Part {
        name: "null_blk",
        needed_for: "a zoned block device in memory, for trying longma zoned",
        without: "longma zoned on files and on the modelled drive",
        get: "Debian: the kernel package linux-image-amd64 has the module; cloud kernels may not",
        probe: system::null_blk,
    },
];

const MACHINES: &[Part] = &[
    Part {
        name: "KVM",
        needed_for: "virtual machines of longma placement at the processor's speed",
        without: "longma placement with QEMU's software emulation, or with --hypervisor fake",
        get: "enable virtualization in the firmware, load kvm_intel or kvm_amd, and join the group kvm",
        probe: system::kvm,
    },
    Part {
        name: "libvirt",
        needed_for: "agents of longma placement that start virtual machines",
        without: "longma placement with --hypervisor fake",
        get: "Debian: libvirt-daemon-system libvirt-clients",
        probe: system::libvirt,
    },
    Part {
        name: "QEMU for x86-64",
        needed_for: "virtual machines under libvirt",
        without: "longma placement with --hypervisor fake",
        get: "Debian: qemu-system-x86",
        probe: || programs::version("qemu-system-x86_64", &["--version"]),
    },
];

const TOOLS: &[Part] = &[
    Part {
        name: "QEMU's user mode",
        needed_for: "tests that compare longma with another emulator",
        without: "longma itself; those tests are left out",
        get: "Debian: qemu-user",
        probe: || programs::version("qemu-loongarch64", &["--version"]),
    },
    Part {
        name: "zig",
        needed_for: "building the guest programs again (guests/build)",
        without: "longma itself: the programs are built in",
        get: "pip install ziglang (Debian: python3-pip); guests/build installs its version by itself",
        probe: programs::zig,
    },
    Part {
        name: "Go",
        needed_for: "building the guest programs in Go, and tests on them",
        without: "longma itself; those tests are left out",
        get: "Debian: golang-go",
        probe: || programs::version("go", &["version"]),
    },
    Part {
        name: "gdb",
        needed_for: "debugging a guest program with longma run --gdb",
        without: "longma run --strace and --profile",
        get: "Debian: gdb-multiarch, which knows the architectures",
        probe: programs::gdb,
    },
];
