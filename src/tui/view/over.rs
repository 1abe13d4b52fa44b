//! What lies over the screen: the help, and the question before a change.

use ratatui::Frame;
use ratatui::layout::{Constraint, Flex, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph, Wrap};

use super::paint::Paint;
use super::{folded, panel};
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

/// The table of keys, as it is: in two columns where there is room for its words.
fn help(frame: &mut Frame<'_>, area: Rect, model: &Model, scrolled: u16) {
    let paint = Paint(model.theme);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for group in Group::ALL {
        let side = match group {
            Group::Move | Group::Look | Group::Change => &mut first,
            Group::Time | Group::Rest => &mut second,
        };
        side.push(Line::styled(format!(" {}", group.title()), paint.accent()));
        for binding in KEYS.iter().filter(|binding| binding.group == group) {
            let keys: Vec<String> = binding.keys.iter().map(Key::to_string).collect();
            side.push(help_line(paint, &keys.join(" "), binding.what));
        }
    }
    second.push(Line::styled(" COMMANDS", paint.accent()));
    second.extend(COMMANDS.map(|(command, what)| help_line(paint, &format!(":{command}"), what)));
    let is_wide = area.width >= 112;
    if !is_wide {
        first.append(&mut second);
    }
    let rows = first.len().max(second.len()) as u16;
    let place = middle(area, if is_wide { 112 } else { 76 }, rows + 2);
    let room = place.height.saturating_sub(2);
    let scrolled = scrolled.min(rows.saturating_sub(room));
    let keys = match rows > room {
        true => format!("j k scroll ({} of {rows}), any other key closes", scrolled + room),
        false => "any key closes".into(),
    };
    frame.render_widget(Clear, place);
    let inside = panel(frame, place, model, ("HELP", &keys, true));
    let halves = match is_wide {
        true => [Constraint::Percentage(50), Constraint::Percentage(50)],
        false => [Constraint::Percentage(100), Constraint::Percentage(0)],
    };
    let [left, right] = Layout::horizontal(halves).areas(inside);
    frame.render_widget(Paragraph::new(first).scroll((scrolled, 0)), left);
    frame.render_widget(Paragraph::new(second).scroll((scrolled, 0)), right);
}

fn help_line(paint: Paint, keys: &str, what: &'static str) -> Line<'static> {
    Line::from(vec![Span::styled(format!("   {keys:<16}"), paint.strong()), Span::raw(what)])
}

fn ask(frame: &mut Frame<'_>, area: Rect, model: &Model, asking: &Asking) {
    let paint = Paint(model.theme);
    let place = middle(area, 90, 17);
    frame.render_widget(Clear, place);
    let title = if model.write { "CHANGE?" } else { "A CHANGE (read-only)" };
    let inside = panel(frame, place, model, (title, "esc: leave it", true));
    let inside = Rect { x: inside.x + 1, width: inside.width.saturating_sub(2), ..inside };
    let (answer, style) = match (&model.options.permission, model.write) {
        (Permission::Never(why), _) => {
            (format!("{why}   n leave it   c copy the command"), paint.warn())
        }
        (_, false) => {
            ("read-only: W allows changes   n leave it   c copy the command".into(), paint.warn())
        }
        (Permission::Protected(name), true) => {
            let (name, typed) = (shown(name), shown(&asking.typed));
            (format!("`{name}` is protected; type its name: {typed}_"), paint.bad())
        }
        (Permission::Allowed, true) => {
            ("y do it   n leave it   c copy the command".into(), paint.strong())
        }
    };
    // What can be answered is seen however small the screen is.
    let answer = folded(&answer, usize::from(inside.width));
    let rows = [Constraint::Min(0), Constraint::Length(answer.len() as u16)];
    let [plan_at, answer_at] = Layout::vertical(rows).areas(inside);
    let mut plan: Vec<Line<'_>> =
        asking.act.plan(&model.options.at).into_iter().map(Line::raw).collect();
    plan.push(Line::raw(""));
    plan.push(Line::styled("the same on a command line:", paint.dim()));
    let command = shown(&asking.act.command(&model.options.at));
    plan.push(Line::raw(format!("$ {command}")));
    frame.render_widget(Paragraph::new(plan).wrap(Wrap { trim: false }), plan_at);
    let answer: Vec<Line<'_>> = answer.into_iter().map(|text| Line::styled(text, style)).collect();
    frame.render_widget(Paragraph::new(answer), answer_at);
}
