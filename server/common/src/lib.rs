//! Code that ntl-server, ntl-eval and connections to engines share: files that flags name, certificates to
//! trust, `Retry-After`, man pages, and texts for terminals and logs.

pub mod manual;
pub mod printable;
pub mod regular_file;
pub mod retry_after;
pub mod similar;
pub mod trust;
