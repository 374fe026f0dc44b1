//! How much a step or an opening may take on while several clients share the engine: so much that a client's next token
//! waits only about twice as long as it would alone.
//!
//! The time of a step of few rows is compared with that of many. Where the weights are read from memory, many rows take little
//! longer than few, and nothing is limited; where the rows are computed one after the other, smaller steps cost no throughput.
//! Answers do not depend on it.

use std::time::Duration;

/// A step of a shared engine takes at most about this many times as long as one with a row for each client.
const STEP_RATIO_MAX: f64 = 2.0;

/// An opening takes at most about as long as this many such steps, if it is more than one prompt.
const OPENING_STEPS: f64 = 8.0;

/// Share of a new measurement in the moving average.
const WEIGHT: f64 = 0.25;

/// What a measurement of too long a step is multiplied with each time it counts, so that it is repeated after some time.
const FORGOTTEN: f64 = 0.995;

/// Steps after which the short step is measured again.
const SHORT_AGE_MAX: u32 = 64;

/// Seconds of steps and openings, as moving averages.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// By the logarithm of the number of rows, rounded up.
    steps: [Option<f64>; CLASSES],
    opened_token: Option<f64>,
    /// Shared steps since the last short one.
    short_age: u32,
    /// Seconds of openings that steps have not made up for yet.
    opening_debt: f64,
}

/// Classes of steps; the last one is for all larger ones.
const CLASSES: usize = 24;

fn class(rows: usize) -> usize {
    (rows.max(1).next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1)
}

fn average(known: &mut Option<f64>, measured: f64) {
    *known = Some(known.map_or(measured, |known| known + WEIGHT * (measured - known)));
}

impl Pace {
    pub(crate) fn stepped(&mut self, rows: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        average(&mut self.steps[class(rows)], seconds);
        self.opening_debt = (self.opening_debt - seconds).max(0.0);
    }

    pub(crate) fn opened(&mut self, tokens: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        average(&mut self.opened_token, seconds / tokens.max(1) as f64);
        self.opening_debt += seconds;
    }

    /// Whether openings have taken more time than the steps since.
    pub(crate) fn owes_steps(&self) -> bool {
        self.opening_debt > 0.0
    }

    /// Rows of a step that this many clients share, at most `rows_max`.
    pub(crate) fn rows_max(&mut self, clients: usize, rows_max: usize) -> usize {
        let short = clients.next_power_of_two().min(rows_max);
        self.short_age += 1;
        let Some(limit) = self.known(short).filter(|_| self.short_age < SHORT_AGE_MAX) else {
            self.short_age = 0;
            return short;
        };
        let limit = STEP_RATIO_MAX * limit;
        let mut rows = short;
        while rows < rows_max {
            let more = (2 * rows).min(rows_max);
            match self.known(more) {
                // It is not known how long they take: this step shows it.
                None => return more,
                Some(seconds) if seconds <= limit => rows = more,
                Some(seconds) => {
                    let left = seconds * FORGOTTEN;
                    self.steps[class(more)] = Some(left).filter(|&left| left > limit);
                    break;
                }
            }
        }
        rows
    }

    /// Seconds of a step with about so many rows.
    fn known(&self, rows: usize) -> Option<f64> {
        self.steps[class(rows)]
    }

    /// Prompt tokens to open together while several clients share the engine.
    pub(crate) fn open_tokens_max(&self, clients: usize, tokens_max: usize) -> usize {
        self.known(clients)
            .zip(self.opened_token)
            .map_or(tokens_max, |(step, token)| ((OPENING_STEPS * step / token) as usize).min(tokens_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of so many steps that two clients share on a model with this time for each number of rows.
    fn rows(seconds: impl Fn(usize) -> f64, steps: usize) -> Vec<usize> {
        let mut pace = Pace::default();
        let step = |_| {
            let rows = pace.rows_max(2, 128);
            pace.stepped(rows, Duration::from_secs_f64(seconds(rows)));
            rows
        };
        (0..steps).map(step).collect()
    }

    #[test]
    fn a_step_has_all_rows_where_they_take_no_longer_than_few() {
        let rows = rows(|rows| 1.0 + rows as f64 / 256.0, 500);
        assert_eq!(rows[..7], [2, 4, 8, 16, 32, 64, 128]);
        let fewer = rows[7..].iter().filter(|&&rows| rows < 128).count();
        assert!(fewer <= 500 / 64, "{fewer} of 500 steps were short, to measure them");
    }

    #[test]
    fn a_step_takes_about_twice_as_long_as_a_short_one_where_every_row_costs() {
        let seconds = |rows| 1.0 + rows as f64;
        let rows = rows(seconds, 1000);
        let mean = rows.iter().map(|&rows| seconds(rows)).sum::<f64>() / rows.len() as f64;
        assert!((3.0..2.2 * 3.0).contains(&mean), "{mean} instead of 3 for two rows");
        let longest = rows.iter().copied().max();
        assert_eq!(longest, Some(8), "no step tries more than twice the rows of one that is too long");
    }

    #[test]
    fn a_measurement_that_was_disturbed_is_repeated() {
        let mut pace = Pace::default();
        for (rows, seconds) in [(2, 1.0), (4, 50.0)] {
            pace.stepped(rows, Duration::from_secs_f64(seconds));
        }
        assert_eq!(pace.rows_max(2, 128), 2);
        let has_all_rows = |_| {
            let rows = pace.rows_max(2, 128);
            pace.stepped(rows, Duration::from_secs(1));
            rows == 128
        };
        assert!((0..2000).any(has_all_rows));
    }

    #[test]
    fn openings_are_as_long_as_some_steps_and_steps_make_up_for_them() {
        let mut pace = Pace::default();
        assert_eq!(pace.open_tokens_max(2, 4096), 4096, "nothing is known");
        pace.stepped(2, Duration::from_millis(10));
        pace.opened(100, Duration::from_millis(20));
        assert_eq!(pace.open_tokens_max(2, 4096), 400);
        assert!(pace.owes_steps());
        pace.stepped(2, Duration::from_millis(10));
        assert!(pace.owes_steps());
        pace.stepped(2, Duration::from_millis(10));
        assert!(!pace.owes_steps());
    }
}
