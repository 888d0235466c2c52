//! Lists that are longer than an answer.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::{list, text};
use crate::support::files::mounted;
use crate::support::{Server, id, json, publish};

/// All pages of a list of the API, each a page's members and the length of its text.
fn all_pages(server: &Server, path: &str) -> Vec<(usize, usize)> {
    let token = server.text("api_token");
    let (mut pages, mut after) = (Vec::new(), String::new());
    loop {
        let (status, page) = server.call("GET", &format!("{path}{after}"), Some(&token), b"");
        assert_eq!(status, 200, "{page}");
        let items = page["items"].as_array().unwrap().len();
        pages.push((items, page.to_string().len()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return pages,
        }
    }
}

/// Paths can be long: a page of conflicts is bounded in bytes, and so is every other answer.
#[tokio::test]
async fn long_lists_of_conflicts_come_in_pages() {
    const FILES: usize = 50;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    let mut top = String::new();
    for _ in 0..200 {
        top += &"d".repeat(255);
        files.mkdir(&top).await;
        top.push('/');
    }
    for number in 0..FILES {
        files.write(format!("{top}{number}"), b"base").await;
    }
    publish(dir, &session, &["-m", "base"]);
    let (ours, mut files) = mounted(&server, dir, &[]).await;
    for number in 0..FILES {
        files.write(format!("{top}{number}"), b"ours").await;
    }
    let (theirs, mut files) = mounted(&server, dir, &[]).await;
    for number in 0..FILES {
        files.write(format!("{top}{number}"), b"theirs").await;
    }
    let bounded = |path: &str| {
        let pages = all_pages(&server, path);
        assert!(pages.len() > 1, "{pages:?}");
        assert_eq!(pages.iter().map(|(items, _)| items).sum::<usize>(), FILES);
        assert!(pages.iter().all(|(_, bytes)| *bytes < 5 << 20), "{pages:?}");
    };
    let (one, two) = (id(&ours), id(&theirs));
    bounded(&format!("/v1/sessions/{one}/clashes?with={two}&limit=30"));
    let between = json(&["conflicts", "between", one, two], dir);
    let paths = |of: &Value| -> BTreeSet<String> {
        let items = of.as_array().unwrap();
        items
            .iter()
            .map(|it| text(&it["path"]).to_owned())
            .collect()
    };
    assert_eq!(paths(&between["items"]).len(), FILES);
    assert!(between["next"].is_null());
    publish(dir, &ours, &["-m", "ours"]);
    let merged = publish(dir, &theirs, &["-m", "theirs", "--policy", "keep-both"]);
    assert_eq!(merged["conflicts_total"], FILES);
    bounded("/v1/workspaces/default/conflicts?version=main");
    let listed = json(&["conflicts", "ls"], dir);
    assert_eq!(paths(&listed).len(), FILES);
    let (merged, _) = mounted(&server, dir, &[]).await;
    bounded(&format!("/v1/sessions/{}/conflicts?limit=500", id(&merged)));
    assert_eq!(list(dir, &merged).len(), FILES);
}
