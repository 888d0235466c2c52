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
