//! An S3 server as a program, for tests of whole fleets: prints its address, the bucket and the keys as one line of JSON,
//! and serves until its standard input ends.
//!
//! ```text
//! cargo run -p s3-tests --example s3-server -- [SEED [BUSY CUT LOST SLOW]]
//! ```
//!
//! The last four say what goes wrong, in thousandths of the calls: 503 answers, bodies that end in the middle, answers
//! that are lost, and reads that take 1.5 s.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // For tests.

mod server;

use std::io::Read;

use serde_json::json;
use server::{BUCKET, Faults, KEY, S3, SECRET};

fn main() {
    let mut numbers = std::env::args().skip(1).map(|arg| arg.parse().unwrap());
    let seed = numbers.next().unwrap_or(0);
    let mut fault = || numbers.next().unwrap_or(0);
    let faults = Faults {
        busy: fault(),
        cut: fault(),
        lost: fault(),
        slow: fault(),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let s3 = runtime.block_on(S3::start(seed));
    s3.set_faults(faults);
    let ready = json!({
        "endpoint": format!("http://{}", s3.address),
        "bucket": BUCKET,
        "access_key_id": KEY,
        "secret_access_key": SECRET,
    });
    println!("{ready}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let (puts, gets) = s3.calls();
    println!("{}", json!({ "puts": puts, "gets": gets }));
}
