//! Text that others chose (keys, identities, what a server replied) on its way to a terminal or a
//! log: nothing in it may move the cursor, change colours, hide or reorder what stands around it.

use std::fmt::{self, Write};

/// Shows text with every character escaped that a terminal might act upon.
#[derive(Clone, Copy, Debug)]
pub struct Untrusted<'a>(pub &'a str);

impl fmt::Display for Untrusted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_harmless(c) { f.write_char(c)? } else { write!(f, "\\u{{{:x}}}", u32::from(c))? }
        }
        Ok(())
    }
}

/// JSON on one line, with every character escaped that a terminal might act upon. They can stand in
/// its strings only, so that escaping them leaves it the same JSON.
pub fn json_line(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".into());
    if json.is_ascii() && !json.contains('\u{7f}') {
        return json;
    }
    let mut line = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_harmless(c) {
            line.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(line, "\\u{unit:04x}");
            }
        }
    }
    line
}

fn is_harmless(c: char) -> bool {
    !c.is_control()
        && !matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}'      // soft hyphen, Arabic mark, Mongolian separator
            | '\u{200b}'..='\u{200f}'              // zero width, direction marks
            | '\u{2028}'..='\u{202e}'              // line ends, bidi embeddings and overrides
            | '\u{2060}'..='\u{206f}'              // word joiner, bidi isolates
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' // byte order mark, annotations
            | '\u{e0000}'..='\u{e007f}'            // tags
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_is_the_same_json() {
        let text = "a\u{9b}31m\u{202e}\u{7f}\u{e0041}é日\n\"";
        let line = json_line(&text);
        assert_eq!(line, "\"a\\u009b31m\\u202e\\u007f\\udb40\\udc41é日\\n\\\"\"");
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }

    #[test]
    fn what_a_terminal_might_obey_is_escaped() {
        for (raw, shown) in [
            ("user:123 日本 é", "user:123 日本 é"),
            ("\x1b]0;owned\x07", "\\u{1b}]0;owned\\u{7}"),
            ("a\rb\nc\td", "a\\u{d}b\\u{a}c\\u{9}d"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("evil\u{202e}resu", "evil\\u{202e}resu"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
        ] {
            assert_eq!(Untrusted(raw).to_string(), shown);
        }
    }
}
