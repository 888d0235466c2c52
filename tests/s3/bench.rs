//! What an object store costs a client: the time of a durable write while PUTs are slow, and the rate of a
//! cold sequential read against the S3 server's own.
//!
//! `cargo bench -p s3-tests --bench tier` (with `--profile dev` for an unoptimised build). Sizes:
//! `HOLDFAST_BENCH_MIB` (1024), `HOLDFAST_BENCH_WRITES` (200).
#![allow(missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::panic
)] // For tests.

mod server;
#[path = "holdfast.rs"]
mod subject;

use std::time::Duration;

use base::{Clock, Rng, SystemClock};
use chunkstore::shared::connect::{Target, connect};
use chunkstore::shared::ledger::PackId;
use chunkstore::shared::objects::ObjectOptions;
use futures_util::{StreamExt, stream};

use self::server::{BUCKET, KEY, S3, SECRET};
use self::subject::{Server, as_holdfast, noise, packed};

const MIB: usize = 1 << 20;

fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name);
    given.map_or(default, |text| text.parse().unwrap())
}

/// The median and the 95th of a hundred.
fn told(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    format!("median {:.2?}, 95 % {:.2?}", at(50), at(95))
}

fn rate(bytes: usize, took: Duration) -> f64 {
    #[expect(clippy::as_conversions, reason = "there is no other way to a float")]
    let mib = bytes as f64 / (1 << 20) as f64;
    mib / took.as_secs_f64()
}

async fn writes(server: &Server, count: u64) -> String {
    let clock = SystemClock::new();
    let mut mount = server.mount().await;
    let file = mount.create("durable").await;
    let mut times = Vec::new();
    for write in 0..count {
        let block = noise(1_000_000 + write, 128 << 10);
        let began = clock.monotonic();
        mount.write_at(&file, write * (128 << 10), &block).await;
        times.push(clock.monotonic() - began);
    }
    told(times)
}

/// What the S3 server gives when it is asked for whole packs in parts, many at the same time.
async fn own_rate(s3: &S3) -> f64 {
    let target = Target {
        url: format!("s3://{BUCKET}/cold"),
        options: [
            ("aws_endpoint", format!("http://{}", s3.address)),
            ("aws_access_key_id", KEY.into()),
            ("aws_secret_access_key", SECRET.into()),
            ("aws_region", "us-east-1".into()),
            ("aws_allow_http", "true".into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
        use_options: ObjectOptions::default(),
    };
    let clock = std::sync::Arc::new(SystemClock::new());
    let rng = std::sync::Arc::new(Rng::system().unwrap());
    let objects = connect(&target, clock.clone(), rng).unwrap();
    let mut parts = Vec::new();
    for path in s3.packs("cold") {
        let len = usize::try_from(path.metadata().unwrap().len()).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let pack = PackId(u128::from_str_radix(name, 16).unwrap().to_be_bytes());
        parts.extend(
            (0..len)
                .step_by(2 * MIB)
                .map(|at| (pack, at..(at + 2 * MIB).min(len))),
        );
    }
    let began = clock.monotonic();
    let gets = parts
        .into_iter()
        .map(|(pack, range)| objects.get(pack, range));
    let got: Vec<usize> = stream::iter(gets)
        .buffer_unordered(8)
        .map(|bytes| bytes.unwrap().len())
        .collect()
        .await;
    rate(got.iter().sum(), clock.monotonic() - began)
}

async fn cold(s3: &S3, root: &std::path::Path, mib: usize) {
    let (dir, chunks) = (root.join("cold"), format!("s3://{BUCKET}/cold"));
    let server = Server::start(&dir, &chunks, s3);
    let mut mount = server.mount().await;
    let file = mount.create("large").await;
    for part in 0..mib {
        let (seed, at) = (part.try_into().unwrap(), (part * MIB).try_into().unwrap());
        mount.write_at(&file, at, &noise(seed, MIB)).await;
    }
    packed(&server).await;
    drop((mount, server));
    for (latency, mib_per_second) in [(0, None), (30, Some(20))] {
        let rate = mib_per_second.map(|rate: u64| rate << 20);
        s3.pace_gets(Duration::from_millis(latency), rate);
        match mib_per_second {
            None => println!("an S3 server without limits, on the same processors:"),
            Some(rate) => println!("reads begin after {latency} ms, {rate} MiB/s altogether:"),
        }
        std::fs::remove_dir_all(dir.join("cache")).unwrap();
        compare(s3, &dir, mib).await;
    }
}

async fn compare(s3: &S3, dir: &std::path::Path, mib: usize) {
    let chunks = format!("s3://{BUCKET}/cold");
    let own = own_rate(s3).await;
    let server = Server::start(dir, &chunks, s3);
    let mut mount = server.mount().await;
    let file = mount.find("large").await;
    let clock = SystemClock::new();
    let began = clock.monotonic();
    let mut read = 0;
    while read < mib * MIB {
        let part = mount.read_at(&file, read.try_into().unwrap()).await;
        assert!(!part.is_empty());
        read += part.len();
    }
    let cold = rate(read, clock.monotonic() - began);
    let count = |name: &str| server.metric(&format!("holdfast_object_{name}_total "));
    let received = count("received_bytes") * rate(1, Duration::from_secs(1));
    println!("  {received:.0} MiB received, {} hedges", count("hedges"));
    println!("  its own rate, 8 reads of 2 MiB at a time: {own:.1} MiB/s");
    println!(
        "  one client, cold, {mib} MiB from front to back: {cold:.1} MiB/s, {:.0} % of it",
        cold / own * 100.0
    );
}

fn main() {
    if let Some(code) = as_holdfast() {
        std::process::exit(code);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let root = tempfile::tempdir().unwrap();
        let s3 = S3::start(1).await;
        let count = number("HOLDFAST_BENCH_WRITES", 200);
        println!("{count} durable writes of 128 KiB:");
        for (name, chunks, delay) in [
            ("local", "local".to_owned(), 0),
            ("kv", "kv".to_owned(), 0),
            ("s3", format!("s3://{BUCKET}/fast"), 0),
            (
                "s3, PUTs take 100 ms more",
                format!("s3://{BUCKET}/slow"),
                100,
            ),
        ] {
            s3.delay_puts(Duration::from_millis(delay));
            let server = Server::start(&root.path().join(name), &chunks, &s3);
            println!("  {name}: {}", writes(&server, count).await);
        }
        s3.delay_puts(Duration::ZERO);
        let mib = number("HOLDFAST_BENCH_MIB", 1024);
        cold(&s3, root.path(), mib.try_into().unwrap()).await;
    });
}
