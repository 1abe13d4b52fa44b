//! Endpoint patterns: `/api/v1/orders`, `/api/*`, `/users/{id}/orders`.

use super::super::policy::Endpoint;
use super::super::rules::normal_path;

/// What is wrong with a pattern, the words at fault, and what to write.
#[derive(Debug)]
pub(super) struct EndpointError {
    pub(super) words: String,
    pub(super) message: String,
    pub(super) hint: &'static str,
}

const EXAMPLES: &str = "e.g. /api/v1/orders, /api/*, /users/{id}/orders";

/// Kept as requests are matched: percent-decoded, dot-free, slashes merged.
pub(super) fn parse_endpoint(text: &str) -> Result<Endpoint, EndpointError> {
    let wrong = |words: &str, message: String, hint| {
        Err(EndpointError { words: words.into(), message, hint })
    };
    if let Some(at) = text.find(['?', '#']) {
        let message = "an endpoint is a path, without a query".into();
        return wrong(&text[at..], message, "rules cannot tell queries apart; leave it out");
    }
    let (path, is_prefix) = match text.strip_suffix("/*") {
        Some(path) => (path, true),
        None => (text, false),
    };
    let path = if path.is_empty() && is_prefix { "/" } else { path };
    if path.contains('*') {
        let message = "`*` may only stand at the end, after a slash".into();
        return wrong(text, message, "write /api/* for all below /api, or {id} for one segment");
    }
    for segment in path.split('/').filter(|segment| segment.contains(['{', '}'])) {
        if wildcard_name(segment).is_none() {
            let message = format!("`{segment}` is not a whole segment in braces");
            return wrong(segment, message, "write a name of letters, digits, _ or -, e.g. {id}");
        }
    }
    let has_wildcards = path.contains('{');
    if has_wildcards && is_prefix {
        let message = "braces and `/*` do not go together".into();
        return wrong(text, message, "name every segment, or use a prefix without braces");
    }
    if has_wildcards && ["%7b", "%7B", "%7d", "%7D"].iter().any(|brace| path.contains(brace)) {
        let message = "encoded braces cannot stand beside {wildcards}".into();
        return wrong(text, message, EXAMPLES);
    }
    let normal = match normal_path(path) {
        Ok(normal) => normal.into_owned(),
        Err(error) => return wrong(text, error.to_string(), EXAMPLES),
    };
    Ok(match (is_prefix, has_wildcards) {
        (true, _) => Endpoint::Prefix(if normal == "/" { String::new() } else { normal }),
        (false, true) => Endpoint::Segments(segments(&normal)),
        (false, false) => Endpoint::Exact(normal),
    })
}

fn segments(path: &str) -> Vec<Option<String>> {
    let segments = path.split('/').skip(1);
    segments.map(|s| if wildcard_name(s).is_some() { None } else { Some(s.into()) }).collect()
}

fn wildcard_name(segment: &str) -> Option<&str> {
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    Some(name).filter(|name| !name.is_empty() && name.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_kept_as_requests_are_matched() {
        let some = |text: &str| Some(text.to_owned());
        for (written, endpoint) in [
            ("/api/v1/orders", Endpoint::Exact("/api/v1/orders".into())),
            ("/api//v1/./orders/", Endpoint::Exact("/api/v1/orders".into())),
            ("/caf%C3%A9", Endpoint::Exact("/café".into())),
            ("/", Endpoint::Exact("/".into())),
            ("/*", Endpoint::Prefix(String::new())),
            ("/api/*", Endpoint::Prefix("/api".into())),
            ("/a/%2A", Endpoint::Exact("/a/*".into())),
            ("/%7Bid%7D", Endpoint::Exact("/{id}".into())),
            ("/u/{id}/x", Endpoint::Segments(vec![some("u"), None, some("x")])),
            ("/{a}/{b}", Endpoint::Segments(vec![None, None])),
        ] {
            assert_eq!(parse_endpoint(written).unwrap(), endpoint, "{written}");
        }
    }

    #[test]
    fn what_would_never_match_is_refused() {
        for (written, words) in [
            ("api", "begins with /"),
            ("/a*", "at the end"),
            ("/a/*/b", "at the end"),
            ("/u/{id", "whole segment"),
            ("/u/x{id}", "whole segment"),
            ("/u/{}", "whole segment"),
            ("/u/{a b}", "whole segment"),
            ("/u/{id}/*", "do not go together"),
            ("/u/{id}/%7Bx%7D", "encoded braces"),
            ("/a?b=1", "without a query"),
            ("/a%2Fb", "encoded slash"),
            ("/%FF", "not UTF-8"),
        ] {
            let error = parse_endpoint(written).unwrap_err();
            assert!(error.message.contains(words), "{written}: {}", error.message);
        }
    }
}
