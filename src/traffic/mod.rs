//! What arrives when, and for whom: pure, seeded, the same bytes on every machine.

pub mod arrivals;
pub mod gzip;
pub mod keys;
pub mod log;
pub mod rate;
pub mod rng;
pub mod shape;
pub mod trace;

pub use arrivals::{Arrivals, Traffic};
pub use keys::{KeySpec, Keys};
pub use rate::Rate;
pub use rng::Rng;
pub use shape::{Shape, SpecError};
