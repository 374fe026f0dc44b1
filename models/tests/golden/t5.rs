//! The T5 against the outputs of the original code: `golden/` of the shared checkpoints.

use crate::support::{Golden, assert_close, chain, ids, numbers, score};
use ntl_core::engine::BatchModel;
use ntl_core::numbers::Softmax;
use ntl_core::sampling::argmax;

const TOLERANCE: f32 = 1e-4;

/// Trained and random, tied and untied, plain and gated feed-forward.
const CHECKPOINTS: [&str; 4] = ["t5-ce", "t5-ntl-was", "t5-ntl-mse", "t5-v11"];

fn for_each_checkpoint(check: impl Fn(&mut Golden)) {
    for name in CHECKPOINTS {
        if let Some(mut golden) = Golden::open(name) {
            check(&mut golden);
        }
    }
}

/// Rows of `[1, T, V]` or `[B, T, V]`, flattened.
fn flat(tensor: &candle_core::Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn encoder_states_equal_the_originals() {
    for_each_checkpoint(|golden| {
        let mut worst = 0.0_f32;
        for case in golden.cases() {
            let encoded = golden.model.encode(&[&ids(&case["input_ids"])]).unwrap().remove(0);
            let id = case["id"].as_str().unwrap();
            let want = flat(&golden.tensors[&format!("case.{id}.encoder_last_hidden")]);
            let got = flat(&encoded.narrow(1, 0, 8).unwrap().contiguous().unwrap());
            worst = worst.max(assert_close(&got, &want, TOLERANCE, &format!("{} {id}", golden.name)));
        }
        println!("{}: encoder states differ by at most {worst:e}", golden.name);
    });
}

#[test]
fn logits_and_log_probabilities_equal_the_originals_at_every_position() {
    for_each_checkpoint(|golden| {
        let mut worst = 0.0_f32;
        for case in golden.cases() {
            let (id, labels) = (case["id"].as_str().unwrap(), ids(&case["label_ids"]));
            let (logits, _) =
                score(&mut golden.model, &[ids(&case["input_ids"])], &[ids(&case["decoder_input_ids"])]);
            let want = flat(&golden.tensors[&format!("case.{id}.logits")]);
            let got: Vec<f32> = (0..logits.rows()).flat_map(|row| logits.row(row).to_vec()).collect();
            let what = format!("{} {id}", golden.name);
            worst = worst.max(assert_close(&got, &want, TOLERANCE, &what));
            for (row, (label, want)) in labels.iter().zip(numbers(&case["token_logprobs"])).enumerate() {
                let logprob = Softmax::new(logits.row(row)).unwrap().log_probability(*label);
                assert!((logprob - want).abs() < 1e-4, "{what}, label {row}: {logprob} instead of {want}");
            }
        }
        println!("{}: logits differ by at most {worst:e}", golden.name);
    });
}

#[test]
fn a_padded_batch_of_the_original_equals_our_batch_without_padding() {
    for_each_checkpoint(|golden| {
        let batch = golden.json["batch"].clone();
        let rows = |field: &str| -> Vec<Vec<u32>> {
            let mask = batch["attention_mask"].as_array().unwrap();
            let real = |(row, mask): (&serde_json::Value, &serde_json::Value)| {
                let mask = ids(mask);
                ids(row).into_iter().zip(mask).filter(|pair| pair.1 == 1).map(|pair| pair.0).collect()
            };
            batch[field].as_array().unwrap().iter().zip(mask).map(real).collect()
        };
        let prompts = rows("input_ids");
        let targets: Vec<Vec<u32>> = batch["decoder_input_ids"].as_array().unwrap().iter().map(ids).collect();
        let (logits, starts) = score(&mut golden.model, &prompts, &targets);
        let want = &golden.tensors["batch.logits"];
        for (case, start) in starts.iter().enumerate() {
            for (position, label) in batch["label_ids"][case].as_array().unwrap().iter().enumerate() {
                if label.as_i64() == Some(-100) {
                    continue;
                }
                let want = flat(&want.get(case).unwrap().get(position).unwrap());
                let what = format!("{} batch row {case} position {position}", golden.name);
                assert_close(logits.row(start + position), &want, TOLERANCE, &what);
            }
        }
        let encoded = golden.model.encode(&prompts.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        for (case, encoded) in encoded.iter().enumerate() {
            let want = golden.tensors["batch.encoder_last_hidden"].get(case).unwrap();
            let want = flat(&want.narrow(0, 0, prompts[case].len()).unwrap().contiguous().unwrap());
            let got = flat(&encoded.narrow(1, 0, 8).unwrap().contiguous().unwrap());
            assert_close(&got, &want, TOLERANCE, &format!("{} batch row {case} encoder", golden.name));
        }
    });
}

#[test]
fn greedy_ids_equal_the_originals_step_by_step() {
    for_each_checkpoint(|golden| {
        let tokens = golden.model.info().tokens;
        for case in golden.cases() {
            let want = ids(&case["greedy"]["ids"]);
            let opened = golden.model.open(&[&ids(&case["input_ids"])]).unwrap()[0];
            let mut got = vec![opened.first_token];
            while got.len() < want.len() {
                let rows = chain(opened.context, &got[got.len() - 1..], got.len() as u32 - 1);
                let logits = golden.model.step(&rows).unwrap();
                got.push(argmax(&logits.row(0)[..tokens]) as u32);
            }
            golden.model.close(opened.context);
            assert_eq!(got, want, "{} {}", golden.name, case["id"]);
        }
    });
}

#[test]
fn long_labels_cross_all_position_buckets() {
    for_each_checkpoint(|golden| {
        let long = golden.json["long_label"].clone();
        let labels = ids(&long["label_ids"]);
        assert!(labels.len() > 127, "the golden is meant to be longer than the buckets reach");
        let start = golden.json["generate"]["decoder_start_token_id"].as_u64().unwrap() as u32;
        let target: Vec<u32> =
            std::iter::once(start).chain(labels.iter().copied()).take(labels.len()).collect();
        let (logits, _) = score(&mut golden.model, &[ids(&long["input_ids"])], &[target]);
        for (row, (label, want)) in labels.iter().zip(numbers(&long["token_logprobs"])).enumerate() {
            let logprob = Softmax::new(logits.row(row)).unwrap().log_probability(*label);
            assert!(
                (logprob - want).abs() < 2e-4,
                "{} label {row}: {logprob} instead of {want}",
                golden.name
            );
        }
        let argmaxes: Vec<u32> = (0..labels.len()).map(|row| argmax(logits.row(row)) as u32).collect();
        assert_eq!(argmaxes, ids(&long["argmax_ids"]), "{}", golden.name);
    });
}

#[test]
fn a_row_is_the_same_to_the_bit_alone_and_among_others() {
    let Some(mut golden) = Golden::open("t5-ntl-was") else { return };
    let cases = golden.cases();
    let prompts: Vec<_> = cases.iter().map(|case| ids(&case["input_ids"])).collect();
    let targets: Vec<_> = cases.iter().map(|case| ids(&case["decoder_input_ids"])).collect();
    let (together, starts) = score(&mut golden.model, &prompts, &targets);
    for (case, start) in starts.into_iter().enumerate() {
        let (alone, _) = score(&mut golden.model, &prompts[case..=case], &targets[case..=case]);
        for row in 0..alone.rows() {
            assert_eq!(alone.row(row), together.row(start + row), "case {case}, row {row}");
        }
    }
}

#[test]
fn a_tree_of_rows_equals_its_paths_one_by_one() {
    use ntl_core::engine::{NodeId, PathRow, Row};
    let Some(mut golden) = Golden::open("t5-ntl-was") else { return };
    let prompt = ids(&golden.cases()[0]["input_ids"]);
    let context = golden.model.open(&[&prompt]).unwrap()[0].context;
    let row = |parent: Option<u32>, token| Row { context, path: PathRow::new(parent.map(NodeId), token) };
    // 0 is the root; 10 and 63 follow it; 73 follows both; then 45 after the second of those.
    let tree = [
        row(None, 0),
        row(Some(0), 10),
        row(Some(0), 63),
        row(Some(1), 73),
        row(Some(2), 73),
        row(Some(4), 45),
    ];
    let first = golden.model.step(&tree[..2]).unwrap();
    let second = golden.model.step(&tree[2..]).unwrap();
    for (path, got) in [
        (vec![0], first.row(0)),
        (vec![0, 10], first.row(1)),
        (vec![0, 63], second.row(0)),
        (vec![0, 10, 73], second.row(1)),
        (vec![0, 63, 73], second.row(2)),
        (vec![0, 63, 73, 45], second.row(3)),
    ] {
        let (alone, _) = score(&mut golden.model, std::slice::from_ref(&prompt), std::slice::from_ref(&path));
        assert_eq!(alone.row(path.len() - 1), got, "{path:?}");
    }
    golden.model.close(context);
    assert!(golden.model.step(&tree[..1]).is_err(), "a closed context must be refused");
}
