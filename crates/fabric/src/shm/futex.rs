//! Addresses for the kernel: futexes and the robust list.
//!
//! The first page of a board is mapped a second time for this alone. User code never loads from or
//! stores to this mapping (that goes through `pmem::Mapping`, which survives a truncated file); the
//! kernel does, and it answers a missing page with an error.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use pmem::Mapping;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;

const PAGE: usize = 4096;

/// The first page of a board, as the kernel is told of it.
#[derive(Debug)]
pub(crate) struct FutexPage {
    /// Invariant: one mapped page while `self` lives.
    page: NonNull<u8>,
}

// SAFETY: the page belongs to the process, not to a thread, and is let go by `drop` alone.
unsafe impl Send for FutexPage {}
// SAFETY: only addresses are taken through `&self`.
unsafe impl Sync for FutexPage {}

impl FutexPage {
    /// Maps the first page of `file`.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = ptr::null_mut();
        // SAFETY: a null address without MAP_FIXED: the kernel picks a range that nobody has.
        let page =
            unsafe { rustix::mm::mmap(anywhere, PAGE, rights, MapFlags::SHARED, file.as_fd(), 0) }?;
        NonNull::new(page.cast())
            .map(|page| Self { page })
            .ok_or_else(|| io::Error::other("mapped at address 0"))
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        let at = usize::try_from(at).expect("a constant of the layout");
        assert!(at.is_multiple_of(4), "a futex is aligned");
        assert!(at < PAGE, "futexes lie in the first page");
        let word = self.page.as_ptr().wrapping_add(at).cast::<u32>();
        // SAFETY: the word lies in the mapped page, which lives as long as `self`, is aligned, and
        // is shared by atomics alone.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// Sleeps while the word at `at` is `value`, until woken or until `timeout` has passed.
    pub(crate) fn wait(&self, at: u64, value: u32, timeout: Duration) {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Woken, timed out, interrupted or changed meanwhile: the caller looks again in any case.
        let _ = futex::wait(self.word(at), futex::Flags::empty(), value, Some(&timeout));
    }

    /// Wakes whoever sleeps on the word at `at`.
    pub(crate) fn wake(&self, at: u64) {
        // Fails only for memory that is gone: then nobody can be waiting for it.
        let _ = futex::wake(self.word(at), futex::Flags::empty(), u32::MAX >> 1);
    }
}

impl Drop for FutexPage {
    fn drop(&mut self) {
        // SAFETY: this is the page that `map` got; every reference into it borrows `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE) };
        assert!(unmapped.is_ok(), "a page of ours can be unmapped: {unmapped:?}");
    }
}

/// One element of the kernel's robust list (`struct robust_list`).
#[repr(C)]
struct RobustNode {
    next: *const Self,
}

/// What `set_robust_list` takes (`struct robust_list_head`).
#[repr(C)]
struct RobustHead {
    list: RobustNode,
    /// From a node to its futex.
    futex_offset: isize,
    pending: *const RobustNode,
}

/// The bit that the kernel sets in the word when the thread that holds it has ended.
pub(crate) const OWNER_DIED: u64 = 0x4000_0000;
/// The thread id in the word.
pub(crate) const OWNER_MASK: u64 = 0x3fff_ffff;

/// Whether the word of a board says that its owner lives.
pub(crate) const fn is_alive(word: u64) -> bool {
    word & OWNER_DIED == 0 && word & OWNER_MASK != 0
}

/// A thread that holds the `alive` word of a board until it is dropped or the process ends.
///
/// It holds the word by a robust list of its own, which only this thread may register: the kernel
/// walks it when the thread ends, and a sleeping thread ends with its process alone.
#[derive(Debug)]
pub(crate) struct Holder {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Holder {
    /// Takes the word at `at`, and returns when it is taken.
    ///
    /// # Errors
    /// When there is no thread or the kernel refuses the list.
    pub(crate) fn take(board: &Arc<Mapping>, page: &Arc<FutexPage>, at: u64) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let (tell, told) = channel();
        let (board, page) = (Arc::clone(board), Arc::clone(page));
        let thread = std::thread::Builder::new()
            .name("shm-alive".to_owned())
            .spawn(move || hold(&board, &page, at, &tell, &stopped))?;
        let holder = Self { stop: Some(stop), thread: Some(thread) };
        told.recv().map_err(|_| io::Error::other("the thread that shows life ended"))??;
        Ok(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok(), "the thread that shows life does not panic");
        }
    }
}

fn hold(
    board: &Mapping,
    page: &FutexPage,
    at: u64,
    tell: &Sender<io::Result<()>>,
    stopped: &Receiver<()>,
) {
    let mut head = RobustHead {
        list: RobustNode { next: ptr::null() },
        futex_offset: 0,
        pending: ptr::null(),
    };
    let node = RobustNode { next: &raw const head.list };
    let word = page.word(at).as_ptr().addr();
    let node_address = (&raw const node).addr();
    head.futex_offset = word.wrapping_sub(node_address).cast_signed();
    head.list.next = &raw const node;
    let id = u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    board.store(at, id);
    let result = set_robust_list(&raw const head);
    let is_held = result.is_ok();
    // Nobody listens only when `take` has returned an error.
    let _ = tell.send(result);
    if is_held {
        // Ends with an error once the sender is dropped; nothing is ever sent.
        let _ = stopped.recv();
    }
    let cleared = set_robust_list(ptr::null());
    assert!(cleared.is_ok(), "an empty robust list is always accepted");
    board.store(at, 0);
}

fn set_robust_list(head: *const RobustHead) -> io::Result<()> {
    let len = size_of::<RobustHead>();
    // SAFETY: the kernel reads the list only when this thread ends; `hold` keeps head and node on
    // its stack and replaces them by null before it returns. This thread uses no robust mutex.
    let result = unsafe { libc::syscall(libc::SYS_set_robust_list, head, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
