//! Seeds.

use crate::world::{Tally, World};

/// Steps of one seed.
const OPS: usize = 200;
/// Seeds of one test in CI.
const SEEDS: u64 = 75;
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
            let tally = run(seed, ops);
            println!("seed {seed}: {tally:?}");
        }
        return;
    }
    let seeds = number("HOLDFAST_SEEDS").unwrap_or(SEEDS);
    let tallies: Vec<Tally> = (0..seeds)
        .map(|seed| run(share * seeds + seed, ops))
        .collect();
    let sum = |what: fn(&Tally) -> u64| tallies.iter().map(what).sum::<u64>();
    // A test in which nothing happens proves nothing.
    let happened = [
        ("calls", sum(|it| it.calls), seeds * 100),
        ("kills", sum(|it| it.kills), seeds),
        ("replies repeated", sum(|it| it.replayed), seeds),
        (
            "replies from the store",
            sum(|it| it.replayed_from_store),
            seeds / 4,
        ),
        ("forks", sum(|it| it.forks), seeds / 5),
        ("late copies", sum(|it| it.copies), seeds),
        ("loads", sum(|it| it.loads), seeds * 10),
        ("connections paused", sum(|it| it.paused), seeds / 4),
        (
            "refusals of a full store",
            sum(|it| it.refused_full),
            seeds / 2,
        ),
    ];
    for (what, count, least) in happened {
        assert!(count > least, "{what}: only {count} in {seeds} seeds");
    }
}

#[test]
fn random_calls_agree_with_the_model() {
    run_seeds(0);
}

#[test]
fn random_calls_agree_with_the_model_on_more_seeds() {
    run_seeds(1);
}

/// A seed is worth something only if it means the same run each time. The kernel decides when
/// bytes arrive, so one difference in a few runs is let pass.
#[test]
fn a_seed_means_one_run() {
    let same = (0..4).filter(|seed| run(*seed, OPS).digest == run(*seed, OPS).digest);
    assert!(same.count() >= 2);
}

#[test]
fn seeds_that_failed_once() {
    let mut seeds = 0;
    for line in include_str!("regressions.txt").lines() {
        let mut fields = line.split_whitespace();
        if let (Some(Ok(seed)), Some(Ok(ops))) =
            (fields.next().map(str::parse), fields.next().map(str::parse))
        {
            run(seed, ops);
            seeds += 1;
        }
    }
    assert!(seeds > 0);
}
