//! The scenario file, described: every table, every key, what it wants, an example. docs/scenarios.md
//! says the same to people and `rlctl scenario schema` to editors.

use crate::engine::clock::Micros;
use crate::engine::config::limiter;
use crate::engine::config::read::{Field, Shape, TableShape};
use crate::engine::limit::MAX_COUNT;

use Shape::{Any, Choice, Count, Duration, Either, Flag, List, Map, Name, Path, Text};

const fn field(key: &'static str, shape: Shape, example: &'static str) -> Field {
    Field::new(key, shape, example)
}

const US: Micros = Micros(1);
const MS: Micros = Micros::MILLISECOND;
/// Longer runs mean days of virtual time; nobody waits for them.
pub(crate) const MAX_RUN: Micros = Micros(7 * Micros::DAY.0);
const TEXT: Shape = Text;
const VALUES: Shape = Any;

pub(crate) const EFFECTS: [&str; 15] = [
    "down",
    "hang",
    "latency",
    "error",
    "partition",
    "readonly",
    "script_flush",
    "clock_skew",
    "lose_data",
    "failover",
    "reshard",
    "evict",
    "oom",
    "loading",
    "drop",
];
pub(crate) const KINDS: [&str; 4] = ["memory", "redis", "redis-sentinel", "redis-cluster"];
pub(crate) const CLIENTS: [&str; 4] = ["naive", "polite", "backoff", "retry-storm"];
pub(crate) const DISTRIBUTIONS: [&str; 3] = ["uniform", "zipf", "hot"];

pub(crate) const FILE: TableShape = TableShape {
    name: "",
    what: "a scenario",
    fields: &[
        field("$schema", Text, "\"$schema\": \"./scenario.schema.json\""),
        field("name", Text, "name = \"burst at the window boundary\""),
        field("description", Text, "description = \"what it shows\""),
        field("tags", List(&TEXT), "tags = [\"failover\"]"),
        field("import", List(&TEXT), "import = [\"base.toml\"]"),
        field("clock", Choice(&["virtual", "real"]), "clock = \"virtual\""),
        field("seed", Count(0..=u64::MAX), "seed = 42"),
        field("run", Duration(MS, MAX_RUN), "run = \"90s\""),
        field("store", Shape::Table(&STORE), "store = { kind = \"redis\" }"),
        field("traffic", List(&Shape::Table(&TRAFFIC)), "[[traffic]]"),
        field("limiter", Shape::Named(&LIMITER), "[limiter.per-user]"),
        field("fault", List(&Shape::Table(&FAULT)), "[[fault]]"),
        field("change", List(&Shape::Table(&CHANGE)), "[[change]]"),
        field("matrix", Map(&List(&VALUES)), "algorithm = [\"gcra\", \"fixed-window\"]"),
        field("expect", Map(&TEXT), "\"nobody errors\" = \"errors == 0\""),
    ],
};

pub(crate) const TRAFFIC: TableShape = TableShape {
    name: "traffic",
    what: "traffic",
    fields: &[
        field("name", Text, "name = \"steady\""),
        field("at", Duration(Micros::ZERO, MAX_RUN), "at = \"10s\""),
        field("for", Duration(US, MAX_RUN), "for = \"60s\""),
        field("rate", Text, "rate = \"1500/s\""),
        field("arrivals", Choice(&["constant", "poisson"]), "arrivals = \"poisson\""),
        field("send", Count(1..=MAX_COUNT), "send = 100"),
        field("over", Duration(Micros::ZERO, MAX_RUN), "over = \"500ms\""),
        field("ramp", Text, "ramp = \"0..500/s\""),
        field("log", Text, "log = \"requests.csv\""),
        field("keys", Either("keys"), "keys = \"user:1\""),
        field("cost", Count(0..=MAX_COUNT), "cost = 5"),
        field("takes", Duration(US, MAX_RUN), "takes = \"200ms\""),
        field("endpoint", Path, "endpoint = \"/api/v1/orders\""),
        field("method", Text, "method = \"POST\""),
        field("tier", Name, "tier = \"premium\""),
        field("client", Choice(&CLIENTS), "client = \"polite\""),
        field("idempotency", Choice(&["per-request", "retries"]), "idempotency = \"retries\""),
    ],
};

pub(crate) const KEYS: TableShape = TableShape {
    name: "keys",
    what: "keys",
    fields: &[
        field("prefix", Text, "prefix = \"user:\""),
        field("count", Count(1..=10_000_000), "count = 1000").required(),
        field("dist", Choice(&DISTRIBUTIONS), "dist = \"zipf\""),
        field("s", Any, "s = 1.1"),
        field("share", Any, "share = \"50%\""),
    ],
};

pub(crate) const STORE: TableShape = TableShape {
    name: "store",
    what: "a store",
    fields: &[
        field("kind", Choice(&KINDS), "kind = \"redis\"").required(),
        field("shards", Count(1..=64), "shards = 3"),
        field("replicas", Count(0..=5), "replicas = 1"),
        field("latency", Text, "latency = \"300us +-100us\""),
        field("deadline", Duration(US, Micros::MINUTE), "deadline = \"50ms\""),
        field(
            "replication_lag",
            Duration(Micros::ZERO, Micros::MINUTE),
            "replication_lag = \"5ms\"",
        ),
        field("failover_after", Duration(MS, Micros::HOUR), "failover_after = \"2s\""),
    ],
};

pub(crate) const LIMITER: TableShape = TableShape {
    name: "limiter",
    what: "a limiter",
    fields: &[
        field("limit", Text, "limit = \"100/1m\""),
        field("algorithm", Text, "algorithm = \"gcra\""),
        field("burst", Count(0..=MAX_COUNT), "burst = 20"),
        field("max_delay", Duration(MS, Micros::HOUR), "max_delay = \"1s\""),
        field("limits", List(&Either("a limit")), "limits = [\"10/1s\", \"100/1m\"]"),
        field("rules", Text, "rules = \"rules.toml\""),
        field("nodes", Count(1..=64), "nodes = 3"),
        field("skew", Either("a skew"), "skew = [\"0s\", \"-200ms\"]"),
        field("on_store_error", Choice(&["open", "closed", "local"]), "on_store_error = \"local\""),
        field("breaker", limiter::BREAKER, "breaker = { consecutive = 5 }"),
        field("local_share", Shape::Ratio, "local_share = 0.25"),
        field("cost", Count(1..=MAX_COUNT), "cost = 5"),
        field("endpoint", Text, "endpoint = \"/api/*\""),
        field("methods", List(&TEXT), "methods = [\"POST\"]"),
        field("on_change", Choice(&["keep", "scale", "reset"]), "on_change = \"keep\""),
        field("shadow", Flag, "shadow = true"),
        field("description", Text, "description = \"what one user may do\""),
        field("hot", Either("hot"), "hot = { threshold = \"10k/s\" }"),
        field("concurrency", limiter::CONCURRENCY, "concurrency = { max = 20 }"),
        field("penalty", Any, "penalty = true").for_later(),
        field("regions", Any, "regions = [\"eu\", \"us\"]").for_later(),
        field("sync", Any, "sync = \"100ms\"").for_later(),
    ],
};

pub(crate) const FAULT: TableShape = TableShape {
    name: "fault",
    what: "a fault",
    fields: &[
        field("name", Text, "name = \"primary dies\""),
        field("at", Duration(Micros::ZERO, MAX_RUN), "at = \"20s\"").required(),
        field("for", Duration(US, MAX_RUN), "for = \"8s\""),
        field("on", Text, "on = \"store.primary\""),
        field("do", Choice(&EFFECTS), "do = \"down\"").required(),
        field("rate", Any, "rate = \"1%\""),
        field("lose", Duration(Micros::ZERO, MAX_RUN), "lose = \"1s\""),
        field("by", Text, "by = \"20ms\""),
    ],
};

pub(crate) const CHANGE: TableShape = TableShape {
    name: "change",
    what: "a change",
    fields: &[
        field("name", Text, "name = \"limit halved\""),
        field("at", Duration(Micros::ZERO, MAX_RUN), "at = \"30s\"").required(),
        field("limiter", Name, "limiter = \"per-user\""),
        field("limit", Text, "limit = \"50/1m\""),
        field("algorithm", Text, "algorithm = \"gcra\""),
        field("burst", Count(0..=MAX_COUNT), "burst = 20"),
        field("rules", Text, "rules = \"new-rules.toml\""),
        field("key", Text, "key = \"user:1\""),
        field("tier", Name, "tier = \"premium\""),
        field("override", Text, "override = \"500/1m\""),
        field("rule", Name, "rule = \"per-user\""),
        field("block", Text, "block = \"user:666\""),
    ],
};

/// Every kind of table of the file.
pub(crate) const TABLES: [&TableShape; 7] =
    [&FILE, &TRAFFIC, &KEYS, &STORE, &LIMITER, &FAULT, &CHANGE];
