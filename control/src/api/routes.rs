//! Routes, each with what the OpenAPI document says of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::ApiState;
use super::calls::KEYLESS;
use super::describe::{Described, ERRORS, Tells, schema_of};
use crate::types::Problem;

/// What the document says of names in paths.
const PLACES: [(&str, &str); 7] = [
    ("name", "The workspace's name."),
    ("session", "The session's id."),
    ("ticket", "The ticket's id, as the list shows it."),
    ("version", "The version: a branch, a tag, a commit, a time."),
    (
        "reference",
        "The branch or tag; slashes in its name are written as %2F or as they are.",
    ),
    ("id", "The token's id, as the list shows it."),
    ("run", "The collection's number."),
];

/// A route as the document has it.
#[derive(Debug)]
struct Operation {
    method: &'static str,
    name: &'static str,
    about: &'static str,
    described: Described,
}

/// What one path takes.
#[derive(Debug)]
pub(super) struct Methods {
    handlers: MethodRouter<Arc<ApiState>>,
    operations: Vec<Operation>,
}

/// Paths.
#[derive(Debug)]
pub(super) struct Routes {
    handlers: Vec<(&'static str, MethodRouter<Arc<ApiState>>)>,
    operations: BTreeMap<&'static str, Vec<Operation>>,
}

/// A path that is read. `name` is the operation's in generated clients, `about` a sentence on what it
/// does.
pub(super) fn get<H, T>(name: &'static str, about: &'static str, handler: H) -> Methods
where
    H: Handler<T, Arc<ApiState>> + Tells<T>,
    T: 'static,
{
    Methods::default().get(name, about, handler)
}

/// A path that things are done at.
pub(super) fn post<H, T>(name: &'static str, about: &'static str, handler: H) -> Methods
where
    H: Handler<T, Arc<ApiState>> + Tells<T>,
    T: 'static,
{
    Methods::default().post(name, about, handler)
}

/// A path that is set.
pub(super) fn put<H, T>(name: &'static str, about: &'static str, handler: H) -> Methods
where
    H: Handler<T, Arc<ApiState>> + Tells<T>,
    T: 'static,
{
    Methods::default().with(MethodFilter::PUT, "put", (name, about), handler)
}

/// A path whose thing is removed.
pub(super) fn delete<H, T>(name: &'static str, about: &'static str, handler: H) -> Methods
where
    H: Handler<T, Arc<ApiState>> + Tells<T>,
    T: 'static,
{
    Methods::default().delete(name, about, handler)
}

impl Default for Methods {
    fn default() -> Self {
        Self {
            handlers: MethodRouter::new(),
            operations: Vec::new(),
        }
    }
}

impl Methods {
    fn with<H, T>(
        mut self,
        filter: MethodFilter,
        method: &'static str,
        (name, about): (&'static str, &'static str),
        handler: H,
    ) -> Self
    where
        H: Handler<T, Arc<ApiState>> + Tells<T>,
        T: 'static,
    {
        self.handlers = self.handlers.merge(on(filter, handler));
        self.operations.push(Operation {
            method,
            name,
            about,
            described: H::describe(),
        });
        self
    }

    /// Is read, too.
    pub(super) fn get<H, T>(self, name: &'static str, about: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<ApiState>> + Tells<T>,
        T: 'static,
    {
        self.with(MethodFilter::GET, "get", (name, about), handler)
    }

    /// Things are done at it, too.
    pub(super) fn post<H, T>(self, name: &'static str, about: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<ApiState>> + Tells<T>,
        T: 'static,
    {
        self.with(MethodFilter::POST, "post", (name, about), handler)
    }

    /// Is set, too.
    pub(super) fn put<H, T>(self, name: &'static str, about: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<ApiState>> + Tells<T>,
        T: 'static,
    {
        self.with(MethodFilter::PUT, "put", (name, about), handler)
    }

    /// Its thing is removed, too.
    pub(super) fn delete<H, T>(self, name: &'static str, about: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<ApiState>> + Tells<T>,
        T: 'static,
    {
        self.with(MethodFilter::DELETE, "delete", (name, about), handler)
    }
}

impl Routes {
    /// No paths.
    pub(super) fn new() -> Self {
        Self {
            handlers: Vec::new(),
            operations: BTreeMap::new(),
        }
    }

    /// Adds a path.
    pub(super) fn route(mut self, path: &'static str, methods: Methods) -> Self {
        self.handlers.push((path, methods.handlers));
        self.add(path, methods.operations);
        self
    }

    /// Adds the paths of others. A path may be in both, with different methods.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.handlers.extend(other.handlers);
        for (path, operations) in other.operations {
            self.add(path, operations);
        }
        self
    }

    fn add(&mut self, path: &'static str, operations: Vec<Operation>) {
        self.operations.entry(path).or_default().extend(operations);
    }

    /// What serves them, with `around` put around the methods of each path.
    pub(super) fn into_router(
        self,
        around: impl Fn(MethodRouter<Arc<ApiState>>) -> MethodRouter<Arc<ApiState>>,
    ) -> Router<Arc<ApiState>> {
        let all = self.handlers.into_iter();
        all.fold(Router::new(), |router, (path, handlers)| {
            router.route(path, around(handlers))
        })
    }

    /// What says what they take and give: OpenAPI 3.1.
    pub(super) fn document(&self) -> Value {
        let mut paths = Map::new();
        let mut schemas = Map::new();
        let problem = <Problem as ToSchema>::name().into_owned();
        schemas.insert(problem.clone(), schema_of::<Problem>());
        for (path, operations) in &self.operations {
            let mut item = Map::new();
            for operation in operations {
                for (name, schema) in &operation.described.schemas {
                    schemas.insert(name.clone(), schema.clone());
                }
                item.insert(operation.method.to_owned(), operation.told(path));
            }
            paths.insert(path.replace("{*", "{"), item.into());
        }
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Holdfast",
                "description": "Durable, versioned workspaces for sandboxes. What is told here in \
                                short is in docs/control.md at length. Answers may get further \
                                fields.",
                "version": env!("CARGO_PKG_VERSION"),
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "paths": paths,
            "components": {
                "schemas": schemas,
                "responses": errors(&problem),
                "securitySchemes": {
                    "bearer": {
                        "type": "http", "scheme": "bearer",
                        "description": "A token of the API. It belongs to a tenant.",
                    },
                },
            },
        })
    }
}

impl Operation {
    fn told(&self, path: &str) -> Value {
        let described = &self.described;
        let mut parameters = places(path);
        parameters.extend(described.parameters.iter().cloned());
        let takes_a_stream = described.body.as_ref().is_some_and(|body| {
            let contents = body.get("content").and_then(Value::as_object);
            contents.is_some_and(|contents| !contents.contains_key("application/json"))
        });
        let has_key = self.method != "get" && !takes_a_stream && path != KEYLESS;
        let mut responses = described.responses();
        if has_key {
            say_replayed(&mut responses);
            parameters.push(json!({
                "name": "Idempotency-Key", "in": "header", "required": false,
                "description": "1 to 255 visible ASCII characters. A call that comes again with the \
                                same key gets the answer of the first, and is not done again.",
                "schema": {
                    "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$",
                },
            }));
        }
        let security = match described.has_token {
            true => json!([{ "bearer": [] }]),
            false => json!([]),
        };
        let mut told = json!({
            "operationId": self.name,
            "summary": self.about,
            "parameters": parameters,
            "responses": responses,
            "security": security,
        });
        if let (Some(body), Some(told)) = (&described.body, told.as_object_mut()) {
            told.insert("requestBody".to_owned(), body.clone());
        }
        told
    }
}

/// Says of what a call succeeds with that it may be the answer of an earlier one.
fn say_replayed(responses: &mut Value) {
    let all = responses.as_object_mut().into_iter().flatten();
    for (_, response) in all.filter(|(status, _)| status.starts_with('2')) {
        if let Some(response) = response.as_object_mut() {
            let header = json!({
                "description": "Is there if this is the answer of an earlier call with the same \
                                Idempotency-Key.",
                "schema": { "type": "string", "const": "true" },
            });
            response.insert(
                "headers".to_owned(),
                json!({ "Idempotent-Replayed": header }),
            );
        }
    }
}

/// What stands in a path.
fn places(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        Some(name.strip_prefix('*').unwrap_or(name))
    });
    let told = names.map(|name| {
        let about = PLACES.iter().find(|(known, _)| *known == name);
        json!({
            "name": name, "in": "path", "required": true,
            "description": about.map(|(_, about)| about), "schema": { "type": "string" },
        })
    });
    told.collect()
}

/// Errors by their names.
fn errors(problem: &str) -> Value {
    let schema = json!({ "$ref": format!("#/components/schemas/{problem}") });
    let all = ERRORS.iter().map(|(status, name, about)| {
        let content = json!({ "application/problem+json": { "schema": schema } });
        let mut response = json!({ "description": about, "content": content });
        if *status == 503 {
            let seconds = json!({ "schema": { "type": "integer" }, "description": "Seconds." });
            if let Some(response) = response.as_object_mut() {
                response.insert("headers".to_owned(), json!({ "Retry-After": seconds }));
            }
        }
        ((*name).to_owned(), response)
    });
    Value::Object(all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn nothing() -> super::super::describe::NoContent {
        super::super::describe::NoContent
    }

    #[test]
    fn a_path_of_two_groups_has_the_methods_of_both() {
        let one = Routes::new().route("/a", get("read", "Read.", nothing));
        let two = Routes::new()
            .route("/a", post("do_it", "Do it.", nothing))
            .route("/a", put("set", "Set.", nothing));
        let both = one.merge(two);
        let document = both.document();
        for (method, name) in [("get", "read"), ("post", "do_it"), ("put", "set")] {
            assert_eq!(document["paths"]["/a"][method]["operationId"], name);
        }
        // As the router has it: it would refuse a method that is there twice.
        drop(both.into_router(|methods| methods));
    }
}
