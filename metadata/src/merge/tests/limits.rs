//! Numbers that run out, records of earlier merges, damaged images.

use super::merging::{merge_with, options, told, try_merge};
use super::world::Fs;
use crate::image::InodeNumbers;
use crate::keyspace::image as keys;
use crate::merge::{MergeError, Policy};

/// Both sides with another content of `f`.
fn clash() -> (Fs, Fs, Fs) {
    let mut base = Fs::new();
    base.write("f", "a").unwrap();
    let (mut ours, mut theirs) = (base.fork(2), base.fork(3));
    ours.write("f", "b").unwrap();
    theirs.write("f", "c").unwrap();
    (base, ours, theirs)
}

#[test]
fn numbers_are_taken_only_when_needed_and_may_run_out() {
    let (mut base, mut ours, mut theirs) = clash();
    let mut numbers = InodeNumbers { next: 77, end: 78 };
    let mut run = |policy, numbers: &mut InodeNumbers| {
        try_merge(&mut base, &mut ours, &mut theirs, &options(policy), numbers)
    };
    for policy in [Policy::Fail, Policy::Ours, Policy::Theirs] {
        run(policy, &mut numbers).unwrap();
        assert_eq!(numbers, InodeNumbers { next: 77, end: 78 });
    }
    run(Policy::KeepBoth, &mut numbers).unwrap();
    assert_eq!(numbers, InodeNumbers { next: 78, end: 78 });
    let error = run(Policy::KeepBoth, &mut numbers).unwrap_err();
    assert!(matches!(error, MergeError::NoNumbers), "{error}");
}

#[test]
fn records_of_earlier_merges_are_merged_like_a_set() {
    let (mut base, mut ours, mut theirs) = clash();
    let keep = options(Policy::KeepBoth);
    let (mut first, merged) = merge_with(&mut base, &mut ours, &mut theirs, &keep);
    assert_eq!(merged.conflicts.len(), 1);
    let records = |fs: &Fs| {
        fs.store
            .range(keys::conflict(&[0; 16])..keys::inode(base::InodeId::ROOT))
            .count()
    };
    // One side resolves it, and the other does something else.
    let (mut resolved, mut other) = (first.fork(4), first.fork(5));
    resolved.rm("f~theirs.t1").unwrap();
    resolved
        .store
        .retain(|key, _| !keys::conflicts().contains(key));
    other.write("g", "new").unwrap();
    let (result, merged) = merge_with(&mut first, &mut resolved, &mut other, &keep);
    assert_eq!((told(&merged), records(&result)), (vec![], 0));
    let (mut result, merged) = merge_with(&mut first, &mut other, &mut resolved, &keep);
    assert_eq!((told(&merged), records(&result)), (vec![], 0));
    assert_eq!(result.lines(), ["f = b", "g = new"]);
    // It is there as long as nobody resolves it.
    let mut more = first.fork(6);
    more.write("h", "more").unwrap();
    let (result, _) = merge_with(&mut first, &mut other, &mut more, &keep);
    assert_eq!(records(&result), 1);
}

#[test]
fn what_is_no_tree_is_refused() {
    let (mut base, mut ours, mut theirs) = clash();
    let inode = ours.inode("f").unwrap();
    let mut numbers = InodeNumbers { next: 77, end: 79 };
    let keep = options(Policy::KeepBoth);
    ours.flush();
    ours.store.insert(keys::cut(inode, 0), bytes::Bytes::new());
    let error = try_merge(&mut base, &mut ours, &mut theirs, &keep, &mut numbers).unwrap_err();
    assert!(
        matches!(error, MergeError::Damaged("a cut in a tree")),
        "{error}"
    );
    ours.store.remove(&keys::cut(inode, 0));
    // A record of another release.
    ours.store
        .insert(keys::inode(inode), bytes::Bytes::from_static(&[9]));
    let error = try_merge(&mut base, &mut ours, &mut theirs, &keep, &mut numbers).unwrap_err();
    assert!(matches!(error, MergeError::Image(_)), "{error}");
}
