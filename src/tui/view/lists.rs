//! Screens that are one list: keys by usage, rules, events.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use super::graph::{gauge, spark};
use super::paint::Paint;
use super::table::{Table, first_row, left, right};
use super::{lines, panel};
use crate::tui::data::{Event, share};
use crate::tui::model::Model;
use crate::tui::rows;
use crate::tui::words::{count, lasts, percent, shown, time};

pub(super) fn keys(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return };
    let list = rows::who(&now.seen, &model.filter, model.sort, model.reverse);
    let about = format!("{} busiest, by {}", list.len(), model.sort.name());
    let inside = panel(frame, area, model, ("KEYS by usage", &about, true));
    let is_wide = inside.width >= 90;
    let mut columns = vec![left("IDENTITY", 0), right("REQ/S", 6), right("SHARE", 6)];
    columns.extend([left("USED OF LIMIT", 18), left("RULE", 14), left("LAST", 8)]);
    if is_wide {
        columns.extend([right("REF/S", 6), left("TREND", 12)]);
    }
    let cells = |row: usize| {
        let who = list[row];
        let used = rows::used_share(who);
        let bar = match (used, &who.limit) {
            (Some(used), _) => format!("{} {}", gauge(used, 12, model.ascii), percent(used)),
            (None, Some(limit)) => shown(limit),
            (None, None) => "no limit".into(),
        };
        let refused = now.rejected.iter().find(|other| other.identity == who.identity);
        let refused = refused.map_or(0.0, |other| other.per_second);
        let style = if refused > 0.0 { paint.warn() } else { paint.plain() };
        let mut cells = vec![
            (shown(&who.identity), style),
            (count(who.per_second), paint.plain()),
            (percent(who.share), paint.plain()),
            (bar, used.map_or(paint.dim(), |used| paint.use_of(used))),
            (shown(&who.rule), paint.dim()),
            (who.reason.clone(), style),
        ];
        if is_wide {
            let past = model.timeline.of_identity(&who.identity, 48);
            let asked: Vec<f64> = past.iter().map(|(asked, _)| *asked).collect();
            cells.push((count(refused), style));
            cells.push((spark(&asked, 12, None, model.ascii), paint.accent()));
        }
        cells
    };
    let marked = Some(model.marked_row());
    let nothing = "nobody asks";
    let table = Table {
        columns: &columns,
        rows: list.len(),
        cells: &cells,
        marked,
        focused: true,
        nothing,
    };
    table.draw(frame, inside, paint);
}

pub(super) fn rules(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return };
    let [body, foot] = Layout::vertical([Constraint::Min(3), Constraint::Length(5)]).areas(area);
    let list = rows::rules(&now.rules, &model.filter, model.sort, model.reverse);
    let all: f64 = now.rules.iter().map(|rule| rule.rejected).sum();
    let title = format!("{} that decided of late", list.len());
    let inside = panel(frame, body, model, ("RULES", &title, true));
    let mut columns = vec![left("RULE", 0), right("DEC/S", 6), right("REF/S", 6), right("REF%", 6)];
    columns.extend([left("SHARE OF REFUSALS", 18), left("MODE", 8), left("REDIS AWAY", 10)]);
    let is_wide = inside.width >= 96;
    if is_wide {
        columns.push(left("LIMITS", 22));
    }
    let cells = |row: usize| {
        let rule = list[row];
        let decided = rule.allowed + rule.rejected + rule.shadow;
        let style = if rule.rejected > 0.0 { paint.warn() } else { paint.plain() };
        let part = share(rule.rejected, all);
        let (mode, would) = match rule.is_shadow {
            true => ("SHADOW", format!("({})", count(rule.shadow))),
            false => ("enforce", count(rule.rejected)),
        };
        let refused = rule.rejected;
        let away = rule.on_store_error.clone().unwrap_or_else(|| "-".into());
        let away = if rule.degraded > 0.0 { format!("{} NOW", away.to_uppercase()) } else { away };
        let away_style = if rule.degraded > 0.0 { paint.bad() } else { paint.dim() };
        let mut cells = vec![
            (shown(&rule.name), style),
            (count(decided), paint.plain()),
            (would, style),
            (if rule.is_shadow { "-".into() } else { percent(share(refused, decided)) }, style),
            (format!("{} {}", gauge(part, 12, model.ascii), percent(part)), style),
            (mode.into(), if rule.is_shadow { paint.warn() } else { paint.dim() }),
            (away, away_style),
        ];
        if is_wide {
            cells.push((shown(&rule.limits.join(", ")), paint.dim()));
        }
        cells
    };
    let nothing = "no rule has decided anything";
    let marked = Some(model.marked_row());
    let table = Table {
        columns: &columns,
        rows: list.len(),
        cells: &cells,
        marked,
        focused: true,
        nothing,
    };
    table.draw(frame, inside, paint);
    policy(frame, foot, model);
}

/// What is obeyed, since when, and what was refused.
fn policy(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return };
    let inside = panel(frame, area, model, ("POLICY in force", "", false));
    let policy = &now.policy;
    let version = policy.version.map_or("none".into(), |n| format!("version {n}"));
    let hash = policy.hash.as_deref().unwrap_or("-");
    let changed = policy.changed_us.map_or("-".into(), |at| {
        format!("changed {} ago, at {}Z", lasts(now.at_us.saturating_sub(at)), time(at))
    });
    let source = shown(policy.source.as_deref().unwrap_or("-"));
    let observe = if now.observe_only { "   OBSERVE-ONLY: nothing is enforced" } else { "" };
    let mut all = vec![Line::from(vec![
        Span::raw(format!(" {version} ({}) from {source}, {changed}", shown(hash))),
        Span::styled(observe, paint.shout()),
    ])];
    if policy.differs {
        all.push(Line::styled(" gateways obey different policies", paint.warn()));
    }
    if let Some(why) = &policy.refused {
        all.push(Line::styled(format!(" refused: {}", shown(why)), paint.bad()));
    }
    if let Some(why) = &policy.trouble {
        all.push(Line::styled(format!(" cannot be read: {}", shown(why)), paint.warn()));
    }
    lines(frame, inside, &all);
}

pub(super) fn events(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let Some(now) = model.shown() else { return };
    let list = rows::events(now, &model.filter);
    let inside = panel(frame, area, model, ("EVENTS", "latest first", true));
    event_rows(frame, inside, model, &list, Some(model.marked_row()));
}

pub(super) fn event_rows(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    list: &[&Event],
    marked: Option<usize>,
) {
    let paint = Paint(model.theme);
    if list.is_empty() {
        lines(frame, area, &[Line::styled(" nothing has happened", paint.dim())]);
        return;
    }
    let room = usize::from(area.height);
    let first = first_row(marked.unwrap_or(0), list.len(), room);
    let line = |(n, event): (usize, &&Event)| {
        let word = match event.level.as_str() {
            "critical" => "CRIT",
            "warning" => "warn",
            _ => "    ",
        };
        let who = event.who.as_deref().map(|who| format!("  {}", shown(who))).unwrap_or_default();
        let style = paint.level(&event.level);
        let over = if marked == Some(n) { paint.marked() } else { paint.plain() };
        Line::from(vec![
            Span::styled(format!(" {} ", time(event.at_us)), paint.dim().patch(over)),
            Span::styled(format!("{word} "), style.patch(over)),
            Span::styled(format!("{}{who}", shown(&event.text)), style.patch(over)),
            Span::styled(format!("  {}", shown(&event.from)), paint.dim()),
        ])
    };
    let all: Vec<Line<'_>> = list.iter().enumerate().skip(first).take(room).map(line).collect();
    lines(frame, area, &all);
}
