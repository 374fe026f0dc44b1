//! candle's operations on a GPU against the same on the CPU, type by type. If they differ, no model can be
//! right.

use candle_core::{D, DType, Device, Result, Tensor};

/// The most that the two may differ, relative to numbers above one: a few roundings of the type.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2e-2,
        DType::F16 => 4e-3,
        DType::F32 => 1e-5,
        _ => 1e-12,
    }
}

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];

type Operation = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Numbers of both signs around `centre`, the same on every device.
fn numbers(device: &Device, shape: &[usize], centre: f64, width: f64, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f64> =
        (0..count).map(|at| centre + width * ((at * 37 % 101) as f64 / 50.0 - 1.0)).collect();
    let values = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    values.to_dtype(dtype).unwrap().to_device(device).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    let tensor = tensor.to_device(&Device::Cpu).unwrap().flatten_all().unwrap();
    tensor.to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

/// Compares an operation on `a` of `[3, 5, 24]` and `b` of the same shape.
fn assert_same(gpu: &Device, name: &str, dtype: DType, (centre, width): (f64, f64), operation: Operation) {
    let run = |device: &Device| {
        let a = numbers(device, &[3, 5, 24], centre, width, dtype);
        let b = numbers(device, &[3, 24, 5], 1.5, 1.0, dtype).transpose(1, 2).unwrap();
        operation(&a, &b).map(|result| (result.dtype(), result.shape().clone(), flat(&result)))
    };
    let got = run(gpu).unwrap();
    let want = run(&Device::Cpu).unwrap();
    assert_eq!((got.0, &got.1), (want.0, &want.1), "{name} of {dtype:?}");
    for (at, (got, want)) in got.2.iter().zip(&want.2).enumerate() {
        let near = (got - want).abs() <= tolerance(dtype) * want.abs().max(1.0);
        assert!(
            near || got.is_nan() && want.is_nan(),
            "{name} of {dtype:?}, element {at}: {got} instead of {want}"
        );
    }
}

pub(crate) fn assert_elementwise(gpu: &Device) {
    let cases: [(&str, (f64, f64), Operation); 32] = [
        ("neg", (0.0, 3.0), |a, _| a.neg()),
        ("abs", (0.0, 3.0), |a, _| a.abs()),
        ("sqr", (0.0, 3.0), |a, _| a.sqr()),
        ("sqrt", (2.0, 2.0), |a, _| a.sqrt()),
        ("recip", (3.0, 2.0), |a, _| a.recip()),
        ("exp", (0.0, 4.0), |a, _| a.exp()),
        ("log", (2.0, 1.5), |a, _| a.log()),
        ("sin", (0.0, 9.0), |a, _| a.sin()),
        ("cos", (0.0, 9.0), |a, _| a.cos()),
        ("tanh", (0.0, 3.0), |a, _| a.tanh()),
        ("erf", (0.0, 3.0), |a, _| a.erf()),
        ("gelu", (0.0, 5.0), |a, _| a.gelu()),
        ("gelu_erf", (0.0, 5.0), |a, _| a.gelu_erf()),
        ("silu", (0.0, 5.0), |a, _| a.silu()),
        ("relu", (0.0, 5.0), |a, _| a.relu()),
        ("floor", (0.0, 5.0), |a, _| a.floor()),
        ("ceil", (0.0, 5.0), |a, _| a.ceil()),
        ("round", (0.1, 5.0), |a, _| a.round()),
        ("sign", (0.0, 5.0), |a, _| a.sign()),
        ("powf", (2.0, 1.5), |a, _| a.powf(1.7)),
        ("elu", (0.0, 2.0), |a, _| a.elu(0.7)),
        ("affine", (0.0, 2.0), |a, _| a.affine(0.3, -1.0)),
        ("add", (0.0, 2.0), |a, b| a + b),
        ("sub", (0.0, 2.0), |a, b| a - b),
        ("mul", (0.0, 2.0), |a, b| a * b),
        ("div", (0.0, 2.0), |a, b| a / b),
        ("maximum", (1.0, 2.0), |a, b| a.maximum(b)),
        ("minimum", (1.0, 2.0), |a, b| a.minimum(b)),
        ("lt", (1.0, 2.0), |a, b| a.lt(b)),
        ("ge", (1.0, 2.0), |a, b| a.ge(b)),
        ("where", (1.0, 2.0), |a, b| a.lt(b)?.where_cond(a, b)),
        ("broadcast", (1.0, 2.0), |a, b| a.broadcast_mul(&b.narrow(1, 2, 1)?)),
    ];
    for (name, range, operation) in cases {
        for dtype in FLOATS {
            assert_same(gpu, name, dtype, range, operation);
        }
    }
}

pub(crate) fn assert_reductions_and_products(gpu: &Device) {
    let cases: [(&str, Operation); 11] = [
        ("sum", |a, _| a.sum_keepdim(D::Minus1)),
        ("sum of the first", |a, _| a.sum(0)),
        ("max", |a, _| a.max_keepdim(D::Minus1)),
        ("min of the middle", |a, _| a.min(1)),
        ("argmax", |a, _| a.argmax(D::Minus1)),
        ("argmin", |a, _| a.argmin(1)),
        ("product", |a, b| product(a, &b.transpose(1, 2)?)),
        ("product of copies", |a, b| product(&a.contiguous()?, &b.transpose(1, 2)?.contiguous()?)),
        ("argsort", |a, _| a.reshape((15, 24))?.arg_sort_last_dim(true)),
        ("cat", |a, b| Tensor::cat(&[a, &b.narrow(1, 1, 3)?], 1)),
        ("copies of a narrow part", |a, b| {
            (a.narrow(2, 3, 7)?.contiguous()? + b.narrow(2, 1, 7)?)?.contiguous()
        }),
    ];
    for (name, operation) in cases {
        for dtype in FLOATS {
            assert_same(gpu, name, dtype, (0.0, 0.3), operation);
        }
    }
}

pub(crate) fn assert_indexing_and_casts(gpu: &Device) {
    let cases: [(&str, Operation); 8] = [
        ("index_select", |a, _| a.index_select(&ids(a, &[2, 0, 2])?, 0)),
        ("index_select of the last", |a, _| a.index_select(&ids(a, &[23, 1, 7, 7])?, 2)),
        ("gather", |a, _| {
            a.narrow(1, 0, 1)?.contiguous()?.gather(&ids(a, &[4, 9, 0])?.reshape((3, 1, 1))?, 2)
        }),
        ("scatter_add", |a, b| {
            let index = ids(a, &[4, 9, 0])?.reshape((3, 1, 1))?;
            a.narrow(1, 0, 1)?.contiguous()?.scatter_add(
                &index,
                &b.narrow(1, 0, 1)?.narrow(2, 0, 1)?.contiguous()?,
                2,
            )
        }),
        ("index_add", |a, b| a.index_add(&ids(a, &[1, 1])?, &b.narrow(0, 0, 2)?.contiguous()?, 0)),
        ("slice_scatter", |a, b| a.slice_scatter0(&b.narrow(0, 0, 1)?.contiguous()?, 2)),
        ("to u32 and back", |a, _| a.abs()?.to_dtype(DType::U32)?.to_dtype(a.dtype())),
        ("through f64", |a, _| a.to_dtype(DType::F64)?.to_dtype(DType::F32)?.to_dtype(a.dtype())),
    ];
    for (name, operation) in cases {
        for dtype in FLOATS {
            assert_same(gpu, name, dtype, (0.0, 20.0), operation);
        }
    }
    for (name, operation) in cases.into_iter().take(2) {
        for dtype in [DType::U32, DType::I64, DType::U8] {
            assert_same(gpu, name, dtype, (50.0, 50.0), operation);
        }
    }
}

/// A product; the CPU has none of bf16, and computes it from wider numbers.
fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.device().is_cpu() && a.dtype() == DType::BF16 {
        return a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?)?.to_dtype(DType::BF16);
    }
    a.matmul(b)
}

fn ids(beside: &Tensor, ids: &[u32]) -> Result<Tensor> {
    Tensor::new(ids, beside.device())
}
