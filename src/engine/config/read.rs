//! Holds a tree against the description of a format: which keys there are, what each wants, and an
//! example of it. Reports everything that does not fit; what fits is then taken out by key.

use std::ops::RangeInclusive;

use super::super::clock::Micros;
use super::super::identity::is_header_name;
use super::super::units;
use super::source::{Findings, Span};
use super::tree::{Entry, Node, Table, Value};

/// A kind of table: its keys and what each wants.
#[derive(Debug)]
pub(crate) struct TableShape {
    /// In the JSON Schema, under `$defs`.
    pub(crate) name: &'static str,
    /// With its article, as in "`x` is not a key of a rule".
    pub(crate) what: &'static str,
    pub(crate) fields: &'static [Field],
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) key: &'static str,
    pub(crate) shape: Shape,
    /// What to write, as the hint shows it.
    pub(crate) example: &'static str,
    pub(crate) required: bool,
    /// Checked, and then not used by this version: said in a warning.
    pub(crate) for_later: bool,
}

#[derive(Debug)]
pub(crate) enum Shape {
    Any,
    Flag,
    Count(RangeInclusive<u64>),
    /// From 0 to 1.
    Ratio,
    Duration(Micros, Micros),
    /// Anything but nothing.
    Text,
    /// Text, or a date and time of TOML.
    Time,
    /// `[a-z0-9-]`, as it appears in headers, metrics and keys.
    Name,
    HeaderName,
    /// A path of a URL.
    Path,
    Url,
    Choice(&'static [&'static str]),
    List(&'static Shape),
    Table(&'static TableShape),
    /// Keys that people choose.
    Map(&'static Shape),
    /// Keys that people choose, under the rules for names.
    Named(&'static TableShape),
    /// Several kinds of value: looked at by whoever takes it.
    Either(&'static str),
}

impl Field {
    pub(crate) const fn new(key: &'static str, shape: Shape, example: &'static str) -> Field {
        Field { key, shape, example, required: false, for_later: false }
    }

    pub(crate) const fn required(self) -> Field {
        Field { required: true, ..self }
    }

    pub(crate) const fn for_later(self) -> Field {
        Field { for_later: true, ..self }
    }
}

pub(crate) const MAX_NAME: usize = 64;

impl Shape {
    /// What it wants, for "`cost` wants …".
    fn wanted(&self) -> String {
        match self {
            Shape::Any => "a value".into(),
            Shape::Flag => "true or false".into(),
            Shape::Count(range) => {
                format!("a whole number from {} to {}", range.start(), range.end())
            }
            Shape::Ratio => "a number from 0 to 1".into(),
            Shape::Duration(least, most) => format!("a duration from {least} to {most}"),
            Shape::Text => "text".into(),
            Shape::Time => "a date and time with its offset".into(),
            Shape::Name => format!("a name of a-z, 0-9 and -, 1 to {MAX_NAME} long"),
            Shape::HeaderName => "the name of a header".into(),
            Shape::Path => "a path that begins with /".into(),
            Shape::Url => "a URL with its scheme".into(),
            Shape::Choice(choices) => format!("one of {}", choices.join(", ")),
            Shape::List(_) => "a list".into(),
            Shape::Table(_) | Shape::Map(_) | Shape::Named(_) => "a table".into(),
            Shape::Either(wanted) => (*wanted).into(),
        }
    }

    /// Whether the value is of this shape, not looking into lists and tables.
    fn fits(&self, value: &Value<'_>) -> bool {
        match (self, value) {
            (Shape::Either(_), _) => true,
            (Shape::Any, value) => !matches!(value, Value::Null),
            (Shape::Flag, Value::Flag(_)) => true,
            (Shape::Count(range), Value::Integer(n)) => {
                u64::try_from(*n).is_ok_and(|n| range.contains(&n))
            }
            (Shape::Ratio, Value::Integer(n)) => (0..=1).contains(n),
            (Shape::Ratio, Value::Number(n)) => (0.0..=1.0).contains(n),
            (Shape::Duration(least, most), Value::Text(text)) => {
                units::parse_duration(text).is_ok_and(|d| (*least..=*most).contains(&d))
            }
            (Shape::Text, Value::Text(text)) => !text.trim().is_empty(),
            (Shape::Time, Value::Text(_) | Value::Time(_)) => true,
            (Shape::Name, Value::Text(text)) => is_name(text),
            (Shape::HeaderName, Value::Text(text)) => is_header_name(text),
            (Shape::Path, Value::Text(text)) => text.starts_with('/'),
            (Shape::Url, Value::Text(text)) => {
                text.split_once("://").is_some_and(|(scheme, rest)| {
                    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'+' || b == b'-';
                    !scheme.is_empty() && scheme.bytes().all(plain) && !rest.is_empty()
                })
            }
            (Shape::Choice(choices), Value::Text(text)) => choices.contains(&text.as_ref()),
            (Shape::List(_), Value::List(_)) => true,
            (Shape::Table(_) | Shape::Map(_) | Shape::Named(_), Value::Table(_)) => true,
            _ => false,
        }
    }
}

pub(crate) fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(plain)
}

/// Reports what in `node` does not fit `shape`; `key` and `example` say it to people.
pub(crate) fn check(
    node: &Node<'_>,
    shape: &Shape,
    key: &str,
    example: &str,
    findings: &mut Findings<'_>,
) {
    if !shape.fits(&node.value) {
        report_misfit(node, shape, key, example, findings);
        return;
    }
    match (shape, &node.value) {
        (Shape::Table(shape), Value::Table(table)) => {
            check_table(table, node.span, shape, findings);
        }
        (Shape::List(each), Value::List(items)) => {
            items.iter().for_each(|item| check(item, each, key, example, findings));
        }
        (Shape::Map(each), Value::Table(table)) => {
            for entry in &table.entries {
                check(&entry.node, each, &entry.key, example, findings);
            }
        }
        (Shape::Named(each), Value::Table(table)) => {
            for entry in &table.entries {
                check_name(entry, findings);
                check(&entry.node, &Shape::Table(each), &entry.key, example, findings);
            }
        }
        _ => {}
    }
}

fn check_name(entry: &Entry<'_>, findings: &mut Findings<'_>) {
    if !is_name(&entry.key) {
        let message =
            format!("`{}` cannot be a name; {} is wanted", entry.key, Shape::Name.wanted());
        findings.error(entry.key_span, message, "names appear in headers, metrics and keys");
    }
}

fn report_misfit(
    node: &Node<'_>,
    shape: &Shape,
    key: &str,
    example: &str,
    findings: &mut Findings<'_>,
) {
    let example = format!("e.g. {example}");
    if let (Shape::Url, Value::Text(_)) = (shape, &node.value) {
        let message = format!("`{key}` wants {}", shape.wanted());
        return findings.error_in_secret(node.span, message, example);
    }
    let message = match (shape, &node.value) {
        (Shape::Choice(_), Value::Text(text)) => {
            format!("`{key}` is {}, not `{text}`", shape.wanted())
        }
        _ => format!("`{key}` wants {}, found {}", shape.wanted(), found(&node.value)),
    };
    let hint = match (shape, &node.value) {
        (Shape::Choice(choices), Value::Text(text)) => did_you_mean(text, choices.iter().copied()),
        _ => None,
    };
    findings.error(node.span, message, hint.unwrap_or(example));
}

pub(crate) fn found(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Flag(flag) => flag.to_string(),
        Value::Integer(i128::MAX | i128::MIN) => "a number beyond all range".into(),
        Value::Integer(n) => format!("the number {n}"),
        Value::Number(n) => format!("the number {n}"),
        Value::Text(text) if text.is_empty() => "empty text".into(),
        Value::Text(text) => format!("the text \"{text}\""),
        Value::Time(_) => "a date".into(),
        Value::List(_) => "a list".into(),
        Value::Table(_) => "a table".into(),
    }
}

/// Keys that nobody knows, keys that are missing, and values that do not fit.
pub(crate) fn check_table(
    table: &Table<'_>,
    span: Span,
    shape: &TableShape,
    findings: &mut Findings<'_>,
) {
    let mut meant = Vec::new();
    for entry in &table.entries {
        let Some(field) = shape.fields.iter().find(|field| field.key == entry.key) else {
            let message = format!("`{}` is not a key of {}", entry.key, shape.what);
            let keys = shape.fields.iter().map(|field| field.key);
            let hint = match closest(&entry.key, keys.clone()) {
                Some(key) => {
                    meant.push(key);
                    format!("did you mean `{key}`?")
                }
                None => format!("there are {}", keys.collect::<Vec<_>>().join(", ")),
            };
            findings.error(entry.key_span, message, hint);
            continue;
        };
        check(&entry.node, &field.shape, field.key, field.example, findings);
        if field.for_later {
            findings.warn(
                entry.key_span,
                format!("`{}` is not used by this version", field.key),
                "it is checked and has no effect yet",
            );
        }
    }
    for field in shape.fields.iter().filter(|field| field.required) {
        // A misspelt key is one mistake, not two.
        if table.get(field.key).is_none() && !meant.contains(&field.key) {
            let message = format!("{} needs `{}`", shape.what, field.key);
            findings.error(span, message, format!("e.g. {}", field.example));
        }
    }
}

pub(crate) fn did_you_mean<'n>(
    written: &str,
    names: impl Iterator<Item = &'n str>,
) -> Option<String> {
    closest(written, names).map(|name| format!("did you mean `{name}`?"))
}

/// The name that was probably meant.
fn closest<'n>(written: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // Nobody misspells a word into a hundred letters, and the distance takes their product.
    let written = written.get(..100).unwrap_or(written).to_ascii_lowercase().replace('_', "-");
    let distance = |name: &str| {
        strsim::damerau_levenshtein(&written, &name.to_ascii_lowercase().replace('_', "-"))
    };
    let near = |(away, name): &(usize, &str)| {
        *away <= 1 + name.len() / 4
            || name.starts_with(&written) && written.len() >= 3
            || written.starts_with(name) && name.len() >= 4
    };
    names.map(|name| (distance(name), name)).filter(near).min().map(|(_, name)| name)
}

/// A value and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<T> {
    pub(crate) it: T,
    pub(crate) span: Span,
}

/// Takes values out of a table that was checked; what did not fit is simply not there.
impl<'t> Table<'t> {
    pub(crate) fn node(&self, key: &str) -> Option<&Node<'t>> {
        self.get(key).map(|entry| &entry.node)
    }

    pub(crate) fn text(&self, key: &str) -> Option<At<&str>> {
        self.node(key).and_then(Node::text)
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        match self.node(key)?.value {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    pub(crate) fn count(&self, key: &str) -> Option<At<u64>> {
        let node = self.node(key)?;
        match node.value {
            Value::Integer(n) => u64::try_from(n).ok().map(|it| At { it, span: node.span }),
            _ => None,
        }
    }

    pub(crate) fn ratio(&self, key: &str) -> Option<f64> {
        match self.node(key)?.value {
            Value::Integer(n) => Some(if n == 0 { 0.0 } else { 1.0 }),
            Value::Number(n) => Some(n),
            _ => None,
        }
    }

    pub(crate) fn duration(&self, key: &str) -> Option<Micros> {
        units::parse_duration(self.text(key)?.it).ok()
    }

    pub(crate) fn table(&self, key: &str) -> Option<&Table<'t>> {
        self.node(key).and_then(Node::table)
    }

    pub(crate) fn list(&self, key: &str) -> &[Node<'t>] {
        match self.node(key).map(|node| &node.value) {
            Some(Value::List(items)) => items,
            _ => &[],
        }
    }

    /// The texts of a list.
    pub(crate) fn texts(&self, key: &str) -> impl Iterator<Item = At<&str>> {
        self.list(key).iter().filter_map(Node::text)
    }
}

impl<'t> Node<'t> {
    pub(crate) fn text(&self) -> Option<At<&str>> {
        match &self.value {
            Value::Text(text) | Value::Time(text) => Some(At { it: text, span: self.span }),
            _ => None,
        }
    }

    pub(crate) fn table(&self) -> Option<&Table<'t>> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }
}
