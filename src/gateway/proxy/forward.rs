//! What of a message goes on and what ends here: the headers of one hop belong to that hop, and
//! what a stranger says about where it comes from is not passed on.

use std::net::IpAddr;

use compact_str::CompactString;
use http::header::{
    CONNECTION, CONTENT_LENGTH, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Uri, Version};

use crate::engine::identity::push_v4;
use crate::gateway::identity::remove_in_any_spelling;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const PROXY_AUTHORIZATION: HeaderName = HeaderName::from_static("proxy-authorization");
const PROXY_AUTHENTICATE: HeaderName = HeaderName::from_static("proxy-authenticate");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

const OF_ONE_HOP: [HeaderName; 8] = [
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHORIZATION,
    PROXY_AUTHENTICATE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
const OF_THE_ORIGIN: [HeaderName; 6] =
    [FORWARDED, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, X_FORWARDED_PORT, X_REAL_IP];

/// How a client reached us.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub(super) peer: IpAddr,
    pub(super) is_trusted: bool,
    pub(super) is_tls: bool,
}

/// Why a request is not understood the same way by everybody, and so by nobody. About the length of
/// a body hyper has seen to that: of a chunked one it drops `Content-Length`, and it refuses two
/// lengths, and chunks in HTTP/1.0.
pub(super) fn malformed<B>(request: &Request<B>) -> Option<&'static str> {
    let headers = request.headers();
    if request.method() == Method::CONNECT {
        return Some("CONNECT is not for a gateway");
    }
    let mut hosts = headers.get_all(HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    if another.is_some() {
        return Some("more than one Host");
    }
    let authority = request.uri().authority();
    match request.version() {
        Version::HTTP_2 => {
            let names_other = |host: &HeaderValue| {
                authority
                    .is_some_and(|a| !a.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes()))
            };
            if host.is_some_and(names_other) {
                return Some("Host and :authority differ");
            }
        }
        _ if authority.is_some() => {
            return Some("only requests for a path are served, not for a URL");
        }
        Version::HTTP_11 if host.is_none() => return Some("no Host"),
        _ => {}
    }
    if !request.uri().path().starts_with('/') && request.method() != Method::OPTIONS {
        return Some("no path");
    }
    None
}

/// The protocol that a client wants to go on in, if it asks for one.
pub(super) fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = headers.get_all(CONNECTION).iter().any(|value| {
        let mut names = value.as_bytes().split(|b| *b == b',').map(<[u8]>::trim_ascii);
        names.any(|name| name.eq_ignore_ascii_case(b"upgrade"))
    });
    headers.get(UPGRADE).filter(|_| asks).cloned()
}

/// Removes what belongs to one hop only.
pub(super) fn drop_hop_headers(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|b| *b == b','))
            .map(<[u8]>::trim_ascii)
            // What nearly all say: the one is removed below, the other names no header.
            .filter(|name| ![&b"keep-alive"[..], b"close"].contains(name))
            .filter_map(|name| HeaderName::from_bytes(name).ok())
            // Nobody gets rid of the host or the length of a message in this way.
            .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
            .collect();
        named.iter().for_each(|name| drop(headers.remove(name)));
        headers.remove(CONNECTION);
    }
    remove_any(headers, &OF_ONE_HOP);
}

/// An answer in chunks has no other length, whatever its upstream says besides: whoever believed that
/// one would take a part of this answer for the next.
pub(super) fn drop_wrong_length(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Most messages have none of them, and looking through the few that they have is cheaper than
/// looking for each.
fn remove_any(headers: &mut HeaderMap, names: &[HeaderName]) {
    if headers.keys().any(|name| names.contains(name)) {
        names.iter().for_each(|name| drop(headers.remove(name)));
    }
}

/// Says where a request came from, instead of or after what a trusted proxy said.
pub(super) fn tell_origin(headers: &mut HeaderMap, hop: Hop, uri: &Uri) {
    if !hop.is_trusted {
        remove_any(headers, &OF_THE_ORIGIN);
        if headers.keys().any(|name| name.as_str().contains('_')) {
            OF_THE_ORIGIN.iter().for_each(|name| remove_in_any_spelling(headers, name.as_str()));
        }
    }
    let mut chain = Vec::with_capacity(48);
    for line in headers.get_all(X_FORWARDED_FOR) {
        chain.extend_from_slice(line.as_bytes());
        chain.extend_from_slice(b", ");
    }
    match hop.peer {
        IpAddr::V4(v4) => {
            let mut address = CompactString::default();
            push_v4(&mut address, v4);
            chain.extend_from_slice(address.as_bytes());
        }
        IpAddr::V6(v6) => chain.extend_from_slice(v6.to_string().as_bytes()),
    }
    if let Ok(chain) = HeaderValue::from_maybe_shared(bytes::Bytes::from(chain)) {
        headers.insert(X_FORWARDED_FOR, chain);
    }
    if !headers.contains_key(X_FORWARDED_PROTO) {
        let scheme = if hop.is_tls { "https" } else { "http" };
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    }
    let asked_for = headers
        .get(HOST)
        .cloned()
        .or_else(|| HeaderValue::try_from(uri.authority()?.as_str()).ok());
    if let (Some(host), false) = (asked_for, headers.contains_key(X_FORWARDED_HOST)) {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(
        version: Version,
        uri: &str,
        headers: &[(&'static str, &'static str)],
    ) -> Request<()> {
        let mut request = Request::builder().version(version).uri(uri).body(()).unwrap();
        for (name, value) in headers {
            request.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        request
    }

    #[test]
    fn what_two_servers_could_understand_differently_is_refused() {
        let host = ("host", "a");
        for (version, uri, headers, why) in [
            (Version::HTTP_11, "/", vec![host], None),
            (Version::HTTP_10, "/", vec![], None),
            (Version::HTTP_11, "/", vec![], Some("no Host")),
            (Version::HTTP_11, "/", vec![host, ("host", "b")], Some("more than one Host")),
            (
                Version::HTTP_11,
                "http://other/",
                vec![host],
                Some("only requests for a path are served, not for a URL"),
            ),
            (Version::HTTP_2, "http://a/", vec![], None),
            (Version::HTTP_2, "http://a/", vec![("host", "A")], None),
            (Version::HTTP_2, "http://a/", vec![("host", "b")], Some("Host and :authority differ")),
        ] {
            assert_eq!(malformed(&request(version, uri, &headers)), why, "{uri} {headers:?}");
        }
    }

    #[test]
    fn headers_of_one_hop_end_here_and_no_others() {
        let mut headers = request(
            Version::HTTP_11,
            "/",
            &[
                ("host", "a"),
                ("connection", "close, X-Secret, host"),
                ("x-secret", "1"),
                ("keep-alive", "5"),
                ("te", "trailers"),
                ("upgrade", "h2c"),
                ("accept", "*/*"),
            ],
        )
        .into_parts()
        .0
        .headers;
        drop_hop_headers(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "host"]);
    }

    #[test]
    fn a_strangers_words_about_its_origin_are_replaced() {
        let lies = [("host", "a"), ("x-forwarded-for", "9.9.9.9"), ("x-real-ip", "9.9.9.9")];
        for (is_trusted, chain) in [(false, "203.0.113.7"), (true, "9.9.9.9, 203.0.113.7")] {
            let (parts, ()) = request(Version::HTTP_11, "/", &lies).into_parts();
            let (mut headers, uri) = (parts.headers, parts.uri);
            let peer = "203.0.113.7".parse().unwrap();
            tell_origin(&mut headers, Hop { peer, is_trusted, is_tls: false }, &uri);
            assert_eq!(headers["x-forwarded-for"], chain);
            assert_eq!(headers["x-forwarded-proto"], "http");
            assert_eq!(headers["x-forwarded-host"], "a");
            assert_eq!(headers.contains_key("x-real-ip"), is_trusted);
        }
    }

    #[test]
    fn an_upgrade_is_wanted_only_where_the_connection_says_so() {
        let asks = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
        assert!(wanted_upgrade(request(Version::HTTP_11, "/", &asks).headers()).is_some());
        assert!(wanted_upgrade(request(Version::HTTP_11, "/", &asks[1..]).headers()).is_none());
    }
}
