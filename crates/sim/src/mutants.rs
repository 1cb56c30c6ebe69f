//! The faults that can be planted, and the proof that the checkers see each of them.
//!
//! A fault is one rule of the protocol left out, at the place in the code where the rule stands
//! (`base::mutant!("name")`). In a build with faults the core's own assertions are off: what
//! catches a fault is a checker outside the code it is in.

use crate::{
    campaign::{Options, each},
    oracle::Checker,
    plan::Focus,
};

/// Plants a fault for the calling thread, in a build that has it; answers whether it has.
pub fn plant(name: &'static str) -> bool {
    #[cfg(mutant = "all")]
    base::mutant::plant(name);
    let _ = name;
    cfg!(mutant = "all")
}

/// A fault and a seed that catches it, found earlier and tried first.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name, as `base::mutant!` has it.
    pub name: &'static str,
    /// Which rule is left out.
    pub rule: &'static str,
    /// What the schedules that hunt it are bent towards.
    pub focus: Focus,
    /// A seed that caught it once; tried first. A change of the code may make it miss.
    pub seed: u64,
}

const fn mutant(name: &'static str, seed: u64, rule: &'static str) -> Mutant {
    Mutant { name, rule, focus: Focus::All, seed }
}

const fn of_elections(name: &'static str, seed: u64, rule: &'static str) -> Mutant {
    Mutant { name, rule, focus: Focus::Elections, seed }
}

const fn of_members(name: &'static str, seed: u64, rule: &'static str) -> Mutant {
    Mutant { name, rule, focus: Focus::Membership, seed }
}

/// Every fault that a schedule must see.
pub const ALL: &[Mutant] = &[
    of_elections("reply_before_store", 20, "a voter replies only after its grant word is stored"),
    of_elections("walk_before_store", 20, "a voter walks only after its grant word is stored"),
    of_elections("candidate_walks_first", 9, "a candidate fences before it walks its own log"),
    mutant("read_before_write", 2, "a read-back is executed after the WRITEs before it"),
    mutant("any_term_readback", 4, "a read-back counts only under the word it was posted under"),
    of_elections(
        "any_term_commit",
        353,
        "only an entry of the leader's own term commits by counting",
    ),
    of_elections(
        "any_term_commit_no_noop",
        89,
        "the same, and the first entry of a term is a no-op",
    ),
    mutant("no_noop", 5, "no read before the leader's own no-op is committed"),
    mutant("compare_only_index", 94, "the best log has the highest last term, then index"),
    mutant("second_best_log", 7, "the best log of the quorum is adopted, not the next one"),
    mutant("base_two_too_low", 9, "streaming begins exactly behind the match point"),
    mutant("base_tail_plus_one", 2, "streaming begins at the match point, not at the tail"),
    mutant("no_seal", 11, "what is written behind a seal is never read"),
    mutant("seal_in_ram_only", 2, "a seal is durable before the reply"),
    mutant("segment_list_not_persisted", 2, "a granted segment is named before it is written"),
    mutant("no_flush_before_report", 6, "a tail is durable before it is reported"),
    mutant("own_copy_before_persist", 2, "the own copy counts when it is durable"),
    mutant("no_count_in_word", 137, "a grant in the same term has another word"),
    mutant("vote_lost_at_restart", 5, "term and vote are durable before the reply"),
    mutant("leader_resumes_term", 7, "a restarted member never leads in a term it was in"),
    mutant("leader_counts_after_vote", 3, "a leader stops counting before it fences"),
    mutant("commit_word_clamped_to_own_tail", 4, "an idle line is believed within its segment"),
    mutant("member_counted_before_snapshot", 8, "a member without the checkpoint is not counted"),
    of_elections(
        "read_without_quorum",
        1449,
        "a read is answered after a quorum proved the leadership",
    ),
    of_members(
        "quorum_by_own_configuration",
        3020,
        "the best log's configuration judges the quorum",
    ),
    of_members("overlapping_changes", 23, "one change of members at a time, after the no-op"),
    mutant("shm_no_fence", 1922, "a full fence stands between the stores and the load"),
    mutant("nonce_not_checked", 4, "an entry is taken only under its segment's nonce"),
    mutant("recycle_early", 11, "a slot is used again only when nobody can write it"),
    mutant("per_entry_counting", 3, "tails are contiguous; entries are not counted one by one"),
    mutant("session_retry_executes", 2, "a retry is answered, not executed again"),
];

/// The static name of a fault.
///
/// # Errors
/// What a person should know: there is no such fault, or none can be planted in this build.
pub fn named(name: Option<&str>) -> Result<Option<&'static str>, String> {
    let Some(name) = name else { return Ok(None) };
    let Some(known) = ALL.iter().find(|mutant| mutant.name == name) else {
        let names: Vec<&str> = ALL.iter().map(|mutant| mutant.name).collect();
        return Err(format!("there is no fault {name}; there are: {}", names.join(", ")));
    };
    if !cfg!(mutant = "all") {
        return Err(format!(
            "this build has no faults in it: build with RUSTFLAGS='--cfg mutant=\"all\"' to plant {name}"
        ));
    }
    Ok(Some(known.name))
}

/// Plants each fault and looks for a schedule that catches it. Answers whether all were caught.
pub fn run(only: Option<&str>, (first, count): (u64, u64), say: &mut dyn FnMut(String)) -> bool {
    let chosen: Vec<&Mutant> =
        ALL.iter().filter(|mutant| only.is_none_or(|only| only == mutant.name)).collect();
    let mut caught = 0;
    // Planted faults make the code panic now and then; that does not count, and is no news.
    std::panic::set_hook(Box::new(|_| {}));
    for mutant in &chosen {
        let begun = std::time::Instant::now();
        let found = hunt(mutant, (first, count));
        let seconds = begun.elapsed().as_secs_f64();
        match found {
            Some((seed, tried, what)) => {
                caught += 1;
                say(format!(
                    "caught  {:<32} by seed {seed}, {tried} tried, {seconds:.1} s: {what}",
                    mutant.name
                ));
            }
            None => say(format!(
                "MISSED  {:<32} in {count} schedules, {seconds:.1} s: {}",
                mutant.name, mutant.rule
            )),
        }
    }
    drop(std::panic::take_hook());
    say(format!("RESULT mutants={} caught={caught}", chosen.len()));
    caught == chosen.len()
}

/// Whether a schedule breaks nothing when nothing is planted: only then is the fault what a checker
/// saw.
fn is_clean(options: &Options, seed: u64) -> bool {
    let mut is_clean = true;
    each(options, (seed, 1), None, &mut |_, _, report, _| {
        is_clean = report.violation.is_none();
        true
    });
    is_clean
}

/// The first schedule that catches a fault, how many were tried, and what it saw.
fn hunt(mutant: &Mutant, (first, count): (u64, u64)) -> Option<(u64, u64, String)> {
    if !cfg!(mutant = "all") {
        // Nothing is planted, so that whatever is found is not this fault.
        return None;
    }
    let mut found = None;
    let mut tried = 0;
    let options = Options { focus: mutant.focus, ..Options::default() };
    for (first, count) in [(mutant.seed, 1), (first, count)] {
        if found.is_some() {
            break;
        }
        each(&options, (first, count), Some(mutant.name), &mut |seed, _, report, _| {
            tried += 1;
            // A panic is a wall that the fault made the code run into: no checker of ours saw it.
            if let Some(violation) = report.violation.filter(|v| v.checker != Checker::Panicked)
                && is_clean(&options, seed)
            {
                found = Some((seed, tried, violation.to_string()));
            }
            found.is_none()
        });
    }
    found
}
