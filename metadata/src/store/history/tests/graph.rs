//! Walks over histories, compared with sets.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// A history, and what comes from what.
#[derive(Default)]
struct Graph {
    commits: Vec<CommitId>,
    parents: BTreeMap<CommitId, Vec<CommitId>>,
    times: BTreeMap<CommitId, Timestamp>,
    /// Those that sessions made.
    of_sessions: BTreeMap<CommitId, u64>,
}

impl Graph {
    /// Makes a history at random: mostly lines of work, some merges, some new beginnings; commits
    /// at the same time, and clocks that differ.
    async fn random(world: &World, rng: &Rng, count: u64) -> Self {
        let mut graph = Self::default();
        for number in 0..count {
            let pick = |of: u64| rng.u64() % of;
            if pick(3) == 0 {
                world.clock.set_wall(START.plus_seconds(pick(40)));
            }
            let known = graph.commits.len();
            // Of the newest, so that lines are long.
            let from = known.saturating_sub(6);
            let wanted = match pick(10) {
                0 => 0,
                1..=5 => 1,
                6..=8 => 2,
                _ => 3,
            };
            let mut parents = Vec::new();
            for _ in 0..wanted {
                if known > 0 {
                    let at =
                        from + usize::try_from(pick(u64::try_from(known - from).unwrap())).unwrap();
                    let parent = graph.commits[at];
                    if !parents.contains(&parent) {
                        parents.push(parent);
                    }
                }
            }
            let mut new = new_commit(&number.to_string(), &parents);
            new.provenance.agent = ["x", "y"][usize::try_from(pick(2)).unwrap()].into();
            let by = (pick(3) == 0).then(|| pick(2));
            new.provenance.session = by.map(base::SessionId::new);
            let made = world.store.put_commit(world.workspace, new).await.unwrap();
            graph.commits.push(made.id);
            if let Some(by) = by {
                graph.of_sessions.insert(made.id, by);
            }
            graph.parents.insert(made.id, parents);
            graph.times.insert(made.id, made.record.time);
        }
        graph
    }

    /// What a commit comes from, with it.
    fn ancestors(&self, of: CommitId) -> BTreeSet<CommitId> {
        let mut found = BTreeSet::new();
        let mut rest = vec![of];
        while let Some(id) = rest.pop() {
            if found.insert(id) {
                rest.extend(&self.parents[&id]);
            }
        }
        found
    }

    fn newest_first(&self, ids: impl IntoIterator<Item = CommitId>) -> Vec<CommitId> {
        let mut ids: Vec<_> = ids.into_iter().collect();
        ids.sort_by_key(|id| std::cmp::Reverse((self.times[id], *id)));
        ids
    }

    /// Whether a session, or this one, made one of the beginnings of what a commit comes from.
    fn began_empty(&self, of: CommitId, by: Option<u64>) -> bool {
        let beginnings = self.ancestors(of).into_iter();
        let mut beginnings = beginnings.filter(|id| self.parents[id].is_empty());
        beginnings.any(|id| {
            let made = self.of_sessions.get(&id);
            made.is_some_and(|made| by.is_none_or(|by| by == *made))
        })
    }

    fn merge_bases(&self, one: CommitId, two: CommitId) -> Vec<CommitId> {
        let (one, two) = (self.ancestors(one), self.ancestors(two));
        let common: BTreeSet<_> = one.intersection(&two).copied().collect();
        let best = common.iter().copied().filter(|id| {
            let is_below = |other: &CommitId| other != id && self.ancestors(*other).contains(id);
            !common.iter().any(is_below)
        });
        self.newest_first(best)
    }
}

/// All pages of a log, and how many there were.
async fn pages(world: &World, mut query: LogQuery) -> (Vec<CommitId>, usize) {
    let (mut ids, mut count) = (Vec::new(), 0);
    loop {
        let page = world
            .store
            .log(world.workspace, query.clone())
            .await
            .unwrap();
        assert!(page.commits.len() <= query.limit);
        ids.extend(page.commits.iter().map(|commit| commit.id));
        count += 1;
        let Some(next) = page.next else {
            return (ids, count);
        };
        // As a client passes it on.
        query.heads = next.to_string().parse().unwrap();
        assert_eq!(query.heads, next);
    }
}

fn query(of: CommitId, walk: Walk, limit: usize) -> LogQuery {
    LogQuery {
        heads: LogHeads::of(of),
        walk,
        filter: LogFilter::default(),
        limit,
    }
}

#[tokio::test]
async fn walks_over_random_histories_agree_with_sets() {
    let (mut several, mut none, mut began) = (0, 0, [0; 2]);
    for seed in 0..6 {
        let world = World::new().await;
        let graph = Graph::random(&world, &Rng::seeded(seed), 40).await;
        let (store, workspace) = (&world.store, world.workspace);
        for (index, one) in graph.commits.iter().enumerate() {
            for by in [None, Some(0), Some(1)] {
                let session = by.map(base::SessionId::new);
                let empty = store.began_empty(workspace, *one, session).await.unwrap();
                assert_eq!(empty, graph.began_empty(*one, by), "seed {seed}");
                began[usize::from(empty)] += 1;
            }
            for two in &graph.commits[index..] {
                let bases = store.merge_bases(workspace, *one, *two).await.unwrap();
                assert_eq!(bases, graph.merge_bases(*one, *two), "seed {seed}");
                let turned = store.merge_bases(workspace, *two, *one).await.unwrap();
                assert_eq!(bases, turned, "seed {seed}");
                several += usize::from(bases.len() > 1);
                none += usize::from(bases.is_empty());
                for (ancestor, of) in [(*one, *two), (*two, *one)] {
                    let is = store.is_ancestor(workspace, ancestor, of).await.unwrap();
                    assert_eq!(is, graph.ancestors(of).contains(&ancestor), "seed {seed}");
                }
            }
            let all = graph.newest_first(graph.ancestors(*one));
            for limit in [1, 3, 100] {
                let (ids, count) = pages(&world, query(*one, Walk::AllParents, limit)).await;
                assert_eq!(ids, all, "seed {seed} limit {limit}");
                assert_eq!(count, all.len().div_ceil(limit));
            }
        }
        world.assert_clean().await;
    }
    assert!(several > 25 && none > 25, "{several} {none}");
    assert!(began.iter().all(|count| *count > 25), "{began:?}");
}

#[tokio::test]
async fn a_log_follows_first_parents_and_shows_what_is_wanted() {
    let world = World::new().await;
    let rng = Rng::seeded(99);
    let graph = Graph::random(&world, &rng, 60).await;
    let agent_of = async |id| {
        let commit = world.store.commit(world.workspace, id).await.unwrap();
        commit.record.provenance.agent
    };
    for of in &graph.commits {
        let mut line = vec![*of];
        while let Some(parent) = graph.parents[line.last().unwrap()].first() {
            line.push(*parent);
        }
        let (ids, _) = pages(&world, query(*of, Walk::FirstParent, 4)).await;
        assert_eq!(ids, line);
        let mut by_x = Vec::new();
        for id in graph.newest_first(graph.ancestors(*of)) {
            if agent_of(id).await == "x" {
                by_x.push(id);
            }
        }
        let mut wanted = query(*of, Walk::AllParents, 2);
        wanted.filter.agent = Some("x".into());
        assert_eq!(pages(&world, wanted).await.0, by_x);
    }
}

#[tokio::test]
async fn each_filter_counts() {
    let world = World::new().await;
    let mut last = Vec::new();
    for (agent, session, run) in [("a", 1, "p"), ("a", 2, "q"), ("b", 1, "q"), ("a", 1, "q")] {
        let mut new = new_commit("m", &last);
        new.provenance = Provenance {
            agent: agent.into(),
            session: Some(base::SessionId::new(session)),
            run: run.into(),
            ..Provenance::default()
        };
        let made = world.store.put_commit(world.workspace, new).await.unwrap();
        last = vec![made.id];
    }
    let head = last[0];
    let count = async |agent: Option<&str>, session: Option<u64>, run: Option<&str>| {
        let mut wanted = query(head, Walk::AllParents, 10);
        wanted.filter = LogFilter {
            agent: agent.map(Into::into),
            session: session.map(base::SessionId::new),
            run: run.map(Into::into),
        };
        pages(&world, wanted).await.0.len()
    };
    assert_eq!(count(None, None, None).await, 4);
    assert_eq!(count(Some("a"), None, None).await, 3);
    assert_eq!(count(None, Some(1), None).await, 3);
    assert_eq!(count(None, None, Some("q")).await, 3);
    assert_eq!(count(Some("a"), Some(1), Some("q")).await, 1);
    assert_eq!(count(Some(""), None, None).await, 0);
}

/// Two lines that were merged into each other both ways have two best common ancestors.
#[tokio::test]
async fn merges_that_cross_have_two_bases() {
    let world = World::new().await;
    let root = world.commit("root", &[]).await;
    world.pass(1);
    let left = world.commit("left", &[root]).await;
    let right = world.commit("right", &[root]).await;
    world.pass(1);
    let one = world.commit("one", &[left, right]).await;
    let two = world.commit("two", &[right, left]).await;
    world.pass(1);
    let (one, two) = (
        world.commit("1", &[one]).await,
        world.commit("2", &[two]).await,
    );
    let bases = world.store.merge_bases(world.workspace, one, two).await;
    let mut expected = [left, right];
    expected.sort_by_key(|id| std::cmp::Reverse(*id));
    assert_eq!(bases.unwrap(), expected);
    let alone = world.commit("alone", &[]).await;
    let none = world.store.merge_bases(world.workspace, one, alone).await;
    assert_eq!(none, Ok(vec![]));
    let same = world.store.merge_bases(world.workspace, one, one).await;
    assert_eq!(same, Ok(vec![one]));
}

/// What is below the answer is not looked at: here it is not even there.
#[tokio::test]
async fn walks_end_where_the_answer_is_certain() {
    let world = World::new().await;
    let mut line = vec![world.commit("0", &[]).await];
    for number in 1..8 {
        world.pass(1);
        let last = line[line.len() - 1];
        line.push(world.commit(&number.to_string(), &[last]).await);
    }
    world.pass(1);
    // One comes from the base and, as if it were news, from what is below the base too.
    let one = world.commit("one", &[line[7], line[6]]).await;
    let two = world.commit("two", &[line[7]]).await;
    let mut txn = world.kv.begin();
    for gone in &line[..5] {
        txn.clear(&crate::keyspace::commit(world.workspace, *gone));
    }
    txn.commit().await.unwrap();
    let (store, workspace) = (&world.store, world.workspace);
    let bases = store.merge_bases(workspace, one, two).await;
    assert_eq!(bases, Ok(vec![line[7]]));
    let is = store.is_ancestor(workspace, line[6], two).await;
    assert_eq!(is, Ok(true));
    let other = store.is_ancestor(workspace, one, two).await;
    assert_eq!(other, Ok(false));
    let page = store.log(workspace, query(one, Walk::AllParents, 3)).await;
    assert_eq!(page.unwrap().commits.len(), 3);
}

/// A page looks at so many commits and no more, however few it shows.
#[tokio::test]
async fn a_page_that_shows_little_ends_all_the_same() {
    let world = World::new().await;
    let mut last = world.commit("wanted", &[]).await;
    for number in 0..5_000 {
        last = world.commit(&number.to_string(), &[last]).await;
    }
    let mut wanted = query(last, Walk::FirstParent, 10);
    wanted.filter.run = Some("none".into());
    let page = world
        .store
        .log(world.workspace, wanted.clone())
        .await
        .unwrap();
    assert_eq!(page.commits, []);
    wanted.heads = page.next.unwrap();
    wanted.filter.run = None;
    let page = world.store.log(world.workspace, wanted).await.unwrap();
    assert_eq!(page.commits.len(), 1);
    assert_eq!(
        (page.commits[0].record.message.as_str(), page.next),
        ("wanted", None)
    );
}

/// A history that is damaged ends walks with an error and never keeps them going.
#[tokio::test]
async fn a_parent_that_is_not_earlier_or_missing_is_told() {
    let world = World::new().await;
    let root = world.commit("root", &[]).await;
    let child = world.commit("child", &[root]).await;
    let key = crate::keyspace::commit(world.workspace, root);
    let mut late = world
        .store
        .commit(world.workspace, root)
        .await
        .unwrap()
        .record;
    late.time = late.time.plus_seconds(100);
    late.parents = vec![child];
    for value in [Some(late.encode()), None] {
        let mut txn = world.kv.begin();
        match &value {
            Some(value) => txn.set(&key, value),
            None => txn.clear(&key),
        }
        txn.commit().await.unwrap();
        let store = &world.store;
        let log = store.log(world.workspace, query(child, Walk::AllParents, 9));
        assert!(matches!(log.await, Err(StoreError::Corrupt { .. })));
        let bases = store.merge_bases(world.workspace, child, child).await;
        assert!(matches!(bases, Err(StoreError::Corrupt { .. })));
        let report = check(world.kv.as_ref(), CheckOptions::default()).await;
        assert!(report.unwrap().problems_total > 0);
    }
}

#[test]
fn places_in_a_log_are_read_strictly() {
    let id = CommitId::new([1; 32]);
    let two = format!("{id},{id}");
    assert_eq!(two.parse::<LogHeads>().unwrap().to_string(), two);
    for bad in ["", ",", "x", &format!("{id},"), &format!("{id} {id}")] {
        assert_eq!(bad.parse::<LogHeads>(), Err(LogHeadsError), "{bad}");
    }
    let many = vec![id.to_string(); 10_001].join(",");
    assert_eq!(many.parse::<LogHeads>(), Err(LogHeadsError));
}

/// A page is one answer, which has a size.
#[tokio::test]
async fn a_page_of_long_messages_has_fewer() {
    let world = World::new().await;
    let mut commits = vec![world.commit("first", &[]).await];
    for number in 0..200 {
        let message = format!("{number}{}", "x".repeat(32_000));
        let last = *commits.last().unwrap();
        commits.push(world.commit(&message, &[last]).await);
    }
    commits.reverse();
    let (found, count) = pages(&world, query(commits[0], Walk::AllParents, 500)).await;
    assert_eq!(found, commits);
    assert_eq!(count, 2);
}
