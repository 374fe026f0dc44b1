//! The command line as typed. Nothing here acts on it: `app` dispatches commands.

pub mod args;
pub mod base_url;
pub mod bound;
pub mod calibrate;
pub mod compare;
pub mod flags;
pub mod tasks;
