//! The rules file, described: every table, every key, what it wants, an example. docs/rules.md says
//! the same to people and `rlctl schema rules` to editors; a test compares.

use super::super::clock::Micros;
use super::super::limit::MAX_COUNT;
use super::read::{Field, Shape, TableShape};

use Shape::{Any, Choice, Count, Duration, Flag, HeaderName, List, Map, Name, Path, Text, Url};

const MAX_SOME: u64 = 1_000_000;
const HOUR: Micros = Micros::HOUR;
const WEEK: Micros = Micros(7 * Micros::DAY.0);
/// Longer than anybody waits for an answer.
const TEN_SECONDS: Micros = Micros(10 * Micros::SECOND.0);
const MS: Micros = Micros::MILLISECOND;

const fn field(key: &'static str, shape: Shape, example: &'static str) -> Field {
    Field::new(key, shape, example)
}

const ON_STORE_ERROR: Shape = Choice(&["open", "closed", "local"]);
const ANY: Shape = Any;
const TEXT: Shape = Text;
const NAME: Shape = Name;
const NAMES: Shape = List(&NAME);

pub(super) const FILE: TableShape = TableShape {
    name: "",
    what: "a rules file",
    fields: &[
        field("version", Count(1..=1), "version = 1"),
        field("default_tier", Name, "default_tier = \"free\""),
        field("defaults", Shape::Table(&DEFAULTS), "[defaults]"),
        field("identity", Shape::Table(&IDENTITY), "[identity]"),
        field("tiers", Shape::Named(&TIER), "[tiers.free]"),
        field("assign", Map(&NAME), "\"user:42\" = \"premium\""),
        field("rule", List(&Shape::Table(&RULE)), "[[rule]]"),
        field("exempt", List(&Shape::Table(&EXEMPT)), "[[exempt]]"),
        field("block", List(&Shape::Table(&BLOCK)), "[[block]]"),
        field("gateway", Shape::Table(&GATEWAY), "[gateway]"),
        field("domains", Map(&NAMES), "edge = [\"per-ip\"]"),
        field("stores", Shape::Named(&STORE), "[stores.premium]"),
        field("response", Shape::Table(&RESPONSE), "[response]"),
        field("upstream", List(&Shape::Table(&UPSTREAM)), "[[upstream]]"),
        field("cors", Shape::Table(&CORS), "[cors]"),
        field("adaptive", Map(&ANY), "[adaptive]").for_later(),
        field("regions", Map(&ANY), "[regions]").for_later(),
    ],
};

const DEFAULTS: TableShape = TableShape {
    name: "defaults",
    what: "[defaults]",
    fields: &[
        field("algorithm", Text, "algorithm = \"token-bucket\""),
        field("on_store_error", ON_STORE_ERROR, "on_store_error = \"open\""),
        field("deadline", Duration(MS, Micros::MINUTE), "deadline = \"50ms\""),
        field("breaker", Shape::Table(&BREAKER), "breaker = { consecutive = 10 }"),
        field("idempotency_ttl", Duration(Micros::SECOND, WEEK), "idempotency_ttl = \"5m\""),
    ],
};

pub(super) const BREAKER: TableShape = TableShape {
    name: "breaker",
    what: "a breaker",
    fields: &[
        field("consecutive", Count(1..=MAX_SOME), "consecutive = 10"),
        field("min_calls", Count(1..=MAX_SOME), "min_calls = 10"),
        field("failure_ratio", Shape::Ratio, "failure_ratio = 0.5"),
        field("window", Duration(MS, HOUR), "window = \"10s\""),
        field("open_for", Duration(MS, HOUR), "open_for = \"60s\""),
        field("slow", Duration(Micros(1), Micros::MINUTE), "slow = \"40ms\""),
        field("background_probe", Flag, "background_probe = true"),
    ],
};

const IDENTITY: TableShape = TableShape {
    name: "identity",
    what: "[identity]",
    fields: &[
        field("apikey", Shape::Table(&HEADER), "apikey = { header = \"X-API-Key\" }"),
        field("user", Shape::Table(&USER_HEADER), "user = { header = \"X-User-Id\" }"),
        field("tier", Shape::Table(&HEADER), "tier = { header = \"X-Tier\" }"),
        field("trusted_proxies", List(&TEXT), "trusted_proxies = [\"10.0.0.0/8\"]"),
        field("ipv6_prefix", Count(1..=64), "ipv6_prefix = 64"),
    ],
};

pub(super) const HEADER: TableShape = TableShape {
    name: "header",
    what: "a header",
    fields: &[field("header", HeaderName, "header = \"X-API-Key\"").required()],
};

const USER_HEADER: TableShape = TableShape {
    name: "user_header",
    what: "the user header",
    fields: &[
        field("header", HeaderName, "header = \"X-User-Id\""),
        field("trust", Choice(&["proxies", "any"]), "trust = \"any\""),
    ],
};

const TIER: TableShape = TableShape {
    name: "tier",
    what: "a tier",
    fields: &[field("limits", List(&LIMIT_OR_TEXT), "limits = [\"10/1s\"]")],
};

const LIMIT_OR_TEXT: Shape = Shape::Either("a limit");

/// One of `limits`, written as a table.
pub(super) const LIMIT: TableShape = TableShape {
    name: "limit",
    what: "a limit",
    fields: &[
        field("limit", Text, "limit = \"1000/1h\"").required(),
        field("algorithm", Text, "algorithm = \"sliding-window\""),
        field("burst", Count(0..=u64::MAX), "burst = 200"),
        field("max_delay", Duration(MS, HOUR), "max_delay = \"1s\""),
    ],
};

pub(super) const RULE: TableShape = TableShape {
    name: "rule",
    what: "a rule",
    fields: &[
        field("name", Name, "name = \"per-user\"").required(),
        field("description", Text, "description = \"what one user may do\""),
        field("dimension", Text, "dimension = \"user\"").required(),
        field("endpoint", Text, "endpoint = \"/api/v1/orders\""),
        field("methods", List(&TEXT), "methods = [\"POST\", \"PUT\"]"),
        field("tier", List(&TEXT), "tier = [\"free\"]"),
        field("match", List(&TEXT), "match = [\"user:12*\"]"),
        field("unless", List(&TEXT), "unless = [\"apikey\"]"),
        field("limits", Shape::Either("limits"), "limits = [\"100/1m\"]").required(),
        field("cost", Count(1..=MAX_COUNT), "cost = 5"),
        field("on_store_error", ON_STORE_ERROR, "on_store_error = \"closed\""),
        field("on_change", Choice(&["keep", "scale", "reset"]), "on_change = \"keep\""),
        field("missing", Choice(&["allow", "reject"]), "missing = \"reject\""),
        field("shadow", Flag, "shadow = true"),
        field("enabled", Flag, "enabled = false"),
        field("also", Flag, "also = true"),
        field("store", Name, "store = \"premium\""),
        field("replicas", Shape::Table(&REPLICAS), "replicas = { n = 1 }"),
        field("split", Count(2..=64), "split = 8"),
        field("hot", Shape::Either("hot"), "hot = { threshold = \"10k/s\" }"),
        field("concurrency", Shape::Table(&CONCURRENCY), "concurrency = { max = 20 }"),
        field("idempotency", Choice(&["header"]), "idempotency = \"header\""),
        field("penalty", Any, "penalty = true").for_later(),
        field("scope", Choice(&["regional", "global"]), "scope = \"global\"").for_later(),
        field("local_share", Shape::Ratio, "local_share = 0.25"),
    ],
};

const REPLICAS: TableShape = TableShape {
    name: "replicas",
    what: "replicas",
    fields: &[
        field("n", Count(1..=64), "n = 1").required(),
        field("timeout", Duration(MS, TEN_SECONDS), "timeout = \"10ms\""),
        field("on_short", Choice(&["mark", "fail"]), "on_short = \"mark\""),
    ],
};

/// Of `hot`, unless that is false.
pub(super) const HOT: TableShape = TableShape {
    name: "hot",
    what: "hot",
    fields: &[
        field("threshold", Text, "threshold = \"10k/s\""),
        field("lease", Duration(Micros(10 * MS.0), Micros::SECOND), "lease = \"100ms\""),
    ],
};

/// Of `concurrency`.
pub(super) const CONCURRENCY: TableShape = TableShape {
    name: "concurrency",
    what: "concurrency",
    fields: &[
        field("max", Count(1..=MAX_SOME), "max = 20").required(),
        field("wait", Duration(Micros::ZERO, Micros::MINUTE), "wait = \"100ms\""),
    ],
};

const EXEMPT: TableShape = TableShape {
    name: "exempt",
    what: "an exemption",
    fields: &[
        field("match", List(&TEXT), "match = [\"ip:10.0.0.0/8\"]").required(),
        field("reason", Text, "reason = \"our own services\""),
        field("until", Shape::Time, "until = \"2030-01-01T00:00:00Z\""),
        field("scope", Choice(&["dimension", "request"]), "scope = \"request\""),
    ],
};

const BLOCK: TableShape = TableShape {
    name: "block",
    what: "a block",
    fields: &[
        field("match", List(&TEXT), "match = [\"user:666\"]").required(),
        field("reason", Text, "reason = \"abuse\""),
        field("until", Shape::Time, "until = \"2030-01-01T00:00:00Z\""),
    ],
};

const GATEWAY: TableShape = TableShape {
    name: "gateway",
    what: "[gateway]",
    fields: &[
        field("health_path", Path, "health_path = \"/health\""),
        field("max_checks", Count(1..=MAX_SOME * 10), "max_checks = 100000"),
        field("websocket", Flag, "websocket = true"),
        field("self_limits", Flag, "self_limits = true"),
    ],
};

const STORE: TableShape = TableShape {
    name: "store",
    what: "a store",
    fields: &[
        field("url", Url, "url = \"redis://10.0.0.5:6379\"").required(),
        field("prefix", Text, "prefix = \"rl1:\""),
        field("connections", Count(1..=64), "connections = 4"),
        field("connect_timeout", Duration(MS, Micros::MINUTE), "connect_timeout = \"1s\""),
        field("deadline", Duration(MS, Micros::MINUTE), "deadline = \"50ms\""),
    ],
};

const RESPONSE: TableShape = TableShape {
    name: "response",
    what: "[response]",
    fields: &[
        field("status", Count(400..=599), "status = 429"),
        field("body", Text, "body = \"slow down\""),
        field("documentation_url", Url, "documentation_url = \"https://example.com/limits\""),
        field("headers", Choice(&["both", "x", "ietf", "none"]), "headers = \"both\""),
    ],
};

const UPSTREAM: TableShape = TableShape {
    name: "upstream",
    what: "an upstream",
    fields: &[
        field("prefix", Path, "prefix = \"/api\"").required(),
        field("url", Url, "url = \"http://127.0.0.1:3000\"").required(),
    ],
};

const CORS: TableShape = TableShape {
    name: "cors",
    what: "[cors]",
    fields: &[
        field("charge_preflight", Flag, "charge_preflight = true"),
        field("expose_headers", Flag, "expose_headers = true"),
    ],
};

/// Every kind of table by its name in the JSON Schema (`""` is the file itself), with its keys.
pub fn known_keys() -> Vec<(&'static str, Vec<&'static str>)> {
    let tables = [
        FILE,
        DEFAULTS,
        BREAKER,
        IDENTITY,
        HEADER,
        USER_HEADER,
        TIER,
        LIMIT,
        RULE,
        REPLICAS,
        HOT,
        CONCURRENCY,
        EXEMPT,
        BLOCK,
        GATEWAY,
        STORE,
        RESPONSE,
        UPSTREAM,
        CORS,
    ];
    let keys = |table: &TableShape| table.fields.iter().map(|field| field.key).collect();
    tables.iter().map(|table| (table.name, keys(table))).collect()
}
