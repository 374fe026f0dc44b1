//! Whether the process has memory for new work: the overload manager, and the one place that knows how much
//! memory the process uses and may use.
//!
//! In: the process's own memory (`/proc/self/statm`, without mapped files), read when work arrives, and the
//! limit of `--memory-bytes-max`. Out: whether the server rejects new work. This limit covers the memory that
//! the limits of single parts miss; requests that were already accepted continue. Without Linux's files there
//! is no limit.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Age at which a reading is replaced.
const READING_AGE_MAX: Duration = Duration::from_millis(10);

pub(crate) struct MemoryGuard {
    bytes_max: Option<u64>,
    used: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    last: Mutex<Option<Reading>>,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    is_full: bool,
}

impl MemoryGuard {
    /// Makes a guard with this limit in bytes: by default nine tenths of the available memory, 0 for none.
    pub(crate) fn new(bytes_max: Option<u64>) -> Self {
        let bytes_max = bytes_max.or_else(|| Some(available(Path::new("/"))? / 10 * 9));
        Self::with_usage(bytes_max.filter(|&bytes| bytes > 0), used)
    }

    fn with_usage(bytes_max: Option<u64>, used: impl Fn() -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { bytes_max, used: Box::new(used), last: Mutex::new(None) }
    }

    pub(crate) fn bytes_max(&self) -> Option<u64> {
        self.bytes_max
    }

    /// Returns whether the process uses more memory than its limit.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full_at(Instant::now())
    }

    fn is_full_at(&self, now: Instant) -> bool {
        let Some(bytes_max) = self.bytes_max else { return false };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let was_full = match *last {
            Some(Reading { at, is_full }) if now.saturating_duration_since(at) < READING_AGE_MAX => {
                return is_full;
            }
            Some(Reading { is_full, .. }) => is_full,
            None => false,
        };
        let used = (self.used)().unwrap_or(0);
        let is_full = used > bytes_max;
        if is_full != was_full {
            let state = if is_full { "new work is refused" } else { "new work is accepted again" };
            tracing::warn!(used, bytes_max, "memory: {state}");
        }
        *last = Some(Reading { at: now, is_full });
        is_full
    }
}

impl fmt::Debug for MemoryGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryGuard").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

/// Returns the process's memory that no file backs, in bytes.
fn used() -> Option<u64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = pages.split(' ').skip(1).map(str::parse::<u64>);
    let resident = pages.next()?.ok()?;
    let shared = pages.next()?.ok()?;
    Some(resident.saturating_sub(shared) * rustix::param::page_size() as u64)
}

/// Returns the free memory in bytes: what the machine has available, or the rest of a cgroup's limit if that
/// is less.
pub(crate) fn free(root: &Path) -> Option<u64> {
    let used = used().unwrap_or(0);
    let left = cgroup_limits(root).map(|limit| limit.saturating_sub(used));
    left.chain(meminfo(root, "MemAvailable")).min()
}

/// Returns the memory that the process may use, in bytes: the minimum of the machine's memory and the limits
/// of its cgroups (version 2 or 1).
fn available(root: &Path) -> Option<u64> {
    cgroup_limits(root).chain(meminfo(root, "MemTotal")).min()
}

/// Returns the value of a line such as `MemTotal:   1024 kB`, in bytes.
fn meminfo(root: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the limits of the process's cgroup and of the cgroups above it, in bytes.
fn cgroup_limits(root: &Path) -> impl Iterator<Item = u64> {
    cgroup_files(root).into_iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
}

/// Returns the files that may hold a limit, for the process's cgroup and the cgroups above it.
fn cgroup_files(root: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut files = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            "memory" => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        for group in Path::new(group).ancestors() {
            let folder = group.strip_prefix("/").unwrap_or(Path::new(""));
            files.push(root.join(mount).join(folder).join(file));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn work_is_refused_above_the_bound_and_accepted_again_below() {
        let used = Arc::new(AtomicU64::new(100));
        let reading = Arc::clone(&used);
        let guard = MemoryGuard::with_usage(Some(100), move || Some(reading.load(Ordering::SeqCst)));
        let start = Instant::now();
        assert!(!guard.is_full_at(start));
        used.store(101, Ordering::SeqCst);
        assert!(!guard.is_full_at(start), "the reading is young");
        assert!(guard.is_full_at(start + READING_AGE_MAX));
        used.store(99, Ordering::SeqCst);
        assert!(!guard.is_full_at(start + 2 * READING_AGE_MAX));
    }

    #[test]
    fn without_a_bound_or_a_reading_nothing_is_refused() {
        assert!(!MemoryGuard::with_usage(None, || Some(u64::MAX)).is_full());
        assert!(!MemoryGuard::with_usage(Some(1), || None).is_full());
        assert_eq!(MemoryGuard::new(Some(0)).bytes_max(), None);
    }

    #[test]
    fn the_process_knows_what_it_uses() {
        let before = used().unwrap();
        let more = vec![1_u8; 64 << 20];
        let after = used().unwrap();
        assert!(after >= before + (32 << 20), "{before} {after} {}", more.len());
        assert!(available(Path::new("/")).unwrap() > after);
    }

    /// Below this folder a file, with its folders.
    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn limits_are_found_where_each_version_of_cgroups_has_them() {
        const V1: &str = "sys/fs/cgroup/memory/";
        for (what, files, want) in [
            ("nothing but the machine", vec![("proc/self/cgroup", "0::/\n")], 8_192_000),
            (
                "version 2 in a container, whose own group is the root",
                vec![("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "5000000\n")],
                5_000_000,
            ),
            (
                "version 2, no limit anywhere",
                vec![
                    ("proc/self/cgroup", "0::/a/b\n"),
                    ("sys/fs/cgroup/a/memory.max", "max\n"),
                    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ],
                8_192_000,
            ),
            (
                "version 2, the least of nested limits is the middle one",
                vec![
                    ("proc/self/cgroup", "0::/a/b/c\n"),
                    ("sys/fs/cgroup/a/memory.max", "4000000\n"),
                    ("sys/fs/cgroup/a/b/memory.max", "1000000\n"),
                    ("sys/fs/cgroup/a/b/c/memory.max", "2000000\n"),
                    ("sys/fs/cgroup/other/memory.max", "1\n"),
                ],
                1_000_000,
            ),
            (
                "version 1, the limit above",
                vec![
                    ("proc/self/cgroup", "3:cpu,cpuacct:/x\n2:memory:/a/b\n"),
                    (&*format!("{V1}a/memory.limit_in_bytes"), "3000000\n"),
                    (&*format!("{V1}a/b/memory.limit_in_bytes"), "9223372036854771712\n"),
                    (&*format!("{V1}x/memory.limit_in_bytes"), "1\n"),
                ],
                3_000_000,
            ),
            (
                "version 1 in a container that sees its own group only",
                vec![
                    ("proc/self/cgroup", "2:memory:/docker/0a1b\n"),
                    (&*format!("{V1}memory.limit_in_bytes"), "6000000\n"),
                ],
                6_000_000,
            ),
            (
                "both versions at once",
                vec![
                    ("proc/self/cgroup", "2:memory:/a\n0::/a\n"),
                    (&*format!("{V1}a/memory.limit_in_bytes"), "7000000\n"),
                    ("sys/fs/cgroup/a/memory.max", "6500000\n"),
                ],
                6_500_000,
            ),
            (
                "files that say nothing",
                vec![("proc/self/cgroup", "0::/a\n:\n\n"), ("sys/fs/cgroup/a/memory.max", "much\n")],
                8_192_000,
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            write(root.path(), "proc/meminfo", "MemTotal:       8000 kB\n");
            files.iter().for_each(|(file, text)| write(root.path(), file, text));
            assert_eq!(available(root.path()), Some(want), "{what}");
        }
    }

    #[test]
    fn free_memory_is_what_the_cgroup_of_the_process_leaves() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| write(root.path(), file, text);
        assert_eq!(free(root.path()), None);
        write("proc/meminfo", "MemTotal: 9000000000 kB\nMemAvailable: 4000000000 kB\nHugePages: 3\n");
        assert_eq!(free(root.path()), Some(4_000_000_000 << 10));
        write("proc/self/cgroup", "0::/pod/container\n");
        write("sys/fs/cgroup/memory.max", "max\n");
        write("sys/fs/cgroup/pod/container/memory.max", "1000000000000\n");
        let nested = free(root.path()).unwrap();
        assert!((1..1_000_000_000_000).contains(&nested), "the process uses a part of its limit: {nested}");
        write("sys/fs/cgroup/pod/memory.max", "1\n");
        assert_eq!(free(root.path()), Some(0));
    }

    #[test]
    fn the_least_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| write(root.path(), file, text);
        assert_eq!(available(root.path()), None);
        write("proc/meminfo", "MemFree: 1 kB\nMemTotal:       4096 kB\n");
        assert_eq!(available(root.path()), Some(4096 << 10));
        write("proc/self/cgroup", "0::/pod/container\n");
        write("sys/fs/cgroup/pod/container/memory.max", "max\n");
        assert_eq!(available(root.path()), Some(4096 << 10));
        write("sys/fs/cgroup/pod/memory.max", "3000000\n");
        assert_eq!(available(root.path()), Some(3_000_000));
        write("proc/self/cgroup", "12:cpu:/x\n4:memory:/docker/1\n");
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
        write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(available(root.path()), Some(2_000_000));
    }
}
