//! Schedules requests. A closed loop keeps a fixed number of requests in flight. An open loop sends requests
//! at the times of a Poisson process, regardless of how the server handles the earlier ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::target::{Target, Timing};
use super::workload::Workload;

#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Timings of all requests that were sent.
    pub timings: Vec<Timing>,
    /// Number of requests that were due but not sent, because `in_flight_max` others were unanswered.
    pub dropped: usize,
    /// Time from the first request to the last answer.
    pub seconds: f64,
    /// CPU time that the target used, if known.
    pub processor: Option<Duration>,
}

/// Keeps `concurrency` requests in flight until `requests` have been sent.
pub async fn closed_loop(target: &Target, workload: &Workload, concurrency: usize, requests: usize) -> Run {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..concurrency {
        let target = target.clone();
        let workload = workload.clone();
        let next = Arc::clone(&next);
        clients.spawn(async move {
            let mut timings = Vec::new();
            loop {
                let request = next.fetch_add(1, Ordering::Relaxed);
                if request >= requests {
                    return timings;
                }
                timings.push(target.ask(&workload, request, Instant::now()).await);
            }
        });
    }
    let timings = clients.join_all().await.concat();
    Run { timings, seconds: start.elapsed().as_secs_f64(), ..Run::default() }
}

/// Poisson arrivals.
#[derive(Debug, Clone, Copy)]
pub struct Arrivals {
    /// Mean number of requests per second.
    pub rate: f64,
    pub duration: Duration,
    /// A request that is due while this many are unanswered is dropped and counted.
    pub in_flight_max: usize,
    pub seed: u64,
}

/// Measures each latency from the time when its request was due, so that a slow server cannot hide latency by
/// delaying later requests.
pub async fn open_loop(target: &Target, workload: &Workload, arrivals: Arrivals) -> Run {
    let slots = Arc::new(Semaphore::new(arrivals.in_flight_max));
    let start = Instant::now();
    let mut dropped = 0;
    let mut running = JoinSet::new();
    for (request, due) in due_times(arrivals).into_iter().enumerate() {
        let due = start + due;
        tokio::time::sleep_until(due.into()).await;
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            dropped += 1;
            continue;
        };
        let target = target.clone();
        let workload = workload.clone();
        running.spawn(async move {
            let _slot = slot;
            target.ask(&workload, request, due).await
        });
    }
    let timings = running.join_all().await;
    Run { timings, dropped, seconds: start.elapsed().as_secs_f64(), ..Run::default() }
}

/// Returns due times with exponentially distributed gaps.
fn due_times(arrivals: Arrivals) -> Vec<Duration> {
    let mut rng = ChaCha8Rng::seed_from_u64(arrivals.seed);
    let mut times = Vec::new();
    let mut due = 0.0;
    loop {
        due -= (1.0 - rng.random::<f64>()).ln() / arrivals.rate;
        if due >= arrivals.duration.as_secs_f64() {
            return times;
        }
        times.push(Duration::from_secs_f64(due));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_loop_arrivals_have_the_requested_rate_and_exponential_gaps() {
        let arrivals = Arrivals { rate: 50.0, duration: Duration::from_secs(100), in_flight_max: 1, seed: 3 };
        let due = due_times(arrivals);
        assert!((4700..5300).contains(&due.len()), "{} in 100 s at 50 per second", due.len());
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(
            (variance.sqrt() / mean - 1.0).abs() < 0.1,
            "the standard deviation of exponential gaps is their mean"
        );
        assert_eq!(due, due_times(arrivals));
    }
}
