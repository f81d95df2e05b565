//! An attacker that knows the protocol: it follows the protocol up to a chosen point and then performs arbitrary steps,
//! many of them nearly valid. It can send every control message of `control_message.rs` and write every word of `layout.rs`.

use super::stall::BlockingPage;
use super::*;
use proptest::prelude::*;
use std::os::fd::{AsFd, FromRawFd};

/// A number, interpreted in the attacker's current state.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Any(u64),
    Small(u16),
    /// Just below, at, or just above a limit of the layout.
    Edge(u8, i8),
    /// The handle, the address or the length of a region that was exported or lent to the attacker.
    Handle(u8),
    Address(u8, i16),
    Length(u8),
    /// An own address whose page never arrives.
    Stalled,
    /// The attacker's own position, or one close to it.
    Position(i8),
    /// The number of a descriptor that the attacker holds: a sealed memory file, or something else.
    OwnFile(u8),
}

/// A control message whose numbers are not interpreted yet.
#[derive(Debug, Clone)]
pub(super) enum MessageTemplate {
    Hello { level: u8, barrier: bool, name: Vec<u8> },
    Accept,
    Reject { again: bool },
    Export([Value; 4], bool, bool),
    Lend([Value; 4], bool, Value),
    ExportsDone,
    Revoke(Value),
    Mapped(Value),
    Declined(Value, String),
    Nudge,
}

/// The file attached to a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attachment {
    Nothing,
    /// The attacker's half.
    Half,
    /// A sealed, sparse memory file of 2 to the given power bytes.
    Sparse(u8),
    Unsealed,
    Pipe,
    /// A connection with unsent data that its peer does not read, so that closing it blocks.
    Lingering,
    Folder,
}

#[derive(Debug, Clone)]
pub(super) enum AttackStep {
    Say(MessageTemplate, Attachment),
    Bytes(Vec<u8>),
    Cut(MessageTemplate, u16),
    Flood(MessageTemplate, u16),
    /// Writes a word of the attacker's half, at an offset that is likely to be read.
    Word {
        word: u16,
        value: Value,
    },
    /// Writes a message at the current position, or a few slots before or after it.
    Message {
        ahead: i8,
        head: [u8; 4],
        length: Value,
        words: [Value; WORDS],
    },
    /// Releases everything that was lent, and wakes sleepers.
    Wake,
    /// Tries to punch holes in both halves, which must fail.
    Hole,
    Pause(u8),
    HalfClose,
    Die,
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::Any),
        any::<u16>().prop_map(Value::Small),
        (0u8..8, -2i8..3).prop_map(|(edge, by)| Value::Edge(edge, by)),
        any::<u8>().prop_map(Value::Handle),
        (any::<u8>(), -80i16..9000).prop_map(|(which, by)| Value::Address(which, by)),
        any::<u8>().prop_map(Value::Length),
        Just(Value::Stalled),
        (-3i8..4).prop_map(Value::Position),
        any::<u8>().prop_map(Value::OwnFile),
    ]
}

fn message_template() -> impl Strategy<Value = MessageTemplate> {
    let values = || prop::array::uniform4(value());
    prop_oneof![
        1 => (0u8..8, any::<bool>(), prop::collection::vec(any::<u8>(), 0..50))
            .prop_map(|(level, barrier, name)| MessageTemplate::Hello { level, barrier, name }),
        1 => Just(MessageTemplate::Accept),
        1 => any::<bool>().prop_map(|again| MessageTemplate::Reject { again }),
        4 => (values(), any::<bool>(), any::<bool>()).prop_map(|(v, write, read)| MessageTemplate::Export(v, write, read)),
        4 => (values(), any::<bool>(), value()).prop_map(|(v, right, file)| MessageTemplate::Lend(v, right, file)),
        1 => Just(MessageTemplate::ExportsDone),
        2 => value().prop_map(MessageTemplate::Revoke),
        2 => value().prop_map(MessageTemplate::Mapped),
        2 => (value(), ".{0,90}").prop_map(|(handle, reason)| MessageTemplate::Declined(handle, reason)),
        2 => Just(MessageTemplate::Nudge),
    ]
}

fn attachment() -> impl Strategy<Value = Attachment> {
    prop_oneof![
        4 => Just(Attachment::Nothing),
        1 => Just(Attachment::Half),
        6 => (0u8..47).prop_map(Attachment::Sparse),
        1 => Just(Attachment::Unsealed),
        1 => Just(Attachment::Pipe),
        1 => Just(Attachment::Lingering),
        1 => Just(Attachment::Folder),
    ]
}

pub(super) fn step() -> impl Strategy<Value = AttackStep> {
    let head = [0u8..9, 0u8..6, 0u8..3, 0u8..5];
    prop_oneof![
        4 => (message_template(), attachment()).prop_map(|(message_template, attachment)| AttackStep::Say(message_template, attachment)),
        1 => prop::collection::vec(any::<u8>(), 0..1100).prop_map(AttackStep::Bytes),
        1 => (message_template(), any::<u16>()).prop_map(|(message_template, length)| AttackStep::Cut(message_template, length)),
        1 => (message_template(), 1u16..2000).prop_map(|(message_template, count)| AttackStep::Flood(message_template, count)),
        4 => (any::<u16>(), value()).prop_map(|(word, value)| AttackStep::Word { word, value }),
        16 => (prop_oneof![8 => Just(0i8), 1 => -2i8..3], head, value(), prop::array::uniform6(value()))
            .prop_map(|(ahead, head, length, words)| AttackStep::Message { ahead, head, length, words }),
        1 => Just(AttackStep::Wake),
        1 => Just(AttackStep::Hole),
        2 => (0u8..20).prop_map(AttackStep::Pause),
        1 => Just(AttackStep::HalfClose),
        1 => Just(AttackStep::Die),
    ]
}

/// The attacker's state and knowledge.
pub(super) struct Attacker {
    socket: Option<OwnedFd>,
    half: Mapping,
    file: OwnedFd,
    /// The victim's half and its file, once received.
    theirs: Option<(Mapping, super::super::deferred_close::PeerFile)>,
    position: u32,
    heard: Vec<RegionExport>,
    page: BlockingPage,
    /// A sealed memory file of the attacker.
    memory: OwnedFd,
}

impl Attacker {
    /// Creates an attacker on a connected or accepted socket.
    pub(super) fn new(socket: OwnedFd) -> Attacker {
        let (file, half) = create_half().unwrap();
        let (memory, _) = create(1 << 16, false).unwrap();
        Attacker {
            socket: Some(socket),
            half,
            file,
            theirs: None,
            position: 0,
            heard: Vec::new(),
            page: BlockingPage::new(),
            memory,
        }
    }

    /// Follows the protocol up to a point: 1 sends the hello, 2 completes the exports, 3 waits for the answer.
    pub(super) fn behave(&mut self, until: u8, level: Reliability) {
        if until >= 1 {
            let attributes = ViAttributes::new(ProtectionTag::default()).with_reliability(level);
            let hello =
                ControlMessage::Hello { local: Address::local("attacker"), attributes, barrier: true };
            self.send(&hello, Some(self.file.as_raw_fd()));
        }
        if until >= 2 {
            self.send(&ControlMessage::ExportsDone, None);
        }
        let end = Instant::now() + Duration::from_millis(500);
        while until >= 3 && Instant::now() < end && !self.listen() {
            std::thread::yield_now();
        }
    }

    /// Receives a client's complete handshake, takes its half and accepts.
    pub(super) fn behave_as_server(&mut self, level: Reliability) {
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            let Some(socket) = &self.socket else { return };
            match receive(socket, None) {
                Ok((ControlMessage::Hello { .. }, Some(file))) => {
                    self.theirs = Some((map_half(&file).unwrap(), file));
                }
                Ok((ControlMessage::Export(export) | ControlMessage::Lend { export, .. }, _)) => {
                    self.heard.push(export)
                }
                Ok((ControlMessage::ExportsDone, _)) => break,
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                _ => std::thread::yield_now(),
            }
        }
        let attributes = ViAttributes::new(ProtectionTag::default()).with_reliability(level);
        self.send(&ControlMessage::Accept { attributes, barrier: true }, Some(self.file.as_raw_fd()));
        self.send(&ControlMessage::ExportsDone, None);
    }

    /// Receives pending messages. Returns true at the end of the handshake or of the stream.
    fn listen(&mut self) -> bool {
        let Some(socket) = &self.socket else { return true };
        loop {
            match receive(socket, None) {
                Ok((ControlMessage::ExportsDone, _)) => return true,
                Ok((ControlMessage::Accept { .. }, Some(file))) => {
                    self.theirs = Some((map_half(&file).unwrap(), file))
                }
                Ok((ControlMessage::Export(export) | ControlMessage::Lend { export, .. }, _)) => {
                    self.heard.push(export)
                }
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }

    fn send(&self, message: &ControlMessage, file: Option<i32>) {
        if let Some(socket) = &self.socket {
            let _ = send(socket.as_raw_fd(), message, file);
        }
    }

    fn known(&self, which: u8) -> RegionExport {
        let nothing = RegionExport {
            handle: 0x10_0001,
            address: 0x1000,
            length: 64,
            write: true,
            read: true,
            slot: 0,
            serial: 0,
        };
        self.heard.get(usize::from(which) % self.heard.len().max(1)).copied().unwrap_or(nothing)
    }

    fn number(&self, value: Value) -> u64 {
        let edges = [
            u64::from(SLOTS),
            u64::from(INLINE_BYTES),
            u64::from(CHUNK_BYTES),
            u64::from(ARENA_BYTES),
            EXPORTS as u64,
            u64::from(u32::MAX),
            1 << 47,
            0,
        ];
        match value {
            Value::Any(number) => number,
            Value::Small(number) => u64::from(number),
            Value::Edge(edge, by) => edges[usize::from(edge)].wrapping_add_signed(i64::from(by)),
            Value::Handle(which) => u64::from(self.known(which).handle),
            Value::Address(which, by) => self.known(which).address.wrapping_add_signed(i64::from(by)),
            Value::Length(which) => self.known(which).length,
            Value::Stalled => self.page.address(),
            Value::Position(by) => u64::from(self.position.wrapping_add_signed(i32::from(by))),
            Value::OwnFile(0..=127) => self.memory.as_raw_fd() as u64,
            Value::OwnFile(number) => u64::from(number - 127),
        }
    }

    fn message(&self, message_template: &MessageTemplate) -> ControlMessage {
        let small = |value: Value| self.number(value) as u32;
        let export = |values: &[Value; 4], write, read| RegionExport {
            handle: small(values[0]),
            address: self.number(values[1]),
            length: self.number(values[2]),
            write,
            read,
            slot: small(values[3]) % 300,
            serial: 0,
        };
        let attributes = |level: u8| {
            let level = Reliability::ALL[usize::from(level) % 3];
            ViAttributes::new(ProtectionTag::default()).with_reliability(level)
        };
        match message_template {
            MessageTemplate::Hello { level, barrier, name } => ControlMessage::Hello {
                local: Address::new(b"", name),
                attributes: attributes(*level),
                barrier: *barrier,
            },
            MessageTemplate::Accept => ControlMessage::Accept { attributes: attributes(1), barrier: true },
            MessageTemplate::Reject { again } => {
                ControlMessage::Reject { reason: "so".into(), again: *again }
            }
            MessageTemplate::Export(values, write, read) => {
                ControlMessage::Export(export(values, *write, *read))
            }
            MessageTemplate::Lend(values, right, file) => {
                ControlMessage::Lend { export: export(values, *right, false), file: small(*file) }
            }
            MessageTemplate::ExportsDone => ControlMessage::ExportsDone,
            MessageTemplate::Revoke(handle) => ControlMessage::Revoke { handle: small(*handle) },
            MessageTemplate::Mapped(handle) => ControlMessage::Mapped { handle: small(*handle), serial: 0 },
            MessageTemplate::Declined(handle, reason) => {
                ControlMessage::Declined { handle: small(*handle), reason: reason.clone() }
            }
            MessageTemplate::Nudge => ControlMessage::Nudge,
        }
    }

    fn raw(&self, bytes: &[u8]) {
        if let Some(socket) = &self.socket {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the buffer is a local slice.
            unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        }
    }

    /// Performs a step.
    pub(super) fn act(&mut self, step: &AttackStep) {
        self.listen();
        match step {
            AttackStep::Say(message_template, attachment) => {
                let file = create_attachment(*attachment, &self.file);
                self.send(&self.message(message_template), file.as_ref().map(AsRawFd::as_raw_fd));
                if matches!(attachment, Attachment::Lingering) {
                    // Closing the file may block the attacker too.
                    let _ = std::thread::Builder::new().spawn(move || drop(file));
                }
            }
            AttackStep::Bytes(bytes) => self.raw(bytes),
            AttackStep::Cut(message_template, length) => {
                let bytes = self.message(message_template).write();
                self.raw(&bytes[..usize::from(*length) % bytes.len()]);
            }
            AttackStep::Flood(message_template, count) => {
                let message = self.message(message_template);
                (0..*count).for_each(|_| self.send(&message, None));
            }
            AttackStep::Word { word, value } => {
                // Progress, side state, wake word, exports and the first slots.
                let offset = (usize::from(*word) * 4) % 4096;
                // SAFETY: inside the attacker's half and aligned; the other side also accesses it through atomics.
                let word = unsafe { AtomicU32::from_ptr(self.half.base().add(offset).cast()) };
                word.store(self.number(*value) as u32, Order::Relaxed);
            }
            AttackStep::Message { ahead, head, length, words } => {
                let position = self.position.wrapping_add_signed(i32::from(*ahead));
                self.fill_slot(position, u32::from_le_bytes(*head), *length, words);
                self.position = position.wrapping_add(1);
            }
            AttackStep::Wake => {
                // SAFETY: the attacker's half; only atomics are accessed through the reference.
                let wake_word = unsafe { &(*self.half.base().cast::<Side>()).wake_word.wakes };
                wake_word.fetch_add(1, Order::Relaxed);
                crate::futex::wake_all(wake_word, false);
            }
            AttackStep::Hole => self.try_holes(),
            AttackStep::Pause(ms) => std::thread::sleep(Duration::from_millis(u64::from(*ms))),
            AttackStep::HalfClose => {
                if let Some(socket) = &self.socket {
                    // SAFETY: the call takes only integers.
                    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) };
                }
            }
            AttackStep::Die => self.socket = None,
        }
    }

    fn fill_slot(&self, position: u32, head: u32, length: Value, words: &[Value; WORDS]) {
        // SAFETY: the attacker's half; only atomics are accessed through the reference.
        let side = unsafe { &*self.half.base().cast::<Side>() };
        let slot = &side.slots[(position % SLOTS) as usize];
        slot.head.store(head, Order::Relaxed);
        slot.length.store(self.number(length) as u32, Order::Relaxed);
        for (word, value) in slot.words.iter().zip(words) {
            word.store(self.number(*value), Order::Relaxed);
        }
        slot.stamp.store(position / SLOTS + 1, Order::Release);
    }

    /// Checks that no holes can be punched in either half.
    fn try_holes(&self) {
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let theirs = self.theirs.iter().map(|(_, file)| file.as_fd());
        for file in theirs.chain([self.file.as_fd()]) {
            // SAFETY: the call takes only integers.
            let made = unsafe { libc::fallocate(file.as_raw_fd(), how, 0, HALF_BYTES as libc::off_t) == 0 };
            assert!(!made, "a hole in a half");
        }
    }

    /// Whether the eight bytes of `secret` occur in the victim's half.
    pub(super) fn has_learnt(&self, secret: u64) -> bool {
        self.theirs.as_ref().is_some_and(|(theirs, _)| occurs_in(theirs, secret))
    }
}

/// Creates the file to attach to a message.
pub(super) fn create_attachment(attachment: Attachment, half: &OwnedFd) -> Option<OwnedFd> {
    let memory = |seals: i32, length: u64| {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a constant; the call only creates a descriptor.
        let fd = unsafe { libc::memfd_create(c"luggage".as_ptr(), flags) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the call takes only integers.
        let made = unsafe {
            libc::ftruncate(fd, length as libc::off_t) == 0 && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
        };
        made.then_some(file)
    };
    match attachment {
        Attachment::Nothing => None,
        Attachment::Half => half.try_clone().ok(),
        Attachment::Sparse(bits) => memory(libc::F_SEAL_SHRINK | libc::F_SEAL_GROW, 1 << bits),
        Attachment::Unsealed => memory(0, 1 << 16),
        Attachment::Pipe => std::io::pipe().ok().map(|(reader, _)| reader.into()),
        Attachment::Lingering => lingering(2).ok(),
        Attachment::Folder => std::fs::File::open("/").ok().map(OwnedFd::from),
    }
}

/// A TCP connection that takes `seconds` to close, because its unsent data is never read.
pub(in crate::provider::shared_memory) fn lingering(seconds: i32) -> std::io::Result<OwnedFd> {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    /// Connection ends that are never read. The oldest are dropped.
    static UNREAD: std::sync::Mutex<Vec<TcpStream>> = std::sync::Mutex::new(Vec::new());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let mut unread = UNREAD.lock().unwrap();
    if unread.len() >= 16 {
        unread.remove(0);
    }
    unread.push(listener.accept()?.0);
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 65_536]).is_ok() {}
    stream.set_nonblocking(false)?;
    let linger = libc::linger { l_onoff: 1, l_linger: seconds };
    let length = size_of::<libc::linger>() as libc::socklen_t;
    let fd = stream.as_raw_fd();
    // SAFETY: reads the given structure.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), length) };
    Ok(stream.into())
}
