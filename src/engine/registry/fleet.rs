//! The processes that enforce, as they see each other: each says that it is there, and who was not
//! heard of for ten seconds is gone. Limits are shared among them while the store is away.

use serde::{Deserialize, Serialize};

use super::data::us;
use crate::engine::clock::Micros;

/// Who was heard of within this counts.
pub const HEARD_WITHIN: Micros = Micros(10 * Micros::SECOND.0);
/// Who was not for this long is forgotten.
const FORGOTTEN_AFTER: Micros = Micros::HOUR;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// One run of a process.
    pub id: String,
    /// When it was last heard of, on the store's clock.
    #[serde(rename = "seen_us", with = "us")]
    pub seen: Micros,
    /// What it says of itself: version, addresses, policy, mode.
    pub about: serde_json::Value,
}

/// Everyone heard of within the last hour, oldest id first.
pub(crate) fn known(all: Vec<(String, Vec<u8>)>, now: Micros) -> Vec<Member> {
    let told = all.into_iter().filter_map(|(_, text)| serde_json::from_slice(&text).ok());
    let is_known = |member: &Member| now.saturating_sub(member.seen) < FORGOTTEN_AFTER;
    let mut members: Vec<Member> = told.filter(is_known).collect();
    members.sort_by(|a, b| a.id.cmp(&b.id));
    members
}

/// Those that are there, oldest id first; and the names of those to be forgotten.
pub(crate) fn living(all: Vec<(String, Vec<u8>)>, now: Micros) -> (Vec<Member>, Vec<String>) {
    let (mut members, mut gone) = (Vec::new(), Vec::new());
    for (id, text) in all {
        let member = serde_json::from_slice::<Member>(&text).ok();
        let silent_for = member.as_ref().map(|member| now.saturating_sub(member.seen));
        match (member, silent_for) {
            (Some(member), Some(silent)) if silent < HEARD_WITHIN => members.push(member),
            (_, Some(silent)) if silent < FORGOTTEN_AFTER => {}
            _ => gone.push(id),
        }
    }
    members.sort_by(|a, b| a.id.cmp(&b.id));
    (members, gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silent_do_not_count_and_are_forgotten_in_the_end() {
        let now = Micros(10 * Micros::HOUR.0);
        let said = |id: &str, silent: Micros| {
            let member =
                Member { id: id.into(), seen: now - silent, about: serde_json::Value::Null };
            (id.to_string(), serde_json::to_vec(&member).unwrap())
        };
        let all = vec![
            said("b", Micros::SECOND),
            said("a", Micros(9 * Micros::SECOND.0)),
            said("late", HEARD_WITHIN),
            said("old", Micros(2 * Micros::HOUR.0)),
            ("broken".into(), b"{".to_vec()),
        ];
        let ids = |members: &[Member]| members.iter().map(|m| m.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&known(all.clone(), now)), ["a", "b", "late"]);
        let (members, gone) = living(all, now);
        assert_eq!(ids(&members), ["a", "b"]);
        assert_eq!(gone, ["old", "broken"]);
    }
}
