//! Colours by meaning. Every state also has a word or a sign: without colours nothing is lost.

use ratatui::style::{Color, Modifier, Style};

use crate::tui::model::Theme;
use crate::tui::verdict::Alarm;

#[derive(Clone, Copy, Debug)]
pub(super) struct Paint(pub(super) Theme);

impl Paint {
    fn of(self, dark: Color, light: Color, wong: Color) -> Style {
        match self.0 {
            Theme::Dark => Style::new().fg(dark),
            Theme::Light => Style::new().fg(light),
            Theme::Wong => Style::new().fg(wong),
            Theme::Mono => Style::new(),
        }
    }

    pub(super) fn good(self) -> Style {
        self.of(Color::Green, Color::Indexed(28), Color::Indexed(74))
    }

    pub(super) fn warn(self) -> Style {
        let style = self.of(Color::Yellow, Color::Indexed(130), Color::Indexed(214));
        if self.0 == Theme::Mono { style.add_modifier(Modifier::UNDERLINED) } else { style }
    }

    pub(super) fn bad(self) -> Style {
        let style = self.of(Color::LightRed, Color::Indexed(160), Color::Indexed(202));
        style.add_modifier(Modifier::BOLD)
    }

    /// The loudest there is.
    pub(super) fn shout(self) -> Style {
        self.bad().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn accent(self) -> Style {
        self.of(Color::Cyan, Color::Indexed(25), Color::Indexed(117))
    }

    pub(super) fn dim(self) -> Style {
        let style = self.of(Color::DarkGray, Color::Indexed(244), Color::Indexed(246));
        if self.0 == Theme::Mono { style.add_modifier(Modifier::DIM) } else { style }
    }

    pub(super) fn plain(self) -> Style {
        Style::new()
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn marked(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn alarm(self, alarm: Alarm) -> Style {
        match alarm {
            Alarm::Calm => self.good().add_modifier(Modifier::BOLD),
            Alarm::Watch => self.warn().add_modifier(Modifier::BOLD),
            Alarm::Alarm => self.bad(),
        }
    }

    pub(super) fn level(self, level: &str) -> Style {
        match level {
            "critical" => self.bad(),
            "warning" => self.warn(),
            _ => self.plain(),
        }
    }

    /// A share of something that runs out.
    pub(super) fn use_of(self, share: f64) -> Style {
        match share {
            s if s >= 1.0 => self.bad(),
            s if s >= 0.8 => self.warn(),
            _ => self.good(),
        }
    }
}
