//! The physical address map. It is the map of QEMU's machine `virt` for LoongArch64, so that a kernel finds the same
//! devices, except for PCI configuration space: Debian's kernel has only the driver of Loongson's own PCI host built
//! in.

/// The maximum number of bytes of memory at address 0. The rest is at [`HIGH_MEMORY`].
pub const LOW_MEMORY_BYTES: u64 = 0x1000_0000;
/// The address of the memory above the devices.
pub const HIGH_MEMORY: u64 = 0x8000_0000;
/// The address of the interrupt controller of the bridge chip (PCH-PIC).
pub const PCH_PIC: u64 = 0x1000_0000;
/// Its length in bytes.
pub const PCH_PIC_BYTES: u64 = 0x400;
/// The address of the real-time clock.
pub const RTC: u64 = 0x100d_0100;
/// Its length in bytes.
pub const RTC_BYTES: u64 = 0x100;
/// The registers for power-off and reset. The first byte switches the machine off, the second is its exit status, the
/// third resets it, and the fourth is [`MARK`].
pub const POWER: u64 = 0x100e_001c;
/// Its length in bytes.
pub const POWER_BYTES: u64 = 4;
/// The register to which software writes a mark, such as the beginning of a region of interest. QEMU has no device
/// here.
pub const MARK: u64 = POWER + 3;
/// The address of the serial port.
pub const UART: u64 = 0x1fe0_01e0;
/// Its length in bytes.
pub const UART_BYTES: u64 = 0x100;
/// The address to which PCI devices write message-signaled interrupts (PCH-MSI).
pub const MESSAGES: u64 = 0x2ff0_0000;
/// The length of that register in bytes.
pub const MESSAGES_BYTES: u64 = 8;
/// The first vector of messages. Lower vectors belong to the inputs of the PCH-PIC.
pub const FIRST_MESSAGE: u32 = 32;
/// The number of message vectors.
pub const MESSAGE_VECTORS: u32 = 224;
/// PCI configuration space with 256 bytes for each device. It reaches the same registers as [`PCI_EXTENDED`]; drivers
/// expect both.
pub const PCI_CONFIG: u64 = 0x2000_0000;
/// Its length in bytes.
pub const PCI_CONFIG_BYTES: u64 = 0x100_0000;
/// PCI configuration space with 4096 bytes for each device.
pub const PCI_EXTENDED: u64 = 0x3000_0000;
/// Its length in bytes.
pub const PCI_EXTENDED_BYTES: u64 = 0x1000_0000;
/// PCI memory space: the windows of devices, at addresses that software assigns.
pub const PCI_MEMORY: u64 = 0x4000_0000;
/// Its length in bytes.
pub const PCI_MEMORY_BYTES: u64 = 0x4000_0000;

/// The PCH-PIC input of the serial port.
pub const UART_INPUT: u32 = 2;
/// The PCH-PIC input of the real-time clock, which never asserts it.
pub const RTC_INPUT: u32 = 6;
/// The hardware interrupt line of the extended interrupt controller in the device tree (a bit of ESTAT.IS).
pub const EXTENDED_LINE: u32 = 3;
