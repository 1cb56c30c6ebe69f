//! A client of one group: puts and gets, many at a time, each again until it is answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{GroupId, MemberId};
use consensus::session::Act;
use replica::{Answer, Request, Token};
use store::{Batch, Command, Query, Reply, Write};

use crate::cluster::Cluster;

/// Requests under way at one time.
const WINDOW: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Put(u64),
    Get(u64),
}

/// See the module. What it puts under a number is put once or several times, always the same.
#[derive(Debug)]
pub(crate) struct Client {
    group: GroupId,
    /// Keys wrap: number `n` is put under key `n % keys`.
    keys: u64,
    todo: VecDeque<Task>,
    under_way: BTreeMap<Token, (MemberId, Task)>,
    /// The turn count when a request was last refused: what is needed next is a change.
    refused_at: Option<u64>,
    tokens: u64,
    /// Numbers whose put was acknowledged.
    pub(crate) acknowledged: BTreeSet<u64>,
    /// What gets have found.
    pub(crate) found: BTreeMap<u64, Option<Vec<u8>>>,
}

/// What is put under a number.
pub(crate) fn value_of(number: u64) -> Vec<u8> {
    format!("value {number} ").repeat(8).into_bytes()
}

impl Client {
    pub(crate) fn new(group: GroupId, keys: u64) -> Self {
        Self {
            group,
            keys,
            todo: VecDeque::new(),
            under_way: BTreeMap::new(),
            refused_at: None,
            tokens: 0,
            acknowledged: BTreeSet::new(),
            found: BTreeMap::new(),
        }
    }

    /// Wants these to be put.
    pub(crate) fn put(&mut self, numbers: impl Iterator<Item = u64>) {
        self.todo.extend(numbers.map(Task::Put));
    }

    /// Puts these, until all are acknowledged.
    pub(crate) fn put_all(&mut self, cluster: &Cluster, numbers: impl Iterator<Item = u64>) {
        self.put(numbers);
        self.run(cluster, |client| client.is_idle());
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.todo.is_empty() && self.under_way.is_empty()
    }

    /// Reads these, all of them through the leader.
    pub(crate) fn get_all(&mut self, cluster: &Cluster, numbers: impl Iterator<Item = u64>) {
        self.found.clear();
        self.todo.extend(numbers.map(Task::Get));
        self.run(cluster, |client| client.is_idle());
    }

    /// Checks that every acknowledged put is there to be read.
    pub(crate) fn assert_nothing_lost(&mut self, cluster: &Cluster) {
        // What is still to be put may be acknowledged meanwhile; it is not looked for.
        let acknowledged = self.acknowledged.clone();
        self.get_all(cluster, acknowledged.iter().copied());
        for number in acknowledged {
            assert_eq!(self.found[&number], Some(value_of(number)), "number {number}");
        }
    }

    /// Goes on until `is_enough`.
    pub(crate) fn run(&mut self, cluster: &Cluster, is_enough: impl Fn(&Self) -> bool) {
        while !is_enough(self) {
            self.send(cluster);
            self.receive(cluster);
        }
    }

    /// What was asked of a member that has ended will not be answered.
    pub(crate) fn give_up_on(&mut self, cluster: &Cluster, member: MemberId) {
        // Some of it may have been answered before the end.
        cluster.wait_for("what was answered", |page| {
            self.take(page);
            Some(())
        });
        let lost = self.under_way.extract_if(.., |_, (asked, _)| *asked == member);
        self.todo.extend(lost.map(|(_, (_, task))| task));
    }

    fn send(&mut self, cluster: &Cluster) {
        if let Some(turns) = self.refused_at {
            if !self.under_way.is_empty() {
                return;
            }
            cluster.wait_for("any change", |page| (page.turns > turns).then_some(()));
            self.refused_at = None;
        }
        while self.under_way.len() < WINDOW
            && let Some(task) = self.todo.pop_front()
        {
            let leader = cluster.leader(self.group);
            self.tokens += 1;
            let token = Token(u64::from(self.group.0) << 32 | self.tokens);
            self.under_way.insert(token, (leader, task));
            cluster.request(leader, self.group, token, self.request(task));
        }
    }

    fn request(&self, task: Task) -> Request {
        let key = |number: u64| format!("key {}", number % self.keys).into_bytes();
        let mut bytes = Vec::new();
        match task {
            Task::Put(number) => {
                let (key, value) = (key(number), value_of(number));
                let write = Write::Put { key: &key, value: &value, ttl_ns: 0 };
                let batch = Batch { writes: vec![write], ..Batch::default() };
                Command::Batch(batch).encode(&mut bytes).unwrap();
                Request::Write { act: Act::Plain, command: bytes }
            }
            Task::Get(number) => {
                Query::Get { key: &key(number) }.encode(&mut bytes).unwrap();
                Request::Read { query: bytes }
            }
        }
    }

    fn receive(&mut self, cluster: &Cluster) {
        if self.under_way.is_empty() {
            return;
        }
        cluster.wait_for("an answer", |page| {
            let before = self.under_way.len();
            self.take(page);
            (self.under_way.len() < before).then_some(())
        });
    }

    /// Takes the answers that are this client's.
    fn take(&mut self, page: &mut crate::notes::Page) {
        let group = self.group;
        let own: Vec<_> = page.answers.extract_if(.., |answered| answered.group == group).collect();
        for answered in own {
            let Some((_, task)) = self.under_way.remove(&answered.token) else { continue };
            match answered.answer {
                Answer::Done(reply) => self.done(task, &reply),
                Answer::NotLeader(_) | Answer::Overloaded | Answer::Unknown => {
                    self.todo.push_front(task);
                    self.refused_at = Some(page.turns);
                }
                other @ (Answer::Duplicate(_)
                | Answer::Opened(_)
                | Answer::Noted
                | Answer::NotExecuted(_)
                | Answer::Bad(_)) => panic!("{task:?} was answered with {other:?}"),
            }
        }
    }

    fn done(&mut self, task: Task, reply: &[u8]) {
        match (task, Reply::decode(reply).unwrap()) {
            (Task::Put(number), Reply::Done { held: true, .. }) => {
                self.acknowledged.insert(number);
            }
            (Task::Get(number), Reply::Value(found)) => {
                self.found.insert(number, found.map(|found| found.value.to_vec()));
            }
            (task, reply) => panic!("{task:?} got {reply:?}"),
        }
    }
}
