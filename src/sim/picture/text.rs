//! The picture in a terminal of 80 columns: what came, a lane for each limiter, the figures, and one
//! line of what to take home. With colours blocks as high as what came; without plain ASCII.

use unicode_width::UnicodeWidthStr;

use super::{Caption, Fate, rate, ticks};
use crate::engine::clock::Micros;
use crate::output::format::Tone;
use crate::output::{Untrusted, about, count};
use crate::sim::outcome::{LaneOutcome, Outcome};
use crate::sim::so_what::percent;
use crate::sim::timeline::Bin;

const WIDTH: usize = 80;
const MAX_LABEL: usize = 22;
/// Whoever writes a log chooses its keys.
const MAX_KEY: usize = 60;
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The same in ASCII: what is high is dark.
const SHADES: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '%', '@'];

pub fn draw(outcome: &Outcome, caption: &Caption, colours: bool) -> String {
    let mut text = wrapped(&caption.headline(outcome), "");
    for note in &caption.notes {
        text += &wrapped(&format!("input: {note}"), "  ");
    }
    if outcome.requests == 0 {
        return text + "\n" + &wrapped(&format!("so what: {}", caption.so_what), "");
    }
    text += "\n";
    text += &lanes(outcome, colours);
    text += "\n";
    text += &what_passed(outcome, caption, colours);
    text += "\n";
    text += &who_felt_it(outcome, caption, colours);
    if let Some(most) = most_denied(outcome) {
        text += &format!("\n{most}");
    }
    text += "\n";
    text + &wrapped(&format!("so what: {}", caption.so_what), "")
}

fn label(lane: &LaneOutcome) -> String {
    Untrusted(&lane.label).to_string()
}

/// Labels that fit into a table. Where they do not, the words go that all of them begin with: what
/// is left tells them apart.
fn labels(outcome: &Outcome) -> Vec<String> {
    let whole: Vec<String> = outcome.lanes.iter().map(label).collect();
    let words = |text: &str| text.split_inclusive(' ').map(String::from).collect::<Vec<_>>();
    let first = whole.first().map(|label| words(label)).unwrap_or_default();
    let shared = |n: &usize| {
        let prefix = first[..*n].concat();
        whole.iter().all(|label| label.len() > prefix.len() && label.starts_with(&prefix))
    };
    let fits = whole.len() < 2 || whole.iter().all(|label| label.width() <= MAX_LABEL);
    let cut = if fits { 0 } else { (0..first.len()).rev().find(shared).unwrap_or(0) };
    let cut = first[..cut].concat().len();
    whole.iter().map(|label| short(&label[cut..], MAX_LABEL)).collect()
}

fn padded(text: &str, width: usize) -> String {
    let room = width.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(room))
}

/// The picture proper.
fn lanes(outcome: &Outcome, colours: bool) -> String {
    let labels = labels(outcome);
    let widest = labels.iter().map(|label| label.width()).max().unwrap_or(0);
    let left = widest.max("offered".len()) + 1;
    let columns = WIDTH - left;
    let length = outcome.end.saturating_sub(outcome.start);
    let mut text = " ".repeat(left) + &axis(length, columns) + "\n";
    let (offered, each) = outcome.timeline.columns(outcome.end, columns);
    let most = offered.iter().map(|bin| bin.offered).max().unwrap_or(0);
    let row: String = offered.iter().map(|bin| height(bin.offered, most, colours)).collect();
    text += &format!("{}{}\n", padded("offered", left), row.trim_end());
    for (lane, label) in outcome.lanes.iter().zip(&labels) {
        let (bins, _) = lane.timeline.columns(outcome.end, columns);
        let row = marks(&bins, colours);
        text += &format!("{}{}\n", padded(label, left), row.trim_end());
    }
    let per_second = most as f64 * Micros::SECOND.0 as f64 / each.0 as f64;
    let key = if colours {
        let paint = |tone: Tone, word: &str| tone.paint(word, true);
        format!(
            "{} all passed  {} some  {} none",
            paint(Tone::Good, "▇"),
            paint(Tone::Warning, "▄"),
            paint(Tone::Bad, "▁")
        )
    } else {
        "# all passed  + some  x none".into()
    };
    let scale = format!(
        "a column is {}; at most {} came in one of them, {}/s",
        about(each),
        count(most),
        rate(per_second)
    );
    text + &format!("{key}\n{scale}\n")
}

fn short(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.into();
    }
    let mut kept = String::new();
    for c in text.chars() {
        if kept.width() + 2 > width {
            break;
        }
        kept.push(c);
    }
    kept + "~"
}

/// Times above the columns where they are.
fn axis(length: Micros, columns: usize) -> String {
    let mut line = vec![' '; columns];
    let mut free = 0;
    for tick in ticks(length, columns / 9) {
        let at = (u128::from(tick.0) * columns as u128 / u128::from(length.0.max(1))) as usize;
        let word = if tick == Micros::ZERO { "0".to_string() } else { tick.to_string() };
        // The last one may stand at the very end.
        let at = at.min(columns.saturating_sub(word.len()));
        if at < free {
            continue;
        }
        for (place, c) in word.chars().enumerate() {
            line[at + place] = c;
        }
        free = at + word.len() + 1;
    }
    line.into_iter().collect::<String>().trim_end().to_string()
}

/// Zero is nothing; whatever came is seen.
fn level(value: u64, most: u64) -> usize {
    if most == 0 { 0 } else { (u128::from(value) * 8).div_ceil(u128::from(most)) as usize }
}

fn height(value: u64, most: u64, colours: bool) -> String {
    let marks = if colours { BLOCKS } else { SHADES };
    marks[level(value, most)].to_string()
}

/// A lane; columns of the same fate are painted as one.
fn marks(bins: &[Bin], colours: bool) -> String {
    let fates: Vec<Fate> = bins.iter().map(|bin| Fate::of(*bin)).collect();
    let painted = fates.chunk_by(|a, b| a == b).map(|run| {
        // Heights say the same as colours, for those who do not tell red from green; none is quite
        // full, so that lanes stay apart.
        let (plain, block, tone) = match run[0] {
            Fate::Nothing => (" ", " ", Tone::Plain),
            Fate::All => ("#", "▇", Tone::Good),
            Fate::Some => ("+", "▄", Tone::Warning),
            Fate::None => ("x", "▁", Tone::Bad),
        };
        tone.paint(&(if colours { block } else { plain }).repeat(run.len()), colours)
    });
    painted.collect()
}

/// A table: the first column to the left, the others to the right.
fn table(head: &[&str], rows: &[Vec<String>], colours: bool) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].width());
        cells.chain([head[column].width()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<String>| {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let room = " ".repeat(width.saturating_sub(cell.width()));
            line += &if column == 0 { format!("{cell}{room}") } else { format!("  {room}{cell}") };
        }
        line.trim_end().to_string()
    };
    let titles =
        Tone::Strong.paint(&line(head.iter().map(|title| title.to_string()).collect()), colours);
    let rows: String = rows.iter().map(|row| line(row.clone()) + "\n").collect();
    format!("{titles}\n{rows}")
}

fn what_passed(outcome: &Outcome, caption: &Caption, colours: bool) -> String {
    let first = outcome.lanes.first().and_then(|lane| lane.limit).map(|limit| limit.period());
    let same = outcome.lanes.iter().all(|lane| lane.limit.map(|l| l.period()) == first);
    let worst = match first {
        Some(period) if same => format!("WORST/{period}"),
        _ => "WORST".into(),
    };
    let kind = if caption.of_rules { "RULE" } else { "LIMITER" };
    let head = [kind, "ALLOWED", "DENIED", "DENIED %", worst.as_str(), "UP TO", "AT ONCE"];
    let rows: Vec<Vec<String>> = outcome
        .lanes
        .iter()
        .zip(labels(outcome))
        .map(|(lane, label)| {
            let worst = lane.worst.as_ref();
            vec![
                label,
                count(lane.allowed),
                count(lane.denied),
                percent(lane.denied_share()).trim_end_matches(" %").to_string(),
                worst.map_or("-".into(), |worst| count(worst.amount)),
                worst.map_or("-".into(), |worst| about(worst.at)),
                count(lane.most_at_once),
            ]
        })
        .collect();
    table(&head, &rows, colours)
}

fn who_felt_it(outcome: &Outcome, caption: &Caption, colours: bool) -> String {
    let compares = outcome.lanes.iter().any(|lane| lane.against.is_some());
    let kind = if caption.of_rules { "RULE" } else { "LIMITER" };
    let mut head = vec![kind, "FIRST NO", "STARVED", "FAIRNESS", "KEYS HIT"];
    head.push(if compares { "TOO MANY" } else { "BYTES/KEY" });
    if compares {
        head.push("TOO FEW");
    }
    let rows: Vec<Vec<String>> = outcome
        .lanes
        .iter()
        .zip(labels(outcome))
        .map(|(lane, label)| {
            let mut row = vec![
                label,
                lane.first_denial.map_or("never".into(), about),
                lane.starved.as_ref().map_or("-".into(), |s| about(Micros(s.amount))),
                lane.fairness.map_or("-".into(), |fairness| format!("{fairness:.3}")),
                count(lane.keys_hit),
            ];
            if compares {
                let against = lane.against.as_ref();
                row.push(against.map_or("-".into(), |a| count(a.wrongly_allowed)));
                row.push(against.map_or("-".into(), |a| count(a.wrongly_denied)));
            } else {
                row.push(
                    lane.state_bytes_per_key
                        .map_or("-".into(), |bytes| count(bytes.round() as u64)),
                );
            }
            row
        })
        .collect();
    table(&head, &rows, colours)
}

/// Who was denied most often, by the first limiter that denies anybody.
fn most_denied(outcome: &Outcome) -> Option<String> {
    if outcome.keys < 2 {
        return None;
    }
    let lane = outcome.lanes.iter().find(|lane| !lane.most_denied.is_empty())?;
    let named = lane.most_denied.iter().take(5);
    let each: Vec<String> = named
        .map(|key| {
            format!(
                "{} {} of {}",
                short(&Untrusted(&key.key).to_string(), MAX_KEY),
                count(key.denied),
                count(key.allowed + key.denied)
            )
        })
        .collect();
    let by = if outcome.lanes.len() > 1 { format!(" by {}", label(lane)) } else { String::new() };
    Some(wrapped(&format!("denied most{by}: {}", each.join(", ")), "  "))
}

/// Lines of at most 80 columns; all but the first begin with `indent`.
pub fn wrapped(text: &str, indent: &str) -> String {
    let text = Untrusted(text).to_string();
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.trim().is_empty() && line.width() + 1 + word.width() > WIDTH {
            lines += &format!("{line}\n");
            line = format!("{indent}{word}");
        } else if line.is_empty() {
            line = word.to_string();
        } else {
            line = format!("{line} {word}");
        }
    }
    lines + &line + "\n"
}
