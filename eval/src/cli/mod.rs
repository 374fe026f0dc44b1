//! The command line: its flags as typed, and the settings and tasks that they mean. Only `app` uses it, which
//! dispatches the commands.

pub mod args;
pub mod calibrate;
pub mod compare;
pub mod flags;
pub mod tasks;
