//! Errors, told whole.

use std::error::Error;
use std::fmt;

/// Shows an error with all that it comes from, as far as that is not said already. For logs and messages: most
/// errors say only what was tried, and what went wrong is their source.
pub struct Told<'a>(pub &'a dyn Error);

impl fmt::Debug for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !last.ends_with(&more) {
                write!(f, ": {more}")?;
                last = more;
            }
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Self>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|it| -> &(dyn Error + 'static) { it })
        }
    }

    fn layer(text: &'static str, cause: Option<Layer>) -> Layer {
        Layer(text, cause.map(Box::new))
    }

    #[test]
    fn causes_are_told_once() {
        let error = layer(
            "renew the lease",
            Some(layer(
                "commit: timed out",
                Some(layer("timed out", Some(layer("no route", None)))),
            )),
        );
        assert_eq!(
            Told(&error).to_string(),
            "renew the lease: commit: timed out: no route"
        );
    }
}
