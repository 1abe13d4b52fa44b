//! The report of a run, for people and for programs.

use serde::Serialize;

use super::{Context, Failure, print};
use crate::engine::clock::Micros;
use crate::load::answer::Outcome;
use crate::load::collect::Second;
use crate::load::keys::Audit;
use crate::load::report::{Expectation, LimiterReport, Percentiles, Report};
use crate::output::{Column, Format, List, Row, Tone, Untrusted, about};

pub(super) fn print_report(
    context: &Context,
    report: &Report,
    seconds: &[Second],
) -> Result<(), Failure> {
    if context.look.format == Format::Csv {
        let rows: Vec<SecondRow> = seconds.iter().map(SecondRow::of).collect();
        return context.print_list(&List::new(&rows), "");
    }
    if !context.look.format.is_for_people() {
        return context.print_one(report, String::new);
    }
    let mut text = opening(report);
    text += &times(context, report)?;
    text += &client(report);
    text += &limiter(context, &report.limiter);
    for expectation in &report.expectations {
        text += &expected(context, expectation);
    }
    print(&text)
}

/// What must not be overlooked, on stderr.
pub(super) fn warn(context: &Context, report: &Report) {
    if report.client_bound {
        let late = report.send_lateness_p99_us.map_or(String::new(), |us| {
            format!(", and sent up to {} late (p99) with a connection free", time(us))
        });
        context.note(format!(
            "CLIENT-BOUND: this client was {:.0} % busy{late}; times and rates are rather its own \
             than the target's. Give it a core of its own, less to do, or more --workers",
            report.client_busy_percent.max(report.client_cpu_percent)
        ));
    }
    if let Some(trouble) = &report.trouble {
        let trouble = Untrusted(trouble);
        context.note(match report.reconnects {
            0 => format!("the last trouble: {trouble}"),
            1 => format!("a connection was lost: {trouble}"),
            many => format!("{many} connections were lost; the last trouble: {trouble}"),
        });
    }
    if report.not_sent > 0 && !report.interrupted {
        context.note(format!(
            "{} planned requests were never sent: their response times are missing above, and \
             would be the longest",
            report.not_sent
        ));
    }
}

/// One second as a line of CSV.
#[derive(Serialize)]
struct SecondRow {
    until_us: u64,
    sent: u64,
    allowed: u64,
    limited: u64,
    shed: u64,
    error: u64,
    timeout: u64,
    p50_us: Option<u64>,
    p99_us: Option<u64>,
    max_us: Option<u64>,
}

impl SecondRow {
    fn of(second: &Second) -> SecondRow {
        let [allowed, limited, shed, error, timeout] = second.counts;
        SecondRow {
            until_us: second.until_us,
            sent: second.sent,
            allowed,
            limited,
            shed,
            error,
            timeout,
            p50_us: second.p50_us,
            p99_us: second.p99_us,
            max_us: second.max_us,
        }
    }
}

impl Row for SecondRow {
    fn columns() -> Vec<Column<SecondRow>> {
        vec![
            Column::number("UNTIL", |row: &SecondRow| about(Micros(row.until_us))),
            Column::number("SENT", |row| row.sent.to_string()),
            Column::number("ALLOWED", |row| row.allowed.to_string()),
            Column::number("LIMITED", |row| row.limited.to_string()),
        ]
    }

    const FIELDS: &'static [&'static str] = &[
        "until_us", "sent", "allowed", "limited", "shed", "error", "timeout", "p50_us", "p99_us",
        "max_us",
    ];
}

fn opening(report: &Report) -> String {
    let elapsed = about(Micros(report.elapsed_us));
    let cut = if report.interrupted { ", interrupted" } else { "" };
    let mut text = format!(
        "{} loop, {elapsed}{cut}: {}\n",
        report.mode.replace("replay", "replay, open"),
        Untrusted(&report.target)
    );
    match (report.planned, report.planned_rps) {
        (Some(planned), Some(rps)) => {
            let due = planned.saturating_sub(report.held_back);
            let sent = due.saturating_sub(report.not_sent);
            text += &format!(
                "delivered {sent} of {due} planned requests ({}), {}/s of {}/s\n",
                percent(sent, due),
                rate(report.delivered_rps),
                rate(rps)
            );
        }
        _ => text += &format!("sent {}, {}/s\n", report.sent, rate(report.delivered_rps)),
    }
    if report.held_back + report.retries > 0 {
        text +=
            &format!("clients held back {} and sent {} again\n", report.held_back, report.retries);
    }
    text + "\n"
}

/// Two lines for every outcome that there was.
fn times(context: &Context, report: &Report) -> Result<String, Failure> {
    let all: u64 = report.outcomes.each().iter().map(|(_, outcome)| outcome.count).sum();
    let mut rows = Vec::new();
    for (outcome, of) in report.outcomes.each() {
        if of.count == 0 && outcome != Outcome::Allowed {
            continue;
        }
        let (count, share) = (of.count.to_string(), percent(of.count, all));
        let outcome = outcome.name();
        rows.push(TimesRow { outcome, count, share, time: "response", of: of.response });
        let (count, share) = (String::new(), String::new());
        rows.push(TimesRow { outcome: "", count, share, time: "service", of: of.service });
    }
    Ok(List::new(&rows).render(context.look, false)? + "\n")
}

/// One line of the table of times.
#[derive(Serialize)]
struct TimesRow {
    outcome: &'static str,
    count: String,
    share: String,
    time: &'static str,
    of: Percentiles,
}

impl Row for TimesRow {
    fn columns() -> Vec<Column<TimesRow>> {
        vec![
            Column::new("OUTCOME", |row: &TimesRow| row.outcome.into()),
            Column::number("COUNT", |row| row.count.clone()),
            Column::number("SHARE", |row| row.share.clone()),
            Column::new("TIME", |row| row.time.into()),
            Column::number("P50", |row| shown(row.of.p50_us)),
            Column::number("P90", |row| shown(row.of.p90_us)),
            Column::number("P99", |row| shown(row.of.p99_us)),
            Column::number("P99.9", |row| shown(row.of.p999_us)),
            Column::number("MAX", |row| shown(row.of.max_us)),
        ]
    }

    const FIELDS: &'static [&'static str] = &["outcome", "count", "share", "time", "of"];
}

fn shown(us: Option<u64>) -> String {
    us.map_or("-".into(), time)
}

fn time(us: u64) -> String {
    if us == 0 { "<1us".into() } else { about(Micros(us)) }
}

fn client(report: &Report) -> String {
    let lag = match (report.schedule_lag_p50_us, report.schedule_lag_p99_us) {
        (Some(p50), Some(p99)) => format!("sent {} late (p50), {} (p99); ", time(p50), time(p99)),
        _ => String::new(),
    };
    format!("schedule  {lag}client busy {:.0} %\n", report.client_busy_percent)
}

fn limiter(context: &Context, limiter: &LimiterReport) -> String {
    let mut text = format!("limiter   {}\n", configured(limiter));
    let mut line = |words: String| text += &format!("          {words}\n");
    line(match limiter.expected_admitted {
        Some(expected) => format!(
            "offered {}, admitted {}; that limit admits {expected} of them ({})",
            limiter.offered,
            limiter.admitted,
            deviation(limiter.admitted, expected)
        ),
        None => format!("offered {}, admitted {}", limiter.offered, limiter.admitted),
    });
    if let Some(worst) = &limiter.worst_window {
        let found = format!(
            "worst {}: {} admitted to {}",
            Micros(worst.window_us),
            worst.admitted,
            Untrusted(&worst.key)
        );
        line(match (worst.bound, worst.over) {
            (Some(bound), Some(0)) => format!("{found}, at most {bound}: holds"),
            (Some(bound), Some(over)) => {
                let word = context.paint(Tone::Bad, "OVER-ADMITTED");
                format!("{found}, at most {bound}: {word} by {over}")
            }
            _ => found,
        });
    }
    if let Some(fairness) = limiter.fairness.filter(|_| limiter.keys > 1) {
        line(format!("fairness {fairness} over {} keys (1 is even)", limiter.keys));
    }
    if limiter.keys_not_seen > 0 {
        line(format!("{} more keys were not looked at one by one", limiter.keys_not_seen));
    }
    if let Some(first) = limiter.first_limited_us {
        line(format!("first 429 after {}", about(Micros(first))));
    }
    match &limiter.headers {
        Some(audit) => headers(audit).into_iter().for_each(line),
        None => line("headers are not judged: several workers share the keys".into()),
    }
    text
}

fn configured(limiter: &LimiterReport) -> String {
    let Some(configured) = &limiter.configured else {
        return "its limit is not known; say it with --limit L/P".into();
    };
    let period = configured.period_us.map_or("an unknown time".into(), |us| Micros(us).to_string());
    let burst = configured.burst.filter(|burst| *burst != configured.limit);
    let burst = burst.map_or(String::new(), |burst| format!(" burst {burst}"));
    let algorithm = configured.algorithm.as_ref().map_or(String::new(), |name| format!(" {name}"));
    format!("{}/{period}{burst}{algorithm} (from {})", configured.limit, configured.source)
}

/// One line for each kind of header that was there.
fn headers(audit: &Audit) -> Vec<String> {
    let mut lines = Vec::new();
    if audit.limited_without_retry_after > 0 {
        lines.push(format!("{} 429s without Retry-After", audit.limited_without_retry_after));
    }
    if audit.retry_after_judged > 0 {
        let false_ = audit.retry_after_too_short + audit.retry_after_too_long;
        lines.push(format!(
            "Retry-After true {} of {} times ({} too short, {} over a second too long)",
            audit.retry_after_judged - false_,
            audit.retry_after_judged,
            audit.retry_after_too_short,
            audit.retry_after_too_long
        ));
    }
    if audit.remaining_judged > 0 {
        lines.push(match audit.remaining_rose {
            0 => {
                format!("Remaining never rose without time to, in {} steps", audit.remaining_judged)
            }
            n => format!("Remaining ROSE without time to, {n} of {} times", audit.remaining_judged),
        });
    }
    if audit.reset_judged > 0 {
        lines.push(match audit.reset_in_the_past {
            0 => format!("Reset was never in the past, in {} answers", audit.reset_judged),
            n => format!("Reset was IN THE PAST in {n} of {} answers", audit.reset_judged),
        });
    }
    lines
}

fn expected(context: &Context, expectation: &Expectation) -> String {
    let word = match expectation.met {
        true => context.paint(Tone::Good, "met     "),
        false => context.paint(Tone::Bad, "NOT MET "),
    };
    format!("{word}  {}: {}\n", Untrusted(&expectation.expression), Untrusted(&expectation.message))
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.2} %", part as f64 * 100.0 / whole as f64) }
}

fn deviation(found: u64, expected: u64) -> String {
    if expected == 0 {
        return if found == 0 { "the same".into() } else { format!("{found} too many") };
    }
    format!("{:+.2} %", (found as f64 / expected as f64 - 1.0) * 100.0)
}

fn rate(per_second: f64) -> String {
    if per_second >= 100.0 { format!("{per_second:.0}") } else { format!("{per_second:.1}") }
}
