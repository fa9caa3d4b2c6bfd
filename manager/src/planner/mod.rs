//! What the manager works out ahead. Pure.
#![forbid(unsafe_code)]

pub mod shares;
