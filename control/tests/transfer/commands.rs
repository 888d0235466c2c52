//! The commands that carry trees.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Server, json, run};

/// Exit codes.
pub(crate) const USAGE: i32 = 2;
pub(crate) const CONFLICT: i32 = 3;
pub(crate) const NOT_FOUND: i32 = 4;
pub(crate) const RETRY: i32 = 6;

/// A place for everything, the data directory in it, and a server of that.
pub(crate) fn started() -> (TempDir, PathBuf, Server) {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("data");
    let server = Server::start("up", &dir);
    (place, dir, server)
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn import(dir: &Path, path: &Path, more: &[&str]) -> Value {
    json(&[&["import", text(path)], more].concat(), dir)
}

pub(crate) fn export(dir: &Path, version: &str, dest: &Path, more: &[&str]) -> Value {
    json(&[&["export", version, text(dest)], more].concat(), dir)
}

pub(crate) fn is_sound(dir: &Path) {
    let checked = run(&["check"], dir);
    assert!(checked.status.success(), "{checked:?}");
}

/// Ends a server without its help; what it leaves is sound.
pub(crate) fn killed_is_sound(server: Server, dir: &Path) {
    server.kill();
    is_sound(dir);
}

/// Sessions that are open.
pub(crate) fn sessions(dir: &Path) -> usize {
    json(&["session", "ls"], dir).as_array().unwrap().len()
}
