//! `ntl-bench load`: requests ([`workload`]) arrive in a closed or open loop ([`arrivals`]) at a server or an engine in this
//! process ([`target`]); [`summary`] turns their timings and the processor time of the target (`processor`) into rates and latencies.

pub mod arrivals;
pub mod command;
mod processor;
mod sse;
pub mod summary;
pub mod target;
pub mod workload;
