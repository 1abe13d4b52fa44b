//! The pattern of a key: text with places for what differs. `{id}` whose it is, `{window}` the
//! period in seconds, `{start}` when the window began (Unix seconds or milliseconds, or the number
//! of the window), `{any}` whatever.

use super::Place;
use crate::engine::clock::Micros;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPattern {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Id,
    Window,
    Start,
    Any,
}

/// What a key says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OfKey {
    pub(super) id: String,
    pub(super) window: Option<Micros>,
    pub(super) start: Option<u64>,
}

impl KeyPattern {
    pub(super) fn parse_pattern(text: &str) -> Result<KeyPattern, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            if open > 0 {
                parts.push(Part::Text(rest[..open].into()));
            }
            let after = &rest[open + 1..];
            let close = after.find('}').ok_or("a { is not closed")?;
            parts.push(match &after[..close] {
                "id" => Part::Id,
                "window" => Part::Window,
                "start" => Part::Start,
                "any" => Part::Any,
                other => {
                    return Err(format!(
                        "{{{other}}} is not known; {{id}}, {{window}}, {{start}} and {{any}} are"
                    ));
                }
            });
            rest = &after[close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        let ids = parts.iter().filter(|part| **part == Part::Id).count();
        let apart = parts.windows(2).all(|two| two.iter().any(|p| matches!(p, Part::Text(_))));
        match (ids, apart) {
            (1, true) => Ok(KeyPattern { parts }),
            (1, false) => Err("two places need text between them".into()),
            _ => Err("it needs {id} once, for whose key it is".into()),
        }
    }

    pub(super) fn has_start(&self) -> bool {
        self.parts.contains(&Part::Start)
    }

    pub(super) fn text_length(&self) -> usize {
        let text = |part: &Part| if let Part::Text(text) = part { text.len() } else { 0 };
        self.parts.iter().map(text).sum()
    }

    /// What SCAN takes to find all of them.
    pub(super) fn glob(&self) -> String {
        self.parts
            .iter()
            .map(|part| if let Part::Text(t) = part { escaped(t) } else { "*".into() })
            .collect()
    }

    /// The keys of one.
    pub(super) fn place(&self, id: &str) -> Place {
        let is_open = self.parts.iter().any(|p| !matches!(p, Part::Text(_) | Part::Id));
        let spelled = |part: &Part| match part {
            Part::Text(text) if is_open => escaped(text),
            Part::Text(text) => text.clone(),
            Part::Id if is_open => escaped(id),
            Part::Id => id.into(),
            _ => "*".into(),
        };
        let text = self.parts.iter().map(spelled).collect();
        if is_open { Place::Glob(text) } else { Place::Key(text) }
    }

    /// What a key says; none if it is not one of these. The id takes as much as it can.
    pub(super) fn parse(&self, key: &str) -> Option<OfKey> {
        let mut of = OfKey::default();
        fits(&self.parts, key, &mut of).then_some(of)
    }
}

/// Tries the longest text for each place first; there are few places.
fn fits(parts: &[Part], key: &str, of: &mut OfKey) -> bool {
    let Some((first, rest)) = parts.split_first() else { return key.is_empty() };
    if let Part::Text(text) = first {
        return key.strip_prefix(text.as_str()).is_some_and(|after| fits(rest, after, of));
    }
    let ends = key.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
    for end in ends {
        let (taken, after) = key.split_at(end);
        let number = taken.parse::<u64>();
        let suits = match first {
            Part::Window => number.as_ref().is_ok_and(|n| (1..=31_622_400).contains(n)),
            Part::Start => number.is_ok(),
            _ => true,
        };
        if suits && fits(rest, after, of) {
            match (first, number) {
                (Part::Id, _) => of.id = taken.into(),
                (Part::Window, Ok(seconds)) => of.window = Some(Micros(seconds * Micros::SECOND.0)),
                (Part::Start, Ok(start)) => of.start = Some(start),
                _ => {}
            }
            return true;
        }
    }
    false
}

/// Text in which SCAN finds nothing special.
fn escaped(text: &str) -> String {
    let special = |c: char| "*?[]^\\".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_take_what_suits_them() {
        let pattern = KeyPattern::parse_pattern("rl:{id}:{start}").unwrap();
        let of = pattern.parse("rl:user:7:1763425020").unwrap();
        assert_eq!((of.id.as_str(), of.start), ("user:7", Some(1_763_425_020)));
        assert_eq!(pattern.parse("rl:user:x"), None);
        assert_eq!(pattern.place("a*b"), Place::Glob("rl:a\\*b:*".into()));
        assert_eq!(pattern.glob(), "rl:*:*");
        for wrong in ["rl:x", "{id}{any}", "{id}:{id}", "{what}:{id}", "{id"] {
            assert!(KeyPattern::parse_pattern(wrong).is_err(), "{wrong}");
        }
    }
}
