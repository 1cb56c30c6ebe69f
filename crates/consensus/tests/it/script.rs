//! The commands of a script.

use std::{error::Error, str::FromStr};

use base::{Configuration, Duration, MemberId, MemberSet};
use consensus::{
    Event, Params, Role,
    session::{Act, SessionId},
};
use goldenscript::{Context, Runner};

use crate::{
    member::Power,
    net::Progress,
    text,
    world::{Loud, World},
};

/// A member's name in a script: `m1`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name(MemberId);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix('m').and_then(|number| number.parse().ok());
        number.map(|id| Self(MemberId(id))).ok_or_else(|| format!("{text:?} is no member"))
    }
}

/// A list of names: `"m1 m2"`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Vec<MemberId>);

impl FromStr for Names {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = text.split_whitespace().map(|name| name.parse().map(|Name(id)| id));
        names.collect::<Result<_, String>>().map(Self)
    }
}

#[derive(Clone, Debug, goldenscript::Command)]
pub(crate) enum Command {
    /// Makes a group of that many voters: `group 3`.
    Group {
        voters: u32,
        #[arg(key)]
        slots: Option<u32>,
        #[arg(key)]
        chains: Option<usize>,
        #[arg(key)]
        window: Option<u64>,
        #[arg(key)]
        batch: Option<u64>,
        #[arg(key)]
        uncommitted: Option<u64>,
    },
    /// Makes members that belong to no group yet: `spare m4 m5`.
    Spare(Vec<Name>),
    /// An operator asks a member to campaign.
    Campaign {
        member: Name,
        /// Whether voters overrule their loyalty: `campaign m3 overrules=true`.
        #[arg(key)]
        overrules: Option<bool>,
    },
    /// Gives a leader commands: `propose m1 a b c`.
    Propose(Name, Vec<String>),
    /// Gives a leader that many commands of 400 bytes, eight lines of a segment each.
    Fill(Name, u32),
    /// A client opens a session at a leader.
    Open(Name),
    /// A client runs a command once: `call m1 2 1 "pay"` is call 1 of session 2.
    Call(Name, u64, u64, String),
    /// A linearizable read waits at a member.
    Read(Name),
    /// An operator asks for other members: `change m1 voters="m1 m2" learners=m3`.
    Change {
        leader: Name,
        #[arg(key)]
        voters: Names,
        #[arg(key, optional)]
        learners: Names,
    },
    /// An operator asks a leader to hand over.
    Transfer(Name, Name),

    /// Everything that is not held happens; every step is told.
    Settle,
    /// As `settle`, but only what matters is told.
    Brief,
    /// That many milliseconds pass, told briefly.
    Pass(u64),
    /// A member's next deadline comes.
    Tick(Name),

    /// The next job of a member is done, or the next of that name: `step m2 walk`.
    Step(Name, Option<String>),
    /// The next message arrives: `deliver m1 m2`.
    Deliver(Name, Name),
    /// The next chain's bytes land in the other's memory.
    Place(Name, Name),
    /// The next chain reads the other's grant word.
    Sample(Name, Name),
    /// The next chain's read-back arrives.
    Complete(Name, Name),
    /// The follower's background walk.
    Observe(Name),
    /// A direction (`hold m1 m2`) or a job (`hold m2 persist`) waits for the script.
    Hold(Name, String),
    /// It no longer does.
    Release(Name, String),

    /// A connection breaks (all of a member's, if alone) and cannot come back.
    Cut(Name, Option<Name>),
    /// It can again.
    Heal(Name, Option<Name>),
    /// A member's process ends; its memory stays.
    Crash(Name),
    /// Power is lost: what was not persisted is gone.
    Power(Name),
    /// A member's process starts again.
    Start(Name),
    /// A member executes nothing; its memory can be written and read.
    Stop(Name),
    /// It executes again.
    Cont(Name),
    /// A member's medium acknowledges what peers write and does not keep it.
    Lie(Name),

    /// A member's region fails to sync.
    Fail(Name),

    /// Where every member stands.
    State,
    /// What a member's superblock says.
    Superblock(Name),
    /// The configuration that is in force at a member.
    Members(Name),
    /// A member's log, entry by entry.
    Entries(Name),
    /// What a member's state machine has executed.
    Executed(Name),
    /// What is on its way.
    Flight,
}

impl Runner for World {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        self.loud = Loud::Detail;
        self.steps = false;
        self.out.clear();
        self.dispatch(command.clone())?;
        if self.out.is_empty() && self.steps {
            self.out.push_str("ok\n");
        }
        Ok(self.out.clone())
    }
}

impl World {
    #[expect(clippy::wildcard_enum_match_arm, reason = "what is not for this function goes on")]
    fn dispatch(&mut self, command: Command) -> Result<(), Box<dyn Error>> {
        match command {
            Command::Group { voters, slots, chains, window, batch, uncommitted } => {
                let default = Params::default();
                let params = Params {
                    chains_max: chains.unwrap_or(default.chains_max),
                    window_bytes_max: window.unwrap_or(default.window_bytes_max),
                    batch_bytes_max: batch.unwrap_or(default.batch_bytes_max),
                    uncommitted_max: uncommitted.unwrap_or(default.uncommitted_max),
                    ..default
                };
                *self = Self::new();
                self.group(voters, slots.unwrap_or(16), params);
            }
            Command::Spare(names) => names.into_iter().for_each(|Name(id)| self.spare(id)),
            Command::Campaign { member: Name(id), overrules } => {
                self.feed(id, Event::Campaign { overrules: overrules.unwrap_or(false) });
            }
            Command::Propose(Name(id), commands) => {
                let commands = commands.into_iter().map(|command| (Act::Plain, command));
                self.member(id).proposals.extend(commands);
                self.offer(id);
            }
            Command::Fill(Name(id), count) => {
                let commands = (0..count).map(|_| (Act::Plain, "x".repeat(400)));
                self.member(id).proposals.extend(commands);
                self.offer(id);
            }
            Command::Open(Name(id)) => self.client(id, Act::Open, String::new()),
            Command::Call(Name(id), session, sequence, command) => {
                let session = SessionId(session);
                let act = Act::Call { session, sequence, acknowledged_through: 0 };
                self.client(id, act, command);
            }
            Command::Read(Name(id)) => {
                self.member(id).reads += 1;
                let upto = self.members[&id].reads;
                self.feed(id, Event::ReadsWaiting { upto });
            }
            Command::Change { leader: Name(id), voters, learners } => {
                let mut target = Configuration::of_voters(self.all_named(&voters.0));
                target.learners = MemberSet::new(self.all_named(&learners.0));
                self.feed(id, Event::ChangeMembers(Box::new(target)));
            }
            Command::Transfer(Name(id), Name(to)) => self.feed(id, Event::Transfer { to }),
            Command::State => self.tell_state(),
            Command::Superblock(Name(id)) => {
                let block = text::superblock(self.members[&id].core.superblock());
                self.say(Loud::Headline, format!("{id:?}: {block}"));
            }
            Command::Members(Name(id)) => {
                let (index, configuration) = self.members[&id].log.configuration();
                let text = text::configuration(configuration);
                self.say(Loud::Headline, format!("{id:?}: {text} (entry {index})"));
            }
            Command::Entries(Name(id)) => {
                self.entries(id).into_iter().for_each(|line| self.say(Loud::Headline, line));
            }
            Command::Executed(Name(id)) => {
                let executed = self.members[&id].machine.executed.join(" ");
                self.say(Loud::Headline, format!("{id:?}: {executed}"));
            }
            Command::Flight => self.tell_flight(),
            other => return self.move_world(other),
        }
        Ok(())
    }

    /// The commands that make time, members and network move.
    #[expect(clippy::wildcard_enum_match_arm, reason = "what is not for this function goes on")]
    fn move_world(&mut self, command: Command) -> Result<(), Box<dyn Error>> {
        match command {
            Command::Settle => self.settle(),
            Command::Brief => {
                self.loud = Loud::Headline;
                self.settle();
            }
            Command::Pass(ms) => {
                self.loud = Loud::Headline;
                self.pass(Duration::from_millis(ms));
            }
            Command::Tick(Name(id)) => self.tick(id),
            Command::Hold(Name(id), what) => match what.parse() {
                Ok(Name(to)) => {
                    self.held.insert((id, to));
                }
                Err(_) => {
                    self.held_jobs.insert((id, what));
                }
            },
            Command::Release(Name(id), what) => match what.parse() {
                Ok(Name(to)) => {
                    self.held.remove(&(id, to));
                }
                Err(_) => {
                    self.held_jobs.remove(&(id, what));
                }
            },
            Command::Cut(Name(id), other) => {
                for peer in self.peers(id, other) {
                    self.link(id, peer).is_cut = true;
                    self.disconnect(id, peer, false);
                    self.run_tells(id);
                    self.run_tells(peer);
                }
            }
            Command::Heal(Name(id), other) => {
                for peer in self.peers(id, other) {
                    self.link(id, peer).is_cut = false;
                }
                self.connect_all();
            }
            Command::Crash(Name(id)) => self.crash(id, true),
            Command::Power(Name(id)) => self.lose_power(id),
            Command::Start(Name(id)) => self.start(id),
            Command::Stop(Name(id)) => self.member(id).power = Power::Stopped,
            Command::Cont(Name(id)) => self.member(id).power = Power::Runs,
            Command::Fail(Name(id)) => self.feed(id, Event::StorageFailed),
            Command::Lie(Name(id)) => self.member(id).is_lying = true,
            other => return self.single_step(other),
        }
        Ok(())
    }

    /// The commands that take one step of many.
    #[expect(clippy::wildcard_enum_match_arm, reason = "what is not for this function goes on")]
    fn single_step(&mut self, command: Command) -> Result<(), Box<dyn Error>> {
        self.steps = true;
        match command {
            Command::Step(Name(id), job) => self.step(id, job.as_deref())?,
            Command::Deliver(Name(from), Name(to)) => self.deliver((from, to))?,
            Command::Place(Name(from), Name(to)) => self.place((from, to))?,
            Command::Sample(Name(from), Name(to)) => self.sample((from, to))?,
            Command::Complete(Name(from), Name(to)) => self.complete((from, to))?,
            Command::Observe(Name(id)) => self.observe(id),
            _ => return Err("not a command that takes a step".into()),
        }
        Ok(())
    }

    fn client(&mut self, id: MemberId, act: Act, command: String) {
        self.has_sessions = true;
        self.member(id).proposals.push_back((act, command));
        self.offer(id);
    }

    fn peers(&self, id: MemberId, other: Option<Name>) -> Vec<MemberId> {
        match other {
            Some(Name(other)) => vec![other],
            None => self.members.keys().copied().filter(|&peer| peer != id).collect(),
        }
    }

    fn tell_state(&mut self) {
        let lines: Vec<String> = self
            .members
            .values()
            .map(|member| {
                let (id, core) = (member.id, &member.core);
                let role = match (member.power, core.role()) {
                    (Power::Down, _) => return format!("{id:?}: is down"),
                    (_, Role::Leader(_)) => "leads".to_owned(),
                    (_, Role::Candidate(_)) => "is a candidate".to_owned(),
                    (_, Role::Follower) => core.leader().map_or_else(
                        || "follows nobody".to_owned(),
                        |to| format!("follows {to:?}"),
                    ),
                };
                let stopped = if member.power == Power::Stopped { " (stopped)" } else { "" };
                let hole = core.superblock().hole.map_or_else(String::new, |hole| {
                    format!(", hole {}..{}", hole.from, hole.until)
                });
                let (log, commit) = (text::log(&member.log), core.commit_index());
                let (term, word) = (core.term(), member.word);
                format!(
                    "{id:?}:{stopped} {role}, {term:?}, word {word}, {log}, commit {commit}{hole}"
                )
            })
            .collect();
        lines.into_iter().for_each(|line| self.say(Loud::Headline, line));
    }

    fn tell_flight(&mut self) {
        let mail = self.mail.iter().map(|mail| {
            let (from, to) = mail.lane;
            format!("{from:?} -> {to:?}: {}", text::message(&mail.message))
        });
        let chains = self.chains.iter().map(|posted| {
            let (from, to) = posted.lane;
            let late = if posted.is_late { ", connection gone" } else { "" };
            let progress = match posted.progress {
                Progress::Posted => "posted".to_owned(),
                Progress::Placed => "placed".to_owned(),
                Progress::Sampled(word) => format!("has read {word}"),
                Progress::Failed => "failed".to_owned(),
            };
            format!("{from:?} => {to:?}: {}, {progress}{late}", text::run(&posted.chain))
        });
        let lines: Vec<String> = mail.chain(chains).collect();
        lines.into_iter().for_each(|line| self.say(Loud::Headline, line));
    }
}
