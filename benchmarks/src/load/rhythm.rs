//! When requests are sent: as soon as another is answered (closed loop), or at random times of a given rate whatever
//! becomes of the others (open loop, Poisson arrivals), which is how strangers come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Target, Timing, Workload};

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Of every request that was sent.
    pub timings: Vec<Timing>,
    /// Requests that were due but not sent, because too many were still unanswered.
    pub dropped: usize,
    /// From the first request to the last answer.
    pub seconds: f64,
}

/// Keeps `concurrency` requests unanswered until `requests` have been asked.
pub async fn closed(target: &Target, workload: &Workload, concurrency: usize, requests: usize) -> Run {
    let (next, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let mut clients = JoinSet::new();
    for _ in 0..concurrency {
        let (target, workload, next) = (target.clone(), workload.clone(), Arc::clone(&next));
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
    Run { timings, dropped: 0, seconds: start.elapsed().as_secs_f64() }
}

/// How strangers come.
#[derive(Debug, Clone, Copy)]
pub struct Arrivals {
    /// Requests a second, on average.
    pub rate: f64,
    /// For how long.
    pub time: Duration,
    /// More unanswered requests than this are not sent but counted as dropped.
    pub in_flight_max: usize,
    /// Same seed, same times.
    pub seed: u64,
}

/// Sends requests at random times. Latencies count from when a request was due, so that a server that keeps everyone
/// waiting cannot hide it.
pub async fn open(target: &Target, workload: &Workload, arrivals: Arrivals) -> Run {
    let places = Arc::new(Semaphore::new(arrivals.in_flight_max));
    let (start, mut dropped, mut running) = (Instant::now(), 0, JoinSet::new());
    for (request, due) in due_times(arrivals).into_iter().enumerate() {
        let due = start + due;
        tokio::time::sleep_until(due.into()).await;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            dropped += 1;
            continue;
        };
        let (target, workload) = (target.clone(), workload.clone());
        running.spawn(async move {
            let _place = place;
            target.ask(&workload, request, due).await
        });
    }
    let timings = running.join_all().await;
    Run { timings, dropped, seconds: start.elapsed().as_secs_f64() }
}

/// Times of a Poisson process: gaps are exponentially distributed.
fn due_times(arrivals: Arrivals) -> Vec<Duration> {
    let mut rng = ChaCha8Rng::seed_from_u64(arrivals.seed);
    let mut due = 0.0;
    let mut next = || {
        due -= (1.0 - rng.random::<f64>()).ln() / arrivals.rate;
        due
    };
    std::iter::from_fn(|| Some(next()))
        .take_while(|&due| due < arrivals.time.as_secs_f64())
        .map(Duration::from_secs_f64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_come_at_the_rate_asked_for_and_at_random() {
        let arrivals = Arrivals { rate: 50.0, time: Duration::from_secs(100), in_flight_max: 1, seed: 3 };
        let due = due_times(arrivals);
        assert!((4700..5300).contains(&due.len()), "{} in 100 s at 50 a second", due.len());
        let gaps: Vec<f64> = due.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.1, "exponential gaps deviate by their mean");
        assert_eq!(due, due_times(arrivals));
    }
}
