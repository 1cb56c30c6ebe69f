//! No SIGBUS ends the process because of a mapped file.
//!
//! A store to a page of a mapped file raises SIGBUS when the file was truncated, when the file
//! system cannot give the page (no space, an I/O error) or when the memory itself is broken. The
//! handler of this module turns that into an error of one mapping:
//!
//! ```text
//!   store ──fault──> kernel ──SIGBUS──> handler
//!                                        │ address in a slot of the table?
//!                              no ───────┤
//!        previous handler or default <───┘├─ yes: 1. slot.gone = min(gone, offset of the page)
//!        (the process dies as before)     │       2. zero pages over [page, end of mapping)
//!   store again, now into a zero page <───┘       3. return
//! ```
//!
//! # Why this is sound
//! - **Memory.** The pages put in place are private, readable and writable, at the same addresses:
//!   the interrupted instruction runs again and succeeds. All accesses to a mapping are volatile
//!   and none is by reference, so no code has assumed that a byte keeps its value. The kernel swaps
//!   pages under its own lock; another thread sees the old page or the new one. The handler is
//!   `MAP_FIXED` only over addresses inside a live slot, which are ours.
//! - **Signal context.** The handler takes no lock, allocates nothing, cannot panic, and calls only
//!   `mmap` (a bare system call here, which leaves `errno` alone), `sigaction` and `raise`.
//! - **The table.** A mapping owns a slot from before its first access until after its last one,
//!   so the slot of a faulting mapping does not change while the handler looks. Other slots may:
//!   each has a stamp, odd while in use, which changes with every use; a slot whose stamp differs
//!   after reading was not the one. A slot is given back *before* its pages are unmapped, else a
//!   new mapping at the same addresses could find its faults written down to the old one.
//! - **No loss goes unseen.** The mark is set before the zero pages are there: whoever stored into
//!   a zero page finds the mark in a check behind the store. A mark is never taken back. A page
//!   fault is precise, and `Watch::gone` has a compiler fence before its load, so the check is
//!   behind the store in the program and in the processor.
//!
//! All pages from the fault to the mapping's end are replaced at once: the mapping is given up
//! anyway, and one page at a time would split it into as many kernel objects as there are pages,
//! of which a process may have some 65,000.
//!
//! # Deliberately absent
//! - A SIGBUS that somebody *sent* (`kill -BUS`) has no address: the default action is taken.
//! - Pages lost by truncation that nobody touches raise nothing: see `Mapping::check_len`.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Mappings that a process may have at once: the regions of its shards and the segments it may
/// write in other members' memory. 32 bytes each, looked through only on registration and on a
/// fault.
pub const MAPPINGS_MAX: usize = 4096;

/// Bytes of one page: fixed on x86-64.
pub(crate) const PAGE: usize = 4096;

/// `Slot::gone` while nothing is missing.
const NOTHING: u64 = u64::MAX;

/// What the handler must know of one mapping.
struct Slot {
    /// Invariant: odd while the slot is in use, and never twice the same.
    stamp: AtomicU64,
    /// Address of the first byte. Invariant: constant while `stamp` is odd.
    start: AtomicUsize,
    /// Bytes, a multiple of `PAGE`. Invariant: constant while `stamp` is odd.
    len: AtomicUsize,
    /// Offset of the first byte found missing. Invariant: only sinks while `stamp` is odd.
    gone: AtomicU64,
}

impl Slot {
    const fn new() -> Self {
        Self {
            stamp: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            gone: AtomicU64::new(NOTHING),
        }
    }
}

/// Process-wide like the signal's disposition itself: there can be only one.
static SLOTS: [Slot; MAPPINGS_MAX] = [const { Slot::new() }; MAPPINGS_MAX];
/// Held by whoever takes or gives back a slot, never by the handler.
static REGISTRATION: Mutex<()> = Mutex::new(());
/// What handled SIGBUS before us. Set before our handler is installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping's slot in the handler's table; dropping it gives the slot back. It must be dropped
/// before the pages are unmapped.
#[derive(Debug)]
pub(crate) struct Watch {
    index: usize,
}

impl Watch {
    /// Watches `len` bytes from `start`, both multiples of a page; `None` when all
    /// [`MAPPINGS_MAX`] slots are in use. Installs the handler if this is the first.
    pub(crate) fn new(start: *mut u8, len: usize) -> io::Result<Option<Self>> {
        assert!(start.addr().is_multiple_of(PAGE), "a mapping starts on a page");
        assert!(len.is_multiple_of(PAGE), "a mapping is made of pages");
        let _registration = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
        install()?;
        let free = |slot: &Slot| slot.stamp.load(Ordering::SeqCst).is_multiple_of(2);
        let Some(index) = SLOTS.iter().position(free) else { return Ok(None) };
        let slot = &SLOTS[index];
        slot.start.store(start.addr(), Ordering::SeqCst);
        slot.len.store(len, Ordering::SeqCst);
        slot.gone.store(NOTHING, Ordering::SeqCst);
        slot.stamp.fetch_add(1, Ordering::SeqCst);
        Ok(Some(Self { index }))
    }

    /// The offset of the first byte found missing up to now.
    pub(crate) fn gone(&self) -> Option<u64> {
        // The handler runs on this very thread, behind the compiler's back.
        compiler_fence(Ordering::SeqCst);
        let at = SLOTS[self.index].gone.load(Ordering::Acquire);
        (at != NOTHING).then_some(at)
    }

    /// Notes that the byte at `offset`, and all behind it, are missing.
    pub(crate) fn mark_gone(&self, offset: u64) {
        SLOTS[self.index].gone.fetch_min(offset, Ordering::SeqCst);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _registration = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
        SLOTS[self.index].stamp.fetch_add(1, Ordering::SeqCst);
    }
}

/// Installs the handler once per process. The caller holds `REGISTRATION`.
fn install() -> io::Result<()> {
    if PREVIOUS.get().is_some() {
        return Ok(());
    }
    let mut previous = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action only asks; `previous` is valid for one write.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let previous = unsafe { previous.assume_init() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    let mut action = default_action();
    action.sa_sigaction = handler as libc::sighandler_t;
    // On the alternate stack, which the standard library gives every thread: a fault may come with
    // little stack left.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    PREVIOUS.get_or_init(|| previous);
    // SAFETY: `action` names a handler of the signature that SA_SIGINFO asks for, which may run in
    // signal context (see the module); a null old action is allowed.
    let installed = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    if installed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The default disposition, with an empty mask.
fn default_action() -> libc::sigaction {
    // SAFETY: all fields are integers, for which zero is a value: SIG_DFL, no flags, empty mask; and
    // an optional function pointer, for which zero is `None`.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

/// Handles SIGBUS. See the module for why each step may run in signal context.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid structure, which it does not touch
    // before the handler returns.
    let facts = unsafe { &*info };
    if facts.si_code <= 0 {
        return die_of_sent_signal(signal);
    }
    // SAFETY: with a positive code the kernel raised the signal and filled in the address.
    let address = unsafe { facts.si_addr() }.addr();
    let is_missing_memory = facts.si_code != libc::BUS_ADRALN;
    if is_missing_memory && replace(address) {
        return;
    }
    chain(signal, info, context);
}

/// Puts zero pages over the lost one and all behind it; `false` if the address is not ours or the
/// kernel refuses.
fn replace(address: usize) -> bool {
    let Some((slot, start, len)) = find(address) else { return false };
    let page = address - address % PAGE;
    slot.gone.fetch_min((page - start) as u64, Ordering::SeqCst);
    map_zeros(page, start + len - page) || map_zeros(page, PAGE)
}

/// The slot in use whose mapping holds `address`, with its start and length.
fn find(address: usize) -> Option<(&'static Slot, usize, usize)> {
    SLOTS.iter().find_map(|slot| {
        let stamp = slot.stamp.load(Ordering::SeqCst);
        let start = slot.start.load(Ordering::SeqCst);
        let len = slot.len.load(Ordering::SeqCst);
        let is_in_use = !stamp.is_multiple_of(2);
        let is_stable = slot.stamp.load(Ordering::SeqCst) == stamp;
        let holds = start <= address && address - start < len;
        (is_in_use && is_stable && holds).then_some((slot, start, len))
    })
}

/// Maps private zero pages over `len` bytes at `page`, without reserving memory for them.
fn map_zeros(page: usize, len: usize) -> bool {
    let place = ptr::without_provenance_mut::<c_void>(page);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the range lies inside a live mapping of this crate, to which no reference exists and
    // whose accesses are all volatile: they may find other bytes at any moment anyway.
    unsafe { mmap_anonymous(place, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.is_ok()
}

/// Hands a fault that is not ours to whoever handled it before.
fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let (handler, flags) =
        PREVIOUS.get().map_or((libc::SIG_DFL, 0), |action| (action.sa_sigaction, action.sa_flags));
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // The instruction runs again and faults again; the kernel lets nobody ignore that.
        return take_default();
    }
    if flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: SA_SIGINFO says that the address is a function of this signature.
        let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO the address is a function of this signature.
        let handler =
            unsafe { std::mem::transmute::<libc::sighandler_t, extern "C" fn(c_int)>(handler) };
        handler(signal);
    }
}

/// A signal that was sent asks for the process to end: it does, once the handler returns.
fn die_of_sent_signal(signal: c_int) {
    take_default();
    // SAFETY: `raise` may be called in signal context; the signal is blocked until we return.
    unsafe { libc::raise(signal) };
}

fn take_default() {
    let action = default_action();
    // SAFETY: `action` is the default disposition; `sigaction` may be called in signal context. It
    // cannot fail for a signal number that has been installed before.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
}
