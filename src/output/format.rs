//! The forms a result can be printed in, and when it has colours.

use super::Untrusted;

/// Form of the output; the same in a pipe and on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For people, with more columns
    Wide,
    /// One object, with "schema": "rlctl/v1"; several results stand in its items
    Json,
    /// One object a line, as they come
    Ndjson,
    /// With a header; the names are those of the JSON
    Csv,
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::Table => "table",
            Format::Wide => "wide",
            Format::Json => "json",
            Format::Ndjson => "ndjson",
            Format::Csv => "csv",
        }
    }

    /// Whether people read it rather than programs.
    pub fn is_for_people(self) -> bool {
        matches!(self, Format::Table | Format::Wide)
    }
}

/// How a result looks.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub format: Format,
    /// Only ever for people: programs get none.
    pub colours: bool,
}

/// What a word tells at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Worth a look.
    Warning,
    /// Wrong, refused, away.
    Bad,
    /// A heading.
    Strong,
}

impl Tone {
    /// The text in this tone, if there are colours. It must have been escaped before.
    pub fn paint(self, text: &str, colours: bool) -> String {
        let code = match self {
            Tone::Plain => return text.into(),
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Strong => "1",
        };
        if colours { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.into() }
    }
}

/// `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb
    #[default]
    Auto,
    Always,
    Never,
}

/// What the environment says about colours.
#[derive(Clone, Debug, Default)]
pub struct ColourWishes {
    pub no_color: Option<String>,
    pub clicolor_force: Option<String>,
    pub term: Option<String>,
}

impl Colour {
    /// Whether a stream has colours. What was typed wins over `NO_COLOR`, that over
    /// `CLICOLOR_FORCE`, that over the kind of terminal.
    pub fn on(self, wishes: &ColourWishes, is_terminal: bool) -> bool {
        let is_set = |value: &Option<String>| value.as_ref().is_some_and(|value| !value.is_empty());
        match self {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto if is_set(&wishes.no_color) => false,
            Colour::Auto => {
                let forced =
                    is_set(&wishes.clicolor_force) && wishes.clicolor_force.as_deref() != Some("0");
                forced || is_terminal && wishes.term.as_deref() != Some("dumb")
            }
        }
    }
}

/// Text for people that others chose, escaped and in its tone.
pub fn painted(text: &str, tone: Tone, colours: bool) -> String {
    tone.paint(&Untrusted(text).to_string(), colours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wins_about_colours() {
        let wishes = |no_color: &str, force: &str, term: &str| ColourWishes {
            no_color: Some(no_color.into()),
            clicolor_force: Some(force.into()),
            term: Some(term.into()),
        };
        for (colour, wishes, is_terminal, expected) in [
            (Colour::Auto, wishes("", "", "xterm"), true, true),
            (Colour::Auto, wishes("", "", "xterm"), false, false),
            (Colour::Auto, wishes("", "", "dumb"), true, false),
            (Colour::Auto, wishes("1", "", "xterm"), true, false),
            (Colour::Auto, wishes("", "1", "dumb"), false, true),
            (Colour::Auto, wishes("", "0", "xterm"), false, false),
            (Colour::Auto, wishes("1", "1", "xterm"), true, false),
            (Colour::Always, wishes("1", "", "dumb"), false, true),
            (Colour::Never, wishes("", "1", "xterm"), true, false),
        ] {
            assert_eq!(colour.on(&wishes, is_terminal), expected, "{colour:?} {wishes:?}");
        }
    }
}
