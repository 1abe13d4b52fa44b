//! All integration tests in one binary: one link step, one process.

mod bounds;
mod changes;
mod cli;
mod connect;
mod context;
mod contract;
mod docs;
mod failure;
mod faults;
mod gateway_access;
mod gateway_api;
mod gateway_openapi;
mod histories;
mod limiter;
mod live;
mod memory;
mod model;
mod policy_file;
mod registry;
mod registry_cli;
mod rules;
mod server_clock;
mod support;
mod tidy;
mod twins;
mod vectors;
