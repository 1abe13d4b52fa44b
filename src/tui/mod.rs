//! The dashboard: what is going on, why, since when, and what to do about it.
//!
//! `feed` asks and listens, `merge` makes one picture of it, `model` changes with news and keys,
//! `verdict` says what is wrong, `view` draws, `term` keeps the terminal whole.

pub mod act;
pub mod data;
pub mod demo;
pub mod feed;
pub mod glance;
pub mod keys;
pub mod merge;
pub mod model;
pub mod record;
pub mod report;
pub mod rows;
pub mod run;
pub mod term;
pub mod timeline;
pub mod verdict;
pub mod view;
pub mod wire;
pub mod words;
