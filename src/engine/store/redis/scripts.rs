//! The Lua side: scripts put together from the twins of the algorithms, their arguments and their
//! replies. All data travels as packed doubles in `ARGV`; no Lua text is ever made from data.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::engine::clock::Micros;
use crate::engine::limit::{Algorithm, Cost, Decision, OnChange};
use crate::engine::store::{Charge, Check, RuleLimit};

const ARITH: &str = include_str!("../../algo/arith.lua");
const SELDOM_NEEDED: &str = include_str!("../../algo/seldom.lua");
const BUCKET: &str = include_str!("../../algo/bucket.lua");
const FIXED_WINDOW: &str = include_str!("../../algo/fixed_window.lua");
const SLIDING_WINDOW: &str = include_str!("../../algo/sliding_window.lua");
const SLIDING_LOG: &str = include_str!("../../algo/sliding_log.lua");
const QUOTA: &str = include_str!("quota.lua");
const CLOCK: &str = include_str!("clock.lua");
const CHECK_BUCKET: &str = include_str!("check_bucket.lua");
const CHECK_ONE: &str = include_str!("check_one.lua");
const CHECK: &str = include_str!("check.lua");
const RETURN: &str = include_str!("return.lua");
const RESET: &str = include_str!("reset.lua");

/// A Lua twin: its text, when it is the one to call, and what its functions are called after.
struct Twin {
    text: &'static str,
    condition: &'static str,
    name: &'static str,
}

/// In the order of the bits of a set of twins.
const TWINS: [Twin; 4] = [
    Twin { text: BUCKET, condition: "alg <= 3", name: "bucket" },
    Twin { text: FIXED_WINDOW, condition: "alg == 4", name: "fixed_window" },
    Twin { text: SLIDING_WINDOW, condition: "alg == 5", name: "sliding_window" },
    Twin { text: SLIDING_LOG, condition: "alg == 6", name: "sliding_log" },
];
const ALL_TWINS: usize = (1 << TWINS.len()) - 1;
const READ_QUOTA: &str = "local value = redis.call('GET', KEYS[1]) or ''\n";
/// Divides a twin into what every check needs and what few calls do.
const SELDOM: &str = "-- SELDOM --\n";
/// Eight doubles for each limit.
const DECISION_BYTES: usize = 64;
/// What check_bucket.lua replies: five doubles, which no other reply is.
const USUAL_REPLY_BYTES: usize = 40;
/// `L` and `B` of each limit of a remembered answer.
const SIZES_BYTES: usize = 8;

#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) sha: String,
}

impl Script {
    /// Puts a script together: whatever it begins with, then what the usual case needs, the usual
    /// case, and behind it the rest, because a script pays for every function that it makes each
    /// time it runs.
    fn new(twins: usize, beginning: &[&str], usual_case: &str, rest: &str) -> Script {
        let chosen: Vec<&Twin> =
            (0..TWINS.len()).filter(|bit| twins & (1 << bit) != 0).map(|bit| &TWINS[bit]).collect();
        let halves = || chosen.iter().filter_map(|twin| twin.text.split_once(SELDOM));
        let mut text = CLOCK.to_string();
        beginning.iter().for_each(|part| text += part);
        text += ARITH;
        halves().for_each(|(often, _)| text += often);
        text += &dispatch("decide", &chosen);
        text += &dispatch("take", &chosen);
        text += usual_case;
        text += SELDOM_NEEDED;
        halves().for_each(|(_, seldom)| text += seldom);
        text += &dispatch("refund", &chosen);
        text += &dispatch("carry_over", &chosen);
        text += QUOTA;
        text += rest;
        Script::plain(&text)
    }

    /// A script that needs no twins.
    pub(super) fn plain(text: &str) -> Script {
        let sha = redis::Script::new(text).get_hash().to_string();
        Script { text: text.into(), sha }
    }

    /// The script of a check. It holds only the twins that its limits need: a script pays for every
    /// function in it each time it runs.
    pub(super) fn check(check: &Check<'_>) -> &'static Script {
        let twins = check.limits.iter().fold(0, |set, l| set | 1 << twin_of(l.limit().algorithm()));
        if is_usual(check) { Script::usual() } else { Script::of_twins(twins) }
    }

    /// Every script that a check may take.
    pub(super) fn checks() -> impl Iterator<Item = &'static Script> {
        std::iter::once(Script::usual()).chain((1..=ALL_TWINS).map(Script::of_twins))
    }

    fn usual() -> &'static Script {
        static SCRIPT: OnceLock<Script> = OnceLock::new();
        let twins = 1 << twin_of(Algorithm::TokenBucket);
        let beginning = [READ_QUOTA, CHECK_BUCKET];
        SCRIPT.get_or_init(|| Script::new(twins, &beginning, CHECK_ONE, CHECK))
    }

    fn of_twins(twins: usize) -> &'static Script {
        static SCRIPTS: [OnceLock<Script>; ALL_TWINS + 1] =
            [const { OnceLock::new() }; ALL_TWINS + 1];
        SCRIPTS[twins].get_or_init(|| Script::new(twins, &[READ_QUOTA], CHECK_ONE, CHECK))
    }

    /// Gives back or settles a charge.
    pub(super) fn settle() -> &'static Script {
        static SCRIPT: OnceLock<Script> = OnceLock::new();
        SCRIPT.get_or_init(|| Script::new(ALL_TWINS, &[], "", RETURN))
    }

    /// Forgets quota.
    pub(super) fn reset() -> &'static Script {
        static SCRIPT: OnceLock<Script> = OnceLock::new();
        SCRIPT.get_or_init(|| Script::plain(RESET))
    }
}

/// What check_bucket.lua leaves to its caller: one token bucket or gcra, asked for 1, whose whole
/// capacity in parts of a microsecond a double holds exactly.
fn is_usual(check: &Check<'_>) -> bool {
    let [rule_limit] = check.limits else { return false };
    let limit = rule_limit.limit();
    let parts = (limit.span_of_capacity().us + 1).checked_mul(limit.tokens());
    check.idempotency.is_none()
        && matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::Gcra)
        && limit.requests() > 0
        && rule_limit.cost(check.cost) == Cost::ONE
        && parts.is_some_and(|parts| parts < 1 << 53)
}

/// `function` of whichever algorithm is in hand; without a detour where there is only one.
fn dispatch(function: &str, twins: &[&Twin]) -> String {
    if let [Twin { name, .. }] = twins {
        return format!("local {function} = {function}_{name}\n");
    }
    let cases = twins.iter().map(|Twin { condition, name, .. }| {
        format!("  if {condition} then return {function}_{name}(...) end\n")
    });
    format!("local function {function}(...)\n{}end\n", cases.collect::<String>())
}

fn twin_of(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => 0,
        Algorithm::FixedWindow => 1,
        Algorithm::SlidingWindow => 2,
        Algorithm::SlidingLog => 3,
    }
}

/// Numbers as Lua's `struct` reads them. Every one is whole and below 2^53, so exact as a double.
#[derive(Debug, Default)]
pub(super) struct Packed(pub(super) Vec<u8>);

impl Packed {
    pub(super) fn number(&mut self, number: u64) -> &mut Packed {
        self.0.extend((number as f64).to_le_bytes());
        self
    }

    /// A number up to 10^9, in four bytes.
    fn small(&mut self, number: u64) -> &mut Packed {
        self.0.extend((number as u32).to_le_bytes());
        self
    }

    /// A time, or the wish for the server's.
    pub(super) fn time(&mut self, at: Option<Micros>) -> &mut Packed {
        self.0.extend(at.map_or(-1.0, |at| at.0 as f64).to_le_bytes());
        self
    }

    /// A number, or that there is none.
    pub(super) fn count_or_none(&mut self, count: Option<u32>) -> &mut Packed {
        self.0.extend(count.map_or(-1.0, f64::from).to_le_bytes());
        self
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Packed {
        self.0.extend(bytes);
        self
    }

    /// A limit, and what a request of `cost` takes from it.
    pub(super) fn limit(&mut self, rule_limit: &RuleLimit, cost: Cost) -> &mut Packed {
        let (name, limit) = (rule_limit.name(), rule_limit.limit());
        let (one, full) = (limit.span_of_one(), limit.span_of_capacity());
        for number in [limit.tokens(), limit.micros(), one.us, one.part, full.us, full.part] {
            self.number(number);
        }
        self.number(rule_limit.cost(cost).get());
        self.0.push(match rule_limit.on_change() {
            OnChange::Keep => 0,
            OnChange::Scale => 1,
            OnChange::Reset => 2,
        });
        self.0.push(name.len() as u8);
        self.bytes(name.as_bytes());
        self.0.push(limit.algorithm().code());
        self.small(limit.requests()).small(limit.capacity()).number(limit.period().0)
    }

    pub(super) fn charge_parts(&mut self, charge: &Charge, settled: Cost) -> &mut Packed {
        for (rule_limit, at) in &charge.parts {
            self.limit(rule_limit, charge.cost).number(at.0);
            self.number(rule_limit.cost(charge.cost).get());
            self.number(rule_limit.cost(settled).get());
        }
        self
    }
}

/// Whether a reply tells of a charge made now: neither a refusal nor an answer given before.
pub(super) fn is_charge(bytes: &[u8], limits: usize, idempotent: bool) -> bool {
    if limits == 1 && bytes.len() == USUAL_REPLY_BYTES {
        return number(bytes, 2) < 0.0;
    }
    let id_bytes = if idempotent { 8 } else { 0 };
    match bytes.split_first() {
        Some((0, rest)) => rest
            .get(id_bytes..id_bytes + limits * DECISION_BYTES)
            .is_some_and(|all| all.chunks_exact(DECISION_BYTES).all(|one| number(one, 0) != 0.0)),
        _ => false,
    }
}

/// What check.lua replied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Decided { decisions: SmallVec<[Decision; 1]>, charge_id: Option<u64>, replayed: bool },
    OtherCost,
}

/// None when it is not a reply of ours.
pub(super) fn parse_reply(
    bytes: &[u8],
    limits: &[Arc<RuleLimit>],
    idempotent: bool,
) -> Option<Reply> {
    if let ([limit], USUAL_REPLY_BYTES) = (limits, bytes.len()) {
        let decisions = SmallVec::from_buf([usual_decision(bytes, limit)]);
        return Some(Reply::Decided { decisions, charge_id: None, replayed: false });
    }
    let (&kind, mut rest) = bytes.split_first()?;
    if kind == 2 {
        return Some(Reply::OtherCost);
    }
    let charge_id = if idempotent {
        let (id, after) = rest.split_first_chunk()?;
        rest = after;
        Some(u64::from_le_bytes(*id))
    } else {
        None
    };
    let replayed = kind == 1;
    let (chunks, sizes) = rest.split_at_checked(limits.len() * DECISION_BYTES)?;
    if sizes.len() != if replayed { limits.len() * SIZES_BYTES } else { 0 } {
        return None;
    }
    let chunks = chunks.chunks_exact(DECISION_BYTES);
    let mut decisions: SmallVec<[Decision; 1]> =
        chunks.zip(limits).map(|(chunk, l)| decision(chunk, l)).collect();
    for (decision, sizes) in decisions.iter_mut().zip(sizes.chunks_exact(SIZES_BYTES)) {
        let (limit, capacity) = (&sizes[..4], &sizes[4..]);
        decision.limit = u32::from_le_bytes(limit.try_into().ok()?).into();
        decision.capacity = u32::from_le_bytes(capacity.try_into().ok()?).into();
    }
    Some(Reply::Decided { decisions, charge_id, replayed })
}

fn decision(chunk: &[u8], rule_limit: &RuleLimit) -> Decision {
    let (number, micros) = (|index| number(chunk, index), |index| micros(chunk, index));
    Decision {
        allowed: number(0) != 0.0,
        remaining: number(1) as u64,
        retry_after: (number(2) >= 0.0).then(|| micros(2)),
        reset_after: micros(3),
        next_after: micros(4),
        delay: micros(5),
        clock_jump: number(7) != 0.0,
        ..Decision::at(rule_limit.limit(), micros(6))
    }
}

fn usual_decision(reply: &[u8], rule_limit: &RuleLimit) -> Decision {
    let retry_after = (number(reply, 2) >= 0.0).then(|| micros(reply, 2));
    Decision {
        allowed: retry_after.is_none(),
        remaining: number(reply, 1) as u64,
        retry_after,
        reset_after: micros(reply, 3),
        next_after: micros(reply, 4),
        ..Decision::at(rule_limit.limit(), micros(reply, 0))
    }
}

fn number(bytes: &[u8], index: usize) -> f64 {
    f64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("eight bytes"))
}

fn micros(bytes: &[u8], index: usize) -> Micros {
    Micros(number(bytes, index) as u64)
}
