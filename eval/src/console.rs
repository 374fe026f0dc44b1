//! Output streams of a command and its exit status.

use std::io::Write;

/// The output streams of a command: results go to `out`, progress and error messages to `err`.
pub struct Console<'a> {
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
    pub err_is_terminal: bool,
}

/// Exit status of a finished command, in ascending order of precedence. A command with several runs exits
/// with the greatest status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitStatus {
    Success,
    ItemsFailed,
    GateMissed,
}

impl ExitStatus {
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::GateMissed => 3,
            Self::ItemsFailed => 4,
        }
    }
}
