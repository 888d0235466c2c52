//! Which object store a URL means.

use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Rng};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStoreScheme, RetryConfig};
use url::Url;

use super::objects::{ObjectOptions, Objects, told};

/// How long a connection may take to be made.
const CONNECT_TIME: &str = "5 seconds";

/// Why a URL and its options name no object store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// It is no URL of an object store that this program knows.
    #[error(
        "{0:?} is no object store: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, or file:///DIRECTORY"
    )]
    Url(String),
    /// An option is not known for it.
    #[error("{0:?} is no option of this object store")]
    Option(String),
    /// The options do not fit.
    #[error("{0}")]
    Build(String),
}

/// An object store's URL and what it is used with.
#[derive(Clone, Debug)]
pub struct Target {
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `file:///DIRECTORY`.
    pub url: String,
    /// Names and values as the crate `object_store` has them. They win over the environment
    /// (`AWS_*`, `GOOGLE_*`).
    pub options: Vec<(String, String)>,
    /// How it is used.
    pub use_options: ObjectOptions,
}

/// Checks that a URL names an object store. No I/O.
///
/// # Errors
///
/// It names none.
pub fn check_url(url: &str) -> Result<(), ConnectError> {
    scheme(url).map(drop)
}

fn scheme(text: &str) -> Result<(Url, ObjectStoreScheme, Path), ConnectError> {
    let wrong = || ConnectError::Url(text.to_owned());
    let url: Url = text.parse().map_err(|_| wrong())?;
    let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|_| wrong())?;
    let is_known = matches!(
        scheme,
        ObjectStoreScheme::AmazonS3
            | ObjectStoreScheme::GoogleCloudStorage
            | ObjectStoreScheme::Local
    );
    // A name and a password would be told to everybody.
    if !is_known || !url.username().is_empty() || url.query().is_some() || url.fragment().is_some()
    {
        return Err(wrong());
    }
    Ok((url, scheme, path))
}

/// The object store of `target`. Nothing is asked of it yet.
///
/// # Errors
///
/// The URL or an option is wrong.
pub fn connect(
    target: &Target,
    clock: Arc<dyn Clock>,
    rng: Arc<Rng>,
) -> Result<Objects, ConnectError> {
    // Another one that is installed already does as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    let (url, scheme, prefix) = scheme(&target.url)?;
    let options = target.use_options;
    match scheme {
        ObjectStoreScheme::Local => {
            let directory = url
                .to_file_path()
                .map_err(|()| ConnectError::Url(target.url.clone()))?;
            if let Some((name, _)) = target.options.first() {
                return Err(ConnectError::Option(name.clone()));
            }
            let store = LocalFileSystem::new_with_prefix(directory).map_err(build)?;
            // What is acknowledged is durable.
            let store = Arc::new(store.with_fsync(true));
            Ok(Objects::new(
                store,
                None,
                Path::default(),
                options,
                clock,
                rng,
            ))
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let key = |name: &str| name.parse::<GoogleConfigKey>();
            let mut builder = GoogleCloudStorageBuilder::from_env()
                .with_url(url.to_string())
                .with_retry(one_try());
            for (name, value) in client_options(options) {
                builder = builder.with_config(GoogleConfigKey::Client(name), value);
            }
            for (name, value) in &target.options {
                let key = key(name).map_err(|_| ConnectError::Option(name.clone()))?;
                builder = builder.with_config(key, value);
            }
            let store = Arc::new(builder.build().map_err(build)?);
            let parts = Arc::clone(&store);
            Ok(Objects::new(
                store,
                Some(parts),
                prefix,
                options,
                clock,
                rng,
            ))
        }
        _ => {
            let key = |name: &str| name.parse::<AmazonS3ConfigKey>();
            let mut builder = AmazonS3Builder::from_env()
                .with_url(url.to_string())
                .with_retry(one_try());
            for (name, value) in client_options(options) {
                builder = builder.with_config(AmazonS3ConfigKey::Client(name), value);
            }
            for (name, value) in &target.options {
                let key = key(name).map_err(|_| ConnectError::Option(name.clone()))?;
                builder = builder.with_config(key, value);
            }
            let store = Arc::new(builder.build().map_err(build)?);
            let parts = Arc::clone(&store);
            Ok(Objects::new(
                store,
                Some(parts),
                prefix,
                options,
                clock,
                rng,
            ))
        }
    }
}

/// Tries are made above, where they are counted.
fn one_try() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        retry_timeout: Duration::ZERO,
        ..RetryConfig::default()
    }
}

/// Times: those above are what counts, and end a call by dropping it.
fn client_options(options: ObjectOptions) -> [(ClientConfigKey, String); 2] {
    let seconds = options.get_time.max(options.put_time).as_secs() + 1;
    [
        (ClientConfigKey::ConnectTimeout, CONNECT_TIME.to_owned()),
        (ClientConfigKey::Timeout, format!("{seconds} seconds")),
    ]
}

fn build(error: object_store::Error) -> ConnectError {
    ConnectError::Build(told(&error))
}

#[cfg(test)]
mod tests {
    use base::SystemClock;

    use super::*;

    fn target(url: &str, options: &[(&str, &str)]) -> Result<Objects, ConnectError> {
        let pairs = options.iter();
        let target = Target {
            url: url.to_owned(),
            options: pairs
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            use_options: ObjectOptions::default(),
        };
        let clock = Arc::new(SystemClock::new());
        connect(&target, clock, Arc::new(Rng::seeded(1)))
    }

    #[test]
    fn urls_name_object_stores_or_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}", directory.path().display());
        assert!(target(&url, &[]).is_ok());
        let region = ("aws_region", "eu-central-1");
        assert!(target("s3://bucket/some/prefix", &[region]).is_ok());
        for wrong in [
            "",
            "bucket",
            "s3:",
            "ftp://host/x",
            "memory:///",
            "s3://a:b@bucket/x",
            "s3://b/x?y",
        ] {
            assert!(
                matches!(target(wrong, &[]), Err(ConnectError::Url(_))),
                "{wrong}"
            );
            assert!(check_url(wrong).is_err());
        }
        let unknown = target("s3://bucket", &[("aws_regoin", "x")]);
        assert_eq!(
            unknown.unwrap_err(),
            ConnectError::Option("aws_regoin".into())
        );
        let missing = target("file:///does/not/exist", &[]);
        assert!(matches!(missing, Err(ConnectError::Build(_))));
    }
}
