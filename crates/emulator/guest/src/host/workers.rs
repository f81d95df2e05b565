//! Host threads that run guest threads, on stacks that need no mappings of their own.
//! Not what they run.
//! Source: pthread_create(3), pthread_attr_setstack(3), pthread_join(3), pthread_getcpuclockid(3); Linux include/linux/posix-timers.h
//! (CPUCLOCK_PID: which thread a clock is of).

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, PoisonError};

use super::locks::Mutex;
use super::stacks::Stack;

/// What a thread runs.
type Work = Box<dyn FnOnce() + Send>;

/// What a thread begins with.
struct Start {
    work: Work,
    stack: Stack,
    /// Where it puts its id.
    id: Arc<AtomicI32>,
}

/// A thread that has done its work and is about to be gone; its stack is in use until then.
struct Ended {
    /// Some C libraries have a pointer here.
    thread: libc::pthread_t,
    stack: Stack,
}

// SAFETY: any thread may join another, whichever it is (pthread_join(3)), and a stack is memory.
unsafe impl Send for Ended {}

static ENDED: Mutex<Vec<Ended>> = Mutex::new(Vec::new());

/// Runs `work` on a new host thread with a stack of `stack_bytes` bytes, and gives the thread's id (gettid(2)). It does not wait until
/// the thread has begun: on a busy host each that did would cost a turn of everybody else.
///
/// # Errors
/// The host has no memory or no thread to give.
pub fn spawn(stack_bytes: usize, work: impl FnOnce() + Send + 'static) -> io::Result<i32> {
    let stack = Stack::allocate(stack_bytes)?;
    let memory = stack.usable();
    let id = Arc::new(AtomicI32::new(0));
    let start = Box::into_raw(Box::new(Start { work: Box::new(work), stack, id: id.clone() }));
    // Nobody joins the thread, which would leave its description to the next one, before it has been asked for its id.
    let _nobody_ends = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are made before they are used; the stack is the new thread's alone until it is joined; `start` is the
    // new thread's, if there is one.
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
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: the thread was made, and it is not joined.
    let of_clock = unsafe { id_of(thread.assume_init()) };
    // One without a clock has ended, after it put down its id.
    Ok(of_clock.unwrap_or_else(|| id.load(Ordering::Acquire)))
}

/// The id of a thread, by the clock of the processor time that it uses; `None` if it has ended.
///
/// # Safety
/// The thread can be joined, and is not while this runs.
unsafe fn id_of(thread: libc::pthread_t) -> Option<i32> {
    let mut clock = 0;
    // SAFETY: the caller's promise, and the number is there to be written to.
    let error = unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) };
    let id = !(clock >> 3);
    (error == 0 && id > 0).then_some(id)
}

extern "C" fn begin(start: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `spawn` made it for this thread.
    let Start { work, stack, id } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: no arguments.
    id.store(unsafe { libc::gettid() }, Ordering::Release);
    work();
    collect();
    // SAFETY: no arguments.
    let thread = unsafe { libc::pthread_self() };
    ENDED.lock().unwrap_or_else(PoisonError::into_inner).push(Ended { thread, stack });
    std::ptr::null_mut()
}

/// Waits until the threads that have ended are gone, which they nearly are, and takes their stacks back.
fn collect() {
    let ended = std::mem::take(&mut *ENDED.lock().unwrap_or_else(PoisonError::into_inner));
    for Ended { thread, stack } in ended {
        // SAFETY: the thread was made joinable, and whoever took it out of the list joins it.
        unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
        drop(stack);
    }
}

/// In a forked child: threads that were about to be gone will never be.
pub fn forget_ended() {
    let ended = std::mem::take(&mut *ENDED.lock().unwrap_or_else(PoisonError::into_inner));
    // The C library may still look at the thread's description, at the top of its stack.
    ended.into_iter().for_each(|gone| std::mem::forget(gone.stack));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn stacks_are_used_again_by_threads_that_come_later() {
        const STACK_BYTES: usize = 100 << 10;
        let mut places = BTreeSet::new();
        for _ in 0..200 {
            let (tell, told) = mpsc::channel();
            spawn(STACK_BYTES, move || {
                let on_stack = 0u8;
                let _ = tell.send((&raw const on_stack).addr());
            })
            .expect("a thread");
            places.insert(told.recv().expect("it runs") / STACK_BYTES);
        }
        // One thread may begin before the one before it is gone.
        assert!(places.len() < 50, "{} stacks", places.len());
    }

    #[test]
    fn whoever_makes_a_thread_knows_its_id_even_if_it_has_ended() {
        for delay in [0, 0, 0, 1000].into_iter().cycle().take(400) {
            let (tell, told) = mpsc::channel();
            let id = spawn(100 << 10, move || {
                // SAFETY: no arguments, and a wait.
                let own = unsafe {
                    libc::usleep(delay);
                    libc::gettid()
                };
                let _ = tell.send(own);
            });
            assert_eq!(id.expect("a thread"), told.recv().expect("it runs"));
        }
    }

    #[test]
    fn a_thread_has_the_stack_that_it_was_promised() {
        let (tell, told) = mpsc::channel();
        spawn(512 << 10, move || {
            let large = std::hint::black_box([1u8; 400 << 10]);
            let _ = tell.send(large.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        })
        .expect("a thread");
        assert_eq!(told.recv().expect("it runs"), 400 << 10);
    }
}
