//! Simulated files of /sys/devices/system, /sys/bus/pci and /proc in which irqbalance finds CPUs, a NIC and its
//! interrupts.

use longma_affinity::tune::model::{Assignment, Model};
use longma_cpu_set::CpuSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Number of the first queue's interrupt.
const FIRST_IRQ: usize = 40;
/// PCI address of the NIC.
const NIC: &str = "0000:01:00.0";
/// irqbalance's interval in seconds.
const LOOK: u64 = 2;
/// Interrupts per second of a queue that uses a whole CPU.
const FULL_RATE: f64 = 100_000.0;
/// Time limit in seconds.
const LIMIT: &str = "40";

/// A tree of files, removed when dropped.
pub struct Recorded<'a> {
    folder: tempfile::TempDir,
    model: &'a Model,
    from: &'a Assignment,
}

impl<'a> Recorded<'a> {
    /// Creates the tree of a host whose NIC is attached to `node`, with one interrupt per queue.
    pub fn new(model: &'a Model, from: &'a Assignment, node: u32) -> Self {
        let tree = Self { folder: tempfile::tempdir().unwrap(), model, from };
        tree.cpus();
        let nic = format!("pci/devices/{NIC}");
        tree.put(&format!("{nic}/class"), "0x020000");
        // ConnectX-3. irqbalance requires these IDs.
        for (file, number) in [
            ("vendor", "0x15b3"),
            ("device", "0x1003"),
            ("subsystem_vendor", "0x15b3"),
            ("subsystem_device", "0x0055"),
        ] {
            tree.put(&format!("{nic}/{file}"), number);
        }
        tree.put(&format!("{nic}/numa_node"), &node.to_string());
        let local = model.places.iter().filter(|place| place.node == node).map(|place| place.cpu);
        tree.put(&format!("{nic}/local_cpus"), &local.collect::<CpuSet>().mask());
        for (index, cpu) in from.queues.iter().enumerate() {
            let irq = FIRST_IRQ + index;
            tree.put(&format!("{nic}/msi_irqs/{irq}"), "msix");
            let mask = cpu.map(CpuSet::one).unwrap_or_default().mask();
            tree.put(&format!("proc/irq/{irq}/smp_affinity"), &mask);
            tree.put(&format!("proc/irq/{irq}/node"), &node.to_string());
        }
        tree.put("proc/cpuinfo", "");
        tree.counts(1.0);
        tree
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn cpus(&self) {
        let places = &self.model.places;
        let mask = |cpus: &[u32]| cpus.iter().copied().collect::<CpuSet>().mask();
        let all: CpuSet = places.iter().map(|place| place.cpu).collect();
        for name in ["online", "present", "possible"] {
            self.put(&format!("system/cpu/{name}"), &all.to_string());
        }
        for place in places {
            let cpu = format!("system/cpu/cpu{}", place.cpu);
            let of_socket: Vec<u32> =
                places.iter().filter(|of| of.socket == place.socket).map(|of| of.cpu).collect();
            self.put(&format!("{cpu}/online"), "1");
            self.put(&format!("{cpu}/topology/core_siblings"), &mask(&of_socket));
            self.put(&format!("{cpu}/topology/thread_siblings"), &mask(&place.core));
            self.put(&format!("{cpu}/topology/physical_package_id"), &place.socket.to_string());
            let caches =
                [(0, 1, &place.core), (2, 2, &place.core), (3, 3, place.last_cache.as_ref().unwrap())];
            for (index, level, shared) in caches {
                self.put(&format!("{cpu}/cache/index{index}/level"), &level.to_string());
                self.put(&format!("{cpu}/cache/index{index}/shared_cpu_map"), &mask(shared));
            }
            fs::create_dir_all(self.folder.path().join(format!("{cpu}/node{}", place.node))).unwrap();
            let of_node: Vec<u32> =
                places.iter().filter(|of| of.node == place.node).map(|of| of.cpu).collect();
            self.put(&format!("system/node/node{}/cpumap", place.node), &mask(&of_node));
        }
        let nodes: CpuSet = places.iter().map(|place| place.node).collect();
        self.put("system/node/online", &nodes.to_string());
    }

    /// Writes the kernel's counters after some seconds. Each queue's load is softirq time of its CPU.
    fn counts(&self, seconds: f64) {
        let cpus = self.model.places.len();
        let mut table =
            format!("    {}\n", (0..cpus).map(|cpu| format!("CPU{cpu}")).collect::<Vec<_>>().join(" "));
        let mut softirq = vec![0.0; cpus];
        for (index, (queue, cpu)) in self.model.queues.iter().zip(&self.from.queues).enumerate() {
            let cpu = cpu.unwrap_or(0) as usize;
            softirq[cpu] += queue.load;
            let count = |of: usize| if of == cpu { (queue.load * FULL_RATE * seconds) as u64 } else { 0 };
            let counts: Vec<String> = (0..cpus).map(|of| count(of).to_string()).collect();
            table += &format!("{}: {} PCI-MSI 1-edge eth0-{index}\n", FIRST_IRQ + index, counts.join(" "));
        }
        self.put("proc/interrupts", table.trim_end());
        let ticks = |part: f64| (part * seconds * 100.0) as u64;
        let lines: Vec<String> = softirq
            .iter()
            .enumerate()
            .map(|(cpu, part)| {
                format!("cpu{cpu} 0 0 0 {} 0 0 {} 0 0 0", ticks((1.0 - part).max(0.0)), ticks(*part))
            })
            .collect();
        self.put("proc/stat", &format!("cpu 0 0 0 0 0 0 0 0 0 0\n{}", lines.join("\n")));
    }

    /// The CPU that irqbalance chooses for each queue's interrupt; `None` if the file lists several CPUs or cannot be
    /// parsed.
    pub fn balanced(&self, program: &str) -> Vec<Option<u32>> {
        let root = self.folder.path().to_str().unwrap();
        let script = format!(
            "set -e; mount -t tmpfs none /run; mkdir /run/irqbalance; mount --bind {root}/system /sys/devices/system; \
             mount --bind {root}/pci /sys/bus/pci; mount --bind {root}/proc /proc; \
             exec {program} --oneshot --debug --interval={LOOK}"
        );
        let mut child = Command::new("timeout")
            .args([LIMIT, "unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", &script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_secs(LOOK) / 2);
        self.counts(11.0);
        assert!(child.wait().unwrap().success(), "irqbalance did not run: see its messages about {root}");
        (0..self.from.queues.len()).map(|index| self.cpu(index)).collect()
    }

    fn cpu(&self, queue: usize) -> Option<u32> {
        let path = self.folder.path().join(format!("proc/irq/{}/smp_affinity", FIRST_IRQ + queue));
        let cpus = CpuSet::from_mask(fs::read_to_string(Path::new(&path)).ok()?.trim()).ok()?;
        let mut all = cpus.iter();
        all.next().filter(|_| all.next().is_none())
    }
}
