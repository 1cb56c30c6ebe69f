//! How things are told: one short line each.

use base::{Configuration, MemberSet, SlotId};
use consensus::{
    Chain, Message, Refusal, SegmentEnd,
    message::{Room, VoteRefusal},
    session::{Act, Envelope},
};
use logfmt::{Kind, MemberLog, SegmentRecord, Superblock};

pub(crate) fn entry(kind: Kind, payload: &[u8]) -> String {
    match kind {
        Kind::NoOp => "no-op".to_owned(),
        Kind::Tick => "tick".to_owned(),
        Kind::Configuration => {
            configuration(&logfmt::decode_configuration(payload).unwrap_or_default())
        }
        Kind::Command => {
            let Ok((envelope, command)) = Envelope::decode(payload) else {
                return "no envelope".to_owned();
            };
            let command = String::from_utf8_lossy(command);
            match envelope.act {
                Act::Plain if command.len() > 40 => format!("{} bytes", command.len()),
                Act::Plain => format!("{command:?}"),
                Act::Open => "open session".to_owned(),
                Act::Call { session, sequence, .. } => {
                    format!("{command:?} (session {} call {sequence})", session.0)
                }
                Act::Keep { session, .. } => format!("keep session {}", session.0),
                Act::Close { session } => format!("close session {}", session.0),
            }
        }
    }
}

pub(crate) fn configuration(configuration: &Configuration) -> String {
    let list = |set: &MemberSet| {
        let ids: Vec<String> = set.ids().map(|id| format!("{id:?}")).collect();
        ids.join(" ")
    };
    let mut text = format!("voters {}", list(&configuration.voters));
    if configuration.is_joint() {
        text = format!("{text}, outgoing {}", list(&configuration.outgoing));
    }
    if !configuration.learners.is_empty() {
        text = format!("{text}, learners {}", list(&configuration.learners));
    }
    text
}

pub(crate) fn chain(chain: &Chain, slot: impl Fn(u64) -> Option<SlotId>) -> String {
    let name = |key| slot(key).map_or_else(|| "a segment".to_owned(), |slot| format!("{slot:?}"));
    let mut parts = Vec::new();
    if let Some(run) = chain.run {
        parts.push(format!(
            "WRITE {}..{} into {}@{}",
            run.first,
            run.last,
            name(run.key),
            run.offset
        ));
    }
    if let Some(key) = chain.idle {
        parts.push(format!("WRITE commit {} into {}@0", chain.commit, name(key)));
    }
    parts.push("READ grant".to_owned());
    parts.join(", ")
}

pub(crate) fn run(chain: &Chain) -> String {
    match (chain.run, chain.idle) {
        (Some(run), _) => format!("{}..{}", run.first, run.last),
        (None, Some(_)) => "commit word".to_owned(),
        (None, None) => "nothing".to_owned(),
    }
}

pub(crate) fn message(message: &Message) -> String {
    match message {
        Message::Vote { term, transfer: false, .. } => format!("Vote {term:?}"),
        Message::Vote { term, transfer: true, .. } => format!("Vote {term:?}, by transfer"),
        Message::Follow { term, counted, .. } => format!("Follow {term:?}, counted {counted}"),
        Message::Granted(granted) => {
            let tail = granted.tail;
            let hole = granted.hole.map_or_else(String::new, |hole| {
                let until = if hole.until.0 == 0 { "?".to_owned() } else { hole.until.to_string() };
                format!(", hole {}..{until}", hole.from)
            });
            let rooms = rooms(&granted.rooms);
            format!(
                "Granted {}, tail {} of {:?}{hole}, {rooms}",
                granted.word, tail.index, tail.term
            )
        }
        Message::Refused { asked, term, why } => {
            let why = match why {
                VoteRefusal::Stale => "stale",
                VoteRefusal::LeaderLives => "its leader lives",
                VoteRefusal::Exhausted => "no grants left",
            };
            format!("Refused {asked:?}: {why}, own term {term:?}")
        }
        Message::MoreRoom { word, rooms } => format!("MoreRoom {word}, {}", self::rooms(rooms)),
        Message::Install { word, checkpoint } => {
            format!("Install {word}, checkpoint {}", checkpoint.at.index)
        }
        Message::Installed { word, index } => format!("Installed {word}, checkpoint {index}"),
        Message::Campaign { term, .. } => format!("Campaign, from {term:?}"),
        Message::Committed { word, index } => format!("Committed {word}, {index}"),
        Message::FetchChunk { .. } | Message::Chunk { .. } => "a chunk".to_owned(),
    }
}

pub(crate) fn refusal(why: Refusal) -> String {
    match why {
        Refusal::NotLeader(Some(leader)) => format!("not the leader, {leader:?} might be"),
        Refusal::NotLeader(None) => "not the leader".to_owned(),
        Refusal::Transferring => "leadership is being handed over".to_owned(),
        Refusal::Overloaded => "overloaded".to_owned(),
        Refusal::ChangeRefused(why) => why.to_owned(),
    }
}

fn rooms(rooms: &[Room]) -> String {
    if rooms.is_empty() {
        return "no room".to_owned();
    }
    let rooms: Vec<String> = rooms.iter().map(|room| format!("{:?}", room.slot)).collect();
    format!("room {}", rooms.join(" "))
}

pub(crate) fn ends(ends: &[SegmentEnd]) -> String {
    let mut text = String::new();
    for end in ends {
        let slot = end.slot;
        match end.seal {
            Some(seal) => text += &format!(", seal {slot:?} at {}", seal.last),
            None => text += &format!(", drop empty {slot:?}"),
        }
    }
    text
}

pub(crate) fn superblock(block: &Superblock) -> String {
    let vote = block.vote.map_or_else(|| "nobody".to_owned(), |vote| format!("{vote:?}"));
    let segments: Vec<String> = block.segments.iter().map(record).collect();
    let hole = block.hole.map_or_else(String::new, |hole| {
        format!(", hole {}..{} of {:?}", hole.from, hole.until, hole.term)
    });
    let checkpoint = match block.checkpoint.at.index.0 {
        0 => String::new(),
        index => format!(", checkpoint {index}"),
    };
    format!(
        "{:?}, vote {vote}, grant {}{hole}{checkpoint} [{}]",
        block.term,
        block.grant,
        segments.join(" ")
    )
}

pub(crate) fn record(record: &SegmentRecord) -> String {
    let slot = record.slot;
    match record.seal {
        Some(seal) => format!("{slot:?}:{}..{}", record.first, seal.last),
        None => format!("{slot:?}:open"),
    }
}

/// A log by its terms: `t1:1..3 t2:4..4`.
pub(crate) fn log(log: &MemberLog) -> String {
    let (base, tail) = (log.checkpoint().index, log.tail().index);
    let boundaries = log.boundaries();
    let mut text = match base.0 {
        0 => "log".to_owned(),
        base => format!("checkpoint {base}, log"),
    };
    if base == tail {
        return text + " empty";
    }
    for (at, boundary) in boundaries.iter().enumerate() {
        let first = boundary.first.max(base.next());
        let last = boundaries.get(at + 1).map_or(tail, |next| next.first.previous());
        if first <= last {
            text += &format!(" {:?}:{first}..{last}", boundary.term);
        }
    }
    text
}
