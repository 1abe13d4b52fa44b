//! Lines that are typed: the filter after `/`, commands after `:`.

use super::{Effect, InputKind, Model, Screen, Theme};
use crate::tui::keys::{Action, Key};
use crate::tui::rows::Filter;

/// Commands with what they do, for the help.
pub const COMMANDS: [(&str, &str); 12] = [
    ("keys, rules ..", "to that screen; its first letters do"),
    ("id IDENTITY", "look at one identity"),
    ("at 14:02:11", "to that time of day (UTC)"),
    ("live", "to now"),
    ("write", "write mode on, off"),
    ("mode NAME", "open, closed, local, policy (a rule)"),
    ("theme NAME", "dark, light, wong or mono"),
    ("ascii, unicode", "how graphs are drawn"),
    ("save", "this picture as .txt and .json"),
    ("mouse", "mouse on, off"),
    ("help", "the keys"),
    ("q", "quit"),
];

impl Model {
    /// A key while a line is typed.
    pub(super) fn type_in(&mut self, key: Key) -> Vec<Effect> {
        let Some(input) = &mut self.input else { return Vec::new() };
        let kind = input.kind;
        match key {
            Key::Char(c) if input.text.len() < super::MAX_INPUT => input.text.push(c),
            Key::Backspace if input.text.is_empty() => self.input = None,
            Key::Backspace => {
                input.text.pop();
            }
            Key::Ctrl('u') => input.text.clear(),
            Key::Esc | Key::Ctrl('c') => {
                self.input = None;
                if kind == InputKind::Filter {
                    self.filter = Filter::default();
                }
                return Vec::new();
            }
            Key::Enter => {
                let text = std::mem::take(&mut input.text);
                self.input = None;
                return match kind {
                    InputKind::Filter => Vec::new(),
                    InputKind::Command => self.command_line(text.trim()),
                };
            }
            _ => {}
        }
        // What fits is seen while it is typed.
        if let Some(input) = self.input.as_ref().filter(|_| kind == InputKind::Filter) {
            self.filter = Filter::new(&input.text);
        }
        Vec::new()
    }

    fn command_line(&mut self, line: &str) -> Vec<Effect> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        // The beginning of a screen's name is enough.
        let screen = Screen::ALL.iter().find(|screen| screen.name().starts_with(word));
        match word {
            "" => Vec::new(),
            "q" | "q!" | "quit" => self.act(Action::Quit),
            "write" | "readonly" => self.act(Action::Write),
            "help" => self.act(Action::Help),
            "live" => self.act(Action::Live),
            "save" => self.act(Action::Dump),
            "mouse" => self.act(Action::Mouse),
            "ascii" | "unicode" => {
                self.ascii = word == "ascii";
                Vec::new()
            }
            "id" if !rest.is_empty() => self.go(Screen::Identity(rest.into())),
            "theme" => self.theme_named(rest),
            "mode" => {
                self.mode_named(rest);
                Vec::new()
            }
            "at" => {
                if self.timeline.seek(rest) {
                    self.judge();
                } else {
                    self.note("there is nothing of that time; it is written 14:02:11");
                }
                Vec::new()
            }
            _ if screen.is_some() => screen.map_or_else(Vec::new, |s| self.go(s.clone())),
            _ => {
                let word = crate::tui::words::shown(word);
                self.note(format!("there is no command `{word}`; ? lists them"));
                Vec::new()
            }
        }
    }

    fn theme_named(&mut self, name: &str) -> Vec<Effect> {
        match Theme::ALL.into_iter().find(|theme| theme.name() == name) {
            Some(_) if self.options.no_color => self.note("colours are off: NO_COLOR is set"),
            Some(theme) => self.theme = theme,
            None => self.note("themes are dark, light, wong and mono"),
        }
        Vec::new()
    }
}
