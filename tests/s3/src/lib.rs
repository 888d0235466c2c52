//! The shared chunk store on a real S3 server. Its tests are all there is.
