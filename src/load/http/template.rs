//! The bytes of a request, built once; only the key changes.

use http::Method;

/// Where a key stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    Header(String),
    Query(String),
    /// In place of `{key}` in the path, or after it.
    Path,
}

impl std::str::FromStr for KeyPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<KeyPlace, String> {
        let is_token = |name: &str| http::header::HeaderName::try_from(name).is_ok();
        match text.split_once(':') {
            Some(("header", name)) if is_token(name) => Ok(KeyPlace::Header(name.into())),
            Some(("query", name)) if !name.is_empty() => Ok(KeyPlace::Query(name.into())),
            None if text == "path" => Ok(KeyPlace::Path),
            _ => Err(format!(
                "`{text}` is no place for a key; write header:X-API-Key, query:NAME or path"
            )),
        }
    }
}

/// What every request has in common.
#[derive(Clone, Debug)]
pub struct Parts {
    pub method: Method,
    /// Scheme, host and port as in a URL.
    pub authority: String,
    /// Path and query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub key_in: Option<KeyPlace>,
}

/// A request with a place left open.
#[derive(Clone, Debug)]
pub struct Template {
    before: Vec<u8>,
    after: Vec<u8>,
    /// Whether a key stands between, and must be escaped as in a URL.
    key: Option<Escape>,
    /// Answers to HEAD have no body.
    pub bodiless: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    Url,
    Header,
}

const OPEN: &str = "{key}";

impl Parts {
    /// Path and query with the key in its place; none where it stands in a header.
    fn path_with_open_key(&self) -> (String, Option<Escape>) {
        match &self.key_in {
            Some(KeyPlace::Query(name)) => {
                let sign = if self.path.contains('?') { '&' } else { '?' };
                let name = percent_encoding::utf8_percent_encode(name, URL);
                (format!("{}{sign}{name}={OPEN}", self.path), Some(Escape::Url))
            }
            Some(KeyPlace::Path) if self.path.contains(OPEN) => {
                (self.path.clone(), Some(Escape::Url))
            }
            Some(KeyPlace::Path) => {
                let (path, query) = self.path.split_once('?').unwrap_or((&self.path, ""));
                let query = if query.is_empty() { String::new() } else { format!("?{query}") };
                (format!("{}/{OPEN}{query}", path.trim_end_matches('/')), Some(Escape::Url))
            }
            Some(KeyPlace::Header(_)) | None => (self.path.clone(), None),
        }
    }

    /// What a request for this key asks for, and the header that names it.
    pub fn for_key(&self, key: &str) -> (String, Option<(String, String)>) {
        let (path, open) = self.path_with_open_key();
        let header = match &self.key_in {
            Some(KeyPlace::Header(name)) => Some((name.clone(), header_value(key))),
            _ => None,
        };
        let escaped = percent_encoding::utf8_percent_encode(key, URL).to_string();
        (if open.is_some() { path.replace(OPEN, &escaped) } else { path }, header)
    }
}

const URL: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b':');

/// A key in a header: visible ASCII as it is, the rest as in a URL.
fn header_value(key: &str) -> String {
    const BEYOND: &percent_encoding::AsciiSet = percent_encoding::CONTROLS;
    percent_encoding::utf8_percent_encode(key, BEYOND).to_string()
}

impl Template {
    pub fn new(parts: &Parts) -> Template {
        let (path, mut key) = parts.path_with_open_key();
        let mut text = format!("{} {path} HTTP/1.1\r\nHost: {}\r\n", parts.method, parts.authority);
        let named =
            |name: &str| parts.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        if !named("user-agent") {
            text += concat!("User-Agent: rlctl/", env!("CARGO_PKG_VERSION"), "\r\n");
        }
        for (name, value) in &parts.headers {
            text += &format!("{name}: {value}\r\n");
        }
        if let Some(KeyPlace::Header(name)) = &parts.key_in {
            text += &format!("{name}: {OPEN}\r\n");
            key = Some(Escape::Header);
        }
        let needs_length =
            !parts.body.is_empty() || matches!(parts.method, Method::POST | Method::PUT);
        if needs_length && !named("content-length") {
            text += &format!("Content-Length: {}\r\n", parts.body.len());
        }
        text += "\r\n";
        let at = if key.is_some() { text.find(OPEN) } else { None };
        let (before, after) = match at {
            Some(at) => (text[..at].into(), text[at + OPEN.len()..].into()),
            None => (text.into_bytes(), Vec::new()),
        };
        let mut after: Vec<u8> = after;
        let mut template =
            Template { before, after: Vec::new(), key, bodiless: parts.method == Method::HEAD };
        after.extend_from_slice(&parts.body);
        template.after = after;
        template
    }

    /// Whether requests differ by their key.
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Appends the request for a key.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(&self.before);
        if self.key.is_some() {
            out.extend_from_slice(key);
        }
        out.extend_from_slice(&self.after);
    }

    /// A key as it stands in the request.
    pub fn escaped(&self, key: &str) -> Vec<u8> {
        match self.key {
            None => Vec::new(),
            Some(Escape::Url) => {
                percent_encoding::utf8_percent_encode(key, URL).to_string().into_bytes()
            }
            Some(Escape::Header) => header_value(key).into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(key_in: Option<&str>, path: &str) -> Parts {
        Parts {
            method: Method::GET,
            authority: "localhost:8080".into(),
            path: path.into(),
            headers: vec![("X-A".into(), "b".into())],
            body: Vec::new(),
            key_in: key_in.map(|text| text.parse().unwrap()),
        }
    }

    fn request(parts: &Parts, key: &str) -> String {
        let (template, mut out) = (Template::new(parts), Vec::new());
        template.write(&mut out, &template.escaped(key));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_key_stands_where_it_belongs_and_forges_nothing() {
        let line = |place, path, key| {
            let text = request(&parts(Some(place), path), key);
            text.lines().next().unwrap().to_owned()
        };
        assert_eq!(line("query:k", "/", "a b&c"), "GET /?k=a%20b%26c HTTP/1.1");
        assert_eq!(line("query:k", "/?x=1", "user:1"), "GET /?x=1&k=user:1 HTTP/1.1");
        assert_eq!(line("path", "/users/{key}/x", "a/b"), "GET /users/a%2Fb/x HTTP/1.1");
        assert_eq!(line("path", "/users?x=1", "7"), "GET /users/7?x=1 HTTP/1.1");
        let header = request(&parts(Some("header:X-API-Key"), "/"), "a\r\nEvil: é");
        assert!(header.contains("X-API-Key: a%0D%0AEvil: %C3%A9\r\n\r\n"), "{header}");
    }

    #[test]
    fn a_request_is_whole() {
        let text = request(&parts(None, "/a?b"), "ignored");
        assert!(
            text.starts_with("GET /a?b HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: rlctl/")
        );
        assert!(text.ends_with("X-A: b\r\n\r\n"));
        let post = Parts { method: Method::POST, body: b"{}".to_vec(), ..parts(None, "/") };
        assert!(request(&post, "").ends_with("Content-Length: 2\r\n\r\n{}"));
    }

    #[test]
    fn places_are_read() {
        assert!("header:X A".parse::<KeyPlace>().is_err());
        assert!("cookie:x".parse::<KeyPlace>().unwrap_err().contains("header:X-API-Key"));
    }
}
