//! Bodies on their way through: streamed, never gathered, and watched, so that neither side can
//! hold the other for ever.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::pool::Lease;
use crate::engine::concurrency::Place;

/// The body of an answer.
#[derive(Debug)]
pub enum ReplyBody {
    /// The gateway's own words.
    Own(Full<Bytes>),
    /// What the upstream sends, with the connection it comes on.
    Upstream(Box<Streamed>),
    /// A request's own body, sent back.
    Echo(Incoming),
    /// Any of these, of a request that has places until its answer is over.
    Holding(Box<ReplyBody>, Vec<Place>),
}

/// An upstream's body. When it ends, its connection is free for the next request; when it stalls
/// for too long, it ends in an error.
#[derive(Debug)]
pub struct Streamed {
    body: Incoming,
    lease: Option<Lease>,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    #[error("nothing came for {0:?}")]
    Stalled(Duration),
}

impl ReplyBody {
    pub fn own(bytes: impl Into<Bytes>) -> ReplyBody {
        ReplyBody::Own(Full::new(bytes.into()))
    }

    /// The same, with places that are free again when it is over or given up.
    pub(super) fn holding(self, places: Vec<Place>) -> ReplyBody {
        ReplyBody::Holding(Box::new(self), places)
    }

    pub(super) fn upstream(body: Incoming, lease: Lease, patience: Duration) -> ReplyBody {
        // A body that is over, as of a 304, never says so again.
        let lease = if body.is_end_stream() {
            lease.finish();
            None
        } else {
            Some(lease)
        };
        ReplyBody::Upstream(Box::new(Streamed { body, lease, patience, stalled: None }))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            ReplyBody::Own(body) => {
                Pin::new(body).poll_frame(context).map_err(|never| match never {})
            }
            ReplyBody::Upstream(body) => body.poll(context),
            ReplyBody::Echo(body) => Pin::new(body).poll_frame(context).map_err(BodyError::from),
            ReplyBody::Holding(body, places) => {
                let frame = ready!(Pin::new(&mut **body).poll_frame(context));
                if body.is_end_stream() || !matches!(frame, Some(Ok(_))) {
                    places.clear();
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ReplyBody::Own(body) => body.is_end_stream(),
            ReplyBody::Upstream(body) => body.body.is_end_stream(),
            ReplyBody::Echo(body) => body.is_end_stream(),
            ReplyBody::Holding(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Own(body) => body.size_hint(),
            ReplyBody::Upstream(body) => body.body.size_hint(),
            ReplyBody::Echo(body) => body.size_hint(),
            ReplyBody::Holding(body, _) => body.size_hint(),
        }
    }
}

impl Streamed {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.stalled = None;
            let is_over = frame.is_none() || self.body.is_end_stream();
            if let (true, Some(lease)) = (is_over, self.lease.take()) {
                lease.finish();
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)));
        }
        // Only a body that does not come at once needs a timer.
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(context));
        self.lease = None;
        Poll::Ready(Some(Err(BodyError::Stalled(patience))))
    }
}

/// A request's body, and when something of it was last passed on.
#[derive(Debug)]
pub(super) struct Watched {
    body: Incoming,
    progress: Progress,
}

/// Milliseconds since `start` at the last sign of progress.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    start: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { start: Instant::now(), last_ms: Arc::default() }
    }

    fn mark(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(now, Ordering::Relaxed);
    }

    /// The moment at which patience with a silent pair ends, if nothing more happens.
    pub(super) fn deadline(&self, patience: Duration) -> Instant {
        self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed)) + patience
    }
}

impl Watched {
    pub(super) fn new(body: Incoming, progress: Progress) -> Watched {
        Watched { body, progress }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        this.progress.mark();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
