//! A fleet of gateways as a whole: three real ones on one store, which die, stand still, are cut off
//! and drained, and clients that are connected to any of them. Everything that clients see is compared
//! with the model filesystem. `docs/design/0015-fleet.md` says what is checked.
//!
//! A failure prints the command that repeats it. By hand, with more seeds or longer runs:
//!
//! ```text
//! HOLDFAST_SEEDS=1000 cargo test -p system-tests --test fleet random
//! HOLDFAST_SEED=17 HOLDFAST_OPS=60 HOLDFAST_TRACE=60 cargo test -p system-tests --test fleet random
//! ```

#[cfg(test)]
#[path = "../engine/client.rs"]
#[expect(
    dead_code,
    reason = "shared with the tier `engine`, which uses the rest"
)]
mod client;
#[cfg(test)]
#[path = "../engine/clock.rs"]
#[expect(
    dead_code,
    reason = "shared with the tier `engine`, which uses the rest"
)]
mod clock;
#[cfg(test)]
#[path = "../engine/codec.rs"]
#[expect(
    dead_code,
    reason = "shared with the tier `engine`, which uses the rest"
)]
mod codec;
#[cfg(test)]
mod drifting;
#[cfg(test)]
#[path = "../engine/explain.rs"]
mod explain;
#[cfg(test)]
mod gateways;
#[cfg(test)]
mod relay;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod run;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
#[path = "../engine/slow_kv.rs"]
#[expect(
    dead_code,
    reason = "shared with the tier `engine`, which uses the rest"
)]
mod slow_kv;
#[cfg(test)]
mod storm;
#[cfg(test)]
#[path = "../engine/told.rs"]
mod told;
#[cfg(test)]
mod wire;
#[cfg(test)]
mod world;
