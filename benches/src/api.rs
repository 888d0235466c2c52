//! The few calls of the control API that the benches make.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use crate::Error;

/// How long an answer is waited for: a first publish reads everything that was created.
const PATIENCE: Duration = Duration::from_secs(900);

/// Longest answer taken, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// A control API and the right to use it.
#[derive(Debug)]
pub struct Api {
    agent: ureq::Agent,
    base: String,
    authorization: String,
}

/// A session as the API describes it. Other fields are of no interest here.
#[derive(Debug, Clone, Deserialize)]
pub struct Session {
    /// Its name.
    pub id: String,
    /// The path to mount.
    pub mount_path: String,
}

/// What of a publish is of interest here.
#[derive(Debug, Deserialize)]
struct Published {
    outcome: String,
}

/// What the server has in its chunk store: file content, and nodes of snapshot trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Chunks, each node one of them.
    pub chunks: u64,
    /// Bytes that their packs take.
    pub bytes: u64,
    /// Collections since the server's start: they make the others smaller.
    pub collections: u64,
}

impl Stored {
    /// Reads it from what `GET /metrics` answers.
    fn read(text: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let (_, value) = lines.find(|(found, _)| *found == name)?;
            value.trim().parse().ok()
        };
        Some(Self {
            chunks: value("holdfast_chunkstore_chunks")?,
            bytes: value("holdfast_chunkstore_stored_bytes")?,
            collections: value("holdfast_chunkstore_collections_total")?,
        })
    }
}

impl Api {
    /// The API at `base`, such as `http://127.0.0.1:8080`, used with `token`.
    #[must_use]
    pub fn new(base: &str, token: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .build();
        Self {
            agent: config.into(),
            base: base.trim_end_matches('/').into(),
            authorization: format!("Bearer {token}"),
        }
    }

    /// Makes a workspace.
    ///
    /// # Errors
    ///
    /// If the API refuses, does not answer, or answers with something else.
    pub fn create_workspace(&self, name: &str) -> Result<(), Error> {
        let asked = serde_json::json!({ "name": name });
        self.post::<IgnoredAny>("/v1/workspaces", &asked).map(drop)
    }

    /// Opens a session of a workspace.
    ///
    /// # Errors
    ///
    /// If the API refuses, does not answer, or answers with something else.
    pub fn open_session(&self, workspace: &str) -> Result<Session, Error> {
        let asked = serde_json::json!({ "workspace": workspace });
        self.post("/v1/sessions", &asked)
    }

    /// Forks a session.
    ///
    /// # Errors
    ///
    /// If the API refuses, does not answer, or answers with something else.
    pub fn fork(&self, session: &str) -> Result<Session, Error> {
        let path = format!("/v1/sessions/{session}/fork");
        self.post(&path, &serde_json::json!({}))
    }

    /// Publishes a session to its branch; clashes fail. Tells how the branch got there.
    ///
    /// # Errors
    ///
    /// If the API refuses, does not answer, or answers with something else.
    pub fn publish(&self, session: &str) -> Result<String, Error> {
        let path = format!("/v1/sessions/{session}/publish");
        let asked = serde_json::json!({ "policy": "fail" });
        let published: Published = self.post(&path, &asked)?;
        Ok(published.outcome)
    }

    /// Makes a commit of what a session has, and with it one tree of all its layers.
    ///
    /// # Errors
    ///
    /// If the API refuses, does not answer, or answers with something else.
    pub fn checkpoint(&self, session: &str) -> Result<(), Error> {
        let path = format!("/v1/sessions/{session}/checkpoint");
        self.post::<IgnoredAny>(&path, &serde_json::json!({}))
            .map(drop)
    }

    /// What is stored now.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or its metrics are not known.
    pub fn stored(&self) -> Result<Stored, Error> {
        let url = format!("{}/metrics", self.base);
        let failed = |why: String| Error::Setup(format!("GET {url}: {why}"));
        let asked = self
            .agent
            .get(&url)
            .header("authorization", &self.authorization);
        let mut answer = asked.call().map_err(|error| failed(error.to_string()))?;
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = body
            .read_to_string()
            .map_err(|error| failed(error.to_string()))?;
        Stored::read(&text).ok_or_else(|| failed("what is stored is not told".into()))
    }

    fn post<T: DeserializeOwned>(&self, path: &str, asked: &Value) -> Result<T, Error> {
        let url = format!("{}{path}", self.base);
        let failed = |why: String| Error::Setup(format!("POST {url}: {why}"));
        let mut answer = self
            .agent
            .post(&url)
            .header("authorization", &self.authorization)
            .send_json(asked)
            .map_err(|error| failed(error.to_string()))?;
        let status = answer.status();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        if !status.is_success() {
            let text = body.read_to_string().unwrap_or_default();
            return Err(failed(format!("{status}: {}", text.trim())));
        }
        body.read_json().map_err(|error| failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_from_metrics() {
        let text = "# HELP holdfast_chunkstore_chunks Chunks stored.\n\
                    # TYPE holdfast_chunkstore_chunks gauge\n\
                    holdfast_chunkstore_chunks 12\n\
                    holdfast_chunkstore_stored_bytes 3456\n\
                    holdfast_chunkstore_collections_total 7\n";
        let stored = Stored {
            chunks: 12,
            bytes: 3456,
            collections: 7,
        };
        assert_eq!(Stored::read(text), Some(stored));
        assert_eq!(Stored::read(&text.replace("_chunks 12", "_chunks -")), None);
        assert_eq!(Stored::read("holdfast_chunkstore_chunks 12\n"), None);
    }
}
