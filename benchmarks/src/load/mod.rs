//! `ntl-bench load`: requests ([`workload`]) arrive in a closed or open loop ([`arrivals`]) at a server or at
//! an engine in this process ([`target`]). [`summary`] converts their timings and the target's CPU time
//! (`processor`) into rates and latencies.

pub mod arrivals;
pub mod command;
mod processor;
mod sse;
pub mod summary;
pub mod target;
pub mod workload;
