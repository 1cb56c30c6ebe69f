//! A peer that runs by itself.

use crate::{Access, Completion, Fabric, FabricEvent, Key, Qp, RegionId, Status, WorkRequest};
use crate::{Remote, Request};

use super::REGION_LEN;

/// The keys that a target sends as its first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetKeys {
    /// The first half of its region, for the receiver to write.
    pub log: Key,
    /// The second half, for anybody to read.
    pub page: Key,
}

impl TargetKeys {
    /// The message.
    #[must_use]
    pub fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.log.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.page.0.to_le_bytes());
        bytes
    }

    /// The keys in a message, if it has them.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (log, page) = bytes.split_first_chunk::<8>()?;
        let page: [u8; 8] = page.try_into().ok()?;
        Some(Self { log: Key(u64::from_le_bytes(*log)), page: Key(u64::from_le_bytes(page)) })
    }
}

/// Answers whoever connects:
/// - it registers its region and sends [`TargetKeys`];
/// - a message of 16 bytes holds keys of the sender: it writes `b"written!"` to the start of that
///   log, reads the page back, and answers with the word of the completion.
#[derive(Debug)]
pub struct Target<F> {
    fabric: F,
    region: RegionId,
    bytes: Vec<u8>,
}

impl<F: Fabric> Target<F> {
    /// A target with a region of [`REGION_LEN`] bytes.
    pub fn new(fabric: F, region: RegionId) -> Self {
        Self { fabric, region, bytes: Vec::new() }
    }

    /// The provider, to sleep on.
    pub fn fabric(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// Does what there is to do; whether there was something.
    pub fn turn(&mut self) -> bool {
        let none = Completion { qp: Qp(0), id: 0, status: Status::Flushed, word: 0 };
        let mut completions = [none];
        let has_completed = self.fabric.poll(&mut completions) == 1;
        if has_completed && completions[0].status == Status::Ok {
            let [completion] = completions;
            self.send(completion.qp, &completion.word.to_le_bytes());
        }
        let Some(event) = self.fabric.next_event(&mut self.bytes) else { return has_completed };
        match event {
            FabricEvent::Connected { qp, .. } => self.offer(qp),
            FabricEvent::Received { qp } => {
                if let Some(keys) = TargetKeys::decode(&self.bytes) {
                    self.write(qp, keys);
                }
            }
            FabricEvent::Disconnected { .. }
            | FabricEvent::Deregistered { .. }
            | FabricEvent::Rang { .. } => {}
        }
        true
    }

    fn offer(&mut self, qp: Qp) {
        let log = self.fabric.register(self.region, 0..REGION_LEN / 2, Access::Write(qp));
        let page = self.fabric.register(self.region, REGION_LEN / 2..REGION_LEN, Access::Read);
        if let (Ok(log), Ok(page)) = (log, page) {
            self.send(qp, &TargetKeys { log, page }.encode());
        }
    }

    fn send(&mut self, qp: Qp, bytes: &[u8]) {
        // The queue pair may have been dropped meanwhile: then nobody waits for it.
        let _ = self.fabric.post(qp, &[WorkRequest { id: 0, request: Request::Send { bytes } }]);
    }

    fn write(&mut self, qp: Qp, keys: TargetKeys) {
        let pieces = &[crate::Piece::Inline(b"written!")];
        let to = Remote { key: keys.log, offset: 0 };
        let from = Remote { key: keys.page, offset: 0 };
        let chain = [
            WorkRequest { id: 1, request: Request::Write { pieces, to } },
            WorkRequest { id: 2, request: Request::ReadWord { from } },
        ];
        // As in `send`.
        let _ = self.fabric.post(qp, &chain);
    }
}
