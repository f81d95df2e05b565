//! The settings of a shared-memory NIC: who may connect, how many resources peers may use, and where server names are
//! kept.
//!
//! Source: unix(7), SO_PEERCRED; setrlimit(2); Documentation/admin-guide/sysctl/vm.rst, max_map_count.

use std::path::PathBuf;

/// The users that are accepted as peers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Allow {
    /// All users.
    #[default]
    Everyone,
    /// Only processes of these users or groups (the effective group when they connected).
    Only {
        /// User IDs.
        users: Vec<u32>,
        /// Group IDs.
        groups: Vec<u32>,
    },
}

impl Allow {
    /// Only the user of this process.
    pub fn own_user() -> Allow {
        // SAFETY: takes no arguments and returns an integer.
        Allow::users(&[unsafe { libc::geteuid() }])
    }

    /// Only these users.
    pub fn users(users: &[u32]) -> Allow {
        Allow::Only { users: users.to_vec(), groups: Vec::new() }
    }

    /// Whether a process with this user and group is accepted.
    pub fn permits(&self, uid: u32, gid: u32) -> bool {
        match self {
            Allow::Everyone => true,
            Allow::Only { users, groups } => users.contains(&uid) || groups.contains(&gid),
        }
    }
}

/// Limits on the address space and descriptors of this process that peers may use. Requests beyond them are refused,
/// and both sides are informed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of bytes mapped for one connection; by default a quarter of `nic_bytes`, at most 1 TiB.
    pub peer_bytes: u64,
    /// The maximum number of bytes mapped for all peers of one user; by default half of `nic_bytes`.
    pub user_bytes: u64,
    /// The maximum number of bytes mapped for all peers; by default half of RLIMIT_AS, at most 32 TiB.
    pub nic_bytes: u64,
    /// The maximum number of mappings for one connection, including two for its halves; by default as many as it can
    /// export.
    pub peer_mappings: u32,
    /// The maximum number of mappings for all peers of one user; by default a third of vm.max_map_count.
    pub user_mappings: u32,
    /// The maximum number of mappings for all peers; by default half of vm.max_map_count.
    pub nic_mappings: u32,
    /// The maximum number of connections of one user, including those being established; by default a quarter of
    /// RLIMIT_NOFILE.
    pub user_connections: u32,
    /// The maximum number of connections in total; by default three eighths of RLIMIT_NOFILE.
    pub nic_connections: u32,
}

const TIB: u64 = 1 << 40;

impl Default for Limits {
    /// Default limits that leave half of the process's resources free: of the address space (128 TiB, or RLIMIT_AS) and
    /// of the mappings (vm.max_map_count); and a quarter of the descriptors (RLIMIT_NOFILE; a connection takes two).
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

/// The process's limit on a resource of setrlimit(2), if there is one.
pub(super) fn limit(resource: u32) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to the given structure.
    let known = unsafe { libc::getrlimit(resource as _, &raw mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The peers whose large messages are copied once, directly from the sender's memory, instead of twice through the
/// shared half. A single copy accesses pages chosen by the sender: they are charged to the receiver's memory, and a
/// sender that punches holes in them can delay the receiver. RDMA that this program requests itself is always direct.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SingleCopy {
    /// No peers.
    Never,
    /// Processes of the same user that could read each other's memory anyway, by ptrace(2).
    #[default]
    SameUser,
    /// Processes of other users too, if the receiver has the right (CAP_SYS_PTRACE). Both sides must enable it.
    BetweenUsers,
}

/// A directory for server names, instead of the abstract namespace, in which any process of the host can take a name
/// first. The directory must belong to root, to this process's user, or (for clients) to a user in
/// [`Settings::servers`], and must not be writable for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// The path of the directory.
    pub path: PathBuf,
    /// The mode of the sockets created in it. Write permission is required to connect; 0o600 admits only this process's
    /// user.
    pub mode: u32,
}

/// The settings of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// The users whose clients may connect.
    pub clients: Allow,
    /// The users whose servers this NIC connects to. Unless this is `Everyone`, nothing is sent to a process of another
    /// user that has taken the server's name.
    pub servers: Allow,
    /// The resources that peers may use.
    pub limits: Limits,
    /// The peers whose large messages are copied once.
    pub single_copy: SingleCopy,
    /// Where server names are kept. `None` means the abstract namespace.
    pub directory: Option<Directory>,
}

/// A refusal by this NIC or by a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The user of the peer.
    pub uid: u32,
    /// Whether the peer refused a request of this NIC.
    pub by_peer: bool,
    /// The refused request and the reason.
    pub reason: String,
}
