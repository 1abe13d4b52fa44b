//! Draws the model; changes nothing. By size: everything from 100×30, the most important panes from
//! 80×24, words from 60×15, a few lines below that, and one word where there is room for no more.

mod graph;
mod identity;
mod lists;
mod over;
mod overview;
mod paint;
mod shards;
mod table;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::symbols::border;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Wrap};
use unicode_width::UnicodeWidthStr;

use self::paint::Paint;
use super::keys::{Action, key_of};
use super::model::{InputKind, Model, Permission, Screen};
use super::words::{count, fit, lasts, percent, shown, time};

/// Rows of a page of the list that has the keys, for page up and down.
pub fn page(height: u16) -> usize {
    usize::from(height.saturating_sub(12)).max(1)
}

pub fn draw(frame: &mut Frame<'_>, model: &Model) {
    let area = frame.area();
    if area.width < 40 || area.height < 10 {
        tiny(frame, area, model);
    } else {
        full(frame, area, model);
    }
    over::draw(frame, area, model);
}

fn full(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let banners = banners(model, usize::from(area.width));
    let tabs = u16::from(area.height >= 20);
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(tabs),
        Constraint::Length(banners.len() as u16),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [head, tab, banner, body, foot] = rows.areas(area);
    header(frame, head, model);
    tab_bar(frame, tab, model);
    frame.render_widget(Paragraph::new(banners), banner);
    if model.shown().is_none() {
        waiting(frame, body, model);
    } else {
        match &model.screen {
            Screen::Overview => overview::draw(frame, body, model),
            Screen::Identity(who) => identity::draw(frame, body, model, who),
            Screen::Keys => lists::keys(frame, body, model),
            Screen::Rules => lists::rules(frame, body, model),
            Screen::Shards => shards::draw(frame, body, model),
            Screen::Events => lists::events(frame, body, model),
        }
    }
    footer(frame, foot, model);
}

/// Where there is hardly room: the verdict in as many words as fit.
fn tiny(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let verdict = &model.verdict;
    // The cause first, then that limits are off, then which server, which client.
    let (cause, rest) = verdict.headline.split_once(".  ").unwrap_or((&verdict.headline, ""));
    let mut lines = vec![Line::styled(cause.to_string(), paint.alarm(verdict.alarm))];
    if let Some(shout) = &verdict.shout {
        let short = shout.split(':').next().unwrap_or(shout);
        lines.push(Line::styled(short.to_string(), paint.shout()));
    }
    if !rest.is_empty() {
        lines.push(Line::raw(rest.to_string()));
    }
    if let Some(now) = model.shown() {
        lines.extend(verdict.since(now.at_us).map(Line::raw));
        let (all, share) = (count(now.rates.all()), percent(now.rates.rejected_share()));
        lines.push(Line::raw(format!("{all}/s, {share} refused")));
        let who = now.rejected.iter().take(3);
        lines.extend(
            who.map(|who| {
                Line::raw(format!("{} {}/s", shown(&who.identity), count(who.per_second)))
            }),
        );
    }
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
}

fn waiting(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let lines = vec![
        Line::raw(""),
        Line::styled(format!("  waiting for {}", shown(&model.options.title)), paint.strong()),
        Line::styled("  nothing was heard yet; q quits, ? lists the keys", paint.dim()),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

fn header(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let mut spans = vec![Span::styled(" rlctl tui ", paint.accent())];
    if let Screen::Identity(who) = &model.screen {
        spans.push(Span::raw(format!("> {} ", fit(&shown(who), 40))));
    }
    spans.push(Span::styled(format!(" {} ", shown(&model.options.title)), paint.strong()));
    spans.push(match (&model.options.permission, model.write) {
        (_, true) => Span::styled("[WRITE]", paint.shout()),
        (Permission::Protected(_), _) => Span::styled("[PROTECTED read-only]", paint.warn()),
        _ => Span::styled("[read-only]", paint.dim()),
    });
    if let Some(now) = model.shown() {
        spans.push(Span::raw(format!("  {}Z ", time(now.at_us))));
        let behind = lasts(model.timeline.behind_us());
        spans.push(if model.timeline.is_recording() {
            let word = if model.timeline.is_playing() { "REPLAY" } else { "REPLAY PAUSED" };
            Span::styled(format!("{word} -{behind}"), paint.warn())
        } else if model.timeline.is_live() {
            Span::styled("live", paint.good())
        } else {
            Span::styled(format!("PAUSED -{behind}"), paint.shout())
        });
        if let Some(since) = model.options.recording_since_us {
            let lasts = lasts(model.now_us.saturating_sub(since));
            spans.push(Span::styled(format!("  REC {lasts}"), paint.warn()));
        }
        let live = now.gateways.iter().filter(|g| g.live).count();
        let up = now.shards.iter().filter(|s| !s.is_down).count();
        if !now.gateways.is_empty() {
            spans.push(Span::raw(format!("  gateways {live}/{}", now.gateways.len())));
        }
        if !now.shards.is_empty() {
            let style = if up < now.shards.len() { paint.bad() } else { paint.plain() };
            spans.push(Span::styled(format!("  redis {up}/{} up", now.shards.len()), style));
        }
    }
    // Half a figure is worse than none.
    let mut room = usize::from(area.width);
    spans.retain(|span| {
        let fits = span.width() <= room;
        room -= if fits { span.width() } else { 0 };
        fits
    });
    frame.buffer_mut().set_line(area.x, area.y, &Line::from(spans), area.width);
}

fn tab_bar(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    if area.height == 0 {
        return;
    }
    let paint = Paint(model.theme);
    let mut spans = vec![Span::raw(" ")];
    for screen in &Screen::ALL {
        let is_here = model.screen == *screen;
        let style = if is_here { paint.marked() } else { paint.dim() };
        spans.push(Span::styled(format!(" {} ", screen.name()), style));
        spans.push(Span::raw(" "));
    }
    if !model.filter.text().is_empty() {
        let text = shown(model.filter.text());
        spans.push(Span::styled(format!("  filter /{text} (esc clears)"), paint.warn()));
    }
    frame.buffer_mut().set_line(area.x, area.y, &Line::from(spans), area.width);
}

/// What has to be known before any figure is believed.
fn banners(model: &Model, columns: usize) -> Vec<Line<'static>> {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return Vec::new() };
    let mut lines = Vec::new();
    if let Some(caption) = &now.caption {
        let told = folded(caption, columns.saturating_sub(8));
        let sign = |n: usize| if n == 0 { " DEMO  " } else { "       " };
        let line =
            |(n, text): (usize, String)| Line::styled(format!("{}{text}", sign(n)), paint.accent());
        lines.extend(told.into_iter().take(2).enumerate().map(line));
    }
    let silent = now.sources.iter().filter(|source| !source.is_live(now.at_us));
    for source in silent.take(3) {
        let why = source.trouble.as_deref().unwrap_or("it says nothing");
        let age = match source.heard_us {
            Some(heard) => format!("silent for {}", lasts(now.at_us.saturating_sub(heard))),
            None => "not heard yet".into(),
        };
        let text = format!(" ! {} {age}: {}", shown(&source.name), shown(why));
        lines.push(Line::styled(text, paint.shout()));
    }
    lines
}

/// Words in lines of so many columns; a word that is longer than that is cut.
fn folded(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ').map(|word| fit(word, columns)) {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(&word),
            Some(line) if line.width() + 1 + word.width() <= columns => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

fn footer(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    if let Some(input) = &model.input {
        let sign = if input.kind == InputKind::Filter { "/" } else { ":" };
        let text = format!(" {sign}{}_", shown(&input.text));
        frame.buffer_mut().set_line(
            area.x,
            area.y,
            &Line::styled(text, paint.strong()),
            area.width,
        );
        return;
    }
    if let Some(note) = model.noted() {
        let line = Line::styled(format!(" {}", shown(note)), paint.accent());
        frame.buffer_mut().set_line(area.x, area.y, &line, area.width);
        return;
    }
    let hints: &[(Action, &str)] = match model.screen {
        Screen::Identity(_) => &[
            (Action::Help, "help"),
            (Action::Back, "back"),
            (Action::Copy, "copy command"),
            (Action::Reset, "reset"),
            (Action::Override, "override"),
            (Action::Block, "block"),
            (Action::Pause, "pause"),
        ],
        _ => &[
            (Action::Help, "help"),
            (Action::Quit, "quit"),
            (Action::Open, "look"),
            (Action::NextPane, "pane"),
            (Action::NextScreen, "screen"),
            (Action::Pause, "pause"),
            (Action::Step(-1), "back in time"),
            (Action::Filter, "filter"),
            (Action::Sort, "sort"),
            (Action::Command, "command"),
        ],
    };
    let mut spans = vec![Span::raw(" ")];
    let mut room = usize::from(area.width).saturating_sub(1);
    for (action, what) in hints {
        let (key, what) = (key_of(*action), format!(" {what}  "));
        // A hint that is cut off is none.
        let columns = key.width() + what.trim_end().width();
        if columns > room {
            break;
        }
        room = room.saturating_sub(key.width() + what.width());
        spans.push(Span::styled(key, paint.strong()));
        spans.push(Span::styled(what, paint.dim()));
    }
    frame.buffer_mut().set_line(area.x, area.y, &Line::from(spans), area.width);
}

/// A frame with its name, and something at its right; gives what is inside.
fn panel(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    (title, at_right, focused): (&str, &str, bool),
) -> Rect {
    let paint = Paint(model.theme);
    let ascii = border::Set {
        top_left: "+",
        top_right: "+",
        bottom_left: "+",
        bottom_right: "+",
        vertical_left: "|",
        vertical_right: "|",
        horizontal_top: "-",
        horizontal_bottom: "-",
    };
    let style = if focused { paint.accent() } else { paint.dim() };
    let name = if focused { paint.strong() } else { paint.plain() };
    let room = usize::from(area.width.saturating_sub(6)).saturating_sub(title.width());
    let mut block = Block::bordered()
        .border_set(if model.ascii { ascii } else { border::PLAIN })
        .border_style(style)
        .title(Line::styled(format!(" {title} "), name));
    if !at_right.is_empty() && room > 6 {
        let text = Line::styled(format!(" {} ", fit(at_right, room)), paint.dim());
        block = block.title(text.right_aligned());
    }
    let inside = block.inner(area);
    frame.render_widget(block, area);
    inside
}

/// Lines from the top, cut at the edge.
fn lines(frame: &mut Frame<'_>, area: Rect, lines: &[Line<'_>]) {
    for (line, y) in lines.iter().zip(area.y..area.bottom()) {
        frame.buffer_mut().set_line(area.x, y, line, area.width);
    }
}
