//! What policies let go, and what they never do.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use base::{GatewayId, SessionId};
use bytes::Bytes;

use super::*;
use crate::image::Totals;
use crate::kv::{Isolation, KeyRange, RangeLimit};
use crate::record::call::Holder;
use crate::record::retention::Policy;
use crate::session::{Exchange, FlushBatch, FlushError, Taker, take_over};
use crate::store::{BegunCall, CallId, CallLimits, KeyedCall, OpenSession};
use crate::tree::{MemoryTrees, Root};
use crate::{keyspace, keyspace::Key};

const HOUR: u64 = 3600;

fn policy(hours: u64, last: u64) -> Option<Policy> {
    Some(Policy {
        keep_seconds: hours * HOUR,
        keep_last: last,
    })
}

impl World {
    async fn keep(&self, policy: Option<Policy>) {
        self.store
            .set_retention(self.workspace, policy)
            .await
            .unwrap();
    }

    /// Removes all that the policy lets go.
    async fn expire(&self) -> (u64, u64) {
        let mut expired = self.store.expired(self.workspace).await.unwrap();
        let logs = self.store.remove_old_entries(&expired).await.unwrap();
        let mut removed = 0;
        while !expired.commits().is_empty() {
            removed += self
                .store
                .remove_expired(&mut expired)
                .await
                .unwrap()
                .unwrap();
            self.assert_clean().await;
        }
        (removed, logs.operations + logs.ref_entries)
    }

    pub(super) async fn stored(&self) -> BTreeSet<CommitId> {
        let mut stored = BTreeSet::new();
        let mut range = keyspace::commits_of(self.workspace);
        loop {
            let txn = self.kv.begin();
            let page = txn
                .get_range(&range, RangeLimit::pairs(500), Isolation::Snapshot)
                .await
                .unwrap();
            for (key, _) in &page.pairs {
                if let Ok(Key::Commit(_, id)) = keyspace::decode(key) {
                    stored.insert(id);
                }
            }
            match page.pairs.last() {
                Some((last, _)) if page.more => range.start = KeyRange::key(last).end,
                _ => return stored,
            }
        }
    }

    async fn open_at(&self, commit: Option<CommitId>) -> Result<SessionId, StoreError> {
        let open = OpenSession {
            version: commit.map(|commit| commit.to_string()),
            ..OpenSession::new("w")
        };
        let opened = self.store.open_session(TenantId::DEFAULT, open).await?;
        Ok(opened.session.id)
    }

    async fn close_all(&self) {
        let sessions = self.store.sessions(TenantId::DEFAULT, None, None, 9).await;
        for session in sessions.unwrap() {
            let closed = self.store.close_session(TenantId::DEFAULT, session.id);
            closed.await.unwrap();
        }
    }

    /// Gives a session another image, as a restore from outside does, and says that it had the one
    /// of this commit.
    async fn exchange(&self, id: SessionId, before: CommitId) -> Result<(), FlushError> {
        self.exchange_for(id, before, None).await
    }

    /// The same as all of a call.
    async fn exchange_for(
        &self,
        id: SessionId,
        before: CommitId,
        call: Option<KeyedCall>,
    ) -> Result<(), FlushError> {
        let trees = MemoryTrees::default();
        let owner = take_over(
            self.kv.as_ref(),
            &trees,
            id,
            Taker::alone(GatewayId::new(1), 1),
        );
        let mut owner = owner.await.unwrap();
        let restored = Action::SessionRestored {
            session: id,
            before: Some(before),
            after: None,
        };
        let exchange = Exchange {
            root: Root::from_bytes([7; 32]),
            commit: owner.session.commit,
            commit_after: owner.session.commit,
            changed: Vec::new(),
            operation: self.store.new_operation(),
            time: self.clock_wall(),
            log: self.store.log_entry(restored),
            call,
        };
        let batch = FlushBatch {
            totals: Totals {
                numbers: owner.totals.numbers,
                ..Totals::default()
            },
            exchange: Some(Box::new(exchange)),
            ..FlushBatch::default()
        };
        let flushed = owner
            .fence
            .flush(self.kv.as_ref(), &owner.layers, &batch)
            .await;
        flushed.map(drop)
    }
}

#[tokio::test]
async fn without_a_policy_nothing_is_let_go() {
    let world = World::new().await;
    world.commit("left behind", &[]).await;
    world.pass(1_000_000_000);
    let expired = world.store.expired(world.workspace).await.unwrap();
    assert!(expired.commits().is_empty());
    assert_eq!(world.expire().await, (0, 0));
    let workspaces = world.store.workspaces_with_policy().await.unwrap();
    assert!(workspaces.is_empty());
    let short = Some(Policy {
        keep_seconds: HOUR - 1,
        keep_last: 0,
    });
    let refused = world.store.set_retention(world.workspace, short).await;
    assert!(matches!(refused, Err(StoreError::Invalid { .. })));
    world.keep(policy(1, 0)).await;
    let workspaces = world.store.workspaces_with_policy().await.unwrap();
    assert_eq!(workspaces, [world.workspace]);
    assert_eq!(world.expire().await.0, 1);
    world.keep(None).await;
    let workspaces = world.store.workspaces_with_policy().await.unwrap();
    assert!(workspaces.is_empty());
}

#[tokio::test]
async fn what_somebody_needs_stays_with_all_it_comes_from() {
    let world = World::new().await;
    world.keep(policy(1, 0)).await;
    let root = world.commit("root", &[]).await;
    let main = world.commit("main", &[root]).await;
    world.create("main", main).await;
    let of_session = world.commit("session", &[root]).await;
    let below_pin = world.commit("below pin", &[]).await;
    let pinned = world.commit("pinned", &[below_pin]).await;
    let left = world.commit("left", &[main]).await;
    let on_left = world.commit("on left", &[left]).await;
    let session = world.open_at(Some(of_session)).await.unwrap();
    world
        .store
        .pin(world.workspace, pinned, "release")
        .await
        .unwrap();
    // All is young.
    assert_eq!(world.expire().await, (0, 0));
    world.pass(2 * HOUR);
    let young = world.commit("young", &[]).await;
    assert_eq!(world.expire().await.0, 2);
    let needed: BTreeSet<_> = [root, main, of_session, below_pin, pinned, young].into();
    assert_eq!(world.stored().await, needed);
    for gone in [left, on_left] {
        let refused = world.open_at(Some(gone)).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotFound { .. }), "{refused}");
    }
    // What they needed it for is over.
    let closed = world.store.close_session(TenantId::DEFAULT, session);
    closed.await.unwrap();
    world.store.unpin(world.workspace, pinned).await.unwrap();
    let again = world.store.unpin(world.workspace, pinned).await;
    assert!(matches!(again, Err(StoreError::NotFound { .. })));
    world.pass(2 * HOUR);
    assert_eq!(world.expire().await.0, 4);
    assert_eq!(world.stored().await, [root, main].into());
    world.assert_clean().await;
}

#[tokio::test]
async fn the_newest_stay_whatever_their_age() {
    let world = World::new().await;
    world.keep(policy(1, 3)).await;
    let mut made = Vec::new();
    for number in 0..6 {
        made.push(world.commit(&number.to_string(), &[]).await);
        world.pass(1);
    }
    world.pass(5 * HOUR);
    assert_eq!(world.expire().await.0, 3);
    assert_eq!(world.stored().await, made[3..].iter().copied().collect());
    // More than one transaction's worth.
    for number in 0..450 {
        world.commit(&format!("many {number}"), &[]).await;
        world.pass(1);
    }
    world.pass(5 * HOUR);
    assert_eq!(world.expire().await.0, 450);
    assert_eq!(world.stored().await.len(), 3);
}

/// What a branch was is kept as long as it can be asked for and undone, and then said to be gone.
#[tokio::test]
async fn undoing_what_is_older_is_refused_with_the_reason() {
    let world = World::new().await;
    world.keep(policy(2, 0)).await;
    let one = world.commit("one", &[]).await;
    let two = world.commit("two", &[]).await;
    let made = world.create("main", one).await;
    world.pass(HOUR);
    let moved = world.go("main", one, two).await.unwrap();
    world.pass(90 * 60);
    // What `main` was two hours ago is still known.
    world.expire().await;
    assert_eq!(world.stored().await, [one, two].into());
    let before = Timestamp::new(START.seconds() + 60, 0);
    let was = world
        .store
        .reference_at(world.workspace, &named("main"), before)
        .await;
    assert_eq!(was.unwrap().commit, one);
    let undone = world.store.undo(world.workspace, moved).await.unwrap();
    let moved = world.store.undo(world.workspace, undone).await.unwrap();
    world.pass(5 * HOUR);
    let (commits, entries) = world.expire().await;
    assert!(commits == 1 && entries > 4, "{commits} {entries}");
    assert_eq!(world.stored().await, [two].into());
    for (id, part) in [(moved, "cannot be undone"), (made, "no such operation")] {
        let refused = world.store.undo(world.workspace, id).await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(part), "{refused}");
        assert!(refused.contains("retention"), "{refused}");
    }
    let was = world
        .store
        .reference_at(world.workspace, &named("main"), before)
        .await
        .unwrap_err();
    assert!(was.to_string().contains("retention keeps"), "{was}");
    // What it says is said since long ago.
    let log = world
        .store
        .reference_log(world.workspace, &named("main"), None, 9)
        .await
        .unwrap();
    assert_eq!(log.len(), 1);
    assert_eq!(log[0].operation, moved);
    world.assert_clean().await;
    // A branch that was removed leaves nothing.
    world.create("gone", two).await;
    world
        .store
        .delete_ref(world.workspace, &named("gone"), two)
        .await
        .unwrap();
    world.pass(5 * HOUR);
    world.expire().await;
    let log = world
        .store
        .reference_log(world.workspace, &named("gone"), None, 9)
        .await
        .unwrap();
    assert!(log.is_empty());
    world.create("gone", two).await;
    world.assert_clean().await;
}

/// Whoever names a commit that is about to go keeps it, or is told that it is gone.
#[tokio::test]
async fn naming_what_is_to_go_stops_its_removal() {
    let world = World::new().await;
    world.keep(policy(1, 0)).await;
    let base = world.commit("base", &[]).await;
    let tip = world.commit("tip", &[base]).await;
    world.pass(2 * HOUR);
    let names = ["ref", "pin", "session", "policy", "log", "restore"];
    for name in names {
        let mut expired = world.store.expired(world.workspace).await.unwrap();
        assert_eq!(expired.commits(), [tip, base]);
        match name {
            "ref" => drop(world.create("late", base).await),
            "pin" => drop(world.store.pin(world.workspace, base, "").await.unwrap()),
            "session" => drop(world.open_at(Some(base)).await.unwrap()),
            // It is gone again, but what was logged of it can be asked for.
            "log" => {
                world.open_at(Some(base)).await.unwrap();
                world.close_all().await;
            }
            "restore" => {
                let session = world.open_at(None).await.unwrap();
                world.exchange(session, base).await.unwrap();
            }
            _ => world.keep(policy(3, 0)).await,
        }
        let removed = world.store.remove_expired(&mut expired).await.unwrap();
        assert_eq!(removed, None, "{name}");
        assert_eq!(world.stored().await.len(), 2);
        match name {
            "ref" => drop(
                world
                    .store
                    .delete_ref(world.workspace, &named("late"), base)
                    .await
                    .unwrap(),
            ),
            "pin" => world.store.unpin(world.workspace, base).await.unwrap(),
            "session" | "log" | "restore" => world.close_all().await,
            _ => world.keep(policy(1, 0)).await,
        }
        // What was done is itself kept for a while.
        world.pass(2 * HOUR);
    }
    let mut expired = world.store.expired(world.workspace).await.unwrap();
    let removed = world.store.remove_expired(&mut expired).await.unwrap();
    assert_eq!(removed, Some(2));
    let late = world
        .store
        .create_ref(world.workspace, &named("later"), branch(tip), Cause::Asked)
        .await;
    assert!(matches!(late, Err(StoreError::NotFound { .. })));
    let late = world.store.pin(world.workspace, tip, "").await;
    assert!(matches!(late, Err(StoreError::NotFound { .. })));
    let session = world.open_at(None).await.unwrap();
    let late = world.exchange(session, base).await;
    assert!(matches!(late, Err(FlushError::Gone)), "{late:?}");
    world.assert_clean().await;
}

/// Bug: an exchange whose call was done already, or whose record was damaged, told of a commit that was
/// removed.
#[tokio::test]
async fn an_exchange_whose_answer_cannot_be_kept_says_why() {
    let world = World::new().await;
    let base = world.commit("base", &[]).await;
    let session = world.open_at(None).await.unwrap();
    let id = CallId {
        tenant: TenantId::DEFAULT,
        key: [1; 32],
        request: [1; 32],
    };
    let holder = Holder {
        process: 1,
        attempt: 1,
    };
    let limits = CallLimits {
        keys: 9,
        bytes: 9999,
    };
    let begun = world.store.begin_call(id, holder, limits, |_| false).await;
    let BegunCall::Run(call) = begun.unwrap() else {
        panic!("it runs");
    };
    let call = call.answered_by(|(): &()| (200, Bytes::new()));
    let exchanged = world.exchange_for(session, base, Some(call.clone())).await;
    assert_eq!(exchanged, Ok(()));
    let again = world.exchange_for(session, base, Some(call.clone())).await;
    assert_eq!(again, Err(FlushError::Call(StoreError::Settled)));
    let mut txn = world.kv.begin();
    txn.set(&keyspace::call(id.tenant, &id.key), b"damaged");
    txn.commit().await.unwrap();
    let damaged = world.exchange_for(session, base, Some(call)).await;
    let is_told = matches!(
        &damaged,
        Err(FlushError::Call(StoreError::Corrupt { what, .. })) if what == "idempotency key"
    );
    assert!(is_told, "{damaged:?}");
    assert!(damaged.unwrap_err().to_string().contains("idempotency key"));
}

/// Bug: entries of logs went by a policy that was not there any more.
#[tokio::test]
async fn another_policy_stops_the_removal_of_entries() {
    let world = World::new().await;
    world.keep(policy(1, 0)).await;
    let commit = world.commit("base", &[]).await;
    world.create("main", commit).await;
    for _ in 0..3 {
        world.open_at(Some(commit)).await.unwrap();
        world.close_all().await;
    }
    world.pass(2 * HOUR);
    let expired = world.store.expired(world.workspace).await.unwrap();
    for other in [None, policy(9, 0)] {
        world.keep(other).await;
        let removed = world.store.remove_old_entries(&expired).await.unwrap();
        assert_eq!(removed, LogsRemoved::default(), "{other:?}");
        let kept = world.store.retention(world.workspace).await.unwrap();
        assert_eq!((kept.policy, kept.horizon), (other, None));
        let entries = world.store.operations(world.workspace, None, 100).await;
        assert_eq!(entries.unwrap().len(), 7, "{other:?}");
    }
    world.keep(policy(1, 0)).await;
    let removed = world.store.remove_old_entries(&expired).await.unwrap();
    assert_eq!(removed.operations, 6);
    world.assert_clean().await;
}

/// A transaction removes many commits, and the newest first.
#[tokio::test]
async fn many_commits_go_in_few_transactions() {
    let world = World::new().await;
    world.keep(policy(1, 0)).await;
    let mut tip = world.commit("0", &[]).await;
    for number in 1..1100 {
        tip = world.commit(&number.to_string(), &[tip]).await;
    }
    world.pass(2 * HOUR);
    let mut expired = world.store.expired(world.workspace).await.unwrap();
    assert_eq!(expired.commits().len(), 1100);
    let removed = world.store.remove_expired(&mut expired).await.unwrap();
    assert_eq!(removed, Some(1000));
    assert_eq!(expired.commits().len(), 100);
    world.assert_clean().await;
    let removed = world.store.remove_expired(&mut expired).await.unwrap();
    assert_eq!((removed, expired.commits()), (Some(100), &[][..]));
    let removed = world.store.remove_expired(&mut expired).await.unwrap();
    assert_eq!((removed, world.stored().await.len()), (Some(0), 0));
}

/// Everything that a workspace had, by itself: no retention.
#[derive(Default)]
struct Model {
    commits: BTreeMap<CommitId, (Timestamp, Vec<CommitId>)>,
    refs: BTreeMap<String, Vec<(Timestamp, Option<CommitId>)>>,
    sessions: BTreeMap<SessionId, Option<CommitId>>,
    pins: BTreeSet<CommitId>,
}

impl Model {
    /// What has to be there, by the words of the design.
    fn needed(
        &self,
        operations: &[OperationInfo],
        now: Timestamp,
        policy: Policy,
    ) -> BTreeSet<CommitId> {
        let cutoff = Timestamp::new(now.seconds() - policy.keep_seconds, now.nanos());
        let mut wanted: Vec<CommitId> = self.pins.iter().copied().collect();
        wanted.extend(self.sessions.values().flatten());
        for log in self.refs.values() {
            let last = log.last().unwrap();
            wanted.extend(last.1);
            for (at, (_, said)) in log.iter().enumerate() {
                // Until the next one.
                let until = log.get(at + 1).map_or(now, |(time, _)| *time);
                if until > cutoff {
                    wanted.extend(said);
                }
            }
        }
        for operation in operations {
            if operation.time >= cutoff {
                let text = format!("{:?}", operation.record.action);
                let named = self.commits.keys();
                wanted.extend(named.filter(|id| text.contains(&format!("{id:?}"))));
            }
        }
        let mut by_time: Vec<_> = self.commits.iter().map(|(id, at)| (at.0, *id)).collect();
        by_time.sort();
        by_time.reverse();
        let last = usize::try_from(policy.keep_last).unwrap();
        wanted.extend(by_time.iter().take(last).map(|(_, id)| *id));
        wanted.extend(
            by_time
                .iter()
                .filter(|(time, _)| *time >= cutoff)
                .map(|(_, id)| *id),
        );
        let mut needed = BTreeSet::new();
        while let Some(id) = wanted.pop() {
            if let Some((_, parents)) = self.commits.get(&id)
                && needed.insert(id)
            {
                wanted.extend(parents);
            }
        }
        needed
    }
}

async fn step(world: &World, model: &mut Model, rng: &Rng) {
    let pick = |of: usize| usize::try_from(rng.u64()).unwrap_or(0) % of.max(1);
    let ids: Vec<CommitId> = model.commits.keys().copied().collect();
    let any = || ids.get(pick(ids.len())).copied();
    let now = || world.clock_wall();
    match pick(12) {
        0..4 => {
            let parents: Vec<_> = match pick(3) {
                0 => Vec::new(),
                _ => any().into_iter().collect(),
            };
            let id = world.commit(&format!("{}", rng.u64()), &parents).await;
            let time = world.store.commit(world.workspace, id).await.unwrap();
            model.commits.insert(id, (time.record.time, parents));
        }
        4 | 5 => {
            let name = format!("b{}", pick(4));
            let at = world.at(&name).await.map(|state| state.commit);
            let to = any();
            let done = match (at, to) {
                (None, Some(to)) => {
                    world.create(&name, to).await;
                    Some(to)
                }
                (Some(from), Some(to)) if pick(3) > 0 && from != to => {
                    world.go(&name, from, to).await.unwrap();
                    Some(to)
                }
                (Some(from), _) => {
                    let name = named(&name);
                    let gone = world.store.delete_ref(world.workspace, &name, from);
                    gone.await.unwrap();
                    None
                }
                (None, None) => return,
            };
            let log = model.refs.entry(name).or_default();
            let time = log.last().map_or(now(), |(last, _)| now().max(last.tick()));
            log.push((time, done));
        }
        6 => {
            let at = any();
            if at.is_some() {
                let id = world.open_at(at).await.unwrap();
                model.sessions.insert(id, at);
            }
        }
        7 => {
            if let Some((id, _)) = model.sessions.pop_first() {
                let closed = world.store.close_session(TenantId::DEFAULT, id);
                closed.await.unwrap();
            }
        }
        8 => {
            if let Some(id) = any() {
                world.store.pin(world.workspace, id, "").await.unwrap();
                model.pins.insert(id);
            }
        }
        9 => {
            if let Some(id) = model.pins.pop_first() {
                world.store.unpin(world.workspace, id).await.unwrap();
            }
        }
        _ => world.pass(rng.u64() % HOUR),
    }
}

impl World {
    fn clock_wall(&self) -> Timestamp {
        use base::Clock;
        self.clock.wall()
    }
}

#[tokio::test]
async fn at_random_exactly_what_is_needed_stays() {
    let (mut removed, mut stale) = (0, 0);
    for seed in 0..8 {
        let rng = Rng::seeded(seed);
        let world = World::new().await;
        let policy = Policy {
            keep_seconds: HOUR * (1 + seed % 3),
            keep_last: seed % 4,
        };
        world.keep(Some(policy)).await;
        let mut model = Model::default();
        let mut operations: Vec<OperationInfo> = Vec::new();
        for round in 0..30 {
            for _ in 0..6 {
                step(&world, &mut model, &rng).await;
            }
            let logged = world.store.operations(world.workspace, None, 500).await;
            for operation in logged.unwrap() {
                if !operations.contains(&operation) {
                    operations.push(operation);
                }
            }
            let mut expired = world.store.expired(world.workspace).await.unwrap();
            if rng.u64().is_multiple_of(3) {
                // Something happens in between.
                let going: HashSet<_> = expired.commits().iter().copied().collect();
                for _ in 0..3 {
                    step(&world, &mut model, &rng).await;
                }
                if world
                    .store
                    .remove_expired(&mut expired)
                    .await
                    .unwrap()
                    .is_none()
                {
                    stale += 1;
                }
                let stored = world.stored().await;
                model.commits.retain(|id, _| stored.contains(id));
                assert!(stored.len() >= model.commits.len());
                world.assert_clean().await;
                drop(going);
                continue;
            }
            let needed = model.needed(&operations, world.clock_wall(), policy);
            removed += world.expire().await.0;
            assert_eq!(world.stored().await, needed, "seed {seed} round {round}");
            model.commits.retain(|id, _| needed.contains(id));
        }
        world.assert_clean().await;
    }
    assert!(removed > 50 && stale > 3, "{removed} {stale}");
}
