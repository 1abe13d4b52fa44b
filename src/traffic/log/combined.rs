//! Common and combined logs: `host ident user [time] "request" status bytes ["referer" "agent"]`.

use super::field::{Field, FieldError};
use super::time::ClfTime;
use super::{Parsed, Values, broken};

#[derive(Debug)]
pub(super) struct Combined {
    wanted: Vec<Field>,
    /// Whether anything behind the time is wanted.
    to_the_end: bool,
    time: ClfTime,
}

impl Combined {
    pub(super) fn new(wanted: &[Field]) -> Result<Combined, FieldError> {
        for field in wanted {
            match field {
                // Rules may count by headers that this log does not tell.
                Field::Named(name) if !name.starts_with("header:") => {
                    return Err(FieldError::NotInCombined(name.clone()));
                }
                _ => {}
            }
        }
        let early = |field: &Field| matches!(field, Field::Ip | Field::User);
        Ok(Combined {
            wanted: wanted.to_vec(),
            to_the_end: !wanted.iter().all(early),
            time: ClfTime::default(),
        })
    }

    pub(super) fn parse(&mut self, line: &[u8], values: &mut Values) -> Parsed {
        let host_end = memchr::memchr(b' ', line).filter(|end| *end > 0);
        let host_end = host_end.ok_or_else(|| broken("no host at its start"))?;
        let open = memchr::memchr(b'[', &line[host_end..]).map(|at| host_end + at);
        let open = open.ok_or_else(|| broken("no time in brackets"))?;
        let close = memchr::memchr(b']', &line[open..]).map(|at| open + at);
        let close = close.ok_or_else(|| broken("no time in brackets"))?;
        let at = self.time.parse(&line[open + 1..close]);
        let at = at.ok_or_else(|| broken("its time is none"))?;
        let quote = close + 2;
        if line.get(close + 1..=quote) != Some(b" \"") {
            return Err(broken("no request in quotes"));
        }
        let end = request_end(line, quote + 1).ok_or_else(|| broken("the request has no end"))?;
        let parts = Parts { line, host_end, open, request: (quote + 1, end) };
        if self.to_the_end || self.wanted.len() > 1 {
            self.fill(&parts, values);
        } else if let Some(field) = self.wanted.first() {
            values.put(0, &parts.early(field));
        }
        Ok(at)
    }

    fn fill(&self, parts: &Parts<'_>, values: &mut Values) {
        for (place, field) in self.wanted.iter().enumerate() {
            values.put(place, &parts.value(field));
        }
    }
}

/// Where the request ends: at the quote with a status behind it. Requests of strangers may hold
/// quotes themselves.
fn request_end(line: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'"', &line[from..]).map(|at| from + at).find(|quote| {
        matches!(line.get(quote + 1..quote + 5), Some([b' ', status @ ..]) if
            status.iter().all(u8::is_ascii_digit))
            && matches!(line.get(quote + 5), None | Some(b' '))
    })
}

struct Parts<'a> {
    line: &'a [u8],
    host_end: usize,
    open: usize,
    request: (usize, usize),
}

type Text<'a> = std::borrow::Cow<'a, str>;

impl<'a> Parts<'a> {
    fn text(&self, from: usize, to: usize) -> Text<'a> {
        String::from_utf8_lossy(self.line.get(from..to).unwrap_or_default())
    }

    fn early(&self, field: &Field) -> Text<'a> {
        match field {
            Field::Ip => self.text(0, self.host_end),
            Field::User => {
                // Behind the ident, up to the time: a user may have spaces.
                let rest = &self.line[self.host_end + 1..self.open];
                let user = memchr::memchr(b' ', rest).map_or(rest.len(), |at| at + 1);
                let from = self.host_end + 1 + user.min(rest.len());
                self.text(from, self.open.saturating_sub(1).max(from))
            }
            _ => "".into(),
        }
    }

    fn value(&self, field: &Field) -> Text<'a> {
        let (from, to) = self.request;
        match field {
            Field::Method | Field::Path => {
                let request = self.text(from, to);
                let mut words = request.split(' ');
                let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
                Text::Owned(if *field == Field::Method { method } else { path }.to_string())
            }
            Field::Status => self.text(to + 2, to + 5),
            Field::Referer => self.quoted(0),
            Field::Agent => self.quoted(1),
            other => self.early(other),
        }
    }

    /// One of the quoted texts behind the request.
    fn quoted(&self, number: usize) -> Text<'a> {
        let behind = &self.line[self.request.1 + 1..];
        let mut quotes = memchr::memchr_iter(b'"', behind)
            .filter(|at| *at == 0 || behind[at - 1] != b'\\')
            .map(|at| self.request.1 + 1 + at)
            .skip(2 * number);
        match (quotes.next(), quotes.next()) {
            (Some(from), Some(to)) => self.text(from + 1, to),
            _ => "".into(),
        }
    }
}
