//! `cluster.toml`: what a cluster is, written once when it is founded.
//!
//! ```toml
//! version = 1
//! cluster = "000102030405060708090a0b0c0d0e0f"
//! group = 1
//! run_dir = "/dev/shm/remanent-000102030405060708090a0b0c0d0e0f"
//! durability = "sync"
//! max_state_bytes = 4294967296
//!
//! [[member]]
//! id = 1
//! incarnation = "0011223344556677"
//! dir = "1"
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base::{ClusterId, Durability, GroupId, Incarnation, MemberId};
use serde::{Deserialize, Serialize};

/// The version that this program writes, and the newest it reads.
pub const CLUSTER_FILE_VERSION: u32 = 1;
const NAME: &str = "cluster.toml";

/// What a cluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFile {
    /// [`CLUSTER_FILE_VERSION`].
    pub version: u32,
    /// The cluster's id.
    pub cluster: ClusterId,
    /// Its group.
    pub group: GroupId,
    /// Where boards and sockets of running members lie.
    pub run_dir: PathBuf,
    /// What an acknowledgement survives.
    pub durability: Durability,
    /// State above which writes that grow it are refused, in bytes, until a command says otherwise.
    pub max_state_bytes: u64,
    /// The founding members.
    pub members: Vec<MemberFile>,
}

/// A founding member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFile {
    /// Its id.
    pub id: MemberId,
    /// The life of its region.
    pub incarnation: Incarnation,
    /// Its directory, below the cluster's or absolute.
    pub dir: PathBuf,
}

/// Why a cluster file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterFileError {
    /// There is none.
    #[error("{}: no cluster here; make one with `remanent init`", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read or written.
    #[error("{}: cannot {doing}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
    /// It says what it cannot say.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It was written by a newer program.
    #[error("{}: version {found}, this program reads up to {CLUSTER_FILE_VERSION}: use a newer one", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// The file as it stands.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    version: u32,
    cluster: String,
    group: u32,
    run_dir: PathBuf,
    durability: String,
    max_state_bytes: u64,
    member: Vec<RawMember>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RawMember {
    id: u32,
    incarnation: String,
    dir: PathBuf,
}

/// Read first: a newer file may say more than this program knows.
#[derive(Debug, Deserialize)]
struct OnlyVersion {
    version: u32,
}

impl ClusterFile {
    /// Reads `dir/cluster.toml`.
    ///
    /// # Errors
    /// [`ClusterFileError`].
    pub fn read(dir: &Path) -> Result<Self, ClusterFileError> {
        let path = dir.join(NAME);
        let text = std::fs::read_to_string(&path).map_err(|source| {
            let path = path.clone();
            if source.kind() == io::ErrorKind::NotFound {
                return ClusterFileError::Missing { path };
            }
            ClusterFileError::System { path, doing: "read", source }
        })?;
        Self::parse(&text, &path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ClusterFileError> {
        let malformed = |what: String| ClusterFileError::Malformed { path: path.to_owned(), what };
        let OnlyVersion { version } =
            toml::from_str(text).map_err(|error| malformed(error.to_string()))?;
        if version > CLUSTER_FILE_VERSION {
            return Err(ClusterFileError::Newer { path: path.to_owned(), found: version });
        }
        if version == 0 {
            return Err(malformed("version = 0 is none: restore the file".to_owned()));
        }
        let raw: Raw = toml::from_str(text).map_err(|error| malformed(error.to_string()))?;
        let cluster = u128::from_str_radix(&raw.cluster, 16)
            .map_err(|_| malformed(format!("cluster = \"{}\" is no id", raw.cluster)))?;
        let durability = Durability::from_name(&raw.durability)
            .ok_or_else(|| malformed(format!("durability = \"{}\" is none", raw.durability)))?;
        if raw.member.is_empty() {
            return Err(malformed("there is no member".to_owned()));
        }
        let members = raw.member.into_iter().map(|member| {
            let incarnation = u64::from_str_radix(&member.incarnation, 16).map_err(|_| {
                malformed(format!("incarnation = \"{}\" is none", member.incarnation))
            })?;
            let (id, incarnation) = (MemberId(member.id), Incarnation(incarnation));
            Ok(MemberFile { id, incarnation, dir: member.dir })
        });
        Ok(Self {
            version,
            cluster: ClusterId(cluster),
            group: GroupId(raw.group),
            run_dir: raw.run_dir,
            durability,
            max_state_bytes: raw.max_state_bytes,
            members: members.collect::<Result<_, _>>()?,
        })
    }

    fn to_text(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&Raw {
            version: self.version,
            cluster: self.cluster.to_string(),
            group: self.group.0,
            run_dir: self.run_dir.clone(),
            durability: self.durability.name().to_owned(),
            max_state_bytes: self.max_state_bytes,
            member: self
                .members
                .iter()
                .map(|member| RawMember {
                    id: member.id.0,
                    incarnation: member.incarnation.to_string(),
                    dir: member.dir.clone(),
                })
                .collect(),
        })
    }

    /// Writes `dir/cluster.toml`, durable with its name, unless there is one.
    ///
    /// # Errors
    /// [`ClusterFileError`].
    pub fn write_new(&self, dir: &Path) -> Result<(), ClusterFileError> {
        let path = dir.join(NAME);
        let text = self.to_text().map_err(|error| ClusterFileError::Malformed {
            path: path.clone(),
            what: error.to_string(),
        })?;
        let unfinished = dir.join("cluster.toml.new");
        let written = (|| {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).open(&unfinished)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            // A link, unlike a rename, replaces nothing.
            std::fs::hard_link(&unfinished, &path)?;
            std::fs::remove_file(&unfinished)?;
            File::open(dir)?.sync_all()
        })();
        written.map_err(|source| ClusterFileError::System { path, doing: "write", source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> ClusterFile {
        ClusterFile {
            version: CLUSTER_FILE_VERSION,
            cluster: ClusterId(0xc1),
            group: GroupId(1),
            run_dir: PathBuf::from("/dev/shm/x"),
            durability: Durability::Sync,
            max_state_bytes: 1 << 30,
            members: vec![MemberFile {
                id: MemberId(1),
                incarnation: Incarnation(0xfeed),
                dir: PathBuf::from("1"),
            }],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = file().to_text().expect("it can be written");
        assert_eq!(ClusterFile::parse(&text, Path::new("x")).expect("it can be read"), file());
    }

    #[test]
    fn a_newer_file_is_refused_as_such_whatever_it_says() {
        let error = ClusterFile::parse("version = 2\nwhatever = 1\n", Path::new("x"));
        let error = error.expect_err("it is newer").to_string();
        assert!(error.contains("version 2"), "{error}");
    }

    #[test]
    fn a_version_that_never_was_is_refused() {
        let text = file().to_text().expect("it can be written");
        let error = ClusterFile::parse(&text.replace("version = 1", "version = 0"), Path::new("x"));
        let error = error.expect_err("versions begin with 1").to_string();
        assert!(error.contains("version = 0"), "{error}");
    }

    #[test]
    fn a_word_that_is_not_known_is_refused() {
        let text = file().to_text().expect("it can be written") + "colour = 1\n";
        assert!(ClusterFile::parse(&text, Path::new("x")).is_err(), "colour means nothing");
    }
}
