//! What lies over the screen: the help, and the question before a change.

use ratatui::Frame;
use ratatui::layout::{Constraint, Flex, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Wrap};

use super::paint::Paint;
use super::panel;
use crate::tui::keys::{Group, KEYS, Key};
use crate::tui::model::{Asking, COMMANDS, Model, Permission};
use crate::tui::words::shown;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    if let Some(scrolled) = model.help {
        help(frame, area, model, scrolled);
    }
    if let Some(asking) = &model.asking {
        ask(frame, area, model, asking);
    }
}

fn middle(area: Rect, width: u16, height: u16) -> Rect {
    let [row] = Layout::vertical([Constraint::Length(height.min(area.height))])
        .flex(Flex::Center)
        .areas(area);
    let [place] = Layout::horizontal([Constraint::Length(width.min(area.width))])
        .flex(Flex::Center)
        .areas(row);
    place
}

/// The table of keys, as it is.
fn help(frame: &mut Frame<'_>, area: Rect, model: &Model, scrolled: u16) {
    let paint = Paint(model.theme);
    let place = middle(area, 96, 40);
    frame.render_widget(Clear, place);
    let inside = panel(frame, place, model, ("HELP", "any key closes; j k scroll", true));
    let mut lines: Vec<Line<'_>> = Vec::new();
    for group in Group::ALL {
        lines.push(Line::styled(format!(" {}", group.title()), paint.accent()));
        for binding in KEYS.iter().filter(|binding| binding.group == group) {
            let keys: Vec<String> = binding.keys.iter().map(Key::to_string).collect();
            lines.push(Line::from(vec![
                Span::styled(format!("   {:<16}", keys.join(" ")), paint.strong()),
                Span::raw(binding.what),
            ]));
        }
    }
    let mut commands = vec![Line::styled(" COMMANDS after :", paint.accent())];
    for (command, what) in COMMANDS {
        commands.push(Line::styled(format!("   {command}"), paint.strong()));
        commands.push(Line::raw(format!("     {what}")));
    }
    if inside.width >= 80 {
        let halves = [Constraint::Percentage(55), Constraint::Percentage(45)];
        let [left, right] = Layout::horizontal(halves).areas(inside);
        frame.render_widget(Paragraph::new(lines).scroll((scrolled, 0)), left);
        frame.render_widget(Paragraph::new(commands).scroll((scrolled, 0)), right);
    } else {
        lines.extend(commands);
        frame.render_widget(Paragraph::new(lines).scroll((scrolled, 0)), inside);
    }
}

fn ask(frame: &mut Frame<'_>, area: Rect, model: &Model, asking: &Asking) {
    let paint = Paint(model.theme);
    let place = middle(area, 90, 14);
    frame.render_widget(Clear, place);
    let title = if model.write { "CHANGE?" } else { "A CHANGE (read-only)" };
    let inside = panel(frame, place, model, (title, "esc: leave it", true));
    let mut lines: Vec<Line<'_>> = vec![Line::raw("")];
    lines.extend(asking.act.plan().into_iter().map(Line::raw));
    lines.push(Line::raw(""));
    lines.push(Line::styled("the same on a command line:", paint.dim()));
    let command = shown(&asking.act.command(&model.options.at));
    lines.push(Line::raw(format!("$ {command}")));
    lines.push(Line::raw(""));
    lines.push(match (&model.options.permission, model.write) {
        (Permission::Never(why), _) => {
            Line::styled(format!("{why}   c copies the command"), paint.warn())
        }
        (_, false) => Line::styled(
            "read-only: esc, then W allows changes.   c copies the command",
            paint.warn(),
        ),
        (Permission::Protected(name), true) => Line::styled(
            format!("`{}` is protected; type its name: {}_", shown(name), shown(&asking.typed)),
            paint.bad(),
        ),
        (Permission::Allowed, true) => {
            Line::styled("y do it   n leave it   c copy the command", paint.strong())
        }
    });
    let inside = Rect { x: inside.x + 1, width: inside.width.saturating_sub(2), ..inside };
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), inside);
}
