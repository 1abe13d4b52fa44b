//! Leaky bucket: a queue of size `B` that lets one request out every `T`. The [`Backlog`](super::Backlog) is that
//! queue; what is its own is that an admitted request is held until its turn, so that what leaves
//! is evenly spaced however it came.
//!
//! Worked: 10/1s (`T` = 100 ms), burst 3. Four come at once: the first passes at once, the second
//! is held 100 ms, the third 200 ms, the fourth is refused and may come again after 100 ms.
//!
//! Bound: enters like the bucket; leaves at most `1 + floor(L·x/P)` in an interval of length `x`.

use super::super::clock::Micros;
use super::super::limit::{Algorithm, Limit, Span};

/// How long a request is held that joins a queue of this length; the other buckets hold nobody.
#[inline]
pub(super) fn delay(limit: &Limit, queue: Span) -> Micros {
    if limit.algorithm() == Algorithm::LeakyBucket { queue.ceil() } else { Micros::ZERO }
}
