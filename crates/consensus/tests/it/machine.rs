//! The smallest state machine that shows what is executed and what is not: it keeps the commands
//! that it has executed, and behind the product's own session table.

use base::{Duration, Index};
use consensus::session::{Act, Envelope, KeptReply, Limits, LogTime, SessionTable, Verdict};
use logfmt::{Header, Kind};

/// A member's state at one applied index.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) applied: Index,
    pub(crate) executed: Vec<String>,
    pub(crate) sessions: SessionTable,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let limits = Limits { ttl: Duration::from_secs(3600), ..Limits::default() };
        Self { applied: Index(0), executed: Vec::new(), sessions: SessionTable::new(limits) }
    }

    pub(crate) fn time(&self) -> LogTime {
        self.sessions.time()
    }

    /// Applies the next entry; answers what its client is told, if it has one.
    pub(crate) fn apply(&mut self, header: &Header, payload: &[u8]) -> Option<String> {
        assert_eq!(header.index, self.applied.next(), "entries are applied in order, each once");
        self.applied = header.index;
        match header.kind {
            Kind::NoOp | Kind::Configuration | Kind::Tick => None,
            Kind::Command => {
                let (envelope, command) = Envelope::decode(payload).unwrap();
                Some(self.command(header.index, &envelope, &String::from_utf8_lossy(command)))
            }
        }
    }

    fn command(&mut self, index: Index, envelope: &Envelope, command: &str) -> String {
        match self.sessions.admit(index, envelope) {
            Verdict::Execute => {
                self.executed.push(command.to_owned());
                let reply = format!("{} command(s) so far", self.executed.len());
                if let Act::Call { session, sequence, .. } = envelope.act {
                    self.sessions.record(session, sequence, reply.as_bytes());
                }
                format!("executed {command}: {reply}")
            }
            Verdict::Duplicate(KeptReply::Reply(reply)) => {
                format!("not executed again: {}", String::from_utf8_lossy(&reply))
            }
            Verdict::Opened(session) => format!("session {} opened", session.0),
            Verdict::Refused(why) => format!("not executed: {why}"),
            other @ (Verdict::Duplicate(_)
            | Verdict::ApplyFirst
            | Verdict::Alive
            | Verdict::Closed) => format!("{other:?}"),
        }
    }
}
