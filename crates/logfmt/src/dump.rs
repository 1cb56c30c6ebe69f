//! What stands in a region, as text for people. Not a format: nothing reads it back.

use std::fmt::Write as _;

use base::{Configuration, MemberSet};

use crate::bytes::Bytes;
use crate::entry::{HEADER_BYTES, Header};
use crate::idle::{IDLE_LEN, decode_idle};
use crate::layout::RegionLayout;
use crate::log::MemberLog;
use crate::place::{FIRST_OFFSET, HEADER_LEN, LINE, aligned_header, payload_max, place};
use crate::{Kind, Position, SegmentRecord, Superblock};

/// A superblock, a field or two per line and one line per segment.
#[must_use]
pub fn dump_superblock(superblock: &Superblock) -> String {
    let Superblock { identity, checkpoint, .. } = superblock;
    let mut lines = Lines::default();
    lines.add(format_args!("superblock generation {}", superblock.generation));
    lines.add(format_args!(
        "  cluster {} group {} member {} incarnation {}",
        identity.cluster, identity.group, identity.member, identity.incarnation
    ));
    lines.add(format_args!("  boot {} mode {}", superblock.boot, superblock.mode.name()));
    lines.add(format_args!(
        "  {} segments of {} bytes",
        superblock.slot_count, superblock.segment_len
    ));
    lines.add(format_args!(
        "  term {} vote {} grant {} to {}",
        superblock.term,
        or_dash(superblock.vote),
        superblock.grant,
        or_dash(superblock.granted_to)
    ));
    if let Some(hole) = superblock.hole {
        lines.add(format_args!("  hole {}..{} found in term {}", hole.from, hole.until, hole.term));
    }
    lines.add(format_args!("  checkpoint {}", position(checkpoint.at)));
    lines.add(format_args!(
        "  configuration at {}: {}",
        checkpoint.configuration_index,
        members(&checkpoint.configuration)
    ));
    lines.add(format_args!(
        "  state file {} of {} bytes digest {}",
        checkpoint.state.id, checkpoint.state.length, checkpoint.state.digest
    ));
    for segment in &superblock.segments {
        lines.add(format_args!("  {}", record(segment)));
    }
    lines.0
}

/// What one segment holds under its nonce: idle line, entries in place, and headers that are valid
/// but out of place (stale, behind the seal, or behind damage).
#[must_use]
pub fn dump_segment(bytes: &impl Bytes, layout: RegionLayout, segment: &SegmentRecord) -> String {
    let mut lines = Lines::default();
    lines.add(format_args!("{}", record(segment)));
    let start = layout.slot(segment.slot).start;
    let mut idle = [0; IDLE_LEN];
    bytes.copy_out(start, &mut idle);
    let idle = decode_idle(&idle, segment.nonce);
    lines.add(format_args!("       0 idle commit {}", or_dash(idle)));
    let mut seal = segment.seal.map(|seal| seal.end);
    let mut offset = FIRST_OFFSET;
    while let Some((at, header, end)) = entry_behind(bytes, layout, segment, offset) {
        if let Some(end) = seal.take_if(|end| *end <= at) {
            lines.add(format_args!("{end:8} seal; never looked at behind it"));
        }
        lines.add(format_args!("{at:8} {}", entry(&header)));
        offset = end;
    }
    lines.add(format_args!("{offset:8} end"));
    while offset < layout.segment_len() {
        if let Some(header) = header_at(bytes, start + offset, segment) {
            lines.add(format_args!("{offset:8} stray {}", entry(&header)));
        }
        offset += LINE;
    }
    lines.0
}

/// A member's log: ends, terms, configurations, segments.
#[must_use]
pub fn dump_log(log: &MemberLog) -> String {
    let mut lines = Lines::default();
    lines.add(format_args!("log from {} to {}", log.first_index(), log.tail().index));
    lines.add(format_args!("  checkpoint {}", position(log.checkpoint())));
    lines.add(format_args!("  tail {}", position(log.tail())));
    if let Some(stream) = log.stream() {
        lines.add(format_args!("  stream {}", position(stream)));
    }
    lines.add(format_args!("  believed commit {}", log.believed_commit()));
    for boundary in log.boundaries() {
        lines.add(format_args!("  term {} from {}", boundary.term, boundary.first));
    }
    let (index, configuration) = log.configuration();
    lines.add(format_args!("  configuration at {index}: {}", members(configuration)));
    for segment in log.records() {
        lines.add(format_args!("  {}", record(&segment)));
    }
    lines.0
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a String takes every line");
    }
}

fn or_dash(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn position(at: Position) -> String {
    format!("{} term {} digest {}", at.index, at.term, at.digest)
}

fn members(configuration: &Configuration) -> String {
    let list = |set: &MemberSet| {
        let ids: Vec<String> = set.ids().map(|id| id.to_string()).collect();
        ids.join(",")
    };
    let mut text = format!("voters {}", list(&configuration.voters));
    for (name, set) in
        [("outgoing", &configuration.outgoing), ("learners", &configuration.learners)]
    {
        if !set.is_empty() {
            text = format!("{text} {name} {}", list(set));
        }
    }
    text
}

fn record(record: &SegmentRecord) -> String {
    let head = format!(
        "segment slot {} grant {} ordinal {} nonce {} from {}",
        record.slot, record.word, record.ordinal, record.nonce, record.first
    );
    match record.seal {
        Some(seal) => format!("{head} sealed at {} end {}", seal.last, seal.end),
        None => format!("{head} open"),
    }
}

fn entry(header: &Header) -> String {
    let kind = match header.kind {
        Kind::NoOp => "no-op",
        Kind::Command => "command",
        Kind::Configuration => "configuration",
        Kind::Tick => "tick",
    };
    let aligned = if header.aligned { " aligned" } else { "" };
    format!(
        "{} {kind}{aligned} commit {} length {}",
        position(header.position()),
        header.commit,
        header.payload_len
    )
}

fn entry_behind(
    bytes: &impl Bytes,
    layout: RegionLayout,
    segment: &SegmentRecord,
    offset: u64,
) -> Option<(u64, Header, u64)> {
    let start = layout.slot(segment.slot).start;
    [offset, aligned_header(offset)].into_iter().find_map(|at| {
        if layout.segment_len() < at + HEADER_LEN {
            return None;
        }
        let header = header_at(bytes, start + at, segment)?;
        if payload_max(layout.segment_len()) < u64::from(header.payload_len) {
            return None;
        }
        let place = place(offset, header.shape());
        (place.header == at && place.end <= layout.segment_len()).then_some((at, header, place.end))
    })
}

fn header_at(bytes: &impl Bytes, at: u64, segment: &SegmentRecord) -> Option<Header> {
    let mut raw = [0; HEADER_BYTES];
    bytes.copy_out(at, &mut raw);
    Header::decode(&raw, segment.nonce)
}
