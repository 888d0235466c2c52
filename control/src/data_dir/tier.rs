//! Where the content of a data directory's files is.

use serde::{Deserialize, Serialize};

use super::{DataDir, TIER, damaged, read_json};
use crate::failure::{Failure, FailureKind};
use crate::tier::Tier;

/// What the file `chunks.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TierFile {
    /// As the setting `chunks` says it.
    chunks: String,
}

impl DataDir {
    /// Where file content is, if it is not in the directory.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn tier(&self) -> Result<Tier, Failure> {
        let path = self.at(TIER);
        let Some(file) = read_json::<TierFile>(&path)? else {
            return Ok(Tier::Local);
        };
        file.chunks.parse().map_err(|error| damaged(&path, &error))
    }

    /// Refuses a tier that is not where the content of this directory's files is.
    ///
    /// # Errors
    ///
    /// Says where it is.
    pub fn check_tier(&self, tier: &Tier) -> Result<(), Failure> {
        let (shown, found) = (self.path.display(), self.tier()?);
        let has_packs =
            std::fs::read_dir(self.chunks()).is_ok_and(|mut packs| packs.next().is_some());
        let message = if found == *tier {
            return Ok(());
        } else if found.is_shared() {
            format!(
                "the content of the files of data directory {shown} is in {found}: start with --chunks \
                 {found}, or use another --data-dir"
            )
        } else if has_packs || self.is_finished() {
            format!(
                "the content of the files of data directory {shown} is in its chunks/: leave out --chunks \
                 {tier}, or use another --data-dir for a new installation"
            )
        } else {
            return Ok(());
        };
        Err(Failure::new(FailureKind::Conflict, message))
    }

    /// Keeps that file content is elsewhere.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn keep_tier(&self, tier: &Tier) -> Result<(), Failure> {
        if !tier.is_shared() || self.tier()? == *tier {
            return Ok(());
        }
        let chunks = tier.to_string();
        self.write_json(TIER, &TierFile { chunks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_stays_where_it_is() {
        let root = tempfile::tempdir().unwrap();
        let open = |name: &str| DataDir::open_or_create(&root.path().join(name)).unwrap();
        let here = open("here");
        for tier in [Tier::Local, Tier::Kv] {
            assert_eq!(here.check_tier(&tier), Ok(()), "nothing is anywhere yet");
        }
        std::fs::create_dir(here.chunks()).unwrap();
        assert_eq!(here.check_tier(&Tier::Kv), Ok(()), "nothing is in it");
        std::fs::write(here.chunks().join("pack"), "x").unwrap();
        let refused = here.check_tier(&Tier::Kv).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Conflict);
        assert!(refused.message.contains("is in its chunks/"), "{refused}");
        assert_eq!(here.check_tier(&Tier::Local), Ok(()));
        let there = open("there");
        there.keep_tier(&Tier::Kv).unwrap();
        there.keep_api_token("token").unwrap();
        std::fs::write(there.metadata(), "x").unwrap();
        drop(there);
        let there = open("there");
        assert_eq!(there.tier(), Ok(Tier::Kv));
        assert_eq!(there.check_tier(&Tier::Kv), Ok(()));
        let refused = there.check_tier(&Tier::Local).unwrap_err();
        assert!(refused.message.contains("--chunks kv"), "{refused}");
        std::fs::write(there.at(TIER), r#"{"chunks":"tape"}"#).unwrap();
        let damaged = there.tier().unwrap_err();
        assert!(
            damaged.message.contains("chunks.json is damaged"),
            "{damaged}"
        );
    }
}
