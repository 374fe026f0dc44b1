//! `ntl-bench load`: requests ([`workload`]) arrive in a closed or open loop ([`arrivals`]) at a server or an engine in this
//! process ([`target`]); [`summary`] turns their timings into rates and latencies.

pub mod arrivals;
pub mod command;
mod sse;
pub mod summary;
pub mod target;
pub mod workload;
