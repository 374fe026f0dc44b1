//! Compares reduced logits with the host's softmax and maximum.

use std::cell::Cell;
use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, Layout, Tensor};
use ntl_core::contract::{ContextId, Logits, LogitsRequest, LogitsRow, LogitsSummary, PathRow, Row};
use ntl_core::numbers::Softmax;
use ntl_core::sampling::argmax;

use super::{LogitsReducer, whole};
use crate::ops::composed;

thread_local! {
    /// Number of elements of logits and summaries that this thread has copied to the host.
    pub(super) static COPIED: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of elements that `run` copies to the host, and its result.
pub(super) fn copied<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = COPIED.get();
    let result = run();
    (COPIED.get() - before, result)
}

fn row(wanted: LogitsRequest) -> Row {
    Row { context: ContextId(1), path: PathRow::new(None, 0).with_logits(wanted) }
}

fn ids(ids: &[u32]) -> LogitsRequest {
    LogitsRequest::Ids(ids.into())
}

/// Reduces rows of logits as on a device. Ids below `tokens` are known.
fn reduce(logits: &[Vec<f32>], wanted: &[LogitsRequest], tokens: usize) -> Logits {
    let rows = logits.len();
    let vocab = logits[0].len();
    let tensor = Tensor::from_vec(logits.concat(), (rows, vocab), &Device::Cpu).unwrap();
    let rows: Vec<Row> = wanted.iter().cloned().map(row).collect();
    composed::during(|| LogitsReducer::new(tokens).reduce_tensor(&tensor, &rows)).unwrap()
}

fn reduced(logits: &Logits, row: usize) -> &LogitsSummary {
    match logits.get(row) {
        LogitsRow::Summary(reduced) => reduced,
        LogitsRow::Full(_) | LogitsRow::Report(_) => panic!("row {row} is not a summary"),
    }
}

fn best(summary: &LogitsSummary) -> (u32, f32) {
    (summary.best_id, summary.best_logit)
}

/// Returns random logits from -20 to -8, identical in every run.
fn random(rows: usize, vocab: usize) -> Vec<Vec<f32>> {
    let logit = |place: usize| {
        let bits = (place as u32).wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(2_246_822_519);
        12.0 * (bits >> 8) as f32 / (1 << 24) as f32 - 20.0
    };
    (0..rows).map(|row| (0..vocab).map(|id| logit(row * vocab + id)).collect()).collect()
}

/// Returns every 7th id, starting at an offset.
fn some_ids(tokens: usize) -> Vec<u32> {
    (3..tokens as u32).step_by(7).collect()
}

#[test]
fn probabilities_and_the_argmax_match_the_host() {
    // Smaller than a block of sums, a single block, blocks and a rest, T5's size, and a large vocabulary.
    for (vocab, tokens) in [(40, 40), (512, 512), (700, 650), (32_128, 32_100), (152_064, 151_669)] {
        let logits = random(3, vocab);
        let asked = some_ids(tokens);
        let reduced_rows = reduce(&logits, &vec![ids(&asked); 3], tokens);
        for (index, logits) in logits.iter().enumerate() {
            let got = reduced(&reduced_rows, index);
            let want = Softmax::new(logits).unwrap();
            assert_eq!(got.best_id as usize, argmax(&logits[..tokens]), "{vocab}");
            let softmax = Softmax::of(LogitsRow::Summary(got)).unwrap();
            for id in asked.iter().copied().chain([got.best_id]) {
                let got = softmax.probability(id);
                let want = want.probability(id);
                assert!((got - want).abs() <= 2e-6 * want, "{vocab}, id {id}: got {got}, expected {want}");
            }
        }
    }
}

#[test]
fn ties_go_to_the_lowest_id_as_on_the_host() {
    let mut logits = vec![vec![-1.0; 3000]; 3];
    for (row, equals) in [(0, [1025, 1026, 2999]), (1, [2047, 1024, 2048])] {
        equals.iter().for_each(|&id: &usize| logits[row][id] = 2.5);
    }
    let reduced_rows = reduce(&logits, &vec![LogitsRequest::Best; 3], 3000);
    let best: Vec<u32> = (0..3).map(|row| reduced(&reduced_rows, row).best_id).collect();
    let want: Vec<u32> = logits.iter().map(|logits| argmax(logits) as u32).collect();
    assert_eq!((&best, &want), (&vec![1025, 1024, 0], &want));
    assert_eq!(best, want);
}

#[test]
fn an_unknown_id_is_never_the_argmax_but_has_its_share_of_the_softmax() {
    let logits =
        vec![vec![0.0, 1.0, 0.5, 5.0, 4.0], vec![f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, 0.0, 0.0]];
    let reduced_rows = reduce(&logits, &[LogitsRequest::Best, ids(&[0, 1])], 3);
    assert_eq!(best(reduced(&reduced_rows, 0)), (1, 1.0));
    let softmax = Softmax::of(reduced_rows.get(0)).unwrap();
    let want = Softmax::new(&logits[0]).unwrap();
    assert!((softmax.probability(1) - want.probability(1)).abs() < 1e-7);
    let softmax = Softmax::of(reduced_rows.get(1)).unwrap();
    assert!(softmax.probability(0).abs() < f64::EPSILON, "minus infinity");
}

#[test]
fn invalid_rows_are_detected_individually() {
    let nan = f32::NAN;
    let infinite = f32::INFINITY;
    let nothing = f32::NEG_INFINITY;
    let logits = vec![
        vec![nan, 1.0, 2.0, 3.0],
        vec![0.0, 1.0, 2.0, nan],
        vec![nan; 4],
        vec![0.0, infinite, 2.0, 3.0],
        vec![nothing; 4],
        vec![nothing, 1.0, nothing, nothing],
    ];
    // The last column is padding. Broken weights are also visible there.
    let reduced_rows = reduce(&logits, &vec![ids(&[1, 2]); 6], 3);
    for (index, logits) in logits.iter().enumerate() {
        let is_one = Softmax::new(logits).is_some();
        assert_eq!(is_one, index == 5);
        assert_eq!(reduced(&reduced_rows, index).is_distribution(), is_one, "{logits:?}");
        assert_eq!(Softmax::of(reduced_rows.get(index)).is_some(), is_one, "{logits:?}");
    }
    assert_eq!(best(reduced(&reduced_rows, 5)), (1, 1.0));
}

#[test]
fn if_no_known_id_is_possible_the_argmax_has_probability_zero() {
    let logits = vec![vec![f32::NEG_INFINITY, f32::NEG_INFINITY, 1.0]];
    let reduced_rows = reduce(&logits, &[LogitsRequest::Best], 2);
    assert_eq!(best(reduced(&reduced_rows, 0)), (0, f32::NEG_INFINITY));
    assert!(reduced(&reduced_rows, 0).is_distribution());
}

#[test]
fn rows_of_one_step_may_request_different_logits() {
    let logits = random(7, 700);
    let wanted = [
        ids(&[3, 5]),
        LogitsRequest::All,
        LogitsRequest::Best,
        ids(&[2, 4, 699, 700, 9000]),
        ids(&[]),
        LogitsRequest::All,
        ids(&[3, 5]),
    ];
    let (count, reduced_rows) = copied(|| reduce(&logits, &wanted, 700));
    assert_eq!(count, 2 * 700 + 5 * super::SUMMARY + 2 * 2 + 5, "no other row is copied");
    assert_eq!(reduced_rows.rows(), 7);
    for row in [1, 5] {
        assert_eq!(reduced_rows.row(row), logits[row], "a full row is unchanged");
    }
    for (row, asked) in
        [(0, vec![3, 5]), (2, vec![]), (3, vec![2, 4, 699, 700, 9000]), (4, vec![]), (6, vec![3, 5])]
    {
        let reduced = reduced(&reduced_rows, row);
        assert_eq!(reduced.best_id as usize, argmax(&logits[row]));
        assert_eq!(*reduced.ids, *asked);
        let want = asked.iter().map(|&id: &u32| logits[row].get(id as usize).copied());
        let want: Vec<f32> = want.map(|logit| logit.unwrap_or(f32::NEG_INFINITY)).collect();
        assert_eq!(reduced.logits, want, "row {row}");
    }
}

#[test]
fn sixteen_bit_rows_are_reduced_in_f32() {
    let logits = random(2, 700);
    let tensor = Tensor::from_vec(logits.concat(), (2, 700), &Device::Cpu).unwrap();
    let coarse = tensor.to_dtype(DType::BF16).unwrap();
    let rounded: Vec<Vec<f32>> = coarse.to_dtype(DType::F32).unwrap().to_vec2().unwrap();
    let rows = [row(ids(&[1, 9])), row(LogitsRequest::All)];
    let reduced_rows = composed::during(|| LogitsReducer::new(700).reduce_tensor(&coarse, &rows)).unwrap();
    assert_eq!(reduced_rows.row(1), rounded[1]);
    let got = Softmax::of(reduced_rows.get(0)).unwrap();
    let want = Softmax::new(&rounded[0]).unwrap();
    assert!((got.probability(9) - want.probability(9)).abs() <= 2e-6 * want.probability(9));
}

#[test]
fn on_the_cpu_rows_are_always_full() {
    let logits = random(2, 50);
    let tensor = Tensor::from_vec(logits.concat(), (2, 50), &Device::Cpu).unwrap();
    let reduced_rows =
        LogitsReducer::new(50).reduce_tensor(&tensor, &[row(LogitsRequest::Best), row(ids(&[1]))]).unwrap();
    assert_eq!([reduced_rows.row(0), reduced_rows.row(1)], [&logits[0][..], &logits[1]]);
}

#[test]
fn the_most_recently_used_id_lists_stay_on_the_device() {
    let tensor = Tensor::zeros((1, 100), DType::F32, &Device::Cpu).unwrap();
    let mut reducer = LogitsReducer::new(100);
    let mut ask = |list: Arc<[u32]>| {
        composed::during(|| reducer.reduce_tensor(&tensor, &[row(LogitsRequest::Ids(list))])).unwrap();
        reducer.lists.iter().map(|list| list.ids[0]).collect::<Vec<_>>()
    };
    assert_eq!(ask([5].into()), [5]);
    assert_eq!(ask([6].into()), [6, 5]);
    assert_eq!(ask([5].into()), [5, 6], "an equal list is the same list");
    for id in 7..90 {
        ask([id].into());
    }
    let kept = ask([89].into());
    assert_eq!((kept.len(), kept[0]), (super::LISTS_MAX, 89));
}

#[test]
fn logits_copied_to_the_host_are_not_copied_again() {
    let values = vec![1.0, 2.0, 3.0, 4.0];
    let place = values.as_ptr();
    let all = whole(CpuStorage::F32(values), &Layout::contiguous(4)).unwrap();
    assert_eq!(all.as_ptr(), place);
    let some = whole(CpuStorage::F32(all), &Layout::contiguous_with_offset(2, 1)).unwrap();
    assert_eq!(some, [2.0, 3.0]);
    assert!(whole(CpuStorage::U8(vec![1]), &Layout::contiguous(1)).is_err());
}
