//! Limits the time of prefills and steps, so that no client waits long for another one.
//!
//! A prefill gets as much work as fits into a time, by the measured time per work. The rest of a long prompt
//! continues after the next step.
//!
//! While several clients share the engine, a client waits for its next token only about twice as long as it
//! would alone. The pace compares the time of a step with few rows and the time of one with many rows. If
//! reading the weights from memory dominates, many rows take little longer than few, and nothing is limited.
//! If the time grows with the number of rows, smaller steps cost no throughput. Results do not depend on the
//! limits.

use std::collections::HashSet;
use std::time::Duration;

/// Approximate maximum ratio of the time of a shared step to the time of a step with one row per client.
const STEP_RATIO_MAX: f64 = 2.0;

/// Limits of one prefill.
struct PrefillLimits {
    /// Time, in units of the time limit.
    times: f64,
    /// Time in steps with few rows, if that is longer: a prefill reads the same weights as a step, so a short
    /// one would mostly read weights.
    steps: f64,
}

const SHARED: PrefillLimits = PrefillLimits { times: 1.0, steps: 3.0 };

/// While only one client uses the engine. Each prefill costs about a step more than a part of a longer one. A
/// new client waits for one unless the model can be interrupted, so more steps would delay its first token
/// beyond five times its time on a quiet server.
const ALONE: PrefillLimits = PrefillLimits { times: 2.0, steps: 14.0 };

/// Time of steps that follows a prefill of one client, in units of its time, before that client may prefill
/// again. Several clients that prefill together share it, so that none of them gets less than a part of the
/// time that its own prefill needs.
const STEPS_OWED: f64 = 2.0;

/// Work of the first prefill, whose time is unknown.
const FIRST_WORK: usize = 32;

/// Share of a new measurement in the moving average.
const WEIGHT: f64 = 0.25;

/// Factor applied to the measurement of a step that is too long, each time it is used, so that the step is
/// measured again after some time.
const FORGOTTEN: f64 = 0.995;

/// Number of steps after which the short step is measured again.
const SHORT_AGE_MAX: u32 = 64;

/// Times of steps and prefills in seconds, as moving averages.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Indexed by the logarithm of the number of rows, rounded up.
    steps: [Option<f64>; CLASSES],
    /// Number of shared steps since the last short one.
    short_age: u32,
    /// Work and seconds of the last prefills. Older ones count less.
    prefilled: Option<(f64, f64)>,
    /// Seconds of steps until the debtors may prefill again.
    steps_owed: f64,
    debtors: HashSet<u64>,
}

/// Number of step classes; the last class contains all larger steps.
const CLASSES: usize = 24;

/// Classes above that of a short step whose times stand for it while it has not been measured: with at most
/// eight times as many rows, a step mostly reads the same weights.
const FEW_CLASSES: usize = 3;

fn class(rows: usize) -> usize {
    (rows.max(1).next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1)
}

fn average(known: &mut Option<f64>, measured: f64) {
    *known = Some(known.map_or(measured, |known| known + WEIGHT * (measured - known)));
}

impl Pace {
    /// Records the time of a step. `rows` is `None` if prefills had already computed a part of it.
    pub(crate) fn measure_step(&mut self, rows: Option<usize>, time: Duration) {
        if let Some(rows) = rows {
            average(&mut self.steps[class(rows)], time.as_secs_f64());
        }
    }

    /// Records that no prefill of a debtor was computed for some time.
    pub(crate) fn pay(&mut self, time: Duration) {
        self.steps_owed -= time.as_secs_f64();
        if self.steps_owed <= 0.0 {
            self.debtors.clear();
        }
    }

    /// Records a prefill of these clients. `shared`: whether other clients use the engine, too.
    pub(crate) fn prefilled(&mut self, work: usize, time: Duration, clients: HashSet<u64>, shared: bool) {
        self.measure_prefill(work, time);
        if !shared {
            self.debtors.clear();
            return;
        }
        // Clients without debts may prefill meanwhile, but others do not wait longer because of them.
        if self.debtors.is_empty() {
            self.steps_owed = STEPS_OWED * time.as_secs_f64() / clients.len().max(1) as f64;
        }
        self.debtors.extend(clients);
    }

    /// Records the time of a prefill.
    pub(crate) fn measure_prefill(&mut self, work: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        // A chunk that had to wait for another one's prefix says nothing about the time of work.
        if work > 0 {
            let (known_work, known_seconds) = self.prefilled.unwrap_or_default();
            let kept = 1.0 - WEIGHT;
            self.prefilled = Some((kept * known_work + work as f64, kept * known_seconds + seconds));
        }
    }

    /// Returns the clients that may not prefill before further steps.
    pub(crate) fn debtors(&self) -> &HashSet<u64> {
        &self.debtors
    }

    /// Returns the maximum work of a prefill while `clients` clients use the engine, at most `work_max`.
    pub(crate) fn prefill_work_max(&self, clients: usize, time_max: Duration, work_max: usize) -> usize {
        let limits = if clients > 1 { SHARED } else { ALONE };
        let Some((work, seconds)) = self.prefilled else {
            return if time_max == Duration::MAX { work_max } else { work_max.min(FIRST_WORK) };
        };
        // Saturates if prefills took no measurable time.
        ((work * self.seconds(&limits, clients, time_max) / seconds) as usize).clamp(1, work_max.max(1))
    }

    /// Returns the time of a prefill in seconds.
    fn seconds(&self, limits: &PrefillLimits, clients: usize, time_max: Duration) -> f64 {
        let steps = limits.steps * self.short_step(clients).unwrap_or_default();
        steps.max(limits.times * time_max.as_secs_f64())
    }

    /// Returns the number of rows of a step while only one client uses the engine, at most `rows_max`: as
    /// many as take no longer than its prefills, so that a new client does not wait longer for a step. (The
    /// rows of a long prompt with log-probabilities may each attend to thousands of positions.)
    pub(crate) fn rows_max_alone(&mut self, time_max: Duration, rows_max: usize) -> usize {
        let limit = self.seconds(&ALONE, 1, time_max);
        let mut rows = rows_max;
        while let Some(seconds) = self.known(rows).filter(|&seconds| seconds > limit && rows > 1) {
            self.forget(rows, seconds, limit);
            rows /= 2;
        }
        rows
    }

    /// Lowers the measured time of a step that is too long. Removes it if it is not too long any more.
    fn forget(&mut self, rows: usize, seconds: f64, limit: f64) {
        self.steps[class(rows)] = Some(seconds * FORGOTTEN).filter(|&left| left > limit);
    }

    /// Returns the number of rows of a step that `clients` clients share, at most `rows_max`.
    pub(crate) fn rows_max(&mut self, clients: usize, rows_max: usize) -> usize {
        let short = clients.next_power_of_two().min(rows_max);
        self.short_age += 1;
        let limit = match self.known(short) {
            Some(seconds) if self.short_age < SHORT_AGE_MAX => STEP_RATIO_MAX * seconds,
            _ => {
                self.short_age = 0;
                return short;
            }
        };
        let mut rows = short;
        while rows < rows_max {
            let more = (2 * rows).min(rows_max);
            match self.known(more) {
                // The time for this many rows is unknown. This step measures it.
                None => return more,
                Some(seconds) if seconds <= limit => rows = more,
                Some(seconds) => {
                    self.forget(more, seconds, limit);
                    break;
                }
            }
        }
        rows
    }

    /// Returns the time of the shortest measured step with about `rows` rows or a few more, in seconds. The
    /// steps of number trees always have several rows.
    fn short_step(&self, rows: usize) -> Option<f64> {
        let first = class(rows);
        let last = (first + FEW_CLASSES).min(CLASSES - 1);
        self.steps[first..=last].iter().flatten().copied().reduce(f64::min)
    }

    /// Returns the time of a step with about `rows` rows, in seconds.
    fn known(&self, rows: usize) -> Option<f64> {
        self.steps[class(rows)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Pace {
        fn stepped(&mut self, rows: Option<usize>, time: Duration) {
            self.measure_step(rows, time);
            self.pay(time);
        }
    }

    /// Returns the rows of `steps` steps that two clients share on a model with the given time per number of
    /// rows.
    fn rows(seconds: impl Fn(usize) -> f64, steps: usize) -> Vec<usize> {
        let mut pace = Pace::default();
        let step = |_| {
            let rows = pace.rows_max(2, 128);
            pace.stepped(Some(rows), Duration::from_secs_f64(seconds(rows)));
            rows
        };
        (0..steps).map(step).collect()
    }

    #[test]
    fn a_step_has_all_rows_if_they_take_no_longer_than_a_few() {
        let rows = rows(|rows| 1.0 + rows as f64 / 256.0, 500);
        assert_eq!(rows[..7], [2, 4, 8, 16, 32, 64, 128]);
        let fewer = rows[7..].iter().filter(|&&rows| rows < 128).count();
        assert!(fewer <= 500 / 64, "{fewer} of 500 steps were short for measurement");
    }

    #[test]
    fn a_step_takes_about_twice_as_long_as_a_short_one_if_every_row_takes_time() {
        let seconds = |rows| 1.0 + rows as f64;
        let rows = rows(seconds, 1000);
        let mean = rows.iter().map(|&rows| seconds(rows)).sum::<f64>() / rows.len() as f64;
        assert!((3.0..2.2 * 3.0).contains(&mean), "{mean} instead of 3 for two rows");
        let longest = rows.iter().copied().max();
        assert_eq!(longest, Some(8), "no step tries more than twice the rows of one that is too long");
    }

    #[test]
    fn a_disturbed_measurement_is_repeated() {
        let mut pace = Pace::default();
        for (rows, seconds) in [(2, 1.0), (4, 50.0)] {
            pace.stepped(Some(rows), Duration::from_secs_f64(seconds));
        }
        assert_eq!(pace.rows_max(2, 128), 2);
        let has_all_rows = |_| {
            let rows = pace.rows_max(2, 128);
            pace.stepped(Some(rows), Duration::from_secs(1));
            rows == 128
        };
        assert!((0..2000).any(has_all_rows));
    }

    const LIMIT: Duration = Duration::from_millis(50);

    #[test]
    fn a_prefill_has_as_much_work_as_fits_into_its_time() {
        let mut pace = Pace::default();
        assert_eq!(pace.prefill_work_max(2, LIMIT, 4096), FIRST_WORK, "nothing was measured yet");
        assert_eq!(pace.prefill_work_max(2, Duration::MAX, 4096), 4096, "time is not limited");
        pace.prefilled(100, Duration::from_millis(20), HashSet::from([1]), true);
        assert_eq!(pace.prefill_work_max(2, LIMIT, 4096), 250);
        assert_eq!(pace.prefill_work_max(1, LIMIT, 4096), 500, "longer if nobody else waits");
        assert_eq!(pace.prefill_work_max(2, LIMIT, 200), 200);
        // Later parts of a prompt cost ten times as much.
        for _ in 0..20 {
            let work = pace.prefill_work_max(2, LIMIT, 4096);
            pace.prefilled(work, Duration::from_millis(2 * work as u64), HashSet::from([1]), true);
        }
        assert!((25..30).contains(&pace.prefill_work_max(2, LIMIT, 4096)));
        pace.stepped(Some(2), Duration::from_millis(100));
        let work = pace.prefill_work_max(2, LIMIT, 4096);
        assert!((150..180).contains(&work), "{work}: three slow steps are longer than the limit");
    }

    #[test]
    fn a_prefill_is_longer_if_all_steps_are_slow_whether_or_not_one_had_a_single_row() {
        for rows in [1, 3, 8] {
            let mut pace = Pace::default();
            pace.prefilled(100, Duration::from_millis(100), HashSet::from([1]), false);
            pace.stepped(Some(64), Duration::from_millis(900));
            assert_eq!(pace.prefill_work_max(1, LIMIT, 4096), 100, "64 rows say nothing about short steps");
            pace.stepped(Some(rows), Duration::from_millis(100));
            assert_eq!(pace.prefill_work_max(1, LIMIT, 4096), 1400, "14 steps with {rows} rows");
        }
    }

    #[test]
    fn a_step_of_one_client_has_as_many_rows_as_fit_into_the_time_of_its_prefills() {
        let mut pace = Pace::default();
        let mut longest_after = |seconds: fn(usize) -> f64, steps: usize| {
            let rows = (0..steps).map(|_| {
                let rows = pace.rows_max_alone(LIMIT, 100);
                pace.stepped(Some(rows), Duration::from_secs_f64(seconds(rows)));
                rows
            });
            let rows: Vec<usize> = rows.collect();
            rows[steps / 2..].iter().copied().max()
        };
        assert_eq!(longest_after(|rows| 0.0009 * rows as f64, 20), Some(100), "90 ms");
        assert_eq!(
            longest_after(|rows| 0.003 * rows as f64, 20),
            Some(25),
            "75 ms; the limit is twice 50 ms"
        );
        assert_eq!(longest_after(|rows| 0.0009 * rows as f64, 1000), Some(100), "measured again");
        // The time of one row is not known, until it is tried.
        assert_eq!(
            longest_after(|rows| 0.5 + 0.01 * rows as f64, 1000),
            Some(100),
            "less than 14 short steps"
        );
    }

    #[test]
    fn steps_make_up_for_the_prefills_of_each_client() {
        let mut pace = Pace::default();
        pace.prefilled(100, Duration::from_millis(20), HashSet::from([1]), false);
        assert!(pace.debtors().is_empty(), "nobody else waits");
        pace.prefilled(100, Duration::from_millis(20), HashSet::from([1]), true);
        assert_eq!(pace.debtors(), &HashSet::from([1]));
        pace.stepped(Some(2), Duration::from_millis(30));
        pace.prefilled(100, Duration::from_millis(20), HashSet::from([2]), true);
        assert_eq!(pace.debtors(), &HashSet::from([1, 2]));
        pace.stepped(Some(2), Duration::from_millis(11));
        assert!(pace.debtors().is_empty(), "the second client does not extend the wait of the first one");
        pace.prefilled(100, Duration::from_millis(20), HashSet::from([1, 2]), true);
        pace.stepped(Some(2), Duration::from_millis(20));
        assert!(pace.debtors().is_empty(), "together they wait as long as they have prefilled");
    }
}
