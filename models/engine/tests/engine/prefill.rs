//! Prompts that are computed in chunks: what they delay, and how they end. Except on a device with a scripted
//! time, time is not limited here, only the work of a prefill, so that chunks are exact.

use std::time::{Duration, Instant};

use ntl_core::contract::{EngineError, Event, Job};
use ntl_engine::{EndReason, EngineLimits, JobEvents};

use crate::recorder::{
    CACHED, Call, DEVICE_TIME, FAILING, GATED, ON_DEVICE, Recorded, UNCACHED_TOKENS, all, job, plenty,
    start_opening,
};

/// Work of one prefill.
const CHUNK: usize = 10;

/// First ids of prompts.
const LONG: u32 = 10;
const SHORT: u32 = 11;

fn start() -> Recorded {
    start_opening(Some(CHUNK), plenty())
}

fn submit(recorded: &Recorded, job: Job) -> JobEvents {
    recorded.engine.submit(job).unwrap()
}

fn finishes(events: JobEvents) {
    assert!(matches!(all(events).last(), Some(Event::Finished { .. })));
}

/// Returns how much of each prompt with this first id was computed by each prefill.
fn chunks(recorded: &Recorded, mark: u32) -> Vec<usize> {
    let log = recorded.log.lock();
    log.prefills().into_iter().flatten().filter(|(found, _)| *found == mark).map(|(_, work)| *work).collect()
}

/// Waits until `count` prefills have begun.
fn wait_for_prefills(recorded: &Recorded, count: usize) {
    recorded.log.wait_for(|log| log.prefills().len() >= count);
}

#[test]
fn a_long_prompt_delays_the_steps_of_another_client_by_one_chunk_at_a_time() {
    let recorded = start();
    let running = recorded.first(job(1, SHORT, 2, 1_000));
    let long = submit(&recorded, job(2, LONG, 95, 1));
    recorded.gate.send(()).unwrap();
    finishes(long);
    finishes(running);
    assert_eq!(chunks(&recorded, LONG), [vec![CHUNK; 9], vec![5]].concat());
    let log = recorded.log.lock();
    let is_step = |call: &Call| matches!(call, Call::Step(rows) if rows.contains_key(&SHORT));
    let last = log.calls.iter().rposition(is_step).unwrap();
    let waits = log.calls[..last].split(is_step).map(<[Call]>::len);
    assert_eq!(waits.skip(1).max(), Some(1), "one call at most between two steps: {:?}", log.calls);
}

#[test]
fn a_prefill_has_as_many_prompts_as_the_work_for_their_uncached_tokens_allows() {
    let recorded = start();
    let answers = recorded.engine.submit_all(vec![job(1, CACHED, CHUNK + 2, 1); 7]).unwrap();
    recorded.gate.send(()).unwrap();
    answers.into_iter().for_each(finishes);
    let prompt = (CACHED, UNCACHED_TOKENS);
    assert_eq!(recorded.log.lock().prefills(), [&vec![prompt; 5], &vec![prompt; 2]]);
}

#[test]
fn a_chunk_takes_as_long_as_the_limit_on_a_device_that_computes_after_the_call() {
    const LIMIT: Duration = Duration::from_millis(50);
    let recorded = start_opening(None, EngineLimits { prefill_time_max: LIMIT, ..plenty() });
    recorded.gate.send(()).unwrap();
    finishes(submit(&recorded, job(1, ON_DEVICE, 32 + 30, 1)));
    // The first chunk measures the time. The others may take twice the limit, because no other request waits.
    let fitting = (2 * LIMIT).div_duration_f64(DEVICE_TIME) as usize;
    assert_eq!(chunks(&recorded, ON_DEVICE), [32, fitting, fitting, 30 - 2 * fitting]);
}

#[test]
fn a_short_prompt_overtakes_the_rest_of_another_client_s_long_prompt() {
    let recorded = start();
    let long = submit(&recorded, job(1, GATED, 95, 1));
    let after = submit(&recorded, job(1, LONG, 2, 1));
    wait_for_prefills(&recorded, 1);
    let short = submit(&recorded, job(2, SHORT, 4, 1));
    recorded.gate.send(()).unwrap();
    for _ in 0..10 {
        recorded.prefill_gate.send(()).unwrap();
    }
    [long, after, short].into_iter().for_each(finishes);
    let log = recorded.log.lock();
    assert_eq!(log.prefills()[..2], [&vec![(GATED, 10)], &vec![(SHORT, 4), (GATED, 6)]]);
    let last = log.prefills().into_iter().flatten().next_back();
    assert_eq!(last, Some(&(LONG, 2)), "prompts of one client keep their order");
}

#[test]
fn a_client_s_many_prompts_do_not_delay_another_client_s_prompt() {
    let recorded = start_opening(Some(1000), plenty());
    let many = recorded.engine.submit_all(vec![job(1, LONG, 400, 4); 1024]).unwrap();
    recorded.log.wait_for(|log| log.stepping);
    let before = recorded.log.lock().prefills().len();
    let short = submit(&recorded, job(2, SHORT, 20, 4));
    recorded.gate.send(()).unwrap();
    finishes(short);
    let log = recorded.log.lock();
    assert!(log.prefills()[before].contains(&(SHORT, 20)), "{:?}", log.prefills()[before]);
    assert!(log.closed[&SHORT] <= 1 + 4, "one step was in progress, four are its own");
    drop(log);
    drop(many);
}

#[test]
fn clients_share_a_prefill_and_the_prompts_of_one_client_are_computed_one_after_the_other() {
    let recorded = start();
    let first = submit(&recorded, job(1, GATED, 60, 1));
    wait_for_prefills(&recorded, 1);
    let jobs = |client, mark| vec![job(client, mark, 60, 1), job(client, mark + 10, 60, 1)];
    let mut others = recorded.engine.submit_all(jobs(2, 20)).unwrap();
    others.extend(recorded.engine.submit_all(jobs(3, 40)).unwrap());
    recorded.gate.send(()).unwrap();
    for _ in 0..60 {
        recorded.prefill_gate.send(()).unwrap();
    }
    finishes(first);
    others.into_iter().for_each(finishes);
    for mark in [GATED, 20, 30, 40, 50] {
        assert_eq!(chunks(&recorded, mark).iter().sum::<usize>(), 60, "prompt {mark}");
    }
    let log = recorded.log.lock();
    let third = log.prefills()[3];
    assert_eq!(third.len(), 3, "each client has a chunk: {third:?}");
    assert!(third.iter().all(|(_, work)| (3..=4).contains(work)), "{third:?}");
    for prompts in log.prefills() {
        assert!(prompts.iter().map(|(_, work)| work).sum::<usize>() <= CHUNK, "{prompts:?}");
        let has = |mark| prompts.iter().any(|(found, _)| *found == mark);
        assert!(!(has(20) && has(30) && has(40) && has(50)), "{prompts:?}");
    }
}

#[test]
fn a_client_that_leaves_ends_the_prefill_of_its_prompt_after_the_current_chunk() {
    let recorded = start();
    recorded.gate.send(()).unwrap();
    let long = submit(&recorded, job(1, GATED, 95, 1));
    wait_for_prefills(&recorded, 1);
    recorded.prefill_gate.send(()).unwrap();
    wait_for_prefills(&recorded, 2);
    assert_eq!(recorded.engine.cache_use().running, 97 << 20);
    drop(long);
    recorded.prefill_gate.send(()).unwrap();
    recorded.endings.wait_for(|endings| !endings.reasons.is_empty());
    assert_eq!(recorded.endings.lock().reasons, [EndReason::Abort]);
    assert_eq!((recorded.engine.cache_use().running, recorded.log.lock().open.len()), (0, 0));
    finishes(submit(&recorded, job(1, SHORT, 4, 1)));
    assert_eq!(chunks(&recorded, GATED), [10, 10]);
}

#[test]
fn a_deadline_ends_a_prefill_after_the_current_chunk() {
    let mut after = Duration::from_millis(10);
    loop {
        let recorded = start();
        let at = Instant::now() + after;
        let late = submit(&recorded, Job { deadline: Some((at, after)), ..job(1, GATED, 95, 1) });
        while Instant::now() <= at {
            std::thread::yield_now();
        }
        recorded.prefill_gate.send(()).unwrap();
        let after_ms = after.as_millis() as u64;
        assert_eq!(all(late), [Event::Failed(EngineError::Deadline { after_ms })]);
        assert_eq!((recorded.engine.cache_use().running, recorded.log.lock().open.len()), (0, 0));
        if chunks(&recorded, GATED) == [10] {
            return;
        }
        // The machine was so busy that the deadline passed before the first chunk.
        after *= 10;
    }
}

#[test]
fn an_engine_that_is_no_longer_used_stops_after_the_current_chunk() {
    let recorded = start();
    let long = submit(&recorded, job(1, GATED, 95, 1));
    wait_for_prefills(&recorded, 1);
    let Recorded { engine, log, prefill_gate, endings, .. } = recorded;
    drop((engine, long));
    drop(prefill_gate);
    endings.wait_for(|endings| !endings.reasons.is_empty());
    assert!(log.lock().open.is_empty());
    assert_eq!(log.lock().prefills(), [&vec![(GATED, 10)]]);
}

#[test]
fn a_chunk_that_fails_ends_its_request_and_no_other() {
    let recorded = start();
    recorded.gate.send(()).unwrap();
    let running = submit(&recorded, job(1, SHORT, 4, 200));
    let failing = submit(&recorded, job(2, FAILING, 95, 1));
    let next = submit(&recorded, job(2, LONG, 25, 1));
    let Some(Event::Failed(EngineError::Step(reason))) = all(failing).pop() else { panic!("no failure") };
    assert!(reason.contains("scripted"), "{reason}");
    [running, next].into_iter().for_each(finishes);
    assert_eq!(chunks(&recorded, FAILING), [10, 10]);
    assert_eq!((recorded.engine.cache_use().running, recorded.log.lock().open.len()), (0, 0));
}
