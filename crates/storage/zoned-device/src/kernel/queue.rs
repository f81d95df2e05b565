//! Concurrent reads and writes through io_uring. The transfers of one call run in any order.
//!
//! Source: io_uring_setup(2), io_uring_enter(2); the io-uring crate.

use io_uring::{IoUring, opcode, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

/// The maximum number of transfers in flight.
const DEPTH: u32 = 64;

/// An io_uring instance.
pub struct Queue {
    ring: IoUring,
}

/// The memory side of a transfer.
pub enum Bytes<'a> {
    /// Reads from the file into memory.
    Read(&'a mut [u8]),
    /// Writes from memory to the file.
    Write(&'a [u8]),
}

/// One read or write.
pub struct Transfer<'a> {
    /// An open file.
    pub file: RawFd,
    /// The byte offset in the file.
    pub at: u64,
    /// The memory. Direct I/O requires it to be aligned.
    pub bytes: Bytes<'a>,
}

/// The rest of a partly completed transfer.
struct PartialTransfer {
    /// The index of the transfer.
    index: usize,
    done: usize,
}

impl Queue {
    /// Creates a queue. Fails where the system does not permit io_uring.
    pub fn new() -> io::Result<Self> {
        IoUring::new(DEPTH).map(|ring| Self { ring })
    }

    /// Performs all transfers in any order. The error is that of the first transfer that failed, with its index.
    pub fn run(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), (usize, io::Error)> {
        let mut waiting: VecDeque<_> =
            (0..transfers.len()).map(|index| PartialTransfer { index, done: 0 }).collect();
        let mut done: Vec<usize> = vec![0; transfers.len()];
        let mut failed: Option<(usize, io::Error)> = None;
        let mut under_way = 0;
        loop {
            while under_way < DEPTH && failed.is_none() {
                let Some(rest) = waiting.pop_front() else { break };
                let entry = entry(&mut transfers[rest.index], rest.done).user_data(rest.index as u64);
                // SAFETY: `transfers` borrows the memory until this function returns, and the function returns only
                // when every submitted entry has completed. If waiting for completions fails, it aborts the process
                // instead.
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
                // The kernel may still write to the caller's memory, and nothing tells when it has finished.
                Err(error) => abort_process(&error),
            }
            for completion in self.ring.completion() {
                under_way -= 1;
                let index = completion.user_data() as usize;
                let fail = |error| (index, error);
                match completion.result() {
                    result if result < 0 && matches!(-result, libc::EINTR | libc::EAGAIN) => {
                        waiting.push_back(PartialTransfer { index, done: done[index] });
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
                            waiting.push_back(PartialTransfer { index, done: done[index] });
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

/// Aborts the process. Otherwise the kernel could write to memory that has been reused.
fn abort_process(error: &io::Error) -> ! {
    eprintln!("longma: io_uring stopped working: {error}");
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn all_of_many_transfers_complete_and_a_short_file_is_an_error() {
        let Ok(mut queue) = Queue::new() else {
            // io_uring is not permitted here. The kernel device then performs transfers one at a time.
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
