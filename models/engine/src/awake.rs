//! Keeps the threads of a pool awake during a pass of a model.
//!
//! A pass consists of hundreds of short parallel parts. rayon's threads fall asleep in the serial code
//! between them, and waking one takes as long as some parts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rayon::Yield;

/// Time without work after which a thread may sleep.
const IDLE_MAX: Duration = Duration::from_micros(200);

/// Calls `compute` on a thread of a pool, and keeps the others awake meanwhile.
pub(crate) fn awake<T>(compute: impl FnOnce() -> T) -> T {
    let caller = rayon::current_thread_index();
    let ended = AtomicBool::new(false);
    rayon::in_place_scope(|scope| {
        // A broadcast reaches each thread once. The caller could take over a spawned job while it waits for
        // others.
        scope.spawn_broadcast(|_, thread| {
            if caller != Some(thread.index()) {
                help(&ended);
            }
        });
        let _end = End(&ended);
        compute()
    })
}

/// Ends the help when it is dropped, also during a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Executes parallel work of other threads.
fn help(ended: &AtomicBool) {
    let mut idle_since = Instant::now();
    while !ended.load(Ordering::Relaxed) && idle_since.elapsed() < IDLE_MAX {
        if rayon::yield_now() == Some(Yield::Executed) {
            idle_since = Instant::now();
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rayon::prelude::*;

    use super::*;

    fn in_pool<T: Send>(threads: usize, call: impl FnOnce() -> T + Send) -> T {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(call)
    }

    #[test]
    fn a_pass_returns_its_result_with_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let sums = in_pool(threads, || {
                let pass = |_| awake(|| (0..1000).into_par_iter().map(|number| number * 2).sum::<u64>());
                (0..50).map(pass).collect::<Vec<_>>()
            });
            assert_eq!(sums, [999_000; 50], "{threads} threads");
        }
    }

    #[test]
    fn after_a_panic_the_pool_still_computes() {
        in_pool(3, || {
            assert!(catch_unwind(AssertUnwindSafe(|| awake(|| panic!("a pass fails")))).is_err());
            assert_eq!(awake(|| (0..100).into_par_iter().count()), 100);
        });
    }
}
