//! The loops of the CPU against the batched composition, and what neither may depend on.

use candle_core::{Device, Tensor};
use ntl_kernels::{Heads, Visible};

use super::*;

fn random(rows: usize, columns: usize) -> Tensor {
    Tensor::randn(0f32, 1f32, (rows, columns), &Device::Cpu).unwrap()
}

fn random_kv(rows: usize, columns: usize) -> KeyValues {
    KeyValues { keys: random(rows, columns), values: random(rows, columns) }
}

fn bias() -> RelativeBias {
    RelativeBias::new(6, 4, |head, distance| head as f32 * 0.3 + distance.clamp(-4, 4) as f32 * 0.1)
}

/// Six query heads, three or six key heads, of width 8.
const HEADS: [Heads; 2] =
    [Heads { queries: 6, keys: 6, scale: 1.0 }, Heads { queries: 6, keys: 3, scale: 0.35 }];

#[test]
fn rows_over_prefixes_and_trees_equal_the_reference() {
    let some_bias = bias();
    for (heads, bias) in HEADS.into_iter().flat_map(|heads| [(heads, None), (heads, Some(&some_bias))]) {
        let kv = |rows| random_kv(rows, heads.keys * 8);
        let (contexts, nodes) = ([kv(9), kv(2), kv(4)], [0, 3, 7]);
        let before = [&contexts[1], &contexts[2]];
        let rows = [
            AttentionRow::new(&contexts[0], Visible::First(9), 4),
            AttentionRow::new(&contexts[1], Visible::First(2), 1),
            AttentionRow::new(&contexts[0], Visible::Nodes(&nodes), 2),
            AttentionRow::new(&contexts[0], Visible::Nodes(&nodes), 8).with_prefix(&before, 0),
            AttentionRow::new(&contexts[0], Visible::First(1), 6).with_prefix(&before, 4),
        ];
        let q = random(5, 48);
        let got = attend(&q, &rows, heads, bias, &AttentionPlans::default()).unwrap();
        let difference =
            (&got - batched::attend(&q, &rows, heads, bias, &AttentionPlans::default()).unwrap()).unwrap();
        let worst: f32 = difference.abs().unwrap().max_all().unwrap().to_scalar().unwrap();
        assert!(worst < 1e-5, "off by {worst}");
        for row in 0..5 {
            let alone = attend(
                &q.narrow(0, row, 1).unwrap(),
                &rows[row..=row],
                heads,
                bias,
                &AttentionPlans::default(),
            )
            .unwrap();
            let (alone, together) = (alone.to_vec2::<f32>().unwrap(), got.to_vec2::<f32>().unwrap());
            assert_eq!(alone[0], together[row], "row {row} depends on the others");
        }
    }
}

#[test]
fn long_prompts_and_contexts_of_all_sizes_equal_the_reference() {
    let (heads, bias) = (HEADS[1], bias());
    let kv = [random_kv(530, 24), random_kv(3, 24), random_kv(40, 24)];
    let rows: Vec<_> = kv
        .iter()
        .zip([530, 3, 17])
        .flat_map(|(kv, count)| (0..count).map(move |at| AttentionRow::new(kv, Visible::First(count), at)))
        .collect();
    let (q, plans) = (random(550, 48), AttentionPlans::default());
    let want = attend(&q, &rows, heads, Some(&bias), &AttentionPlans::default()).unwrap();
    // Of the first layer, then of another one by what was planned for the first.
    for _ in 0..2 {
        let got = batched::attend(&q, &rows, heads, Some(&bias), &plans).unwrap();
        let worst: f32 = (got - &want).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap();
        assert!(worst < 1e-5, "off by {worst}");
    }
}

#[test]
fn it_does_not_matter_into_how_many_parts_the_positions_are_cut() {
    let heads = HEADS[1];
    let whole = random_kv(11, 24);
    let part = |from, count| KeyValues {
        keys: whole.keys.narrow(0, from, count).unwrap(),
        values: whole.values.narrow(0, from, count).unwrap(),
    };
    let q = random(1, 48);
    let row = AttentionRow::new(&whole, Visible::First(11), 10).with_prefix(&[], 2);
    let want = attend(&q, &[row], heads, None, &AttentionPlans::default()).unwrap().to_vec2::<f32>().unwrap();
    for cut in 1..10 {
        let (first, second, last) = (part(0, cut), part(cut, 10 - cut), part(10, 1));
        let before = [&first, &second];
        let row = AttentionRow::new(&last, Visible::First(1), 10).with_prefix(&before, 2);
        let got =
            attend(&q, &[row], heads, None, &AttentionPlans::default()).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(got, want, "cut at {cut}");
    }
}
