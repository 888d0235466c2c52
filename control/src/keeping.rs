//! What is kept and what is removed, and tokens, as JSON says it.

use metadata::record::retention::RetentionRecord;
use metadata::store::{DeletionInfo, PinInfo, TokenInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::types::show_time;

/// A workspace that is being removed. Its name is free already.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RemovedWorkspace {
    /// Its number, in hexadecimal.
    pub id: String,
    /// The name that it had.
    pub name: String,
    /// Since when it is being removed.
    pub since: String,
}

/// How much of its history a workspace keeps.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Retention {
    /// What is younger is kept, in seconds; null if everything is kept.
    pub keep_seconds: Option<u64>,
    /// So many of the newest commits are kept.
    pub keep_last: Option<u64>,
    /// From when on logs have everything; null if nothing was ever let go.
    pub logs_since: Option<String>,
}

/// How much a workspace is to keep.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetRetention {
    /// Let go what is older, in seconds, and not needed; at least 3600.
    pub keep_seconds: u64,
    /// Keep so many of the newest commits, however old.
    #[serde(default)]
    pub keep_last: u64,
}

/// A commit to be pinned.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddPin {
    /// The version.
    pub version: String,
    /// Why.
    #[serde(default)]
    pub note: String,
}

/// A pinned commit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Pin {
    /// The commit's id.
    pub commit: String,
    /// Since when.
    pub created: String,
    /// Why.
    pub note: String,
}

/// A token to be made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// What it is for.
    pub name: String,
}

/// A token that was just made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// Names it.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// Its text, which is nowhere stored.
    pub token: String,
}

/// A token.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Names it, in the operation log too.
    pub id: String,
    /// What it is for; empty for the one that the server made for commands on its machine.
    pub name: String,
    /// Since when.
    pub created: String,
}

impl From<DeletionInfo> for RemovedWorkspace {
    fn from(info: DeletionInfo) -> Self {
        Self {
            id: info.id.to_string(),
            name: info.record.name,
            since: show_time(info.record.time),
        }
    }
}

impl From<RetentionRecord> for Retention {
    fn from(record: RetentionRecord) -> Self {
        Self {
            keep_seconds: record.policy.map(|policy| policy.keep_seconds),
            keep_last: record.policy.map(|policy| policy.keep_last),
            logs_since: record.horizon.map(show_time),
        }
    }
}

impl From<PinInfo> for Pin {
    fn from(info: PinInfo) -> Self {
        Self {
            commit: info.commit.to_string(),
            created: show_time(info.record.created),
            note: info.record.note,
        }
    }
}

impl From<TokenInfo> for Token {
    fn from(info: TokenInfo) -> Self {
        Self {
            id: show_token(info.id),
            name: info.record.name,
            created: show_time(info.record.created),
        }
    }
}

/// The id of a token as text: 16 digits.
#[must_use]
pub fn show_token(id: [u8; 8]) -> String {
    format!("{:016x}", u64::from_be_bytes(id))
}

/// Reads what [`show_token`] shows.
#[must_use]
pub fn parse_token(text: &str) -> Option<[u8; 8]> {
    let is_id = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = u64::from_str_radix(text, 16).ok().filter(|_| is_id)?;
    Some(id.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_tokens_are_shown_and_read() {
        let id = [0, 1, 2, 3, 0xfe, 0xff, 6, 7];
        assert_eq!(show_token(id), "00010203feff0607");
        assert_eq!(parse_token(&show_token(id)), Some(id));
        for wrong in ["", "+001020304050607", "00010203feff06", "x0010203feff0607"] {
            assert_eq!(parse_token(wrong), None);
        }
    }
}
