//! The default of `--cache-bytes-max`: how much memory caches may take where no flag says it.

use std::path::Path;

use ntl_models::DeviceChoice;

/// Where the free memory is not known.
const CACHE_BYTES_DEFAULT: u64 = 4 << 30;

/// Limits of the process's control group, in version 2 and 1.
const GROUP_LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Half of the free memory of the device.
pub(crate) fn default(device: DeviceChoice) -> u64 {
    half(device.free_gpu_bytes().or_else(free_bytes))
}

fn half(free: Option<u64>) -> u64 {
    free.map_or(CACHE_BYTES_DEFAULT, |free| (free / 2).max(1))
}

/// What the machine has available, or what the control group leaves to this process if that is less.
fn free_bytes() -> Option<u64> {
    let read = |file: &str| std::fs::read_to_string(Path::new(file)).ok();
    let available = field(&read("/proc/meminfo")?, "MemAvailable")?;
    let resident = read("/proc/self/status").and_then(|status| field(&status, "VmRSS")).unwrap_or(0);
    let limits = GROUP_LIMITS.iter().filter_map(|file| read(file)?.trim().parse::<u64>().ok());
    Some(limits.map(|limit| limit.saturating_sub(resident)).fold(available, u64::min))
}

/// The value of a line such as `MemAvailable:   1024 kB`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name_and_are_in_bytes() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:    1024 kB\nHugePages: 3\n";
        assert_eq!(field(text, "MemAvailable"), Some(1 << 20));
        for missing in ["Mem", "HugePages", "Swap"] {
            assert_eq!(field(text, missing), None, "{missing}");
        }
    }

    #[test]
    fn caches_may_take_half_of_what_is_free() {
        assert_eq!([Some(80 << 30), Some(0), None].map(half), [40 << 30, 1, CACHE_BYTES_DEFAULT]);
        let (free, cache) = (free_bytes().unwrap(), default(DeviceChoice::Cpu));
        assert!(free > 0);
        // Other processes change what is free between the two.
        assert!((free / 8..=2 * free).contains(&cache), "{cache} of {free}");
    }
}
