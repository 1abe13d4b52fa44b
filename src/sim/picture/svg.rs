//! The picture as SVG, drawn by hand: a chart for each limiter over the same time axis, what passed
//! in front of what came. It follows the reader's light or dark.

use std::fmt::Write;

use super::{Caption, ticks};
use crate::engine::clock::Micros;
use crate::output::{about, count};
use crate::sim::outcome::{LaneOutcome, Outcome};
use crate::sim::so_what::percent;
use crate::sim::timeline::Bin;

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const CHART: f64 = 56.0;
const LANE: f64 = 100.0;
const COLUMNS: usize = 240;
/// Characters of a line of text at its size.
const LINE: usize = 118;

const STYLE: &str = "\
.page{fill:#ffffff}.ink{fill:#1c2733}.soft{fill:#5b6875}.line{stroke:#d5dbe1;stroke-width:1}\
.passed{fill:#2b8a5f}.denied{fill:#d9534a}.ground{fill:#f3f5f7}\
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
.name{font-size:14px;font-weight:600}.figures,.axis{font-size:12px}.head{font-size:13px}\
.what{font-size:15px;font-weight:600}\
@media (prefers-color-scheme:dark){.page{fill:#12181f}.ink{fill:#e8edf2}.soft{fill:#9aa7b4}\
.line{stroke:#33404d}.passed{fill:#46b98a}.denied{fill:#ef7168}.ground{fill:#1b232c}}";

/// A file of its own.
pub fn draw(outcome: &Outcome, caption: &Caption) -> String {
    let mut body = String::new();
    let mut y = MARGIN + 8.0;
    for line in lines(&caption.so_what, LINE - 12) {
        text(&mut body, MARGIN, y, "what ink", &line);
        y += 20.0;
    }
    for line in lines(&caption.headline(outcome), LINE) {
        text(&mut body, MARGIN, y, "head soft", &line);
        y += 18.0;
    }
    let (charts, bottom) = charts(outcome, y + 6.0);
    wrap(&(body + &charts), bottom + MARGIN, &caption.so_what)
}

/// Only the charts, for a page that says the rest itself.
pub fn charts_alone(outcome: &Outcome, caption: &Caption) -> String {
    let (charts, bottom) = charts(outcome, 8.0);
    wrap(&charts, bottom + 8.0, &caption.so_what)
}

fn wrap(body: &str, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\" role=\"img\"><title>{}</title><style>{STYLE}</style>\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height:.0}\"/>{body}</svg>\n",
        escaped(title)
    )
}

fn charts(outcome: &Outcome, top: f64) -> (String, f64) {
    let mut svg = String::new();
    let lanes: Vec<(&LaneOutcome, Vec<Bin>)> = outcome
        .lanes
        .iter()
        .map(|lane| (lane, lane.timeline.columns(outcome.end, COLUMNS).0))
        .collect();
    let scale = Scale::of(&lanes);
    let mut y = top;
    for (lane, bins) in &lanes {
        text(&mut svg, MARGIN, y + 14.0, "name ink", &lane.label);
        text(&mut svg, MARGIN, y + 30.0, "figures soft", &figures(lane));
        let floor = y + 36.0 + CHART;
        let _ = write!(
            svg,
            "<rect class=\"ground\" x=\"{MARGIN}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{CHART}\"/>",
            floor - CHART,
            WIDTH - 2.0 * MARGIN
        );
        area(&mut svg, bins, floor, scale, "denied", |bin| bin.offered);
        area(&mut svg, bins, floor, scale, "passed", |bin| bin.allowed);
        y += LANE + 10.0;
    }
    y -= 8.0;
    axis(&mut svg, outcome, y);
    let each = outcome.end.saturating_sub(outcome.start).0 as f64 / COLUMNS as f64;
    let most = scale.most;
    let rate = if each > 0.0 { most as f64 * Micros::SECOND.0 as f64 / each } else { 0.0 };
    let legend = y + 42.0;
    let _ = write!(
        svg,
        "<rect class=\"passed\" x=\"{MARGIN}\" y=\"{:.1}\" width=\"12\" height=\"12\"/>\
         <rect class=\"denied\" x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\"/>",
        legend - 10.0,
        MARGIN + 86.0,
        legend - 10.0
    );
    text(&mut svg, MARGIN + 18.0, legend, "axis soft", "passed");
    text(&mut svg, MARGIN + 104.0, legend, "axis soft", "denied");
    let told = format!(
        "full height: {} requests in {}, {}/s{}",
        count(most),
        about(Micros(each as u64)),
        super::rate(rate),
        if scale.by_root {
            "; heights are square roots, so that little is seen beside much"
        } else {
            ""
        }
    );
    text(&mut svg, MARGIN + 172.0, legend, "axis soft", &told);
    (svg, legend + 4.0)
}

fn figures(lane: &LaneOutcome) -> String {
    let mut text = format!(
        "{} passed, {} denied ({})",
        count(lane.allowed),
        count(lane.denied),
        percent(lane.denied_share())
    );
    if let (Some(worst), Some(limit)) = (&lane.worst, lane.limit) {
        text += &format!(
            ", fullest {}: {} (limit {})",
            limit.period(),
            count(worst.amount),
            count(limit.requests())
        );
    }
    if let Some(starved) = &lane.starved {
        text += &format!(", starved for {}", about(Micros(starved.amount)));
    }
    text
}

/// How high a number is drawn.
#[derive(Clone, Copy)]
struct Scale {
    most: u64,
    /// Where peaks stand far above the rest.
    by_root: bool,
}

impl Scale {
    fn of(lanes: &[(&LaneOutcome, Vec<Bin>)]) -> Scale {
        let offered = || lanes.iter().flat_map(|(_, bins)| bins).map(|bin| bin.offered);
        let most = offered().max().unwrap_or(0);
        let mean = offered().sum::<u64>() as f64 / offered().count().max(1) as f64;
        Scale { most, by_root: most as f64 > 12.0 * mean }
    }

    fn height(self, value: u64) -> f64 {
        let share = value as f64 / self.most.max(1) as f64;
        (if self.by_root { share.sqrt() } else { share }) * CHART
    }
}

/// One filled shape of steps.
fn area(
    svg: &mut String,
    bins: &[Bin],
    floor: f64,
    scale: Scale,
    class: &str,
    value: impl Fn(&Bin) -> u64,
) {
    let step = (WIDTH - 2.0 * MARGIN) / bins.len().max(1) as f64;
    let _ = write!(svg, "<path class=\"{class}\" d=\"M{MARGIN} {floor:.1}");
    let mut last = 0;
    for (column, bin) in bins.iter().enumerate() {
        let value = value(bin);
        // A step is drawn where something changes.
        if value != last {
            let x = MARGIN + column as f64 * step;
            let _ = write!(svg, "H{x:.1}V{:.1}", floor - scale.height(value));
            last = value;
        }
    }
    let _ = write!(svg, "H{:.1}V{floor:.1}Z\"/>", WIDTH - MARGIN);
}

fn axis(svg: &mut String, outcome: &Outcome, y: f64) {
    let length = outcome.end.saturating_sub(outcome.start);
    let wide = WIDTH - 2.0 * MARGIN;
    let _ = write!(
        svg,
        "<line class=\"line\" x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
        WIDTH - MARGIN
    );
    for tick in ticks(length, 10) {
        let x = MARGIN + wide * tick.0 as f64 / length.0.max(1) as f64;
        if x > WIDTH - MARGIN + 0.5 {
            continue;
        }
        let _ = write!(
            svg,
            "<line class=\"line\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\"/>",
            y + 5.0
        );
        let anchor = match x {
            x if x < MARGIN + 10.0 => "start",
            x if x > WIDTH - MARGIN - 20.0 => "end",
            _ => "middle",
        };
        let word = if tick == Micros::ZERO { "0".into() } else { tick.to_string() };
        let _ = write!(
            svg,
            "<text class=\"axis soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{word}</text>",
            y + 19.0
        );
    }
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let _ =
        write!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(words));
}

/// Text that others chose, harmless in XML: also without characters that it forbids.
pub fn escaped(text: &str) -> String {
    let shown = crate::output::Untrusted(text).to_string();
    let mut safe = String::with_capacity(shown.len());
    for c in shown.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

fn lines(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(word.into());
        } else if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_chose_stays_text() {
        assert_eq!(
            escaped("<script>alert('&\"')</script>\u{1b}[2J\u{202e}"),
            "&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;\\u{1b}[2J\\u{202e}"
        );
    }
}
