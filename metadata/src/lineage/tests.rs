//! The log and the blame of paths against naive ones, on random histories with merges.

mod model;
mod naive;

use std::collections::BTreeSet;

use base::Rng;

use super::*;
use crate::compare::tests::turns;
use crate::store::{LogFilter, Walk};
use crate::text::lines;
use model::{History, World};

fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.build().unwrap().block_on(test)
}

/// The whole log of a path, a few commits a page.
async fn log(
    world: &World,
    at: CommitId,
    path: &[u8],
    walk: Walk,
    limit: usize,
) -> Vec<PathCommit> {
    let commit = world.store.commit(world.workspace, at).await.unwrap();
    let mut next = Some(world.lineage.begin(&commit, path).await.unwrap());
    let mut all = Vec::new();
    while let Some(heads) = next {
        let heads: PathHeads = heads.to_string().parse().unwrap();
        let query = PathLogQuery {
            path: path.to_vec(),
            heads,
            walk,
            filter: LogFilter::default(),
            limit,
        };
        let page = world.lineage.log(query).await.unwrap();
        assert!(page.commits.len() <= limit);
        all.extend(page.commits);
        next = page.next;
    }
    all
}

async fn blame(world: &World, at: CommitId, path: &[u8]) -> Blame {
    let commit = world.store.commit(world.workspace, at).await.unwrap();
    world.lineage.blame(commit, path, world).await.unwrap()
}

#[test]
fn the_log_of_a_path_is_the_naive_one() {
    run(async {
        let (mut shown, mut renamed, mut directories, mut merges) = (0, 0, 0, 0);
        for seed in 0..150 {
            let rng = Rng::seeded(seed);
            let (world, history) = History::random(&rng, 14).await;
            for at in [history.len() - 1, history.len() / 2] {
                for (inode, path) in history.paths(at) {
                    for walk in [Walk::AllParents, Walk::FirstParent] {
                        let id = history.id(at);
                        let told = log(&world, id, &path, walk, 1 + at % 3).await;
                        let mut ids: Vec<CommitId> = told.iter().map(|one| one.commit.id).collect();
                        // One that changed two files which became one is told for each.
                        ids.dedup();
                        let wanted = naive::log(&history, at, inode, walk);
                        assert_eq!(ids, wanted, "seed {seed}, {at}: {}", path.escape_ascii());
                        shown += told.len();
                        let is = |what| told.iter().filter(|one| one.changed.what == what).count();
                        renamed += is(What::Renamed);
                        directories += usize::from(history.is_dir(at, inode));
                        merges += told
                            .iter()
                            .filter(|one| one.commit.record.parents.len() > 1)
                            .count();
                        let last = told.last().unwrap();
                        let is_made = last.changed.what == What::Added || path.is_empty();
                        assert!(is_made, "seed {seed}, {at}: {}", path.escape_ascii());
                    }
                }
            }
        }
        assert!(shown > 5000 && renamed > 200 && directories > 500 && merges > 100);
    });
}

/// All of it is in memory, and still nobody is kept waiting for its end.
#[test]
fn long_histories_let_others_in() {
    run(async {
        let (world, history) = History::random(&Rng::seeded(1), 16).await;
        let at = history.id(history.len() - 1);
        let told = log(&world, at, b"", Walk::AllParents, 100).await;
        assert!(told.len() > 5);
        let (again, turned) = turns(Box::pin(log(&world, at, b"", Walk::AllParents, 100))).await;
        assert_eq!(again, told);
        assert!(turned >= told.len(), "{turned}");
        let paths = history.paths(history.len() - 1);
        let mut turned = 0;
        for (_, path) in &paths {
            blame(&world, at, path).await;
            turned += turns(Box::pin(blame(&world, at, path))).await.1;
        }
        assert!(turned >= paths.len(), "{turned}");
    });
}

#[test]
fn the_blame_of_a_file_is_the_naive_one() {
    run(async {
        let (mut told, mut several, mut moved) = (0, 0, 0);
        for seed in 1000..1200 {
            let rng = Rng::seeded(seed);
            let (world, history) = History::random(&rng, 16).await;
            let at = history.len() - 1;
            for (inode, path) in history.paths(at) {
                let found = blame(&world, history.id(at), &path).await;
                let context = format!("seed {seed}: {}", path.escape_ascii());
                assert!(found.is_complete);
                let (changed, written) = naive::last(&history, at, inode);
                assert_eq!(
                    (found.changed, found.written),
                    (changed, written),
                    "{context}"
                );
                let made = naive::creations(&history, at, inode);
                assert!(made.contains(&found.created), "{context}");
                let Some(text) = history.text(at, inode) else {
                    assert_eq!(found.lines, Lines::Not(NoLines::Kind));
                    continue;
                };
                let Lines::Told(spans) = found.lines else {
                    panic!("{context}: no lines");
                };
                let mut next = 0;
                for span in &spans {
                    assert_eq!(span.first, next, "{context}");
                    assert!(span.count > 0 && !span.is_edge, "{context}");
                    for line in 0..span.count {
                        let wanted = naive::line(&history, (at, inode), span.first + line);
                        let is = (span.commit, span.path.to_vec(), span.there + line);
                        assert_eq!(is, wanted, "{context}: line {}", span.first + line);
                        moved += usize::from(span.first != span.there || *span.path != *path);
                        told += 1;
                    }
                    next += span.count;
                }
                assert_eq!(next, lines(&text).len(), "{context}");
                let commits: BTreeSet<CommitId> = spans.iter().map(|span| span.commit).collect();
                several += usize::from(commits.len() > 2);
            }
        }
        assert!(
            told > 3000 && several > 100 && moved > 500,
            "{told} {several} {moved}"
        );
    });
}

/// What is unchanged costs no reading of content, however long its history is.
#[test]
fn content_is_read_only_where_it_differs() {
    run(async {
        let world = World::new().await;
        let mut history = History::new();
        let mut state = model::State::new();
        let file = state.write("f", b"1\n2\n");
        state.write("other", b"x\n");
        history.commit(&world, &state, &[]).await;
        for round in 0..50 {
            state.write("other", format!("{round}\n").as_bytes());
            history.commit(&world, &state, &[history.len() - 1]).await;
        }
        state.rename("f", "g");
        history.commit(&world, &state, &[history.len() - 1]).await;
        state.write("g", b"1\n2\n3\n");
        history.commit(&world, &state, &[history.len() - 1]).await;
        state.write("other", b"last\n");
        history.commit(&world, &state, &[history.len() - 1]).await;
        let last = history.len() - 1;
        let found = blame(&world, history.id(last), b"g").await;
        assert_eq!(world.texts_read(), 2);
        assert_eq!(found.created, Some(history.id(0)));
        assert_eq!(found.changed, Some(history.id(last - 1)));
        assert_eq!(found.record.stat.inode, file);
        let told = log(&world, history.id(last), b"g", Walk::AllParents, 10).await;
        let whats: Vec<What> = told.iter().map(|one| one.changed.what).collect();
        assert_eq!(whats, [What::Modified, What::Renamed, What::Added]);
        // By the name that it has no more, and from where it had not yet another.
        let told = log(&world, history.id(last), b"f", Walk::AllParents, 10).await;
        let whats: Vec<What> = told.iter().map(|one| one.changed.what).collect();
        assert_eq!(whats, [What::Renamed, What::Added]);
        assert_eq!(told[0].changed.path, b"g");
        assert_eq!(told[0].changed.old_path.as_deref(), Some(&b"f"[..]));
    });
}

#[test]
fn what_was_removed_has_a_log() {
    run(async {
        let world = World::new().await;
        let (mut history, mut state) = (History::new(), model::State::new());
        state.write("f", b"1\n");
        let made = history.commit(&world, &state, &[]).await;
        state.write("other", b"x\n");
        history.commit(&world, &state, &[0]).await;
        state.remove("f");
        let removed = history.commit(&world, &state, &[1]).await;
        state.write("other", b"y\n");
        history.commit(&world, &state, &[2]).await;
        let told = log(&world, history.id(3), b"f", Walk::AllParents, 1).await;
        let seen: Vec<_> = told
            .iter()
            .map(|one| (one.commit.id, one.changed.what))
            .collect();
        assert_eq!(seen, [(removed, What::Removed), (made, What::Added)]);
        let told = log(&world, history.id(3), b"never", Walk::AllParents, 1).await;
        assert!(told.is_empty());
        let commit = world.store.commit(world.workspace, history.id(3)).await;
        let missing = world.lineage.blame(commit.unwrap(), b"f", &world).await;
        assert!(matches!(missing, Err(LineageError::Missing)));
    });
}

#[test]
fn what_is_no_text_is_told_as_a_whole() {
    run(async {
        let world = World::new().await;
        let (mut history, mut state) = (History::new(), model::State::new());
        state.write("f", b"1\n2\n");
        let made = history.commit(&world, &state, &[]).await;
        state.write("f", b"1\n\0\n");
        let binary = history.commit(&world, &state, &[0]).await;
        let found = blame(&world, binary, b"f").await;
        assert_eq!(found.lines, Lines::Not(NoLines::Binary));
        assert_eq!((found.written, found.created), (Some(binary), Some(made)));
        // What was no text before has all its lines from then on.
        state.write("f", b"1\n2\n");
        let text = history.commit(&world, &state, &[1]).await;
        let found = blame(&world, text, b"f").await;
        let Lines::Told(spans) = found.lines else {
            panic!("no lines");
        };
        assert_eq!((spans.len(), spans[0].commit), (1, text));
    });
}

/// What one call looks at is bounded, and it says where it ended.
#[test]
fn long_histories_are_told_in_parts() {
    run(async {
        let world = World::new().await;
        let (mut history, mut state) = (History::new(), model::State::new());
        state.write("busy", b"first\n0\n");
        state.write("quiet", b"1\n");
        let made = history.commit(&world, &state, &[]).await;
        for round in 1..2100 {
            state.write("busy", format!("first\n{round}\n").as_bytes());
            history.commit(&world, &state, &[history.len() - 1]).await;
        }
        let last = history.id(history.len() - 1);
        let commit = world.store.commit(world.workspace, last).await.unwrap();
        let query = |heads| PathLogQuery {
            path: b"quiet".to_vec(),
            heads,
            walk: Walk::AllParents,
            filter: LogFilter::default(),
            limit: 10,
        };
        let heads = world.lineage.begin(&commit, b"quiet").await.unwrap();
        let page = world.lineage.log(query(heads)).await.unwrap();
        assert!(page.commits.is_empty());
        let page = world.lineage.log(query(page.next.unwrap())).await.unwrap();
        assert_eq!(page.commits.len(), 1);
        assert_eq!((page.commits[0].commit.id, page.next), (made, None));

        let found = blame(&world, last, b"quiet").await;
        assert_eq!((found.created, found.is_complete), (Some(made), true));
        let found = blame(&world, last, b"busy").await;
        assert_eq!((found.created, found.is_complete), (None, false));
        assert_eq!((found.written, found.changed), (Some(last), Some(last)));
        let Lines::Told(spans) = found.lines else {
            panic!("no lines");
        };
        let told: Vec<_> = spans
            .iter()
            .map(|span| (span.first, span.is_edge))
            .collect();
        assert_eq!(told, [(0, true), (1, false)]);
        assert_eq!(spans[1].commit, last);
        assert!(found.commits.contains_key(&spans[0].commit));
    });
}

#[test]
fn too_many_versions_side_by_side_are_refused() {
    run(async {
        let world = World::new().await;
        let (mut history, mut state) = (History::new(), model::State::new());
        state.write("f", b"0\n");
        history.commit(&world, &state, &[]).await;
        let mut merges = Vec::new();
        for many in 0..10 {
            let first = history.len();
            for one in 0..16 {
                state.write("f", format!("{many} {one}\n").as_bytes());
                history.commit(&world, &state, &[0]).await;
            }
            let sides: Vec<usize> = (first..history.len()).collect();
            state.write("f", format!("{many}\n").as_bytes());
            history.commit(&world, &state, &sides).await;
            merges.push(history.len() - 1);
        }
        state.write("f", b"all\n");
        let last = history.commit(&world, &state, &merges).await;
        let commit = world.store.commit(world.workspace, last).await.unwrap();
        let query = |heads, walk| PathLogQuery {
            path: b"f".to_vec(),
            heads,
            walk,
            filter: LogFilter::default(),
            limit: 500,
        };
        let heads = world.lineage.begin(&commit, b"f").await.unwrap();
        let refused = world
            .lineage
            .log(query(heads.clone(), Walk::AllParents))
            .await;
        assert!(matches!(refused, Err(LineageError::TooWide)), "{refused:?}");
        let told = world.lineage.log(query(heads, Walk::FirstParent)).await;
        assert_eq!(told.unwrap().commits.len(), 4);
        // No line is from the sides, so nothing is followed into them but one.
        assert_eq!(blame(&world, last, b"f").await.created, Some(history.id(0)));
    });
}

#[test]
fn places_are_read_strictly() {
    let id = CommitId::new([7; 32]);
    let heads: PathHeads = format!("{id}:1f,{id}:-").parse().unwrap();
    assert_eq!(heads.to_string(), format!("{id}:1f,{id}:-"));
    let many = vec![format!("{id}:1"); FRONTIER_MAX + 1].join(",");
    for bad in ["", "x:1", &format!("{id}"), &format!("{id}:x"), &many] {
        assert_eq!(bad.parse::<PathHeads>(), Err(PathHeadsError), "{bad}");
    }
}
