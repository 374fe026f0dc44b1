//! Removes each barrier of this program's kernels in turn. The fake driver must find a race without it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

#[expect(dead_code, reason = "each test program uses a part of it")]
mod common;

use std::path::Path;

use common::Device;
use ntl_fake_cuda::{Fault, Launch};

const BARRIER: &str = "bar.sync";

/// A kernel, and a launch of it. Addresses precede numbers in the parameters of all kernels.
struct Case {
    file: &'static str,
    kernel: &'static str,
    blocks: u32,
    threads: u32,
    shared_bytes: usize,
    addresses: Vec<Vec<u32>>,
    numbers: Vec<u32>,
}

fn cases() -> [Case; 4] {
    let floats = |count: usize| vec![1.5f32.to_bits(); count];
    let (half, none) = (0.5f32.to_bits(), 0);
    let slots: Vec<u32> = (0..40).collect();
    [
        Case {
            file: "layer",
            kernel: "norm_f32",
            blocks: 2,
            threads: 320,
            shared_bytes: 0,
            addresses: vec![floats(600), floats(300), floats(300), floats(600)],
            numbers: vec![300, half],
        },
        Case {
            file: "attention",
            kernel: "attend_f32_1",
            blocks: 1,
            threads: 128,
            shared_bytes: 4 * (16 + 2) * 4,
            addresses: vec![
                floats(16),
                floats(2 * 40 * 16),
                [&[0, 40, 40, 0, 40, 39], &slots[..]].concat(),
                Vec::new(),
                floats(16),
                Vec::new(),
            ],
            numbers: vec![half, none, 1, 1, 16, 40, 40, 0, 2],
        },
        Case {
            file: "prompt",
            kernel: "weigh_f32",
            blocks: 2,
            threads: 160,
            shared_bytes: 0,
            addresses: vec![floats(1200), vec![0, 0, 600, 0, 1, 5, 500, 1], Vec::new(), floats(1200)],
            numbers: vec![half, none, 1, 2, 600, 0],
        },
        Case {
            file: "logits",
            kernel: "summarize_f32",
            blocks: 2,
            threads: 512,
            shared_bytes: 0,
            addresses: vec![floats(2600), floats(8)],
            numbers: vec![1300, 1250],
        },
    ]
}

impl Case {
    fn run(&self, ptx: &str) -> Result<(), Fault> {
        let mut device = Device::new();
        let module = device.driver.load_module(ptx)?;
        let function = device.driver.function(module, self.kernel)?;
        let mut parameters: Vec<Vec<u8>> = Vec::new();
        for values in &self.addresses {
            let address = if values.is_empty() { 0 } else { device.put(values) };
            parameters.push(address.to_le_bytes().to_vec());
        }
        parameters.extend(self.numbers.iter().map(|number| number.to_le_bytes().to_vec()));
        let launch = Launch {
            grid: [self.blocks, 1, 1],
            block: [self.threads, 1, 1],
            dynamic_shared_bytes: self.shared_bytes,
            parameters,
        };
        device.driver.launch(function, launch)?;
        device.driver.finish()
    }

    /// Returns the text before the kernel, its own text, and the text after it.
    fn split<'a>(&self, ptx: &'a str) -> [&'a str; 3] {
        let start = ptx.find(&format!(".entry {}(", self.kernel)).expect("the kernel");
        let length = ptx[start + 1..].find(".entry ").map_or(ptx.len() - start, |length| length + 1);
        [&ptx[..start], &ptx[start..start + length], &ptx[start + length..]]
    }
}

#[test]
#[ignore = "needs compiled kernels in NTL_PTX: lab/fake-cuda/check"]
fn every_barrier_that_matters_is_missed_if_it_is_removed() {
    let folder = std::env::var("NTL_PTX").unwrap();
    let mut barriers = 0;
    let mut redundant = Vec::new();
    for case in cases() {
        let ptx = std::fs::read_to_string(Path::new(&folder).join(case.file).with_extension("ptx")).unwrap();
        case.run(&ptx).unwrap();
        let [before, kernel, after] = case.split(&ptx);
        for (index, (at, _)) in kernel.match_indices(BARRIER).enumerate() {
            let rest = &kernel[at..];
            let end = rest.find(';').expect("the end of the instruction") + 1;
            let removed = [before, &kernel[..at], &rest[end..], after].concat();
            match case.run(&removed) {
                Ok(()) => redundant.push((case.kernel, index)),
                Err(fault) => {
                    assert!(fault.to_string().contains("a race: "), "{}, {index}: {fault}", case.kernel)
                }
            }
            barriers += 1;
        }
    }
    assert_eq!(barriers, 26);
    // After the last sum over a block, nothing overwrites what its threads still read.
    assert_eq!(redundant, [("norm_f32", 3)]);
}
