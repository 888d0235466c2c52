//! Finding an order of calls, and of a loss among them, that explains all their answers.

use base::InodeId;
use metadata::FsError;
use system_tests::model::{Model, Verdict};
use system_tests::subject::{Answer, Call, Op};

use crate::codec::{Reply, is_tracked};

/// Explanations gathered at most.
const EXPLANATIONS_MAX: usize = 48;

/// Steps of one search at most.
const STEPS_MAX: usize = 20_000;

/// What may have happened beside the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    /// How often data that was not confirmed may have been lost.
    pub(crate) losses: u64,
    /// The stores take nothing: what changes something is refused.
    pub(crate) full: bool,
}

/// All models that the calls may have led to.
///
/// # Errors
///
/// There is none. Says why the order in which the calls were sent is not one.
pub(crate) fn explain(
    model: &Model,
    calls: &[Call],
    replies: &[Reply],
    beside: Beside,
) -> Result<Vec<Model>, String> {
    let mut search = Search {
        calls,
        replies,
        full: beside.full,
        losses: beside.losses,
        found: Vec::new(),
        steps: 0,
        why: Vec::new(),
    };
    // COMMITs first where both orders explain the answers: they then confirm less.
    let mut left: Vec<usize> = (0..calls.len()).collect();
    left.sort_by_key(|at| !confirms(&calls[*at].op));
    search.go(model, &left, beside.losses, &[]);
    if search.found.is_empty() {
        search.why.dedup();
        search.why.truncate(6);
        Err(search.why.join("\n  or: "))
    } else {
        Ok(search.found)
    }
}

/// Judges one answer, and everything that was shown beside it.
pub(crate) fn judge(model: &mut Model, call: &Call, reply: &Reply, full: bool) -> Verdict {
    if full && reply.answer.error() == Some(FsError::NoSpace) && is_tracked(&call.op) {
        return Ok(());
    }
    model.judge(call, &reply.answer)?;
    for stat in &reply.also_shown {
        model.check_shown(stat)?;
    }
    Ok(())
}

fn confirms(op: &Op) -> bool {
    match op {
        Op::Commit { .. } => true,
        Op::Write { stable, .. } => *stable,
        _ => false,
    }
}

struct Search<'a> {
    calls: &'a [Call],
    replies: &'a [Reply],
    full: bool,
    losses: u64,
    found: Vec<Model>,
    steps: usize,
    why: Vec<String>,
}

impl Search<'_> {
    /// Goes on from `model` with the calls `left`; `untold` are writes that ran without an answer.
    fn go(&mut self, model: &Model, left: &[usize], losses: u64, untold: &[usize]) {
        self.steps += 1;
        if self.found.len() >= EXPLANATIONS_MAX || self.steps > STEPS_MAX {
            return;
        }
        if left.is_empty() {
            self.found.push(model.clone());
            return;
        }
        for at in left {
            let mut next = model.clone();
            let call = &self.calls[*at];
            match judge(&mut next, call, &self.replies[*at], self.full) {
                Ok(()) => {
                    let rest: Vec<usize> = left.iter().copied().filter(|it| it != at).collect();
                    self.go(&next, &rest, losses, untold);
                }
                Err(why) => self.why.push(format!("{:?}: {why}", short(call))),
            }
        }
        if losses == 0 {
            return;
        }
        self.lose(model, left, losses, untold);
        for at in left {
            // Each time that data was lost it may have run once without an answer.
            let ran = untold.iter().filter(|it| *it == at).count();
            if u64::try_from(ran).is_ok_and(|ran| ran >= self.losses) {
                continue;
            }
            let call = &self.calls[*at];
            if let Op::Write {
                inode,
                offset,
                data,
                ..
            } = &call.op
            {
                let mut next = model.clone();
                if next.write_untold(&call.caller, call.now, *inode, *offset, data) {
                    let untold: Vec<usize> = untold.iter().copied().chain([*at]).collect();
                    self.go(&next, left, losses, &untold);
                }
            }
        }
    }

    /// Loses what is not confirmed of the files that the calls left are about, in every way. What
    /// became of the others shows at the end.
    fn lose(&mut self, model: &Model, left: &[usize], losses: u64, untold: &[usize]) {
        let unsettled: Vec<InodeId> = model
            .inodes()
            .map(|(inode, _)| inode)
            .filter(|inode| model.unsettled(*inode) > 0)
            .collect();
        let mut worlds = vec![model.clone()];
        for inode in unsettled {
            let shown = left.iter().any(|at| {
                let reply = &self.replies[*at];
                let shows = |stat: &metadata::stat::Stat| stat.inode == inode;
                self.calls[*at].op.subject() == Some(inode)
                    || reply.answer.attributes().iter().any(shows)
                    || reply.also_shown.iter().any(shows)
                    || matches!(reply.answer, Answer::Removed(_) | Answer::Renamed(_))
            });
            if !shown {
                continue;
            }
            let mut more = Vec::new();
            for world in &worlds {
                for choice in 0..world.fallbacks(inode) {
                    let mut next = world.clone();
                    next.fall_back(inode, choice);
                    more.push(next);
                }
            }
            worlds.extend(more);
            worlds.truncate(EXPLANATIONS_MAX);
        }
        for world in worlds {
            self.go(&world, left, losses - 1, untold);
        }
    }
}

fn short(call: &Call) -> String {
    format!("{:?}", call.op).chars().take(120).collect()
}
