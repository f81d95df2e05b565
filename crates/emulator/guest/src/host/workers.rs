//! Host threads for guest threads, on stacks from the stack allocator. Source: pthread_create(3),
//! pthread_attr_setstack(3), pthread_join(3), pthread_getcpuclockid(3); Linux include/linux/posix-timers.h
//! (CPUCLOCK_PID: the thread of a clock).

use longma_locks::IgnorePoison;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::locks::Mutex;
use super::stacks::Stack;

/// The closure that a thread runs.
type Work = Box<dyn FnOnce() + Send>;

/// The arguments of a new thread.
struct ThreadArguments {
    work: Work,
    stack: Stack,
    /// Receives the thread id.
    id: Arc<AtomicI32>,
}

/// A thread that has finished its work and is about to exit. Its stack is in use until it is joined.
struct EndedThread {
    /// A pointer in some C libraries.
    thread: libc::pthread_t,
    stack: Stack,
}

// SAFETY: any thread may join another (pthread_join(3)), and a stack is plain memory.
unsafe impl Send for EndedThread {}

static ENDED: Mutex<Vec<EndedThread>> = Mutex::new(Vec::new());

/// Runs `work` on a new host thread with a stack of `stack_bytes` bytes and returns the thread id (gettid(2)). It does
/// not wait until the thread runs, which would cost a scheduler round trip on a busy host.
///
/// # Errors
/// The host has no memory or refuses another thread.
pub fn spawn(stack_bytes: usize, work: impl FnOnce() + Send + 'static) -> io::Result<i32> {
    let stack = Stack::allocate(stack_bytes)?;
    let memory = stack.usable();
    let id = Arc::new(AtomicI32::new(0));
    let start = Box::into_raw(Box::new(ThreadArguments { work: Box::new(work), stack, id: id.clone() }));
    // While this lock is held, no thread joins the new one, so its pthread_t stays valid for `id_of`.
    let _no_thread_ends = ENDED.lock().ignore_poison();
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are initialized before use. The new thread owns the stack until it is joined, and owns
    // `start` if it was created.
    let error = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let stack = memory.start as *mut libc::c_void;
        let error = match libc::pthread_attr_setstack(attributes.as_mut_ptr(), stack, memory.len()) {
            0 => libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin, start.cast()),
            error => error,
        };
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        error
    };
    if error != 0 {
        // SAFETY: no thread was created, so no thread owns it.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: the thread was created and is not joined yet.
    let of_clock = unsafe { id_of(thread.assume_init()) };
    // A thread without a clock has ended, and stored its id before.
    Ok(of_clock.unwrap_or_else(|| id.load(Ordering::Acquire)))
}

/// The id of a thread, decoded from its CPU clock; `None` if the thread has ended.
///
/// # Safety
/// The thread is joinable, and no thread joins it during this call.
unsafe fn id_of(thread: libc::pthread_t) -> Option<i32> {
    let mut clock = 0;
    // SAFETY: the caller upholds the contract, and `clock` is valid for writes.
    let error = unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) };
    let id = !(clock >> 3);
    (error == 0 && id > 0).then_some(id)
}

extern "C" fn begin(start: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `spawn` allocated it for this thread.
    let ThreadArguments { work, stack, id } = *unsafe { Box::from_raw(start.cast::<ThreadArguments>()) };
    // SAFETY: the call takes no arguments.
    id.store(unsafe { libc::gettid() }, Ordering::Release);
    work();
    collect();
    // SAFETY: the call takes no arguments.
    let thread = unsafe { libc::pthread_self() };
    ENDED.lock().ignore_poison().push(EndedThread { thread, stack });
    std::ptr::null_mut()
}

/// Joins the threads that have finished their work and frees their stacks. They are about to exit, so the wait is
/// short.
fn collect() {
    let ended = std::mem::take(&mut *ENDED.lock().ignore_poison());
    for EndedThread { thread, stack } in ended {
        // SAFETY: the thread is joinable, and removing it from the list makes this the only join.
        unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
        drop(stack);
    }
}

/// Runs in a forked child: forgets the parent's finished threads, which do not exist in the child.
pub fn forget_ended() {
    let ended = std::mem::take(&mut *ENDED.lock().ignore_poison());
    // The C library may still read the thread descriptor, which is at the top of the stack.
    ended.into_iter().for_each(|worker| std::mem::forget(worker.stack));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn later_threads_reuse_stacks() {
        const STACK_BYTES: usize = 100 << 10;
        let mut places = BTreeSet::new();
        for _ in 0..200 {
            let (sender, receiver) = mpsc::channel();
            spawn(STACK_BYTES, move || {
                let on_stack = 0u8;
                let _ = sender.send((&raw const on_stack).addr());
            })
            .expect("a thread");
            places.insert(receiver.recv().expect("it runs") / STACK_BYTES);
        }
        // A thread may start before the previous one has exited.
        assert!(places.len() < 50, "{} stacks", places.len());
    }

    #[test]
    fn the_creator_knows_the_id_of_a_thread_that_has_ended() {
        for delay in [0, 0, 0, 1000].into_iter().cycle().take(400) {
            let (sender, receiver) = mpsc::channel();
            let id = spawn(100 << 10, move || {
                // SAFETY: the calls take no pointers.
                let own_id = unsafe {
                    libc::usleep(delay);
                    libc::gettid()
                };
                let _ = sender.send(own_id);
            });
            assert_eq!(id.expect("a thread"), receiver.recv().expect("it runs"));
        }
    }

    #[test]
    fn a_thread_gets_a_stack_of_the_requested_size() {
        let (sender, receiver) = mpsc::channel();
        spawn(512 << 10, move || {
            let large = std::hint::black_box([1u8; 400 << 10]);
            let _ = sender.send(large.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        })
        .expect("a thread");
        assert_eq!(receiver.recv().expect("it runs"), 400 << 10);
    }
}
