//! Traffic against limits in virtual time.

pub mod replay;
