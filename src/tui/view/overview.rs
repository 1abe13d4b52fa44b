//! The first ten seconds, in reading order: what is wrong, is anybody protected, who, by which rule,
//! where, what to do, what happened.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::graph::spark;
use super::paint::Paint;
use super::table::{Table, left, right};
use super::{folded, lines, panel};
use crate::tui::data::{Point, Snapshot, share};
use crate::tui::model::{Model, Pane, Screen};
use crate::tui::rows;
use crate::tui::verdict::{Advice, Does};
use crate::tui::words::{count, fit, lasts, percent, shown, time, took};

/// A Redis alone knows who has used how much, and not who is refused.
const NO_GATEWAY: &str = "not known: no gateway is watched";

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let Some(now) = model.shown() else { return };
    let verdict_rows = verdict_height(model, area);
    if area.height < 18 || area.width < 76 {
        return words(frame, area, model, verdict_rows);
    }
    let is_large = area.width >= 98 && area.height >= 26;
    let todo = model.verdict.advice.len().clamp(1, 4) as u16 + 2;
    let servers = (model.shown().map_or(0, |now| now.shards.len()) as u16 + 3).min(area.height / 3);
    let bottom = if is_large { 8.max(todo).max(servers) } else { todo };
    let events = if is_large { (area.height / 6).clamp(4, 9) } else { 0 };
    let [top, rates_at, middle, below, last] = Layout::vertical([
        Constraint::Length(verdict_rows),
        Constraint::Length(2),
        Constraint::Min(4),
        Constraint::Length(bottom),
        Constraint::Length(events),
    ])
    .areas(area);
    verdict(frame, top, model);
    rates(frame, rates_at, model, now);
    let halves = Layout::horizontal([Constraint::Percentage(52), Constraint::Percentage(48)]);
    let [left_half, right_half] = halves.areas(middle);
    who(frame, left_half, model);
    if is_large {
        rules(frame, right_half, model);
        let [where_at, todo_at] = halves.areas(below);
        places(frame, where_at, model);
        todo_list(frame, todo_at, model);
        events_list(frame, last, model);
        return;
    }
    // What has no room comes with tab.
    match model.pane {
        Pane::Where => places(frame, right_half, model),
        Pane::Events => events_list(frame, right_half, model),
        Pane::Who | Pane::Rules | Pane::Todo => rules(frame, right_half, model),
    }
    todo_list(frame, below, model);
}

/// As many rows as its sentences take, up to a third of the screen; up to half of a small one.
fn verdict_height(model: &Model, area: Rect) -> u16 {
    let all = sentences(model, usize::from(area.width.saturating_sub(4))).len();
    let most = usize::from(area.height / 3).max(usize::from(area.height / 2).min(7));
    (all + 2).clamp(3, most.max(3)) as u16
}

/// What is said, in lines of so many columns.
fn sentences(model: &Model, columns: usize) -> Vec<Line<'static>> {
    let paint = Paint(model.theme);
    let said = &model.verdict;
    let headline = std::iter::once((&said.headline, paint.alarm(said.alarm)));
    let shout = said.shout.iter().map(|text| (text, paint.shout()));
    let because = said.because.iter().map(|text| (text, paint.plain()));
    let all = headline.chain(shout).chain(because);
    let in_lines = |(text, style): (&String, Style)| {
        folded(text, columns).into_iter().map(move |line| Line::styled(line, style))
    };
    all.flat_map(in_lines).collect()
}

pub(super) fn verdict(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let Some(now) = model.shown() else { return };
    let since = model.verdict.since(now.at_us).unwrap_or_default();
    let inside = panel(frame, area, model, ("VERDICT", &since, false));
    let inside = Rect { x: inside.x + 1, width: inside.width.saturating_sub(2), ..inside };
    lines(frame, inside, &sentences(model, usize::from(inside.width)));
}

/// How much, and how much of it is refused: the last minutes.
fn rates(frame: &mut Frame<'_>, area: Rect, model: &Model, now: &Snapshot) {
    let paint = Paint(model.theme);
    let points = model.timeline.points();
    let points = &points[points.len().saturating_sub(120)..];
    let column = |of: fn(&Point) -> f64| points.iter().map(of).collect::<Vec<f64>>();
    let width = usize::from(area.width / 6).clamp(6, 24);
    let graph = |of| spark(&column(of), width, None, model.ascii);
    let refused = now.rates.rejected_share();
    let style = if refused >= 0.01 { paint.warn() } else { paint.plain() };
    let open = now.rates.open;
    let degraded = if open > 0.0 { paint.shout() } else { paint.good() };
    let degraded_text = match (open > 0.0, now.rates.closed > 0.0, now.rates.local > 0.0) {
        (true, _, _) => format!("FAIL-OPEN {}/s", count(open)),
        (_, true, _) => format!("FAIL-CLOSED {}/s", count(now.rates.closed)),
        (_, _, true) => format!("fail-local {}/s", count(now.rates.local)),
        _ => "fail-open 0/s".into(),
    };
    let first = Line::from(vec![
        Span::raw(format!(" decisions {:>5}/s ", count(now.rates.all()))),
        Span::styled(graph(Point::all), paint.accent()),
        Span::styled(format!("  refused {:>5} ", percent(refused)), style),
        Span::styled(graph(|p| p.rejected), paint.warn()),
        Span::raw("  "),
        Span::styled(degraded_text, degraded),
    ]);
    let second = Line::styled(
        format!(
            " decision p50/p99 {}/{}   429 {}/s   shadow {}/s   quotas {} low, {} used up",
            took(now.p50_us),
            took(now.p99_us),
            count(now.rates.rejected),
            count(now.rates.shadow),
            now.quotas_warning,
            now.quotas_throttled,
        ),
        paint.dim(),
    );
    let second = match now.hot.first() {
        None => second,
        Some(hot) => {
            let rate = count(hot.per_second);
            let text = format!("   hot keys {}: {} {rate}/s", now.hot.len(), shown(&hot.identity));
            Line::from(vec![
                Span::styled(second.to_string(), paint.dim()),
                Span::styled(text, paint.warn()),
            ])
        }
    };
    lines(frame, area, &[first, second]);
}

fn is_focused(model: &Model, pane: Pane) -> bool {
    model.screen == Screen::Overview && model.pane == pane
}

fn who(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return };
    let list = rows::who(&now.rejected, &model.filter, model.sort, model.reverse);
    let focused = is_focused(model, Pane::Who);
    let sorted = format!("by {}", model.sort.name());
    let inside = panel(frame, area, model, ("WHO is refused", &sorted, focused));
    let trend = if inside.width >= 54 { 10 } else { 0 };
    let mut columns =
        vec![left("IDENTITY", 0), right("REF/S", 5), right("SHARE", 5), left("SINCE", 8)];
    if trend > 0 {
        columns.push(left("TREND", trend));
    }
    let cells = |row: usize| {
        let who = list[row];
        let style = if who.share > 0.5 { paint.bad() } else { paint.plain() };
        let mut cells = vec![
            (shown(&who.identity), style),
            (count(who.per_second), style),
            (percent(who.share), style),
            (who.since_us.map_or("-".into(), time), paint.dim()),
        ];
        if trend > 0 {
            let past = model.timeline.of_identity(&who.identity, 40);
            let refused: Vec<f64> = past.iter().map(|(_, refused)| *refused).collect();
            cells.push((spark(&refused, usize::from(trend), None, model.ascii), paint.warn()));
        }
        cells
    };
    let names = list.iter().map(|who| who.identity.as_str());
    let nothing = match model.filter.text().is_empty() {
        _ if now.gateways.is_empty() => NO_GATEWAY,
        true => "nobody",
        false => "nobody fits the filter",
    };
    let marked = Some(model.marked_in(Pane::Who, names));
    let table =
        Table { columns: &columns, rows: list.len(), cells: &cells, marked, focused, nothing };
    table.draw(frame, inside, paint);
}

fn rules(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return };
    let list = rows::rules(&now.rules, &model.filter, model.sort, model.reverse);
    let focused = is_focused(model, Pane::Rules);
    let changed = now.policy.changed_us.map(|at| lasts(now.at_us.saturating_sub(at)));
    let changed = changed.map(|age| format!("changed {age} ago")).unwrap_or_default();
    let inside = panel(frame, area, model, ("RULES", &changed, focused));
    let columns = [left("RULE", 0), right("REF/S", 5), right("REF%", 5), left("MODE", 8)];
    let cells = |row: usize| {
        let rule = list[row];
        let all = rule.allowed + rule.rejected + rule.shadow;
        let style = if rule.rejected > 0.0 { paint.warn() } else { paint.plain() };
        let mode = if rule.is_shadow { "SHADOW" } else { "enforce" };
        let rejected = rule.rejected;
        // What a shadow rule would refuse stands in brackets.
        let refused = match rule.is_shadow {
            true => format!("({})", count(rule.shadow)),
            false => count(rejected),
        };
        vec![
            (shown(&rule.name), style),
            (refused, style),
            (if rule.is_shadow { "-".into() } else { percent(share(rejected, all)) }, style),
            (mode.into(), paint.dim()),
        ]
    };
    let names = list.iter().map(|rule| rule.name.as_str());
    let marked = Some(model.marked_in(Pane::Rules, names));
    let nothing = match model.filter.text().is_empty() {
        _ if now.gateways.is_empty() => NO_GATEWAY,
        true => "no rule has decided anything",
        false => "no rule fits the filter",
    };
    let table =
        Table { columns: &columns, rows: list.len(), cells: &cells, marked, focused, nothing };
    table.draw(frame, inside, paint);
}

fn places(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return };
    let list = rows::shards(now, &model.filter);
    let focused = is_focused(model, Pane::Where);
    let gateways = format!("{} gateways", now.gateways.len());
    let inside = panel(frame, area, model, ("WHERE: servers", &gateways, focused));
    let columns = [
        left("SERVER", 0),
        left("ROLE", 7),
        left("STATE", 5),
        right("P99", 6),
        right("CALLS/S", 7),
        left("BREAKER", 8),
    ];
    let cells = |row: usize| {
        let shard = list[row];
        let (state, style) =
            if shard.is_down { ("DOWN", paint.bad()) } else { ("up", paint.good()) };
        let open = shard.open_breakers();
        let breaker = match (shard.breakers.len(), open) {
            (0, _) => "-".into(),
            (_, 0) => "closed".into(),
            (of, open) => format!("OPEN {open}/{of}"),
        };
        let breaker_style = if open > 0 { paint.bad() } else { paint.plain() };
        vec![
            (shown(&shard.name), if shard.is_down { style } else { paint.plain() }),
            (shard.role.as_deref().map_or("-".into(), shown), paint.dim()),
            (state.into(), style),
            (took(shard.latency_us()), paint.plain()),
            (count(shard.ops.map_or(shard.calls, |ops| ops as f64)), paint.plain()),
            (breaker, breaker_style),
        ]
    };
    let names = list.iter().map(|shard| shard.name.as_str());
    let marked = Some(model.marked_in(Pane::Where, names));
    let nothing = "no Redis: limits are kept in memory";
    let table =
        Table { columns: &columns, rows: list.len(), cells: &cells, marked, focused, nothing };
    table.draw(frame, inside, paint);
}

fn todo_list(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let focused = is_focused(model, Pane::Todo);
    let inside = panel(frame, area, model, ("WHAT TO DO", "press the number", focused));
    let marked = model.marked_in(Pane::Todo, ["0", "1", "2", "3", "4", "5"].into_iter());
    let advice = &model.verdict.advice;
    // What is too long for a line takes another one where there is one to spare.
    let mut spare = usize::from(inside.height).saturating_sub(advice.len());
    let mut all: Vec<Line<'_>> = Vec::new();
    for (n, advice) in advice.iter().enumerate() {
        let style = if focused && n == marked { paint.marked() } else { paint.plain() };
        let told = told(advice, model.write, usize::from(inside.width).saturating_sub(5), spare);
        spare = spare.saturating_sub(told.len() - 1);
        for (row, text) in told.into_iter().enumerate() {
            let number = if row == 0 { (n + 1).to_string() } else { " ".into() };
            let (text, note) = text;
            let spans = [Span::styled(format!(" {number}  {text}"), style)];
            all.push(Line::from_iter(spans.into_iter().chain([Span::styled(note, paint.dim())])));
        }
    }
    lines(frame, inside, &all);
}

/// One thing to do in at most `spare` lines more than one, and beside its end what the number does.
fn told(advice: &Advice, write: bool, columns: usize, spare: usize) -> Vec<(String, &'static str)> {
    let note = match &advice.does {
        Does::Act(_) if !write => " (write mode)",
        Does::Command(_) => " (copies the command)",
        _ => "",
    };
    // The note stays in one piece.
    let glued = note.trim_start().replace(' ', "\u{a0}");
    let mut rows = folded(format!("{} {glued}", advice.text).trim_end(), columns);
    if rows.len() > spare + 1 {
        return vec![(fit(&advice.text, columns.saturating_sub(note.len())), note)];
    }
    let last = rows.pop().unwrap_or_default();
    let last = last.strip_suffix(&glued).unwrap_or(&last).trim_end().to_string();
    rows.into_iter().map(|row| (row, "")).chain([(last, note)]).collect()
}

fn events_list(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let Some(now) = model.shown() else { return };
    let focused = is_focused(model, Pane::Events);
    let list = rows::news(now, &model.filter);
    let inside = panel(frame, area, model, ("EVENTS", "latest first", focused));
    let marked = focused.then(|| {
        let numbers: Vec<String> = (0..list.len()).map(|n| n.to_string()).collect();
        model.marked_in(Pane::Events, numbers.iter().map(String::as_str))
    });
    super::lists::event_rows(frame, inside, model, &list, marked);
}

/// 60×15: the verdict and the most refused, as text.
fn words(frame: &mut Frame<'_>, area: Rect, model: &Model, rows: u16) {
    let Some(now) = model.shown() else { return };
    let paint = Paint(model.theme);
    let parts = [Constraint::Length(rows), Constraint::Length(1), Constraint::Min(0)];
    let [top, middle, rest] = Layout::vertical(parts).areas(area);
    verdict(frame, top, model);
    let open = if now.rates.open > 0.0 {
        format!("   FAIL-OPEN {}/s", count(now.rates.open))
    } else {
        String::new()
    };
    let figures = format!(
        " {}/s decided   {} refused{open}",
        count(now.rates.all()),
        percent(now.rates.rejected_share()),
    );
    lines(frame, middle, &[Line::styled(figures, paint.strong())]);
    let list = rows::who(&now.rejected, &model.filter, model.sort, model.reverse);
    let marked = model.marked_in(Pane::Who, list.iter().map(|who| who.identity.as_str()));
    let room = usize::from(area.width).saturating_sub(20);
    let who = list.iter().enumerate().take(5).map(|(n, who)| {
        let name = fit(&shown(&who.identity), room);
        let sign = if n == marked { ">" } else { " " };
        let text =
            format!("{sign}{name:<room$} {:>6}/s {:>5}", count(who.per_second), percent(who.share));
        Line::styled(text, if n == marked { paint.strong() } else { paint.plain() })
    });
    let todo =
        model.verdict.advice.iter().enumerate().map(|(n, advice)| {
            Line::styled(format!(" {}  {}", n + 1, advice.text), paint.accent())
        });
    let all: Vec<Line<'_>> = who.chain(todo).collect();
    lines(frame, rest, &all);
}
