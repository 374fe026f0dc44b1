//! What an engine takes on, in which order, and what it does when nobody reads: with a scripted model that writes down
//! how it is called.

use std::sync::Arc;
use std::time::Duration;

use ntl_core::engine::{EngineError, Event, Job, NumberOutcome, Request, TextJob};
use ntl_core::sampling::{Guide, GuideError, GuideState};
use ntl_engine::{EndReason, EngineLimits, JobEvents};

use crate::recorder::{MIB, Recorded, all, job, plenty, start, start_opening, tree};

#[test]
fn clients_take_turns_however_much_each_asks_for() {
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
fn long_prompts_are_opened_alone_and_starve_nobody() {
    let recorded = start_opening(Some(10), plenty());
    let mut answers = vec![recorded.first(job(9, 2, 2, 50))];
    let long = (10..13).map(|mark| job(1, mark, 100, 1)).collect();
    answers.extend(recorded.engine.submit_all(long).unwrap());
    let short = (20..26).map(|mark| job(2, mark, 4, 1)).collect();
    answers.extend(recorded.engine.submit_all(short).unwrap());
    let opened = recorded.opened(answers);
    let of = |marks: std::ops::Range<u32>| {
        let all = opened.iter().flatten().copied();
        all.filter(|mark| marks.contains(mark)).collect::<Vec<_>>()
    };
    assert_eq!((of(10..13), of(20..26)), ((10..13).collect(), (20..26).collect()));
    for together in &opened {
        let long = together.iter().any(|mark| (10..13).contains(mark));
        assert!(together.len() <= if long { 1 } else { 2 }, "{opened:?}");
    }
    let of_long = |mark: u32| opened.iter().position(|together| together.contains(&mark)).unwrap();
    assert!(of_long(20) < of_long(11), "the second client does not wait for all prompts of the first");
    // One step between two openings: the first text went on all the while.
    assert!(recorded.log.lock().steps >= 50);
}

#[test]
fn prompts_are_opened_together_up_to_as_many_tokens_as_the_model_states() {
    for (open_tokens_max, most) in [(None, 8), (Some(8192), 16), (Some(1 << 20), 20)] {
        let recorded = start_opening(open_tokens_max, plenty());
        let mut answers = vec![recorded.first(job(0, 2, 2, 50))];
        answers.extend(recorded.engine.submit_all((0..20).map(|_| job(0, 3, 512, 1)).collect()).unwrap());
        let opened = recorded.opened(answers);
        assert_eq!(opened[1].len(), most, "{open_tokens_max:?}: {opened:?}");
    }
}

#[test]
fn contexts_never_hold_more_than_the_cache_and_what_cannot_fit_is_refused() {
    // Each job: 2 prompt tokens, 8 tokens and the first row. 25.5 MiB are for any job.
    let recorded = start(EngineLimits { cache_bytes_max: 34 * MIB, ..plenty() });
    let mut answers = vec![recorded.first(job(0, 2, 2, 8))];
    answers.extend(recorded.engine.submit_all((0..20).map(|_| job(0, 3, 2, 8)).collect()).unwrap());
    let error = recorded.engine.submit(job(0, 4, 2, 23)).unwrap_err();
    assert_eq!(error, EngineError::TooLarge { needs: 26 * MIB, max: 51 * MIB / 2 });
    assert_eq!(recorded.engine.cache_use().running, 11 * MIB);
    recorded.opened(answers);
    assert_eq!(recorded.log.lock().open_most, 2);
}

fn outcome(events: JobEvents) -> NumberOutcome {
    match all(events).pop() {
        Some(Event::Number(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn trees_that_outgrow_the_memory_start_again_and_find_the_same() {
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
    assert_eq!(log.open_most, 5, "all were begun at once");
    let opened = log.opened.concat().len();
    assert!((6..=10).contains(&opened), "{opened} contexts were opened for 5 trees");
    assert!(log.nodes_most <= 3000, "{} nodes at once", log.nodes_most);
    drop(log);
    assert_eq!(recorded.engine.cache_use().running, 0);
}

#[test]
fn a_tree_gets_the_budget_that_the_cache_can_hold() {
    let recorded = start(EngineLimits { cache_bytes_max: 400 * MIB, ..plenty() });
    recorded.gate.send(()).unwrap();
    let found = outcome(recorded.engine.submit(tree(65_536)).unwrap());
    assert!(found.truncated && (250..=300).contains(&found.nodes), "{} nodes", found.nodes);
}

#[test]
fn a_request_is_taken_whole_or_not_at_all() {
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

/// A text that nobody reads, and a job that waits for its memory. The text and the first job of the same request had to begin
/// within `waits`, which is as short as this machine is fast.
struct Waiting {
    recorded: Recorded,
    unread: JobEvents,
    second: JobEvents,
    waits: Duration,
}

fn begun_in_time() -> Waiting {
    let mut waits = Duration::from_millis(1);
    loop {
        // 6,000 MiB for the only client. The unread text stops at 256 KiB of events and keeps its memory.
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
fn a_request_that_waits_too_long_is_given_up_unless_a_part_of_it_has_begun() {
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

/// Answers short jobs until the engine has stopped stepping everything else.
fn stalled(recorded: &Recorded) -> usize {
    let mut last = 0;
    loop {
        all(recorded.engine.submit(job(1, 3, 2, 4)).unwrap());
        let steps = recorded.log.lock().steps;
        // Its own steps and no others.
        if steps - last == 4 {
            return steps;
        }
        last = steps;
    }
}

#[test]
fn events_that_nobody_reads_stop_their_job_and_no_other_until_they_are_read() {
    const LONG: usize = 6_000;
    let recorded = start(plenty());
    recorded.gate.send(()).unwrap();
    let unread = recorded.engine.submit(job(0, 2, 2, LONG)).unwrap();
    let left = recorded.engine.submit(job(0, 2, 2, LONG)).unwrap();
    // Both share every step, so that short jobs have steps to themselves only once both have stopped.
    assert!(stalled(&recorded) < LONG);
    drop(left);
    recorded.endings.wait_for(|endings| endings.reasons.contains(&EndReason::Abort));
    let events = all(unread);
    let texts = events.iter().filter(|event| matches!(event, Event::Text { .. })).count();
    assert_eq!(texts, LONG);
    assert!(matches!(events.last(), Some(Event::Finished { tokens: LONG, .. })));
}

#[test]
fn a_job_whose_events_nobody_reads_ends_after_a_while_and_frees_its_memory() {
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

/// A constraint with a fault in it, or one that fails already at the beginning of a text.
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
fn a_panic_while_decoding_fails_its_job_and_the_engine_goes_on() {
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
