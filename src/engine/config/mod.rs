//! Files that people write, read with the place of every word, so that whatever is wrong is said
//! with file, line, column, the words at fault and what to write instead.
//!
//! `source` knows places, `tree` and `json` make a tree of the text, `read` holds the tree against
//! a description of the format, and all of these know nothing of policies. `format` is that
//! description for the rules file, `policy` and `rule` build a [`Policy`](super::policy::Policy),
//! `lint` finds what is valid but hardly meant, `limiter` reads a rule inside another kind of file,
//! `secrets` keeps passwords out of what is shown.

mod endpoint;
mod format;
mod gateway;
mod json;
pub(crate) mod limiter;
mod lint;
mod policy;
pub(crate) mod read;
mod rule;
pub mod secrets;
pub(crate) mod source;
mod stores;
pub(crate) mod tree;

pub use format::known_keys;
pub use policy::{parse_policy, parse_shown};
pub use source::{
    ConfigErrors, Finding, MAX_FILE_BYTES, Severity, text_of, too_large, without_passwords,
};
