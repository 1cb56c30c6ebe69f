//! What the threads of the members tell the test: one place to look at, and to wait at.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Clock};

use base::{GroupId, Index, MemberId, Term};
use replica::{Answered, Notice};

/// How long anything may take before the test says what it was waiting for. No test depends on how
/// long it really takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A member's group after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) leads: Option<Term>,
    pub(crate) term: Term,
    pub(crate) tail: Index,
    pub(crate) commit: Index,
    pub(crate) applied: Index,
    pub(crate) is_failed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Grows with every turn that did something, anywhere.
    pub(crate) turns: u64,
    /// Of the members that run.
    pub(crate) seen: BTreeMap<(MemberId, GroupId), Seen>,
    pub(crate) answers: Vec<Answered>,
    pub(crate) notices: Vec<(MemberId, GroupId, Notice)>,
    /// Members whose thread has panicked.
    fallen: Vec<MemberId>,
}

impl Page {
    /// The member that leads in the highest term, if there is one.
    pub(crate) fn leader(&self, group: GroupId) -> Option<MemberId> {
        let leads = |(&(member, of), seen): (&(MemberId, GroupId), &Seen)| {
            Some((seen.leads?, member)).filter(|_| of == group)
        };
        self.seen.iter().filter_map(leads).max().map(|(_, member)| member)
    }

    /// How the group is at every member that runs.
    pub(crate) fn of(&self, group: GroupId) -> impl Iterator<Item = (MemberId, Seen)> + '_ {
        let is_of = move |((_, of), _): &(&(MemberId, GroupId), &Seen)| *of == group;
        self.seen.iter().filter(is_of).map(|(&(member, _), &seen)| (member, seen))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Notes {
    page: Mutex<Page>,
    changed: Condvar,
}

impl Notes {
    fn page(&self) -> MutexGuard<'_, Page> {
        self.page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(
        &self,
        member: MemberId,
        seen: Vec<(GroupId, Seen)>,
        answers: Vec<Answered>,
        notices: Vec<(GroupId, Notice)>,
    ) {
        let mut page = self.page();
        page.turns += 1;
        page.seen.extend(seen.into_iter().map(|(group, seen)| ((member, group), seen)));
        page.answers.extend(answers);
        let notices = notices.into_iter().map(|(group, notice)| (member, group, notice));
        page.notices.extend(notices);
        self.changed.notify_all();
    }

    /// The thread of a member has ended.
    pub(crate) fn strike_out(&self, member: MemberId) {
        let mut page = self.page();
        page.seen.retain(|&(of, _), _| of != member);
        if std::thread::panicking() {
            page.fallen.push(member);
        }
        self.changed.notify_all();
    }

    /// Waits until `look` finds what it looks for.
    pub(crate) fn wait_for<T>(
        &self,
        what: &str,
        mut look: impl FnMut(&mut Page) -> Option<T>,
    ) -> T {
        let began = Clock::now();
        let mut page = self.page();
        loop {
            if let Some(found) = look(&mut page) {
                return found;
            }
            let left = PATIENCE.saturating_sub(began.elapsed());
            let is_over = left.is_zero() || !page.fallen.is_empty();
            assert!(!is_over, "{what} did not come: {page:#?}");
            let waited = self.changed.wait_timeout(page, left);
            page = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
