//! `holdfast bundle` and `unbundle`: history from one installation to another.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

use super::holding::Holding;
use super::pages::{pages, pages_until};
use super::partial::Partial;
use super::transfer::{begin, copy, is_standard, put, why_broken};
use super::{client, escape};
use crate::bundle::{About, Commit as Bundled, Reader, Ref as BundledRef, Section, Writer};
use crate::cli_transfer::{BundleArgs, UnbundleArgs};
use crate::client::Client;
use crate::failure::{Failure, FailureKind};
use crate::files::Progress;
use crate::history::{Checkpoint, Commit, CreateRef, Ref, short};
use crate::output;
use crate::transfer::Imported;

/// The pair that says which commit one was before it came in a bundle.
const ORIGIN: &str = "bundle.commit";

/// The range that is everything.
const EVERYTHING: &str = "..";

/// The commit that a commit was first.
fn origin(commit: &Commit) -> &str {
    commit.pairs.get(ORIGIN).unwrap_or(&commit.id)
}

/// All commits that a version comes from, and itself.
pub(super) fn history(
    client: &Client,
    workspace: &str,
    version: &str,
) -> Result<Vec<Commit>, Failure> {
    history_beyond(client, workspace, version, |_| false)
}

/// The same, up to where nothing comes that is not known. Who knows a commit knows all that it comes
/// from.
pub(super) fn history_beyond(
    client: &Client,
    workspace: &str,
    version: &str,
    is_known: impl Fn(&str) -> bool,
) -> Result<Vec<Commit>, Failure> {
    let path = format!(
        "/v1/workspaces/{}/log?version={}",
        escape(workspace),
        escape(version)
    );
    // A log goes on with commits that were not told yet.
    let mut commits: Vec<Commit> =
        pages_until(client, &path, |next| next.split(',').all(&is_known))?;
    commits.retain(|commit| !is_known(&commit.id));
    Ok(commits)
}

pub(super) fn all_refs(client: &Client, workspace: &str) -> Result<Vec<Ref>, Failure> {
    pages(
        client,
        &format!("/v1/workspaces/{}/refs", escape(workspace)),
        usize::MAX,
    )
}

/// What is to be bundled.
struct Selection {
    /// Parents before children.
    commits: Vec<Commit>,
    refs: Vec<Ref>,
    /// Ids where they were made first, of all that are known.
    origins: HashMap<String, String>,
}

fn select(client: &Client, workspace: &str, range: &str) -> Result<Selection, Failure> {
    let refs = all_refs(client, workspace)?;
    let (mut known, mut without) = (BTreeMap::new(), BTreeSet::new());
    let refs: Vec<Ref> = if range == EVERYTHING {
        refs
    } else {
        let (from, to) = match range.split_once("..") {
            Some((from, to)) => (Some(from), to),
            None => (None, range),
        };
        if let Some(from) = from {
            for commit in history(client, workspace, from)? {
                without.insert(commit.id.clone());
                known.insert(commit.id.clone(), commit);
            }
        }
        let more = history_beyond(client, workspace, to, |id| known.contains_key(id))?;
        known.extend(more.into_iter().map(|commit| (commit.id.clone(), commit)));
        let named: Vec<Ref> = refs.into_iter().filter(|found| found.name == to).collect();
        if named.is_empty() {
            let message = format!(
                "{to:?} is no branch or tag, and without one nothing would name what is bundled: end \
                 the range with a branch or tag, or make one with `holdfast ref create NAME {to}`"
            );
            return Err(Failure::new(FailureKind::Usage, message));
        }
        named
    };
    for found in &refs {
        if !known.contains_key(&found.commit) {
            let is_known = |id: &str| known.contains_key(id);
            let more = history_beyond(client, workspace, &found.commit, is_known)?;
            known.extend(more.into_iter().map(|commit| (commit.id.clone(), commit)));
        }
    }
    let origins = known
        .values()
        .map(|commit| (commit.id.clone(), origin(commit).to_owned()))
        .collect();
    known.retain(|id, _| !without.contains(id));
    Ok(Selection {
        commits: parents_first(known),
        refs,
        origins,
    })
}

/// Sorts commits so that each comes after its parents.
pub(super) fn parents_first(mut rest: BTreeMap<String, Commit>) -> Vec<Commit> {
    let mut sorted = Vec::with_capacity(rest.len());
    let ids: Vec<String> = rest.keys().cloned().collect();
    for id in ids {
        let mut path = vec![id];
        while let Some(id) = path.last() {
            let waits_for = rest.get(id).and_then(|commit| {
                commit
                    .parents
                    .iter()
                    .find(|parent| rest.contains_key(*parent))
            });
            match waits_for {
                Some(parent) => path.push(parent.clone()),
                None => {
                    sorted.extend(rest.remove(id));
                    path.pop();
                }
            }
        }
    }
    sorted
}

/// A bundle is read more than once, and written whole or not at all.
fn check_file(path: &Path) -> Result<(), Failure> {
    if is_standard(path) {
        let message =
            "a bundle is a file, and goes through no pipe: name one (./- if it is called so)";
        return Err(Failure::new(FailureKind::Usage, message));
    }
    Ok(())
}

pub(super) fn bundle(args: BundleArgs, json: bool) -> Result<(), Failure> {
    check_file(&args.file)?;
    if args.file.exists() && !args.force {
        let message = format!(
            "{} exists; --force writes all the same",
            args.file.display()
        );
        return Err(Failure::new(FailureKind::Conflict, message));
    }
    let client = client(&args.server)?;
    let selection = select(&client, &args.workspace, &args.range)?;
    if selection.commits.is_empty() {
        let message = format!(
            "{:?} names no commits: there is nothing to bundle",
            args.range
        );
        return Err(Failure::new(FailureKind::NotFound, message));
    }
    let (partial, file) = Partial::file(&args.file)?;
    let to = (partial.path(), file);
    let written = write(&client, &args.workspace, &selection, to);
    partial.end(written, args.force)?;
    let bytes = std::fs::metadata(&args.file).map_or(0, |file| file.len());
    let (commits, refs) = (selection.commits.len(), selection.refs.len());
    if json {
        return output::json(&serde_json::json!({
            "commits": commits, "refs": refs, "bytes": bytes,
        }));
    }
    let shown = crate::files::shown_bytes(bytes);
    output::text(&format!(
        "{commits} commits, {refs} branches and tags, {shown}"
    ))
}

fn write(
    client: &Client,
    workspace: &str,
    selection: &Selection,
    (path, file): (&Path, File),
) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::io(format_args!("write {}", path.display()), &error);
    let mut writer = Writer::new(BufWriter::new(file)).map_err(failed)?;
    let first = |id: &String| selection.origins.get(id).unwrap_or(id).clone();
    let inside: BTreeSet<&String> = selection.commits.iter().map(|commit| &commit.id).collect();
    let parents = selection.commits.iter().flat_map(|commit| &commit.parents);
    let needs: BTreeSet<String> = parents
        .filter(|id| !inside.contains(id))
        .map(first)
        .collect();
    let about = About {
        workspace: workspace.to_owned(),
        needs: needs.into_iter().collect(),
    };
    writer.about(&about).map_err(failed)?;
    for commit in &selection.commits {
        let bundled = Bundled {
            id: origin(commit).to_owned(),
            parents: commit.parents.iter().map(first).collect(),
            about: about_of(commit),
        };
        writer.commit(&bundled).map_err(failed)?;
        let mut call = format!(
            "/v1/workspaces/{}/export?version={}",
            escape(workspace),
            commit.id
        );
        if let Some(parent) = commit.parents.first() {
            call.push_str(&format!("&since={parent}"));
        }
        let taken = client.download(&call, move |from, _| {
            let mut progress = Progress::new("received");
            copy(from, &mut writer, &mut progress)?;
            Ok(writer)
        });
        writer = taken.map_err(|failure| why_broken(client, &call, failure))?;
        writer.end_commit().map_err(failed)?;
    }
    for found in &selection.refs {
        let reference = BundledRef {
            name: found.name.clone(),
            tag: found.kind == "tag",
            protected: found.protected,
            commit: first(&found.commit),
        };
        writer.reference(&reference).map_err(failed)?;
    }
    let file = writer.end().map_err(failed)?.into_inner();
    let file = file.map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)
}

/// What a commit says, and what else is to be known of it elsewhere.
fn about_of(commit: &Commit) -> Checkpoint {
    let mut pairs = commit.pairs.clone();
    // What it was first stays, however often it is carried on.
    if !pairs.contains_key(ORIGIN) {
        let session = commit.session.clone().unwrap_or_default();
        for (key, value) in [
            (ORIGIN, &commit.id),
            ("bundle.time", &commit.time),
            ("bundle.agent", &commit.agent),
            ("bundle.run", &commit.run),
            ("bundle.session", &session),
        ] {
            if !value.is_empty() {
                pairs.insert(key.to_owned(), value.clone());
            }
        }
    }
    Checkpoint {
        message: commit.message.clone(),
        author: commit.author.clone(),
        model: commit.model.clone(),
        tool_call: commit.tool_call.clone(),
        pairs,
    }
}

/// What a bundle holds.
#[derive(Default)]
struct Contents {
    about: About,
    commits: Vec<Bundled>,
    refs: Vec<BundledRef>,
}

fn open(path: &Path) -> Result<Reader<BufReader<File>>, Failure> {
    let file = File::open(path);
    let file =
        file.map_err(|error| Failure::io(format_args!("open {}", path.display()), &error))?;
    Reader::new(BufReader::new(file))
}

/// Reads a bundle to its end, and makes sure that it is whole and makes sense.
fn verify(path: &Path) -> Result<Contents, Failure> {
    let mut reader = open(path)?;
    let mut contents = Contents::default();
    loop {
        match reader.next()? {
            Section::About(about) => contents.about = about,
            Section::Commit(commit) => contents.commits.push(*commit),
            Section::Ref(found) => contents.refs.push(found),
            Section::Piece(_) | Section::CommitEnd => {}
            Section::End => break,
        }
    }
    let mut known: BTreeSet<&String> = contents.about.needs.iter().collect();
    for commit in &contents.commits {
        if !commit.parents.iter().all(|parent| known.contains(parent)) || !known.insert(&commit.id)
        {
            let message = "the bundle's commits are not in order: make it anew";
            return Err(Failure::new(FailureKind::Usage, message));
        }
    }
    if !contents
        .refs
        .iter()
        .all(|found| known.contains(&found.commit))
    {
        let message = "the bundle has a branch without its commit: make it anew";
        return Err(Failure::new(FailureKind::Usage, message));
    }
    Ok(contents)
}

pub(super) fn unbundle(args: UnbundleArgs, json: bool) -> Result<(), Failure> {
    check_file(&args.file)?;
    let contents = verify(&args.file)?;
    let client = client(&args.server)?;
    let workspace = &args.workspace;
    let there = match all_refs(&client, workspace) {
        Err(failure) if failure.kind == FailureKind::NotFound => None,
        there => Some(there?),
    };
    let is_new = there.is_none();
    let there = there.unwrap_or_default();
    let mut known: HashMap<String, String> = HashMap::new();
    let mut ids = HashSet::new();
    for found in &there {
        if ids.contains(&found.commit) {
            continue;
        }
        let is_known = |id: &str| ids.contains(id);
        for commit in history_beyond(&client, workspace, &found.commit, is_known)? {
            ids.insert(commit.id.clone());
            known.insert(origin(&commit).to_owned(), commit.id);
        }
    }
    let missing: Vec<&String> = (contents.about.needs.iter())
        .filter(|need| !known.contains_key(*need))
        .collect();
    if let Some(need) = missing.first() {
        let message = format!(
            "the bundle builds on {} commits that no branch of workspace {workspace:?} has, such as \
             {need}: unbundle one that has them first",
            missing.len()
        );
        return Err(Failure::new(FailureKind::Conflict, message));
    }
    if is_new {
        let new = serde_json::json!({ "name": workspace });
        client.post_for_nothing("/v1/workspaces", &new)?;
    }
    let moving = moving(&contents, &there, &known);
    let tip = contents.commits.last().map(|commit| commit.id.as_str());
    let mut holding = Holding::new(workspace, "`holdfast unbundle`", tip.unwrap_or_default())?;
    let done = take(&client, &args, &moving, (&mut known, &mut holding)).and_then(|taken| {
        let refs = refs(&client, workspace, &contents.refs, &known)?;
        Ok((taken, refs))
    });
    let (taken, refs) = match done {
        Ok(done) => done,
        Err(failure) => {
            holding.give_up(&client);
            return Err(failure);
        }
    };
    holding.done(&client);
    let skipped = contents.commits.len() - taken;
    if json {
        return output::json(&serde_json::json!({
            "commits": taken, "known": skipped, "refs": refs.0, "left": refs.1,
        }));
    }
    let mut lines = vec![format!("{taken} commits, {skipped} were there already")];
    lines.extend(refs.0.iter().map(|name| format!("{name} is in place")));
    let left = |name: &String| format!("{name} was left where it is: it has gone on differently");
    lines.extend(refs.1.iter().map(left));
    output::text(&lines.join("\n"))
}

/// Branches that are there and move with the commits that come, by commit.
fn moving(
    contents: &Contents,
    there: &[Ref],
    known: &HashMap<String, String>,
) -> HashMap<String, String> {
    let parents: HashMap<&String, &Vec<String>> = contents
        .commits
        .iter()
        .map(|commit| (&commit.id, &commit.parents))
        .collect();
    let mut moving = HashMap::new();
    for found in contents.refs.iter().filter(|found| !found.tag) {
        let Some(now) = there.iter().find(|other| other.name == found.name) else {
            continue;
        };
        // Whether what comes has come from what is there.
        let (mut rest, mut seen) = (vec![&found.commit], BTreeSet::new());
        while let Some(id) = rest.pop() {
            if known.get(id) == Some(&now.commit) && id != &found.commit {
                moving.insert(found.commit.clone(), found.name.clone());
            }
            if seen.insert(id) {
                rest.extend(parents.get(id).into_iter().copied().flatten());
            }
        }
    }
    moving
}

/// Takes in all commits that are not there. Gives how many.
fn take(
    client: &Client,
    args: &UnbundleArgs,
    moving: &HashMap<String, String>,
    (known, holding): (&mut HashMap<String, String>, &mut Holding),
) -> Result<usize, Failure> {
    let mut reader = open(&args.file)?;
    let mut taken = 0;
    loop {
        let commit = match reader.next()? {
            Section::Commit(commit) if !known.contains_key(&commit.id) => commit,
            Section::End => return Ok(taken),
            _ => continue,
        };
        let parents: Vec<&str> = (commit.parents.iter())
            .filter_map(|parent| known.get(parent).map(String::as_str))
            .collect();
        let mut call = format!(
            "/v1/workspaces/{}/import?about_inside=true&parents={}",
            escape(&args.workspace),
            parents.join(",")
        );
        if let Some(branch) = moving.get(&commit.id) {
            call.push_str(&format!("&branch={}", escape(branch)));
        }
        let about = serde_json::to_string(&commit.about).unwrap_or_default();
        let (give, back) = std::sync::mpsc::sync_channel(1);
        let imported: Imported = client.upload(&call, move |to| {
            begin(to, &about)?;
            let mut progress = Progress::new("sent");
            // Up to the end of the commit.
            while let Section::Piece(piece) = reader.next()? {
                progress.add(piece.len());
                put(to, &piece)?;
            }
            give.try_send(reader)
                .map_err(|error| Failure::error(format_args!("read on: {error}")))
        })?;
        reader = back
            .try_recv()
            .map_err(|error| Failure::error(format_args!("read on: {error}")))?;
        holding.add(client, &imported)?;
        known.insert(commit.id.clone(), imported.commit.id);
        taken += 1;
    }
}

/// Makes branches and tags. Gives those that are in place, and those that were left alone.
fn refs(
    client: &Client,
    workspace: &str,
    wanted: &[BundledRef],
    known: &HashMap<String, String>,
) -> Result<(Vec<String>, Vec<String>), Failure> {
    let there = all_refs(client, workspace)?;
    let (mut in_place, mut left) = (Vec::new(), Vec::new());
    for found in wanted {
        let Some(commit) = known.get(&found.commit) else {
            continue;
        };
        match there.iter().find(|other| other.name == found.name) {
            Some(other) if other.commit == *commit => in_place.push(found.name.clone()),
            Some(_) => left.push(found.name.clone()),
            None => {
                let create = CreateRef {
                    name: found.name.clone(),
                    version: commit.clone(),
                    tag: found.tag,
                    protected: found.protected,
                };
                let path = format!("/v1/workspaces/{}/refs", escape(workspace));
                let made: Ref = client.post(&path, &create)?;
                output::note(&format!("{} is at {}", made.name, short(&made.commit)));
                in_place.push(made.name);
            }
        }
    }
    Ok((in_place, left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::told::Told;

    /// Bug: the whole log was read once for each branch.
    #[test]
    fn what_is_known_is_not_read_again() {
        let commit = |id: &str| {
            serde_json::json!({
                "id": id, "parents": [], "time": "", "message": "", "author": "", "agent": "",
                "session": null, "run": "", "model": "", "tool_call": "", "pairs": {}, "tree": "",
                "used_bytes": 0, "inodes": 0, "conflicts": 0, "files": [0, 0, 0], "bytes": [0, 0, 0],
            })
        };
        let server = Told::new(move |call, _| {
            let (items, next) = match call.rsplit_once("after=").map(|(_, after)| after) {
                None => ([commit("e"), commit("d")], Some("c,b")),
                Some("c%2Cb") => ([commit("c"), commit("b")], Some("a,a2")),
                Some(_) => ([commit("a"), commit("a2")], None),
            };
            let page = serde_json::json!({ "items": items, "next": next });
            (200, page.to_string())
        });
        let client = server.client();
        let ids = |known: &[&str]| {
            let is_known = |id: &str| known.contains(&id);
            let commits = history_beyond(&client, "w", "main", is_known).unwrap();
            commits
                .into_iter()
                .map(|commit| commit.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(&[]), ["e", "d", "c", "b", "a", "a2"]);
        // One of the two lines of work is known; then both are.
        assert_eq!(ids(&["b", "a"]), ["e", "d", "c", "a2"]);
        assert_eq!(ids(&["b", "c", "a", "a2"]), ["e", "d"]);
        assert_eq!(server.heard().len(), 3 + 3 + 1);
    }
}
