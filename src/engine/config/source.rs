//! A text with its places, and what is found wrong in it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::super::policy::Place;
use super::json::hint_as_json;

/// Ten thousand rules of 300 bytes are 3 MB; this leaves room for comments, and is read in well
/// under a second.
pub const MAX_FILE_BYTES: u64 = 8 << 20;

/// More than anybody mends at once, few enough to keep.
const MAX_FINDINGS: usize = 200;

/// How much of a long line is shown: the words at fault and what stands around them.
const CHARS_BEFORE: usize = 60;
const CHARS_OF_WORDS: usize = 60;
const CHARS_AFTER: usize = 40;
const CHARS_OF_MESSAGE: usize = 300;

/// Distance of the anchors from which places are counted: a file may be one long line.
const ANCHOR_EVERY: usize = 128;

/// From where to where, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warning,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// Something wrong, or hardly meant, at a place. The texts are as the file has them: whoever prints
/// them escapes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub place: Place,
    pub message: String,
    pub hint: Option<String>,
    /// The line, in three parts; long ones are cut, marked by `…`.
    pub before: String,
    pub words: String,
    pub after: String,
}

/// Why a file cannot be used: at least one error, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    pub errors: Vec<Finding>,
    /// How many there are beyond those.
    pub more: usize,
}

impl ConfigErrors {
    fn one(finding: Finding) -> ConfigErrors {
        ConfigErrors { errors: vec![finding], more: 0 }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = &self.errors[0];
        write!(f, "{}: {}", first.place, first.message)?;
        match self.errors.len() - 1 + self.more {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// The refusal of a file by its size alone, before it is read.
pub fn too_large(file: &str, bytes: Option<u64>) -> ConfigErrors {
    let size = bytes.map_or_else(|| "over 8 MiB".into(), |bytes| format!("{bytes} bytes"));
    let message = format!("the file has {size}; at most 8 MiB ({MAX_FILE_BYTES} bytes) are read");
    let hint = "is this the file you mean? ten thousand rules take about 3 MB".to_owned();
    ConfigErrors::one(Source::new(file, "").finding(
        Severity::Error,
        Span::default(),
        message,
        Some(hint),
    ))
}

/// The bytes of a file as text, without the mark that some editors put before it.
pub fn text_of<'t>(file: &str, bytes: &'t [u8]) -> Result<&'t str, ConfigErrors> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let good = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
        let byte = bytes[error.valid_up_to()];
        let end = Span { start: good.len(), end: good.len() };
        let message = format!("the byte 0x{byte:02X} is not UTF-8 text");
        let hint = "save the file as UTF-8; is it a text file at all?".to_owned();
        ConfigErrors::one(Source::new(file, good).finding(
            Severity::Error,
            end,
            message,
            Some(hint),
        ))
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// A text that can say where in it something stands.
#[derive(Debug)]
pub(crate) struct Source<'t> {
    file: Arc<str>,
    pub(crate) text: &'t str,
    /// Whether hints should be in JSON.
    pub(crate) is_json: bool,
    anchors: Vec<Anchor>,
}

/// Line and column of the first character that begins at or after a multiple of [`ANCHOR_EVERY`].
#[derive(Clone, Copy, Debug)]
struct Anchor {
    line: usize,
    column: usize,
}

impl Anchor {
    fn after(self, bytes: &[u8]) -> Anchor {
        bytes.iter().fold(self, |at, byte| match byte {
            b'\n' => Anchor { line: at.line + 1, column: 1 },
            // The second and later bytes of a character.
            0x80..=0xBF => at,
            _ => Anchor { line: at.line, column: at.column + 1 },
        })
    }
}

impl<'t> Source<'t> {
    pub(crate) fn new(file: &str, text: &'t str) -> Source<'t> {
        let start = Anchor { line: 1, column: 1 };
        let chunks = text.as_bytes().chunks(ANCHOR_EVERY);
        let anchors = chunks.scan(start, |at, chunk| {
            let here = *at;
            *at = at.after(chunk);
            Some(here)
        });
        Source { file: file.into(), text, is_json: false, anchors: anchors.collect() }
    }

    pub(crate) fn place(&self, at: usize) -> Place {
        let at = at.min(self.text.len());
        let nearest = (at / ANCHOR_EVERY).min(self.anchors.len().saturating_sub(1));
        let from = self.anchors.get(nearest).copied().unwrap_or(Anchor { line: 1, column: 1 });
        let here = from.after(&self.text.as_bytes()[nearest * ANCHOR_EVERY..at]);
        Place { file: self.file.clone(), line: here.line, column: here.column }
    }

    pub(crate) fn words(&self, span: Span) -> &'t str {
        self.text.get(span.start..span.end).unwrap_or_default()
    }

    /// The part of `span` that reads `words`, if it does so in one place only.
    pub(crate) fn narrowed(&self, span: Span, words: &str) -> Span {
        let mut found = self.words(span).match_indices(words);
        match (found.next(), found.next()) {
            (Some((at, _)), None) if !words.is_empty() => {
                Span { start: span.start + at, end: span.start + at + words.len() }
            }
            _ => span,
        }
    }

    fn finding(
        &self,
        severity: Severity,
        span: Span,
        message: String,
        hint: Option<String>,
    ) -> Finding {
        let mut start = span.start.min(self.text.len());
        // Parsers count bytes; half a character cannot be shown.
        while !self.text.is_char_boundary(start) {
            start -= 1;
        }
        let before = self.text[..start].rsplit('\n').next().unwrap_or_default();
        let rest = line_start(&self.text[start..]);
        let (words, after) =
            rest.split_at_checked(span.end.saturating_sub(start)).unwrap_or((rest, ""));
        Finding {
            severity,
            place: self.place(start),
            message: first_chars(&message, CHARS_OF_MESSAGE),
            hint: hint.map(|hint| first_chars(&hint, CHARS_OF_MESSAGE)),
            before: last_chars(&without_passwords(before), CHARS_BEFORE),
            words: first_chars(&without_passwords(words), CHARS_OF_WORDS),
            after: first_chars(&without_passwords(after), CHARS_AFTER),
        }
    }
}

/// A line may hold a URL with a password: what is between `://` and `@` is not shown.
pub fn without_passwords(line: &str) -> Cow<'_, str> {
    let mut shown = Cow::Borrowed(line);
    let mut from = 0;
    while let Some(scheme_end) = shown[from..].find("://") {
        let start = from + scheme_end + 3;
        let end = shown[start..].find(|c: char| c.is_whitespace() || "\"'".contains(c));
        let end = end.map_or(shown.len(), |end| start + end);
        if let Some(at) = shown[start..end].rfind('@') {
            shown.to_mut().replace_range(start..start + at, "***");
        }
        from = start;
    }
    shown
}

fn line_start(text: &str) -> &str {
    let line = text.split('\n').next().unwrap_or_default();
    line.strip_suffix('\r').unwrap_or(line)
}

fn first_chars(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.into(),
    }
}

fn last_chars(text: &str, most: usize) -> String {
    match text.char_indices().rev().nth(most) {
        Some((cut, first)) => format!("…{}", &text[cut + first.len_utf8()..]),
        None => text.into(),
    }
}

/// What was found so far.
#[derive(Debug)]
pub(crate) struct Findings<'t> {
    pub(crate) source: Source<'t>,
    found: Vec<Finding>,
    errors: usize,
    warnings: usize,
}

impl<'t> Findings<'t> {
    pub(crate) fn in_source(source: Source<'t>) -> Findings<'t> {
        Findings { source, found: Vec::new(), errors: 0, warnings: 0 }
    }

    pub(crate) fn error(
        &mut self,
        span: Span,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.errors += 1;
        if self.errors <= MAX_FINDINGS {
            self.add(Severity::Error, span, message.into(), hint.into());
        }
    }

    /// An error in words that may hold a secret: they are not shown.
    pub(crate) fn error_in_secret(
        &mut self,
        span: Span,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let before = self.found.len();
        self.error(span, message, hint);
        for finding in &mut self.found[before..] {
            "***".clone_into(&mut finding.words);
            finding.after.clear();
        }
    }

    pub(crate) fn warn(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) {
        self.warnings += 1;
        if self.warnings <= MAX_FINDINGS {
            self.add(Severity::Warning, span, message.into(), hint.into());
        }
    }

    fn add(&mut self, severity: Severity, span: Span, message: String, hint: String) {
        let hint = if self.source.is_json { hint_as_json(&hint) } else { hint };
        let hint = Some(hint).filter(|hint| !hint.is_empty());
        self.found.push(self.source.finding(severity, span, message, hint));
    }

    /// Errors if there are any, else what was built with its warnings.
    pub(crate) fn result<T>(mut self, built: T) -> Result<(T, Vec<Finding>), ConfigErrors> {
        self.found.sort_by_key(|f| (f.place.line, f.place.column));
        if self.errors == 0 {
            if let more @ 1.. = self.warnings.saturating_sub(MAX_FINDINGS) {
                let end = Span { start: self.source.text.len(), end: self.source.text.len() };
                let message = format!("there are {more} more warnings");
                self.add(Severity::Warning, end, message, "mend the first, then look again".into());
            }
            return Ok((built, self.found));
        }
        self.found.retain(|finding| finding.severity == Severity::Error);
        Err(ConfigErrors { more: self.errors - self.found.len(), errors: self.found })
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }
}
