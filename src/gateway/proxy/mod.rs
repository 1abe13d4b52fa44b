//! The reverse proxy: every request is decided, and what passes is passed on.

mod access;
mod body;
mod echo;
mod forward;
mod hold;
mod pool;
mod upgrade;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderName, HeaderValue, ORIGIN, UPGRADE,
};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};

use self::body::{Progress, Watched};
use self::forward::{
    Hop, drop_hop_headers, drop_wrong_length, malformed, tell_origin, wanted_upgrade,
};
use self::hold::Hold;
use self::pool::{Pool, UpstreamError};
use super::headers::tell_limits;
use super::identity::{Caller, remove_in_any_spelling};
use super::listen::{Place, TOO_MANY_HEADERS, has_too_many_headers};
use super::own_limits::own_limits;
use super::refusal::{problem, refusal};
use super::spread::Spread;
use super::{Answer, Gateway};
use crate::engine::clock::Micros;
use crate::engine::concurrency;
use crate::engine::limit::Cost;
use crate::engine::limiter::{Demand, Verdict};
use crate::engine::live::{Current, Moment};
use crate::engine::plan::Attempt;
use crate::engine::policy::{GatewaySettings, IdentitySources, Upstream as PolicyUpstream};
use crate::engine::rules::{Target, normal_path};
use crate::engine::store::{Idempotency, StoreError};
pub use body::ReplyBody;
pub use pool::Destination;

/// Pools for the upstreams of a policy; those of older policies make room.
const MAX_POOLS: usize = 1_024;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const X_IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "RateLimit, RateLimit-Policy, Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, \
     X-RateLimit-Reset, X-RateLimit-Warning, X-RateLimit-Status",
);

/// Where what passes goes, unless the policy names another upstream for its path.
#[derive(Clone, Debug)]
pub enum Upstream {
    Echo,
    At(Destination),
}

/// How a connection was made.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    pub is_tls: bool,
}

/// One worker's proxy.
#[derive(Debug)]
pub struct Proxy {
    gateway: Arc<Gateway>,
    upstream: Route,
    /// By URL, for the upstreams of the policy.
    pools: Mutex<HashMap<String, Route>>,
    tls: super::tls::Roots,
    hold: Hold,
    patience: Duration,
}

#[derive(Clone, Debug)]
enum Route {
    Echo,
    To(Arc<Pool>),
    /// The policy names something that cannot be one.
    Wrong(String),
}

type Reply = Response<ReplyBody>;

impl Proxy {
    /// `patience`: how long an upstream may be silent, before its answer or in the middle of it.
    pub fn new(
        gateway: Arc<Gateway>,
        upstream: Upstream,
        tls: super::tls::Roots,
        patience: Duration,
    ) -> Proxy {
        let upstream = match upstream {
            Upstream::Echo => Route::Echo,
            Upstream::At(destination) => Route::To(Pool::new(destination)),
        };
        Proxy { gateway, upstream, pools: Mutex::default(), tls, hold: Hold::default(), patience }
    }

    /// Answers one request, whatever becomes of it. What this future holds is moved for every
    /// request, so the ways that few requests take are boxed where they branch off.
    pub async fn answer(&self, request: Request<Incoming>, peer: Peer) -> Reply {
        let _inflight = Inflight::begin(&self.gateway.stats.inflight);
        match self.gateway.stats.log().filter(|log| log.writes_access()) {
            None => self.reply(request, peer).await,
            Some(log) => {
                Box::pin(access::logged(log, request, peer, |request| self.reply(request, peer)))
                    .await
            }
        }
    }

    async fn reply(&self, request: Request<Incoming>, peer: Peer) -> Reply {
        if has_too_many_headers(&request) {
            return own(problem(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_MANY_HEADERS));
        }
        if let Some(why) = malformed(&request) {
            return own(problem(StatusCode::BAD_REQUEST, why));
        }
        let moment = self.gateway.moment();
        let usual = GatewaySettings::default();
        let settings = match &moment.current {
            Some(current) => &current.rules.policy().gateway,
            None => &usual,
        };
        if let Some(reply) = self.health(&request, settings) {
            return reply;
        }
        let Some(current) = &moment.current else {
            return Box::pin(self.without_policy(request, peer, settings)).await;
        };
        self.limited(request, peer, &moment, current, settings).await
    }

    /// `/health` and, beside it, `/ready`: never limited.
    fn health(&self, request: &Request<Incoming>, settings: &GatewaySettings) -> Option<Reply> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        let path = request.uri().path();
        if path == settings.health_path {
            return Some(Response::new(ReplyBody::own("ok\n")));
        }
        let folder = settings.health_path.rsplit_once('/').map_or("", |(folder, _)| folder);
        if path.strip_prefix(folder)? != "/ready" {
            return None;
        }
        let ready = self.gateway.is_ready();
        let mut reply =
            Response::new(ReplyBody::own(if ready { "ready\n" } else { "not ready\n" }));
        if !ready {
            *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        Some(reply)
    }

    /// Nobody is refused for want of a policy, and everybody is told.
    async fn without_policy(
        &self,
        mut request: Request<Incoming>,
        peer: Peer,
        settings: &GatewaySettings,
    ) -> Reply {
        // Who may be believed stands in the policy: without one, nobody.
        remove_in_any_spelling(request.headers_mut(), &IdentitySources::default().user_header);
        let identities = [];
        let attempt = Attempt { identities: &identities, target: Target::default(), tier: None };
        let demand = Demand::of(Cost::ONE);
        let decided = self.gateway.decide(&self.gateway.moment(), &attempt, demand).await;
        let hop = Hop { peer: peer.address.ip(), is_trusted: false, is_tls: peer.is_tls };
        // No policy, so none that sends a path elsewhere.
        let mut reply = self.pass_on(request, "/", hop, settings).await;
        if let Ok((verdict, answer)) = decided {
            let families = settings.response.headers;
            tell_limits(reply.headers_mut(), &verdict, &answer, families, Micros::now());
        }
        reply
    }

    async fn limited(
        &self,
        mut request: Request<Incoming>,
        peer: Peer,
        moment: &Moment,
        current: &Current,
        settings: &GatewaySettings,
    ) -> Reply {
        let uri = request.uri().clone();
        let path = match normal_path(uri.path()) {
            Ok(path) => path,
            // `OPTIONS *` has no path; only rules for every endpoint are about it.
            Err(_) if request.method() == Method::OPTIONS && uri.path() == "*" => "*".into(),
            Err(error) => return own(problem(StatusCode::BAD_REQUEST, &error.to_string())),
        };
        let caller = match Caller::of(&current.rules, peer.address.ip(), request.headers()) {
            Ok(caller) => caller,
            Err(error) => return own(problem(StatusCode::BAD_REQUEST, &error.to_string())),
        };
        let sources = &current.rules.policy().identity;
        caller.drop_unbelieved(sources, request.headers_mut());
        let hop = Hop {
            peer: peer.address.ip().to_canonical(),
            is_trusted: caller.peer_is_trusted,
            is_tls: peer.is_tls,
        };
        let target =
            Target { path: Some(&path), method: Some(request.method().as_str()), only: None };
        let attempt =
            Attempt { identities: &caller.identities, target, tier: caller.tier.as_deref() };
        if is_preflight(&request) && !settings.charge_preflight {
            return match Box::pin(self.gateway.refuse_blocked(moment, &attempt)).await {
                None => self.pass_on(request, &path, hop, settings).await,
                Some((verdict, answer)) => {
                    let (response, asked_with) = (&settings.response, request.headers());
                    own(refusal(&verdict, &answer, response, asked_with, Micros::now()))
                }
            };
        }
        if settings.self_limits && request.method() == Method::GET && path == "/rate-limit" {
            return own(Box::pin(own_limits(&self.gateway, moment, &attempt, settings)).await);
        }
        let remember = current.rules.policy().defaults.idempotency_ttl;
        let idempotency = match current.rules.honour_idempotency() {
            true => clients_key(request.headers(), remember),
            false => None,
        };
        let (verdict, answer) = match self.decide(moment, &attempt, idempotency).await {
            Ok(decided) => decided,
            Err(error) => return own(problem(StatusCode::BAD_REQUEST, &error.to_string())),
        };
        let mut reply = if verdict.allowed {
            if !verdict.places.is_empty() && request.headers().contains_key(UPGRADE) {
                request.extensions_mut().insert(UnderWay { _places: verdict.places.clone() });
            }
            self.pass_on(request, &path, hop, settings).await
        } else {
            let (response, asked_with) = (&settings.response, request.headers());
            own(refusal(&verdict, &answer, response, asked_with, Micros::now()))
        };
        if !verdict.places.is_empty() {
            reply = reply.map(|body| body.holding(verdict.places.clone()));
        }
        let headers = reply.headers_mut();
        if verdict.allowed {
            tell_limits(headers, &verdict, &answer, settings.response.headers, Micros::now());
        }
        if self.writes_access() {
            let decided = access::Decided::of(&verdict, &answer);
            reply.extensions_mut().insert(decided);
        }
        let headers = reply.headers_mut();
        if settings.expose_headers {
            headers.append(http::header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
        reply
    }

    fn writes_access(&self) -> bool {
        self.gateway.stats.log().is_some_and(|log| log.writes_access())
    }

    /// Decides, and holds a request until it is its turn. Only a mistake of the caller is an error.
    async fn decide(
        &self,
        moment: &Moment,
        attempt: &Attempt<'_>,
        idempotency: Option<Idempotency<'_>>,
    ) -> Result<(Verdict, Answer), StoreError> {
        let under_way = Some(&self.gateway.under_way);
        let demand = Demand { idempotency, under_way, ..Demand::of(Cost::ONE) };
        let (verdict, answer) = self.gateway.decide_and_hold(moment, attempt, demand).await?;
        let delay = verdict.delay();
        if delay > Micros::ZERO && !self.hold.wait(&self.gateway, &verdict.charges, delay).await {
            // Dropped by `wait` with its charges given back: the room is full, not the bucket.
            let refused = verdict.out_of_room();
            let answer = Answer::of(&refused, None, Micros::now());
            return Ok((refused, answer));
        }
        Ok((verdict, answer))
    }

    /// `path` is the one that rules were chosen by; the upstream is chosen by the same.
    async fn pass_on(
        &self,
        request: Request<Incoming>,
        path: &str,
        hop: Hop,
        settings: &GatewaySettings,
    ) -> Reply {
        let pool = match self.route(path, &settings.upstreams) {
            Route::Echo => return echo::echo(request),
            Route::To(pool) => pool,
            Route::Wrong(why) => return own(problem(StatusCode::BAD_GATEWAY, &why)),
        };
        let began = Micros::now();
        let reply = self.forward(request, hop, settings, &pool).await;
        let took = Micros::now().saturating_sub(began);
        self.gateway.stats.upstream(took);
        let mut reply = reply.unwrap_or_else(|error| {
            let status = match error {
                UpstreamError::Silent(_) | UpstreamError::ConnectTimeout => {
                    StatusCode::GATEWAY_TIMEOUT
                }
                UpstreamError::Connect(_) | UpstreamError::Broken(_) | UpstreamError::Switched => {
                    StatusCode::BAD_GATEWAY
                }
            };
            own(problem(status, &format!("the upstream {error}")))
        });
        if self.writes_access() {
            reply.extensions_mut().insert(UpstreamTook(took));
        }
        reply
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        hop: Hop,
        settings: &GatewaySettings,
        pool: &Arc<Pool>,
    ) -> Result<Reply, UpstreamError> {
        let upgrade = wanted_upgrade(request.headers())
            .filter(|_| settings.websocket && request.version() == Version::HTTP_11);
        let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let extensions = request.extensions_mut();
        let places = (extensions.remove::<Place>(), extensions.remove::<UnderWay>());
        let (mut parts, body) = request.into_parts();
        drop_hop_headers(&mut parts.headers);
        tell_origin(&mut parts.headers, hop, &parts.uri);
        parts.headers.insert(http::header::HOST, pool.destination.host().clone());
        parts.uri = pool.destination.target(&parts.uri);
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        if let Some(protocol) = upgrade {
            parts.headers.insert(http::header::UPGRADE, protocol);
            parts.headers.insert(http::header::CONNECTION, HeaderValue::from_static("upgrade"));
        }
        let progress = Progress::new();
        let request = Request::from_parts(parts, Watched::new(body, progress.clone()));
        let (mut response, lease) = pool.send(request, &progress, self.patience).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // Passed on, the client would take what comes next on its connection for something else.
            let Some(client) = client else { return Err(UpstreamError::Switched) };
            let upstream = hyper::upgrade::on(&mut response);
            upgrade::tunnel(client, upstream, places);
            return Ok(response.map(|_| ReplyBody::own("")));
        }
        let (mut parts, body) = response.into_parts();
        drop_wrong_length(&mut parts.headers);
        drop_hop_headers(&mut parts.headers);
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        Ok(Response::from_parts(parts, ReplyBody::upstream(body, lease, self.patience)))
    }

    /// The upstream of the policy with the longest prefix of `path`, else the one of the start.
    fn route(&self, path: &str, upstreams: &[PolicyUpstream]) -> Route {
        let is_below = |prefix: &str| {
            let rest = path.strip_prefix(prefix.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let found = upstreams
            .iter()
            .filter(|upstream| is_below(&upstream.prefix))
            .max_by_key(|upstream| upstream.prefix.len());
        let Some(named) = found else { return self.upstream.clone() };
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.len() >= MAX_POOLS && !pools.contains_key(&named.url) {
            pools.clear();
        }
        let open = || match Destination::parse(&named.url, || self.tls.connector()) {
            Ok(destination) => Route::To(Pool::new(destination)),
            Err(why) => Route::Wrong(why),
        };
        pools.entry(named.url.clone()).or_insert_with(open).clone()
    }
}

/// A request that may become a tunnel, with what has to be held for as long as it lasts.
#[derive(Clone, Debug)]
struct UnderWay {
    _places: Vec<concurrency::Place>,
}

/// How long the upstream took to begin its answer; travels with the reply.
#[derive(Clone, Copy, Debug)]
struct UpstreamTook(Micros);

/// A request under way, counted for as long as it is.
struct Inflight<'a>(&'a Spread);

impl Inflight<'_> {
    fn begin(counter: &Spread) -> Inflight<'_> {
        counter.add(1);
        Inflight(counter)
    }
}

impl Drop for Inflight<'_> {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

fn own(response: Response<bytes::Bytes>) -> Reply {
    response.map(ReplyBody::own)
}

/// Under which key a client says that it repeats itself; rules say whether that counts. One that
/// cannot be a key is none.
fn clients_key(headers: &HeaderMap, remember: Micros) -> Option<Idempotency<'_>> {
    let value = headers.get(IDEMPOTENCY_KEY).or_else(|| headers.get(X_IDEMPOTENCY_KEY))?;
    Idempotency::of_client(value.to_str().ok()?, remember).ok()
}

fn is_preflight<B: Body>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.method() == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}
