//! Products are matmuls of column-major matrices, transposed or not, for each member of a batch.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::Device;
use half::bf16;
use ntl_fake_cuda::{Matrix, Product, Scalar, Total};

fn matrix(address: usize, scalar: Scalar, leading: i64, stride: i64, transposed: bool) -> Matrix {
    Matrix { address, scalar, leading, stride, transposed }
}

#[test]
fn a_matmul_respects_the_layout_of_its_operands() {
    let mut device = Device::new();
    // a is 2 x 3 with columns 4 elements apart, the same for both members; b is 3 x 2, stored transposed.
    let a = device.put(&[1f32, 2.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 5.0, 6.0]);
    let b = device.put(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
    let c = device.put(&[f32::NAN; 8]);
    let product = Product {
        m: 2,
        n: 2,
        k: 3,
        alpha: 2.0,
        beta: 0.0,
        a: matrix(a, Scalar::F32, 4, 0, false),
        b: matrix(b, Scalar::F32, 2, 6, true),
        c: matrix(c, Scalar::F32, 2, 4, false),
        batch: 2,
    };
    device.driver.product("product", &product).unwrap();
    // (1 3 5; 2 4 6) times (1 2; 3 4; 5 6) is (35 44; 44 56).
    assert_eq!(device.get::<f32>(c, 8), [70.0, 88.0, 88.0, 112.0, 700.0, 880.0, 880.0, 1120.0]);
    device.driver.product("product", &Product { alpha: 1.0, beta: 1.0, ..product }).unwrap();
    assert_eq!(device.get::<f32>(c, 4), [105.0, 132.0, 132.0, 168.0]);
}

#[test]
fn sixteen_bit_numbers_are_summed_in_f32_and_rounded_once() {
    let mut device = Device::new();
    let ones = vec![bf16::ONE; 300];
    let a = device.put(&ones);
    let b = device.put(&ones);
    let c = device.put(&[bf16::ZERO]);
    let product = Product {
        m: 1,
        n: 1,
        k: 300,
        alpha: 1.0,
        beta: 0.0,
        a: matrix(a, Scalar::Bf16, 1, 0, false),
        b: matrix(b, Scalar::Bf16, 300, 0, false),
        c: matrix(c, Scalar::Bf16, 1, 0, false),
        batch: 1,
    };
    device.driver.product("product", &product).unwrap();
    // A bf16 accumulator would stay at 256.
    assert_eq!(device.get::<bf16>(c, 1), [bf16::from_f32(300.0)]);
}

#[test]
fn calls_are_counted() {
    let path = std::env::temp_dir().join(format!("ntl-fake-cuda-{}", std::process::id()));
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "a_few_calls"])
        .env("NTL_FAKE_CUDA_COUNTS", &path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let number = |at: usize| u64::from_ne_bytes(bytes[8 * at..][..8].try_into().unwrap());
    // Launches, products, uploads and their bytes, downloads and their bytes, copies, fills, allocations and
    // their bytes, frees, synchronisations, events, live and peak bytes, and returned bytes.
    let totals: Vec<u64> = (0..16).map(number).collect();
    assert_eq!(totals, [2, 0, 1, 16, 1, 16, 0, 0, 2, 48, 1, 1, 0, 16, 48, 32]);
    let named = [("compiled modules", 1), ("look-ups of functions", 1), ("increment", 2)];
    for ((name, count), at) in named.into_iter().zip((16..).step_by(16)) {
        assert_eq!(number(at), count, "{name}");
        assert!(bytes[8 * (at + 1)..].starts_with(format!("{name}\0").as_bytes()), "{name}");
    }
    assert_eq!(number(16 + 16 * named.len()), 0);
}

#[test]
#[ignore = "run by calls_are_counted, which passes it a file"]
fn a_few_calls() {
    let mut device = Device::new();
    let function = device.function(common::INCREMENT, "increment").unwrap();
    let from = device.put(&[0f32; 4]);
    let other = device.driver.allocate(32).unwrap();
    device.launch(function, (1, 4), &[from, from], &[4]).unwrap();
    device.launch(function, (1, 4), &[from, from], &[4]).unwrap();
    device.driver.free(other).unwrap();
    assert_eq!(device.get::<f32>(from, 4), [2.0; 4]);
}

#[test]
fn the_memory_pool_returns_memory_beyond_its_threshold_at_a_synchronisation() {
    let returned = |keep: usize| {
        let mut device = Device::new();
        device.driver.keep_pool(keep);
        let first = device.driver.allocate(100).unwrap();
        let _second = device.driver.allocate(20).unwrap();
        device.driver.free(first).unwrap();
        device.driver.synchronise().unwrap();
        device.driver.synchronise().unwrap();
        device.driver.counts.get(Total::ReturnedBytes)
    };
    assert_eq!([0, 50, 120, 1000].map(returned), [100, 70, 0, 0]);
}
