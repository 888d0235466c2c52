//! Who asks.

/// Supplementary groups, at most sixteen on the wire (RFC 5531, appendix A).
pub type Groups = Vec<u32>;

/// The identity an operation runs as, after any squashing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Effective user id; 0 may do everything.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

impl Caller {
    /// The superuser.
    #[must_use]
    pub const fn root() -> Self {
        Self {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
        }
    }

    /// Whether this is the superuser.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is in `gid`, by its effective or a supplementary group.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
