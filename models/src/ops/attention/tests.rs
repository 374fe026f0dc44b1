//! The loops of the CPU against the batched composition, and what neither may depend on.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
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

/// The same attention by a plan, over slots in another order than the positions.
fn planned(q: &Tensor, rows: &[AttentionRow<'_>], heads: Heads, bias: Option<&RelativeBias>) -> Tensor {
    let mut places: HashMap<*const KeyValues, Vec<u32>> = HashMap::new();
    let (mut keys, mut values, mut next) = (Vec::new(), Vec::new(), 0);
    for kv in rows.iter().rev().flat_map(|row| row.before.iter().copied().chain([row.kv])) {
        places.entry(kv).or_insert_with(|| {
            let count = kv.keys.dim(0).unwrap() as u32;
            // From behind.
            let reversed = Tensor::arange(0, count, &Device::Cpu).unwrap().flip(&[0]).unwrap();
            keys.push(kv.keys.index_select(&reversed, 0).unwrap());
            values.push(kv.values.index_select(&reversed, 0).unwrap());
            next += count;
            (next - count..next).rev().collect()
        });
    }
    let [keys_of_all, values_of_all] = [keys, values].map(|parts| Tensor::cat(&parts, 0).unwrap());
    let joined = Tensor::cat(&[&keys_of_all, &values_of_all], 0).unwrap();
    let slots = |kv: &KeyValues| places[&std::ptr::from_ref(kv)].clone();
    let groups = || -> Vec<KeyGroup<'_>> {
        let rows = rows.chunk_by(AttentionRow::shares_keys);
        rows.map(|rows| {
            let before = rows[0].before.iter().flat_map(|kv| slots(kv)).collect();
            let own = &places[&std::ptr::from_ref(rows[0].kv)];
            KeyGroup::new(before, own, rows.iter().map(|row| row.query).collect())
        })
        .collect()
    };
    let views = vec![KeyView { groups: groups(), bias }, KeyView { groups: groups(), bias }];
    let keys = PassKeys::new(&[7, 5], views, &Device::Cpu).unwrap();
    assert_eq!(keys.written.to_vec1::<u32>().unwrap(), [7, 5]);
    let [got, again] = [0, 1].map(|view| keys.attentions[view].attend(q, &joined, heads).unwrap());
    assert_close(&again, &got);
    if groups().iter().all(KeyGroup::has_ranges) {
        let plan = Plan::new(groups(), bias, &Device::Cpu).unwrap();
        let source = HeadSource::cached(q, &joined, heads).unwrap();
        assert_close(&plan.attend(source, heads).unwrap(), &got);
    }
    got
}

fn assert_close(got: &Tensor, want: &Tensor) {
    let difference = (got - want).unwrap().abs().unwrap();
    let worst: f32 = difference.flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap();
    assert!(worst < 1e-5, "off by {worst}");
}

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
        let got = attend(&q, &rows, heads, bias).unwrap();
        assert_close(&planned(&q, &rows, heads, bias), &got);
        for row in 0..5 {
            let alone = attend(&q.narrow(0, row, 1).unwrap(), &rows[row..=row], heads, bias).unwrap();
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
    let q = random(550, 48);
    for bias in [Some(&bias), None] {
        let want = attend(&q, &rows, heads, bias).unwrap();
        assert_close(&planned(&q, &rows, heads, bias), &want);
    }
}

#[test]
fn prompts_with_a_window_behind_cached_positions_equal_the_reference() {
    let (heads, bias) = (HEADS[1], bias());
    let (cached, own) = (random_kv(40, 24), [random_kv(530, 24), random_kv(9, 24)]);
    let before = [&cached];
    let rows: Vec<_> = own
        .iter()
        .zip([530, 9])
        .flat_map(|(kv, count)| {
            (1..=count).map(|seen| {
                let position = 40 + seen - 1;
                let row = AttentionRow::new(kv, Visible::First(seen), position);
                row.with_prefix(&before, (position + 1usize).saturating_sub(64))
            })
        })
        .collect();
    let q = random(539, 48);
    for bias in [Some(&bias), None] {
        assert_close(&planned(&q, &rows, heads, bias), &attend(&q, &rows, heads, bias).unwrap());
    }
}

#[test]
fn chains_and_trees_under_many_contexts_equal_the_reference() {
    let (heads, bias) = (HEADS[1], bias());
    let contexts: Vec<KeyValues> = (0..40).map(|_| random_kv(30, 24)).collect();
    let paths: [&[u32]; 5] = [&[0], &[0, 1], &[0, 1, 4], &[0, 2], &[0, 2, 3, 7, 29]];
    let rows = |counts: fn(usize) -> usize| -> Vec<AttentionRow<'_>> {
        let of = |(index, kv)| {
            let paths = paths.iter().take(counts(index));
            paths.map(move |path| AttentionRow::new(kv, Visible::Nodes(path), path.len() - 1))
        };
        contexts.iter().enumerate().flat_map(of).collect()
    };
    // One row a context, chains, and trees of several sizes.
    for counts in [(|_| 1) as fn(usize) -> usize, |_| 3, |index| 1 + index % 5] {
        let rows = rows(counts);
        let q = random(rows.len(), 48);
        assert_close(
            &planned(&q, &rows, heads, Some(&bias)),
            &attend(&q, &rows, heads, Some(&bias)).unwrap(),
        );
    }
}

#[test]
fn groups_share_a_batch_where_padding_costs_less_than_another_one() {
    let batches = |sizes: &[(usize, usize)]| {
        let group = |&(rows, keys): &(usize, usize)| {
            let query = ntl_kernels::AttentionQuery { visible: Visible::First(keys), hidden: 0, position: 0 };
            KeyGroup::packed(vec![0; keys], vec![query; rows])
        };
        let groups: Vec<_> = sizes.iter().map(group).collect();
        batched::batched(&groups.iter().collect::<Vec<_>>())
    };
    assert_eq!(batches(&[(1, 10), (1, 500), (1, 40)]), [vec![0, 1, 2]], "any lengths of single rows");
    assert_eq!(batches(&[(1, 4096); 32]).len(), 1, "no more batches for more contexts");
    assert_eq!(
        batches(&[(1, 64), (500, 500), (400, 400)]),
        [vec![0], vec![1, 2]],
        "padding a row is too much"
    );
    assert_eq!(batches(&[(512, 8192); 2]), [vec![0], vec![1]], "scores have a bound");
}

#[test]
fn sixteen_bits_are_rounded_once_an_operation() {
    let heads = HEADS[1];
    let kv = random_kv(50, 24);
    let rows: Vec<_> = (1..=50).map(|seen| AttentionRow::new(&kv, Visible::First(seen), seen - 1)).collect();
    let q = random(50, 48);
    let want = attend(&q, &rows, heads, None).unwrap();
    let slots: Vec<u32> = (0..50).collect();
    let group = KeyGroup::packed(slots, rows.iter().map(|row| row.query).collect());
    let plan = Plan::new(vec![group], None, &Device::Cpu).unwrap();
    let slab = Tensor::cat(&[&kv.keys, &kv.values], 0).unwrap().to_dtype(DType::BF16).unwrap();
    let got = plan.attend(HeadSource::cached(&q, &slab, heads).unwrap(), heads).unwrap();
    let difference = (got.to_dtype(DType::F32).unwrap() - want).unwrap().abs().unwrap();
    let worst: f32 = difference.flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap();
    // Queries, keys, scores, weights, values and sums, each by at most 2^-9 of numbers up to about 4.
    assert!(worst < 6.0 * 4.0 / 512.0, "off by {worst}");
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
    let want = attend(&q, &[row], heads, None).unwrap().to_vec2::<f32>().unwrap();
    for cut in 1..10 {
        let (first, second, last) = (part(0, cut), part(cut, 10 - cut), part(10, 1));
        let before = [&first, &second];
        let row = AttentionRow::new(&last, Visible::First(1), 10).with_prefix(&before, 2);
        let got = attend(&q, &[row], heads, None).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(got, want, "cut at {cut}");
    }
}
