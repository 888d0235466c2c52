//! Calls of the API, for commands.

use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::Repeat;
use crate::data_dir::{ControlFile, read_control};
use crate::failure::{Failure, FailureKind};
use crate::types::Problem;

/// How long an answer is waited for: publishing stores all that a session has changed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// How long a connection may take.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(30);

/// Largest answer, in bytes: a full page of the largest sessions.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Bytes of content that are read at a time.
const COPY_BYTES: usize = 64 * 1024;

/// The status where nothing of a range is there.
const RANGE_NOT_SATISFIABLE: u16 = 416;

/// Statuses of a server that has too much to do, and of what stands before one that it does not reach.
const NOT_NOW: [u16; 4] = [429, 502, 503, 504];

/// A part of some content that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The commit that it is of.
    pub commit: String,
    /// How many bytes came.
    pub bytes: u64,
    /// How many bytes there are in all.
    pub total: u64,
    /// Why fewer came than the server said.
    pub broken: Option<String>,
}

/// What came of looking whether a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look<A> {
    /// It does, so.
    There(A),
    /// Nobody takes connections at its address.
    Gone,
    /// It cannot be seen from here, and why. Something between here and there may have answered in its
    /// place, or closed the connection.
    Unseen(String),
}

/// A server's API and the right to use it.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    base: String,
    authorization: String,
    control: Option<ControlFile>,
    key: Option<String>,
}

/// What a call carries.
enum Payload<'a, T> {
    Nothing,
    Json(&'a T),
}

impl Client {
    /// Finds the server: at `api` with `token` if these are given, else the one that uses the
    /// data directory.
    ///
    /// # Errors
    ///
    /// No server uses the directory, or it cannot be read; or there is no token for `api`. The one
    /// in the data directory is for the server on this machine, and shown to nobody else.
    pub fn find(api: Option<&str>, token: Option<&str>, data_dir: &Path) -> Result<Self, Failure> {
        // An empty variable is as good as none.
        let api = api.filter(|api| !api.is_empty());
        let token = token.filter(|token| !token.is_empty());
        let (base, token, control) = match (api, token) {
            (Some(api), Some(token)) => (api.to_owned(), token.to_owned(), None),
            (Some(api), None) => return Err(no_token(api)),
            (None, token) => {
                let control = running(data_dir)?;
                let token = token.unwrap_or(&control.api_token).to_owned();
                (control.api_address.clone(), token, Some(control))
            }
        };
        let base = if base.contains("://") {
            base.trim_end_matches('/').to_owned()
        } else {
            format!("http://{base}")
        };
        let is_address = base
            .strip_prefix("http://")
            .is_some_and(|rest| !rest.is_empty())
            && base.parse::<ureq::http::Uri>().is_ok();
        if !is_address {
            let message = format!("{base:?} is no address of an API: give it as http://HOST:PORT");
            return Err(Failure::new(FailureKind::Usage, message));
        }
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_PATIENCE))
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .build();
        Ok(Self {
            agent: config.into(),
            base,
            authorization: format!("Bearer {token}"),
            control,
            key: None,
        })
    }

    /// Sends what changes something with an idempotency key. Good for one call.
    #[must_use]
    pub fn keyed(self, repeat: Repeat) -> Self {
        Self {
            key: repeat.idempotency_key,
            ..self
        }
    }

    /// What the server wrote into the data directory, if that is how it was found.
    #[must_use]
    pub fn control(&self) -> Option<&ControlFile> {
        self.control.as_ref()
    }

    /// Reads `path`.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer.
    pub fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, Failure> {
        self.answer(&self.call("GET", path, &Payload::<()>::Nothing)?)
    }

    /// Looks at `path`, and whether anybody is there.
    ///
    /// # Errors
    ///
    /// The server refuses.
    pub fn look<A: DeserializeOwned>(&self, path: &str) -> Result<Look<A>, Failure> {
        let request = self.asking("GET", path, &Payload::<()>::Nothing)?;
        let url = format!("{}{path}", self.base);
        let mut response = match self.agent.run(request) {
            Ok(response) => response,
            Err(ureq::Error::Io(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                return Ok(Look::Gone);
            }
            Err(error) => return Ok(Look::Unseen(error.to_string())),
        };
        let status = response.status().as_u16();
        let answer = match self.rest(&url, &mut response) {
            Ok(answer) => answer,
            Err(failure) => return Ok(Look::Unseen(failure.message)),
        };
        if NOT_NOW.contains(&status) {
            return Ok(Look::Unseen(refused(&url, status, &answer).message));
        }
        self.outcome(path, status, &answer)?;
        self.answer(&answer).map(Look::There)
    }

    /// Reads `path` as bytes.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer.
    pub fn get_bytes(&self, path: &str) -> Result<Vec<u8>, Failure> {
        self.call("GET", path, &Payload::<()>::Nothing)
    }

    /// Sends `body` to `path`.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer; it may have done it then.
    pub fn post<T: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        body: &T,
    ) -> Result<A, Failure> {
        self.answer(&self.call("POST", path, &Payload::Json(body))?)
    }

    /// Sends `body` to `path`, which answers with nothing.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer; it may have done it then.
    pub fn post_for_nothing<T: Serialize>(&self, path: &str, body: &T) -> Result<(), Failure> {
        self.call("POST", path, &Payload::Json(body)).map(drop)
    }

    /// Sends `body` in place of `path`.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer; it may have done it then.
    pub fn put_json<T: Serialize, A: DeserializeOwned>(
        &self,
        path: &str,
        body: &T,
    ) -> Result<A, Failure> {
        self.answer(&self.call("PUT", path, &Payload::Json(body))?)
    }

    /// Deletes `path`, and tells what came of it.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer; it may have done it then.
    pub fn delete_for<A: DeserializeOwned>(&self, path: &str) -> Result<A, Failure> {
        self.answer(&self.call("DELETE", path, &Payload::<()>::Nothing)?)
    }

    /// Puts `path` in place.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer; it may have done it then.
    pub fn put(&self, path: &str) -> Result<(), Failure> {
        self.call("PUT", path, &Payload::<()>::Nothing).map(drop)
    }

    /// Deletes `path`.
    ///
    /// # Errors
    ///
    /// The server refuses, or does not answer; it may have done it then.
    pub fn delete(&self, path: &str) -> Result<(), Failure> {
        self.call("DELETE", path, &Payload::<()>::Nothing).map(drop)
    }

    /// Reads the bytes `range` of `path` and gives them to `take`, a part at a time, until that says
    /// `false`. `None` if there is nothing in the range.
    ///
    /// # Errors
    ///
    /// The server refuses or does not answer, or `take` fails. What breaks off in between is no error.
    pub fn copy(
        &self,
        path: &str,
        range: Range<u64>,
        mut take: impl FnMut(&[u8]) -> Result<bool, Failure>,
    ) -> Result<Option<Part>, Failure> {
        let url = format!("{}{path}", self.base);
        let wanted = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let request = ureq::http::Request::builder()
            .uri(&url)
            .header("authorization", &self.authorization)
            .header("range", wanted)
            .body(())
            .map_err(|error| {
                Failure::new(FailureKind::Usage, format_args!("call {url}: {error}"))
            })?;
        let mut response = self
            .agent
            .run(request)
            .map_err(|error| unanswered(&url, &error))?;
        let status = response.status().as_u16();
        if status == RANGE_NOT_SATISFIABLE {
            return Ok(None);
        }
        let header = |name: &str| response.headers().get(name)?.to_str().ok();
        let commit = header("holdfast-commit").unwrap_or_default().to_owned();
        let total =
            header("content-range").and_then(|range| range.rsplit_once('/')?.1.parse().ok());
        let length = header("content-length").and_then(|length| length.parse().ok());
        let (Some(total), Some(length)) = (total, length) else {
            let answer = self.rest(&url, &mut response)?;
            return Err(refused(&url, status, &answer));
        };
        let mut part = Part {
            commit,
            bytes: 0,
            total,
            broken: None,
        };
        let mut reader = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; COPY_BYTES];
        while part.bytes < length {
            let count = match reader.read(&mut buffer) {
                Ok(0) => {
                    part.broken = Some("the answer is not whole".to_owned());
                    break;
                }
                Ok(count) => count,
                Err(error) => {
                    part.broken = Some(error.to_string());
                    break;
                }
            };
            part.bytes += u64::try_from(count).unwrap_or(u64::MAX);
            if !take(buffer.get(..count).unwrap_or_default())? {
                break;
            }
        }
        Ok(Some(part))
    }

    fn rest(
        &self,
        url: &str,
        response: &mut ureq::http::Response<ureq::Body>,
    ) -> Result<Vec<u8>, Failure> {
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        body.read_to_vec().map_err(|error| {
            let message = format!("read the answer of {url}: {error}");
            Failure::new(FailureKind::Retry, message)
        })
    }

    fn call<T: Serialize>(
        &self,
        method: &str,
        path: &str,
        payload: &Payload<'_, T>,
    ) -> Result<Vec<u8>, Failure> {
        let url = format!("{}{path}", self.base);
        let request = self.asking(method, path, payload)?;
        let mut response = self
            .agent
            .run(request)
            .map_err(|error| unanswered(&url, &error))?;
        let status = response.status().as_u16();
        let answer = self.rest(&url, &mut response)?;
        self.outcome(path, status, &answer)?;
        Ok(answer)
    }

    fn asking<T: Serialize>(
        &self,
        method: &str,
        path: &str,
        payload: &Payload<'_, T>,
    ) -> Result<ureq::http::Request<Vec<u8>>, Failure> {
        let url = format!("{}{path}", self.base);
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(&url)
            .header("authorization", &self.authorization)
            .header("content-type", "application/json");
        if let Some(key) = self.key.as_ref().filter(|_| method != "GET") {
            request = request.header("idempotency-key", key);
        }
        let body = match payload {
            Payload::Nothing => Vec::new(),
            Payload::Json(body) => serde_json::to_vec(body).unwrap_or_default(),
        };
        request
            .body(body)
            .map_err(|error| Failure::new(FailureKind::Usage, format_args!("call {url}: {error}")))
    }

    /// Whether an answer says that all is well.
    pub(crate) fn outcome(&self, path: &str, status: u16, answer: &[u8]) -> Result<(), Failure> {
        if (200..300).contains(&status) {
            return Ok(());
        }
        Err(refused(&format!("{}{path}", self.base), status, answer))
    }

    /// Host and port of the server, and the path that its paths are below.
    pub(crate) fn place(&self) -> (&str, &str) {
        let rest = self.base.strip_prefix("http://").unwrap_or(&self.base);
        rest.split_at(rest.find('/').unwrap_or(rest.len()))
    }

    /// What a call shows.
    pub(crate) fn authorization(&self) -> &str {
        &self.authorization
    }

    pub(crate) fn answer<A: DeserializeOwned>(&self, body: &[u8]) -> Result<A, Failure> {
        serde_json::from_slice(body).map_err(|error| {
            let base = &self.base;
            Failure::error(format_args!(
                "{base} answers something else than expected: {error}; is it of this release?"
            ))
        })
    }
}

fn unanswered(url: &str, error: &ureq::Error) -> Failure {
    let message = format!("call {url}: {error}; is the server running?");
    Failure::new(FailureKind::Retry, message)
}

fn refused(url: &str, status: u16, answer: &[u8]) -> Failure {
    let detail = match serde_json::from_slice::<Problem>(answer) {
        Ok(problem) => problem.detail,
        Err(_) => format!("{url} answers {status}: is this the address of a Holdfast API?"),
    };
    Failure::new(kind_of(status), detail)
}

fn kind_of(status: u16) -> FailureKind {
    match status {
        400 | 413 | 415 | 422 => FailureKind::Usage,
        401 | 403 => FailureKind::Denied,
        404 | 410 => FailureKind::NotFound,
        409 => FailureKind::Conflict,
        429 | 503 => FailureKind::Retry,
        _ => FailureKind::Error,
    }
}

fn no_token(api: &str) -> Failure {
    let message = format!("which token? Give one for {api} in HOLDFAST_TOKEN");
    Failure::new(FailureKind::Usage, message)
}

fn running(data_dir: &Path) -> Result<ControlFile, Failure> {
    read_control(data_dir)?.ok_or_else(|| {
        let message = format!(
            "no server uses data directory {}: start one with `holdfast up`, name its directory \
             with --data-dir, or give --api and --token",
            data_dir.display()
        );
        Failure::new(FailureKind::Retry, message)
    })
}
