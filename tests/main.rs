//! All integration tests in one binary: one link step, one process.

mod bounds;
mod connect;
mod contract;
mod faults;
mod histories;
mod memory;
mod model;
mod support;
mod twins;
mod vectors;
