//! Passwords in `[stores.NAME] url`: a policy as it may be shown, and such a text made whole again
//! before it is published.

use super::super::store::redis::{is_masked, without_secrets};
use super::source::{Findings, Source, Span, without_passwords};
use super::tree;

/// The url of a store, where it stands.
struct Url {
    store: String,
    text: String,
    span: Span,
}

/// The text of a policy as it may be shown to those who may read it.
pub fn masked(text: &str) -> String {
    let Some(urls) = urls(text) else {
        // It was fine for whoever wrote it; what looks like a password goes.
        return text.split_inclusive('\n').map(without_passwords).collect();
    };
    let secret = urls.into_iter().filter_map(|url| {
        let shown = without_secrets(&url.text);
        (shown != url.text).then_some((url.span, shown))
    });
    replaced(text, secret)
}

/// A text that was shown, with the secrets of those stores that have the same url in `known`. What is
/// left masked is refused when it is read.
pub fn unmasked(text: &str, known: &str) -> String {
    let (Some(urls), known) = (urls(text), self::urls(known).unwrap_or_default()) else {
        return text.into();
    };
    let filled = urls.into_iter().filter(|url| is_masked(&url.text)).filter_map(|url| {
        let is_it =
            |other: &&Url| other.store == url.store && without_secrets(&other.text) == url.text;
        Some((url.span, known.iter().find(is_it)?.text.clone()))
    });
    replaced(text, filled)
}

/// None where it cannot be read.
fn urls(text: &str) -> Option<Vec<Url>> {
    let mut findings = Findings::in_source(Source::new("the policy", text));
    let root = tree::parse("the policy", &mut findings)?;
    let Some(stores) = root.table()?.table("stores") else { return Some(Vec::new()) };
    let url = |entry: &tree::Entry<'_>| {
        let url = entry.node.table()?.text("url")?;
        Some(Url { store: entry.key.to_string(), text: url.it.into(), span: url.span })
    };
    Some(stores.entries.iter().filter_map(url).collect())
}

/// Other texts in quotes, which TOML and JSON write alike, in these places.
fn replaced(text: &str, places: impl Iterator<Item = (Span, String)>) -> String {
    let mut places: Vec<(Span, String)> = places.collect();
    places.sort_by_key(|(span, _)| span.start);
    let mut whole = text.to_owned();
    for (span, url) in places.into_iter().rev() {
        whole.replace_range(span.start..span.end, &serde_json::Value::from(url).to_string());
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = "# rules\n[stores.a]\nurl = 'redis://bob:s\"cret@h:1/2' # where\nprefix = \"a:\"\n\n[stores.\"b c\"]\nurl = \"redis://h:2\"\n[[rule]]\nname = \"r\"\ndescription = \"see https://x@y\"\n";
    const JSON: &str = "{\"stores\": {\"a\": {\"url\": \"redis://bob:s\\\"cret@h:1/2\", \"prefix\": \"a:\"}}, \"rule\": []}";

    #[test]
    fn only_secrets_are_masked_and_come_back_from_the_same_url() {
        for text in [TOML, JSON] {
            let shown = masked(text);
            assert!(!shown.contains("cret") && shown.contains("\"redis://***@h:1/2\""), "{shown}");
            assert!(text == JSON || shown.contains(" # where\n") && shown.contains("https://x@y"));
            assert_eq!(masked(&shown), shown);
            let whole = unmasked(&shown.replace("\"a:\"", "\"z:\""), text);
            assert_eq!(masked(&whole), shown.replace("\"a:\"", "\"z:\""));
            assert!(whole.contains("redis://bob:s\\\"cret@h:1/2"), "{whole}");
            // To another server it is never sent.
            let other = shown.replace("h:1", "evil:1");
            assert_eq!(unmasked(&other, text), other);
            assert_eq!(unmasked(&shown, "rule = ["), shown);
        }
        assert_eq!(masked("url = redis://a:secret@h"), "url = redis://***@h");
        assert_eq!(masked(""), "");
        let socket = "[stores.a]\nurl = \"redis+unix:///run/r?pass=secret\"\n";
        assert!(masked(socket).contains("redis+unix:///run/r?***"));
        assert_eq!(unmasked(&masked(socket), socket), socket);
    }
}
