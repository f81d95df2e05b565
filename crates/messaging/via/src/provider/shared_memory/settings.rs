//! What a program says about the peers of its NIC: whom it lets in, how much of this process they may take up, where names live.
//! Not the taking up itself, which is `ledger.rs`, nor the names, which are `names.rs`.
//! Source: unix(7), SO_PEERCRED; setrlimit(2); Documentation/admin-guide/sysctl/vm.rst, max_map_count.

use std::path::PathBuf;

/// Users that may be at the other end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Allow {
    /// Anybody.
    #[default]
    Everyone,
    /// Processes of these users, or of one of these groups (their effective group when they connected), and nobody else.
    Only {
        /// User numbers.
        users: Vec<u32>,
        /// Group numbers.
        groups: Vec<u32>,
    },
}

impl Allow {
    /// Only the user whose process this is.
    pub fn own_user() -> Allow {
        // SAFETY: asks for a number.
        Allow::users(&[unsafe { libc::geteuid() }])
    }

    /// Only these users.
    pub fn users(users: &[u32]) -> Allow {
        Allow::Only { users: users.to_vec(), groups: Vec::new() }
    }

    /// Whether a process of that user and group may.
    pub fn permits(&self, uid: u32, gid: u32) -> bool {
        match self {
            Allow::Everyone => true,
            Allow::Only { users, groups } => users.contains(&uid) || groups.contains(&gid),
        }
    }
}

/// How much of this process's address space and descriptors peers may take up. What goes beyond is refused, and both sides are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that one connection's peer may have mapped here.
    pub peer_bytes: u64,
    /// Bytes that all peers of one user may.
    pub user_bytes: u64,
    /// Bytes that all peers together may.
    pub nic_bytes: u64,
    /// Mappings of one connection's peer; the halves of the segment are two.
    pub peer_mappings: u32,
    /// Mappings of all peers of one user.
    pub user_mappings: u32,
    /// Mappings of all peers together.
    pub nic_mappings: u32,
    /// Connections of one user, those that are being made counted in.
    pub user_connections: u32,
    /// Connections in all.
    pub nic_connections: u32,
}

const TIB: u64 = 1 << 40;

impl Default for Limits {
    /// Room for large regions and many peers, and half of what the process has stays its own: of the address space (128 TiB, or
    /// RLIMIT_AS), of the mappings (vm.max_map_count), and a quarter of the descriptors (RLIMIT_NOFILE; a connection takes two).
    fn default() -> Limits {
        let nic_bytes = limit(libc::RLIMIT_AS as _).map_or(32 * TIB, |bytes| (bytes / 2).min(32 * TIB));
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count")
            .ok()
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(65_530u32);
        let files = limit(libc::RLIMIT_NOFILE as _).unwrap_or(1 << 20).min(1 << 24) as u32;
        Limits {
            peer_bytes: TIB.min(nic_bytes / 4),
            user_bytes: nic_bytes / 2,
            nic_bytes,
            peer_mappings: 2 + super::layout::EXPORTS as u32,
            user_mappings: mappings / 3,
            nic_mappings: mappings / 2,
            user_connections: files / 4,
            nic_connections: files / 8 * 3,
        }
    }
}

/// The process's limit on something, which setrlimit(2) numbers, if there is one.
pub(super) fn limit(resource: u32) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to the structure given.
    let known = unsafe { libc::getrlimit(resource as _, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// With whom large messages are copied once, out of the sender's own memory, instead of twice, through the segment. Whoever copies so
/// touches pages that the sender has chosen: they count as the receiver's memory from then on, and a sender who makes holes in them can
/// hold the receiver up. RDMA that this program itself asks for is direct in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SingleCopy {
    /// With nobody.
    Never,
    /// With processes of the same user that could read each other's memory anyway, by ptrace(2).
    #[default]
    SameUser,
    /// With processes of other users too, where the receiving one has the right (CAP_SYS_PTRACE). Both sides must say so.
    BetweenUsers,
}

/// A directory that connection names live in, instead of the abstract name space, in which any process of the host can take a name
/// first. Nobody but its owner can: it must belong to root, to this process's user, or (asking side) to a user in
/// [`Settings::servers`], and others must not be able to write to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Where it is.
    pub path: PathBuf,
    /// The mode of the sockets made in it: who may write may connect. 0o600: this process's user alone.
    pub mode: u32,
}

/// What a NIC is opened with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Who may connect here.
    pub clients: Allow,
    /// Whose servers this NIC connects to. With anything but everyone, no word is said to another user's process that has taken
    /// the name.
    pub servers: Allow,
    /// How much peers may take up.
    pub limits: Limits,
    /// With whom large messages are copied once.
    pub single_copy: SingleCopy,
    /// Where names live. `None`: in the abstract name space.
    pub directory: Option<Directory>,
}

/// Something that was refused: by this NIC to a peer, or by a peer to this NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The peer's user.
    pub uid: u32,
    /// Whether the peer refused it to us.
    pub by_peer: bool,
    /// What, and why.
    pub reason: String,
}
