//! Real answers of the API are as its OpenAPI document says.
#![allow(missing_docs)]
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)] // For tests.

mod support;

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use support::{Server, json as run_json};

/// A server, and what it says that it takes and gives.
struct Told {
    server: Server,
    token: String,
    document: Value,
    seen: BTreeSet<String>,
}

impl Told {
    fn new(server: Server) -> Self {
        let token = server.text("api_token");
        let (status, document) = server.call("GET", "/v1/openapi.json", None, b"");
        assert_eq!(status, 200);
        assert_eq!(document["openapi"], "3.1.0");
        Self {
            server,
            token,
            document,
            seen: BTreeSet::new(),
        }
    }

    /// Why a value is not as a schema of the document says.
    fn faults(&self, schema: &Value, value: &Value) -> Vec<String> {
        let mut whole = schema.clone();
        whole["components"] = self.document["components"].clone();
        let validator = jsonschema::validator_for(&whole).unwrap();
        let faults = validator.iter_errors(value);
        faults
            .map(|fault| format!("{}: {fault}", fault.instance_path()))
            .collect()
    }

    /// The operation that the document has for a call: its place, and what is told of it.
    fn operation(&self, method: &str, path: &str) -> (String, Value) {
        let path = path.split('?').next().unwrap();
        let fits = |told: &str| {
            let told: Vec<&str> = told.split('/').collect();
            let asked: Vec<&str> = path.split('/').collect();
            told.len() == asked.len()
                && (told.iter().zip(&asked))
                    .all(|(told, asked)| told.starts_with('{') || told == asked)
        };
        let paths = self.document["paths"].as_object().unwrap();
        let mut found: Vec<_> = paths.iter().filter(|(told, _)| fits(told)).collect();
        found.sort_by_key(|(told, _)| told.matches('{').count());
        let (told, item) = found
            .first()
            .unwrap_or_else(|| panic!("{path} is not told"));
        let operation = item[method.to_lowercase()].clone();
        assert!(operation.is_object(), "{method} {path} is not told");
        ((*told).clone(), operation)
    }

    /// Calls the API; all that is sent and comes back is as the document says.
    fn call(&mut self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (place, operation) = self.operation(method, path);
        let sent = body.as_ref().map(Value::to_string).unwrap_or_default();
        let has_token = operation["security"] != json!([]);
        let token = has_token.then_some(self.token.as_str());
        let (status, answer) = self.server.call(method, path, token, sent.as_bytes());
        if let Some(query) = path.split_once('?').map(|(_, query)| query) {
            let told = operation["parameters"].as_array().unwrap();
            for name in query.split('&').map(|pair| pair.split('=').next().unwrap()) {
                assert!(
                    told.iter().any(|it| it["name"] == name),
                    "{method} {path}: {name}"
                );
            }
        }
        if let Some(body) = body.filter(|_| status < 300) {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert_eq!(
                self.faults(schema, &body),
                [""; 0],
                "{method} {path} takes {body}"
            );
        }
        let mut response = &operation["responses"][status.to_string()];
        if let Some(to) = response["$ref"].as_str() {
            response = self.document.pointer(&to[1..]).unwrap();
        }
        assert!(
            response.is_object(),
            "{method} {path}: {status} is not told: {answer}"
        );
        let kind = match status {
            400.. => "application/problem+json",
            _ => "application/json",
        };
        let schema = &response["content"][kind]["schema"];
        if schema.is_object() && !answer.is_string() {
            assert_eq!(
                self.faults(schema, &answer),
                [""; 0],
                "{method} {path}: {answer}"
            );
        }
        if status < 300 {
            self.seen.insert(format!("{method} {place}"));
        }
        (status, answer)
    }

    /// A call that succeeds.
    fn done(&mut self, method: &str, path: &str, body: Option<Value>) -> Value {
        let (status, answer) = self.call(method, path, body);
        assert!(status < 300, "{method} {path}: {status} {answer}");
        answer
    }

    fn get(&mut self, path: &str) -> Value {
        self.done("GET", path, None)
    }

    fn post(&mut self, path: &str, body: Value) -> Value {
        self.done("POST", path, Some(body))
    }
}

fn id(of: &Value) -> String {
    of["id"].as_str().unwrap().to_owned()
}

/// Work in workspace `default`, whose branch `main` is made of a directory.
fn work_with_history(told: &mut Told) {
    let of = |path: &str| format!("/v1/workspaces/default/{path}");
    for path in [
        "log",
        "log?path=a.txt",
        "commit?changes=10",
        "diff?text=true&stat=true",
        "entries",
        "entries?path=dir",
        "find?name=*.txt&type=f",
        "blame?path=a.txt",
        "refs",
        "operations",
        "pins",
        "retention",
        "conflicts",
        "content?version=main&path=a.txt",
        "export?check=true",
        "export",
    ] {
        told.get(&of(path));
    }
    told.post(
        &of("refs"),
        json!({ "name": "v1", "version": "main", "tag": true }),
    );
    told.done("PUT", &of("protected/v1"), None);
    told.done("DELETE", &of("protected/v1"), None);
    told.done("DELETE", &of("refs/v1"), None);
    // As generated clients write it.
    let slash = json!({ "name": "agent/x", "version": "main" });
    told.post(&of("refs"), slash);
    told.done("PUT", &of("protected/agent%2Fx"), None);
    told.done("DELETE", &of("protected/agent%2Fx"), None);
    told.done("DELETE", &of("refs/agent%2Fx"), None);
    let operations = told.get(&of("operations"));
    told.post(
        &of("undo"),
        json!({ "operation": id(&operations["items"][0]) }),
    );
    told.post(&of("pins"), json!({ "version": "main", "note": "why" }));
    told.get(&of("pins"));
    let commit = id(&told.get(&of("commit")));
    told.done("DELETE", &of(&format!("pins/{commit}")), None);
    let keep = json!({ "keep_seconds": 86_400, "keep_last": 3 });
    told.done("PUT", &of("retention"), Some(keep));
    told.get(&of("retention"));
    told.done("DELETE", &of("retention"), None);
    for (path, wanted) in [
        ("log?version=none", 404),
        ("log?limit=x", 400),
        ("content?path=dir", 400),
        ("content?path=none", 404),
        ("commit?version=0", 404),
    ] {
        assert_eq!(told.call("GET", &of(path), None).0, wanted, "{path}");
    }
}

fn work_with_sessions(told: &mut Told) {
    let asked = json!({ "workspace": "default", "agent": "a", "ttl_seconds": 600 });
    let one = id(&told.post("/v1/sessions", asked));
    let of = |path: &str| format!("/v1/sessions/{one}{path}");
    told.get("/v1/sessions?workspace=default&limit=1");
    told.get(&of(""));
    told.get(&of("/conflicts"));
    let two = id(&told.post(&of("/fork"), json!({ "agent": "b" })));
    told.get(&of(&format!("/clashes?with={two}&limit=5")));
    let ticket = told.post(
        &of("/tickets"),
        json!({ "read_only": true, "directory": "dir" }),
    );
    told.get(&of("/tickets"));
    let ticket = ticket["ticket_id"].as_str().unwrap().to_owned();
    told.done("DELETE", &of(&format!("/tickets/{ticket}")), None);
    told.post(
        &of("/restore"),
        json!({ "version": "main", "paths": ["a.txt"] }),
    );
    told.post(&of("/restore"), json!({ "version": "other" }));
    let changed = told.get(&of("/changed"));
    told.get(&of("/changed?raw=true"));
    told.post(&of("/changed"), json!({ "position": changed["position"] }));
    told.post(
        &of("/checkpoint"),
        json!({ "message": "m", "pairs": { "key": "value" } }),
    );
    told.post(&of("/publish"), json!({ "dry_run": true }));
    told.post(
        &of("/publish"),
        json!({ "about": { "message": "m" }, "branch": "made" }),
    );
    told.post(&of("/sync"), json!({ "policy": "ours", "dry_run": true }));
    told.post(&of("/sync"), json!({}));
    told.get(&format!("/v1/workspaces/default/diff?session={one}"));
    let no_conflict = json!({ "path": "a.txt", "take": "ours" });
    assert_eq!(
        told.call("POST", &of("/conflicts/resolve"), Some(no_conflict))
            .0,
        404
    );
    assert_eq!(told.call("POST", &of("/restore"), Some(json!({}))).0, 422);
    // One of the values would be lost.
    let twice = br#"{"about": {"pairs": {"key": "a", "other": "b", "key": "c"}}}"#;
    let publish = of("/publish");
    let (status, refused) = told.server.call("POST", &publish, Some(&told.token), twice);
    assert_eq!(status, 422);
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains(r#"the key "key" twice"#), "{detail}");
    told.done("DELETE", &of(""), None);
    assert_eq!(told.call("GET", &of(""), None).0, 404);
}

/// A conflict that is resolved.
fn work_with_conflicts(told: &mut Told) {
    let open =
        |version: &str| json!({ "workspace": "default", "version": version, "branch": "main" });
    let one = id(&told.post("/v1/sessions", open("other")));
    let keep = json!({ "policy": "keep-both" });
    let published = told.post(&format!("/v1/sessions/{one}/publish"), keep);
    assert_eq!(published["outcome"], "merged", "{published}");
    assert!(
        published["conflicts_total"].as_u64().unwrap() > 0,
        "{published}"
    );
    let two = id(&told.post("/v1/sessions", open("main")));
    let found = told.get(&format!("/v1/sessions/{two}/conflicts"));
    told.get("/v1/workspaces/default/conflicts?version=main");
    let resolve = json!({ "id": found["items"][0]["id"], "take": "ours" });
    told.post(&format!("/v1/sessions/{two}/conflicts/resolve"), resolve);
}

/// What is sent for a parameter; of `after`, what an answer gave.
const SENT: [(&str, &str); 21] = [
    ("agent", "a"),
    ("changes", "1"),
    ("check", "true"),
    ("first_parent", "true"),
    ("force", "true"),
    ("from", "other"),
    ("limit", "1"),
    ("name", "*.txt"),
    ("path", "a.txt"),
    ("raw", "true"),
    ("run", "r"),
    ("session", "{session}"),
    ("since", "other"),
    ("stat", "true"),
    ("text", "true"),
    ("to", "main"),
    ("type", "f"),
    ("version", "main"),
    ("with", "{other}"),
    ("workspace", "default"),
    ("after", ""),
];

/// Every parameter that is told is taken by itself, and none of those that are told of others.
fn work_with_each_parameter(told: &mut Told) {
    let open = || json!({ "workspace": "default" });
    let (one, two) = (
        id(&told.post("/v1/sessions", open())),
        id(&told.post("/v1/sessions", open())),
    );
    let places = |text: &str| {
        let text = text.replace("{session}", &one).replace("{other}", &two);
        text.replace("{name}", "default").replace("{run}", "1")
    };
    let document = told.document["paths"].clone();
    let (mut count, mut continued) = (0, BTreeSet::new());
    for (path, item) in document.as_object().unwrap() {
        let name = item["get"]["operationId"].as_str().unwrap_or_default();
        let all = item["get"]["parameters"].as_array().into_iter().flatten();
        let all: Vec<_> = all.filter(|it| it["in"] == "query").collect();
        let sent = |name: &str| {
            let value = SENT.iter().find(|(of, _)| *of == name);
            let (_, value) = value.unwrap_or_else(|| panic!("what is sent for {name}?"));
            places(&format!("{name}={value}"))
        };
        let word = |it: &Value| it["name"].as_str().unwrap().to_owned();
        let required = all.iter().filter(|it| it["required"] == true);
        let required: Vec<_> = required.map(|it| sent(&word(it))).collect();
        let asked = |query: &str| {
            let query = [&required[..], &[query.to_owned()]].concat().join("&");
            places(&format!("{path}?{query}"))
        };
        let is_told = |name: &str| all.iter().any(|it| it["name"] == name);
        for parameter in all.iter().filter(|it| it["required"] != true) {
            let mut query = sent(&word(parameter));
            if parameter["name"] == "after" {
                let next = told.get(&asked("limit=1"))["next"].clone();
                let Some(next) = next.as_str() else {
                    continue;
                };
                query.push_str(next);
                continued.insert(name);
            }
            told.get(&asked(&query));
            count += 1;
        }
        for (other, _) in SENT
            .iter()
            .filter(|(name, _)| !all.is_empty() && !is_told(name))
        {
            let query = asked(&sent(other));
            let (status, answer) = (told.server).call("GET", &query, Some(&told.token), b"");
            assert_eq!(status, 400, "{query}: {answer}");
        }
    }
    assert!(count > 30, "{count}");
    for wanted in [
        "list_entries",
        "find",
        "list_commits",
        "list_refs",
        "list_sessions",
    ] {
        assert!(continued.contains(wanted), "{wanted}: {continued:?}");
    }
}

fn work_with_the_rest(told: &mut Told) {
    told.post(
        "/v1/workspaces",
        json!({ "name": "short", "root_mode": 448 }),
    );
    told.get("/v1/workspaces?limit=1");
    told.get("/v1/workspaces/short");
    let again = json!({ "name": "short" });
    assert_eq!(told.call("POST", "/v1/workspaces", Some(again)).0, 409);
    told.done("DELETE", "/v1/workspaces/short?force=true", None);
    told.get("/v1/removals");
    let token = told.post("/v1/tokens", json!({ "name": "ci" }));
    told.get("/v1/tokens");
    told.done("DELETE", &format!("/v1/tokens/{}", id(&token)), None);
    let run = told.post("/v1/gc", json!({ "dry_run": true }))["run"].to_string();
    told.get(&format!("/v1/gc/{run}"));
    told.get("/v1/gc");
    for path in ["/livez", "/readyz", "/metrics", "/v1/openapi.json"] {
        told.get(path);
    }
}

#[test]
fn answers_are_as_the_document_says() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let server = Server::start("up", &dir);
    let (one, two) = (root.path().join("one"), root.path().join("two"));
    for (files, text) in [(&one, "one\n"), (&two, "two\n")] {
        fs::create_dir_all(files.join("dir")).unwrap();
        fs::write(files.join("a.txt"), text).unwrap();
        fs::write(files.join("dir/b.txt"), "b\n").unwrap();
    }
    let import = |from: &std::path::Path, branch: &str| {
        run_json(
            &["import", from.to_str().unwrap(), "--branch", branch],
            &dir,
        )
    };
    import(&one, "main");
    run_json(&["ref", "create", "other", "main"], &dir);
    import(&two, "other");
    fs::write(one.join("a.txt"), "three\n").unwrap();
    import(&one, "main");
    let mut told = Told::new(server);
    work_with_history(&mut told);
    work_with_sessions(&mut told);
    work_with_conflicts(&mut told);
    work_with_each_parameter(&mut told);
    work_with_the_rest(&mut told);
    told.get("/v1/gateways");
    told.get("/v1/drain");
    // The last: it ends the server.
    told.done("POST", "/v1/drain", None);
    let mut all = BTreeSet::new();
    for (path, item) in told.document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            all.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    // The commands above did that, with an archive.
    all.remove("POST /v1/workspaces/{name}/import");
    assert_eq!(told.seen, all);
}

/// What is refused is not as the document says, and the greatest and least that it says is taken.
#[test]
fn bounds_are_as_the_document_says() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("up", root.path());
    let session = server.text("session");
    let told = Told::new(server);
    let refused = |method: &str, path: &str, body: &Value| {
        let sent = body.to_string();
        let (status, answer) = (told.server).call(method, path, Some(&told.token), sent.as_bytes());
        assert_eq!(status, 400, "{method} {path} {body}: {answer}");
        let operation = told.operation(method, path).1;
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        assert!(!told.faults(schema, body).is_empty(), "{path} {body}");
    };
    let open = json!({ "workspace": "default", "ttl_seconds": 0 });
    refused("POST", "/v1/sessions", &open);
    let open = json!({ "workspace": "default", "ttl_seconds": 100_u64 * 366 * 24 * 3600 });
    refused("POST", "/v1/sessions", &open);
    refused("POST", "/v1/tokens", &json!({ "name": "" }));
    let parameter = |method: &str, path: &str, name: &str| {
        let operation = told.operation(method, path).1;
        let all = operation["parameters"].as_array().unwrap();
        all.iter().find(|it| it["name"] == name).unwrap().clone()
    };
    let get = |path: &str| told.server.call("GET", path, Some(&told.token), b"");
    let clashes = format!("/v1/sessions/{session}/clashes");
    assert_eq!(get(&clashes).0, 400);
    assert_eq!(parameter("GET", &clashes, "with")["required"], true);
    assert_eq!(get("/v1/workspaces/default/blame").0, 400);
    let path = parameter("GET", "/v1/workspaces/default/blame", "path");
    assert_eq!(path["required"], true);
    let diff = "/v1/workspaces/default/diff";
    let max = parameter("GET", diff, "limit")["schema"]["maximum"].as_u64();
    let max = max.unwrap();
    let session = format!("{diff}?session={session}&limit");
    assert_eq!(get(&format!("{session}={max}")).0, 200);
    for over in [max + 1, u64::MAX] {
        assert_eq!(get(&format!("{session}={over}")).0, 400);
    }
    // Of pages the greatest is taken, however much is asked for.
    let limit = parameter("GET", "/v1/sessions", "limit");
    assert!(limit["schema"]["maximum"].is_null());
    for path in [
        "sessions",
        "workspaces",
        "workspaces/default/log",
        "workspaces/default/refs",
    ] {
        let (status, answer) = get(&format!("/v1/{path}?limit=99999999999999999999"));
        assert!(status == 200 || status == 404, "{path}: {status} {answer}");
    }
    let (status, refused) = get("/v1/sessions?limit=many");
    assert_eq!(status, 400, "{refused}");
    let key = parameter("POST", "/v1/sessions", "Idempotency-Key")["schema"].clone();
    for (value, is_key) in [
        ("a~!", true),
        ("a b", false),
        ("", false),
        ("\u{e9}", false),
    ] {
        assert_eq!(
            told.faults(&key, &json!(value)).is_empty(),
            is_key,
            "{value}"
        );
    }
    let responses = told.operation("POST", "/v1/sessions").1["responses"].clone();
    assert!(responses["201"]["headers"]["Idempotent-Replayed"].is_object());
}

/// Methods and rights of the router are those of the document.
#[test]
fn methods_and_rights_are_as_the_document_says() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start("serve", root.path());
    let told = Told::new(server);
    for (path, item) in told.document["paths"].as_object().unwrap() {
        let place = path.replace(['{', '}'], "");
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            let operation = &item[method.to_lowercase()];
            let wanted = match (operation.is_object(), &operation["security"]) {
                (false, _) => 405,
                (true, security) if *security == json!([]) => 200,
                (true, _) => 401,
            };
            let (status, answer) = told.server.call(method, &place, None, b"");
            assert_eq!(status, wanted, "{method} {path}: {answer}");
        }
    }
}
