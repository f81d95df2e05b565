//! Publishers and subscribers of `longma-pubsub`, whose loans and samples are buffers without a copy. `longma/via.py`
//! makes numpy arrays of them.

use longma_pubsub::raw::{MemoryGuard, RawPublisher, RawSample, RawSubscriber, WaitLimit};
use longma_pubsub::{Error, MessageType, Options, Overflow, SubscribeOptions};
use pyo3::create_exception;
use pyo3::exceptions::{
    PyBufferError, PyException, PyOSError, PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError,
};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

create_exception!(longma._native, TopicClosed, PyException, "The publisher has closed the topic.");
create_exception!(longma._native, PublisherDied, PyException, "The publisher's process has died.");

/// The interval of a wait at which Python checks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Closed => TopicClosed::new_err(text),
        Error::Died => PublisherDied::new_err(text),
        Error::TimedOut => PyTimeoutError::new_err(text),
        Error::TypeMismatch { .. } => PyTypeError::new_err(text),
        Error::Name { .. } | Error::InvalidOption { .. } | Error::TooLong { .. } => {
            PyValueError::new_err(text)
        }
        Error::Folder { .. } | Error::System { .. } | Error::NoPublisher(_) | Error::Taken(_) => {
            PyOSError::new_err(text)
        }
        _ => PyRuntimeError::new_err(text),
    }
}

/// The object, unless another thread uses it: waiting for that thread could be waiting for this one.
fn locked<T>(object: &Mutex<T>) -> PyResult<MutexGuard<'_, T>> {
    object.try_lock().map_err(|_| PyRuntimeError::new_err("another thread uses this object"))
}

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{seconds} is not a time in seconds")))
}

/// Calls `wait` with short time limits until it is done, so that Ctrl-C works. No limit if `timeout` is `None`.
fn patiently<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    mut wait: impl FnMut(Duration) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let limit = timeout.map(duration).transpose()?;
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = deadline
            .map_or(SIGNALS, |deadline| deadline.saturating_duration_since(Instant::now()).min(SIGNALS));
        match py.detach(|| wait(left)) {
            Err(Error::TimedOut) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {
                py.check_signals()?
            }
            other => return other.map_err(raised),
        }
    }
}

/// Type, process, published messages and number of subscribers of a topic.
type State = (String, u32, u64, usize);

/// The topics of a folder, each with its state unless its publisher does not answer.
#[pyfunction]
pub fn list_topics(py: Python<'_>, folder: Option<PathBuf>) -> PyResult<Vec<(String, Option<State>)>> {
    let topics = py.detach(|| longma_pubsub::topics(folder.as_deref())).map_err(raised)?;
    let state = |report: longma_pubsub::Report| {
        let name = report.message.name;
        let name = if report.message.is_slice { format!("[{name}]") } else { name };
        (name, report.process, report.published, report.subscribers.len())
    };
    Ok(topics.into_iter().map(|(name, report)| (name, report.ok().map(state))).collect())
}

/// A publisher of bytes.
#[pyclass(frozen)]
pub struct NativePublisher(Mutex<Option<RawPublisher>>);

#[pymethods]
impl NativePublisher {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
    fn new(
        topic: &str,
        name: String,
        element_bytes: usize,
        alignment: usize,
        max_elements: Option<u32>,
        depth: u32,
        history: u32,
        block: bool,
        max_subscribers: u32,
        max_samples: u32,
        folder: Option<PathBuf>,
    ) -> PyResult<Self> {
        let message = MessageType { name, element_bytes, alignment, is_slice: max_elements.is_some() };
        let overflow = if block { Overflow::Block } else { Overflow::Overwrite };
        let max_elements = max_elements.unwrap_or(1);
        let options =
            Options { depth, history, overflow, max_elements, max_subscribers, max_samples, folder };
        let raw = RawPublisher::create(topic, message, options).map_err(raised)?;
        Ok(Self(Mutex::new(Some(raw))))
    }

    /// Loans memory for the next message; waits for room, without limit if `timeout` is `None`.
    fn loan(slf: Py<Self>, py: Python<'_>, elements: usize, timeout: Option<f64>) -> PyResult<Loan> {
        let this = slf.get();
        let mut raw = locked(&this.0)?;
        let publisher = raw.as_mut().ok_or_else(closed)?;
        let address = patiently(py, timeout, |limit| {
            publisher
                .loan(elements, WaitLimit::within(Some(limit)))
                .map(|address| address.as_ptr().expose_provenance())
        })?;
        let (bytes, guard) = (elements * publisher.message().element_bytes, publisher.keep_memory());
        drop(raw);
        Ok(Loan { publisher: slf.clone_ref(py), _guard: guard, address, bytes, is_open: Mutex::new(true) })
    }

    /// The number of messages published so far.
    #[getter]
    fn published(&self) -> PyResult<u64> {
        Ok(locked(&self.0)?.as_ref().ok_or_else(closed)?.published())
    }

    /// The number of subscribers.
    #[getter]
    fn subscribers(&self) -> PyResult<usize> {
        Ok(locked(&self.0)?.as_ref().ok_or_else(closed)?.subscribers())
    }

    /// Ends the topic.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let raw = locked(&self.0)?.take();
        py.detach(|| drop(raw));
        Ok(())
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the publisher or subscriber is closed")
}

/// Memory of a topic that can be written until it is published. Arrays keep it mapped afterwards.
#[pyclass(frozen)]
pub struct Loan {
    publisher: Py<NativePublisher>,
    _guard: MemoryGuard,
    address: usize,
    bytes: usize,
    /// False once it is published or given back.
    is_open: Mutex<bool>,
}

#[pymethods]
impl Loan {
    /// Publishes the message and returns its number.
    fn publish(&self) -> PyResult<u64> {
        self.end(|publisher| publisher.publish_loan().map_err(raised))
    }

    /// Gives the memory back.
    fn cancel(&self) -> PyResult<()> {
        self.end(|publisher| {
            publisher.cancel_loan();
            Ok(())
        })
    }

    /// # Safety
    /// Python passes a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { begin(view)? };
        let this = slf.get();
        if !*locked(&this.is_open)? {
            return Err(PyBufferError::new_err("the loan was published or given back"));
        }
        let address = std::ptr::with_exposed_provenance_mut::<u8>(this.address);
        // SAFETY: `_guard` keeps this many bytes mapped, and the view keeps a reference to this object.
        unsafe { fill(view, &slf, address, this.bytes, false, flags) }
    }
}

impl Loan {
    fn end<T>(&self, end: impl FnOnce(&mut RawPublisher) -> PyResult<T>) -> PyResult<T> {
        let mut is_open = locked(&self.is_open)?;
        let mut raw = locked(&self.publisher.get().0)?;
        let publisher = raw.as_mut().ok_or_else(closed)?;
        if !std::mem::replace(&mut *is_open, false) {
            return Err(PyValueError::new_err("the loan was published or given back"));
        }
        end(publisher)
    }
}

/// Python expects no owner in a view that is refused.
///
/// # Safety
/// `view` must be valid, or null.
unsafe fn begin(view: *mut ffi::Py_buffer) -> PyResult<()> {
    // SAFETY: guaranteed by the caller.
    match unsafe { view.as_mut() } {
        Some(view) => view.obj = std::ptr::null_mut(),
        None => return Err(PyBufferError::new_err("there is no view to fill")),
    }
    Ok(())
}

/// Describes memory to Python.
///
/// # Safety
/// `view` must be valid, and `bytes` bytes at `address` must be readable, and writable unless `is_read_only`, while
/// `owner` lives.
unsafe fn fill<T>(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, T>,
    address: *mut u8,
    bytes: usize,
    is_read_only: bool,
    flags: c_int,
) -> PyResult<()> {
    let length = bytes as ffi::Py_ssize_t;
    // SAFETY: guaranteed by the caller; the call checks `view` itself.
    let result = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address.cast(), length, is_read_only.into(), flags)
    };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// A subscriber to bytes.
#[pyclass(frozen)]
pub struct NativeSubscriber(Mutex<Option<RawSubscriber>>);

#[pymethods]
impl NativeSubscriber {
    #[new]
    fn new(
        py: Python<'_>,
        topic: String,
        history: u32,
        wait: f64,
        folder: Option<PathBuf>,
    ) -> PyResult<Self> {
        let mut options = SubscribeOptions { history, folder, ..SubscribeOptions::default() };
        let deadline = Instant::now().checked_add(duration(wait)?);
        loop {
            let left =
                deadline.map_or(SIGNALS, |deadline| deadline.saturating_duration_since(Instant::now()));
            options.wait = left.min(SIGNALS);
            match py.detach(|| RawSubscriber::connect(&topic, &options)) {
                Err(Error::NoPublisher(_)) if !left.is_zero() => py.check_signals()?,
                other => return other.map(|raw| Self(Mutex::new(Some(raw)))).map_err(raised),
            }
        }
    }

    /// Name, size and alignment of the type, and whether messages are slices.
    #[getter]
    fn message(&self) -> PyResult<(String, usize, usize, bool)> {
        let raw = locked(&self.0)?;
        let message = raw.as_ref().ok_or_else(closed)?.message();
        Ok((message.name.clone(), message.element_bytes, message.alignment, message.is_slice))
    }

    /// The next message, if there is one.
    fn poll(&self) -> PyResult<Option<Sample>> {
        let mut raw = locked(&self.0)?;
        Ok(raw.as_mut().ok_or_else(closed)?.receive().map_err(raised)?.map(Sample::new))
    }

    /// Waits for the next message, without limit if `timeout` is `None`.
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Sample> {
        let mut raw = locked(&self.0)?;
        let raw = raw.as_mut().ok_or_else(closed)?;
        patiently(py, timeout, |limit| raw.receive_wait(Some(limit))).map(Sample::new)
    }

    /// The number of messages lost so far.
    #[getter]
    fn lost(&self) -> PyResult<u64> {
        Ok(locked(&self.0)?.as_ref().ok_or_else(closed)?.lost())
    }

    /// Ends the subscription. Samples stay valid.
    fn close(&self) -> PyResult<()> {
        drop(locked(&self.0)?.take());
        Ok(())
    }
}

/// A received message: a read-only buffer in the topic's memory.
#[pyclass(frozen)]
pub struct Sample {
    /// In a box, because Python does not align its objects as a sample needs it.
    raw: Mutex<Option<Box<RawSample>>>,
    number: u64,
    lost: u64,
    elements: usize,
    /// The number of views that refer to the buffer.
    views: AtomicUsize,
}

/// The alignment of Python's objects (`ALIGNMENT` in CPython's Objects/obmalloc.c).
const OBJECT_ALIGNMENT: usize = 16;
const _: () = assert!(
    align_of::<Sample>() <= OBJECT_ALIGNMENT
        && align_of::<Loan>() <= OBJECT_ALIGNMENT
        && align_of::<NativePublisher>() <= OBJECT_ALIGNMENT
        && align_of::<NativeSubscriber>() <= OBJECT_ALIGNMENT
);

impl Sample {
    fn new(raw: RawSample) -> Self {
        let (number, lost, elements) = (raw.number(), raw.lost(), raw.elements());
        Self { raw: Mutex::new(Some(Box::new(raw))), number, lost, elements, views: AtomicUsize::new(0) }
    }
}

#[pymethods]
impl Sample {
    /// The number of the message.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// The number of messages lost directly before this one.
    #[getter]
    fn lost(&self) -> u64 {
        self.lost
    }

    /// The number of elements.
    #[getter]
    fn elements(&self) -> usize {
        self.elements
    }

    /// Whether all data read so far belongs to this message.
    #[getter]
    fn is_intact(&self) -> PyResult<bool> {
        Ok(locked(&self.raw)?.as_ref().is_some_and(|sample| sample.is_intact()))
    }

    /// Lets the publisher use the memory again.
    fn release(&self) -> PyResult<()> {
        let mut raw = locked(&self.raw)?;
        if self.views.load(Ordering::Acquire) > 0 {
            return Err(PyBufferError::new_err(
                "an array still refers to the sample; delete it first, or copy it",
            ));
        }
        *raw = None;
        Ok(())
    }

    /// # Safety
    /// Python passes a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { begin(view)? };
        let this = slf.get();
        let raw = locked(&this.raw)?;
        let sample = raw.as_ref().ok_or_else(|| PyBufferError::new_err("the sample was released"))?;
        // SAFETY: the sample stays until no view is left, and the view keeps a reference to this object.
        unsafe { fill(view, &slf, sample.address().cast_mut(), sample.bytes(), true, flags)? };
        this.views.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// # Safety
    /// Python passes a view of `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Ordering::Release);
    }
}
