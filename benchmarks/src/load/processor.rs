//! The CPU time of a process, in user and system mode, from `/proc`.

use std::fs;
use std::time::Duration;

/// The process that computes the answers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Process {
    Own,
    Other(u32),
}

impl Process {
    /// Returns the CPU time that all threads of the process have used so far, or `None` if there is no such
    /// process or no `/proc`.
    pub(super) fn processor_time(self) -> Option<Duration> {
        let stat = match self {
            Self::Own => fs::read_to_string("/proc/self/stat"),
            Self::Other(id) => fs::read_to_string(format!("/proc/{id}/stat")),
        };
        let ticks = ticks(&stat.ok()?)?;
        Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

/// Returns the sum of the fields `utime` and `stime`, the 12th and 13th after the name. The name is in
/// parentheses and may itself contain spaces and parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added_for_any_program_name() {
        let fields = "S 1 2 3 0 -1 4194560 100 0 0 0 70 8 500 600 20 0 5 0 9";
        for name in ["ntl-server", "a) R 1 (b"] {
            assert_eq!(ticks(&format!("7 ({name}) {fields}")), Some(78));
        }
        assert_eq!(ticks("7 (ntl-server) S 1"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_current_process_is_also_found_by_its_id() {
        let own = Process::Own.processor_time();
        let other = Process::Other(std::process::id());
        assert!(own.unwrap() <= other.processor_time().unwrap());
        assert_eq!(Process::Other(u32::MAX).processor_time(), None);
    }
}
