//! Which object store a URL means.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base::{Clock, Rng};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

use super::objects::{ObjectOptions, Objects, told};

/// How long a connection may take to be made.
const CONNECT_TIME: &str = "5 seconds";

/// Why a URL and its options name no object store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// It is no URL of an object store that this program knows, without what may be a secret.
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

/// A URL without what may be a secret in it: what stands before an `@`, and behind a `?` or `#`.
#[must_use]
pub fn without_secrets(url: &str) -> String {
    let (hidden, rest) = match url.rsplit_once('@') {
        Some((_, rest)) => ("...@", rest),
        None => ("", url),
    };
    let shown = rest.split(['?', '#']).next().unwrap_or_default();
    let more = if shown.len() < rest.len() { "..." } else { "" };
    format!("{hidden}{shown}{more}")
}

fn scheme(text: &str) -> Result<(Url, ObjectStoreScheme, Path), ConnectError> {
    let wrong = || ConnectError::Url(without_secrets(text));
    let url: Url = text.parse().map_err(|_| wrong())?;
    let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|_| wrong())?;
    let is_known = matches!(
        scheme,
        ObjectStoreScheme::AmazonS3
            | ObjectStoreScheme::GoogleCloudStorage
            | ObjectStoreScheme::Local
    );
    // A name and a password would be told to everybody.
    let has_secret = !url.username().is_empty() || url.password().is_some();
    if !is_known || has_secret || url.query().is_some() || url.fragment().is_some() {
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
    let (store, parts, prefix) = match scheme {
        ObjectStoreScheme::Local => {
            let directory = url
                .to_file_path()
                .map_err(|()| ConnectError::Url(without_secrets(&target.url)))?;
            if let Some((name, _)) = target.options.first() {
                return Err(ConnectError::Option(name.clone()));
            }
            let store = LocalFileSystem::new_with_prefix(directory).map_err(build)?;
            // What is acknowledged is durable.
            let store: Arc<dyn ObjectStore> = Arc::new(store.with_fsync(true));
            (store, None, Path::default())
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            let builder = GoogleCloudStorageBuilder::from_env()
                .with_url(url.to_string())
                .with_retry(one_try());
            let set = |to: GoogleCloudStorageBuilder, key, value| to.with_config(key, value);
            let builder = configured(builder, target, GoogleConfigKey::Client, set)?;
            let (store, parts) = in_parts(builder.build().map_err(build)?);
            (store, parts, prefix)
        }
        _ => {
            let builder = AmazonS3Builder::from_env()
                .with_url(url.to_string())
                .with_retry(one_try());
            let set = |to: AmazonS3Builder, key, value| to.with_config(key, value);
            let builder = configured(builder, target, AmazonS3ConfigKey::Client, set)?;
            let (store, parts) = in_parts(builder.build().map_err(build)?);
            (store, parts, prefix)
        }
    };
    let options = target.use_options;
    Ok(Objects::new(store, parts, prefix, options, clock, rng))
}

/// Gives a builder its options.
fn configured<B, K: FromStr>(
    mut builder: B,
    target: &Target,
    client: impl Fn(ClientConfigKey) -> K,
    set: impl Fn(B, K, String) -> B,
) -> Result<B, ConnectError> {
    for (name, value) in client_options(target.use_options) {
        builder = set(builder, client(name), value);
    }
    for (name, value) in &target.options {
        let key = name.parse();
        let key = key.map_err(|_| ConnectError::Option(name.clone()))?;
        builder = set(builder, key, value.clone());
    }
    Ok(builder)
}

type InParts = (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>);

/// A store that takes objects in parts.
fn in_parts<S: ObjectStore + MultipartStore>(store: S) -> InParts {
    let store = Arc::new(store);
    (Arc::<S>::clone(&store), Some(store))
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
        for secret in [
            "s3://name:SECRET@bucket/x",
            "s3://:SECRET@bucket/x",
            "s3://SECRET@bucket/x",
            "s3://:SE?CR@bucket/x",
            "s3://bucket/x?sig=SECRET",
            "no url SECRET@x",
        ] {
            let told = check_url(secret).unwrap_err().to_string();
            assert!(!told.contains("SE"), "{told}");
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
