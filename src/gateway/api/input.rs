//! What requests bring: bodies, names in paths, queries. Whatever is wrong with them is told as a
//! problem, with the name of the field.

use std::fmt;
use std::marker::PhantomData;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap};
use http::request::Parts;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};

use super::problem::Problem;
use crate::engine::clock::Micros;
use crate::engine::identity::{Dimension, Identity};
use crate::engine::registry::{Intent, Lasts};
use crate::engine::units;
use crate::gateway::access::Caller;

/// Enough for one check or one change.
pub(super) const SMALL: usize = 16 << 10;
/// Enough for a batch, or a rule with a long list.
pub(super) const LARGE: usize = 1 << 20;
/// Enough for a policy.
pub(super) const HUGE: usize = 8 << 20;

pub(super) type Answered = Result<Response, Problem>;

/// A body of JSON that holds nothing else than `T` knows.
pub(super) struct Json<T, const MOST: usize = SMALL>(pub(super) T);

impl<T: DeserializeOwned, S: Sync, const MOST: usize> FromRequest<S> for Json<T, MOST> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(body, MOST).await?;
        // Nothing at all is an empty object: a DELETE may come without a body.
        if bytes.is_empty() && parts.method == http::Method::DELETE {
            return parse(b"{}").map(Json);
        }
        // A browser sends any other type across sites without asking.
        if !is_json(&parts.headers) {
            let detail = "send the body as Content-Type: application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        parse(&bytes).map(Json)
    }
}

async fn read(body: Body, most: usize) -> Result<axum::body::Bytes, Problem> {
    to_bytes(body, most).await.map_err(|error| {
        let source = std::error::Error::source(&error);
        if source.is_some_and(|source| source.is::<http_body_util::LengthLimitError>()) {
            let detail = format!("the body is too large; at most {most} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
        } else {
            Problem::malformed("the body ended before its end")
        }
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let read = serde_json::from_slice(bytes).map(|Object(body)| body);
    read.map_err(|error| Problem::malformed(format!("the body: {}", plain(&error.to_string()))))
}

/// A `T` that is written as an object, with the names of its fields: a list could be read in their
/// order, and would mean something else after the next version.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

impl<'d, T: Deserialize<'d>> Deserialize<'d> for Object<T> {
    fn deserialize<D: serde::Deserializer<'d>>(from: D) -> Result<Object<T>, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'d, T: Deserialize<'d>> Visitor<'d> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'d>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }

        from.deserialize_map(Fields(PhantomData)).map(Object)
    }
}

/// The same in the words of JSON: `struct ListBody` and `map` are ours.
fn plain(error: &str) -> String {
    let mut words = Vec::new();
    let mut all = error.split(' ').peekable();
    while let Some(word) = all.next() {
        match (word, all.peek()) {
            ("struct" | "enum", Some(name)) if name.starts_with(|c: char| c.is_uppercase()) => {
                all.next();
                words.push("an object");
            }
            ("map", _) => words.push("an object"),
            ("map,", _) => words.push("an object,"),
            ("sequence", _) => words.push("a list"),
            ("sequence,", _) => words.push("a list,"),
            _ => words.push(word),
        }
    }
    words.join(" ")
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// The one name in the path.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Named, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Named(name)),
            Err(error) => Err(Problem::malformed(format!("the path: {error}"))),
        }
    }
}

/// The identity in the path.
pub(super) struct Who(pub(super) Identity);

impl<S: Send + Sync> FromRequestParts<S> for Who {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Who, Problem> {
        let Named(text) = Named::from_request_parts(parts, state).await?;
        identity(&text).map(Who)
    }
}

/// What the query says, and nothing else than `T` knows.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Params<T>, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Params(params)),
            Err(error) => Err(Problem::malformed(format!("the query: {error}"))),
        }
    }
}

/// Who changes something, and the reason if it came as a header.
pub(super) struct Writer {
    caller: Caller,
    reason: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Writer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Writer, Problem> {
        let Some(caller) = parts.extensions.get::<Caller>().cloned() else {
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "nobody is known to ask"));
        };
        let reason = parts.headers.get("x-reason");
        let reason = reason.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        Ok(Writer { caller, reason })
    }
}

impl Writer {
    /// The reason of the body before that of the header; without any nothing is changed.
    pub(super) fn intent(&self, reason: Option<&str>) -> Result<Intent, Problem> {
        let reason = reason.or(self.reason.as_deref()).unwrap_or_default();
        if reason.trim().is_empty() {
            return Err(Problem::impossible(
                "a change needs a reason; give `reason` in the body, or the header X-Reason",
            ));
        }
        Ok(Intent::new(&self.caller.name, reason)?)
    }
}

/// How long something shall hold: a duration as in `2h`, or `forever`.
#[derive(Clone, Copy, Debug)]
pub(super) struct For(pub(super) Lasts);

impl<'d> Deserialize<'d> for For {
    fn deserialize<D: serde::Deserializer<'d>>(from: D) -> Result<For, D::Error> {
        let text = String::deserialize(from)?;
        if text == "forever" {
            return Ok(For(None));
        }
        match units::parse_duration(&text) {
            Ok(Micros::ZERO) => Err(serde::de::Error::custom("`for` would end at once")),
            Ok(duration) => Ok(For(Some(duration))),
            Err(error) => Err(serde::de::Error::custom(format!("`for`: {error}; or forever"))),
        }
    }
}

/// An identity of a dimension that rules know: any other is limited by nobody, and whoever asks
/// about it is mistaken.
pub(super) fn identity(text: &str) -> Result<Identity, Problem> {
    let identity: Identity =
        text.parse().map_err(|error| Problem::impossible(format!("identity: {error}")))?;
    let dimension = identity.as_str().split(':').next().unwrap_or_default();
    let is_known = dimension == "header" || dimension.parse::<Dimension>().is_ok();
    if is_known && identity.as_str().contains(':') {
        Ok(identity)
    } else {
        Err(Problem::impossible(
            "identity: write dimension:id, where the dimension is user, apikey, ip, header:NAME \
             or global, e.g. user:123",
        ))
    }
}
