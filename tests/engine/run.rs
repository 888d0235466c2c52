//! Seeds.

use crate::world::{Tally, World};

/// Steps of one seed.
const OPS: usize = 150;
/// Seeds of one test in CI.
const SEEDS: u64 = 40;
/// Steps shown of a failed run.
const TRACE_STEPS: usize = 30;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap())
}

/// Runs one seed.
fn run(seed: u64, ops: usize) -> Tally {
    let steps = number("HOLDFAST_TRACE").map_or(TRACE_STEPS, |it| usize::try_from(it).unwrap());
    let mut world = World::new(seed, steps);
    for step in 0..ops {
        if let Err(error) = world.step() {
            report(seed, step + 1, &world, &error);
        }
    }
    if let Err(error) = world.finish() {
        report(seed, ops, &world, &error);
    }
    world.tally
}

fn report(seed: u64, ops: usize, world: &World, error: &str) -> ! {
    let trace: Vec<&str> = world.trace.iter().map(String::as_str).collect();
    panic!(
        "seed {seed}, step {ops}: {error}\n\n{}\n\nlast steps:\n{}\n\nreplay:\n\
         HOLDFAST_SEED={seed} HOLDFAST_OPS={ops} \
         cargo test -p system-tests --test engine random\n",
        world.setting,
        trace.join("\n")
    );
}

/// Runs the share `share` of the seeds.
fn run_seeds(share: u64) {
    let ops = number("HOLDFAST_OPS").map_or(OPS, |ops| usize::try_from(ops).unwrap());
    if let Some(seed) = number("HOLDFAST_SEED") {
        if share == 0 {
            run(seed, ops);
        }
        return;
    }
    let seeds = number("HOLDFAST_SEEDS").unwrap_or(SEEDS);
    let (mut calls, mut forks) = (0, 0);
    for seed in 0..seeds {
        let tally = run(share * seeds + seed, ops);
        calls += tally.calls;
        forks += tally.forks;
    }
    // A test that makes no calls proves nothing.
    assert!(calls > seeds * 50, "{calls} calls in {seeds} seeds");
    assert!(forks >= seeds / 5, "{forks} forks in {seeds} seeds");
}

#[test]
fn random_calls_agree_with_the_model() {
    run_seeds(0);
}

#[test]
fn random_calls_agree_with_the_model_on_more_seeds() {
    run_seeds(1);
}
