//! What two shards tell each other when a queue pair is made: who they are and where their
//! control lines and logs can be read.
//!
//! ```text
//!   0  version u16 (1) | 0 u16 | group count u32
//!   8  control key u64
//!  16  per group (56 bytes):
//!      group u32 | line u32 | incarnation u64 | cluster u128 | log key u64
//!      | segment length u64 | durability mode u8 | 0 (7 bytes)
//! ```

use base::{ClusterId, GroupId, Incarnation};

/// Groups that one greeting tells of: what fits a message.
pub(crate) const GROUPS_MAX: usize = 64;
const VERSION: u16 = 1;
const HEAD_LEN: usize = 16;
const GROUP_LEN: usize = 56;

/// One group of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupGreeting {
    pub(crate) group: GroupId,
    /// Number of its line in the control memory.
    pub(crate) line: u32,
    pub(crate) incarnation: Incarnation,
    pub(crate) cluster: ClusterId,
    /// Lets the receiver read the group's region.
    pub(crate) log_key: u64,
    pub(crate) segment_len: u64,
    /// The code of the durability mode.
    pub(crate) mode: u8,
}

/// A shard's greeting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Lets the receiver read the control memory.
    pub(crate) control_key: u64,
    pub(crate) groups: Vec<GroupGreeting>,
}

impl Greeting {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_LEN + self.groups.len() * GROUP_LEN);
        let count = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&0_u16.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&self.control_key.to_le_bytes());
        for group in &self.groups {
            bytes.extend_from_slice(&group.group.0.to_le_bytes());
            bytes.extend_from_slice(&group.line.to_le_bytes());
            bytes.extend_from_slice(&group.incarnation.0.to_le_bytes());
            bytes.extend_from_slice(&group.cluster.0.to_le_bytes());
            bytes.extend_from_slice(&group.log_key.to_le_bytes());
            bytes.extend_from_slice(&group.segment_len.to_le_bytes());
            bytes.extend_from_slice(&[group.mode, 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes
    }

    /// What `bytes` say, or `None` when they are no greeting of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(HEAD_LEN)?;
        let version = u16::from_le_bytes(head.get(..2)?.try_into().ok()?);
        let count = u32::from_le_bytes(head.get(4..8)?.try_into().ok()?);
        let count = usize::try_from(count).ok()?;
        if version != VERSION || count > GROUPS_MAX || rest.len() != count * GROUP_LEN {
            return None;
        }
        let control_key = u64::from_le_bytes(head.get(8..16)?.try_into().ok()?);
        let groups = rest.chunks_exact(GROUP_LEN).map(decode_group).collect::<Option<Vec<_>>>()?;
        Some(Self { control_key, groups })
    }

    pub(crate) fn group(&self, group: GroupId) -> Option<GroupGreeting> {
        self.groups.iter().find(|greeting| greeting.group == group).copied()
    }
}

fn decode_group(bytes: &[u8]) -> Option<GroupGreeting> {
    Some(GroupGreeting {
        group: GroupId(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?)),
        line: u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?),
        incarnation: Incarnation(u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?)),
        cluster: ClusterId(u128::from_le_bytes(bytes.get(16..32)?.try_into().ok()?)),
        log_key: u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?),
        segment_len: u64::from_le_bytes(bytes.get(40..48)?.try_into().ok()?),
        mode: *bytes.get(48)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_read_whole_or_not_at_all() {
        let group = GroupGreeting {
            group: GroupId(3),
            line: 1,
            incarnation: Incarnation(0xfeed),
            cluster: ClusterId(0xc1),
            log_key: 77,
            segment_len: 1 << 20,
            mode: 2,
        };
        let greeting = Greeting { control_key: 9, groups: vec![group] };
        let bytes = greeting.encode();
        assert_eq!(Greeting::decode(&bytes), Some(greeting));
        for len in 0..bytes.len() {
            assert_eq!(Greeting::decode(&bytes[..len]), None, "{len} bytes are no greeting");
        }
        let absurd = [&bytes[..4], &u32::MAX.to_le_bytes(), &bytes[8..]].concat();
        assert_eq!(Greeting::decode(&absurd), None);
    }
}
