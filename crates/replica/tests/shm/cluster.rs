//! Members of one host, each a thread, and what a test does with them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant as Clock;

use base::{Durability, Duration, GroupId, Index, MemberId};
use consensus::{Event, Params};
use fabric::shm::Waker;
use logfmt::RegionLayout;
use replica::{Request, Token};

use crate::node::{Node, Order, Setup};
use crate::notes::{Notes, Page};

struct Thread {
    orders: Sender<Order>,
    waker: Waker,
    handle: JoinHandle<()>,
}

/// A cluster in a directory of its own.
pub(crate) struct Cluster {
    pub(crate) setup: Setup,
    notes: Arc<Notes>,
    threads: BTreeMap<MemberId, Thread>,
}

/// While it lives, a member's thread does not take a single turn.
pub(crate) struct Parked {
    _until_dropped: Sender<()>,
}

/// Strikes a member out when its thread ends, however it ends.
struct Ending(MemberId, Arc<Notes>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.1.strike_out(self.0);
    }
}

/// What a cluster is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) members: u32,
    pub(crate) groups: u32,
    pub(crate) layout: RegionLayout,
    pub(crate) mode: Durability,
    /// After which a leader is suspected.
    pub(crate) suspicion_timeout: Duration,
    /// Where its directory is made.
    pub(crate) dir: PathBuf,
}

impl Options {
    pub(crate) fn new(layout: RegionLayout) -> Self {
        Self {
            members: 3,
            groups: 1,
            layout,
            mode: Durability::Process,
            suspicion_timeout: Duration::from_millis(400),
            dir: std::env::temp_dir(),
        }
    }
}

impl Cluster {
    /// Founds three members with one group, and starts them.
    pub(crate) fn start(layout: RegionLayout) -> Self {
        Self::start_with(Options::new(layout))
    }

    /// Founds members and starts them.
    pub(crate) fn start_with(options: Options) -> Self {
        let Options { members, groups, layout, mode, suspicion_timeout, dir } = options;
        let params = Params { suspicion_timeout, ..Params::default() };
        let dir = fresh_dir(&dir);
        let setup = Setup { dir, members, groups, layout, mode, params, clock: Clock::now() };
        let mut cluster = Self { setup, notes: Arc::default(), threads: BTreeMap::new() };
        for id in cluster.setup.ids() {
            cluster.setup.found(id);
            cluster.start_member(id);
        }
        cluster
    }

    /// Starts a member from its files.
    pub(crate) fn start_member(&mut self, id: MemberId) {
        let (orders, theirs) = channel::<Order>();
        let (ready, is_ready) = channel();
        let (setup, notes) = (self.setup.clone(), Arc::clone(&self.notes));
        let body = move || {
            let _ending = Ending(id, Arc::clone(&notes));
            let shm = Node::shm(id, &setup);
            ready.send(shm.waker()).unwrap();
            Node::open(id, setup, notes, shm).run(&theirs);
        };
        let handle = std::thread::Builder::new().name(format!("member {id}")).spawn(body).unwrap();
        let waker = is_ready.recv().expect("the member gets its place among the others");
        self.threads.insert(id, Thread { orders, waker, handle });
    }

    /// Ends a member: its thread drops the shard, and nothing of it stays but its files.
    pub(crate) fn stop_member(&mut self, id: MemberId) {
        let Thread { orders, waker, handle } = self.threads.remove(&id).unwrap();
        drop(orders);
        waker.wake();
        handle.join().unwrap();
    }

    /// Ends all members, none of which knows before that the others end.
    pub(crate) fn stop_all(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        let ended = threads.into_values().map(|Thread { orders, waker, handle }| {
            drop(orders);
            waker.wake();
            handle
        });
        let ended: Vec<_> = ended.collect();
        ended.into_iter().for_each(|handle| handle.join().unwrap());
    }

    /// Hands something to a member's thread.
    fn order(&self, id: MemberId, order: impl FnOnce(&mut Node) + Send + 'static) {
        let thread = &self.threads[&id];
        thread.orders.send(Box::new(order)).unwrap();
        thread.waker.wake();
    }

    /// What `ask` finds in a member.
    pub(crate) fn with<T: Send + 'static>(
        &self,
        id: MemberId,
        ask: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> T {
        let (found, answer) = channel();
        self.order(id, move |node| found.send(ask(node)).unwrap());
        answer.recv().expect("the member lives")
    }

    /// Makes a member campaign.
    pub(crate) fn campaign(&self, id: MemberId, group: GroupId) {
        self.order(id, move |node| node.operate(group, Event::Campaign { overrules: true }));
    }

    /// Hands a client's request to a member.
    pub(crate) fn request(&self, id: MemberId, group: GroupId, token: Token, request: Request) {
        self.order(id, move |node| node.shard.request(group, token, request));
    }

    /// Stops a member's thread between two turns.
    pub(crate) fn park(&self, id: MemberId) -> Parked {
        let (go, may_go) = channel::<()>();
        let (here, is_here) = channel();
        self.order(id, move |_| {
            here.send(()).unwrap();
            // Ends when the other end is dropped.
            may_go.recv().unwrap_or(());
        });
        is_here.recv().expect("the member lives");
        Parked { _until_dropped: go }
    }

    pub(crate) fn wait_for<T>(&self, what: &str, look: impl FnMut(&mut Page) -> Option<T>) -> T {
        self.notes.wait_for(what, look)
    }

    /// Waits until there is a leader.
    pub(crate) fn leader(&self, group: GroupId) -> MemberId {
        self.wait_for("a leader", |page| page.leader(group))
    }

    /// Waits until every member that runs has applied an entry.
    pub(crate) fn wait_until_applied(&self, group: GroupId, index: Index) {
        let running = self.threads.len();
        self.wait_for("the entry everywhere", |page| {
            let count = page.of(group).filter(|(_, seen)| seen.applied >= index).count();
            (count == running).then_some(())
        });
    }

    /// Checks that all members that run come to the same state, and answers its index.
    pub(crate) fn assert_equal(&self, group: GroupId) -> Index {
        loop {
            let commit = self.wait_for("a leader", |page| {
                let leader = page.leader(group)?;
                page.of(group).find(|&(id, _)| id == leader).map(|(_, seen)| seen.commit)
            });
            self.wait_until_applied(group, commit);
            let ids = self.threads.keys();
            let states: Vec<_> =
                ids.map(|&id| self.with(id, move |node| node.state(group))).collect();
            let (index, digest) = states[0];
            // A new leader may have added its first entry between the looks.
            if states.iter().all(|&(other, _)| other == index) {
                assert!(states.iter().all(|&(_, other)| other == digest), "{group}: {states:?}");
                return index;
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop_all();
            std::fs::remove_dir_all(&self.setup.dir).unwrap();
        }
    }
}

fn fresh_dir(within: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("replica-shm-{}-{count}", std::process::id());
    let dir = within.join(name);
    // A leftover of an earlier process of the same number.
    std::fs::remove_dir_all(&dir).unwrap_or(());
    std::fs::create_dir(&dir).unwrap();
    dir
}
