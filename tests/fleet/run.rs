//! Seeds. With `HOLDFAST_LOG=1` the gateways' log of the one that `HOLDFAST_SEED` names is shown.

use std::panic::{AssertUnwindSafe, catch_unwind};

use base::simulation::{Rule, leave_out};

use crate::world::{Tally, World};

/// Steps of one seed.
const OPS: usize = 40;
/// Seeds of one test in CI.
const SEEDS: u64 = 120;
/// Lines shown of a failed run.
const TRACE_LINES: usize = 40;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap())
}

/// Runs one seed.
fn run(seed: u64, ops: usize) -> Result<Tally, String> {
    let mut world = World::new(seed);
    let mut step = 0;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        while step < ops {
            step += 1;
            world.step()?;
        }
        world.finish()
    }));
    let error = match ran {
        Ok(Ok(tally)) => return Ok(tally),
        Ok(Err(error)) => error,
        Err(panic) => {
            let message = panic.downcast_ref::<String>();
            format!("panics: {}", message.map_or("", String::as_str))
        }
    };
    let lines = number("HOLDFAST_TRACE").map_or(TRACE_LINES, |it| usize::try_from(it).unwrap());
    let notes = &world.rig.storm.notes;
    let last = notes.iter().skip(notes.len().saturating_sub(lines));
    let trace: Vec<&str> = last.map(String::as_str).collect();
    Err(format!(
        "seed {seed}, step {step}: {error}\n\nlast of what happened:\n{}\n\nreplay:\n\
         HOLDFAST_SEED={seed} HOLDFAST_OPS={ops} \
         cargo test -p system-tests --test fleet random\n",
        trace.join("\n")
    ))
}

fn ops() -> usize {
    number("HOLDFAST_OPS").map_or(OPS, |ops| usize::try_from(ops).unwrap())
}

/// Runs the share `share` of the seeds.
fn run_seeds(share: u64) {
    if let Some(seed) = number("HOLDFAST_SEED") {
        if share == 0 {
            if number("HOLDFAST_LOG").is_some() {
                let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
                log.without_time().with_ansi(false).init();
            }
            let tally = run(seed, ops()).unwrap_or_else(|error| panic!("{error}"));
            println!("seed {seed}: {tally:?}");
        }
        return;
    }
    let first = number("HOLDFAST_FIRST").unwrap_or(0);
    let seeds = number("HOLDFAST_SEEDS").unwrap_or(SEEDS);
    let mut failed = Vec::new();
    let mut tallies = Vec::new();
    for seed in first + share * seeds..first + (share + 1) * seeds {
        match run(seed, ops()) {
            Ok(tally) => tallies.push(tally),
            Err(error) => failed.push(error),
        }
        assert!(failed.len() < 3, "{}", failed.join("\n"));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let sum = |what: fn(&Tally) -> u64| tallies.iter().map(what).sum::<u64>();
    // A test in which nothing happens proves nothing.
    let happened = [
        ("calls", sum(|it| it.calls)),
        ("copies", sum(|it| it.copies)),
        ("kills", sum(|it| it.happened.kills)),
        ("freezes", sum(|it| it.happened.freezes)),
        ("cuts from the store", sum(|it| it.happened.store_cuts)),
        (
            "cuts from other gateways",
            sum(|it| it.happened.network_cuts),
        ),
        ("connection cuts", sum(|it| it.happened.connection_cuts)),
        ("drains", sum(|it| it.happened.drains)),
        ("takeovers", sum(|it| it.counted.takeovers)),
        (
            "taken from the living",
            sum(|it| it.counted.taken_from_living),
        ),
        ("passed on", sum(|it| it.counted.passed_on)),
        ("passed back", sum(|it| it.counted.passed_back)),
        ("replayed", sum(|it| it.counted.replayed)),
        (
            "replayed from the store",
            sum(|it| it.counted.replayed_from_store),
        ),
        ("lapses", sum(|it| it.counted.lapses)),
        ("waits for the lease", sum(|it| it.counted.lease_waits)),
        ("fenced", sum(|it| it.counted.fenced)),
        ("notices", sum(|it| it.counted.notices)),
        ("let go", sum(|it| it.counted.let_go)),
    ];
    println!("{seeds} seeds: {happened:?}");
    for (what, count) in happened {
        assert!(count > 0, "{what}: none in {seeds} seeds");
    }
}

#[test]
fn random_storms_agree_with_the_model() {
    run_seeds(0);
}

#[test]
fn random_storms_agree_with_the_model_on_more_seeds() {
    run_seeds(1);
}

#[test]
fn seeds_that_failed_once() {
    let mut seeds = 0;
    for line in include_str!("regressions.txt").lines() {
        let mut fields = line.split_whitespace();
        if let (Some(Ok(seed)), Some(Ok(ops))) =
            (fields.next().map(str::parse), fields.next().map(str::parse))
        {
            run(seed, ops).unwrap_or_else(|error| panic!("{error}"));
            seeds += 1;
        }
    }
    assert!(seeds > 0);
}

/// Seeds that are tried until one fails without a rule.
const SEEDS_WITHOUT: u64 = 400;

/// Runs seeds until one fails without a rule; says how.
fn fails_without(rule: Rule) -> String {
    leave_out(Some(rule));
    let seeds = number("HOLDFAST_SEEDS").unwrap_or(SEEDS_WITHOUT);
    let failed = (0..seeds).find_map(|seed| run(seed, ops()).err());
    leave_out(None);
    let failed = failed.unwrap_or_else(|| panic!("{seeds} seeds agree without {rule:?}"));
    println!("without {rule:?}: {}", failed.lines().next().unwrap());
    failed
}

#[test]
fn it_fails_if_gateways_answer_without_a_lease() {
    fails_without(Rule::Lease);
}

#[test]
fn it_fails_if_gateways_do_not_look_after_a_lapse() {
    fails_without(Rule::Look);
}

#[test]
fn it_fails_if_nobody_waits_for_notices() {
    fails_without(Rule::Wait);
}

#[test]
fn it_fails_if_the_dead_stay_dead_whatever_their_counter_is() {
    fails_without(Rule::Counter);
}

#[test]
fn it_fails_without_the_fence() {
    fails_without(Rule::Fence);
}

#[test]
fn it_fails_if_stored_replies_are_not_loaded() {
    fails_without(Rule::StoredReplies);
}

#[test]
fn it_fails_if_calls_begin_whose_connection_has_ended() {
    fails_without(Rule::Ended);
}
