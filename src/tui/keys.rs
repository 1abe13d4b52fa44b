//! Which key does what: one table, that behaves and is the help screen.

use std::fmt;

/// A key as the model knows it, whatever the terminal library calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Ctrl(char),
    Enter,
    Esc,
    Tab,
    BackTab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Backspace,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Char(' ') => f.write_str("space"),
            Key::Char(c) => write!(f, "{c}"),
            Key::Ctrl(c) => write!(f, "ctrl-{c}"),
            Key::Enter => f.write_str("enter"),
            Key::Esc => f.write_str("esc"),
            Key::Tab => f.write_str("tab"),
            Key::BackTab => f.write_str("shift-tab"),
            Key::Up => f.write_str("up"),
            Key::Down => f.write_str("down"),
            Key::Left => f.write_str("left"),
            Key::Right => f.write_str("right"),
            Key::PageUp => f.write_str("pgup"),
            Key::PageDown => f.write_str("pgdn"),
            Key::Home => f.write_str("home"),
            Key::End => f.write_str("end"),
            Key::Backspace => f.write_str("backspace"),
        }
    }
}

/// What a key, or a command, asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Move(Move),
    NextScreen,
    PreviousScreen,
    NextPane,
    PreviousPane,
    Open,
    Back,
    /// The numbered thing to do.
    Do(usize),
    Filter,
    Command,
    Sort,
    Reverse,
    Pause,
    /// So many seconds forward, or back.
    Step(i64),
    Live,
    Reset,
    Override,
    Block,
    Mode,
    Write,
    Copy,
    Dump,
    Theme,
    Mouse,
    Help,
    Suspend,
    Redraw,
    Quit,
    /// Whoever started it is told that it did not end by itself.
    Interrupt,
    /// The last picture stays in the scrollback.
    QuitAndKeep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    Top,
    Bottom,
}

/// A line of the help screen.
#[derive(Debug)]
pub struct Binding {
    pub keys: &'static [Key],
    pub action: Action,
    pub what: &'static str,
    pub group: Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Move,
    Look,
    Time,
    Change,
    Rest,
}

impl Group {
    pub const ALL: [Group; 5] = [Group::Move, Group::Look, Group::Time, Group::Change, Group::Rest];

    pub fn title(self) -> &'static str {
        match self {
            Group::Move => "MOVE",
            Group::Look => "LOOK",
            Group::Time => "TIME",
            Group::Change => "CHANGE (write mode)",
            Group::Rest => "REST",
        }
    }
}

const fn of(keys: &'static [Key], action: Action, group: Group, what: &'static str) -> Binding {
    Binding { keys, action, what, group }
}

use Key::{Char, Ctrl};

/// All of it.
pub const KEYS: &[Binding] = &[
    of(&[Char('j'), Key::Down], Action::Move(Move::Down), Group::Move, "down"),
    of(&[Char('k'), Key::Up], Action::Move(Move::Up), Group::Move, "up"),
    of(&[Char('l'), Key::Right], Action::NextScreen, Group::Move, "next screen"),
    of(&[Char('h'), Key::Left], Action::PreviousScreen, Group::Move, "screen before"),
    of(&[Key::Tab], Action::NextPane, Group::Move, "next pane"),
    of(&[Key::BackTab], Action::PreviousPane, Group::Move, "pane before"),
    of(&[Char('g'), Key::Home], Action::Move(Move::Top), Group::Move, "first row"),
    of(&[Char('G'), Key::End], Action::Move(Move::Bottom), Group::Move, "last row"),
    of(&[Ctrl('d'), Key::PageDown], Action::Move(Move::PageDown), Group::Move, "page down"),
    of(&[Ctrl('u'), Key::PageUp], Action::Move(Move::PageUp), Group::Move, "page up"),
    of(&[Key::Enter], Action::Open, Group::Move, "look closer, do it"),
    of(&[Key::Esc, Key::Backspace], Action::Back, Group::Move, "back; clears the filter"),
    of(&[Char('1')], Action::Do(0), Group::Look, "do the first thing of WHAT TO DO"),
    of(&[Char('2')], Action::Do(1), Group::Look, "the second"),
    of(&[Char('3')], Action::Do(2), Group::Look, "the third"),
    of(&[Char('4')], Action::Do(3), Group::Look, "the fourth"),
    of(&[Char('/')], Action::Filter, Group::Look, "filter: x, !x all others, -f x fuzzy"),
    of(&[Char(':')], Action::Command, Group::Look, "a command: see COMMANDS"),
    of(&[Char('s')], Action::Sort, Group::Look, "sort by the next column"),
    of(&[Char('S')], Action::Reverse, Group::Look, "the other way round"),
    of(&[Char('y')], Action::Copy, Group::Look, "copy the command that is shown"),
    of(&[Char(' '), Char('f')], Action::Pause, Group::Time, "pause; data keeps arriving"),
    of(&[Char('[')], Action::Step(-1), Group::Time, "a second back"),
    of(&[Char(']')], Action::Step(1), Group::Time, "a second on"),
    of(&[Char('{')], Action::Step(-30), Group::Time, "half a minute back"),
    of(&[Char('}')], Action::Step(30), Group::Time, "half a minute on"),
    of(&[Char('L')], Action::Live, Group::Time, "to now"),
    of(&[Char('W')], Action::Write, Group::Change, "write mode on, off"),
    of(&[Char('R')], Action::Reset, Group::Change, "reset this identity"),
    of(&[Char('O')], Action::Override, Group::Change, "ten times its limit, 15m"),
    of(&[Char('B')], Action::Block, Group::Change, "block it, 15m"),
    of(&[Char('M')], Action::Mode, Group::Change, "failure mode of this rule"),
    of(&[Char('o')], Action::Dump, Group::Rest, "save this picture as .txt and .json"),
    of(&[Char('t')], Action::Theme, Group::Rest, "next theme"),
    of(&[Char('m')], Action::Mouse, Group::Rest, "mouse on, off (off: select text)"),
    of(&[Char('?')], Action::Help, Group::Rest, "this help"),
    of(&[Ctrl('l')], Action::Redraw, Group::Rest, "draw anew"),
    of(&[Ctrl('z')], Action::Suspend, Group::Rest, "to the shell; fg comes back"),
    of(&[Char('q')], Action::Quit, Group::Rest, "quit"),
    of(&[Ctrl('c')], Action::Interrupt, Group::Rest, "quit as interrupted: exit code 130"),
    of(&[Char('Q')], Action::QuitAndKeep, Group::Rest, "quit, and leave the last picture"),
];

/// What a key means.
pub fn action(key: Key) -> Option<Action> {
    KEYS.iter().find(|binding| binding.keys.contains(&key)).map(|binding| binding.action)
}

/// How a key of an action is written in hints.
pub fn key_of(action: Action) -> String {
    let binding = KEYS.iter().find(|binding| binding.action == action);
    binding.and_then(|binding| binding.keys.first()).map(Key::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_means_two_things() {
        let all: Vec<Key> = KEYS.iter().flat_map(|binding| binding.keys).copied().collect();
        for (n, key) in all.iter().enumerate() {
            assert!(!all[n + 1..].contains(key), "{key}");
        }
    }
}
