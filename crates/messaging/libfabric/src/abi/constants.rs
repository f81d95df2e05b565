//! Constants, under libfabric's names without `FI_`.

/// The version of the interface, as `FI_VERSION(1, 17)`.
pub(crate) const INTERFACE_VERSION: u32 = (1 << 16) | 17;

// Capabilities, flags of operations and flags of completions.
pub(crate) const MSG: u64 = 1 << 1;
pub(crate) const RMA: u64 = 1 << 2;
pub(crate) const TAGGED: u64 = 1 << 3;
pub(crate) const ATOMIC: u64 = 1 << 4;
pub(crate) const READ: u64 = 1 << 8;
pub(crate) const WRITE: u64 = 1 << 9;
pub(crate) const RECV: u64 = 1 << 10;
pub(crate) const SEND: u64 = 1 << 11;
pub(crate) const REMOTE_READ: u64 = 1 << 12;
pub(crate) const REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const MULTI_RECV: u64 = 1 << 16;
pub(crate) const REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const MORE: u64 = 1 << 18;
pub(crate) const PEEK: u64 = 1 << 19;
pub(crate) const FENCE: u64 = 1 << 21;
pub(crate) const COMPLETION: u64 = 1 << 24;
pub(crate) const INJECT: u64 = 1 << 25;
pub(crate) const INJECT_COMPLETE: u64 = 1 << 26;
pub(crate) const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub(crate) const DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const MATCH_COMPLETE: u64 = 1 << 31;
pub(crate) const LOCAL_COMM: u64 = 1 << 51;
pub(crate) const REMOTE_COMM: u64 = 1 << 52;
pub(crate) const RMA_EVENT: u64 = 1 << 56;
pub(crate) const SOURCE: u64 = 1 << 57;
pub(crate) const DIRECTED_RECV: u64 = 1 << 59;
pub(crate) const CLAIM: u64 = 1 << 59;
pub(crate) const DISCARD: u64 = 1 << 58;
/// A flag for binding a completion queue.
pub(crate) const SELECTIVE_COMPLETION: u64 = 1 << 59;

// Address formats.
pub(crate) const FORMAT_UNSPEC: u32 = 0;
pub(crate) const ADDR_STR: u32 = 9;
pub(crate) const PROV_SPECIFIC: u32 = 1 << 31;
pub(crate) const ADDR_UNSPEC: u64 = u64::MAX;
pub(crate) const ADDR_NOTAVAIL: u64 = u64::MAX;

// Types of address vectors.
pub(crate) const AV_UNSPEC: u32 = 0;
pub(crate) const AV_MAP: u32 = 1;
pub(crate) const AV_TABLE: u32 = 2;

// Modes of memory registration.
pub(crate) const MR_BASIC: i32 = 1;

// Progress, threading, resource management.
pub(crate) const PROGRESS_AUTO: u32 = 1;
pub(crate) const PROGRESS_MANUAL: u32 = 2;
pub(crate) const THREAD_SAFE: u32 = 1;
pub(crate) const THREAD_ENDPOINT: u32 = 5;
pub(crate) const RM_ENABLED: u32 = 2;

// Order of messages: reads, writes and sends to one peer are processed in the order of the calls.
pub(crate) const ORDER_SAS: u64 = 1 << 8;

// Types of endpoints.
pub(crate) const EP_UNSPEC: u32 = 0;
pub(crate) const EP_MSG: u32 = 1;
pub(crate) const EP_RDM: u32 = 3;

// Classes of objects.
pub(crate) const CLASS_FABRIC: usize = 1;
pub(crate) const CLASS_DOMAIN: usize = 2;
pub(crate) const CLASS_EP: usize = 3;
pub(crate) const CLASS_PEP: usize = 9;
pub(crate) const CLASS_AV: usize = 11;
pub(crate) const CLASS_MR: usize = 12;
pub(crate) const CLASS_EQ: usize = 13;
pub(crate) const CLASS_CQ: usize = 14;
pub(crate) const CLASS_CNTR: usize = 15;
pub(crate) const CLASS_CONNREQ: usize = 18;

// Commands of `fi_control`.
pub(crate) const GETOPSFLAG: i32 = 2;
pub(crate) const SETOPSFLAG: i32 = 3;
pub(crate) const ENABLE: i32 = 6;
pub(crate) const BACKLOG: i32 = 7;

// Wait objects.
pub(crate) const WAIT_NONE: u32 = 0;
pub(crate) const WAIT_UNSPEC: u32 = 1;
pub(crate) const WAIT_YIELD: u32 = 5;

// Formats of completions.
pub(crate) const CQ_FORMAT_UNSPEC: u32 = 0;
pub(crate) const CQ_FORMAT_CONTEXT: u32 = 1;
pub(crate) const CQ_FORMAT_MSG: u32 = 2;
pub(crate) const CQ_FORMAT_DATA: u32 = 3;
pub(crate) const CQ_FORMAT_TAGGED: u32 = 4;

// Events of event queues.
pub(crate) const EVENT_CONNREQ: u32 = 1;
pub(crate) const EVENT_CONNECTED: u32 = 2;
pub(crate) const EVENT_SHUTDOWN: u32 = 3;
pub(crate) const EVENT_AV_COMPLETE: u32 = 5;

// Options of endpoints.
pub(crate) const OPT_ENDPOINT: i32 = 0;
pub(crate) const OPT_MIN_MULTI_RECV: i32 = 0;
pub(crate) const OPT_CM_DATA_SIZE: i32 = 1;

// Errors that errno.h lacks.
pub(crate) const EOTHER: i32 = 256;
pub(crate) const ETOOSMALL: i32 = 257;
pub(crate) const EOPBADSTATE: i32 = 258;
pub(crate) const EAVAIL: i32 = 259;
pub(crate) const EBADFLAGS: i32 = 260;
pub(crate) const ENOEQ: i32 = 261;
pub(crate) const ENOCQ: i32 = 263;
pub(crate) const ETRUNC: i32 = 265;
pub(crate) const ENOKEY: i32 = 266;
pub(crate) const ENOAV: i32 = 267;
