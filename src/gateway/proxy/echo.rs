//! The upstream that is built in: says what it was asked, or sends a body back.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use serde_json::json;

use super::body::ReplyBody;

pub(super) fn echo(request: Request<Incoming>) -> Response<ReplyBody> {
    let kind = request.headers().get(CONTENT_TYPE).cloned();
    let (kind, body) = if request.body().is_end_stream() {
        let told = json!({
            "method": request.method().as_str(),
            "path": request.uri().path(),
            "query": request.uri().query(),
        });
        let line = Bytes::from(format!("{told}\n"));
        (HeaderValue::from_static("application/json"), ReplyBody::own(line))
    } else {
        let unknown = || HeaderValue::from_static("application/octet-stream");
        (kind.unwrap_or_else(unknown), ReplyBody::Echo(request.into_body()))
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
