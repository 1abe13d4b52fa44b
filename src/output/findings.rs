//! What is wrong in a file, as people read it: place, sentence, the line with the words marked, and
//! what to write instead.

use unicode_width::UnicodeWidthStr;

use super::Untrusted;
use crate::engine::config::Finding;

/// Three or four lines; begins with `file:line:column`, as editors and terminals link it.
pub fn finding_text(finding: &Finding) -> String {
    let shown = |text: &str| Untrusted(text).to_string();
    // Tabs have no width of their own.
    let of_line = |text: &str| shown(&text.replace('\t', "    "));
    let (before, words) = (of_line(&finding.before), of_line(&finding.words));
    let mut text = format!(
        "{}:{}:{}: {}: {}\n",
        shown(&finding.place.file),
        finding.place.line,
        finding.place.column,
        finding.severity.name(),
        shown(&finding.message)
    );
    let line = format!("{before}{words}{}", of_line(&finding.after));
    if !line.trim().is_empty() {
        let (indent, carets) = (" ".repeat(before.width()), "^".repeat(words.width().max(1)));
        text += &format!("    {line}\n    {indent}{carets}\n");
    }
    if let Some(hint) = &finding.hint {
        text += &format!("  hint: {}\n", shown(hint));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::clock::Micros;
    use crate::engine::config::parse_policy;

    #[test]
    fn the_caret_stands_under_the_words_whatever_comes_before_them() {
        let file = "[[rule]]\nname = \"a\"\ndimension = \"user\"\n\tlimits = [\"日本\\u001b\", \"1/1x\"]\n";
        let errors = parse_policy("r.toml", file, Micros::ZERO).unwrap_err().errors;
        assert_eq!(
            finding_text(&errors[1]),
            concat!(
                "r.toml:4:27: error: `1x` is not a duration\n",
                "        limits = [\"日本\\u001b\", \"1/1x\"]\n",
                "                                   ^^\n",
                "  hint: write a number with us, ms, s, m, h, d or w, e.g. 300us, 5ms, 1h30m, 7d\n",
            )
        );
        assert!(finding_text(&errors[0]).contains("`日本\\u{1b}` is not a limit"));
    }
}
