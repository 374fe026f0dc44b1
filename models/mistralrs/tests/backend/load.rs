//! Clients that disconnect neither stop mistral.rs nor change the answers of others.

use ntl_core::contract::{Job, Request};

use crate::support::{Both, Served, all, assert_same, text, tree};
use crate::tiny;

/// Returns prompts of different lengths.
fn prompt(index: usize) -> Vec<u32> {
    (0..1 + index * 7 % 60).map(|place| 3 + ((place + index) % 20) as u32).collect()
}

fn request(index: usize) -> Request {
    if index % 5 == 4 { Request::Number(tree(40)) } else { Request::Text(text(4 + index % 9)) }
}

#[test]
fn concurrent_requests_of_mixed_lengths_are_answered_correctly_while_other_clients_disconnect() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_folder(folder.path());
    let both = Both::open(folder.path());
    let submit = |index| both.mistral.engine.submit(Job::new(prompt(index), request(index))).unwrap();
    let leaving: Vec<_> = (0..64).map(submit).collect();
    let (staying, mut leaving): (Vec<_>, Vec<_>) =
        leaving.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
    // Some clients disconnect while they wait, one of them after its answer has begun.
    let begun = leaving.remove(0).1.next_blocking();
    assert!(begun.is_some());
    drop(leaving);
    let mut answered = 0;
    for (index, events) in staying {
        let got = all(events);
        let want = both.native.answer(&prompt(index), &request(index));
        if let Request::Text(_) = request(index) {
            assert_same(&got, &want, &format!("request {index}"));
        }
        assert_eq!(got.len(), want.len(), "request {index}");
        answered += 1;
    }
    assert_eq!(answered, 32);
    assert!(both.mistral.engine.is_alive());
}

#[test]
fn a_client_that_disconnects_in_the_middle_of_its_text_affects_no_other() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_folder(folder.path());
    let served = Served::folder(folder.path(), None);
    let request = Request::Text(text(100));
    let want = served.answer(&[1, 4, 16, 5], &request);
    for read in [1, 2, 5] {
        let mut events = served.engine.submit(Job::new(vec![1, 7, 9], request.clone())).unwrap();
        for _ in 0..read {
            assert!(events.next_blocking().is_some());
        }
        drop(events);
        assert_same(&served.answer(&[1, 4, 16, 5], &request), &want, "after a client disconnected");
    }
    assert!(served.engine.is_alive());
}

#[test]
fn a_request_that_does_not_fit_is_rejected_and_the_longest_that_fits_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_folder(folder.path());
    let both = Both::open(folder.path());
    let long = vec![5; tiny::POSITIONS - 8];
    let job = |max_tokens| Request::Text(text(max_tokens));
    assert!(both.mistral.engine.submit(Job::new(long.clone(), job(9))).is_err());
    let got = both.mistral.answer(&long, &job(8));
    let want = both.native.answer(&long, &job(8));
    assert_same(&got, &want, "the longest");
}
