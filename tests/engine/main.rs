//! The session engine as a whole: the real gateway over sockets, on stores that fail, compared with
//! the model filesystem. `docs/design/0006-engine-tier.md` says what is checked.
//!
//! A failure prints the command that repeats it. By hand, with more seeds or longer runs:
//!
//! ```text
//! HOLDFAST_SEEDS=1000 cargo test -p system-tests --test engine random
//! HOLDFAST_SEED=17 HOLDFAST_OPS=300 HOLDFAST_TRACE=60 cargo test -p system-tests --test engine random
//! ```

#[cfg(test)]
mod client;
#[cfg(test)]
mod clock;
#[cfg(test)]
mod codec;
#[cfg(test)]
mod conflicts;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod forgetful;
#[cfg(test)]
mod full;
#[cfg(test)]
mod inside;
#[cfg(test)]
mod outside;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod run;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod server;
#[cfg(test)]
mod slow_kv;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod told;
#[cfg(test)]
mod world;
