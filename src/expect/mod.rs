//! The assertion grammar over recorded series, pure: what must be true of a run, read with the place
//! of every word, and judged over whatever was recorded.
//!
//! ```text
//! [limiter:] [always] METRIC[(arg)][{label=value,…}] [per|over DUR] [during 'PHASE'|A..B]
//!     ( == != < <= > >= VALUE [+-TOL] | in A..B | becomes VALUE [+-TOL] within DUR of [end of] 'EVENT' )
//! ```
//!
//! `parse.rs` makes an [`Assertion`] of a text, `words.rs` knows the metrics and labels; whoever
//! recorded something answers as [`Measured`] (`journal.rs` does for lists of events), and
//! [`judge`] asks it.

mod ast;
mod journal;
mod judge;
mod measured;
mod parse;
mod per_key;
mod quantile;
mod value;
mod windows;
mod words;

pub use ast::{
    Assertion, Bound, Claim, Comparison, Counted, During, Gauge, Labels, Metric, PerKey, Quantile,
    Span, Timed, Tolerance, Unit, Value, Window,
};
pub use journal::{Event, Journal};
pub use judge::{Verdict, judge};
pub use measured::{Count, Lasting, Measured, NotMeasured};
pub use parse::{ExpectError, parse};
pub use per_key::{excess, jain, worst_window};
pub use quantile::weighted_quantile;
