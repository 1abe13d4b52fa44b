//! One identity: every limit with its gauge, the last five minutes, why it was refused, and how it
//! behaves.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::graph::{gauge, spark};
use super::paint::Paint;
use super::table::{Table, left, right};
use super::{lines, panel};
use crate::engine::clock::Micros;
use crate::output::about;
use crate::tui::data::{Detail, LimitUse, Snapshot, Who, share};
use crate::tui::model::Model;
use crate::tui::words::{count, lasts, percent, shown, time};

/// Five minutes.
const PAST: usize = 300;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, who: &str) {
    let Some(now) = model.shown() else { return };
    let limits = model.detail.as_ref().map_or(1, |detail| detail.limits.len().max(1)) as u16;
    let state_rows = (limits + 4).min(area.height / 3).max(5);
    let past_rows = if area.height >= 16 { 5 } else { 0 };
    let [state_at, past_at, why_at, command_at] = Layout::vertical([
        Constraint::Length(state_rows),
        Constraint::Length(past_rows),
        Constraint::Min(4),
        Constraint::Length(if area.height >= 18 { 3 } else { 0 }),
    ])
    .areas(area);
    state(frame, state_at, model);
    if past_rows > 0 {
        past(frame, past_at, model, who);
    }
    let find = |list: &'_ [Who]| list.iter().find(|one| one.identity == who).cloned();
    let (refused, seen) = (find(&now.rejected), find(&now.seen));
    if area.width >= 76 {
        let halves = [Constraint::Percentage(55), Constraint::Percentage(45)];
        let [left_half, right_half] = Layout::horizontal(halves).areas(why_at);
        why(frame, left_half, model, now, refused.as_ref());
        behaviour(frame, right_half, model, refused.as_ref(), seen.as_ref());
    } else {
        why(frame, why_at, model, now, refused.as_ref());
    }
    if command_at.height > 0 {
        let inside =
            panel(frame, command_at, model, ("THE SAME on a command line", "y copies", false));
        let command = model.command().unwrap_or_default();
        lines(frame, inside, &[Line::raw(format!(" $ {}", shown(&command)))]);
    }
}

fn state(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let Some(detail) = &model.detail else {
        let inside = panel(frame, area, model, ("LIMITS", "", true));
        lines(frame, inside, &[Line::styled(" asking ..", paint.dim())]);
        return;
    };
    let age = lasts(model.now_us.saturating_sub(detail.at_us));
    let inside = panel(frame, area, model, ("LIMITS", &format!("read {age} ago"), true));
    let columns = [
        left("RULE", 0),
        left("USED / LIMIT", 18),
        right("LEFT", 7),
        right("OF", 12),
        right("WHOLE IN", 8),
        left("STATE", 9),
        left("ALGORITHM", 14),
    ];
    let [table_at, foot] =
        Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(inside);
    let cells = |row: usize| limit_cells(&detail.limits[row], model, paint);
    let nothing = match (&detail.trouble, &detail.blocked) {
        (Some(_), _) => "its limits are not known",
        (None, Some(_)) => "all it asks for is refused, whatever its limits",
        (None, None) => "no rule limits it",
    };
    let table = Table {
        columns: &columns,
        rows: detail.limits.len(),
        cells: &cells,
        marked: Some(model.marked_row()),
        focused: true,
        nothing,
    };
    table.draw(frame, table_at, paint);
    lines(frame, foot, &[standing(detail, model.marked_row(), paint)]);
}

fn limit_cells(limit: &LimitUse, model: &Model, paint: Paint) -> Vec<super::table::Cell> {
    let used = limit.used.map(|used| share(used as f64, limit.capacity.max(1) as f64));
    let bar = used.map_or("not known".into(), |used| {
        format!("{} {}", gauge(used, 12, model.ascii), percent(used))
    });
    let style = used.map_or(paint.dim(), |used| paint.use_of(used));
    let number = |n: Option<u64>| n.map_or("-".into(), |n| count(n as f64));
    let mark = if limit.shadow { " (shadow)" } else { "" };
    vec![
        (format!("{}{mark}", shown(&limit.rule)), paint.plain()),
        (bar, style),
        (number(limit.remaining), style),
        (format!("{}/{}", limit.limit, Micros(limit.period_us)), paint.plain()),
        (limit.reset_after_us.map_or("-".into(), |us| about(Micros(us))), paint.plain()),
        (limit.state.clone().unwrap_or_else(|| "-".into()), style),
        (shown(&limit.algorithm), paint.dim()),
    ]
}

/// Tier, lists, and where the marked limit comes from.
fn standing(detail: &Detail, marked: usize, paint: Paint) -> Line<'static> {
    let mut spans = Vec::new();
    if let Some(why) = &detail.blocked {
        spans.push(Span::styled(format!(" BLOCKED: {} ", shown(why)), paint.shout()));
    }
    if let Some(why) = &detail.exempt {
        spans.push(Span::styled(format!(" EXEMPT: {} ", shown(why)), paint.warn()));
    }
    if let Some(why) = &detail.trouble {
        spans.push(Span::styled(format!(" {} ", shown(why)), paint.bad()));
    }
    let tier =
        detail.tier.as_deref().map_or("no tier".into(), |tier| format!("tier {}", shown(tier)));
    let from = detail.limits.get(marked).and_then(|limit| limit.from.as_deref());
    let from = from.map(|from| format!("   limit from {}", shown(from))).unwrap_or_default();
    spans.push(Span::styled(format!(" {tier}{from}"), paint.dim()));
    Line::from(spans)
}

fn past(frame: &mut Frame<'_>, area: Rect, model: &Model, who: &str) {
    let paint = Paint(model.theme);
    let past = model.timeline.of_identity(who, PAST);
    let width = usize::from(area.width.saturating_sub(22));
    let each = past.len().div_ceil(width.max(1)).max(1);
    let title = format!("1 column = {each}s, now at the right");
    let inside = panel(frame, area, model, ("LAST FIVE MINUTES", &title, false));
    let most = past.iter().map(|(asked, _)| *asked).fold(0.0, f64::max);
    let row = |name: &str, of: fn(&(f64, f64)) -> f64, style| {
        let values: Vec<f64> = past.iter().map(of).collect();
        let last = values.last().copied().unwrap_or(0.0);
        Line::from(vec![
            Span::raw(format!(" {name:<8} {:>6}/s ", count(last))),
            Span::styled(spark(&values, width, Some(most), model.ascii), style),
        ])
    };
    let all = [
        row("asked", |(asked, _)| *asked, paint.accent()),
        row("passed", |(asked, refused)| (asked - refused).max(0.0), paint.good()),
        row("refused", |(_, refused)| *refused, paint.warn()),
    ];
    lines(frame, inside, &all);
}

fn why(frame: &mut Frame<'_>, area: Rect, model: &Model, now: &Snapshot, who: Option<&Who>) {
    let paint = Paint(model.theme);
    let inside = panel(frame, area, model, ("WHY REFUSED (last time)", "", false));
    let Some(who) = who else {
        lines(frame, inside, &[Line::styled(" it is not refused", paint.good())]);
        return;
    };
    let ago = lasts(now.at_us.saturating_sub(who.last_us));
    let place =
        who.endpoint.as_deref().map(|path| format!("  {}", shown(path))).unwrap_or_default();
    let mut all = vec![
        Line::raw(format!(" {}Z, {ago} ago{place}  at {}", time(who.last_us), shown(&who.gateway))),
        Line::styled(
            format!(" rule {} says no: {}", shown(&who.rule), shown(&who.reason)),
            paint.warn(),
        ),
    ];
    if let (Some(limit), used) = (&who.limit, who.used) {
        let used = used.map_or("all of it is".into(), |used| format!("{used} are"));
        all.push(Line::raw(format!(" the limit is {}, and {used} used", shown(limit))));
    }
    if let Some(us) = who.retry_after_us {
        all.push(Line::raw(format!(" it is told to come back in {}", about(Micros(us)))));
    }
    all.extend(arithmetic(model, who).map(|text| Line::styled(format!(" {text}"), paint.dim())));
    frame.render_widget(Paragraph::new(all).wrap(Wrap { trim: false }), inside);
}

/// How the deciding limit works, in words.
fn arithmetic(model: &Model, who: &Who) -> Option<String> {
    let detail = model.detail.as_ref()?;
    let limit = detail.limits.iter().find(|limit| limit.rule == who.rule)?;
    let every = limit.period_us.checked_div(limit.limit).unwrap_or(0);
    let (n, period) = (limit.limit, Micros(limit.period_us));
    Some(match limit.algorithm.as_str() {
        "token-bucket" | "gcra" => format!(
            "{}: {} at once, and one more every {}",
            limit.algorithm,
            limit.capacity,
            about(Micros(every))
        ),
        "leaky-bucket" => format!("leaky-bucket: one every {}, in turn", about(Micros(every))),
        "fixed-window" => format!("fixed-window: {n} in each {period} of the clock"),
        name => format!("{name}: {n} within any {period}"),
    })
}

fn behaviour(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    refused: Option<&Who>,
    seen: Option<&Who>,
) {
    let paint = Paint(model.theme);
    let inside = panel(frame, area, model, ("HOW IT BEHAVES", "", false));
    let no = refused.map_or(0.0, |who| who.per_second);
    let asked = seen.map_or(no, |who| who.per_second).max(no);
    let passed = (asked - no).max(0.0);
    let share_of_all = seen.map_or("-".into(), |who| percent(who.share));
    let mut all = vec![
        Line::raw(format!(" asks         {}/s, {share_of_all} of all requests", count(asked))),
        Line::raw(format!(" passes       {}/s ({})", count(passed), percent(share(passed, asked)))),
    ];
    if no > 0.0 {
        let tries = match passed > 0.0 {
            true => format!("{} tries for each that passes", count(asked / passed)),
            false => "nothing passes".into(),
        };
        let is_storm = passed <= 0.0 || asked / passed >= 3.0;
        let style = if is_storm { paint.bad() } else { paint.plain() };
        let word = if is_storm { "yes" } else { "no" };
        all.push(Line::styled(format!(" retry storm  {word}, {tries}"), style));
        all.extend(
            honours(refused, no)
                .map(|(text, ok)| Line::styled(text, if ok { paint.good() } else { paint.bad() })),
        );
        if let Some(since) = refused.and_then(|who| who.since_us) {
            all.push(Line::raw(format!(" refused      since {}Z", time(since))));
        }
    }
    lines(frame, inside, &all);
}

/// Whoever waits as long as they are told is refused at most once in that time.
fn honours(refused: Option<&Who>, per_second: f64) -> Option<(String, bool)> {
    // The header is in whole seconds.
    let wait_us = refused?.retry_after_us?.max(1_000_000);
    let fair = 1e6 / wait_us as f64;
    let ok = per_second <= fair * 2.0;
    let word = if ok { "yes" } else { "no" };
    let wait = about(Micros(wait_us));
    Some((
        format!(" Retry-After  honoured: {word} (told {wait}, refused {}/s)", count(per_second)),
        ok,
    ))
}
