//! A policy: who is limited how. Data only; `config` reads it from text, `rules` says which parts
//! of it apply to a request.

use std::collections::HashMap;
use std::sync::Arc;

use super::clock::Micros;
use super::concurrency::AtOnce;
use super::durability::Replicas;
use super::hot;
use super::identity::{Dimension, Identity, Pattern};
pub use super::limit::OnChange;
use super::limit::{Algorithm, Cost, Limit};
use super::store::keys::{Prefix, PrefixError};
use super::store::redis::{RedisAddress, RedisAddressError, is_masked, without_secrets};

/// A whole policy, checked: every name in it exists, every limit is within range.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub default_tier: Option<String>,
    pub defaults: Defaults,
    pub identity: IdentitySources,
    pub tiers: Vec<Tier>,
    /// Identity → tier, from the file; assignments in the store win over these.
    pub assign: HashMap<Identity, String>,
    pub rules: Vec<Rule>,
    pub exempt: Vec<Listed>,
    pub block: Vec<Listed>,
    /// Stores besides the one that the process was started with.
    pub stores: Vec<Arc<NamedStore>>,
    pub gateway: GatewaySettings,
    /// Envoy's domains, and which rules each means.
    pub domains: HashMap<String, Vec<String>>,
}

/// What an enforcing gateway does besides deciding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Answered by the gateway itself, and never limited.
    pub health_path: String,
    /// Checks a second that one process takes on for others.
    pub max_checks: u64,
    pub websocket: bool,
    /// Whether `GET /rate-limit` shows callers their own limits.
    pub self_limits: bool,
    pub response: ResponseSettings,
    /// By the longest prefix; none of them: the one that the gateway was started with.
    pub upstreams: Vec<Upstream>,
    pub charge_preflight: bool,
    /// Lets scripts of other origins read the headers that tell of limits.
    pub expose_headers: bool,
}

/// What refused callers are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseSettings {
    pub status: u16,
    /// In place of the gateway's own.
    pub body: Option<String>,
    pub documentation_url: Option<String>,
    pub headers: HeaderFamilies,
}

/// Which header fields tell of limits: `X-RateLimit-*`, those of the IETF draft, both or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderFamilies {
    pub x: bool,
    pub ietf: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Without a slash at its end.
    pub prefix: String,
    pub url: String,
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    pub algorithm: Algorithm,
    pub on_store_error: OnStoreError,
    pub deadline: Micros,
    pub breaker: Breaker,
    pub idempotency_ttl: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Breaker {
    pub consecutive: u32,
    pub min_calls: u32,
    /// Between 0 and 1.
    pub failure_ratio: f64,
    pub window: Micros,
    pub open_for: Micros,
    /// A call slower than this counts as failed; none: 0.8 of the deadline.
    pub slow: Option<Micros>,
    pub background_probe: bool,
}

/// What happens when the store cannot answer.
/// In order of strictness: of several, the last one speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnStoreError {
    Open,
    Local,
    Closed,
}

impl OnStoreError {
    pub fn named(name: &str) -> Option<OnStoreError> {
        let all = [OnStoreError::Open, OnStoreError::Local, OnStoreError::Closed];
        all.into_iter().find(|mode| mode.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            OnStoreError::Open => "open",
            OnStoreError::Local => "local",
            OnStoreError::Closed => "closed",
        }
    }
}

/// Where an enforcing gateway finds who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentitySources {
    pub apikey_header: String,
    pub user_header: String,
    /// Believe the user header from anyone, not only from trusted proxies.
    pub trust_user_from_any: bool,
    pub tier_header: Option<String>,
    /// CIDR ranges.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    pub ipv6_prefix: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    pub name: String,
    pub limits: Vec<LimitSpec>,
    pub place: Place,
}

/// A limit of a rule or tier, and how long a leaky bucket may hold a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    pub limit: Limit,
    pub max_delay: Micros,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub name: String,
    pub description: Option<String>,
    pub dimension: Dimension,
    pub endpoint: Endpoint,
    /// Upper case; empty: all.
    pub methods: Vec<String>,
    /// Only these tiers; empty: all.
    pub tiers: Vec<String>,
    /// Only these identities; empty: all.
    pub matches: Vec<Pattern>,
    /// Only requests without an identity of these dimensions.
    pub unless: Vec<Dimension>,
    pub limits: RuleLimits,
    pub cost: Cost,
    pub on_store_error: OnStoreError,
    pub on_change: OnChange,
    pub shadow: bool,
    pub enabled: bool,
    /// Applies beside the winner of its dimension.
    pub also: bool,
    /// A request without an identity of this dimension is refused.
    pub reject_missing: bool,
    /// How many requests of one identity may be under way in one gateway.
    pub at_once: Option<AtOnce>,
    /// What replicas shall confirm before a charge is answered for.
    pub replicas: Option<Replicas>,
    /// The name of the store that counts; none: the one that the process was started with.
    pub store: Option<String>,
    /// How many buckets one identity has; none: one.
    pub split: Option<u32>,
    /// Identities that are asked about very often are decided here; none: never.
    pub hot: Option<hot::Settings>,
    /// A client's `Idempotency-Key` is believed.
    pub honours_idempotency: bool,
    /// This process's part of the limits under `local`; none: by the number of gateways.
    pub local_share: Option<f64>,
    pub place: Place,
}

/// A Redis that rules name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedStore {
    pub name: String,
    pub url: StoreUrl,
    pub prefix: String,
    /// To each of its servers.
    pub connections: u32,
    pub connect_timeout: Micros,
    /// None: that of the defaults.
    pub deadline: Option<Micros>,
    pub place: Place,
}

impl NamedStore {
    pub fn address(&self) -> Result<RedisAddress, RedisAddressError> {
        RedisAddress::parse(&self.url.0, None)
    }

    pub fn prefix(&self) -> Result<Prefix, PrefixError> {
        Prefix::new(&self.prefix)
    }
}

/// With its password, which it never shows.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    pub fn new(url: &str) -> StoreUrl {
        StoreUrl(url.into())
    }

    /// It is from where a policy was shown, without its password.
    pub fn is_masked(&self) -> bool {
        is_masked(&self.0)
    }
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&without_secrets(&self.0))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum RuleLimits {
    /// Those of the request's tier.
    OfTier,
    Own(Vec<LimitSpec>),
}

/// Which paths a rule is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    Any,
    /// `/api/v1/orders`
    Exact(String),
    /// `/users/{id}/orders`: none stands for any one segment.
    Segments(Vec<Option<String>>),
    /// `/api/*`, kept without the `/*`.
    Prefix(String),
}

impl Endpoint {
    /// As it is written in a rules file; none for every endpoint.
    pub fn pattern(&self) -> Option<String> {
        match self {
            Endpoint::Any => None,
            Endpoint::Exact(path) => Some(path.clone()),
            Endpoint::Prefix(path) => Some(format!("{path}/*")),
            Endpoint::Segments(segments) => {
                let written = segments.iter().map(|s| s.as_deref().unwrap_or("{}"));
                Some(written.fold(String::new(), |path, segment| path + "/" + segment))
            }
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.pattern().as_deref().unwrap_or("all"))
    }
}

/// An entry of `[[exempt]]` or `[[block]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub matches: Vec<Pattern>,
    pub reason: String,
    /// When it ends; none: never.
    pub until: Option<Micros>,
    /// An exemption for all dimensions of a request, not only its own.
    pub whole_request: bool,
    pub place: Place,
}

/// Where in a file something stands, for people.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Place {
    pub file: Arc<str>,
    pub line: usize,
    pub column: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            algorithm: Algorithm::TokenBucket,
            on_store_error: OnStoreError::Open,
            deadline: Micros(50 * Micros::MILLISECOND.0),
            breaker: Breaker::default(),
            idempotency_ttl: super::store::DEFAULT_IDEMPOTENCY_TTL,
        }
    }
}

impl Default for GatewaySettings {
    fn default() -> GatewaySettings {
        GatewaySettings {
            health_path: "/health".into(),
            max_checks: 100_000,
            websocket: false,
            self_limits: false,
            response: ResponseSettings::default(),
            upstreams: Vec::new(),
            charge_preflight: false,
            expose_headers: false,
        }
    }
}

impl Default for ResponseSettings {
    fn default() -> ResponseSettings {
        ResponseSettings {
            status: 429,
            body: None,
            documentation_url: None,
            headers: HeaderFamilies { x: true, ietf: true },
        }
    }
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker {
            consecutive: 10,
            min_calls: 10,
            failure_ratio: 0.5,
            window: Micros(10 * Micros::SECOND.0),
            open_for: Micros::MINUTE,
            slow: None,
            background_probe: true,
        }
    }
}

impl Default for IdentitySources {
    fn default() -> IdentitySources {
        IdentitySources {
            apikey_header: "x-api-key".into(),
            user_header: "x-user-id".into(),
            trust_user_from_any: false,
            tier_header: None,
            trusted_proxies: Vec::new(),
            ipv6_prefix: 64,
        }
    }
}

impl Policy {
    pub fn tier(&self, name: &str) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.name == name)
    }

    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.name == name)
    }
}
