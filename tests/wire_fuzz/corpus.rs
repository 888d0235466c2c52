//! The kept streams, and how they are changed.

use std::path::Path;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// One stream of the corpus.
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) outcome: String,
    pub(crate) stream: Vec<u8>,
}

pub(crate) fn corpus() -> Vec<Sample> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut samples: Vec<Sample> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| sample(&entry.unwrap().path()))
        .collect();
    samples.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(samples.len() > 50, "the corpus is not there");
    samples
}

fn sample(path: &Path) -> Sample {
    let text = std::fs::read_to_string(path).unwrap();
    let outcome = text
        .lines()
        .find_map(|line| line.strip_prefix("# outcome: "));
    let digits: Vec<u8> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::bytes)
        .collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    Sample {
        name: path.file_stem().unwrap().to_string_lossy().into_owned(),
        outcome: outcome.expect("a sample says what it comes to").to_owned(),
        stream: digits.chunks(2).map(byte).collect(),
    }
}

/// Numbers that lengths, counts and flags are likely to trip over.
const INTERESTING: [u32; 16] = [
    0,
    1,
    2,
    3,
    16,
    17,
    64,
    65,
    255,
    400,
    401,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_fffc,
    0xffff_ffff,
];

/// Changes a stream a little, or a lot.
pub(crate) fn mutate(rng: &mut ChaCha8Rng, samples: &[Sample]) -> Vec<u8> {
    let mut stream = pick(rng, samples).stream.clone();
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..=stream.len());
        match rng.random_range(0..9) {
            0 => flip(rng, &mut stream, at),
            1 | 2 => overwrite(&mut stream, at & !3, INTERESTING[rng.random_range(0..16)]),
            3 => overwrite(&mut stream, at & !3, rng.random()),
            4 => stream.truncate(at),
            5 => {
                let inserted: Vec<u8> =
                    (0..rng.random_range(1..40)).map(|_| rng.random()).collect();
                stream.splice(at..at, inserted);
            }
            6 => {
                let until = stream.len().min(at + rng.random_range(1..200));
                stream.drain(at..until);
            }
            7 => {
                let other = &pick(rng, samples).stream;
                let from = rng.random_range(0..=other.len());
                stream.truncate(at);
                stream.extend_from_slice(&other[from..]);
            }
            _ => fix_mark(&mut stream),
        }
    }
    // Mostly the record layer should be passed, or nothing behind it is ever reached.
    if rng.random_ratio(3, 4) {
        fix_mark(&mut stream);
    }
    stream
}

fn pick<'a>(rng: &mut ChaCha8Rng, samples: &'a [Sample]) -> &'a Sample {
    &samples[rng.random_range(0..samples.len())]
}

pub(crate) fn flip(rng: &mut ChaCha8Rng, stream: &mut [u8], at: usize) {
    if let Some(byte) = stream.get_mut(at) {
        *byte ^= 1 << rng.random_range(0..8);
    }
}

fn overwrite(stream: &mut [u8], at: usize, word: u32) {
    if let Some(place) = stream.get_mut(at..at + 4) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

/// Makes one record of the whole stream.
fn fix_mark(stream: &mut [u8]) {
    if let Some(length) = stream.len().checked_sub(4) {
        let length = u32::try_from(length).unwrap();
        overwrite(stream, 0, 0x8000_0000 | length);
    }
}

pub(crate) fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}
