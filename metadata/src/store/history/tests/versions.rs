//! What version expressions mean.

use super::*;

/// The commits of the history that [`furnish`] makes.
struct Made {
    root: CommitId,
    old: CommitId,
    side: CommitId,
    merge: CommitId,
    last: CommitId,
}

/// `main` with a merge in it, `side`, and a tag on `old`. It is Wednesday, noon.
async fn furnish(world: &World) -> Made {
    // It is Wednesday, 2026-11-25T12:00:00Z.
    let now = 1_795_608_000;
    let at = |days: u64, hours: u64| Timestamp::new(now - days * 86_400 - hours * 3_600, 0);
    world.clock.set_wall(at(9, 0));
    let root = world.commit("root", &[]).await;
    world.create("main", root).await;
    world.clock.set_wall(at(5, 0));
    let old = world.commit("old", &[root]).await;
    world.go("main", root, old).await.unwrap();
    world.clock.set_wall(at(1, 1));
    let side = world.commit("side", &[root]).await;
    let merge = world.commit("merge", &[old, side]).await;
    world.create("side", side).await;
    world.go("main", old, merge).await.unwrap();
    world.clock.set_wall(at(0, 2));
    let last = world.commit("last", &[merge]).await;
    world.go("main", merge, last).await.unwrap();
    let tag = RefState {
        kind: RefKind::Tag,
        ..branch(old)
    };
    let name = named("v1");
    let tagged = world
        .store
        .create_ref(world.workspace, &name, tag, Cause::Asked);
    tagged.await.unwrap();
    world.clock.set_wall(at(0, 0));
    Made {
        root,
        old,
        side,
        merge,
        last,
    }
}

#[tokio::test]
async fn versions_lead_to_commits() {
    let world = World::new().await;
    let Made {
        root,
        old,
        side,
        merge,
        last,
    } = furnish(&world).await;
    let whole = merge.to_string();
    let upper = whole.to_uppercase();
    let cases = [
        ("main", last),
        (" main ", last),
        ("side", side),
        ("v1", old),
        ("v1~1", root),
        (&whole, merge),
        (&upper, merge),
        (&whole[..12], merge),
        (&upper[..12], merge),
        ("main~", merge),
        ("main~0", last),
        ("main^0", last),
        ("main~2", old),
        ("main~1^2", side),
        ("main^^2^", root),
        ("main~3", root),
        ("now", last),
        ("@{now}", last),
        ("today", merge),
        ("1 hour ago", last),
        ("3 hours ago", merge),
        ("yesterday", merge),
        ("2 days ago", old),
        ("last tuesday", merge),
        ("last-wednesday", root),
        ("2026-11-25T10:00Z", last),
        ("2026-11-25T09:59:59Z", merge),
        ("2026-11-24T10:00Z", old),
        ("2026-11-24 12:00", merge),
        ("main@{2026-11-24T10:00Z}", old),
        ("main@{2026-11-24T10:00Z}~1", root),
        ("side@{yesterday}", side),
    ];
    for (text, expected) in cases {
        let found = world.store.resolve_version(world.workspace, text).await;
        let found = found.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found.id, expected, "{text}");
        assert_eq!(found.record.id(), expected);
    }
}

#[tokio::test]
async fn versions_that_there_are_not_say_what_there_could_be() {
    let world = World::new().await;
    furnish(&world).await;
    let refused = [
        ("", "it is empty"),
        (
            "nobody",
            "no ref is called so; a version is a branch or tag",
        ),
        (
            "0000",
            "no commit id begins so; a version is a branch or tag",
        ),
        ("main~4", "is the first and has no parent"),
        ("main^2", "has 1 parents and no parent 2"),
        ("main^3", "has 1 parents and no parent 3"),
        ("10 days ago", "was first made at 2026-11-16T12:00:00Z"),
        ("side@{2 days ago}", "was first made at"),
        ("nobody@{yesterday}", "there never was one"),
        ("nobody@{now}", "no such ref \"nobody\""),
        ("a b", "A version is a branch or tag"),
        ("60 years ago", "before 1970"),
        ("main~10001", "at most 32"),
    ];
    for (text, part) in refused {
        let error = world.store.resolve_version(world.workspace, text).await;
        let said = error.unwrap_err().to_string();
        assert!(said.contains(part), "{text}: {said}");
    }
    let missing = "a5".repeat(32);
    let error = world.store.resolve_version(world.workspace, &missing).await;
    assert!(matches!(error, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn digits_that_fit_several_commits_name_them() {
    let world = World::new().await;
    // Enough for some four digits to be the same: about 65,536 / 2 pairs are needed.
    let mut ids = std::collections::BTreeSet::new();
    let mut twins = None;
    for number in 0..3_000 {
        let id = world.commit(&number.to_string(), &[]).await;
        let text = id.to_string();
        let other = ids.iter().find(|other: &&String| other[..4] == text[..4]);
        if let Some(other) = other {
            twins = Some((other.clone(), text));
            break;
        }
        ids.insert(text);
    }
    let (one, two) = twins.unwrap();
    let resolve = |text: &str| {
        let text = text.to_owned();
        let store = world.store.clone();
        let workspace = world.workspace;
        async move { store.resolve_version(workspace, &text).await }
    };
    let Err(StoreError::Ambiguous { candidates, .. }) = resolve(&one[..4]).await else {
        panic!("{one} and {two} were told apart");
    };
    let mut expected = vec![one.clone(), two.clone()];
    expected.sort();
    assert_eq!(candidates, expected);
    let said = resolve(&one[..4]).await.unwrap_err().to_string();
    assert!(
        said.contains(&one) && said.ends_with("give more digits"),
        "{said}"
    );
    let differ = one
        .bytes()
        .zip(two.bytes())
        .position(|(a, b)| a != b)
        .unwrap();
    let found = resolve(&one[..=differ]).await.unwrap();
    assert_eq!(found.id.to_string(), one);
    // Three digits are none.
    assert!(matches!(
        resolve(&one[..3]).await,
        Err(StoreError::NotFound { .. })
    ));
    // A ref of that name comes first.
    world.create(&one[..4], found.id).await;
    assert_eq!(resolve(&one[..4]).await.unwrap().id, found.id);
}

#[tokio::test]
async fn of_many_candidates_a_few_are_named() {
    let world = World::new().await;
    let record = world.commit("x", &[]).await;
    let record = world
        .store
        .commit(world.workspace, record)
        .await
        .unwrap()
        .record;
    let mut txn = world.kv.begin();
    for number in 0..20 {
        let mut id = [0xab; 32];
        id[31] = number;
        let key = crate::keyspace::commit(world.workspace, CommitId::new(id));
        txn.set(&key, &record.encode());
    }
    txn.commit().await.unwrap();
    let error = world.store.resolve_version(world.workspace, "abab").await;
    let Err(StoreError::Ambiguous { candidates, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(candidates.len(), 9);
    assert_eq!(candidates[8], "others");
}
