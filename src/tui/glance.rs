//! The dashboard's picture without a screen: what gateways say at one moment, put together and judged
//! in the same way.

use super::data::{Point, Source};
use super::merge::{Heard, merge, merge_past};
use super::verdict::{Situation, Verdict, verdict};
use super::wire::Told;

/// What the gateway at an address said of itself (`/api/v1/stats`), or why it did not.
pub type Said = (String, Result<String, String>);

pub fn glance(said: &[Said], now_us: u64) -> Verdict {
    let heard: Vec<Heard> = said.iter().map(|(at, text)| heard(at, text, now_us)).collect();
    let told = heard.iter().filter_map(|heard| heard.told.as_ref());
    let mut past = merge_past(told.map(|told| told.past.as_slice()));
    let now = merge(&heard, &[], None, now_us);
    past.push(Point::of(&now));
    verdict(&Situation { now: &now, past: &past })
}

fn heard(at: &str, said: &Result<String, String>, now_us: u64) -> Heard {
    let read = |text: &String| Told::read(text, at, now_us).map_err(|error| error.to_string());
    let (told, trouble) = match said.as_ref().map_err(String::clone).and_then(read) {
        Ok(told) => (Some(told), None),
        Err(why) => (None, Some(why)),
    };
    let heard_us = told.as_ref().map(|_| now_us);
    Heard { source: Source { name: format!("gateway {at}"), heard_us, trouble }, told }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::verdict::{Alarm, Cause};

    #[test]
    fn what_the_screen_would_say_is_said() {
        let at = || "http://a".to_string();
        let down = r#"{"gateway": "a", "policy": {"version": 1}, "rates": {"last_second":
            {"decided": 9, "allowed": 9, "modes": {"open": 9}}}, "store":
            [{"shard": "s:1", "breaker": "open", "down_since_us": 5000000, "trouble": "refused"}]}"#;
        let judged = glance(&[(at(), Ok(down.into()))], 6_000_000);
        assert_eq!((judged.cause, judged.since_us), (Cause::Redis, Some(5_000_000)));
        assert!(judged.shout.unwrap().starts_with("LIMITS ARE NOT ENFORCED"));
        let fine = r#"{"gateway": "b", "policy": {"version": 1}}"#;
        let silent = || (at(), Err("refused".to_string()));
        let judged = glance(&[(at(), Ok(fine.into())), silent()], 6_000_000);
        assert_eq!((judged.cause, judged.alarm), (Cause::NothingWrong, Alarm::Watch));
        assert_eq!(glance(&[silent()], 6_000_000).cause, Cause::NoData);
        assert_eq!(glance(&[(at(), Ok("no stats".into()))], 6_000_000).cause, Cause::NoData);
    }
}
