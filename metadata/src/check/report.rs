//! What a check found.

use std::fmt;

use base::InodeId;

use super::image::Of;

/// Most problems that are told one by one; the rest is counted.
pub const PROBLEMS_MAX: usize = 1000;

/// Most uses of what is damaged that are told one by one.
pub const USES_MAX: usize = 200;

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys of the store.
    pub keys: u64,
    /// Workspaces.
    pub workspaces: u64,
    /// Sessions.
    pub sessions: u64,
    /// Inodes.
    pub inodes: u64,
    /// Directory entries.
    pub entries: u64,
    /// Blocks of files that have a key of their own.
    pub blocks: u64,
    /// Chunks that blocks name.
    pub chunks: u64,
    /// Stored replies.
    pub replies: u64,
    /// Mount tickets.
    pub tickets: u64,
    /// Commits.
    pub commits: u64,
    /// Refs.
    pub refs: u64,
    /// Entries of operation logs.
    pub operations: u64,
    /// Trees, each once.
    pub trees: u64,
}

/// What can be done about a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// One session is concerned.
    Session,
    /// The installation is concerned.
    Store,
    /// The data may be of another release.
    Release,
    /// A file that a server makes anew.
    File,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: String,
    /// What.
    pub what: String,
    /// What to do.
    pub remedy: Remedy,
    /// The inode of the image that `place` names, if it is about one.
    pub(super) inode: Option<InodeId>,
}

/// A file that something damaged or missing is used by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The session or commit.
    pub of: String,
    /// The file's path from the root directory; `None` if it is not known.
    pub path: Option<Vec<u8>>,
    /// What is damaged or missing.
    pub what: String,
}

/// All that a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first problems.
    pub problems: Vec<Problem>,
    /// How many there are.
    pub problems_total: u64,
    /// What was looked at.
    pub counts: Counts,
    /// Who uses what is damaged or missing in trees: the first [`USES_MAX`].
    pub uses: Vec<Use>,
    /// Sessions and commits whose uses are not told, or not all.
    pub uses_left_out: u64,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }

    /// Notes a problem.
    pub fn add(&mut self, place: impl Into<String>, what: impl Into<String>, remedy: Remedy) {
        self.note(place.into(), what.into(), remedy, None);
    }

    /// Notes a problem of a file.
    pub(super) fn add_of(&mut self, of: Of, inode: InodeId, what: impl Into<String>) {
        let place = format!("{of}, inode {inode}");
        self.note(place, what.into(), of.remedy(), Some(inode));
    }

    fn note(&mut self, place: String, what: String, remedy: Remedy, inode: Option<InodeId>) {
        self.problems_total += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem {
                place,
                what,
                remedy,
                inode,
            });
        }
    }
}

impl Remedy {
    /// What to do, as a sentence.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Session => {
                "copy what can be read out of the session and close it, or restore the data \
                 directory from a backup"
            }
            Self::Store => "restore the data directory from a backup",
            Self::Release => {
                "use the release that wrote the data, or restore the data directory from a backup"
            }
            Self::File => "move that file away: the next start makes a new one",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}
