//! What makes a completed read-back durable: declared, checked and shown, never assumed.

/// A durability mode. It is part of a group's configuration: a member that cannot back it is not
/// admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Nothing survives the process: the group lives only while a quorum of members stays up.
    Volatile,
    /// Page cache or shared memory: survives `kill -9`, not a reboot or power loss.
    Process,
    /// The file is synced, in groups, before the acknowledgement.
    #[default]
    Sync,
    /// Persistent memory in ADR with direct cache injection off: a READ pushes earlier writes out.
    ReadBack,
    /// eADR, CXL global persistent flush or a battery: what is visible is durable.
    Platform,
    /// The RDMA FLUSH verb.
    Flush,
    /// The target's own software writes back and acknowledges.
    TargetCpu,
}

impl Durability {
    /// Every mode, in the order of its number on media.
    pub const ALL: [Self; 7] = [
        Self::Volatile,
        Self::Process,
        Self::Sync,
        Self::ReadBack,
        Self::Platform,
        Self::Flush,
        Self::TargetCpu,
    ];

    /// The name that configuration, status and metrics show.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Volatile => "volatile",
            Self::Process => "process",
            Self::Sync => "sync",
            Self::ReadBack => "read-back",
            Self::Platform => "platform",
            Self::Flush => "flush",
            Self::TargetCpu => "target-cpu",
        }
    }

    /// The mode of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// The number that stands on media.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The mode with this number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}
