//! The files that flags of ntl-server and ntl-eval name: regular files of limited size, and certificates to trust.

pub mod small_file;
pub mod trust;
