//! What each key was offered and admitted, and whether what it was told is true.
//!
//! A client does not know when a decision was taken, only that it was between sending and the
//! answer. So nothing is held against a limiter that this leaves open: a window counts only what was
//! both sent and answered within it, and headers of one key are compared only where its requests did
//! not overlap.

use std::collections::VecDeque;
use std::sync::Arc;

use super::answer::{Answer, Outcome, Told};
use super::feed::Shot;
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;
use crate::engine::store::{Check, MemoryStore, RuleLimit};
use crate::traffic::Keys;

/// Keys that are looked at one by one, about 150 bytes each; the rest are only counted.
pub const MAX_KEYS_SEEN: usize = 1_000_000;
/// How finely a window is cut.
const PIECES: u64 = 4_096;
const SECOND_NS: u64 = 1_000_000_000;

/// The limit that the target is said to have, deciding beside it on the same requests.
#[derive(Clone, Debug)]
pub struct Reference {
    pub store: Arc<MemoryStore>,
    pub limits: Arc<[Arc<RuleLimit>]>,
}

/// How a key table begins.
#[derive(Clone, Debug)]
pub struct KeysSetup {
    pub keys: Keys,
    /// The lengths of windows to look at.
    pub windows: Vec<Micros>,
    pub reference: Option<Reference>,
    /// Whether every request of a key goes through this table.
    pub exclusive: bool,
    /// The wall clock at the start.
    pub started: Micros,
}

/// How often headers were true, and how often not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Audit {
    /// Answers with Remaining, Limit or Reset.
    pub with_headers: u64,
    pub limited_without_retry_after: u64,
    /// Waits that were named and could be judged.
    pub retry_after_judged: u64,
    /// Refused again although the wait was over and nothing had been admitted.
    pub retry_after_too_short: u64,
    /// Admitted over a second before the wait was over.
    pub retry_after_too_long: u64,
    pub remaining_judged: u64,
    /// Went up without time to.
    pub remaining_rose: u64,
    pub reset_judged: u64,
    pub reset_in_the_past: u64,
}

impl Audit {
    pub fn add(&mut self, other: &Audit) {
        self.with_headers += other.with_headers;
        self.limited_without_retry_after += other.limited_without_retry_after;
        self.retry_after_judged += other.retry_after_judged;
        self.retry_after_too_short += other.retry_after_too_short;
        self.retry_after_too_long += other.retry_after_too_long;
        self.remaining_judged += other.remaining_judged;
        self.remaining_rose += other.remaining_rose;
        self.reset_judged += other.reset_judged;
        self.reset_in_the_past += other.reset_in_the_past;
    }
}

/// The most that one key was surely admitted within a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worst {
    pub window: Micros,
    pub admitted: u64,
    pub key: u32,
    /// When that window ended, since the start.
    pub until_ns: u64,
}

#[derive(Debug)]
pub struct KeyTable {
    setup: KeysSetup,
    seen: Vec<KeySeen>,
    identities: Vec<Option<Identity>>,
    pub audit: Audit,
    pub worst: Vec<Worst>,
    /// What the headers said last about the limit.
    pub told: Option<Told>,
    pub first_limited_ns: Option<u64>,
    /// What the reference would have let through, of what counts.
    pub reference_admitted: u64,
}

/// One key.
#[derive(Debug, Default)]
pub(super) struct KeySeen {
    pub(super) offered: u64,
    pub(super) admitted: u64,
    under_way: u32,
    /// Requests under way at once, since the last time there was none.
    overlaps: bool,
    remaining: Option<Remaining>,
    promise: Option<Promise>,
    windows: Vec<Sliding>,
}

#[derive(Clone, Copy, Debug)]
struct Remaining {
    left: u64,
    limit: u64,
    at_s: u64,
    reset_at_s: u64,
    /// Until then another rise needs no explanation: quota comes back in pieces.
    excused_until_s: u64,
}

/// "Come back then."
#[derive(Clone, Copy, Debug)]
struct Promise {
    until_ns: u64,
}

/// Admissions by the time they were sent, as far as they are within a window.
#[derive(Debug, Default)]
struct Sliding {
    pieces: VecDeque<(u64, u32)>,
    sum: u64,
    /// The most there ever were.
    most: u64,
}

impl Sliding {
    /// Another one, sent and answered at these times; how many are surely in the window before.
    fn admit(&mut self, sent_ns: u64, now_ns: u64, window_ns: u64) -> u64 {
        let piece = (window_ns / PIECES).max(1);
        let from = now_ns.saturating_sub(window_ns);
        let sent = sent_ns / piece * piece;
        while let Some((_, n)) = self.pieces.front().filter(|(first, _)| *first < from) {
            self.sum -= u64::from(*n);
            self.pieces.pop_front();
        }
        if sent < from {
            return self.sum;
        }
        // Answers come about in the order of sending, so its place is near the end.
        let later = self.pieces.iter().rev().take_while(|(piece, _)| *piece > sent).count();
        let place = self.pieces.len() - later;
        match place.checked_sub(1).and_then(|last| self.pieces.get_mut(last)) {
            Some((piece, n)) if *piece == sent => *n += 1,
            _ => self.pieces.insert(place, (sent, 1)),
        }
        self.sum += 1;
        self.most = self.most.max(self.sum);
        self.sum
    }
}

impl KeyTable {
    pub fn new(setup: KeysSetup) -> KeyTable {
        let tracked = setup.keys.count().min(MAX_KEYS_SEEN);
        let worst = |window: &Micros| Worst { window: *window, admitted: 0, key: 0, until_ns: 0 };
        KeyTable {
            seen: (0..tracked).map(|_| KeySeen::default()).collect(),
            identities: Vec::new(),
            audit: Audit::default(),
            worst: setup.windows.iter().map(worst).collect(),
            told: None,
            first_limited_ns: None,
            reference_admitted: 0,
            setup,
        }
    }

    pub(super) fn seen(&self) -> &[KeySeen] {
        &self.seen
    }

    /// How many keys there are beyond those that were looked at.
    pub fn not_seen(&self) -> usize {
        self.setup.keys.count() - self.seen.len()
    }

    pub fn is_exclusive(&self) -> bool {
        self.setup.exclusive
    }

    /// By how much each key exceeded `bound` in its worst window, summed.
    pub fn excess(&self, window: usize, bound: u64) -> u64 {
        let most = self.seen.iter().filter_map(|key| key.windows.get(window)).map(|w| w.most);
        most.map(|most| most.saturating_sub(bound)).sum()
    }

    pub(super) fn sent(&mut self, shot: &Shot, now_ns: u64, counts: bool) {
        if self.setup.reference.is_some() && self.reference_lets_through(shot.key, now_ns) && counts
        {
            self.reference_admitted += 1;
        }
        let Some(key) = self.seen.get_mut(shot.key as usize) else { return };
        key.overlaps = key.under_way > 0;
        key.under_way += 1;
        key.offered += u64::from(counts);
    }

    fn reference_lets_through(&mut self, key: u32, now_ns: u64) -> bool {
        let Some(reference) = &self.setup.reference else { return false };
        let at = key as usize;
        if self.identities.len() <= at {
            self.identities.resize(at + 1, None);
        }
        let keys = &self.setup.keys;
        let identity = self.identities[at].get_or_insert_with(|| opaque(&keys.name(key)));
        let at = Some(Micros(self.setup.started.0 + now_ns / 1_000));
        let check =
            Check { identity, limits: &reference.limits, cost: Cost::ONE, idempotency: None, at };
        reference.store.check(&check).is_ok_and(|answer| answer.allowed())
    }

    pub(super) fn done(
        &mut self,
        shot: &Shot,
        sent_ns: u64,
        now_ns: u64,
        answer: &Answer,
        counts: bool,
    ) {
        if answer.outcome == Outcome::Limited && self.first_limited_ns.is_none() {
            self.first_limited_ns = Some(now_ns);
        }
        let told = &answer.told;
        if told.remaining.is_some() || told.limit.is_some() || told.reset_at_s.is_some() {
            self.audit.with_headers += 1;
            self.told = Some(*told);
        }
        let Some(key) = self.seen.get_mut(shot.key as usize) else { return };
        key.under_way = key.under_way.saturating_sub(1);
        if answer.outcome == Outcome::Allowed {
            key.admitted += u64::from(counts);
            if key.windows.is_empty() {
                key.windows.resize_with(self.worst.len(), Sliding::default);
            }
            for (sliding, worst) in key.windows.iter_mut().zip(&mut self.worst) {
                let admitted = sliding.admit(sent_ns, now_ns, worst.window.0 * 1_000);
                if admitted > worst.admitted {
                    *worst = Worst { admitted, key: shot.key, until_ns: now_ns, ..*worst };
                }
            }
        }
        if self.setup.exclusive {
            let now_s = (self.setup.started.0 + now_ns / 1_000) / Micros::SECOND.0;
            key.audit(&mut self.audit, sent_ns, now_ns, now_s, answer);
        }
    }
}

/// What the reference knows a key as; a name that is no identity has a bucket like any other.
fn opaque(name: &str) -> Identity {
    Identity::opaque(name).unwrap_or_else(|_| Identity::everybody())
}

impl KeySeen {
    fn audit(&mut self, audit: &mut Audit, sent_ns: u64, now_ns: u64, now_s: u64, answer: &Answer) {
        let told = &answer.told;
        match answer.outcome {
            Outcome::Allowed => {
                if let Some(promise) = self.promise.take() {
                    audit.retry_after_judged += 1;
                    let early = promise.until_ns.saturating_sub(now_ns);
                    audit.retry_after_too_long += u64::from(early > SECOND_NS);
                }
            }
            Outcome::Limited => {
                let Some(seconds) = told.retry_after_s else {
                    audit.limited_without_retry_after += 1;
                    return;
                };
                if self.promise.is_some_and(|promise| sent_ns >= promise.until_ns) && !self.overlaps
                {
                    audit.retry_after_judged += 1;
                    audit.retry_after_too_short += 1;
                    self.promise = None;
                }
                // The first of several holds, as long as nothing was admitted.
                self.promise.get_or_insert(Promise {
                    until_ns: now_ns.saturating_add(seconds.saturating_mul(SECOND_NS)),
                });
            }
            _ => return,
        }
        self.audit_remaining(audit, now_s, told);
        if let (Some(reset), Some(left), Some(limit)) =
            (told.reset_at_s, told.remaining, told.limit)
            && left < limit
        {
            audit.reset_judged += 1;
            audit.reset_in_the_past += u64::from(reset + 1 < now_s);
        }
    }

    /// Remaining may go up only by what comes back in the time: evenly until Reset, or once in a
    /// while in one piece.
    fn audit_remaining(&mut self, audit: &mut Audit, now_s: u64, told: &Told) {
        let (Some(left), Some(limit), Some(reset_at_s)) =
            (told.remaining, told.limit, told.reset_at_s)
        else {
            return;
        };
        let before = self.remaining.replace(Remaining {
            left,
            limit,
            at_s: now_s,
            reset_at_s,
            excused_until_s: self.remaining.map_or(0, |before| before.excused_until_s),
        });
        let Some(before) = before.filter(|before| !self.overlaps && before.limit == limit) else {
            return;
        };
        audit.remaining_judged += 1;
        let whole = before.reset_at_s.saturating_sub(before.at_s).max(1);
        let passed = (now_s - before.at_s.min(now_s)) + 1;
        let back = (limit - before.left.min(limit)).saturating_mul(passed).div_ceil(whole);
        if left <= before.left.saturating_add(back) || now_s >= before.reset_at_s {
            return;
        }
        if now_s >= before.excused_until_s {
            if let Some(remaining) = &mut self.remaining {
                remaining.excused_until_s = before.reset_at_s;
            }
            return;
        }
        audit.remaining_rose += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::KeySpec;

    const SECOND: u64 = 1_000_000_000;

    fn table(windows: &[Micros]) -> KeyTable {
        let keys = "one:user:1".parse::<KeySpec>().unwrap().load(0).unwrap();
        KeyTable::new(KeysSetup {
            keys,
            windows: windows.to_vec(),
            reference: None,
            exclusive: true,
            started: Micros(1_800_000_000 * Micros::SECOND.0),
        })
    }

    fn ask(table: &mut KeyTable, at_ns: u64, answer: &Answer) {
        let shot = Shot { intended_ns: at_ns, key: 0, attempt: 0 };
        table.sent(&shot, at_ns, true);
        table.done(&shot, at_ns, at_ns + 1_000, answer, true);
    }

    fn limited(retry_after_s: u64) -> Answer {
        let told = Told { retry_after_s: Some(retry_after_s), ..Told::default() };
        Answer { outcome: Outcome::Limited, status: 429, told }
    }

    fn left(remaining: u64, reset_at_s: u64) -> Answer {
        let told = Told {
            limit: Some(10),
            remaining: Some(remaining),
            reset_at_s: Some(reset_at_s),
            ..Told::default()
        };
        Answer { outcome: Outcome::Allowed, status: 200, told }
    }

    #[test]
    fn a_window_counts_what_was_sent_and_answered_within_it() {
        let mut table = table(&[Micros::SECOND]);
        for n in 0..30 {
            ask(&mut table, n * SECOND / 10, &Answer::plain(Outcome::Allowed));
        }
        // Ten a second; the one that was sent a second before is out.
        assert_eq!(table.worst[0].admitted, 10);
        for n in 0..7 {
            ask(&mut table, 4 * SECOND + n, &Answer::plain(Outcome::Allowed));
        }
        assert_eq!((table.worst[0].admitted, table.seen()[0].admitted), (10, 37));
    }

    #[test]
    fn a_wait_that_was_too_short_or_too_long_is_a_lie_and_one_that_holds_is_not() {
        let mut table = table(&[]);
        ask(&mut table, 0, &limited(2));
        ask(&mut table, SECOND, &limited(1));
        ask(&mut table, 2 * SECOND + 5_000, &Answer::plain(Outcome::Allowed));
        assert_eq!((table.audit.retry_after_judged, table.audit.retry_after_too_short), (1, 0));
        ask(&mut table, 3 * SECOND, &limited(2));
        ask(&mut table, 5 * SECOND + 5_000, &limited(2));
        assert_eq!((table.audit.retry_after_judged, table.audit.retry_after_too_short), (2, 1));
        // Whole seconds are rounded up: less than one too early is no lie.
        ask(&mut table, 6 * SECOND + 100_000, &Answer::plain(Outcome::Allowed));
        assert_eq!(table.audit.retry_after_too_long, 0);
        ask(&mut table, 7 * SECOND, &limited(60));
        ask(&mut table, 8 * SECOND, &Answer::plain(Outcome::Allowed));
        assert_eq!(table.audit.retry_after_too_long, 1);
    }

    #[test]
    fn remaining_may_rise_with_time_and_not_without() {
        let mut honest = table(&[]);
        for n in 0..10 {
            ask(&mut honest, n * SECOND / 10, &left(9 - n, 1_800_000_010));
        }
        assert_eq!((honest.audit.remaining_judged, honest.audit.remaining_rose), (9, 0));
        let mut wild = table(&[]);
        for n in 0..10 {
            ask(&mut wild, n * SECOND / 10, &left([9, 3][n as usize % 2], 1_800_000_060));
        }
        assert!(wild.audit.remaining_rose >= 3, "{:?}", wild.audit);
    }

    #[test]
    fn a_reset_in_the_past_is_seen() {
        let mut table = table(&[]);
        ask(&mut table, 0, &left(3, 1_700_000_000));
        ask(&mut table, SECOND, &left(2, 1_800_000_009));
        assert_eq!((table.audit.reset_judged, table.audit.reset_in_the_past), (2, 1));
    }
}
