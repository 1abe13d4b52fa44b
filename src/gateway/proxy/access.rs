//! A line for each request, where that is asked for.

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use super::{Peer, Reply};
use crate::engine::clock::Micros;
use crate::engine::limiter::{Reached, Verdict};
use crate::gateway::Answer;
use crate::gateway::log::{Access, Log};

/// Who decided about a request; travels with its reply to where the line is written.
#[derive(Clone, Debug)]
pub(super) struct Decided(Arc<Facts>);

#[derive(Debug)]
struct Facts {
    identity: Option<String>,
    rule: Option<String>,
    degraded: Option<&'static str>,
    allowed: bool,
}

impl Decided {
    pub(super) fn of(verdict: &Verdict, answer: &Answer) -> Decided {
        let identity = match &verdict.reached {
            Reached::Limits { decided, asked } => Some(asked[*decided].identity.to_string()),
            Reached::Blocked { identity, .. } | Reached::Unanswered { identity, .. } => {
                Some(identity.to_string())
            }
            _ => None,
        };
        Decided(Arc::new(Facts {
            identity,
            rule: answer.rule.clone(),
            degraded: answer.degraded,
            allowed: verdict.allowed,
        }))
    }
}

/// Has a request answered, and writes its line.
pub(super) async fn logged<F: Future<Output = Reply>>(
    log: &Log,
    request: Request<Incoming>,
    peer: Peer,
    answer: impl FnOnce(Request<Incoming>) -> F,
) -> Reply {
    let at = Micros::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut reply = answer(request).await;
    let decided = reply.extensions_mut().remove::<Decided>();
    let facts = decided.as_ref().map(|decided| &decided.0);
    log.access(&Access {
        at,
        client: &peer.address.ip().to_canonical().to_string(),
        method: method.as_str(),
        path: &path,
        status: reply.status().as_u16(),
        identity: facts.and_then(|facts| facts.identity.as_deref()),
        rule: facts.and_then(|facts| facts.rule.as_deref()),
        allowed: facts.is_none_or(|facts| facts.allowed),
        degraded: facts.and_then(|facts| facts.degraded),
        took: Micros::now().saturating_sub(at),
        upstream: reply.extensions_mut().remove::<super::UpstreamTook>().map(|took| took.0),
    });
    reply
}
