//! Directories listed, files found and printed, by commands and over HTTP.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::Value;

use crate::printed::{NOT_FOUND, USAGE, field, out, published, text};
use crate::support::files::mounted;
use crate::support::{Server, fails, holdfast, json, publish, run};

#[tokio::test]
async fn versions_are_listed_found_and_printed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    let large: Vec<u8> = (0..1_300_000_u32)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    files.mkdir("src").await;
    files.mkdir("src/deep").await;
    files.write("src/main.rs", b"fn main() {}\n").await;
    files.write("src/deep/lib.rs", b"").await;
    files.write("large", &large).await;
    files.symlink("link", "src/main.rs").await;
    files.write(b"odd\xff%\n".as_slice(), b"odd").await;
    files.write_at(b"sparse", 900_000, b"end").await;
    // More than is asked for at a time.
    files.write_at(b"src/vast", 70 << 20, b"end").await;
    publish(dir, &session, &["-m", "one"]);
    files.remove("src/vast").await;
    files.write("src/main.rs", b"fn main() { run() }\n").await;
    files.remove("large").await;
    publish(dir, &session, &["-m", "two"]);

    list(dir);
    print(dir, &large);
    look_for(dir);
    refuse(dir);
    ask_for_pages(&server);
    ask_for_ranges(&server, &large);
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(json(&["check"], dir)["clean"], true);
}

/// Whoever may search chooses the names and the pattern. A page ends when comparing them took long.
#[tokio::test]
async fn a_search_that_takes_long_goes_on_in_the_next_page() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    let name = |number: usize| format!("{}{number:03}", "a".repeat(252));
    for number in 0..300 {
        files.write(name(number), b"").await;
    }
    files.write(format!("{}b", "a".repeat(252)), b"").await;
    publish(dir, &session, &["-m", "names"]);
    let pattern = format!("*{}b", "a".repeat(126));
    let token = server.text("api_token");
    let path = format!("/v1/workspaces/default/find?version=main&name={pattern}");
    let (_, page) = server.call("GET", &path, Some(&token), b"");
    assert!(page["next"].is_string(), "{page}");
    let found = json(&["find", "main", "--name", &pattern], dir);
    assert_eq!(found.as_array().unwrap().len(), 1);
    let all = json(&["find", "main", "--name", "*a*0??"], dir);
    assert_eq!(all.as_array().unwrap().len(), 100);
}

fn list(dir: &Path) {
    let listed = json(&["ls", "main~1"], dir);
    assert_eq!(
        field(&listed, "path"),
        ["large", "link", "odd\u{fffd}%\n", "sparse", "src"]
    );
    assert_eq!(listed[2]["path_bytes"], "odd%FF%25%0A");
    assert_eq!(
        (&listed[0]["size"], &listed[0]["kind"]),
        (&1_300_000.into(), &"file".into())
    );
    assert_eq!(listed[1]["target"], "src/main.rs");
    assert_eq!(listed[3]["size"], 900_003);
    assert!(listed[3]["used"].as_u64().unwrap() < 300_000);
    assert_eq!(text(&["ls", "main", "/src/"], dir), "deep\nmain.rs\n");
    assert_eq!(text(&["ls", "main", "src/main.rs"], dir), "main.rs\n");
    assert_eq!(
        text(&["ls", "main"], dir),
        "link\nodd\\xff%\\n\nsparse\nsrc\n"
    );
    let long = text(&["ls", "-l", "main"], dir);
    assert!(
        long.contains("link -> src/main.rs") && long.contains("900003"),
        "{long}"
    );
}

fn print(dir: &Path, large: &[u8]) {
    assert_eq!(out(&["cat", "main~1", "large"], dir), large);
    assert_eq!(
        out(&["cat", "main~1", "src/main.rs"], dir),
        b"fn main() {}\n"
    );
    assert_eq!(out(&["cat", "main", "src/deep/lib.rs"], dir), b"");
    let mut sparse = vec![0; 900_000];
    sparse.extend_from_slice(b"end");
    assert_eq!(out(&["cat", "main", "sparse"], dir), sparse);
    let part = [
        "cat", "main~1", "large", "--offset", "500000", "--length", "300000",
    ];
    assert_eq!(out(&part, dir), large[500_000..800_000]);
    assert_eq!(
        out(&["cat", "main~1", "large", "--offset", "1299999"], dir),
        large[1_299_999..]
    );
    assert_eq!(
        out(&["cat", "main~1", "large", "--offset", "1300000"], dir),
        b""
    );
    // Bytes that are no UTF-8, as they are on the command line.
    let odd = holdfast()
        .args(["cat", "main"])
        .arg(OsStr::from_bytes(b"odd\xff%\n"))
        .arg("--data-dir")
        .arg(dir)
        .output()
        .unwrap();
    assert_eq!(odd.stdout, b"odd", "{odd:?}");
}

fn look_for(dir: &Path) {
    let sorted = |args: &[&str]| {
        let mut lines: Vec<String> = text(args, dir).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let all = sorted(&["find", "main"]);
    let expected = [
        "link",
        "odd\\xff%\\n",
        "sparse",
        "src",
        "src/deep",
        "src/deep/lib.rs",
        "src/main.rs",
    ];
    assert_eq!(all, expected);
    assert_eq!(
        sorted(&["find", "main", "src", "--type", "d"]),
        ["src/deep"]
    );
    assert_eq!(sorted(&["find", "main", "--type", "l"]), ["link"]);
    let rust = sorted(&["find", "main", "--name", "*.rs", "--type", "f"]);
    assert_eq!(rust, ["src/deep/lib.rs", "src/main.rs"]);
    assert_eq!(
        sorted(&["find", "main", "src/main.rs", "--name", "m*"]),
        ["src/main.rs"]
    );
    assert_eq!(sorted(&["find", "main", "--name", "none"]), [""; 0]);
    assert_eq!(
        out(&["find", "main", "--name", "odd*", "-0"], dir),
        b"odd\xff%\n\0"
    );
    let found = json(&["find", "main~1", "--name", "l[ai]*", "--limit", "9"], dir);
    let mut names = field(&found, "path");
    names.sort_unstable();
    assert_eq!(names, ["large", "link", "src/deep/lib.rs"]);
    assert_eq!(
        json(&["find", "main", "--name", "none"], dir),
        Value::Array(vec![])
    );
    assert_eq!(
        json(&["find", "main", "--limit", "2"], dir)
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

fn refuse(dir: &Path) {
    for verb in ["ls", "cat", "find", "blame"] {
        fails(
            &[verb, "main", "src/none"],
            dir,
            NOT_FOUND,
            &["no such path", "src/none", "main"],
        );
        fails(
            &[verb, "main", "src/main.rs/x"],
            dir,
            NOT_FOUND,
            &["src/main.rs is a file"],
        );
        fails(
            &[verb, "main", "link/x"],
            dir,
            NOT_FOUND,
            &["symbolic link", "not followed"],
        );
        fails(
            &[verb, "main", "src/../x"],
            dir,
            USAGE,
            &["'..'", "root directory"],
        );
        fails(&[verb, "none", "src"], dir, NOT_FOUND, &["none"]);
    }
    fails(&["cat", "main", "src"], dir, USAGE, &["src is a directory"]);
    fails(&["cat", "main", "/"], dir, USAGE, &["root directory"]);
    fails(
        &["cat", "main", "link"],
        dir,
        USAGE,
        &["symbolic link", "src/main.rs"],
    );
    fails(
        &["--json", "cat", "main", "sparse"],
        dir,
        USAGE,
        &["no JSON"],
    );
    fails(&["find", "main", "--name", "["], dir, USAGE, &["no ]"]);
    fails(&["find", "main", "--type", "x"], dir, USAGE, &["x"]);
}

const BASE: &str = "/v1/workspaces/default";

/// Pages and paths over HTTP.
fn ask_for_pages(server: &Server) {
    let token = server.text("api_token");
    let get = |path: &str| server.call("GET", path, Some(&token), b"");
    let base = BASE;
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let (status, page) = get(&format!("{base}/entries?version=main~1&limit=2{after}"));
        assert_eq!(status, 200, "{page}");
        names.extend(field(&page["items"], "path").into_iter().map(str::to_owned));
        assert!(page["items"].as_array().unwrap().len() <= 2);
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", next.replace('%', "%25")),
            None => break,
        }
    }
    names.sort();
    assert_eq!(names, ["large", "link", "odd\u{fffd}%\n", "sparse", "src"]);
    let (_, whole) = get(&format!("{base}/find?version=main~1"));
    let mut pieces = Vec::new();
    let mut after = String::new();
    loop {
        let (_, page) = get(&format!("{base}/find?version=main~1&limit=1{after}"));
        pieces.extend(page["items"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", next.replace('%', "%25")),
            None => break,
        }
    }
    assert_eq!(Value::Array(pieces), whole["items"]);
    for (query, status) in [
        ("entries?path=odd%FF%25%0A", 200),
        ("entries?path=odd%EF%BF%BD%25%0A", 404),
        ("entries?path=%", 400),
        ("entries?path=a%00", 400),
        ("entries?path=a&path=b", 400),
        ("entries?after=x", 400),
        ("find?type=q", 400),
        ("find?name=%5B", 400),
        ("content", 400),
        ("content?path=src", 400),
        ("content?path=link", 400),
        ("content?path=sparse&limit=1", 400),
        ("content?path=sparse&version=none", 404),
        ("blame", 400),
        ("log?path=sparse&after=x", 400),
        ("diff?session=00ff", 404),
        ("diff?session=x", 400),
    ] {
        let (is, body) = get(&format!("{base}/{query}"));
        assert_eq!(is, status, "{query}: {body}");
    }
}

fn ask_for_ranges(server: &Server, large: &[u8]) {
    let token = server.text("api_token");
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build();
    let agent: ureq::Agent = agent.into();
    for (range, status, part, told) in [
        ("bytes=0-9", 206, 0..10, "bytes 0-9/1300000"),
        (
            "bytes=1299990-",
            206,
            1_299_990..1_300_000,
            "bytes 1299990-1299999/1300000",
        ),
        (
            "bytes=-5",
            206,
            1_299_995..1_300_000,
            "bytes 1299995-1299999/1300000",
        ),
        ("bytes=1300000-", 416, 0..0, "bytes */1300000"),
        ("bytes=0-1,5-6", 200, 0..1_300_000, ""),
    ] {
        let url = format!(
            "http://{}{BASE}/content?version=main~1&path=large",
            server.text("api_address")
        );
        let request = ureq::http::Request::builder()
            .uri(url)
            .header("authorization", format!("Bearer {token}"))
            .header("range", range);
        let mut response = agent.run(request.body(()).unwrap()).unwrap();
        assert_eq!(response.status().as_u16(), status, "{range}");
        let header = |name: &str| {
            response
                .headers()
                .get(name)
                .map(|it| it.to_str().unwrap().to_owned())
        };
        assert_eq!(header("content-range").unwrap_or_default(), told);
        if status != 416 {
            assert_eq!(header("content-length").unwrap(), part.len().to_string());
            assert_eq!(header("holdfast-commit").unwrap().len(), 64);
            let body = response.body_mut().read_to_vec().unwrap();
            assert_eq!(body, large[part], "{range}");
        }
    }
}

/// Writes here and there, and other sizes: every version reads as it was, whole and in parts.
#[tokio::test]
async fn every_version_has_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    let rng = base::Rng::seeded(7);
    let pick = |of: usize| usize::try_from(rng.u64()).unwrap() % of;
    let (mut content, mut versions) = (Vec::new(), Vec::new());
    for round in 0..8 {
        for _ in 0..=pick(5) {
            let offset = pick(700_000);
            let length = [10, 5_000, 200_000][pick(3)];
            let written: Vec<u8> = (0..length)
                .map(|_| u8::try_from(pick(256)).unwrap())
                .collect();
            files
                .write_at(b"f", u64::try_from(offset).unwrap(), &written)
                .await;
            content.resize(content.len().max(offset + length), 0);
            content[offset..offset + length].copy_from_slice(&written);
        }
        if round % 3 == 2 {
            let size = pick(content.len());
            files.open(b"f", Some(u64::try_from(size).unwrap())).await;
            content.truncate(size);
        }
        let commit = published(dir, &session, &["-m", "round"]);
        versions.push((commit, content.clone()));
    }
    for (commit, content) in &versions {
        assert!(out(&["cat", commit, "f"], dir) == *content, "{commit}");
        for _ in 0..3 {
            let (from, length) = (pick(content.len()), 1 + pick(300_000));
            let to = content.len().min(from + length);
            let (offset, length) = (from.to_string(), length.to_string());
            let part = ["cat", commit, "f", "--offset", &offset, "--length", &length];
            assert!(out(&part, dir) == content[from..to], "{part:?}");
        }
    }
    assert_eq!(server.terminate(), Some(0));
}

/// What is damaged is told, and what is before it is printed.
#[tokio::test]
async fn damaged_content_ends_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start("up", dir);
    let (session, mut files) = mounted(&server, dir, &[]).await;
    let rng = base::Rng::seeded(8);
    let byte = || u8::try_from(rng.u64() % 256).unwrap();
    let content: Vec<u8> = (0..1_000_000).map(|_| byte()).collect();
    files.write("f", &content).await;
    publish(dir, &session, &["-m", "one"]);
    assert_eq!(server.terminate(), Some(0));
    let marked = &content[700_000..700_032];
    let mut damaged = 0;
    for pack in std::fs::read_dir(dir.join("chunks")).unwrap() {
        let pack = pack.unwrap().path();
        if !pack.is_file() {
            continue;
        }
        let mut bytes = std::fs::read(&pack).unwrap();
        if let Some(at) = bytes.windows(32).position(|window| window == marked) {
            bytes[at] ^= 1;
            std::fs::write(&pack, &bytes).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    let server = Server::start("up", dir);
    let output = run(&["cat", "main", "f"], dir);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is damaged"), "{said}");
    let printed = output.stdout.len();
    assert!((500_000..=700_000).contains(&printed), "{printed}");
    assert!(output.stdout == content[..printed]);
    // What is not damaged is still there.
    let rest = out(&["cat", "main", "f", "--offset", "900000"], dir);
    assert!(rest == content[900_000..]);
    assert_eq!(server.terminate(), Some(0));
}
