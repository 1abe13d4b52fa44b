//! HTTP/1.1 at full speed: requests built ahead, answers read for what counts and no more.

mod chunked;
pub mod head;
mod raw;
mod reader;
mod stream;
pub mod target;
pub mod template;

pub use raw::Crew;
pub use target::Target;
