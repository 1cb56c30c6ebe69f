//! A directory for the boards and regions of one test, removed when it is dropped.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory, in shared memory where there is one.
#[derive(Debug)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// A new, empty one.
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let shared = Path::new("/dev/shm");
        let root = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("fabric-{name}-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A file of `len` zero bytes in it.
    pub(crate) fn file(&self, name: &str, len: u64) -> PathBuf {
        let path = self.0.join(name);
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(len).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test that has failed already shall not fail here instead.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
