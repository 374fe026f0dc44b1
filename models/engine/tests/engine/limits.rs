//! Admission, scheduling order and stalled clients, with a scripted model that records its calls.

use std::sync::Arc;
use std::time::Duration;

use ntl_core::contract::{EngineError, Event, Job, NumberOutcome, Request, TextJob};
use ntl_core::guide::{Guide, GuideError, GuideState};
use ntl_engine::{CacheBudget, EndReason, EngineLimits, JobEvents};

use crate::recorder::{
    GATED, LABORIOUS, MIB, Recorded, all, job, plenty, start, start_opening, start_sharing, tree,
};

#[test]
fn clients_are_scheduled_round_robin_regardless_of_their_load() {
    let recorded = start(EngineLimits { running_max: 1, ..plenty() });
    let mut answers = vec![recorded.first(job(9, 2, 2, 1))];
    let jobs = |client, marks: std::ops::Range<u32>| marks.map(move |mark| job(client, mark, 2, 1)).collect();
    answers.extend(recorded.engine.submit_all(jobs(1, 10..15)).unwrap());
    answers.extend(recorded.engine.submit_all(jobs(2, 20..22)).unwrap());
    answers.extend(recorded.engine.submit_all(jobs(3, 30..31)).unwrap());
    let order = recorded.opened(answers).concat();
    assert_eq!(order, [2, 10, 20, 30, 11, 21, 12, 13, 14]);
}

#[test]
fn prompts_are_prefilled_together_up_to_the_model_s_maximum_number_of_tokens() {
    for (prefill_tokens_max, most) in [(None, 8), (Some(8192), 16), (Some(1 << 20), 20)] {
        let recorded = start_opening(prefill_tokens_max, plenty());
        let mut answers = vec![recorded.first(job(0, 2, 2, 50))];
        answers.extend(recorded.engine.submit_all((0..20).map(|_| job(0, 3, 512, 1)).collect()).unwrap());
        let opened = recorded.opened(answers);
        assert_eq!(opened[1].len(), most, "{prefill_tokens_max:?}: {opened:?}");
    }
}

#[test]
fn contexts_never_exceed_the_cache_and_jobs_that_cannot_fit_are_rejected() {
    // Each job has 2 prompt tokens, 8 tokens and the first row. The general pool has 25.5 MiB.
    let recorded = start(EngineLimits { cache_bytes_max: 34 * MIB, ..plenty() });
    let mut answers = vec![recorded.first(job(0, 2, 2, 8))];
    answers.extend(recorded.engine.submit_all((0..20).map(|_| job(0, 3, 2, 8)).collect()).unwrap());
    let error = recorded.engine.submit(job(0, 4, 2, 23)).unwrap_err();
    assert_eq!(error, EngineError::TooLarge { needs: 26 * MIB, max: 51 * MIB / 2 });
    assert_eq!(recorded.engine.cache_use().running, 11 * MIB);
    recorded.opened(answers);
    assert_eq!(recorded.log.lock().open_most, 2);
}

#[test]
fn an_engine_that_begins_smaller_jobs_keeps_its_place_in_line_for_memory() {
    // The general pool has 30 MiB, of which the first three jobs use 11 + 4 + 4. The next one needs 15, and
    // the other engine's 19.
    let budget = CacheBudget::new(40 * MIB);
    let recorded = start_sharing(&budget, 0, Some(8), plenty());
    let other = start_sharing(&budget, 0, None, plenty());
    let mut answers = vec![recorded.first(job(0, 2, 2, 8))];
    let (laborious, gated, waiting) = (job(0, LABORIOUS, 2, 1), job(0, GATED, 2, 1), job(0, 4, 4, 10));
    answers.extend(recorded.engine.submit_all(vec![laborious, gated, waiting]).unwrap());
    recorded.gate.send(()).unwrap();
    recorded
        .log
        .wait_for(|log| log.prefills().iter().flat_map(|chunks| *chunks).any(|(mark, _)| *mark == GATED));

    answers.push(other.engine.submit(job(1, 3, 2, 16)).unwrap());
    recorded.prefill_gate.send(()).unwrap();
    other.log.wait_for(|log| !log.calls.is_empty());
    assert!(recorded.log.lock().closed.contains_key(&4), "the other engine got the memory first");
    other.opened(answers);
}

fn outcome(events: JobEvents) -> NumberOutcome {
    match all(events).pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn trees_that_outgrow_the_memory_are_restarted_and_find_the_same_result() {
    let recorded = start(EngineLimits { cache_bytes_max: 4000 * MIB, ..plenty() });
    let trees = recorded.engine.submit_all((0..5).map(|_| tree(2000)).collect()).unwrap();
    recorded.gate.send(()).unwrap();
    let comparable = |outcome| NumberOutcome { forward_passes: 0, ..outcome };
    let outcomes: Vec<_> = trees.into_iter().map(outcome).map(comparable).collect();
    let alone = start(EngineLimits { cache_bytes_max: 40_000 * MIB, ..plenty() });
    alone.gate.send(()).unwrap();
    let want = comparable(outcome(alone.engine.submit(tree(2000)).unwrap()));
    assert!(outcomes.iter().all(|outcome| *outcome == want) && want.truncated);
    let log = recorded.log.lock();
    assert_eq!(log.open_most, 5, "all were started concurrently");
    let opened = log.prefills().into_iter().flatten().count();
    assert!((6..=10).contains(&opened), "{opened} contexts were opened for 5 trees");
    assert!(log.nodes_most <= 3000, "{} concurrent nodes", log.nodes_most);
    drop(log);
    assert_eq!(recorded.engine.cache_use().running, 0);
}

#[test]
fn a_tree_gets_a_budget_that_fits_into_the_cache() {
    let recorded = start(EngineLimits { cache_bytes_max: 400 * MIB, ..plenty() });
    recorded.gate.send(()).unwrap();
    let found = outcome(recorded.engine.submit(tree(65_536)).unwrap());
    assert!(found.truncated && (250..=300).contains(&found.nodes), "{} nodes", found.nodes);
}

#[test]
fn a_request_is_queued_completely_or_not_at_all() {
    let recorded = start(EngineLimits { queue_max: 4, running_max: 1, ..plenty() });
    let mut answers = vec![recorded.first(job(0, 2, 2, 1))];
    let jobs = |count| (0..count).map(|_| job(0, 3, 2, 1)).collect::<Vec<_>>();
    let error = recorded.engine.submit_all(jobs(5)).unwrap_err();
    assert_eq!(error, EngineError::Overloaded { waiting: 0 });
    answers.extend(recorded.engine.submit_all(jobs(3)).unwrap());
    let two = Job::new(vec![5, 1], Request::Text(TextJob { n: 2, ..TextJob::default() }));
    assert_eq!(recorded.engine.submit(two).unwrap_err(), EngineError::Overloaded { waiting: 3 });
    answers.push(recorded.engine.submit(job(0, 3, 2, 1)).unwrap());
    assert_eq!(recorded.opened(answers).concat().len(), 5);
}

/// A stalled text, and a job that waits for its memory. The text and the first job of the same request had to
/// start within `waits`, which is as short as this machine allows.
struct Waiting {
    recorded: Recorded,
    unread: JobEvents,
    second: JobEvents,
    waits: Duration,
}

fn begun_in_time() -> Waiting {
    let mut waits = Duration::from_millis(1);
    loop {
        // The only client has 6,000 MiB. The stalled text stops at 256 KiB of events and keeps its memory.
        let limits = EngineLimits { queue_time_max: Some(waits), cache_bytes_max: 8_000 * MIB, ..plenty() };
        let recorded = start(limits);
        recorded.gate.send(()).unwrap();
        let unread = recorded.engine.submit(job(0, 2, 2, 5_900)).unwrap();
        let request = vec![job(0, 3, 2, 1), job(0, 3, 2, 500)];
        let mut request = recorded.engine.submit_all(request).unwrap();
        let second = request.pop().unwrap();
        let has_begun = matches!(all(request.remove(0)).last(), Some(Event::Finished { .. }));
        if has_begun && !recorded.endings.lock().reasons.contains(&EndReason::Deadline) {
            return Waiting { recorded, unread, second, waits };
        }
        waits *= 10;
    }
}

#[test]
fn a_request_times_out_in_the_queue_unless_one_of_its_jobs_has_started() {
    let Waiting { recorded, unread, second, waits } = begun_in_time();
    let late = recorded.engine.submit(job(0, 9, 2, 1)).unwrap();
    let after_ms = waits.as_millis() as u64;
    assert_eq!(all(late), [Event::Failed(EngineError::QueueTimeout { after_ms })]);
    for events in [unread, second] {
        assert!(matches!(all(events).last(), Some(Event::Finished { .. })));
    }
    let endings = recorded.endings.lock();
    assert_eq!(endings.reasons.iter().filter(|end| **end == EndReason::Deadline).count(), 1);
}

/// Runs short jobs until the engine has stopped stepping everything else.
fn stalled(recorded: &Recorded) -> usize {
    let mut last = 0;
    loop {
        all(recorded.engine.submit(job(1, 3, 2, 4)).unwrap());
        let steps = recorded.log.lock().steps;
        // The job's own steps and no others.
        if steps - last == 4 {
            return steps;
        }
        last = steps;
    }
}

#[test]
fn unread_events_stall_only_their_own_job_until_they_are_read() {
    const LONG: usize = 6_000;
    let recorded = start(plenty());
    recorded.gate.send(()).unwrap();
    let unread = recorded.engine.submit(job(0, 2, 2, LONG)).unwrap();
    let left = recorded.engine.submit(job(0, 2, 2, LONG)).unwrap();
    // Both texts share every step, so that short jobs have separate steps only once both have stalled.
    assert!(stalled(&recorded) < LONG);
    drop(left);
    recorded.endings.wait_for(|endings| endings.reasons.contains(&EndReason::Abort));
    let events = all(unread);
    let texts = events.iter().filter(|event| matches!(event, Event::Text { .. })).count();
    assert_eq!(texts, LONG);
    assert!(matches!(events.last(), Some(Event::Finished { tokens: LONG, .. })));
}

#[test]
fn a_job_that_stays_stalled_ends_and_releases_its_memory() {
    let limits = EngineLimits { unread_time_max: Duration::ZERO, ..plenty() };
    let recorded = start(limits);
    recorded.gate.send(()).unwrap();
    let unread = recorded.engine.submit(job(0, 2, 2, 1_000_000)).unwrap();
    recorded.endings.wait_for(|endings| !endings.reasons.is_empty());
    assert_eq!(all(unread).last(), Some(&Event::Failed(EngineError::Unread { after_ms: 0 })));
    assert_eq!(recorded.endings.lock().reasons, [EndReason::Abort]);
    assert!(matches!(
        all(recorded.engine.submit(job(0, 3, 2, 1)).unwrap()).last(),
        Some(Event::Finished { .. })
    ));
    assert_eq!((recorded.engine.cache_use().running, recorded.log.lock().open.len()), (0, 0));
}

/// A constraint that fails, either at the start of a text or later.
#[derive(Debug)]
struct Faulty {
    starts: bool,
}

impl Guide for Faulty {
    fn start(&self) -> Box<dyn GuideState> {
        assert!(self.starts, "a panic that this test provokes");
        Box::new(Self { ..*self })
    }
}

impl GuideState for Faulty {
    fn restrict(&mut self, _: &mut [f32]) -> Result<(), GuideError> {
        panic!("scripted")
    }
    fn accept(&mut self, _: u32) -> Result<(), GuideError> {
        Ok(())
    }
    fn is_complete(&mut self) -> bool {
        false
    }
}

#[test]
fn a_panic_while_decoding_fails_its_job_and_the_engine_continues() {
    let recorded = start(plenty());
    recorded.gate.send(()).unwrap();
    for starts in [true, false] {
        let text = TextJob { guide: Some(Arc::new(Faulty { starts })), ..TextJob::default() };
        let failed = all(recorded.engine.submit(Job::new(vec![2, 1], Request::Text(text))).unwrap());
        assert_eq!(failed, [Event::Failed(EngineError::Step("the decoding panicked".to_owned()))]);
    }
    assert!(matches!(
        all(recorded.engine.submit(job(0, 2, 2, 1)).unwrap()).last(),
        Some(Event::Finished { .. })
    ));
    assert!(recorded.engine.is_alive());
    assert_eq!(recorded.endings.lock().panics, 2);
}
