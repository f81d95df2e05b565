//! A protection key of the host. A thread can write to pages with the key only while it permits this in its PKRU
//! register, which takes no system call. Source: pkeys(7), pkey_alloc(2), mprotect(2) (pkey_mprotect), sigaction(2)
//! (SEGV_PKUERR); Intel's manual, volume 1, chapter 13 (XSAVE: 13.4.1 legacy region, 13.4.2 header, 13.5.7 PKRU state),
//! volume 3A, section 4.6.2.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The key of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteKey(u32);

/// The si_code of an access that a key forbids.
const SEGV_PKUERR: libc::c_int = 4;
/// The PKRU bit that forbids writing (pkeys(7)).
const WRITE_DISABLED: u32 = 2;
/// The PKRU bit that forbids all access. Threads older than the key start with it.
const ACCESS_DISABLED: u32 = 1;

/// The key's number plus one, for the fault handler; 0 before allocation.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// The offset of PKRU in the extended state of a signal frame.
static PKRU_OFFSET: AtomicU32 = AtomicU32::new(0);

impl WriteKey {
    /// The key, which the first call allocates. `None` if the processor, the kernel or a sandbox does not support keys.
    pub fn of_process() -> Option<Self> {
        static TAKEN: Once = Once::new();
        TAKEN.call_once(|| {
            // SAFETY: the call accesses no memory.
            let number = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, WRITE_DISABLED) };
            if let Ok(number) = u32::try_from(number) {
                // The processor supports keys, so it has this leaf and this component.
                PKRU_OFFSET.store(__cpuid_count(0xd, PKRU_COMPONENT).ebx, Ordering::Relaxed);
                NUMBER.store(number + 1, Ordering::Release);
            }
        });
        NUMBER.load(Ordering::Acquire).checked_sub(1).map(Self)
    }

    /// Assigns this key to pages: threads may then read them, and write to them only in [`Self::permit`]. Returns false
    /// if the kernel refuses.
    ///
    /// # Safety
    /// The range consists of whole host pages of private anonymous memory, and no other code needs to write to it.
    pub unsafe fn protect(self, start: *mut libc::c_void, bytes: usize) -> bool {
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the caller upholds the contract.
        unsafe {
            // The memory is used sparsely, so huge pages would waste it. A kernel without huge pages returns an error,
            // which is ignored.
            libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE);
            libc::syscall(libc::SYS_pkey_mprotect, start, bytes, read_write, self.0) == 0
        }
    }

    /// Calls `write` while this thread may write to pages with the key.
    pub fn permit<R>(self, write: impl FnOnce() -> R) -> R {
        let other_rights = read_rights() & !self.bits(ACCESS_DISABLED | WRITE_DISABLED);
        set_rights(other_rights);
        let result = write();
        set_rights(other_rights | self.bits(WRITE_DISABLED));
        result
    }

    fn bits(self, rights: u32) -> u32 {
        rights << (2 * self.0)
    }
}

/// Reads PKRU of this thread. Call it only if a key exists.
fn read_rights() -> u32 {
    let rights: u32;
    // SAFETY: a key exists, so the processor has the register and the kernel permits reading it; only the named
    // registers change.
    unsafe {
        asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nomem, nostack, preserves_flags));
    };
    rights
}

/// Sets PKRU of this thread. Without `nomem`, the compiler moves no memory access across the instruction.
fn set_rights(rights: u32) {
    // SAFETY: a key exists, as in `read_rights`. The rights of this thread do not affect memory safety, since a refused
    // access faults.
    unsafe { asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0, options(nostack, preserves_flags)) };
}

/// The number of PKRU among the components of the extended state.
const PKRU_COMPONENT: u32 = 9;
/// The offset, in the frame's floating-point state, of the word that is [`EXTENDED_MAGIC`] if extended state follows
/// (the kernel's `asm/sigcontext.h`). The mask of saved components is 8 bytes after it.
const SOFTWARE_BYTES: usize = 464;
const EXTENDED_MAGIC: u32 = 0x4650_5853;
/// The offset of the mask of components that are not in their initial state.
const PRESENT_COMPONENTS: usize = 512;

/// Recovers from a read fault of a thread that is older than the key: permits the thread to read from now on. Returns
/// whether it did. Async-signal-safe.
pub(super) fn recover(signal: libc::c_int, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    let Some(number) = NUMBER.load(Ordering::Acquire).checked_sub(1) else { return false };
    if signal != libc::SIGSEGV || info.si_code != SEGV_PKUERR {
        return false;
    }
    // musl's type has no name for this pointer, which the kernel puts behind the general registers.
    let registers = context.uc_mcontext.gregs.len();
    // SAFETY: the pointer lies inside of `mcontext_t`, which is larger than the registers and aligned to 8 bytes.
    let state = unsafe { (&raw const context.uc_mcontext).cast::<*mut u8>().add(registers).read() };
    let component = 1u64 << PKRU_COMPONENT;
    // SAFETY: the kernel's frame has the 512 bytes of the legacy region. If the magic word is present and the mask
    // contains PKRU, it also has the header and that component in the standard format.
    unsafe {
        let field = |at: usize| state.wrapping_add(at);
        if state.is_null()
            || field(SOFTWARE_BYTES).cast::<u32>().read_unaligned() != EXTENDED_MAGIC
            || field(SOFTWARE_BYTES + 8).cast::<u64>().read_unaligned() & component == 0
            || field(PRESENT_COMPONENTS).cast::<u64>().read_unaligned() & component == 0
        {
            return false;
        }
        let rights = field(PKRU_OFFSET.load(Ordering::Relaxed) as usize).cast::<u32>();
        let key = WriteKey(number);
        let old_rights = rights.read_unaligned();
        if old_rights & key.bits(ACCESS_DISABLED) == 0 {
            // The thread may read, so the fault is a write. Another recovery handles it.
            return false;
        }
        rights.write_unaligned(old_rights & !key.bits(ACCESS_DISABLED) | key.bits(WRITE_DISABLED));
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::WriteKey;
    use crate::{AddressSpace, GuestMemory, MapRequest, PAGE_BYTES, Placement, Protection};

    const START: u64 = 1 << 20;

    /// Creates an address space with one reserved page.
    fn space() -> AddressSpace {
        let mut space = AddressSpace::new(GuestMemory::reserve().unwrap());
        let readable = Protection { read: true, write: false, execute: true };
        space.map(&MapRequest::anonymous(Placement::FixedNoReplace(START), PAGE_BYTES, readable)).unwrap();
        space.reserve_for_engine(START..START + PAGE_BYTES);
        space
    }

    #[test]
    fn engine_ranges_are_readable_by_all_threads_and_writable_by_the_engine_only() {
        let (begin, begun) = mpsc::channel::<GuestMemory>();
        // This thread is older than the key, unless another test has already allocated the key.
        let old = std::thread::spawn(move || {
            let memory = begun.recv().unwrap();
            let loaded = memory.load::<u32>(START);
            (loaded, memory.store::<u32>(START, 3).is_err())
        });
        let space = space();
        space.write_engine_range(&[(START, 1), (START + 8, 2)]).unwrap();
        let young = |memory: GuestMemory| {
            std::thread::spawn(move || {
                (memory.load::<u32>(START + 8), memory.store::<u32>(START, 3).is_err())
            })
        };
        assert_eq!(young(space.memory().clone()).join().unwrap(), (Ok(2), true));
        begin.send(space.memory().clone()).unwrap();
        assert_eq!(old.join().unwrap(), (Ok(1), true));
        assert!(
            space.memory().store::<u32>(START, 3).is_err(),
            "the engine's thread, outside of `write_engine_range`"
        );
        assert!(space.memory().write(START, &[0; 8]).is_err(), "the result of a system call");
        assert_eq!(space.memory().load::<u32>(START), Ok(1));
    }

    #[test]
    fn the_engine_writes_to_pages_that_mprotect_made_read_only() {
        let space = space();
        // SAFETY: the page belongs to this space.
        let result = unsafe {
            libc::mprotect(space.memory().base().wrapping_add(START as usize).cast(), 4096, libc::PROT_READ)
        };
        assert_eq!(result, 0);
        space.write_engine_range(&[(START + 4, 7)]).unwrap();
        assert_eq!(space.memory().load::<u32>(START + 4), Ok(7));
        assert!(space.memory().store::<u32>(START + 4, 3).is_err());
    }

    #[test]
    fn write_rights_are_revoked_after_a_write() {
        let Some(key) = WriteKey::of_process() else {
            eprintln!("skipped: this host has no protection keys");
            return;
        };
        let rights_before = super::read_rights();
        key.permit(|| assert_eq!(super::read_rights() & key.bits(3), 0));
        assert_eq!(super::read_rights() & !key.bits(3), rights_before & !key.bits(3), "other keys' rights");
        assert_eq!(super::read_rights() & key.bits(3), key.bits(2));
    }
}
