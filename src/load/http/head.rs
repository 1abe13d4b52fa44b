//! The head of an answer: status, how its body ends, and what it says about the limit. Strict where
//! a wrong guess would read one answer as two.

use super::super::answer::Told;

/// No server needs more for a status and its headers.
pub const MAX_HEAD: usize = 64 * 1024;
/// Above this a Reset is a moment (Unix seconds), below it a wait.
const FIRST_MOMENT: u64 = 1_000_000_000;

/// How the body of an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    pub body: Body,
    /// Whether the connection can be used again.
    pub keep_alive: bool,
    pub told: Told,
    /// How many bytes it has.
    pub bytes: usize,
}

/// This is no HTTP/1.1, and the connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an HTTP/1.1 answer: {0}")]
pub struct Malformed(pub &'static str);

/// Reads the head at the start of `bytes`; none while it is not all there. `now_s` is the time in
/// Unix seconds, for resets that are told as a wait.
pub fn read_head(bytes: &[u8], bodiless: bool, now_s: u64) -> Result<Option<Head>, Malformed> {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else {
        return match bytes.len() {
            length if length > MAX_HEAD => Err(Malformed("its head is too long")),
            // What does not begin right never gets right.
            length if length >= 9 => status(bytes).map(|_| None),
            _ => Ok(None),
        };
    };
    let (status, http_1_1) = status(bytes)?;
    let mut fields = Fields { keep_alive: http_1_1, ..Fields::default() };
    let mut rest = &bytes[..end + 2];
    rest = &rest[memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1)..];
    while let Some(line_end) = memchr::memchr(b'\n', rest) {
        fields.line(&rest[..line_end.saturating_sub(1)], now_s)?;
        rest = &rest[line_end + 1..];
    }
    let body = match (
        bodiless || matches!(status, 100..=199 | 204 | 304),
        fields.chunked,
        fields.length,
    ) {
        (true, ..) => Body::Length(0),
        (_, true, Some(_)) => return Err(Malformed("it has two lengths")),
        (_, true, None) => Body::Chunked,
        (_, false, Some(length)) => Body::Length(length),
        (_, false, None) => Body::UntilClose,
    };
    let keep_alive = fields.keep_alive && body != Body::UntilClose;
    Ok(Some(Head { status, body, keep_alive, told: fields.told, bytes: end + 4 }))
}

/// The status, and whether it is HTTP/1.1.
fn status(bytes: &[u8]) -> Result<(u16, bool), Malformed> {
    let wrong = Malformed("it does not begin with HTTP/1.1 and a status");
    let minor = match bytes.get(..9) {
        Some(b"HTTP/1.1 ") => true,
        Some(b"HTTP/1.0 ") => false,
        _ => return Err(wrong),
    };
    match bytes.get(9..12) {
        Some(digits) if digits.iter().all(u8::is_ascii_digit) => {
            let status = digits.iter().fold(0, |n, digit| n * 10 + u16::from(digit - b'0'));
            if (100..=999).contains(&status) { Ok((status, minor)) } else { Err(wrong) }
        }
        // It is not there yet.
        None => Ok((0, minor)),
        Some(_) => Err(wrong),
    }
}

#[derive(Default)]
struct Fields {
    length: Option<u64>,
    chunked: bool,
    keep_alive: bool,
    told: Told,
}

impl Fields {
    #[inline]
    fn line(&mut self, line: &[u8], now_s: u64) -> Result<(), Malformed> {
        let colon = memchr::memchr(b':', line).ok_or(Malformed("a header has no colon"))?;
        let (name, value) = (&line[..colon], trim(&line[colon + 1..]));
        // By length first: most headers are none of ours.
        match name.len() {
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = number(value).ok_or(Malformed("its length is no number"))?;
                if self.length.replace(length).is_some_and(|before| before != length) {
                    return Err(Malformed("it has two lengths"));
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed("its transfer encoding is unknown"));
                }
                self.chunked = true;
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                if value.eq_ignore_ascii_case(b"close") {
                    self.keep_alive = false;
                } else if value.eq_ignore_ascii_case(b"keep-alive") {
                    self.keep_alive = true;
                }
            }
            _ => self.told.read(name, value, now_s),
        }
        Ok(())
    }
}

impl Told {
    /// Takes what one header says about the limit; others say nothing.
    #[inline]
    pub fn read(&mut self, name: &[u8], value: &[u8], now_s: u64) {
        match name.len() {
            11 if name.eq_ignore_ascii_case(b"retry-after") => {
                self.retry_after_s = number(value).or_else(|| until_date(value, now_s));
            }
            17 if name.eq_ignore_ascii_case(b"x-ratelimit-limit") => {
                self.limit = number(value);
            }
            21 if name.eq_ignore_ascii_case(b"x-ratelimit-remaining") => {
                self.remaining = number(value);
            }
            17 if name.eq_ignore_ascii_case(b"x-ratelimit-reset") => {
                let at = |n| if n >= FIRST_MOMENT { n } else { now_s + n };
                self.reset_at_s = number(value).map(at);
            }
            9 if name.eq_ignore_ascii_case(b"ratelimit") => {
                self.remaining = self.remaining.or_else(|| parameter(value, b"r"));
            }
            16 if name.eq_ignore_ascii_case(b"ratelimit-policy") => {
                self.limit = self.limit.or_else(|| parameter(value, b"q"));
                self.window_s = parameter(value, b"w");
            }
            _ => {}
        }
    }
}

/// A parameter of the first item of a structured list: `"name";q=100;w=60, …`.
fn parameter(value: &[u8], name: &[u8]) -> Option<u64> {
    let item = value.split(|b| *b == b',').next()?;
    let mut parameters = item.split(|b| *b == b';').skip(1).map(trim);
    parameters.find_map(|parameter| number(parameter.strip_prefix(name)?.strip_prefix(b"=")?))
}

/// The whole seconds until a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn until_date(value: &[u8], now_s: u64) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let civil = text.strip_suffix(" GMT")?.split_once(", ")?.1;
    let date = jiff::civil::DateTime::strptime("%d %b %Y %H:%M:%S", civil).ok()?;
    let at = date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second();
    Some(u64::try_from(at).ok()?.saturating_sub(now_s))
}

fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Digits only, at most 18 of them.
fn number(bytes: &[u8]) -> Option<u64> {
    let plain = (1..=18).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit);
    plain.then(|| bytes.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<Head>, Malformed> {
        read_head(text.as_bytes(), false, 1_800_000_000)
    }

    #[test]
    fn what_counts_is_read_whatever_the_spelling() {
        let text = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 17\r\nX-RateLimit-Limit:10\r\n\
                    x-ratelimit-remaining: 0 \r\nX-RateLimit-Reset: 1800000009\r\nRetry-After: 3\r\n\
                    RateLimit-Policy: \"per-ip-1m\";q=100;w=60, \"b\";q=1\r\n\r\nbody";
        let head = head(text).unwrap().unwrap();
        let told = Told {
            limit: Some(10),
            remaining: Some(0),
            reset_at_s: Some(1_800_000_009),
            retry_after_s: Some(3),
            window_s: Some(60),
        };
        assert_eq!((head.status, head.body, head.keep_alive), (429, Body::Length(17), true));
        assert_eq!((head.told, head.bytes), (told, text.len() - 4));
    }

    #[test]
    fn resets_and_waits_come_in_several_forms() {
        let told =
            |line: &str| head(&format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n")).unwrap().unwrap().told;
        assert_eq!(told("X-RateLimit-Reset: 7").reset_at_s, Some(1_800_000_007));
        assert_eq!(told("RateLimit: \"x\";r=42;t=7").remaining, Some(42));
        assert_eq!(told("RateLimit-Policy: \"x\";q=5").limit, Some(5));
        assert_eq!(told("Retry-After: soon").retry_after_s, None);
        // 1 800 000 000 is Fri, 15 Jan 2027 08:00:00.
        assert_eq!(told("Retry-After: Fri, 15 Jan 2027 08:00:30 GMT").retry_after_s, Some(30));
        assert_eq!(told("Retry-After: Fri, 15 Jan 2027 07:00:30 GMT").retry_after_s, Some(0));
    }

    #[test]
    fn bodies_end_as_the_head_says() {
        let body = |rest: &str| head(&format!("HTTP/1.1 {rest}\r\n\r\n")).map(|h| h.unwrap().body);
        assert_eq!(body("200 OK\r\nTransfer-Encoding: chunked"), Ok(Body::Chunked));
        assert_eq!(body("200 OK"), Ok(Body::UntilClose));
        assert_eq!(body("204 No Content"), Ok(Body::Length(0)));
        assert_eq!(body("200 OK\r\nContent-Length: 5\r\ncontent-length: 5"), Ok(Body::Length(5)));
        assert!(body("200 OK\r\nContent-Length: 5\r\nContent-Length: 6").is_err());
        assert!(body("200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked").is_err());
        assert!(body("200 OK\r\nContent-Length: -5").is_err());
        assert!(body("200 OK\r\nTransfer-Encoding: gzip").is_err());
        assert!(body("200 OK\r\nno colon").is_err());
    }

    #[test]
    fn what_is_not_all_there_is_waited_for_and_what_is_wrong_is_refused() {
        let whole = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(head(&whole[..end]), Ok(None), "{}", &whole[..end]);
        }
        assert!(head("HTTP/2 200 OK\r\n").is_err());
        assert!(head("SSH-2.0-OpenSSH\r\n").is_err());
        assert!(head("HTTP/1.1 2x0 OK\r\n").is_err());
        assert!(head(&format!("HTTP/1.1 200 {}", "x".repeat(MAX_HEAD))).is_err());
        let close = head("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        assert!(!close.unwrap().unwrap().keep_alive);
        let old = head("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(!old.unwrap().unwrap().keep_alive);
    }
}
