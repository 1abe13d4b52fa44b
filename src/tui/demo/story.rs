//! What happens to whom and when: stories, told in phases.

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;

/// A story that repeats.
#[derive(Debug)]
pub struct Story {
    pub name: &'static str,
    pub what: &'static str,
    pub(super) phases: &'static [&'static Phase],
}

#[derive(Debug)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) seconds: u64,
    /// Told above everything else.
    pub(super) caption: &'static str,
    pub(super) traffic: &'static [&'static Traffic],
    /// The first server is away.
    pub(super) is_away: bool,
    /// Who is the primary: 0, or 1 after it took over.
    pub(super) primary: usize,
    /// Of the store, in microseconds.
    pub(super) p99_us: u64,
    /// The third server's clock, in microseconds.
    pub(super) clock_us: i64,
    /// In the rules: this is replaced by that.
    pub(super) rules: Option<(&'static str, &'static str)>,
    pub(super) events: &'static [(&'static str, &'static str)],
    /// So many seconds later.
    pub(super) later: &'static [(u64, &'static str, &'static str)],
    pub(super) is_start: bool,
}

#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) name: &'static str,
    pub(super) per_second: f64,
    pub(super) path: &'static str,
    /// Names with `#` stand for as many as there are.
    pub(super) who: &'static str,
    pub(super) many: u64,
}

impl Traffic {
    pub(super) fn who(&self, second: u64, k: u64) -> Option<Identity> {
        let n = spread(second, k, self.many);
        let n = if self.many > 1_000 { format!("{n:04}") } else { n.to_string() };
        self.who.replace('#', &n).parse().ok()
    }
}

/// Someone of so many, the first ones more often; the same in every run.
fn spread(second: u64, k: u64, many: u64) -> u64 {
    let mut x = (second << 20 | k).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 32;
    let share = (x >> 11) as f64 / (1u64 << 53) as f64;
    // The first tenth asks for a third of it all.
    ((share * share) * many as f64) as u64
}

impl Story {
    pub fn named(name: &str) -> Option<&'static Story> {
        STORIES.iter().find(|story| story.name == name)
    }

    fn lasts(&self) -> u64 {
        self.phases.iter().map(|phase| phase.seconds).sum::<u64>().max(1)
    }

    /// The phase of a second, and how far into it.
    pub(super) fn at(&self, second: u64) -> (&'static Phase, u64) {
        let Some(quiet) = second.checked_sub(BEFORE) else {
            return (&QUIET, second);
        };
        let mut into = quiet % self.lasts();
        for phase in self.phases {
            if into < phase.seconds {
                return (phase, into);
            }
            into -= phase.seconds;
        }
        (&QUIET, into)
    }
}

impl Phase {
    pub(super) fn began_us(&self, story: &Story, second: u64, start: Micros) -> u64 {
        let (_, into) = story.at(second);
        start.0 + second.saturating_sub(into) * Micros::SECOND.0
    }

    /// It breathes a little.
    pub(super) fn latency_us(&self, into: u64) -> u64 {
        self.p99_us + self.p99_us / 10 * (into * 7 % 5) / 4
    }
}

/// What is usual has to be seen before the unusual: so many seconds pass before the first picture.
pub const BEFORE: u64 = 120;

const CUSTOMERS: Traffic = Traffic {
    name: "customers",
    per_second: 420.0,
    path: "/v1/orders",
    who: "apikey:cust-#",
    many: 10_000,
};
const BUSINESS: Traffic = Traffic {
    name: "business",
    per_second: 180.0,
    path: "/v1/orders",
    who: "apikey:biz-#",
    many: 6,
};
const PEOPLE: Traffic =
    Traffic { name: "people", per_second: 90.0, path: "/v1/cart", who: "user:#", many: 300 };
const LOGINS: Traffic =
    Traffic { name: "logins", per_second: 15.0, path: "/login", who: "ip:203.0.113.#", many: 40 };
const GREEDY: Traffic = Traffic {
    name: "greedy",
    per_second: 9.0,
    path: "/v1/orders",
    who: "apikey:trial-77",
    many: 1,
};
const HOT: Traffic = Traffic {
    name: "hot",
    per_second: 1_900.0,
    path: "/v1/search",
    who: "apikey:ak_7f3c2",
    many: 1,
};
const USUAL: &[&Traffic] = &[&CUSTOMERS, &BUSINESS, &PEOPLE, &LOGINS, &GREEDY];
const WITH_HOT: &[&Traffic] = &[&CUSTOMERS, &BUSINESS, &PEOPLE, &LOGINS, &GREEDY, &HOT];

const CALM: Phase = Phase {
    name: "quiet",
    seconds: 10,
    caption: "",
    traffic: USUAL,
    is_away: false,
    primary: 0,
    p99_us: 900,
    clock_us: 1_200,
    rules: None,
    events: &[],
    later: &[],
    is_start: false,
};

static QUIET: Phase = Phase {
    caption: "A quiet evening. Four gateways share one Redis; a few clients ask too much, as always.",
    is_start: true,
    ..CALM
};

static HOT_KEY: Phase = Phase {
    name: "hot key",
    seconds: 26,
    caption: "A customer's batch job retries in a loop. Who is it, and does it hurt anybody else? Press 1.",
    traffic: WITH_HOT,
    p99_us: 1_150,
    events: &[("warning", "rejections left their usual band")],
    later: &[(4, "warning", "hot key: apikey:ak_7f3c2 makes most of all requests")],
    ..CALM
};

static FIXED: Phase = Phase {
    name: "fixed",
    seconds: 12,
    caption: "The customer was called, and has stopped the job. All is as it was.",
    events: &[("info", "rejections are back in their usual band")],
    ..CALM
};

static FAILOVER: Phase = Phase {
    name: "failover",
    seconds: 22,
    caption: "The primary dies. The rules say fail open, so everybody passes. Press W, then 1: protect again.",
    is_away: true,
    p99_us: 50_000,
    events: &[("critical", "10.0.0.5:6379 is away: connection refused")],
    later: &[
        (1, "critical", "gateways decide without the store: fail-open"),
        (8, "warning", "sentinels agree that 10.0.0.5:6379 is down (2 of 3)"),
        (19, "warning", "failover to 10.0.0.6:6379 has begun"),
    ],
    ..CALM
};

static RECOVERY: Phase = Phase {
    name: "recovery",
    seconds: 20,
    caption: "The replica has taken over. Limits hold again; what was passed uncounted is told.",
    primary: 1,
    events: &[
        ("info", "10.0.0.6:6379 is the primary now"),
        ("info", "gateways decide with the store again, breakers closed"),
    ],
    ..CALM
};

static BAD_RULES: Phase = Phase {
    name: "bad rules",
    seconds: 30,
    caption: "A slip in the rules: free plans get 6 a minute instead of 300. Many are refused at once.",
    rules: Some(("300/1m burst 30", "6/1m burst 1")),
    ..CALM
};

static ROLLED_BACK: Phase = Phase {
    name: "rolled back",
    seconds: 15,
    caption: "The rules were rolled back.",
    rules: Some(("nothing to replace", "")),
    ..CALM
};

static SKEW: Phase = Phase {
    name: "clock skew",
    seconds: 30,
    caption: "The clock of a replica runs away. Harmless until it takes over.",
    clock_us: 4_200_000,
    ..CALM
};

static SLOW: Phase = Phase {
    name: "slow redis",
    seconds: 30,
    caption: "Redis answers, but late: somebody runs KEYS * on it.",
    p99_us: 31_000,
    events: &[("warning", "p99 of 10.0.0.5:6379 is above 10ms")],
    ..CALM
};

pub static STORIES: [Story; 5] = [
    Story {
        name: "incident",
        what: "a hot key, then a failover with fail-open, then recovery",
        phases: &[&QUIET, &HOT_KEY, &FIXED, &FAILOVER, &RECOVERY],
    },
    Story {
        name: "hot-key",
        what: "one client asks for far too much",
        phases: &[&QUIET, &HOT_KEY, &FIXED],
    },
    Story {
        name: "failover",
        what: "the primary dies, a replica takes over",
        phases: &[&QUIET, &FAILOVER, &RECOVERY],
    },
    Story {
        name: "config",
        what: "a slip in the rules refuses many",
        phases: &[&QUIET, &BAD_RULES, &ROLLED_BACK],
    },
    Story {
        name: "trouble",
        what: "a slow Redis, and a clock that is wrong",
        phases: &[&QUIET, &SLOW, &FIXED, &SKEW],
    },
];
