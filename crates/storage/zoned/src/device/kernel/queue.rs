//! Several reads or writes at once through io_uring.
//! Not their order: whoever calls sees to it that they may run in any.
//! Source: io_uring_setup(2), io_uring_enter(2); the io-uring crate.

use io_uring::{IoUring, opcode, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

/// How many are under way at most.
const DEPTH: u32 = 64;

/// A ring of our own.
pub struct Queue {
    ring: IoUring,
}

/// Bytes to be moved.
pub enum Bytes<'a> {
    /// From the file into memory.
    Read(&'a mut [u8]),
    /// From memory into the file.
    Write(&'a [u8]),
}

/// One read or write.
pub struct Transfer<'a> {
    /// An open file.
    pub file: RawFd,
    /// Bytes from its start.
    pub at: u64,
    /// Direct I/O wants it aligned.
    pub bytes: Bytes<'a>,
}

/// What is left of a transfer.
struct Rest {
    /// Its place among those given.
    index: usize,
    done: usize,
}

impl Queue {
    /// A queue; fails where the system forbids io_uring.
    pub fn new() -> io::Result<Self> {
        IoUring::new(DEPTH).map(|ring| Self { ring })
    }

    /// Does all transfers, in any order; the error is that of the first one that failed, with its index.
    pub fn run(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), (usize, io::Error)> {
        let mut waiting: VecDeque<_> = (0..transfers.len()).map(|index| Rest { index, done: 0 }).collect();
        let mut done: Vec<usize> = vec![0; transfers.len()];
        let mut failed: Option<(usize, io::Error)> = None;
        let mut under_way = 0;
        loop {
            while under_way < DEPTH && failed.is_none() {
                let Some(rest) = waiting.pop_front() else { break };
                let entry = entry(&mut transfers[rest.index], rest.done).user_data(rest.index as u64);
                // SAFETY: the memory is borrowed by `transfers` until this function returns, and it returns only when every entry
                // that was submitted has completed; see below for the one exception.
                if unsafe { self.ring.submission().push(&entry) }.is_err() {
                    waiting.push_front(rest);
                    break;
                }
                under_way += 1;
            }
            if under_way == 0 {
                return failed.map_or(Ok(()), Err);
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                // The kernel may still write into the caller's memory, and there is no way left to wait for it.
                Err(error) => end_the_process(&error),
            }
            for completion in self.ring.completion() {
                under_way -= 1;
                let index = completion.user_data() as usize;
                let fail = |error| (index, error);
                match completion.result() {
                    result if result < 0 && matches!(-result, libc::EINTR | libc::EAGAIN) => {
                        waiting.push_back(Rest { index, done: done[index] });
                    }
                    result if result < 0 => {
                        failed.get_or_insert_with(|| fail(io::Error::from_raw_os_error(-result)));
                    }
                    0 => {
                        failed.get_or_insert_with(|| fail(io::ErrorKind::UnexpectedEof.into()));
                    }
                    result => {
                        done[index] += result as usize;
                        if done[index] < length(&transfers[index]) {
                            waiting.push_back(Rest { index, done: done[index] });
                        }
                    }
                }
            }
        }
    }
}

fn length(transfer: &Transfer<'_>) -> usize {
    match &transfer.bytes {
        Bytes::Read(buffer) => buffer.len(),
        Bytes::Write(data) => data.len(),
    }
}

fn entry(transfer: &mut Transfer<'_>, done: usize) -> io_uring::squeue::Entry {
    let (file, at) = (types::Fd(transfer.file), transfer.at + done as u64);
    match &mut transfer.bytes {
        Bytes::Read(buffer) => {
            let rest = &mut buffer[done..];
            opcode::Read::new(file, rest.as_mut_ptr(), rest.len() as u32).offset(at).build()
        }
        Bytes::Write(data) => {
            let rest = &data[done..];
            opcode::Write::new(file, rest.as_ptr(), rest.len() as u32).offset(at).build()
        }
    }
}

/// Ends the process: going on would let the kernel write into memory that belongs to someone else by then.
fn end_the_process(error: &io::Error) -> ! {
    eprintln!("longma: io_uring does not answer any more: {error}");
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn many_transfers_all_happen_and_a_short_file_is_an_error() {
        let Ok(mut queue) = Queue::new() else {
            // Forbidden here: the kernel device then does one transfer after the other.
            return;
        };
        let file = tempfile::tempfile().unwrap();
        let data: Vec<Vec<u8>> = (0..200u8).map(|byte| vec![byte; 512]).collect();
        let fd = file.as_raw_fd();
        let mut writes: Vec<_> = data
            .iter()
            .enumerate()
            .map(|(index, data)| Transfer { file: fd, at: index as u64 * 512, bytes: Bytes::Write(data) })
            .collect();
        queue.run(&mut writes).unwrap();
        let mut read = vec![vec![0; 512]; 201];
        let mut reads: Vec<_> = read
            .iter_mut()
            .enumerate()
            .map(|(index, buffer)| Transfer { file: fd, at: index as u64 * 512, bytes: Bytes::Read(buffer) })
            .collect();
        let (index, error) = queue.run(&mut reads).unwrap_err();
        assert_eq!((index, error.kind()), (200, io::ErrorKind::UnexpectedEof));
        queue.run(&mut reads[..200]).unwrap();
        assert!(read.iter().zip(&data).all(|(read, data)| read == data));
    }
}
