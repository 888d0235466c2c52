//! What a route takes and gives, read from the type of its handler: the OpenAPI document says nothing
//! else, so it cannot differ from the code.
//!
//! Each extractor of a handler is a [`Takes`], each answer a [`Gives`]. [`super::routes`] puts handlers
//! and descriptions together; there is no other way to add a route.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body as RawBody;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, ToSchema};

use super::ApiState;
use super::calls::Keyed;
use super::input::{Body, Parameters, Place, Tenant};
use super::passing::Behalf;
use super::paths::Bytes;
use crate::status::ApiError;

/// Of bytes that mean nothing here.
const OCTETS: &str = "application/octet-stream";

/// Of archives.
const TAR: &str = "application/x-tar";

/// Statuses of errors that a call with a token can have, and which errors they are.
pub(super) const ERRORS: [(u16, &str, &str); 12] = [
    (
        400,
        "Invalid",
        "The request is to be mended; detail says how.",
    ),
    (401, "Unauthorized", "No token, or none that is known."),
    (403, "Forbidden", "The token does not allow it."),
    (404, "NotFound", "There is no such thing."),
    (
        409,
        "Conflict",
        "Something is in the way; type and detail say what.",
    ),
    (410, "Expired", "The session or the ticket has ended."),
    (413, "TooLong", "The body is too long."),
    (415, "NoJson", "The body is not sent as application/json."),
    (
        422,
        "Misshapen",
        "The body or the query has not the form that is told here.",
    ),
    (
        500,
        "Internal",
        "See the server's log. With the type outcome-unknown it may have happened: look before trying again.",
    ),
    (
        503,
        "Unavailable",
        "Nothing happened; try again after the seconds of Retry-After.",
    ),
    (507, "NoSpace", "Nothing happened; the disk is full."),
];

/// What is known of a route.
#[derive(Debug, Default)]
pub(super) struct Described {
    /// It wants a token.
    pub(super) has_token: bool,
    /// Parameters of query and head, as the document has them.
    pub(super) parameters: Vec<Value>,
    /// The body, as the document has it.
    pub(super) body: Option<Value>,
    /// Answers by status and kind of content.
    answers: BTreeMap<u16, BTreeMap<&'static str, Vec<Value>>>,
    /// It can fail.
    has_errors: bool,
    /// Types by their names.
    pub(super) schemas: Vec<(String, Value)>,
}

impl Described {
    /// Refers to a type.
    fn reference<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        let mut schemas = vec![(name.clone(), T::schema())];
        T::schemas(&mut schemas);
        let schemas = schemas
            .into_iter()
            .map(|(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default()));
        self.schemas.extend(schemas);
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    fn answer(&mut self, status: StatusCode, content: Option<(&'static str, Value)>) {
        let contents = self.answers.entry(status.as_u16()).or_default();
        if let Some((kind, schema)) = content {
            contents.entry(kind).or_default().push(schema);
        }
    }

    /// JSON of a form that no type has.
    pub(super) fn json(&mut self, schema: Value) {
        self.answer(StatusCode::OK, Some(("application/json", schema)));
    }

    fn octets(&mut self, status: StatusCode, kind: &'static str) {
        self.answer(status, Some((kind, json!({}))));
    }

    /// All answers, as the document has them.
    pub(super) fn responses(&self) -> Value {
        let mut responses = Map::new();
        for (status, contents) in &self.answers {
            let mut content = Map::new();
            for (kind, schemas) in contents {
                let schema = match schemas.as_slice() {
                    [one] => one.clone(),
                    several => json!({ "anyOf": several }),
                };
                content.insert((*kind).to_owned(), json!({ "schema": schema }));
            }
            let said = StatusCode::from_u16(*status).ok();
            let said = said.and_then(|status| status.canonical_reason());
            let mut response = json!({ "description": said.unwrap_or("Done") });
            if let (false, Some(response)) = (content.is_empty(), response.as_object_mut()) {
                response.insert("content".to_owned(), content.into());
            }
            responses.insert(status.to_string(), response);
        }
        if self.has_errors {
            for (status, name, _) in ERRORS {
                let is_said = match status {
                    401 | 403 => self.has_token,
                    413 | 415 => self.body.is_some(),
                    _ => true,
                };
                if is_said {
                    let to = format!("#/components/responses/{name}");
                    responses.insert(status.to_string(), json!({ "$ref": to }));
                }
            }
        }
        responses.into()
    }
}

/// Something that a handler takes from a request.
pub(super) trait Takes {
    /// Says so.
    fn describe(to: &mut Described);
}

/// What a handler answers.
pub(super) trait Gives {
    /// Says so.
    fn describe(to: &mut Described);
}

impl Takes for State<Arc<ApiState>> {
    fn describe(_: &mut Described) {}
}

/// Told for all that change something.
impl Takes for Keyed {
    fn describe(_: &mut Described) {}
}

impl Takes for Tenant {
    fn describe(to: &mut Described) {
        to.has_token = true;
    }
}

/// What stands in the path is told by the path itself.
impl<T> Takes for Place<T> {
    fn describe(_: &mut Described) {}
}

/// These are told with the others, which [`Parameters`] has.
impl Takes for Bytes {
    fn describe(_: &mut Described) {}
}

/// Told with the token.
impl Takes for Behalf {
    fn describe(_: &mut Described) {}
}

impl Takes for HeaderMap {
    fn describe(to: &mut Described) {
        to.parameters.push(json!({
            "name": "Range", "in": "header", "required": false,
            "description": "One range of bytes.",
            "schema": { "type": "string" },
        }));
    }
}

impl<T: ToSchema> Takes for Parameters<T> {
    fn describe(to: &mut Described) {
        let schema = serde_json::to_value(T::schema()).unwrap_or_default();
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|it| it == name));
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten() {
            let mut schema = schema.clone();
            let about = schema
                .as_object_mut()
                .and_then(|it| it.remove("description"));
            not_null(&mut schema);
            to.parameters.push(json!({
                "name": name, "in": "query", "required": is_required(name),
                "description": about, "schema": schema,
            }));
        }
    }
}

/// A parameter is there or is not; there is no null for it.
fn not_null(schema: &mut Value) {
    let Some(kinds) = schema.get_mut("type") else {
        return;
    };
    let some = kinds.as_array().into_iter().flatten();
    if let Some(kind) = some.clone().find(|kind| *kind != "null").cloned() {
        *kinds = kind;
    }
}

impl<T: ToSchema> Takes for Body<T> {
    fn describe(to: &mut Described) {
        let schema = to.reference::<T>();
        to.body = Some(json!({
            "required": true, "content": { "application/json": { "schema": schema } },
        }));
    }
}

impl Takes for RawBody {
    fn describe(to: &mut Described) {
        to.body = Some(json!({
            "required": true, "description": "A tar archive of any length.",
            "content": { TAR: { "schema": {} } },
        }));
    }
}

/// Something was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Created<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Created<T> {
    fn into_response(self) -> Response {
        (StatusCode::CREATED, Json(self.0)).into_response()
    }
}

/// It was taken in hand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Accepted<T> {
    fn into_response(self) -> Response {
        (StatusCode::ACCEPTED, Json(self.0)).into_response()
    }
}

/// It was done, and there is nothing to tell.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoContent;

impl IntoResponse for NoContent {
    fn into_response(self) -> Response {
        StatusCode::NO_CONTENT.into_response()
    }
}

/// One of two answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Either<A, B> {
    One(A),
    Other(B),
}

impl<A: IntoResponse, B: IntoResponse> IntoResponse for Either<A, B> {
    fn into_response(self) -> Response {
        match self {
            Self::One(one) => one.into_response(),
            Self::Other(other) => other.into_response(),
        }
    }
}

/// Bytes, all or a part.
#[derive(Debug)]
pub(super) struct Octets(pub(super) Response);

/// A tar archive.
#[derive(Debug)]
pub(super) struct Archive(pub(super) Response);

impl IntoResponse for Octets {
    fn into_response(self) -> Response {
        self.0
    }
}

impl IntoResponse for Archive {
    fn into_response(self) -> Response {
        self.0
    }
}

impl<T: Gives> Gives for Result<T, ApiError> {
    fn describe(to: &mut Described) {
        T::describe(to);
        to.has_errors = true;
    }
}

impl<A: Gives, B: Gives> Gives for Either<A, B> {
    fn describe(to: &mut Described) {
        A::describe(to);
        B::describe(to);
    }
}

impl<T: ToSchema> Gives for Json<T> {
    fn describe(to: &mut Described) {
        let schema = to.reference::<T>();
        to.answer(StatusCode::OK, Some(("application/json", schema)));
    }
}

impl<T: ToSchema> Gives for Created<T> {
    fn describe(to: &mut Described) {
        let schema = to.reference::<T>();
        to.answer(StatusCode::CREATED, Some(("application/json", schema)));
    }
}

impl<T: ToSchema> Gives for Accepted<T> {
    fn describe(to: &mut Described) {
        let schema = to.reference::<T>();
        to.answer(StatusCode::ACCEPTED, Some(("application/json", schema)));
    }
}

impl Gives for NoContent {
    fn describe(to: &mut Described) {
        to.answer(StatusCode::NO_CONTENT, None);
    }
}

impl Gives for &'static str {
    fn describe(to: &mut Described) {
        let schema = json!({ "type": "string" });
        to.answer(StatusCode::OK, Some(("text/plain", schema)));
    }
}

impl Gives for super::health::Metrics {
    fn describe(to: &mut Described) {
        let schema = json!({ "type": "string" });
        to.answer(StatusCode::OK, Some(("text/plain", schema)));
    }
}

impl Gives for Octets {
    fn describe(to: &mut Described) {
        to.octets(StatusCode::OK, OCTETS);
    }
}

/// A part of something, if the caller has asked for that.
#[derive(Debug)]
pub(super) struct Ranged(pub(super) Response);

impl IntoResponse for Ranged {
    fn into_response(self) -> Response {
        self.0
    }
}

impl Gives for Ranged {
    fn describe(to: &mut Described) {
        to.octets(StatusCode::OK, OCTETS);
        to.octets(StatusCode::PARTIAL_CONTENT, OCTETS);
        let problem = <crate::types::Problem as ToSchema>::name();
        let problem = json!({ "$ref": format!("#/components/schemas/{problem}") });
        let content = Some(("application/problem+json", problem));
        to.answer(StatusCode::RANGE_NOT_SATISFIABLE, content);
    }
}

impl Gives for Archive {
    fn describe(to: &mut Described) {
        to.octets(StatusCode::OK, TAR);
    }
}

/// A handler, whose type tells what it takes and gives. `T` is as in [`axum::handler::Handler`].
pub(super) trait Tells<T> {
    /// Says so.
    fn describe() -> Described;
}

macro_rules! tells {
    ($($part:ident),*) => {
        impl<F, G, R, M, $($part),*> Tells<(M, $($part,)*)> for F
        where
            F: FnOnce($($part),*) -> G,
            G: Future<Output = R>,
            R: Gives,
            $($part: Takes,)*
        {
            fn describe() -> Described {
                let mut described = Described::default();
                $(<$part as Takes>::describe(&mut described);)*
                <R as Gives>::describe(&mut described);
                described
            }
        }
    };
}

tells!(A);
tells!(A, B);
tells!(A, B, C);
tells!(A, B, C, D);
tells!(A, B, C, D, E);
tells!(A, B, C, D, E, F6);

/// One without arguments.
impl<F, G, R> Tells<((),)> for F
where
    F: FnOnce() -> G,
    G: Future<Output = R>,
    R: Gives,
{
    fn describe() -> Described {
        let mut described = Described::default();
        <R as Gives>::describe(&mut described);
        described
    }
}

/// All of a type's schema, for the document.
pub(super) fn schema_of<T: PartialSchema>() -> Value {
    serde_json::to_value(T::schema()).unwrap_or_default()
}
