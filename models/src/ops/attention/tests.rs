//! Compares the CPU kernels with the batched composition, and checks that results do not depend on batching.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use ntl_kernels::{Heads, Phase, Visible};

use super::batched::{self, Plan};
use super::heads::QkvSource;
use super::*;
use crate::random::Random;

impl Random {
    fn queries(&self, rows: usize) -> Tensor {
        self.matrix(rows, 48, 1.0)
    }

    fn kv(&self, rows: usize, columns: usize) -> KeyValues {
        KeyValues { keys: self.matrix(rows, columns, 1.0), values: self.matrix(rows, columns, 1.0) }
    }
}

fn bias() -> RelativeBias {
    RelativeBias::new(6, 4, |head, distance| head as f32 * 0.3 + distance.clamp(-4, 4) as f32 * 0.1)
}

/// Six query heads, three or six key heads, of width 8.
const HEADS: [Heads; 2] = [Heads::unscaled(6), Heads { queries: 6, keys: 3, scale: 0.35, cap: Some(1.5) }];

fn query(visible: Visible<'_>, position: usize) -> AttentionQuery<'_> {
    AttentionQuery { visible, hidden: 0, position }
}

/// Creates a group without positions before its own.
fn group<'a>(own: &'a KeyValues, queries: &'a [AttentionQuery<'a>]) -> TensorGroup<'a> {
    TensorGroup { before: Vec::new(), own, queries, phase: Phase::Decode }
}

/// Computes the same attention with a plan, over slots in a different order than the positions.
fn planned(q: &Tensor, groups: &[TensorGroup<'_>], heads: Heads, bias: Option<&RelativeBias>) -> Tensor {
    let mut places: HashMap<*const KeyValues, Vec<u32>> = HashMap::new();
    let mut keys = Vec::new();
    let mut values = Vec::new();
    let mut next = 0;
    for kv in groups.iter().rev().flat_map(|group| group.before.iter().copied().chain([group.own])) {
        places.entry(kv).or_insert_with(|| {
            let count = kv.keys.dim(0).unwrap() as u32;
            // In reverse order.
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
    let groups = || -> Vec<SlotGroup<'_>> {
        let with_slots = groups.iter().map(|group| {
            let before = group.before.iter().flat_map(|kv| slots(kv)).collect();
            SlotGroup::new(before, &places[&std::ptr::from_ref(group.own)], group.queries.to_vec())
        });
        with_slots.collect()
    };
    let views = vec![SlotView { groups: groups(), bias }, SlotView { groups: groups(), bias }];
    let keys = PassKeys::new(&[7, 5], views, &Device::Cpu).unwrap();
    assert_eq!(keys.written.to_vec1::<u32>().unwrap(), [7, 5]);
    let [got, again] =
        [0, 1].map(|view| keys.attentions[view].attend(q, &joined, heads, DType::F32).unwrap());
    assert_close(&again, &got);
    if groups().iter().all(SlotGroup::has_ranges) {
        let plan = Plan::new(groups(), bias, &Device::Cpu).unwrap();
        let source = QkvSource::cached(q, &joined, heads, DType::F32).unwrap();
        assert_close(&plan.attend(source, heads).unwrap(), &got);
    }
    got
}

fn assert_close(got: &Tensor, want: &Tensor) {
    let difference = (got - want).unwrap().abs().unwrap();
    let worst: f32 = difference.flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap();
    assert!(worst < 1e-5, "error {worst}");
}

#[test]
fn rows_over_prefixes_and_trees_equal_the_reference() {
    let random = Random::new(1);
    let some_bias = bias();
    for (heads, bias) in HEADS.into_iter().flat_map(|heads| [(heads, None), (heads, Some(&some_bias))]) {
        let kv = |rows| random.kv(rows, heads.keys * 8);
        let contexts = [kv(9), kv(2), kv(4)];
        let nodes = [0, 3, 7];
        let before = [&contexts[1], &contexts[2]];
        let queries = [
            query(Visible::First(9), 4),
            query(Visible::First(2), 1),
            query(Visible::Nodes(&nodes), 2),
            query(Visible::Nodes(&nodes), 8),
            AttentionQuery { hidden: 4, ..query(Visible::First(1), 6) },
        ];
        let with_prefix = TensorGroup { before: before.to_vec(), ..group(&contexts[0], &queries[3..]) };
        let groups = [
            group(&contexts[0], &queries[..1]),
            group(&contexts[1], &queries[1..2]),
            group(&contexts[0], &queries[2..3]),
            with_prefix.clone(),
        ];
        let q = random.queries(5);
        let got = attend(&q, &groups, heads, bias).unwrap();
        assert_close(&planned(&q, &groups, heads, bias), &got);
        let together = got.to_vec2::<f32>().unwrap();
        for (row, query) in queries.chunks(1).enumerate() {
            let group = TensorGroup { queries: query, ..groups[row.min(3)].clone() };
            let alone = attend(&q.narrow(0, row, 1).unwrap(), &[group], heads, bias).unwrap();
            assert_eq!(alone.to_vec2::<f32>().unwrap()[0], together[row], "row {row} depends on the others");
        }
    }
}

#[test]
fn long_prompts_and_contexts_of_all_sizes_equal_the_reference() {
    let random = Random::new(1);
    let heads = HEADS[1];
    let bias = bias();
    let kv = [random.kv(530, 24), random.kv(3, 24), random.kv(40, 24)];
    let queries =
        [530, 3, 17].map(|count| (0..count).map(|at| query(Visible::First(count), at)).collect::<Vec<_>>());
    let groups: Vec<_> = kv.iter().zip(&queries).map(|(kv, queries)| group(kv, queries)).collect();
    let q = random.queries(550);
    for bias in [Some(&bias), None] {
        let want = attend(&q, &groups, heads, bias).unwrap();
        assert_close(&planned(&q, &groups, heads, bias), &want);
    }
}

#[test]
fn prompts_with_a_window_after_cached_positions_equal_the_reference() {
    let random = Random::new(1);
    let heads = HEADS[1];
    let bias = bias();
    let cached = random.kv(40, 24);
    let own = [random.kv(530, 24), random.kv(9, 24)];
    let queries = [530, 9].map(|count| {
        let query = |seen: usize| {
            let position = 40 + seen - 1;
            let hidden = (position + 1).saturating_sub(64);
            AttentionQuery { visible: Visible::First(seen), hidden, position }
        };
        (1..=count).map(query).collect::<Vec<_>>()
    });
    let group =
        |(own, queries)| TensorGroup { before: vec![&cached], phase: Phase::Prefill, ..group(own, queries) };
    let groups: Vec<_> = own.iter().zip(queries.iter().map(Vec::as_slice)).map(group).collect();
    let q = random.queries(539);
    for bias in [Some(&bias), None] {
        assert_close(&planned(&q, &groups, heads, bias), &attend(&q, &groups, heads, bias).unwrap());
    }
}

#[test]
fn chains_and_trees_under_many_contexts_equal_the_reference() {
    let random = Random::new(1);
    let heads = HEADS[1];
    let bias = bias();
    let contexts: Vec<KeyValues> = (0..40).map(|_| random.kv(30, 24)).collect();
    let paths: [&[u32]; 5] = [&[0], &[0, 1], &[0, 1, 4], &[0, 2], &[0, 2, 3, 7, 29]];
    let queries = paths.map(|path| query(Visible::Nodes(path), path.len() - 1));
    // One row per context, chains, and trees of several sizes.
    for counts in [(|_| 1) as fn(usize) -> usize, |_| 3, |index| 1 + index % 5] {
        let groups = contexts.iter().enumerate().map(|(index, kv)| group(kv, &queries[..counts(index)]));
        let groups: Vec<_> = groups.collect();
        let q = random.queries((0..40).map(counts).sum());
        assert_close(
            &planned(&q, &groups, heads, Some(&bias)),
            &attend(&q, &groups, heads, Some(&bias)).unwrap(),
        );
    }
}

#[test]
fn groups_share_a_batch_if_padding_costs_less_than_another_batch() {
    let batches = |sizes: &[(usize, usize)]| {
        let group = |&(rows, keys): &(usize, usize)| {
            SlotGroup::packed(vec![0; keys], vec![query(Visible::First(keys), 0); rows])
        };
        let groups: Vec<_> = sizes.iter().map(group).collect();
        batched::batched(&groups.iter().collect::<Vec<_>>())
    };
    assert_eq!(batches(&[(1, 10), (1, 500), (1, 40)]), [vec![0, 1, 2]], "single rows of any length");
    assert_eq!(batches(&[(1, 4096); 32]).len(), 1, "no more batches for more contexts");
    assert_eq!(
        batches(&[(1, 64), (500, 500), (400, 400)]),
        [vec![0], vec![1, 2]],
        "padding a row is too much"
    );
    assert_eq!(batches(&[(512, 8192); 2]), [vec![0], vec![1]], "the memory of scores is limited");
}

#[test]
fn sixteen_bit_results_are_rounded_once_per_operation() {
    let random = Random::new(1);
    let heads = HEADS[1];
    let kv = random.kv(50, 24);
    let queries: Vec<_> = (1..=50).map(|seen| query(Visible::First(seen), seen - 1)).collect();
    let q = random.queries(50);
    let want = attend(&q, &[group(&kv, &queries)], heads, None).unwrap();
    let plan = Plan::new(vec![SlotGroup::packed((0..50).collect(), queries)], None, &Device::Cpu).unwrap();
    let slab = Tensor::cat(&[&kv.keys, &kv.values], 0).unwrap().to_dtype(DType::BF16).unwrap();
    let got = plan.attend(QkvSource::cached(&q, &slab, heads, DType::BF16).unwrap(), heads).unwrap();
    let difference = (got.to_dtype(DType::F32).unwrap() - want).unwrap().abs().unwrap();
    let worst: f32 = difference.flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap();
    // Queries, keys, scores, weights, values and sums: each is rounded by at most 2^-9 of numbers up to about
    // 4.
    assert!(worst < 6.0 * 4.0 / 512.0, "error {worst}");
}

#[test]
fn results_do_not_depend_on_how_the_positions_are_split() {
    let random = Random::new(1);
    let heads = HEADS[1];
    let whole = random.kv(11, 24);
    let part = |from, count| KeyValues {
        keys: whole.keys.narrow(0, from, count).unwrap(),
        values: whole.values.narrow(0, from, count).unwrap(),
    };
    let q = random.queries(1);
    let queries = [AttentionQuery { hidden: 2, ..query(Visible::First(11), 10) }];
    let want = attend(&q, &[group(&whole, &queries)], heads, None).unwrap().to_vec2::<f32>().unwrap();
    for cut in 1..10 {
        let first = part(0, cut);
        let second = part(cut, 10 - cut);
        let last = part(10, 1);
        let queries = [AttentionQuery { hidden: 2, ..query(Visible::First(1), 10) }];
        let group = TensorGroup { before: vec![&first, &second], ..group(&last, &queries) };
        let got = attend(&q, &[group], heads, None).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(got, want, "split at {cut}");
    }
}
