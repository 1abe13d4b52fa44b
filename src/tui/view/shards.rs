//! The store and those who ask it: latency over time, role, lag, scripts, clock, breakers.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use super::graph::curve;
use super::overview::verdict;
use super::paint::Paint;
use super::table::{Table, left, right};
use super::{lines, panel};
use crate::tui::data::Gateway;
use crate::tui::model::Model;
use crate::tui::rows;
use crate::tui::words::{count, lasts, offset, percent, shown, took};

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let Some(now) = model.shown() else { return };
    let servers = now.shards.len().max(1) as u16 + 3;
    let top = if area.height >= 20 { 5 } else { 0 };
    let graph = if area.height >= 24 { 7 } else { 0 };
    let [verdict_at, servers_at, gateways_at, graph_at] = Layout::vertical([
        Constraint::Length(top),
        Constraint::Length(servers.min(area.height / 2)),
        Constraint::Min(4),
        Constraint::Length(graph),
    ])
    .areas(area);
    if top > 0 {
        verdict(frame, verdict_at, model);
    }
    server_list(frame, servers_at, model);
    if area.width >= 98 {
        let halves = [Constraint::Percentage(60), Constraint::Percentage(40)];
        let [left_half, right_half] = Layout::horizontal(halves).areas(gateways_at);
        gateways(frame, left_half, model);
        let inside = panel(frame, right_half, model, ("TIMELINE", "latest first", false));
        let list = rows::news(now, &model.filter);
        super::lists::event_rows(frame, inside, model, &list, None);
    } else {
        gateways(frame, gateways_at, model);
    }
    if graph > 0 {
        latency(frame, graph_at, model);
    }
}

fn server_list(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return };
    let list = rows::shards(now, &model.filter);
    let inside = panel(frame, area, model, ("SERVERS", "", true));
    let mut columns = vec![left("SERVER", 0), left("ROLE", 8), left("STATE", 11), right("P50", 6)];
    columns.extend([right("P99", 6), right("PING", 6), right("OPS/S", 6), left("BREAKERS", 10)]);
    let is_wide = inside.width >= 96;
    if is_wide {
        columns.extend([
            right("LAG", 6),
            right("SCRIPTS", 7),
            right("CLOCK", 7),
            right("ERRORS", 6),
            right("MEMORY", 6),
        ]);
    }
    let cells = |row: usize| {
        let shard = list[row];
        let state = match (shard.is_down, shard.down_since_us) {
            (true, Some(since)) => format!("DOWN {}", lasts(now.at_us.saturating_sub(since))),
            (true, None) => "DOWN".into(),
            (false, _) => "up".into(),
        };
        let style = if shard.is_down { paint.bad() } else { paint.good() };
        let open = shard.open_breakers();
        let breakers = match shard.breakers.len() {
            0 => "-".into(),
            of if open > 0 => format!("OPEN {open}/{of}"),
            _ => "closed".to_string(),
        };
        let maybe = |n: Option<u64>| n.map_or("-".into(), |n| count(n as f64));
        let ops = shard.ops.map_or_else(|| count(shard.calls), |ops| count(ops as f64));
        let mut cells = vec![
            (shown(&shard.name), if shard.is_down { style } else { paint.plain() }),
            (shard.role.clone().unwrap_or_else(|| "-".into()), paint.dim()),
            (state, style),
            (took(shard.p50_us), paint.plain()),
            (took(shard.p99_us), paint.plain()),
            (took(shard.ping_us), paint.plain()),
            (ops, paint.plain()),
            (breakers, if open > 0 { paint.bad() } else { paint.plain() }),
        ];
        if is_wide {
            let off = shard.clock_us.is_some_and(|us| us.unsigned_abs() >= 1_000_000);
            cells.extend([
                (took(shard.lag_us), paint.plain()),
                (maybe(shard.scripts), paint.plain()),
                (offset(shard.clock_us), if off { paint.bad() } else { paint.plain() }),
                (count(shard.errors as f64), paint.plain()),
                (maybe(shard.memory_bytes), paint.plain()),
            ]);
        }
        cells
    };
    let nothing = "no Redis is known: limits are kept in memory, or give --redis URL";
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
}

fn gateways(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return };
    let inside = panel(frame, area, model, ("GATEWAYS", "", false));
    let mut columns = vec![left("GATEWAY", 0), left("BREAKER", 10), left("MODE", 12)];
    columns.extend([right("DEC/S", 6), right("REF%", 5), right("P99", 6)]);
    if inside.width >= 64 {
        columns.extend([left("POLICY", 8), right("CLOCK", 6)]);
    }
    let cells = |row: usize| {
        let gateway = &now.gateways[row];
        let (breaker, breaker_style) = breaker(model, gateway);
        let (mode, mode_style) = mode(gateway, paint);
        vec![
            (name(gateway), if gateway.live { paint.plain() } else { paint.bad() }),
            (breaker, breaker_style),
            (mode, mode_style),
            (count(gateway.rates.all()), paint.plain()),
            (percent(gateway.rates.rejected_share()), paint.plain()),
            (took(gateway.p99_us), paint.plain()),
            (gateway.policy_version.map_or("none".into(), |n| format!("v{n}")), paint.dim()),
            (offset(gateway.clock_us), paint.dim()),
        ]
    };
    let table = Table {
        columns: &columns,
        rows: now.gateways.len(),
        cells: &cells,
        marked: None,
        focused: false,
        nothing: "no gateway is watched: give --gateway URL",
    };
    table.draw(frame, inside, paint);
}

/// Where it is says more to people than what it calls itself.
fn name(gateway: &Gateway) -> String {
    match gateway.source.split_once("://") {
        Some((_, place)) => shown(place),
        None => shown(&gateway.id),
    }
}

/// The worst of a gateway's breakers.
fn breaker(model: &Model, gateway: &Gateway) -> (String, ratatui::style::Style) {
    let paint = Paint(model.theme);
    let Some(now) = model.shown() else { return ("-".into(), paint.plain()) };
    let own = || {
        let all = now.shards.iter().flat_map(|shard| &shard.breakers);
        all.filter(|breaker| breaker.gateway == gateway.id)
    };
    let (of, open) = (own().count(), own().filter(|b| b.state == "open").count());
    let half = own().filter(|b| b.state == "half-open").count();
    match (of, open, half) {
        (0, _, _) => ("-".into(), paint.dim()),
        (_, 0, 0) => ("closed".into(), paint.good()),
        (1, 0, _) => ("HALF-OPEN".into(), paint.warn()),
        (1, _, _) => ("OPEN".into(), paint.bad()),
        (of, 0, half) => (format!("half {half}/{of}"), paint.warn()),
        (of, open, _) => (format!("OPEN {open}/{of}"), paint.bad()),
    }
}

/// How it decides now.
fn mode(gateway: &Gateway, paint: Paint) -> (String, ratatui::style::Style) {
    let rates = &gateway.rates;
    match () {
        () if !gateway.live => ("SILENT".into(), paint.bad()),
        () if rates.open > 0.0 => ("FAIL-OPEN".into(), paint.shout()),
        () if rates.closed > 0.0 => ("FAIL-CLOSED".into(), paint.bad()),
        () if rates.local > 0.0 => ("fail-local".into(), paint.warn()),
        () if gateway.observe_only => ("observe-only".into(), paint.warn()),
        () if !gateway.ready => ("not ready".into(), paint.warn()),
        () => ("enforce".into(), paint.good()),
    }
}

/// How long decisions and servers took, over time.
fn latency(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let paint = Paint(model.theme);
    let marked = model.marked_name();
    let upto = model.timeline.upto();
    let last = &upto[upto.len().saturating_sub(300)..];
    let of_shard: Vec<f64> = last
        .iter()
        .map(|moment| {
            let shard = moment.shards.iter().find(|s| Some(&s.name) == marked.as_ref());
            shard.and_then(|s| s.latency_us()).unwrap_or(0) as f64
        })
        .collect();
    let name = marked.as_deref().map(shown).unwrap_or_default();
    let high = of_shard.iter().copied().fold(0.0, f64::max);
    let title = format!("LATENCY p99 of {name}");
    let right = format!("highest {}, log scale", took(Some(high as u64)));
    let inside = panel(frame, area, model, (&title, &right, false));
    let width = usize::from(inside.width.saturating_sub(9));
    let rows = curve(&of_shard, width, usize::from(inside.height), model.ascii);
    let all: Vec<Line<'_>> = rows
        .iter()
        .enumerate()
        .map(|(n, row)| {
            let label = if n == 0 { took(Some(high as u64)) } else { String::new() };
            Line::from(vec![
                Span::styled(format!(" {label:>6} "), paint.dim()),
                Span::styled(row.clone(), paint.accent()),
            ])
        })
        .collect();
    lines(frame, inside, &all);
}
