//! The text as a tree that knows where each part stands; the same for TOML and JSON.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::json;
use super::source::{Findings, Span};

/// No file that people write is nested deeper; a bound keeps hostile ones off the stack.
pub(crate) const MAX_DEPTH: usize = 32;

/// The TOML parser goes on after an error and then trips over what follows from it.
const MAX_SYNTAX_ERRORS: usize = 10;

/// Finding the first of a pair takes a walk over the whole tree.
const MAX_DUPLICATES: usize = 20;

#[derive(Clone, Debug)]
pub(crate) struct Node<'t> {
    pub(crate) span: Span,
    pub(crate) value: Value<'t>,
}

#[derive(Clone, Debug)]
pub(crate) enum Value<'t> {
    Null,
    Flag(bool),
    /// Numbers too large for any use are kept as the largest there are.
    Integer(i128),
    Number(f64),
    Text(Cow<'t, str>),
    /// A date or time of TOML, as written.
    Time(Cow<'t, str>),
    List(Vec<Node<'t>>),
    Table(Table<'t>),
}

/// Its entries, in the order of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table<'t> {
    pub(crate) entries: Vec<Entry<'t>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry<'t> {
    pub(crate) key: Cow<'t, str>,
    pub(crate) key_span: Span,
    pub(crate) node: Node<'t>,
}

impl<'t> Table<'t> {
    pub(crate) fn get(&self, key: &str) -> Option<&Entry<'t>> {
        self.entries.iter().find(|entry| entry.key == key)
    }
}

/// The tree of the text, with what is wrong with its syntax among the findings; none when nothing
/// can be said about the rest. JSON is told by its first character or by the file's name.
pub(crate) fn parse<'t>(file: &str, findings: &mut Findings<'t>) -> Option<Node<'t>> {
    let text = findings.source.text;
    let is_json =
        file.to_ascii_lowercase().ends_with(".json") || text.trim_start().starts_with('{');
    if is_json { json::parse(text, findings) } else { parse_toml(text, findings) }
}

fn parse_toml<'t>(text: &'t str, findings: &mut Findings<'t>) -> Option<Node<'t>> {
    let (root, mut errors) = DeTable::parse_recoverable(text);
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    let (duplicates, syntax): (Vec<_>, Vec<_>) =
        errors.into_iter().partition(|error| error.message() == "duplicate key");
    if !syntax.is_empty() {
        report_syntax(&syntax, findings);
        return None;
    }
    let root = node(root.span(), DeValue::Table(root.into_inner()), 0, findings)?;
    for error in duplicates.into_iter().take(MAX_DUPLICATES) {
        let span = error.span().map_or(Span::default(), Span::from);
        report_duplicate(&root, span, findings);
    }
    Some(root)
}

/// One error per line: the others of a line mostly follow from its first.
fn report_syntax(errors: &[toml::de::Error], findings: &mut Findings<'_>) {
    let mut last_line = 0;
    let mut reported = 0;
    for error in errors {
        let span = error.span().map_or_else(|| deepest_line(findings.source.text), Span::from);
        let line = findings.source.place(span.start).line;
        if line == last_line || reported == MAX_SYNTAX_ERRORS {
            continue;
        }
        let (message, hint) = in_our_words(error.message());
        findings.error(span, message, hint);
        (last_line, reported) = (line, reported + 1);
        // Whatever is never closed swallows the rest of the file.
        if error.message().starts_with("unclosed") || error.message().contains("recurs") {
            break;
        }
    }
}

fn in_our_words(message: &str) -> (String, String) {
    if message.contains("recurs") {
        return too_deep();
    }
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let hint = match what {
        "string values must be quoted" => "write text in quotes, e.g. name = \"per-user\"".into(),
        "key with no value" => "write key = value, e.g. dimension = \"user\"".into(),
        "invalid basic string" => "end the text with a quote on the same line".into(),
        "unexpected leading zero" => "write the number without it".into(),
        _ if expected.is_empty() || expected == "nothing" => {
            "the syntax is that of TOML, https://toml.io".into()
        }
        _ => format!("expected here: {expected}"),
    };
    (format!("this is not TOML: {what}"), hint)
}

pub(crate) fn too_deep() -> (String, String) {
    ("this is nested too deeply".into(), format!("at most {MAX_DEPTH} levels are read"))
}

/// The TOML parser does not say where keys have too many dots.
fn deepest_line(text: &str) -> Span {
    let dots = |line: &&str| line.bytes().filter(|byte| *byte == b'.').count();
    let line = text.lines().max_by_key(dots).unwrap_or_default();
    let start = line.as_ptr() as usize - text.as_ptr() as usize;
    Span { start, end: start + line.len() }
}

fn node<'t>(
    span: std::ops::Range<usize>,
    value: DeValue<'t>,
    depth: usize,
    findings: &mut Findings<'t>,
) -> Option<Node<'t>> {
    let span = Span::from(span);
    if depth > MAX_DEPTH {
        let (message, hint) = too_deep();
        findings.error(span, message, hint);
        return None;
    }
    let value = match value {
        DeValue::Boolean(flag) => Value::Flag(flag),
        DeValue::String(text) => Value::Text(text),
        DeValue::Datetime(_) => Value::Time(findings.source.words(span).into()),
        DeValue::Integer(number) => Value::Integer(integer(number.as_str(), number.radix())),
        DeValue::Float(number) => Value::Number(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Array(items) => {
            let items = items.into_iter().map(|item| {
                let span = item.span();
                node(span, item.into_inner(), depth + 1, findings)
            });
            Value::List(items.collect::<Option<_>>()?)
        }
        DeValue::Table(table) => Value::Table(entries(table, depth, findings)?),
    };
    Some(Node { span, value })
}

fn entries<'t>(table: DeTable<'t>, depth: usize, findings: &mut Findings<'t>) -> Option<Table<'t>> {
    let entry = |(key, value): (Spanned<Cow<'t, str>>, Spanned<DeValue<'t>>)| {
        let (key_span, span) = (Span::from(key.span()), value.span());
        let node = node(span, value.into_inner(), depth + 1, findings)?;
        Some(Entry { key: key.into_inner(), key_span, node })
    };
    let mut entries: Vec<Entry<'t>> = table.into_iter().map(entry).collect::<Option<_>>()?;
    entries.sort_by_key(|entry| entry.key_span.start);
    Some(Table { entries })
}

pub(crate) fn integer(digits: &str, radix: u32) -> i128 {
    let largest = if digits.starts_with('-') { i128::MIN } else { i128::MAX };
    i128::from_str_radix(digits, radix).unwrap_or(largest)
}

/// The parser keeps one entry of a key that is given twice, and says where the second is.
fn report_duplicate(root: &Node<'_>, second: Span, findings: &mut Findings<'_>) {
    let key = findings.source.words(second);
    let header = line_around(findings.source.text, second.start);
    let first = if header.starts_with('[') {
        findings.source.text[..second.start].rmatch_indices(header).map(|(at, _)| at).last()
    } else {
        let mut starts = Vec::new();
        starts_of(root, key, second.start, findings.source.text, &mut starts);
        starts.into_iter().max()
    };
    let hint = match first {
        Some(at) => format!("it is first given at {}", findings.source.place(at)),
        None => "it is given before".into(),
    };
    findings.error(second, format!("`{key}` is given twice"), hint);
}

fn line_around(text: &str, at: usize) -> &str {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    text[start..].lines().next().unwrap_or_default().trim_end()
}

/// Where `key` is given before `end`, leaving out inline tables that ended before.
fn starts_of(node: &Node<'_>, key: &str, end: usize, text: &str, starts: &mut Vec<usize>) {
    let inline = text[node.span.start..].starts_with('{');
    match &node.value {
        Value::List(items) => items.iter().for_each(|item| starts_of(item, key, end, text, starts)),
        Value::Table(table) if !inline || node.span.end > end => {
            for entry in table.entries.iter().filter(|entry| entry.key_span.start < end) {
                if entry.key == key {
                    starts.push(entry.key_span.start);
                }
                starts_of(&entry.node, key, end, text, starts);
            }
        }
        _ => {}
    }
}

impl From<std::ops::Range<usize>> for Span {
    fn from(range: std::ops::Range<usize>) -> Span {
        Span { start: range.start, end: range.end }
    }
}
