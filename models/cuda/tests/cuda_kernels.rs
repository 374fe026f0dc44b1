//! Compares this package's kernels with plain loops in f64, on a GPU or on the fake driver. Without either,
//! reports that it is skipped.

#![cfg(feature = "cuda")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking and say why they are skipped"
)]

use candle_core::{DType, Device, Result, Tensor};
use ntl_cuda::{
    Activation, HeadBatch, HeadSource, NO_ROW, Projections, ROW_NUMBERS, Recorder, SUMMARY, SlotAttention,
    Step, activate, add, norm, prepare, product, reuse, summarize, unpack_heads,
};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Types of the elements of the cache, and of results.
const CACHES: [[DType; 2]; 6] = [
    [DType::F32; 2],
    [DType::F16; 2],
    [DType::BF16; 2],
    [DType::F8E4M3, DType::F32],
    [DType::F8E4M3, DType::F16],
    [DType::F8E4M3, DType::BF16],
];

fn gpu() -> Option<Device> {
    let device = Device::new_cuda(0);
    if let Err(error) = &device {
        println!("skipped: {error}");
    }
    device.ok()
}

/// Like [`gpu`], with a stream that CUDA graphs can record.
fn own_stream() -> Option<Device> {
    let device = Device::new_cuda_with_stream(0);
    if let Err(error) = &device {
        println!("skipped: {error}");
    }
    if let Device::Cuda(device) = device.as_ref().ok()? {
        prepare(device).unwrap();
    }
    device.ok()
}

/// Returns numbers between -1 and 1, identical in every run.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Returns a tensor of random numbers, and the numbers as rounded by its type.
fn random(shape: &[usize], dtype: DType, seed: u64, device: &Device) -> (Tensor, Vec<f64>) {
    let tensor = Tensor::from_vec(numbers(shape.iter().product(), seed), shape, &Device::Cpu).unwrap();
    let tensor = tensor.to_dtype(dtype).unwrap();
    let values = values(&tensor);
    (tensor.to_device(device).unwrap(), values)
}

fn values(tensor: &Tensor) -> Vec<f64> {
    let mut tensor = tensor.to_device(&Device::Cpu).unwrap();
    if tensor.dtype() == DType::F8E4M3 {
        // candle 0.10.2 does not return from a conversion of fp8 to f64: it calls itself.
        tensor = tensor.to_dtype(DType::F32).unwrap();
    }
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Tolerance for the rounding of a result and for f32 accumulation.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        DType::F8E4M3 => 1.0 / 16.0,
        _ => 2e-5,
    }
}

fn assert_close(what: &str, got: &Tensor, dtype: DType, want: &[f64]) {
    assert_eq!((got.dtype(), got.elem_count()), (dtype, want.len()), "{what}");
    for (at, (got, want)) in values(got).iter().zip(want).enumerate() {
        let least = if dtype == DType::F8E4M3 { 1.0 / 1024.0 } else { 0.0 };
        let off_max = tolerance(dtype) * want.abs() + 1e-5 + least;
        assert!((got - want).abs() <= off_max, "{what} in {dtype:?}, {at}: got {got}, expected {want}");
    }
}

/// A row of attention: its shared slots, its own slots, the number of hidden ones among both, and its
/// position.
#[derive(Clone)]
struct Query {
    shared: Vec<u32>,
    own: Vec<u32>,
    first: usize,
    position: usize,
}

impl Query {
    fn new(slots: impl IntoIterator<Item = u32>) -> Self {
        let shared: Vec<u32> = slots.into_iter().collect();
        let position = shared.len().saturating_sub(1);
        Self { shared, own: Vec::new(), first: 0, position }
    }

    fn keys(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.shared.iter().chain(&self.own).map(|&slot| slot as usize);
        all.enumerate().skip(self.first)
    }
}

#[derive(Clone)]
struct Case {
    heads: usize,
    num_kv_heads: usize,
    dim: usize,
    capacity: usize,
    cap: Option<f64>,
    reach: Option<usize>,
    queries: Vec<Query>,
}

impl Case {
    fn check(&self, what: &str, [cache, dtype]: [DType; 2], device: &Device) {
        let heads = self.heads;
        let dim = self.dim;
        let rows = self.queries.len();
        let width = self.num_kv_heads * dim;
        let (q, q_values) = random(&[rows, heads * dim], DType::F32, 1, device);
        let (slab, cached) = random(&[2 * self.capacity, width], cache, 2, device);
        let bias = self.reach.map(|reach| random(&[heads, 2 * reach + 1], DType::F32, 3, device));
        let scale = 2.5 / (dim as f64).sqrt();

        let mut table = Vec::new();
        let mut slots = Vec::new();
        for query in &self.queries {
            let shared = slots.len();
            slots.extend_from_slice(&query.shared);
            let own = slots.len();
            slots.extend_from_slice(&query.own);
            let counted = query.shared.len();
            let numbers = [shared, counted, own, query.first, counted + query.own.len(), query.position];
            table.extend(numbers.map(|number| number as u32));
        }
        assert_eq!(table.len(), rows * ROW_NUMBERS);
        table.extend(slots);
        let table = Tensor::new(table, device).unwrap();
        let attention = SlotAttention {
            table: &table,
            rows,
            keys_max: self.queries.iter().map(|query| query.keys().count()).max().unwrap(),
            heads,
            num_kv_heads: self.num_kv_heads,
            scale: scale as f32,
            cap: self.cap.map(|cap| cap as f32),
            bias: bias.as_ref().map(|(bias, _)| bias),
        };
        let got = attention.attend(&q, &slab, dtype).unwrap();

        let mut want = Vec::new();
        for (row, query) in self.queries.iter().enumerate() {
            for head in 0..heads {
                let q = &q_values[(row * heads + head) * dim..][..dim];
                let lane = head / (heads / self.num_kv_heads) * dim;
                let of = |slot: usize| &cached[slot * width + lane..][..dim];
                let score = |(at, slot): (usize, usize)| {
                    let dot: f64 = q.iter().zip(of(slot)).map(|(q, key)| q * key).sum();
                    let added = bias.as_ref().map_or(0.0, |(_, values)| {
                        let reach = self.reach.unwrap() as i64;
                        let distance = (at as i64 - query.position as i64).clamp(-reach, reach) + reach;
                        values[head * (2 * reach + 1) as usize + distance as usize]
                    });
                    self.cap.map_or(dot * scale, |cap| cap * (dot * scale / cap).tanh()) + added
                };
                let scores: Vec<f64> = query.keys().map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut sums = vec![0.0; dim];
                for (weight, (_, slot)) in weights.iter().zip(query.keys()) {
                    let values = of(self.capacity + slot);
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight / total * value);
                }
                want.extend(sums);
            }
        }
        assert_close(&format!("{what}, {cache:?}"), &got, dtype, &want);
    }
}

#[test]
fn attention_is_correct_for_heads_of_every_size_and_one_few_or_many_keys() {
    let Some(device) = gpu() else { return };
    for (types, (heads, num_kv_heads, dim)) in CACHES.into_iter().flat_map(|types| {
        let shapes =
            [(2, 2, 32), (8, 2, 64), (8, 1, 80), (2, 1, 128), (1, 1, 256), (3, 3, 6), (7, 1, 20), (10, 1, 8)];
        shapes.map(|shape| (types, shape))
    }) {
        let capacity = 90;
        let queries = [1, 33, 80, 2].map(|count| Query::new((0..count).map(|at| (at * 37 + count) % 90)));
        let case =
            Case { heads, num_kv_heads, dim, capacity, cap: None, reach: None, queries: queries.into() };
        for cap in [None, Some(0.7)] {
            let case = Case { cap, ..case.clone() };
            case.check(&format!("{heads} heads over {num_kv_heads} of {dim}, cap {cap:?}"), types, &device);
        }
    }
}

#[test]
fn each_row_has_its_own_window_tree_and_biases_by_distance() {
    let Some(device) = gpu() else { return };
    let prompt = || (0..50u32).rev();
    let row = |own: &[u32], first| Query {
        own: own.to_vec(),
        first,
        position: 50 + own.len() - 1,
        ..Query::new(prompt())
    };
    for (types, reach) in
        CACHES.into_iter().flat_map(|types| [None, Some(3), Some(128)].map(|reach| (types, reach)))
    {
        // Siblings, their children, a window that starts in the shared keys, one that starts in the own keys,
        // and positions in the middle.
        let mut queries =
            vec![row(&[60], 0), row(&[60, 62], 0), row(&[60, 61, 70], 40), row(&[61, 65, 63], 51)];
        queries.push(Query { position: 20, ..Query::new(prompt()) });
        let case = Case { heads: 4, num_kv_heads: 4, dim: 16, capacity: 71, cap: None, reach, queries };
        case.check(&format!("reach {reach:?}"), types, &device);
    }
}

#[test]
fn long_rows_are_split_among_blocks_and_empty_parts_have_no_effect() {
    let Some(device) = gpu() else { return };
    for types in CACHES {
        let queries = vec![
            Query::new((0..4097).map(|at| (at * 5) % 4099)),
            Query::new([7]),
            Query { first: 4000, ..Query::new(0..4097) },
        ];
        let case =
            Case { heads: 8, num_kv_heads: 1, dim: 16, capacity: 4099, cap: Some(1.5), reach: None, queries };
        case.check("4,097 keys", types, &device);
    }
}

#[test]
fn keys_that_a_row_does_not_see_have_no_effect_regardless_of_their_values() {
    let Some(device) = gpu() else { return };
    let attend = |fill: f32, seen: u32| {
        let slab = Tensor::full(fill, (2 * 40, 8), &Device::Cpu).unwrap();
        let own =
            Tensor::from_vec(numbers(8, 4), (1, 8), &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
        slab.slice_set(&own, 0, 3).unwrap();
        slab.slice_set(&own, 0, 40 + 3).unwrap();
        let slab = slab.to_device(&device).unwrap();
        let q = Tensor::ones((1, 8), DType::F32, &device).unwrap();
        let table: Vec<u32> = [0, 5, 5, seen, 3, 0].into_iter().chain([1, 2, 3, 4, 5]).collect();
        let table = Tensor::new(table, &device).unwrap();
        let (rows, keys_max) = (1, 1);
        let attention = SlotAttention {
            table: &table,
            rows,
            keys_max,
            heads: 1,
            num_kv_heads: 1,
            scale: 1.0,
            cap: None,
            bias: None,
        };
        (
            values(&attention.attend(&q, &slab, DType::F32).unwrap()),
            values(&own.to_dtype(DType::F32).unwrap()),
        )
    };
    let (got, own) = attend(f32::NAN, 2);
    assert_eq!(got, own, "the only visible key");
    assert_eq!(attend(f32::NAN, 3).0, [0.0; 8], "no key");
}

#[test]
fn nonexistent_slots_are_skipped_and_tensors_of_other_sizes_are_rejected() {
    let Some(device) = gpu() else { return };
    let slab = Tensor::ones((2 * 4, 8), DType::F32, &device).unwrap();
    let table = Tensor::new(vec![u32::MAX, 1, 0, 0, 1, 0, 9], &device).unwrap();
    let attend = |q: &Tensor, heads, num_kv_heads| -> Result<Tensor> {
        let (rows, keys_max, scale) = (1, 1, 1.0);
        SlotAttention { table: &table, rows, keys_max, heads, num_kv_heads, scale, cap: None, bias: None }
            .attend(q, &slab, DType::F32)
    };
    let q = Tensor::ones((1, 8), DType::F32, &device).unwrap();
    assert_eq!(values(&attend(&q, 2, 2).unwrap()), [1.0; 8]);
    for (heads, num_kv_heads) in [(3, 2), (1, 0), (4, 2)] {
        let error = attend(&q, heads, num_kv_heads).unwrap_err().to_string();
        assert!(error.contains("heads") || error.contains("contiguous elements"), "{error}");
    }
    let error = attend(&q.to_dtype(DType::F16).unwrap(), 2, 2).unwrap_err().to_string();
    assert!(error.contains("a kernel needs 8 contiguous elements of F32, not F16"), "{error}");
    let error = attend(&q.to_device(&Device::Cpu).unwrap(), 2, 2).unwrap_err().to_string();
    assert!(error.contains("for GPUs"), "{error}");
    let (bias, scale) = (Tensor::ones((2, 4), DType::F32, &device).unwrap(), 1.0);
    let (rows, keys_max, heads, num_kv_heads, cap) = (1, 1, 2, 2, None);
    let even =
        SlotAttention { table: &table, rows, keys_max, heads, num_kv_heads, scale, cap, bias: Some(&bias) };
    let error = even.attend(&q, &slab, DType::F32).unwrap_err().to_string();
    assert!(error.contains("an odd number"), "{error}");

    let qkv = Tensor::ones((2, 3 * 8), DType::F32, &device).unwrap();
    let store = |heads, slots: &[u32]| {
        let slots = Tensor::new(slots, &device).unwrap();
        let (rope, q_norm, k_norm) = (None, None, None);
        Projections { qkv: &qkv, heads, num_kv_heads: 2, rope, q_norm, k_norm, eps: 0.0 }.store(&slab, &slots)
    };
    assert!(store(1, &[0, 1]).unwrap_err().to_string().contains("columns"));
    assert!(store(2, &[0]).unwrap_err().to_string().contains("a kernel needs 2 contiguous elements of U32"));
    store(2, &[4, u32::MAX]).unwrap();
    assert_eq!(values(&slab), [1.0; 64]);
}

#[test]
fn keys_and_values_go_to_their_slots_and_queries_and_keys_are_normalised_and_rotated() {
    let Some(device) = gpu() else { return };
    let (rows, capacity, eps) = (5, 9, 1e-3);
    let slots = [8u32, 2, 0, 7, 3];
    let on_device = Tensor::new(&slots, &device).unwrap();
    let types = DTYPES.into_iter().chain([DType::F8E4M3]);
    for (dtype, (heads, num_kv_heads, dim), (pairs, has_norm, norms_rows)) in types.flat_map(|dtype| {
        let shapes = [
            ((4, 2, 8), (4, true, false)),
            ((4, 2, 8), (3, true, true)),
            ((2, 2, 70), (35, false, false)),
            ((0, 3, 5), (0, false, false)),
        ];
        shapes.map(|(shape, options)| (dtype, shape, options))
    }) {
        let all = heads + 2 * num_kv_heads;
        let (qkv, qkv_numbers) = random(&[rows, all * dim], DType::F32, 5, &device);
        let (rope, angles) = random(&[rows, 2, pairs.max(1)], DType::F32, 6, &device);
        let [q_normed, k_normed] = if norms_rows { [heads, num_kv_heads] } else { [1, 1] };
        let (q_norm, q_weights) = random(&[q_normed * dim], DType::F32, 7, &device);
        let (k_norm, k_weights) = random(&[k_normed * dim], DType::F32, 8, &device);
        let (slab, mut cached) = random(&[2 * capacity, num_kv_heads * dim], dtype, 9, &device);
        let projections = Projections {
            qkv: &qkv,
            heads,
            num_kv_heads,
            rope: (pairs > 0).then_some(&rope),
            q_norm: has_norm.then_some(&q_norm),
            k_norm: has_norm.then_some(&k_norm),
            eps,
        };
        let q = projections.store(&slab, &on_device).unwrap();

        let mut queries = Vec::new();
        for (row, &slot) in slots.iter().enumerate() {
            for head in 0..all {
                let mut x = qkv_numbers[(row * all + head) * dim..][..dim].to_vec();
                let is_value = head >= heads + num_kv_heads;
                if has_norm && !is_value {
                    let (first, normed, weights) =
                        if head < heads { (0, q_normed, &q_weights) } else { (heads, k_normed, &k_weights) };
                    // The first head that is normalised together with this one.
                    let from = if norms_rows { first } else { head };
                    let all_normed = &qkv_numbers[(row * all + from) * dim..][..normed * dim];
                    let mean = all_normed.iter().map(|x| x * x).sum::<f64>() / all_normed.len() as f64;
                    let weights = &weights[(head - from) * dim..];
                    x.iter_mut().zip(weights).for_each(|(x, weight)| *x *= weight / (mean + eps).sqrt());
                }
                if !is_value {
                    let (cos, sin) = angles[row * 2 * pairs..][..2 * pairs].split_at(pairs);
                    for pair in 0..pairs {
                        let left = x[pair];
                        let right = x[pair + pairs];
                        x[pair] = left * cos[pair] - right * sin[pair];
                        x[pair + pairs] = right * cos[pair] + left * sin[pair];
                    }
                }
                if head < heads {
                    queries.extend(x);
                } else {
                    let place = slot as usize + if is_value { capacity } else { 0 };
                    let lane = (head - heads) % num_kv_heads;
                    cached[(place * num_kv_heads + lane) * dim..][..dim].copy_from_slice(&x);
                }
            }
        }
        assert_eq!(q.is_some(), heads > 0);
        if let Some(q) = q {
            assert_close("queries", &q, DType::F32, &queries);
        }
        assert_close("cache", &slab, dtype, &cached);
    }
}

/// All finite fp8 numbers that are not negative, in order: multiples of 2^-9, then eight numbers for each
/// exponent.
fn fp8_numbers() -> Vec<f64> {
    let number = |code: i32| match (code / 8, code % 8) {
        (0, mantissa) => f64::from(mantissa) / 512.0,
        (exponent, mantissa) => (1.0 + f64::from(mantissa) / 8.0) * 2f64.powi(exponent - 7),
    };
    (0..0x7f).map(number).collect()
}

/// Returns the nearest fp8 number, the one with the even code if two are equally near.
fn to_fp8(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let numbers = fp8_numbers();
    let codes = (0..numbers.len()).step_by(2).chain((1..numbers.len()).step_by(2));
    let distance = |code: &usize| (numbers[*code] - x.abs().min(448.0)).abs();
    let nearest = codes.min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
    numbers[nearest].copysign(x)
}

#[test]
fn a_cache_in_fp8_rounds_to_the_nearest_number_saturates_and_keeps_nan() {
    let Some(device) = gpu() else { return };
    let numbers = fp8_numbers();
    let middles = numbers.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let beyond = [448.5, 463.9, 464.0, 464.1, 480.0, 1e9, f64::INFINITY, f64::NAN, 1e-40];
    let around = numbers.iter().copied().chain(middles).chain(beyond).flat_map(|x| {
        let x = x as f32;
        [x, x.next_up(), x.next_down()].map(f64::from).into_iter().flat_map(|x| [x, -x])
    });
    let mut x: Vec<f64> = around.collect();
    x.resize(x.len().next_multiple_of(8), 0.0);
    let rows = x.len() / 8;
    // Keys are 0, so that the only key of a row has weight 1.
    let qkv = x.chunks(8).flat_map(|x| [[0.0; 8].as_slice(), x].concat()).map(|x| x as f32);
    let qkv = Tensor::from_iter(qkv, &device).unwrap().reshape((rows, 16)).unwrap();
    let slab = Tensor::zeros((2 * rows, 8), DType::F8E4M3, &device).unwrap();
    let slots: Vec<u32> = (0..rows as u32).rev().collect();
    let on_device = Tensor::new(slots.as_slice(), &device).unwrap();
    let (rope, q_norm, k_norm) = (None, None, None);
    Projections { qkv: &qkv, heads: 0, num_kv_heads: 1, rope, q_norm, k_norm, eps: 0.0 }
        .store(&slab, &on_device)
        .unwrap();

    let entries = (0..rows as u32).flat_map(|row| [row, 1, 0, 0, 1, 0]);
    let table: Vec<u32> = entries.chain(slots.iter().copied()).collect();
    let table = Tensor::new(table, &device).unwrap();
    let q = Tensor::ones((rows, 8), DType::F32, &device).unwrap();
    let (heads, num_kv_heads, scale, keys_max) = (1, 1, 1.0, 1);
    let attention =
        SlotAttention { table: &table, rows, keys_max, heads, num_kv_heads, scale, cap: None, bias: None };
    let read = values(&attention.attend(&q, &slab, DType::F32).unwrap());
    let stored = values(&slab.narrow(0, rows, rows).unwrap());
    let stored = slots.iter().flat_map(|&slot| stored[8 * slot as usize..][..8].to_vec());
    for ((x, read), stored) in x.iter().zip(read).zip(stored) {
        let want = to_fp8(*x);
        // Neighbours are at least 2^-9 apart.
        let is_same = |got: f64| (got - want).abs() < 1e-9 || got.is_nan() && want.is_nan();
        assert!(is_same(read) && is_same(stored), "{x} is stored as {stored} and read as {read}, not {want}");
    }
}

#[test]
fn rows_are_normalised_with_and_without_a_mean() {
    let Some(device) = gpu() else { return };
    let eps = 1e-3;
    for (dtype, width) in DTYPES.into_iter().flat_map(|dtype| [1, 31, 96, 2051].map(|width| (dtype, width))) {
        let (x, rows) = random(&[3, width], DType::F32, 10, &device);
        let (weight, weights) = random(&[width], DType::F32, 11, &device);
        let (bias, biases) = random(&[width], DType::F32, 12, &device);
        for centred in [false, true] {
            let want = rows.chunks(width).flat_map(|row| {
                let mean = if centred { row.iter().sum::<f64>() / width as f64 } else { 0.0 };
                let square = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                let normed = move |x: &f64| (x - mean) / (square + eps).sqrt();
                let scaled = row.iter().zip(&weights).map(move |(x, weight)| normed(x) * weight);
                scaled.zip(&biases).map(move |(x, bias)| if centred { x + bias } else { x })
            });
            let want: Vec<f64> = want.collect();
            let got = norm(&x, &weight, centred.then_some(&bias), eps, dtype).unwrap();
            assert_close(&format!("norm of {width}, centred: {centred}"), &got, dtype, &want);
        }
    }
    let x = Tensor::ones((2, 8), DType::F32, &device).unwrap();
    let weight = Tensor::ones(7, DType::F32, &device).unwrap();
    assert!(norm(&x, &weight, None, eps, DType::F32).is_err());
}

#[test]
fn rows_are_added_one_by_one_or_the_same_row_to_each() {
    let Some(device) = gpu() else { return };
    for (width, rows_of_y) in [1, 31, 96, 2050].into_iter().flat_map(|width| [1, 3].map(|rows| (width, rows)))
    {
        let (x, left) = random(&[3, width], DType::F32, 20, &device);
        let shape = [rows_of_y, width];
        let (y, right) = random(if rows_of_y == 1 { &shape[1..] } else { &shape }, DType::F32, 21, &device);
        add(&x, &y).unwrap();
        let want: Vec<f64> = left.iter().zip(right.iter().cycle()).map(|(x, y)| x + y).collect();
        assert_close(&format!("sums of {width}, {rows_of_y} rows"), &x, DType::F32, &want);
    }
    let [x, y] = [(2, 8), (1, 8)].map(|shape| Tensor::ones(shape, DType::F32, &device).unwrap());
    assert!(add(&x, &y).is_err());
}

#[test]
fn a_graph_computes_the_same_for_other_numbers() {
    let Some(device) = own_stream() else { return };
    let (weight, _) = random(&[48], DType::F32, 9, &device);
    let (matrix, _) = random(&[48, 48], DType::F32, 8, &device);
    // Three results, of which two share memory, and a sum in place.
    let computed = |x: Tensor, table: &Tensor| {
        let first = norm(&x, &weight, None, 1e-6, DType::F32)?;
        let second = product(&first, &matrix)?;
        reuse(&first);
        let third = norm(&second, &weight, None, 1e-6, DType::F32)?;
        add(&x, &third)?;
        add(&x, table)?;
        Ok(x)
    };
    let inputs = |seed| [seed, seed + 10].map(|seed| random(&[5, 48], DType::F32, seed, &device).0);
    let want = |seed| {
        let [x, table] = inputs(seed);
        values(&computed(x, &table).unwrap())
    };
    let step = Step::begin();
    let [x, table] = inputs(1);
    let recorder = Recorder::default();
    let (first, graph) = recorder.record(x, std::slice::from_ref(&table), |x| computed(x, &table)).unwrap();
    let graph = graph.unwrap();
    drop((step, table, recorder));
    assert_eq!(values(&first), want(1));
    for seed in [2, 1, 3] {
        let [x, table] = inputs(seed);
        assert_eq!(values(&graph.replay(&x, &[table]).unwrap()), want(seed), "seed {seed}");
    }
    let [x, table] = inputs(4);
    assert!(graph.replay(&x, &[]).is_err(), "no table");
    assert!(graph.replay(&x.narrow(0, 0, 4).unwrap(), &[table]).is_err(), "fewer rows");
}

#[test]
fn a_computation_that_cannot_be_repeated_has_no_graph() {
    let Some(device) = own_stream() else { return };
    let refusal = |compute: fn(Tensor) -> Result<Tensor>| {
        let (x, numbers) = random(&[5, 48], DType::F32, 1, &device);
        let (result, graph) = Recorder::default().record(x.clone(), &[], compute).unwrap();
        assert_eq!(result.elem_count(), numbers.len());
        let reason = graph.err().unwrap().to_string();
        // The stream computes as before.
        assert_eq!(values(&x), numbers, "{reason}");
        reason
    };
    let allocates = refusal(|x| &x * 2.0);
    assert!(allocates.contains("MEM_ALLOC"), "{allocates}");
    let uploads =
        refusal(|x| x.broadcast_add(&Tensor::ones(48, DType::F32, &Device::Cpu)?.to_device(x.device())?));
    assert!(uploads.contains("a node of type"), "{uploads}");
    let downloads = refusal(|x| x.to_device(&Device::Cpu)?.to_device(x.device()));
    assert!(downloads.contains("a node of type"), "{downloads}");
    let waits = refusal(|x| x.device().synchronize().map(|()| x));
    assert!(waits.contains("CAPTURE") || waits.contains("capture"), "{waits}");
    let default = gpu().unwrap();
    let (x, _) = random(&[5, 48], DType::F32, 1, &default);
    let (_, graph) = Recorder::default().record(x, &[], |x| add(&x, &x.clone().copy()?).map(|()| x)).unwrap();
    assert!(graph.is_err(), "the default stream");
}

#[test]
fn activations_are_computed_in_f32_with_and_without_a_gate() {
    let Some(device) = gpu() else { return };
    let of = |activation: Activation, x: f64| match activation {
        Activation::Relu => x.max(0.0),
        // Integrates the density with the trapezoidal rule, which is fast enough for a test.
        Activation::Gelu => {
            let steps = 2000;
            let density = |at: f64| (-at * at / 2.0).exp() / std::f64::consts::TAU.sqrt();
            let width = x / f64::from(steps);
            let inner: f64 = (1..steps).map(|step| density(width * f64::from(step))).sum();
            x * (0.5 + width * (inner + (density(0.0) + density(x)) / 2.0))
        }
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
    };
    let all = [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu];
    let cases = || all.into_iter().flat_map(|activation| [33, 1028].map(|width| (activation, width)));
    for (dtype, (activation, width)) in
        DTYPES.into_iter().flat_map(|dtype| cases().map(move |case| (dtype, case)))
    {
        let rows = 3;
        let (x, _) = random(&[rows, 2 * width], DType::F32, 13, &device);
        let x = (x * 6.0).unwrap();
        let read = values(&x);
        let plain: Vec<f64> = read.iter().map(|x| of(activation, *x)).collect();
        assert_close(
            &format!("{activation:?}"),
            &activate(&x, activation, false, dtype).unwrap(),
            dtype,
            &plain,
        );
        let gated = read.chunks(2 * width).flat_map(|row| {
            let (gate, up) = row.split_at(width);
            gate.iter().zip(up).map(|(gate, up)| of(activation, *gate) * up)
        });
        let gated: Vec<f64> = gated.collect();
        assert_close(
            &format!("gated {activation:?}"),
            &activate(&x, activation, true, dtype).unwrap(),
            dtype,
            &gated,
        );
    }
    let odd = Tensor::ones((2, 7), DType::F32, &device).unwrap();
    assert!(activate(&odd, Activation::Silu, true, DType::F32).unwrap_err().to_string().contains("halves"));
}

#[test]
fn heads_are_packed_and_results_are_written_back_to_their_rows() {
    let Some(device) = gpu() else { return };
    // Heads of 5 and of 40 elements. Six query heads share three key heads, in two groups; the second group
    // is padded.
    for ([cache, dtype], dim) in CACHES.into_iter().flat_map(|types| [(types, 5), (types, 40)]) {
        let heads = 6;
        let num_kv_heads = 3;
        let rows = [3, 0, 2, 1, 4];
        let keys = [[5u32, 1, 9], [0, 7, 0]];
        let query = |row| [row, 0, 0, 0];
        let queries = [3, 0, 2, 1, 4, NO_ROW].map(query).concat();
        let batch = HeadBatch {
            queries: &Tensor::new(queries, &device).unwrap(),
            groups: 2,
            heads,
            num_kv_heads,
            dim,
        };
        let slots = Tensor::new(keys.concat(), &device).unwrap();
        let width = (heads + 2 * num_kv_heads) * dim;
        let (qkv, beside) = random(&[10, width], DType::F32, 1, &device);
        let (q, of_q) = random(&[5, heads * dim], DType::F32, 2, &device);
        let (slab, cached) = random(&[20, num_kv_heads * dim], cache, 3, &device);
        let together = HeadSource { q: &qkv, kv: &qkv, keys_at: heads * dim, values_at: 9 * dim, slots: 10 };
        let in_slots =
            HeadSource { q: &q, kv: &slab, keys_at: 0, values_at: 10 * num_kv_heads * dim, slots: 10 };
        for (source, q_values, kv_values) in [(together, &beside, &beside), (in_slots, &of_q, &cached)] {
            let packed = batch.pack(source, Some(&slots), dtype).unwrap();
            let q_width = source.q.dim(1).unwrap();
            let kv_width = source.kv.dim(1).unwrap();
            let mut want = Vec::new();
            for (head, row) in (0..heads).flat_map(|head| rows[..3].iter().map(move |row| (head, row))) {
                want.extend_from_slice(&q_values[row * q_width + head * dim..][..dim]);
            }
            // The second group has padding, whose contents are unspecified. A tensor is copied to the host as
            // a whole, so the first group becomes a separate tensor.
            let of_the_first = (packed.q.narrow(0, 0, num_kv_heads).unwrap() + 0.0).unwrap();
            assert_close("queries", &of_the_first, dtype, &want);
            for (part, at) in packed.kv.unwrap().iter().zip([source.keys_at, source.values_at]) {
                let mut want = Vec::new();
                for group in keys {
                    for (head, slot) in (0..num_kv_heads).flat_map(|head| group.map(|slot| (head, slot))) {
                        want.extend_from_slice(
                            &kv_values[at + slot as usize * kv_width + head * dim..][..dim],
                        );
                    }
                }
                assert_close("keys and values", part, dtype, &want);
            }
            let again = batch.pack(source, None, dtype).unwrap();
            assert!(again.kv.is_none());
            let back = unpack_heads(&[(batch, again.q)], 5).unwrap();
            let rows = q_values.chunks(q_width).take(5);
            let want: Vec<f64> = rows.flat_map(|row| row[..heads * dim].to_vec()).collect();
            assert_close("rows", &back, dtype, &want);
        }
    }
}

#[test]
fn scores_become_the_weights_of_the_keys_that_a_query_sees() {
    let Some(device) = gpu() else { return };
    for (dtype, keys) in DTYPES.into_iter().flat_map(|dtype| [(dtype, 7), (dtype, 300), (dtype, 2600)]) {
        let (heads, reach) = (4, 3);
        // First and last key, and position. The last query pads its group.
        let seen =
            [(0, keys, 0), (2, 5, 4), (keys - 1, keys, keys - 1), (0, keys - 1, 2), (1, 2, 9), (0, 0, 0)];
        let queries: Vec<u32> = seen
            .iter()
            .flat_map(|&(first, end, position)| [0, first, end, position])
            .map(|n| n as u32)
            .collect();
        let queries = Tensor::new(queries, &device).unwrap();
        let batch = HeadBatch { queries: &queries, groups: 2, heads, num_kv_heads: 2, dim: 8 };
        let (scores, values) = random(&[4, 6, keys], DType::F32, 1, &device);
        let (bias, biases) = random(&[heads, 2 * reach + 1], DType::F32, 2, &device);
        for (cap, bias) in [(None, None), (None, Some(&bias)), (Some(1.5), Some(&bias))] {
            let got = batch.weights(&scores, 2.5, cap.map(|cap| cap as f32), bias, dtype).unwrap();
            let mut want = Vec::new();
            for (lane, scores) in values.chunks(keys).enumerate() {
                let group = lane / 3 / heads;
                let head = lane / 3 % heads;
                let row = lane % 3;
                let (first, end, position) = seen[group * 3 + row];
                let score = |key: usize| {
                    let distance = (key as i64 - position as i64).clamp(-3, 3) + 3;
                    let score = 2.5 * scores[key];
                    let score = cap.map_or(score, |cap: f64| cap * (score / cap).tanh());
                    score + bias.map_or(0.0, |_| biases[head * (2 * reach + 1) + distance as usize])
                };
                let sum: f64 = (first..end).map(|key| score(key).exp()).sum();
                let is_seen = |key: usize| (first..end).contains(&key);
                want.extend((0..keys).map(|key| if is_seen(key) { score(key).exp() / sum } else { 0.0 }));
            }
            assert_close("weights", &got, dtype, &want);
        }
    }
}

#[test]
fn a_matmul_can_read_the_first_rows_of_longer_matrices() {
    let Some(device) = gpu() else { return };
    let ((a, _), (b, _)) =
        (random(&[3, 2, 8], DType::BF16, 1, &device), random(&[3, 9, 8], DType::BF16, 2, &device));
    for first in [0, 4] {
        let part = b.narrow(1, first, 5).unwrap();
        let want = values(&product(&a, &part.contiguous().unwrap()).unwrap());
        assert_close("product", &product(&a, &part).unwrap(), DType::F32, &want);
    }
}

#[test]
fn a_summary_has_the_sums_and_the_first_index_of_the_largest_logit() {
    let Some(device) = gpu() else { return };
    for dtype in DTYPES {
        // Fewer ids than threads, the same number, and more; with and without padding, and with equal logits.
        for (vocab, tokens) in [(3, 3), (40, 31), (512, 512), (3000, 2990)] {
            let (random, mut logits) = random(&[4, vocab], dtype, vocab as u64, &device);
            let mut equal =
                random.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap().to_vec2().unwrap();
            for (row, firsts) in [(1, [tokens - 1, vocab / 2, vocab / 3]), (2, [tokens - 1, vocab - 1, 1])] {
                for at in firsts {
                    (equal[row][at], logits[row * vocab + at]) = (2.5, 2.5);
                }
            }
            // All logits are equal.
            equal[3].fill(-1.5f32);
            logits[3 * vocab..].fill(-1.5);
            let tensor = Tensor::new(equal, &device).unwrap().to_dtype(dtype).unwrap();
            let got = summarize(&tensor, tokens).unwrap();
            let mut want = Vec::new();
            for logits in logits.chunks(vocab) {
                let largest = |logits: &[f64]| logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let max = largest(logits);
                let best = largest(&logits[..tokens]);
                let sum = |logits: &[f64]| logits.iter().map(|logit| (logit - max).exp()).sum::<f64>();
                let first = logits.iter().position(|logit| *logit >= best).unwrap();
                want.extend([max, sum(logits), best, (tokens - first) as f64]);
            }
            assert_eq!(want.len(), 4 * SUMMARY);
            assert_close("summary", &got, DType::F32, &want);
        }
    }
}

#[test]
fn sums_of_invalid_logits_are_nan() {
    let Some(device) = gpu() else { return };
    let nan = f32::NAN;
    let infinite = f32::INFINITY;
    let nothing = f32::NEG_INFINITY;
    let rows =
        [[nan, 1.0, 2.0], [1.0, nan, 2.0], [1.0, infinite, 2.0], [nothing; 3], [nothing, nothing, 0.0]];
    let got = summarize(&Tensor::new(&rows, &device).unwrap(), 2).unwrap().to_vec2::<f32>().unwrap();
    assert!(got[..4].iter().all(|summary| summary[1].is_nan()), "{got:?}");
    assert_eq!(got[4], [0.0, 1.0, nothing, 2.0], "known ids with probability 0");
}

#[test]
fn results_of_a_step_use_the_memory_of_results_that_are_not_read_any_more() {
    let Some(device) = gpu() else { return };
    let inputs = [1, 2, 3, 4].map(|seed| random(&[5, 48], DType::F32, seed, &device).0);
    let (weight, _) = random(&[48], DType::F32, 9, &device);
    let normed = |x: &Tensor| norm(x, &weight, None, 1e-6, DType::F32).unwrap();
    let want = inputs.each_ref().map(|x| values(&normed(x)));
    let step = Step::begin();
    let first = normed(&inputs[0]);
    // Neither views nor tensors that no kernel has written are reused.
    reuse(&first.reshape((48, 5)).unwrap());
    reuse(&inputs[3]);
    let second = normed(&inputs[1]);
    assert_eq!([values(&first), values(&second)], want[..2]);
    reuse(&first);
    let third = normed(&inputs[2]);
    assert_eq!([values(&third), values(&first)], [&want[2][..], &want[2]], "the first result's memory");
    drop(step);
    reuse(&second);
    let fourth = normed(&inputs[3]);
    assert_eq!([values(&second), values(&fourth)], [&want[1][..], &want[3]], "the step has ended");
}
