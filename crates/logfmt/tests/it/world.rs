//! A small region and a leader's pen that writes into it as a remote writer would: by the placement
//! rule and the header encoding alone, without the log under test.

use base::{Configuration, GrantWord, Incarnation, Index, Member, MemberId, Nonce, SlotId, Term};
use logfmt::place::{FIRST_OFFSET, Place, place};
use logfmt::{
    BytesMut, Checkpoint, Header, Kind, MemberLog, Position, RegionLayout, Seal, SegmentRecord,
    Superblock,
};

pub(crate) fn layout() -> RegionLayout {
    RegionLayout::new(4096, 8).unwrap()
}

/// Segments large enough for aligned payloads.
pub(crate) fn wide_layout() -> RegionLayout {
    RegionLayout::new(256 << 10, 4).unwrap()
}

pub(crate) fn region(layout: RegionLayout) -> Vec<u8> {
    vec![0; usize::try_from(layout.region_len()).unwrap()]
}

pub(crate) fn configuration(ids: &[u32]) -> Configuration {
    let member = |&id: &u32| Member { id: MemberId(id), incarnation: Incarnation(u64::from(id)) };
    Configuration::of_voters(ids.iter().map(member))
}

pub(crate) fn founding() -> Checkpoint {
    Checkpoint { configuration: configuration(&[1, 2, 3]), ..Checkpoint::default() }
}

/// The checkpoint at a position, with the founding configuration.
pub(crate) fn checkpoint(at: Position) -> Checkpoint {
    Checkpoint { at, ..founding() }
}

/// Segment `slot` as ordinal `ordinal` of the first grant in `term`; the term is its nonce's seed.
pub(crate) fn record(slot: u32, term: u64, ordinal: u32) -> SegmentRecord {
    SegmentRecord {
        slot: SlotId(slot),
        word: GrantWord::new(Term(term), 1),
        ordinal,
        nonce: Nonce(0x1111 * term),
        first: Index(0),
        seal: None,
    }
}

pub(crate) fn sealed(open: SegmentRecord, first: u64, last: u64, end: u64) -> SegmentRecord {
    SegmentRecord { first: Index(first), seal: Some(Seal { last: Index(last), end }), ..open }
}

pub(crate) fn superblock(
    layout: RegionLayout,
    checkpoint: Checkpoint,
    segments: Vec<SegmentRecord>,
) -> Superblock {
    let grant = segments.last().map_or_else(GrantWord::default, |last| last.word);
    Superblock {
        generation: 1,
        identity: <_>::default(),
        boot: <_>::default(),
        mode: <_>::default(),
        segment_len: layout.segment_len(),
        slot_count: layout.slot_count(),
        term: grant.term(),
        vote: None,
        grant,
        granted_to: None,
        hole: None,
        checkpoint,
        segments,
    }
}

/// What a leader writes into one segment of somebody's region.
pub(crate) struct Pen {
    pub(crate) layout: RegionLayout,
    pub(crate) record: SegmentRecord,
    pub(crate) offset: u64,
    pub(crate) previous: Position,
}

impl Pen {
    pub(crate) fn new(layout: RegionLayout, record: SegmentRecord, previous: Position) -> Self {
        Self { layout, record, offset: FIRST_OFFSET, previous }
    }

    /// Writes a command of `term`.
    pub(crate) fn command(&mut self, region: &mut Vec<u8>, term: u64, payload: &[u8]) -> Place {
        self.write(region, Kind::Command, term, 0, payload)
    }

    /// Writes a command of `term` whose payload begins on a block.
    pub(crate) fn aligned(&mut self, region: &mut Vec<u8>, term: u64, payload: &[u8]) -> Place {
        let header = Header { aligned: true, ..self.header(Kind::Command, term, payload) };
        self.put(region, header, payload)
    }

    pub(crate) fn write(
        &mut self,
        region: &mut Vec<u8>,
        kind: Kind,
        term: u64,
        commit: u64,
        payload: &[u8],
    ) -> Place {
        let header = Header { commit: Index(commit), ..self.header(kind, term, payload) };
        self.put(region, header, payload)
    }

    fn header(&self, kind: Kind, term: u64, payload: &[u8]) -> Header {
        let header = Header {
            kind,
            aligned: false,
            term: Term(term),
            index: self.previous.index.next(),
            commit: Index(0),
            payload_len: u32::try_from(payload.len()).unwrap(),
            digest: base::Digest(0),
        };
        Header { digest: header.digest_over(self.previous.digest, payload), ..header }
    }

    fn put(&mut self, region: &mut Vec<u8>, header: Header, payload: &[u8]) -> Place {
        let place = place(self.offset, header.shape());
        let start = self.layout.slot(self.record.slot).start;
        region.copy_in(start + place.payload, payload);
        region.copy_in(start + place.header, &header.encode(self.record.nonce));
        self.previous = header.position();
        self.offset = place.end;
        place
    }
}

/// Walks to the end and checks the invariants.
pub(crate) fn walk(log: &mut MemberLog, region: &Vec<u8>) -> logfmt::Walk {
    let walk = log.walk(region, u64::MAX);
    assert!(walk.at_end);
    log.assert_invariants();
    walk
}

/// Where byte `offset` of a slot lies in the region, as an index.
pub(crate) fn byte(layout: RegionLayout, slot: u32, offset: u64) -> usize {
    usize::try_from(layout.slot(SlotId(slot)).start + offset).unwrap()
}

/// A log of three one-line commands of term 1 in slot 0, walked and sealed.
pub(crate) fn three_sealed(region: &mut Vec<u8>) -> (MemberLog, Position) {
    let mut log = MemberLog::new(layout(), &founding());
    log.open(&record(0, 1, 0));
    let mut pen = Pen::new(layout(), record(0, 1, 0), Position::default());
    for payload in [b"one", b"two", b"thr"] {
        pen.command(region, 1, payload);
    }
    assert_eq!(walk(&mut log, region).accepted, 3);
    log.seal();
    log.assert_invariants();
    (log, pen.previous)
}
