//! Histories from one installation to another, and to and from git.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;
    use std::process::{Command, Output};

    use crate::support::{Server, fails, holdfast, json, run};
    use serde_json::Value;

    /// Exit codes.
    const USAGE: i32 = 2;
    const CONFLICT: i32 = 3;
    const NOT_FOUND: i32 = 4;
    const RETRY: i32 = 6;

    fn text(path: &Path) -> &str {
        path.to_str().unwrap()
    }

    /// Kinds, modes, times of change and content of all that is below a directory, but for `.git`.
    fn described(root: &Path) -> BTreeMap<Vec<u8>, String> {
        let mut found = BTreeMap::new();
        let mut rest = vec![root.to_owned()];
        while let Some(path) = rest.pop() {
            let stat = fs::symlink_metadata(&path).unwrap();
            let name = path
                .strip_prefix(root)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec();
            let content = if stat.is_symlink() {
                fs::read_link(&path)
                    .unwrap()
                    .as_os_str()
                    .as_bytes()
                    .to_vec()
            } else if stat.is_file() {
                fs::read(&path).unwrap()
            } else {
                let below = fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path());
                rest.extend(below.filter(|path| !path.ends_with(".git")));
                Vec::new()
            };
            let hash = blake3::hash(&content);
            let time = (stat.mtime(), stat.mtime_nsec(), stat.nlink());
            found.insert(name, format!("{:o} {time:?} {hash}", stat.mode()));
        }
        found
    }

    /// The same without times.
    fn contents(root: &Path) -> BTreeMap<Vec<u8>, (u32, Vec<u8>)> {
        let mut found = BTreeMap::new();
        for name in described(root).into_keys() {
            let path = root.join(std::ffi::OsStr::from_bytes(&name));
            let stat = fs::symlink_metadata(&path).unwrap();
            if stat.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, (0, target.as_os_str().as_bytes().to_vec()));
            } else if stat.is_file() {
                found.insert(name, (stat.mode() & 0o100, fs::read(&path).unwrap()));
            }
        }
        found
    }

    fn exported(
        dir: &Path,
        place: &Path,
        workspace: &str,
        version: &str,
    ) -> BTreeMap<Vec<u8>, String> {
        let out = place.join(format!("{workspace} {}", version.replace('/', "_")));
        json(
            &["export", version, text(&out), "--workspace", workspace],
            dir,
        );
        let described = described(&out);
        fs::remove_dir_all(&out).unwrap();
        described
    }

    fn log(dir: &Path, workspace: &str, version: &str) -> Vec<Value> {
        let log = json(&["log", version, "--workspace", workspace], dir);
        log.as_array().unwrap().clone()
    }

    /// A workspace with two branches and a tag.
    fn grow(dir: &Path, tree: &Path) {
        fs::create_dir_all(tree.join("dir/sub")).unwrap();
        fs::write(tree.join("dir/large"), vec![5; 500_000]).unwrap();
        fs::write(tree.join("dir/sub/small"), b"small").unwrap();
        fs::hard_link(tree.join("dir/large"), tree.join("again")).unwrap();
        symlink("dir/large", tree.join("link")).unwrap();
        json(
            &["import", text(tree), "-m", "one", "--author", "alice"],
            dir,
        );
        json(
            &["ref", "create", "v1", "main", "--tag", "--protected"],
            dir,
        );
        json(&["ref", "create", "side", "main"], dir);
        fs::write(tree.join("dir/large"), vec![6; 400_000]).unwrap();
        fs::remove_file(tree.join("link")).unwrap();
        json(&["import", text(tree), "-m", "two", "--pair", "k=v"], dir);
        fs::remove_dir_all(tree.join("dir/sub")).unwrap();
        fs::write(tree.join("dir/sub"), b"now a file").unwrap();
        json(
            &["import", text(tree), "-m", "three", "--branch", "side"],
            dir,
        );
    }

    #[test]
    fn a_bundle_carries_everything() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (from, to) = (place.join("from"), place.join("to"));
        let _source = Server::start("up", &from);
        let target = Server::start("up", &to);
        grow(&from, &place.join("tree"));
        let file = place.join("all.bundle");
        let told = json(&["bundle", "..", text(&file)], &from);
        assert_eq!((&told["commits"], &told["refs"]), (&3.into(), &3.into()));
        fails(
            &["bundle", "..", text(&file)],
            &from,
            CONFLICT,
            &["exists", "--force"],
        );
        let taken = json(&["unbundle", text(&file), "--workspace", "copy"], &to);
        assert_eq!((&taken["commits"], &taken["known"]), (&3.into(), &0.into()));
        for version in ["main", "side", "v1", "main~1"] {
            let (here, there) = (
                exported(&from, place, "default", version),
                exported(&to, place, "copy", version),
            );
            assert_eq!(here, there, "{version}");
            for (old, new) in log(&from, "default", version)
                .iter()
                .zip(log(&to, "copy", version))
            {
                assert_ne!(old["id"], new["id"]);
                assert_eq!(old["id"], new["pairs"]["bundle.commit"]);
                for field in ["message", "author", "files", "used_bytes"] {
                    assert_eq!(old[field], new[field], "{version} {field}");
                }
            }
        }
        let tag = json(&["ref", "ls", "--workspace", "copy"], &to);
        let tag = tag
            .as_array()
            .unwrap()
            .iter()
            .find(|found| found["name"] == "v1")
            .unwrap()
            .clone();
        assert_eq!(
            (&tag["kind"], &tag["protected"]),
            (&"tag".into(), &true.into())
        );
        let again = json(&["unbundle", text(&file), "--workspace", "copy"], &to);
        assert_eq!((&again["commits"], &again["known"]), (&0.into(), &3.into()));
        altered(&to, place, &fs::read(&file).unwrap());
        what_is_new(&from, &to, place);
        target.kill();
        assert!(run(&["check"], &to).status.success());
    }

    /// Bundles that are not what was written leave nothing, not even the workspace.
    fn altered(to: &Path, place: &Path, whole: &[u8]) {
        let file = place.join("bad.bundle");
        let mut changed = whole.to_vec();
        changed[whole.len() / 2] ^= 1;
        let cases = [
            (changed, "altered"),
            (whole[..whole.len() - 1].to_vec(), "cut off"),
            (whole[..whole.len() / 3].to_vec(), "cut off"),
            ([whole, b"x"].concat(), "after the end"),
            (b"HFBN\x02".to_vec(), "version 2"),
            (b"PK\x03\x04zip".to_vec(), "no bundle"),
        ];
        for (bytes, said) in cases {
            fs::write(&file, bytes).unwrap();
            fails(
                &["unbundle", text(&file), "--workspace", "bad"],
                to,
                USAGE,
                &[said, "Nothing"],
            );
        }
        fails(&["log", "--workspace", "bad"], to, NOT_FOUND, &["bad"]);
        fails(
            &["unbundle", "/no/such", "--workspace", "bad"],
            to,
            NOT_FOUND,
            &["/no/such"],
        );
    }

    /// A bundle of a range builds on what is there.
    fn what_is_new(from: &Path, to: &Path, place: &Path) {
        let tree = place.join("tree");
        fs::write(tree.join("newest"), b"newest").unwrap();
        let old = json(&["show"], from)["id"].as_str().unwrap().to_owned();
        json(&["import", text(&tree), "-m", "four"], from);
        let file = place.join("new.bundle");
        let told = json(&["bundle", &format!("{old}..main"), text(&file)], from);
        assert_eq!((&told["commits"], &told["refs"]), (&1.into(), &1.into()));
        let unbundle = ["unbundle", text(&file), "--workspace", "other"];
        fails(&unbundle, to, CONFLICT, &["builds on", &old]);
        fails(&["log", "--workspace", "other"], to, NOT_FOUND, &["other"]);
        let taken = json(&["unbundle", text(&file), "--workspace", "copy"], to);
        assert_eq!(taken["refs"][0], "main");
        assert_eq!(
            exported(from, place, "default", "main"),
            exported(to, place, "copy", "main")
        );
        // What has gone on differently is left alone.
        json(
            &[
                "import",
                text(&tree.join("dir").parent().unwrap().join("dir")),
                "--workspace",
                "copy",
            ],
            to,
        );
        fs::write(tree.join("newest"), b"newer still").unwrap();
        json(&["import", text(&tree), "-m", "five"], from);
        json(&["bundle", "main~1..main", text(&file), "--force"], from);
        let here = json(&["show", "--workspace", "copy"], to)["id"].clone();
        let taken = json(&["unbundle", text(&file), "--workspace", "copy"], to);
        assert_eq!(
            (&taken["commits"], &taken["left"][0]),
            (&1.into(), &"main".into())
        );
        assert_eq!(json(&["show", "--workspace", "copy"], to)["id"], here);
        fails(
            &["bundle", "main..main", text(&place.join("none"))],
            from,
            NOT_FOUND,
            &["no commits"],
        );
        // What nothing would name is not bundled.
        for range in ["main~1", "main~2..main~1", &old] {
            fails(
                &["bundle", range, text(&place.join("none"))],
                from,
                USAGE,
                &["no branch or tag", "ref create"],
            );
        }
        assert!(!place.join("none").exists());
        pins_of_another_run(from, to, &file);
    }

    /// Another run of the same `unbundle` may still need its pins.
    fn pins_of_another_run(from: &Path, to: &Path, file: &Path) {
        let tip = json(&["show"], from)["id"].as_str().unwrap().to_owned();
        let note = format!("until `holdfast unbundle` of {tip} ends (run 00)");
        let copy = ["--workspace", "copy"];
        json(
            &[&["pin", "add", "main~1", "--note", &note], &copy[..]].concat(),
            to,
        );
        json(
            &[&["pin", "add", "side", "--note", "mine"], &copy[..]].concat(),
            to,
        );
        let done = run(&["unbundle", text(file), "--workspace", "copy"], to);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success() && said.contains("holdfast pin rm"),
            "{said}"
        );
        let left = json(&["pin", "ls", "--workspace", "copy"], to);
        let mut notes: Vec<&str> = left
            .as_array()
            .unwrap()
            .iter()
            .map(|pin| pin["note"].as_str().unwrap())
            .collect();
        notes.sort_unstable();
        assert_eq!(notes, ["mine", &note]);
    }

    #[test]
    fn a_file_of_many_small_blocks_is_kept() {
        use std::os::unix::fs::FileExt;
        /// Together more than one flush carries; each small enough to live beside the metadata.
        const PARTS: u64 = 600;
        const BLOCK: u64 = 128 * 1024;
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (from, to, tree) = (place.join("from"), place.join("to"), place.join("tree"));
        fs::create_dir(&tree).unwrap();
        let content = |part: u64| vec![u8::try_from(part % 251).unwrap() + 1; 16_000];
        let file = fs::File::create(tree.join("parts")).unwrap();
        for part in 0..PARTS {
            file.write_all_at(&content(part), part * BLOCK).unwrap();
        }
        let _source = Server::start("up", &from);
        let target = Server::start("up", &to);
        json(&["import", text(&tree)], &from);
        fs::write(tree.join("small"), b"small").unwrap();
        json(&["import", text(&tree)], &from);
        let bundle = place.join("bundle");
        json(&["ref", "create", "old", "main~1", "--tag"], &from);
        json(&["bundle", "old", text(&bundle)], &from);
        let old = fs::metadata(&bundle).unwrap().len();
        json(&["bundle", "main", text(&bundle), "--force"], &from);
        // The second commit does not carry the file again.
        assert!(fs::metadata(&bundle).unwrap().len() < old + 2000);
        json(&["unbundle", text(&bundle), "--workspace", "copy"], &to);
        let out = place.join("out");
        json(&["export", "main", text(&out), "--workspace", "copy"], &to);
        let file = fs::File::open(out.join("parts")).unwrap();
        let end = (PARTS - 1) * BLOCK + 16_000;
        assert_eq!(file.metadata().unwrap().len(), end);
        for part in 0..PARTS {
            let mut bytes = vec![0; 16_000];
            file.read_exact_at(&mut bytes, part * BLOCK).unwrap();
            assert!(bytes == content(part), "part {part}");
        }
        target.kill();
        assert!(run(&["check"], &to).status.success());
    }

    fn git(repository: &Path, args: &[&str]) -> String {
        let output = Command::new("git")
            .arg("-C")
            .arg(repository)
            .args([
                "-c",
                "user.name=Ann O'Nym",
                "-c",
                "user.email=ann@example.org",
            ])
            .args([
                "-c",
                "commit.gpgsign=false",
                "-c",
                "init.defaultBranch=trunk",
            ])
            .args(args)
            .env("GIT_AUTHOR_DATE", "1700000000 +0530")
            .env("GIT_COMMITTER_DATE", "1700000100 -0800")
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn commit(repository: &Path, message: &str) -> String {
        git(repository, &["add", "-A"]);
        git(repository, &["commit", "-q", "-m", message]);
        git(repository, &["rev-parse", "HEAD"])
    }

    /// A history with a merge, and with all that git has.
    fn repository(path: &Path) {
        fs::create_dir_all(path.join("deep/er")).unwrap();
        git(path, &["init", "-q"]);
        fs::write(path.join("README"), b"one\n").unwrap();
        fs::write(path.join("deep/er/\"quoted\"\né"), vec![9; 300_000]).unwrap();
        fs::write(path.join("deep/run"), b"#!/bin/sh\n").unwrap();
        fs::set_permissions(path.join("deep/run"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink("../README", path.join("deep/link")).unwrap();
        commit(path, "first\n\nwith a body");
        git(path, &["checkout", "-q", "-b", "topic"]);
        fs::write(path.join("topic"), b"topic\n").unwrap();
        fs::remove_file(path.join("deep/link")).unwrap();
        commit(path, "topic");
        git(path, &["checkout", "-q", "trunk"]);
        fs::write(path.join("README"), b"two\n").unwrap();
        fs::write(path.join("becomes a directory"), b"").unwrap();
        commit(path, "second");
        git(path, &["merge", "-q", "--no-ff", "-m", "merge", "topic"]);
        fs::remove_file(path.join("becomes a directory")).unwrap();
        fs::create_dir(path.join("becomes a directory")).unwrap();
        fs::write(path.join("becomes a directory/file"), b"x").unwrap();
        commit(path, "last");
    }

    #[test]
    fn a_git_history_goes_in_and_comes_out_with_its_ids() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (dir, source) = (place.join("data"), place.join("source"));
        repository(&source);
        let server = Server::start("up", &dir);
        let import = ["import", "--git", text(&source)];
        let told = json(&import, &dir);
        assert_eq!(told["commits"], 5);
        let commits = log(&dir, "default", "main");
        assert_eq!(commits.len(), 5);
        let head = git(&source, &["rev-parse", "HEAD"]);
        assert_eq!(commits[0]["pairs"]["git.commit"], head.as_str());
        assert_eq!(commits[0]["author"], "Ann O'Nym <ann@example.org>");
        assert_eq!(commits[1]["parents"].as_array().unwrap().len(), 2);
        assert_eq!(commits[4]["message"], "first\n\nwith a body\n");
        let line = "Ann O'Nym <ann@example.org> 1700000000 +0530";
        assert_eq!(commits[4]["pairs"]["git.author"], line);
        let out = place.join("out");
        json(&["export", "main", text(&out)], &dir);
        assert_eq!(contents(&out), contents(&source));
        // Again there is nothing new; then there is one.
        assert_eq!(json(&import, &dir)["commits"], 0);
        fs::write(source.join("README"), b"three\n").unwrap();
        let head = commit(&source, "one more");
        assert_eq!(json(&import, &dir)["commits"], 1);
        // Whatever came from git goes back as it was, to the last bit.
        let back = place.join("back");
        let told = json(&["export", "main", text(&back), "--git", "--history"], &dir);
        assert_eq!(told["git_commit"], head.as_str());
        git(&back, &["fsck", "--strict"]);
        assert_eq!(contents(&back), contents(&source));
        let one = place.join("one");
        json(
            &[
                "export",
                "main",
                text(&one),
                "--git",
                "--git-branch",
                "only",
            ],
            &dir,
        );
        assert_eq!(git(&one, &["rev-list", "--count", "only"]), "1");
        let tree = |path: &Path, name: &str| git(path, &["rev-parse", &format!("{name}^{{tree}}")]);
        assert_eq!(tree(&one, "only"), tree(&source, "HEAD"));
        refusals(&dir, place, &source, &back);
        // A branch or tag is the branch in git, whatever its name has in it.
        json(&["ref", "create", "agent/fix-1.2", "main~1"], &dir);
        let trunk = git(&back, &["rev-parse", "main"]);
        let export = ["export", "agent/fix-1.2", text(&back), "--git", "--history"];
        assert_eq!(json(&export, &dir)["branch"], "agent/fix-1.2");
        let made = git(&back, &["rev-parse", "refs/heads/agent/fix-1.2"]);
        assert_eq!(made, git(&source, &["rev-parse", "trunk~1"]));
        assert_eq!(git(&back, &["rev-parse", "main"]), trunk);
        server.kill();
        assert!(run(&["check"], &dir).status.success());
    }

    fn refusals(dir: &Path, place: &Path, source: &Path, back: &Path) {
        fails(
            &["import", "--git", text(place)],
            dir,
            USAGE,
            &["not a git repository", "without --git"],
        );
        fails(
            &["import", "--git", text(&place.join("none"))],
            dir,
            NOT_FOUND,
            &["none"],
        );
        let empty = place.join("empty");
        fs::create_dir(&empty).unwrap();
        git(&empty, &["init", "-q"]);
        fails(
            &["import", "--git", text(&empty)],
            dir,
            USAGE,
            &["no commits yet"],
        );
        for (revision, code, said) in [
            ("none", NOT_FOUND, "none"),
            ("HEAD:README", NOT_FOUND, "no commit"),
            ("--all", NOT_FOUND, "no commit"),
            ("topic..trunk", USAGE, "is a range"),
            ("^topic", USAGE, "is a range"),
        ] {
            let revision = format!("--git-ref={revision}");
            let import = ["import", "--git", text(source), &revision];
            fails(&import, dir, code, &[said]);
        }
        fails(
            &["export", "main", text(&place.join("data")), "--git"],
            dir,
            CONFLICT,
            &["no git repository"],
        );
        let plain = place.join("plain");
        fs::create_dir(&plain).unwrap();
        fs::write(plain.join("a"), b"a").unwrap();
        json(
            &[
                "import",
                text(&plain),
                "--branch",
                "plain",
                "--author",
                "bob",
            ],
            dir,
        );
        fails(
            &["import", "--git", text(source), "--branch", "plain"],
            dir,
            CONFLICT,
            &["plain", "another branch"],
        );
        gone_on(dir, back);
    }

    /// A branch of git that has gone on differently stays.
    fn gone_on(dir: &Path, back: &Path) {
        let before = git(back, &["rev-parse", "main"]);
        let export = [
            "export",
            "plain",
            text(back),
            "--git",
            "--git-branch",
            "main",
        ];
        fails(&export, dir, CONFLICT, &["main"]);
        assert_eq!(git(back, &["rev-parse", "main"]), before);
        json(&["export", "plain", text(back), "--git"], dir);
        assert_eq!(git(back, &["show", "-s", "--format=%an", "plain"]), "bob");
        assert_eq!(git(back, &["show", "plain:a"]), "a");
    }

    #[test]
    fn branches_of_a_git_repository_share_what_they_come_from() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (dir, source) = (place.join("data"), place.join("source"));
        repository(&source);
        let server = Server::start("up", &dir);
        json(&["import", "--git", text(&source)], &dir);
        git(&source, &["checkout", "-q", "-b", "aside", "trunk~1"]);
        fs::write(source.join("aside"), b"aside\n").unwrap();
        commit(&source, "aside");
        let bring = |revision: &str, branch: &str| {
            let what = ["--git-ref", revision, "--branch", branch];
            json(
                &[&["import", "--git", text(&source)], &what[..]].concat(),
                &dir,
            )
        };
        assert_eq!(bring("aside", "side")["commits"], 1);
        let (side, main) = (log(&dir, "default", "side"), log(&dir, "default", "main"));
        assert_eq!(side[1]["id"], main[1]["id"]);
        // All of it is there: a branch is made, and nothing more.
        assert_eq!(bring("topic", "old")["commits"], 0);
        assert_eq!(log(&dir, "default", "old")[0]["message"], "topic\n");
        let topic = git(&source, &["rev-parse", "topic"]);
        let old = &log(&dir, "default", "old")[0];
        assert!(main.contains(old) && old["pairs"]["git.commit"] == topic.as_str());
        // A branch that is there moves on to what another one has.
        bring("trunk~1", "old");
        let old = log(&dir, "default", "old");
        assert_eq!(old[0]["parents"], main[1]["parents"]);
        // Both have changed something since, and go together.
        let session = json(&["session", "open", "--version", "side"], &dir);
        let id = session["id"].as_str().unwrap();
        json(&["session", "publish", id, "--branch", "main"], &dir);
        let out = place.join("out");
        json(&["export", "main", text(&out)], &dir);
        assert_eq!(fs::read(out.join("aside")).unwrap(), b"aside\n");
        assert_eq!(
            fs::read(out.join("becomes a directory/file")).unwrap(),
            b"x"
        );
        // Who says to be what git has, and comes from something else, is not believed.
        let head = commit_more(&source);
        let plain = place.join("plain");
        fs::create_dir(&plain).unwrap();
        let pair = format!("git.commit={head}");
        let forged = [
            "import",
            text(&plain),
            "--branch",
            "forged",
            "--pair",
            &pair,
        ];
        json(&forged, &dir);
        assert_eq!(bring("aside", "side")["commits"], 1);
        assert!(run(&["cat", "side", "more"], &dir).status.success());
        server.kill();
        assert!(run(&["check"], &dir).status.success());
    }

    fn commit_more(repository: &Path) -> String {
        fs::write(repository.join("more"), b"more\n").unwrap();
        commit(repository, "more")
    }

    /// Commits that come in are on no branch before the last is there, and kept meanwhile.
    #[test]
    fn what_a_git_import_has_brought_is_kept_until_its_end() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (dir, source) = (place.join("data"), place.join("source"));
        repository(&source);
        let server = Server::start("up", &dir);
        // A git that tells what is pinned each time it lists what a commit has.
        let (bin, told) = (place.join("bin"), place.join("told"));
        let first = format!(
            "{{ {} --json pin ls --data-dir {} | tr -d '\\n'; echo; }} >> {}",
            env!("CARGO_BIN_EXE_holdfast"),
            text(&dir),
            text(&told),
        );
        let done = imported_with(&bin, &first, &source, &dir);
        assert!(done.status.success(), "{done:?}");
        let told = fs::read_to_string(&told).unwrap();
        let told: Vec<Vec<Value>> = told
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(told.len() >= 5 && told[0].is_empty(), "{told:?}");
        let last = told.last().unwrap();
        let merge = &log(&dir, "default", "main")[1];
        assert_eq!(last.len(), 1, "{told:?}");
        assert_eq!(last[0]["commit"], merge["id"]);
        // Both sides of a merge.
        assert!(told.iter().any(|pins| pins.len() == 2), "{told:?}");
        let left = json(&["pin", "ls"], &dir);
        assert!(left.as_array().unwrap().is_empty(), "{left}");
        server.kill();
    }

    /// Imports with a git that does something first each time it lists what a commit has.
    fn imported_with(bin: &Path, first: &str, source: &Path, dir: &Path) -> Output {
        let import = ["import", "--git", text(source), "--data-dir", text(dir)];
        with_git(bin, ("ls-tree", first), &import)
    }

    /// Runs a command with a git that does something first when it is called with a word.
    fn with_git(bin: &Path, (word, first): (&str, &str), args: &[&str]) -> Output {
        fs::create_dir(bin).unwrap();
        let git = Command::new("sh")
            .args(["-c", "command -v git"])
            .output()
            .unwrap();
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *{word}*) {first};; esac\nexec {} \"$@\"\n",
            String::from_utf8(git.stdout).unwrap().trim(),
        );
        fs::write(bin.join("git"), script).unwrap();
        fs::set_permissions(bin.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", text(bin), std::env::var("PATH").unwrap());
        holdfast().args(args).env("PATH", path).output().unwrap()
    }

    /// The server is killed in the midst of an import, which is then done again.
    #[test]
    fn pins_of_an_import_that_was_cut_short_are_told_when_it_is_repeated() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (dir, source) = (place.join("data"), place.join("source"));
        repository(&source);
        let server = Server::start("up", &dir);
        let calls = place.join("calls");
        let third = format!(
            "echo >> {0}; [ $(wc -l < {0}) -ne 3 ] || kill -9 {1}",
            text(&calls),
            server.pid()
        );
        let broken = imported_with(&place.join("bin"), &third, &source, &dir);
        assert_eq!(broken.status.code(), Some(RETRY), "{broken:?}");
        server.kill();
        let server = Server::start("up", &dir);
        let pins = json(&["pin", "ls"], &dir);
        let head = git(&source, &["rev-parse", "HEAD"]);
        let note = format!("until `holdfast import --git` of {head} ends (run ");
        let held = pins.as_array().unwrap();
        let is_own = |pin: &Value| pin["note"].as_str().unwrap().starts_with(&note);
        assert!(!held.is_empty() && held.iter().all(is_own), "{pins}");
        let again = run(&["import", "--git", text(&source)], &dir);
        assert!(again.status.success(), "{again:?}");
        // The other run may still be under way somewhere, for all that is known here.
        assert_eq!(json(&["pin", "ls"], &dir), pins);
        let said = String::from_utf8_lossy(&again.stderr);
        assert!(said.contains("holdfast pin rm"), "{said}");
        for pin in held {
            assert!(said.contains(pin["commit"].as_str().unwrap()), "{said}");
        }
        server.kill();
    }

    #[test]
    fn names_that_git_does_not_take_do_not_keep_others_out() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (dir, tree) = (place.join("data"), place.join("tree"));
        fs::create_dir_all(tree.join(".git/deep")).unwrap();
        let content = "content\n".repeat(100_000);
        fs::write(tree.join(".git/deep/file"), &content).unwrap();
        fs::set_permissions(
            tree.join(".git/deep/file"),
            fs::Permissions::from_mode(0o755),
        )
        .unwrap();
        fs::write(tree.join(".git/empty"), b"").unwrap();
        fs::hard_link(tree.join(".git/deep/file"), tree.join("file")).unwrap();
        fs::hard_link(tree.join(".git/deep/file"), tree.join("more")).unwrap();
        fs::hard_link(tree.join(".git/empty"), tree.join("empty")).unwrap();
        let fifo = Command::new("mkfifo").arg(tree.join("fifo")).status();
        assert!(fifo.unwrap().success());
        fs::hard_link(tree.join("fifo"), tree.join("same")).unwrap();
        let server = Server::start("up", &dir);
        let pair = [
            "--pair",
            "git.author=nobody",
            "--pair",
            "git.committer=x\u{e9} <> 1",
        ];
        let import = ["import", text(&tree), "--author", "ann"];
        json(&[&import[..], &pair[..]].concat(), &dir);
        let out = place.join("out");
        let told = json(&["export", "main", text(&out), "--git"], &dir);
        assert_eq!(told["left_out"], 3);
        for name in ["file", "more"] {
            assert_eq!(fs::read_to_string(out.join(name)).unwrap(), content);
            assert_eq!(fs::metadata(out.join(name)).unwrap().mode() & 0o100, 0o100);
        }
        assert_eq!(fs::read(out.join("empty")).unwrap(), b"");
        assert!(!out.join("same").exists());
        assert_eq!(git(&out, &["show", "-s", "--format=%an %cn"]), "ann ann");
        server.kill();
    }

    /// Bug: a repository that could not be made was left, half made.
    #[test]
    fn a_git_export_that_fails_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (dir, tree, outs) = (place.join("data"), place.join("tree"), place.join("outs"));
        fs::create_dir_all(&outs).unwrap();
        fs::create_dir(&tree).unwrap();
        let server = Server::start("up", &dir);
        json(&["import", text(&tree)], &dir);
        for word in ["init", "fast-import", "reset"] {
            let out = outs.join("out");
            let export = [
                "export",
                "main",
                text(&out),
                "--git",
                "--data-dir",
                text(&dir),
            ];
            let failed = with_git(&place.join(word), (word, "exit 1"), &export);
            let said = String::from_utf8_lossy(&failed.stderr);
            assert!(
                !failed.status.success() && said.contains("stays as it was"),
                "{said}"
            );
            assert_eq!(fs::read_dir(&outs).unwrap().count(), 0, "{word}");
        }
        server.kill();
    }

    /// What a commit of git has beside what every one has is not kept: that is told.
    #[test]
    fn commits_with_more_than_git_has_in_each_are_told() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let (dir, source) = (place.join("data"), place.join("source"));
        fs::create_dir(&source).unwrap();
        git(&source, &["init", "-q"]);
        fs::write(source.join("f"), b"f").unwrap();
        commit(&source, "plain");
        let encoding = ["-c", "i18n.commitEncoding=ISO-8859-1"];
        let message = ["commit", "-q", "--allow-empty", "-m", "encoded"];
        git(&source, &[&encoding[..], &message[..]].concat());
        let server = Server::start("up", &dir);
        let told = json(&["import", "--git", text(&source)], &dir);
        assert_eq!((&told["commits"], &told["adorned"]), (&2.into(), &1.into()));
        let back = place.join("back");
        json(&["export", "main", text(&back), "--git", "--history"], &dir);
        let ids = |path: &Path| git(path, &["rev-list", "--reverse", "HEAD"]);
        let (there, here) = (ids(&source), ids(&back));
        let (there, here): (Vec<&str>, Vec<&str>) =
            (there.lines().collect(), here.lines().collect());
        assert_eq!(there[0], here[0]);
        assert_ne!(there[1], here[1]);
        server.kill();
    }
}
