//! The effect of one client's load on another client, in steps and rows.

use ntl_core::contract::{Event, Job, Request, TextJob};
use ntl_engine::{EngineLimits, JobEvents};

use crate::recorder::{Call, GATED, MIB, Recorded, all, job, plenty, start, start_with_layers, tree};

/// The client with little work.
const OTHER: u64 = 2;

/// First id of its prompts.
const MARK: u32 = 11;

/// Starts the first step, which waits at the gate, with jobs of client 1.
fn crowded(limits: EngineLimits, jobs: Vec<Job>) -> (Recorded, Vec<JobEvents>) {
    let recorded = start(limits);
    let crowd = recorded.engine.submit_all(jobs).unwrap();
    recorded.log.wait_for(|log| log.stepping);
    (recorded, crowd)
}

fn texts(count: usize, n: u32, max_tokens: usize) -> Vec<Job> {
    let text = TextJob { n, best_of: n, max_tokens, ..TextJob::default() };
    let job = Job { client: 1, ..Job::new(vec![2, 1], Request::Text(text)) };
    vec![job; count]
}

/// Returns the number of steps from the first one until a four-token text of the other client is complete.
fn steps_beside(recorded: &Recorded) -> usize {
    let events = recorded.engine.submit(job(OTHER, MARK, 2, 4)).unwrap();
    recorded.gate.send(()).unwrap();
    assert!(matches!(all(events).last(), Some(Event::Finished { tokens: 4, .. })));
    recorded.log.lock().closed[&MARK]
}

#[test]
fn a_client_without_running_jobs_needs_the_same_steps_under_any_load() {
    let limits = EngineLimits { running_max: 8, step_rows_max: 8, ..plenty() };
    for (name, jobs) in [
        ("many texts", texts(50, 1, 200)),
        ("texts of many choices", texts(2, 128, 50)),
        ("trees", vec![Job { client: 1, ..tree(3000) }; 50]),
    ] {
        let (recorded, crowd) = crowded(limits, jobs);
        let steps = steps_beside(&recorded);
        assert!(steps <= 1 + 4, "{steps} steps under {name}: one was in progress, four are its own");
        drop(crowd);
    }
}

/// Returns the calls of a model with eight layers, after a four-token text of the other client that arrives
/// during the first step of these jobs is complete.
fn calls_beside(jobs: Vec<Job>) -> Vec<Call> {
    let recorded = start_with_layers(8, None, plenty());
    let crowd = recorded.engine.submit_all(jobs).unwrap();
    recorded.log.wait_for(|log| log.stepping);
    let events = recorded.engine.submit(job(OTHER, MARK, 2, 4)).unwrap();
    // The crowd's client may leave while its step is interrupted.
    drop(crowd);
    recorded.gate.send(()).unwrap();
    assert!(matches!(all(events).last(), Some(Event::Finished { tokens: 4, .. })));
    recorded.log.wait_for(|log| log.closed.len() == 2 && log.open.is_empty());
    recorded.log.lock().calls.clone()
}

#[test]
fn a_client_that_arrives_during_a_step_of_the_only_one_does_not_wait_for_its_end() {
    for (name, jobs) in [("texts", texts(9, 4, 200)), ("a tree", vec![Job { client: 1, ..tree(3000) }])] {
        let calls = calls_beside(jobs);
        let mine = |call: &Call| matches!(call, Call::Step(rows) if rows.contains_key(&MARK));
        let steps: Vec<&Call> = calls.iter().filter(|call| matches!(call, Call::Step(_))).collect();
        assert!(steps[..4].iter().all(|call| mine(call)), "{name}: {steps:?}");
        assert!(!mine(steps[4]), "{name}: the crowd's first step ends");
    }
}

#[test]
fn an_interrupted_client_continues_as_if_nothing_had_happened() {
    let text = |recorded: &Recorded| {
        let events = recorded.engine.submit(job(1, 2, 2, 50)).unwrap();
        recorded.log.wait_for(|log| log.stepping);
        events
    };
    let alone = start(plenty());
    let events = text(&alone);
    alone.gate.send(()).unwrap();
    let want = format!("{:?}", all(events));
    let recorded = start_with_layers(2, None, plenty());
    let events = text(&recorded);
    let submit = |other: u64| recorded.engine.submit(job(OTHER + other % 3, MARK, 2, 9)).unwrap();
    let others: Vec<_> = (0..40).map(submit).collect();
    recorded.gate.send(()).unwrap();
    for events in others {
        assert!(matches!(all(events).last(), Some(Event::Finished { tokens: 9, .. })));
    }
    assert_eq!(format!("{:?}", all(events)), want);
}

#[test]
fn a_client_that_arrives_during_a_prefill_of_the_only_one_does_not_wait_for_its_end() {
    let recorded = start_with_layers(8, None, plenty());
    let crowd = recorded.engine.submit(job(1, GATED, 50, 4)).unwrap();
    recorded.log.wait_for(|log| !log.calls.is_empty());
    let events = recorded.engine.submit(job(OTHER, MARK, 2, 4)).unwrap();
    recorded.prefill_gate.send(()).unwrap();
    recorded.gate.send(()).unwrap();
    for events in [events, crowd] {
        assert!(matches!(all(events).last(), Some(Event::Finished { tokens: 4, .. })));
    }
    let log = recorded.log.lock();
    let first = log.rows()[0].clone();
    assert!(first.contains_key(&MARK) && !first.contains_key(&GATED), "{first:?}");
}

#[test]
fn memory_is_reserved_for_clients_without_running_jobs() {
    // 30 MiB are in the general pool and 10 are reserved. A text of the crowd needs 2 + 13.
    let limits = EngineLimits { cache_bytes_max: 41 * MIB, ..plenty() };
    let (recorded, crowd) = crowded(limits, texts(5, 1, 12));
    // Each needs 2 + 5: the first is admitted immediately, the second when the crowd releases memory.
    let second = recorded.engine.submit_all(vec![job(OTHER, 10, 2, 4), job(OTHER, 10, 2, 4)]).unwrap();
    recorded.gate.send(()).unwrap();
    for events in crowd.into_iter().chain(second) {
        assert!(matches!(all(events).last(), Some(Event::Finished { .. })));
    }
    let log = recorded.log.lock();
    let prefills = log.prefills();
    assert_eq!(prefills[..2], [&vec![(2, 2), (2, 2)], &vec![(10, 2)]]);
    assert_eq!(log.open_most, 3);
}

#[test]
fn clients_share_the_rows_of_a_step_regardless_of_their_number_of_jobs() {
    let limits = EngineLimits { step_rows_max: 8, ..plenty() };
    let (recorded, crowd) = crowded(limits, texts(40, 4, 100));
    let text = TextJob { n: 16, best_of: 16, max_tokens: 20, ..TextJob::default() };
    let other = Job { client: OTHER, ..Job::new(vec![MARK, 1], Request::Text(text)) };
    let events = recorded.engine.submit(other).unwrap();
    recorded.gate.send(()).unwrap();
    assert_eq!(all(events).iter().filter(|event| matches!(event, Event::Finished { .. })).count(), 16);
    drop(crowd);
    let log = recorded.log.lock();
    // The first row of a job serves all its texts. Near the end, fewer rows are left.
    let mut shared = 0;
    let all_rows = log.rows();
    let begun = all_rows.iter().position(|rows| rows.contains_key(&MARK)).unwrap();
    for rows in &all_rows[begun + 1..log.closed[&MARK]] {
        let all = rows.values().sum::<usize>();
        let own = rows.get(&MARK).copied().unwrap_or(0);
        shared += usize::from(own >= all / 2);
    }
    let steps = log.closed[&MARK] - begun;
    assert!(steps >= 40 && steps - shared <= 20, "half of the rows in {shared} of {steps} steps");
}

#[test]
fn stalled_jobs_do_not_count_as_running() {
    let limits = EngineLimits { running_max: 8, ..plenty() };
    let recorded = start(limits);
    recorded.gate.send(()).unwrap();
    let unread: Vec<_> = (0..6).map(|_| recorded.engine.submit(job(1, 2, 2, 6_000)).unwrap()).collect();
    // The jobs belong to the same client, so that nothing is reserved for them. They are answered once the
    // others have stalled.
    for _ in 0..3 {
        let events = all(recorded.engine.submit(job(1, 3, 2, 4)).unwrap());
        assert!(matches!(events.last(), Some(Event::Finished { tokens: 4, .. })));
    }
    for events in unread {
        assert!(matches!(all(events).last(), Some(Event::Finished { tokens: 6_000, .. })));
    }
}
