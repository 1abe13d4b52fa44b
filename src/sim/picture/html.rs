//! One page with everything: the line to take home, the charts, all figures, who was denied, what
//! was odd about the input, and the command that makes it again. It loads nothing from anywhere.

use std::fmt::Write;

use super::Caption;
use super::svg::{charts_alone, escaped};
use crate::engine::clock::Micros;
use crate::output::{about, count};
use crate::sim::outcome::{LaneOutcome, Outcome};
use crate::sim::so_what::percent;

const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fff;--ink:#1c2733;--soft:#5b6875;--line:#d5dbe1;--ground:#f3f5f7}\
@media (prefers-color-scheme:dark){:root{--page:#12181f;--ink:#e8edf2;--soft:#9aa7b4;--line:#33404d;--ground:#1b232c}}\
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);\
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
main{max-width:1090px;margin:0 auto;padding:32px 24px 48px}\
h1{font-size:24px;line-height:1.35;margin:0 0 8px}h2{font-size:17px;margin:32px 0 8px}\
p{margin:0 0 8px}.soft{color:var(--soft)}svg{width:calc(100% + 48px);height:auto;margin:8px 0 0 -24px}\
@media (max-width:760px){.charts{overflow-x:auto}.charts svg{width:720px;margin-left:0}}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}\
th,td{padding:6px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child,td:first-child{text-align:left;padding-left:0}th{font-weight:600;color:var(--soft);font-size:12px}\
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}\
pre{background:var(--ground);padding:12px 16px;border-radius:6px;white-space:pre-wrap;overflow-wrap:anywhere;margin:0}\
ul{margin:0;padding-left:20px}li{overflow-wrap:anywhere}";

pub fn page(outcome: &Outcome, caption: &Caption) -> String {
    let mut body = format!(
        "<h1>{}</h1><p class=\"soft\">{}</p><div class=\"charts\">{}</div>",
        escaped(&heading(outcome, &caption.so_what)),
        escaped(&caption.headline(outcome)),
        charts_alone(outcome, caption)
    );
    body += &figures(outcome, caption);
    body += &most_denied(outcome);
    if !caption.notes.is_empty() {
        body += "<h2>About the input</h2><ul>";
        caption.notes.iter().for_each(|note| {
            let _ = write!(body, "<li>{}</li>", escaped(note));
        });
        body += "</ul>";
    }
    let _ = write!(body, "<h2>Make it again</h2><pre>{}</pre>", escaped(&caption.command));
    body += MEANING;
    body += if compares(outcome) { OTHERWISE } else { BYTES };
    body += "</ul>";
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n",
        escaped(&caption.source)
    )
}

const MEANING: &str = "<h2>What the figures mean</h2><ul class=\"soft\">\
<li><b>Fullest window</b>: the most that passed on one key in any interval as long as the period, and when it ended.</li>\
<li><b>At once</b>: the most that passed on one key within one millisecond.</li>\
<li><b>Starved</b>: the longest that one key asked and got nothing.</li>\
<li><b>Fairness</b>: Jain&#39;s index of the share that each key got of what it asked; 1 when all are served alike.</li>";
const BYTES: &str = "<li><b>Bytes a key</b>: what the limiter remembers of each key on which something passed.</li>";
const OTHERWISE: &str = "<li><b>Too many</b>, <b>too few</b>: requests that it let pass, or denied, where the exact limiter \
that it is compared with decides otherwise.</li>";

/// Whether limiters are compared with an exact one.
fn compares(outcome: &Outcome) -> bool {
    outcome.lanes.iter().any(|lane| lane.against.is_some())
}

/// The line to take home as a sentence; names of limiters stay as they are.
fn heading(outcome: &Outcome, text: &str) -> String {
    if outcome.lanes.iter().any(|lane| text.starts_with(&lane.label)) {
        return text.into();
    }
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn figures(outcome: &Outcome, caption: &Caption) -> String {
    let kind = if caption.of_rules { "rule" } else { "limiter" };
    let mut heads = vec![
        kind,
        "allowed",
        "denied",
        "share",
        "fullest window",
        "ended at",
        "at once",
        "first no",
        "starved",
        "fairness",
        "keys hit",
    ];
    heads.extend(if compares(outcome) { &["too many", "too few"][..] } else { &["bytes a key"] });
    let cells = |tag: &str, cells: &[String]| {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect::<String>()
    };
    let heads: Vec<String> = heads.into_iter().map(String::from).collect();
    let mut html = format!(
        "<h2>Figures</h2><div class=\"wide\"><table><thead><tr>{}</tr></thead><tbody>",
        cells("th", &heads)
    );
    for lane in &outcome.lanes {
        let _ = write!(html, "<tr>{}</tr>", cells("td", &row(lane, compares(outcome))));
    }
    html + "</tbody></table></div>"
}

fn row(lane: &LaneOutcome, compares: bool) -> Vec<String> {
    let none = || "–".to_string();
    let worst = lane.worst.as_ref();
    let mut row = vec![
        lane.label.clone(),
        count(lane.allowed),
        count(lane.denied),
        percent(lane.denied_share()),
        worst.map_or_else(none, |worst| match lane.limit {
            Some(limit) => format!("{} in {}", count(worst.amount), limit.period()),
            None => count(worst.amount),
        }),
        worst.map_or_else(none, |worst| about(worst.at)),
        count(lane.most_at_once),
        lane.first_denial.map_or_else(|| "never".into(), about),
        lane.starved.as_ref().map_or_else(none, |s| about(Micros(s.amount))),
        lane.fairness.map_or_else(none, |fairness| format!("{fairness:.3}")),
        count(lane.keys_hit),
    ];
    if compares {
        let against = lane.against.as_ref();
        row.push(against.map_or_else(none, |a| count(a.wrongly_allowed)));
        row.push(against.map_or_else(none, |a| count(a.wrongly_denied)));
    } else {
        let bytes = lane.state_bytes_per_key;
        row.push(bytes.map_or_else(none, |bytes| count(bytes.round() as u64)));
    }
    row
}

/// By the first limiter that denies anybody: one table of names is enough.
fn most_denied(outcome: &Outcome) -> String {
    let denies = |lane: &&LaneOutcome| !lane.most_denied.is_empty() && outcome.keys > 1;
    let Some(lane) = outcome.lanes.iter().find(denies) else { return String::new() };
    let mut html = format!(
        "<h2>Denied most by {}</h2><div class=\"wide\"><table><thead><tr><th>key</th>\
         <th>requests</th><th>denied</th><th>share</th></tr></thead><tbody>",
        escaped(&lane.label)
    );
    for key in &lane.most_denied {
        let all = key.allowed + key.denied;
        let _ = write!(
            html,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&key.key),
            count(all),
            count(key.denied),
            percent(key.denied as f64 / all.max(1) as f64)
        );
    }
    html + "</tbody></table></div>"
}
