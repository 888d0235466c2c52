//! What two sessions change, and what comes of it.

use std::path::Path;

use serde_json::Value;

use crate::support::files::mounted;
use crate::support::{Server, json, publish};

/// Two sessions that begin with one commit, and what comes of publishing both.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) base: &'static [&'static str],
    pub(crate) ours: &'static [&'static str],
    pub(crate) theirs: &'static [&'static str],
    /// The merge that keeps both.
    pub(crate) tree: &'static [&'static str],
    pub(crate) conflicts: &'static [&'static str],
    /// How each is resolved: path and take.
    pub(crate) resolved: &'static [(&'static str, &'static str)],
    /// What is there then.
    pub(crate) end: &'static [&'static str],
    /// What policy `ours` makes of it, and `theirs`.
    pub(crate) policies: [&'static [&'static str]; 2],
}

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "content",
        base: &["mkdir d", "write d/f a"],
        ours: &["write d/f b"],
        theirs: &["save d/f c"],
        tree: &["d/", "d/f = b", "d/f~theirs = c"],
        conflicts: &["content d/f"],
        resolved: &[("d/f", "theirs")],
        end: &["d/", "d/f = c"],
        policies: [&["d/", "d/f = b"], &["d/", "d/f = c"]],
    },
    Case {
        name: "edit-delete",
        base: &["write f a", "write g a"],
        ours: &["rm f", "write g b"],
        theirs: &["write f b", "rm g"],
        tree: &["f = b", "g = b"],
        conflicts: &["edit-delete f", "edit-delete g"],
        resolved: &[("f", "ours"), ("g", "ours")],
        end: &["g = b"],
        policies: [&["g = b"], &["f = b"]],
    },
    Case {
        name: "rename-rename",
        base: &["write f a", "mkdir d", "write d/x x"],
        ours: &["mv f g", "mv d e"],
        theirs: &["mv f h", "mv d k"],
        tree: &["e/", "e/x = x", "g = a"],
        conflicts: &["rename-rename e", "rename-rename g"],
        resolved: &[("e", "theirs"), ("/g", "ours")],
        end: &["g = a", "k/", "k/x = x"],
        policies: [&["e/", "e/x = x", "g = a"], &["h = a", "k/", "k/x = x"]],
    },
    Case {
        name: "rename-delete",
        base: &["write f a"],
        ours: &["rm f"],
        theirs: &["mv f g"],
        tree: &["g = a"],
        conflicts: &["rename-delete g"],
        resolved: &[("g", "ours")],
        end: &[],
        policies: [&[], &["g = a"]],
    },
    Case {
        name: "create-create",
        base: &[],
        ours: &["write f a"],
        theirs: &["write f b"],
        tree: &["f = a", "f~theirs = b"],
        conflicts: &["create-create f"],
        resolved: &[("f", "both")],
        end: &["f = a", "f~theirs = b"],
        policies: [&["f = a"], &["f = b"]],
    },
    Case {
        name: "name-taken",
        base: &["write f a", "write g b"],
        ours: &["mv f h"],
        theirs: &["mv g h"],
        tree: &["h = a", "h~theirs = b"],
        conflicts: &["name-taken h"],
        // What ours has elsewhere goes back there.
        resolved: &[("h", "ours")],
        end: &["g = b", "h = a"],
        policies: [&["g = b", "h = a"], &["f = a", "h = b"]],
    },
    Case {
        name: "directory-name",
        base: &[],
        ours: &["write n a"],
        theirs: &["mkdir n", "write n/x x"],
        tree: &["n/", "n/x = x", "n~ours = a"],
        conflicts: &["directory-name n"],
        resolved: &[("n", "theirs")],
        end: &["n/", "n/x = x"],
        policies: [
            &["n/", "n/x = x", "n~ours = a"],
            &["n/", "n/x = x", "n~ours = a"],
        ],
    },
    Case {
        name: "directory-deleted",
        base: &["mkdir a", "mkdir a/b", "write a/b/old o"],
        ours: &["rm a/b/old", "rmdir a/b", "rmdir a"],
        theirs: &["write a/b/new n"],
        tree: &["a/", "a/b/", "a/b/new = n"],
        conflicts: &["directory-deleted a/b"],
        resolved: &[("a/b", "theirs")],
        end: &["a/", "a/b/", "a/b/new = n"],
        policies: [
            &["a/", "a/b/", "a/b/new = n"],
            &["a/", "a/b/", "a/b/new = n"],
        ],
    },
    Case {
        name: "cycle",
        base: &["mkdir a", "mkdir b"],
        ours: &["mv a b/a"],
        theirs: &["mv b a/b"],
        tree: &["b/", "b/a/"],
        conflicts: &["cycle b"],
        resolved: &[("b", "ours")],
        end: &["b/", "b/a/"],
        policies: [&["b/", "b/a/"], &["a/", "a/b/"]],
    },
    Case {
        name: "links",
        base: &["write f a", "ln f g"],
        ours: &["rm f"],
        theirs: &["rm g"],
        tree: &["g = a"],
        conflicts: &["links g"],
        resolved: &[("g", "theirs")],
        end: &["f = a"],
        policies: [&["g = a"], &["f = a"]],
    },
    Case {
        name: "attributes",
        base: &["write f a"],
        ours: &["chmod f 600"],
        theirs: &["chmod f 755"],
        tree: &["f = a 600"],
        conflicts: &["attributes f"],
        resolved: &[("f", "theirs")],
        end: &["f = a 755"],
        policies: [&["f = a 600"], &["f = a 755"]],
    },
    Case {
        name: "target",
        base: &["symlink l a"],
        ours: &["rm l", "symlink l b"],
        theirs: &["rm l", "symlink l c"],
        tree: &["l -> b", "l~theirs -> c"],
        conflicts: &["target l"],
        resolved: &[("l", "theirs")],
        end: &["l -> c"],
        policies: [&["l -> b"], &["l -> c"]],
    },
    Case {
        name: "type",
        base: &["write f a"],
        ours: &["write f b"],
        theirs: &["rm f", "symlink f t"],
        tree: &["f = b", "f~theirs -> t"],
        conflicts: &["type f"],
        resolved: &[("f", "theirs")],
        end: &["f -> t"],
        policies: [&["f = b"], &["f -> t"]],
    },
];

/// Publishes the base and our side; gives both sessions.
pub(crate) async fn begin(server: &Server, dir: &Path, workspace: &str, case: &Case) -> [Value; 2] {
    json(&["workspace", "create", workspace], dir);
    let (base, mut files) = mounted(server, dir, &[workspace]).await;
    files.script(case.base).await;
    publish(dir, &base, &["-m", "base"]);
    let (ours, mut files) = mounted(server, dir, &[workspace, "--agent", "left"]).await;
    files.script(case.ours).await;
    let (theirs, mut files) = mounted(server, dir, &[workspace, "--agent", "right"]).await;
    files.script(case.theirs).await;
    [ours, theirs]
}
