//! The few calls of the control API that the benches make.

use std::time::Duration;

use serde::Deserialize;

use crate::Error;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

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

    /// Opens a session of a workspace.
    ///
    /// # Errors
    ///
    /// If the API refuses, does not answer, or answers with something else.
    pub fn open_session(&self, workspace: &str) -> Result<Session, Error> {
        let url = format!("{}/v1/sessions", self.base);
        let failed = |why: String| Error::Setup(format!("open a session at {url}: {why}"));
        let mut answer = self
            .agent
            .post(&url)
            .header("authorization", &self.authorization)
            .send_json(serde_json::json!({ "workspace": workspace }))
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
