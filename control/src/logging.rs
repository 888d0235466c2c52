//! Logs go to standard error.

use tracing_subscriber::EnvFilter;

use crate::failure::{Failure, FailureKind};
use crate::settings::LogFormat;

/// Understands a filter.
///
/// # Errors
///
/// It cannot be understood.
pub(crate) fn parse(filter: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(filter).map_err(|error| {
        let message = format!("log filter {filter:?}: {error}; use a level, as in `info`");
        Failure::new(FailureKind::Usage, message)
    })
}

/// Starts logging what `filter` lets through. Without effect if logging has started already.
///
/// # Errors
///
/// The filter cannot be understood.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let parsed = parse(filter)?;
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(parsed);
    let started = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    if let Err(error) = started {
        tracing::debug!(%error, "logging has started already");
    }
    Ok(())
}
