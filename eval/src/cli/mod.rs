//! The command line: the commands, the tasks and their flags. Only `app` uses it, which dispatches the
//! commands.

pub mod args;
pub mod compare;
pub mod tasks;
