//! JSON as a tree with places. Strict (RFC 8259), but a key given twice is an error: half of the
//! readers take the first, half the last.

use std::borrow::Cow;

use super::source::{Findings, Span};
use super::tree::{Entry, MAX_DEPTH, Node, Table, Value, integer, too_deep};

/// Stops at the first error of syntax: what follows one is a guess.
pub(super) fn parse<'t>(text: &'t str, findings: &mut Findings<'t>) -> Option<Node<'t>> {
    let mut parser = Parser { text, at: 0, duplicates: Vec::new() };
    let parsed = parser.document();
    for (first, second) in std::mem::take(&mut parser.duplicates) {
        let key = findings.source.words(second).trim_matches('"');
        let place = findings.source.place(first.start);
        findings.error(
            second,
            format!("`{key}` is given twice"),
            format!("it is first given at {place}"),
        );
    }
    match parsed {
        Ok(node) => Some(node),
        Err(Wrong { span, message, hint }) => {
            findings.error(span, message, hint);
            None
        }
    }
}

struct Wrong {
    span: Span,
    message: String,
    hint: String,
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    duplicates: Vec<(Span, Span)>,
}

impl<'t> Parser<'t> {
    fn document(&mut self) -> Result<Node<'t>, Wrong> {
        let root = self.value(0)?;
        self.skip_space();
        match self.peek() {
            None => Ok(root),
            Some(_) => Err(self.wrong("something follows the end of the JSON", "remove it")),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
    }

    /// At the character that comes next.
    fn wrong(&self, what: &str, hint: &str) -> Wrong {
        let width = self.rest().chars().next().map_or(0, char::len_utf8);
        let span = Span { start: self.at, end: self.at + width };
        Wrong { span, message: format!("this is not JSON: {what}"), hint: hint.into() }
    }

    fn value(&mut self, depth: usize) -> Result<Node<'t>, Wrong> {
        self.skip_space();
        let start = self.at;
        if depth > MAX_DEPTH {
            let (message, hint) = too_deep();
            return Err(Wrong { span: Span { start, end: start + 1 }, message, hint });
        }
        let value = match self.peek() {
            Some(b'{') => self.table(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Value::Text(self.text()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => self.word()?,
        };
        Ok(Node { span: Span { start, end: self.at }, value })
    }

    fn word(&mut self) -> Result<Value<'t>, Wrong> {
        for (word, value) in
            [("true", Value::Flag(true)), ("false", Value::Flag(false)), ("null", Value::Null)]
        {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        let what = if self.peek().is_none() { "the file ends early" } else { "a value is wanted" };
        Err(self.wrong(what, "write a number, true, false, \"text\", [list] or {table}"))
    }

    fn table(&mut self, depth: usize) -> Result<Value<'t>, Wrong> {
        let mut entries: Vec<Entry<'t>> = Vec::new();
        self.at += 1;
        self.skip_space();
        while self.peek() != Some(b'}') {
            if !entries.is_empty() {
                self.comma("}")?;
            }
            if self.peek() != Some(b'"') {
                return Err(self.wrong("a key is wanted", "write \"key\": value"));
            }
            let start = self.at;
            let key = self.text()?;
            let key_span = Span { start, end: self.at };
            self.skip_space();
            if self.peek() != Some(b':') {
                return Err(self.wrong("a colon is wanted", "write \"key\": value"));
            }
            self.at += 1;
            let node = self.value(depth + 1)?;
            entries.push(Entry { key, key_span, node });
            self.skip_space();
        }
        self.at += 1;
        self.drop_duplicates(&mut entries);
        Ok(Value::Table(Table { entries }))
    }

    /// Keeps the first of each key; by sorting, since a table may have many thousands.
    fn drop_duplicates(&mut self, entries: &mut Vec<Entry<'t>>) {
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by_key(|n| (&entries[*n].key, *n));
        let mut keep = vec![true; entries.len()];
        for group in order.chunk_by(|a, b| entries[*a].key == entries[*b].key) {
            for n in &group[1..] {
                self.duplicates.push((entries[group[0]].key_span, entries[*n].key_span));
                keep[*n] = false;
            }
        }
        let mut keep = keep.into_iter();
        entries.retain(|_| keep.next().unwrap_or(true));
    }

    fn list(&mut self, depth: usize) -> Result<Value<'t>, Wrong> {
        let mut items = Vec::new();
        self.at += 1;
        self.skip_space();
        while self.peek() != Some(b']') {
            if !items.is_empty() {
                self.comma("]")?;
            }
            items.push(self.value(depth + 1)?);
            self.skip_space();
        }
        self.at += 1;
        Ok(Value::List(items))
    }

    fn comma(&mut self, end: &str) -> Result<(), Wrong> {
        if self.peek() != Some(b',') {
            let what =
                if self.peek().is_none() { "the file ends early" } else { "a comma is wanted" };
            return Err(self.wrong(what, &format!("expected here: , or {end}")));
        }
        self.at += 1;
        self.skip_space();
        match self.peek() {
            Some(b'}' | b']') => {
                self.at -= 1;
                Err(self.wrong("nothing follows the comma", "remove the last comma"))
            }
            _ => Ok(()),
        }
    }

    fn number(&mut self) -> Result<Value<'t>, Wrong> {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'))
            .unwrap_or(rest.len());
        let written = &rest[..end];
        let digits = written.strip_prefix('-').unwrap_or(written);
        let value = if digits.bytes().all(|b| b.is_ascii_digit()) {
            Some(Value::Integer(integer(written, 10)))
        } else {
            written.parse().ok().map(Value::Number)
        };
        let leading_zero = digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
        match value.filter(|_| !leading_zero && digits.starts_with(|c: char| c.is_ascii_digit())) {
            Some(value) => {
                self.at += end;
                Ok(value)
            }
            None => Err(self.wrong("a number is badly written", "e.g. 5, 0.5, -1")),
        }
    }

    fn text(&mut self) -> Result<Cow<'t, str>, Wrong> {
        self.at += 1;
        let mut text: Cow<'t, str> = Cow::Borrowed("");
        loop {
            let rest = self.rest();
            let end = rest.find(|c: char| c == '"' || c == '\\' || c < ' ');
            let plain = &rest[..end.unwrap_or(rest.len())];
            // The usual text has no escapes and need not be copied.
            if text.is_empty() {
                text = Cow::Borrowed(plain);
            } else {
                text.to_mut().push_str(plain);
            }
            self.at += plain.len();
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    let escaped = self.escape()?;
                    text.to_mut().push(escaped);
                }
                _ => return Err(self.wrong("the text does not end", "end it with a quote")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Wrong> {
        let wrong = self.wrong("unknown escape", r#"there are \" \\ \/ \b \f \n \r \t \uXXXX"#);
        let kind = self.text.as_bytes().get(self.at + 1).copied();
        self.at += 2;
        Ok(match kind {
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(c),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let first = self.unit().ok_or(()).and_then(|unit| match unit {
                    0xD800..0xDC00 if self.rest().starts_with("\\u") => {
                        self.at += 2;
                        let low = self.unit().filter(|low| (0xDC00..0xE000).contains(low));
                        let low = low.ok_or(())?;
                        Ok(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
                    }
                    unit => Ok(unit),
                });
                first.ok().and_then(char::from_u32).ok_or(wrong)?
            }
            _ => return Err(wrong),
        })
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let unit = digits.bytes().all(|b| b.is_ascii_hexdigit()).then_some(digits)?;
        self.at += 4;
        u32::from_str_radix(unit, 16).ok()
    }
}
