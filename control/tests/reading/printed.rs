//! What commands print.

use std::path::Path;

use serde_json::Value;

use crate::support::{publish, run};

pub(crate) const USAGE: i32 = 2;
pub(crate) const NOT_FOUND: i32 = 4;

/// What a command that succeeds prints.
pub(crate) fn out(args: &[&str], dir: &Path) -> Vec<u8> {
    let output = run(args, dir);
    assert!(output.status.success(), "{args:?}: {output:?}");
    output.stdout
}

pub(crate) fn text(args: &[&str], dir: &Path) -> String {
    String::from_utf8(out(args, dir)).unwrap()
}

pub(crate) fn field<'a>(items: &'a Value, name: &str) -> Vec<&'a str> {
    let items = items.as_array().unwrap().iter();
    items.map(|item| item[name].as_str().unwrap()).collect()
}

/// Publishes a session; gives the commit that the branch is at then.
pub(crate) fn published(dir: &Path, session: &Value, more: &[&str]) -> String {
    publish(dir, session, more)["head"]
        .as_str()
        .unwrap()
        .to_owned()
}
