//! `GET /v1/openapi.json`: what the API takes and gives, for machines.
//!
//! The same document is kept as `control/openapi.json`, so that a change of the API shows as one of it.

use std::sync::OnceLock;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::describe::{Described, Gives};

/// The document as it is sent.
static DOCUMENT: OnceLock<String> = OnceLock::new();

/// An OpenAPI document.
#[derive(Clone, Copy, Debug)]
pub(super) struct Document(&'static str);

impl IntoResponse for Document {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, kind)], self.0).into_response()
    }
}

impl Gives for Document {
    fn describe(to: &mut Described) {
        to.json(json!({ "type": "object" }));
    }
}

/// Needs no token: the document has no secrets.
pub(super) async fn openapi() -> Document {
    Document(DOCUMENT.get_or_init(|| super::routes().document().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use serde_json::Value;

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

    const WRITE: &str = "HOLDFAST_WRITE_OPENAPI";

    #[test]
    fn the_document_in_the_repository_is_this_one() {
        let now = super::super::routes().document();
        if std::env::var_os(WRITE).is_some() {
            let mut text = serde_json::to_string_pretty(&now).unwrap();
            text.push('\n');
            std::fs::write(PATH, text).unwrap();
        }
        let kept = std::fs::read(PATH).unwrap_or_default();
        let kept: Value = serde_json::from_slice(&kept).unwrap_or_default();
        assert!(
            kept == now,
            "control/openapi.json is not what the API is now: look at what changed, then run\n\
             {WRITE}=1 cargo test -p control openapi"
        );
    }

    /// Paths as the router has them: a route that was added in another way is found, too.
    fn routed() -> BTreeSet<String> {
        let shown = format!("{:?}", super::super::routes().into_router());
        let parts = shown.split('"').skip(1).step_by(2);
        parts
            // What axum has for paths that nobody has is none of ours.
            .filter(|part| part.starts_with('/') && *part != "/" && !part.starts_with("/{*__"))
            .map(|path| path.replace("{*", "{"))
            .collect()
    }

    #[test]
    fn all_routes_are_told() {
        let document = super::super::routes().document();
        let told = document["paths"].as_object().unwrap().keys();
        let told: BTreeSet<String> = told.cloned().collect();
        assert!(told.len() > 30);
        assert_eq!(routed(), told);
    }

    /// Calls `look` with every object in a value.
    fn each(value: &Value, look: &mut impl FnMut(&serde_json::Map<String, Value>)) {
        match value {
            Value::Object(map) => {
                look(map);
                map.values().for_each(|value| each(value, look));
            }
            Value::Array(all) => all.iter().for_each(|value| each(value, look)),
            _ => {}
        }
    }

    #[test]
    fn what_is_told_is_whole() {
        let document = super::super::routes().document();
        each(&document, &mut |map| {
            if let Some(to) = map.get("$ref").and_then(Value::as_str) {
                let place = document.pointer(to.strip_prefix('#').unwrap());
                assert!(place.is_some(), "{to} is not there");
            }
        });
        let mut names = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name), "{name} is there twice");
                for parameter in operation["parameters"].as_array().unwrap() {
                    let about = parameter["description"].as_str();
                    assert!(
                        about.is_some_and(|it| !it.contains("[`")),
                        "{method} {path}: {parameter}"
                    );
                }
                let answers = operation["responses"].as_object().unwrap();
                assert!(answers.keys().any(|status| status.starts_with('2')));
                let is_open = operation["security"] == json!([]);
                assert_eq!(is_open, !answers.contains_key("401"), "{method} {path}");
            }
        }
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            each(schema, &mut |map| {
                for (field, schema) in map
                    .get("properties")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flatten()
                {
                    let is_told =
                        schema.get("description").is_some() || schema.get("$ref").is_some();
                    assert!(is_told || schema.get("oneOf").is_some(), "{name}.{field}");
                }
            });
        }
    }
}
