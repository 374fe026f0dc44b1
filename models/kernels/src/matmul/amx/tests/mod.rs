//! Compares the tile machine with definitions, and provides sets of tiles for the matmul tests.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(in crate::matmul) mod emulator;
mod machine;

use half::bf16;

use self::machine::{Fault, Machine, Operands, Signs};
use super::*;

/// A set of tiles in plain Rust with the same steps as the assembly.
struct Plain {
    machine: Machine,
    elements: Elements,
}

impl Plain {
    fn new(rows: usize, elements: Elements) -> Self {
        let mut machine = Machine::new();
        machine.configure(&config(rows)).unwrap();
        Self { machine, elements }
    }

    fn load_starts(&mut self, tile: usize, sides: Sides<'_>, column: usize) {
        let starts = sides.starts.as_flattened();
        self.machine.load(tile, |_| &starts[4 * column..]).unwrap();
    }

    fn load_rows(&mut self, tile: usize, sides: Sides<'_>, first: usize, step: usize) {
        let row = |row| &sides.rows[(first + row) * sides.steps * STEP_BYTES + step * STEP_BYTES..];
        self.machine.load(tile, row).unwrap();
    }

    fn load_panel(&mut self, tile: usize, sides: Sides<'_>, step: usize, column: usize) {
        let row = |row| &sides.panel[step * PANEL_STEP_BYTES + (row * WIDTH + column) * 4..];
        self.machine.load(tile, row).unwrap();
    }

    fn dot(&mut self, to: usize, left: usize, right: usize) {
        let operands = Operands { to, left, right };
        match self.elements {
            Elements::Bytes => self.machine.dot_bytes(operands, Signs::UnsignedSigned).unwrap(),
            Elements::Bf16 => self.machine.dot_bf16(operands).unwrap(),
        }
    }

    fn store(&self, tile: usize, first: usize, column: usize, out: &mut [Row]) {
        let write = |row: usize, bytes: &[u8]| {
            out[first + row].as_flattened_mut()[4 * column..][..bytes.len()].copy_from_slice(bytes);
        };
        self.machine.store(tile, write).unwrap();
    }
}

impl TileUnit for Plain {
    fn two_by_two(&mut self, sides: Sides<'_>, first: [usize; 2], column: usize, out: &mut [Row]) {
        (0..4).for_each(|tile| self.load_starts(tile, sides, column + tile % 2 * 16));
        for step in 0..sides.steps {
            (0..2).for_each(|tile| self.load_rows(4 + tile, sides, first[tile], step));
            (0..2).for_each(|tile| self.load_panel(6 + tile, sides, step, column + tile * 16));
            (0..4).for_each(|tile| self.dot(tile, 4 + tile / 2, 6 + tile % 2));
        }
        (0..4).for_each(|tile| self.store(tile, first[tile / 2], column + tile % 2 * 16, out));
    }

    fn one_by_four(&mut self, sides: Sides<'_>, first: usize, out: &mut [Row]) {
        (0..4).for_each(|tile| self.load_starts(tile, sides, tile * 16));
        for step in 0..sides.steps {
            self.load_rows(4, sides, first, step);
            for tile in 0..4 {
                self.load_panel(6 + tile % 2, sides, step, tile * 16);
                self.dot(tile, 4, 6 + tile % 2);
            }
        }
        (0..4).for_each(|tile| self.store(tile, first, tile * 16, out));
    }
}

type PanelBy = Box<dyn Fn(Elements, Sides<'_>, &mut [Row]) + Sync>;

/// Returns the sets of tiles that this machine can test: plain Rust, and on x86-64 the assembly, on real or
/// emulated tiles.
pub(in crate::matmul) fn tile_units() -> Vec<(&'static str, PanelBy)> {
    let plain: PanelBy = Box::new(|elements, sides, out| {
        multiply(&mut Plain::new(tile_rows(out.len()), elements), sides, out)
    });
    #[cfg_attr(
        not(all(target_os = "linux", target_arch = "x86_64")),
        expect(unused_mut, reason = "only x86-64 has more")
    )]
    let mut units = vec![("plain tiles", plain)];
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        let amx = emulator::amx();
        let run: PanelBy = Box::new(move |elements, sides, out| {
            panel(amx, elements, sides, out);
        });
        units.push(("assembly", run));
    }
    units
}

/// Returns the matmul `[M, N]` of `x` `[M, K]` and `w` `[N, K]` by the definition of `tdpbf16ps`. In
/// steps of 32 inputs, it sums the even and the odd inputs separately with fused multiply-adds, and adds both
/// sums. It is only right for numbers far from the subnormal range.
pub(in crate::matmul) fn reference(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let round = |value: f32| bf16::from_f32(value).to_f32();
    let product = |x: &[f32], w: &[f32]| {
        x.chunks(32).zip(w.chunks(32)).fold(0.0_f32, |sum, (x, w)| {
            let mut sums = [0.0_f32; 2];
            for (at, (x, w)) in x.iter().zip(w).enumerate() {
                sums[at % 2] = round(*x).mul_add(round(*w), sums[at % 2]);
            }
            sum + (sums[0] + sums[1])
        })
    };
    x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(move |w| product(x, w))).collect()
}

fn operands(to: usize, left: usize, right: usize) -> Operands {
    Operands { to, left, right }
}

/// Returns a machine whose tiles are one number wide: one sum, with `inputs` groups of four bytes on each
/// side.
fn one_sum(inputs: usize) -> Machine {
    let mut config = [0; 64];
    config[0] = 1;
    for (tile, rows, bytes) in [(0, 1, 4), (1, 1, 4 * inputs), (2, inputs, 4)] {
        config[16 + 2 * tile] = bytes as u8;
        config[48 + tile] = rows as u8;
    }
    let mut machine = Machine::new();
    machine.configure(&config).unwrap();
    machine
}

fn stored(machine: &Machine) -> [u8; 4] {
    let mut sum = [0; 4];
    machine.store(0, |_, bytes| sum.copy_from_slice(bytes)).unwrap();
    sum
}

#[test]
fn bytes_have_the_instruction_s_signs_and_sums_wrap() {
    let left = [0x80, 0xff, 2, 1];
    let right = [0xff, 0x80, 3, 0];
    for (signs, want) in [
        (Signs::SignedSigned, 128 + 128 + 6),
        (Signs::SignedUnsigned, -128 * 255 - 128 + 6),
        (Signs::UnsignedSigned, -128 - 255 * 128 + 6),
        (Signs::UnsignedUnsigned, 128 * 255 + 255 * 128 + 6),
    ] {
        for start in [0_i32, 5, i32::MAX, i32::MIN] {
            let mut machine = one_sum(1);
            let bytes = start.to_le_bytes();
            machine.load(0, |_| &bytes).unwrap();
            machine.load(1, |_| &left).unwrap();
            machine.load(2, |_| &right).unwrap();
            machine.dot_bytes(operands(0, 1, 2), signs).unwrap();
            assert_eq!(i32::from_le_bytes(stored(&machine)), start.wrapping_add(want), "{signs:?}, {start}");
        }
    }
}

/// Returns the sum of pairs by `tdpbf16ps`, starting with `start`. Each f32 must be exactly representable in
/// bf16.
fn bf16_sum(start: f32, pairs: &[([f32; 2], [f32; 2])]) -> f32 {
    let bytes = |pair: [f32; 2]| pair.map(|value| (value.to_bits() >> 16) as u16).map(u16::to_le_bytes);
    let left: Vec<u8> = pairs.iter().flat_map(|(left, _)| bytes(*left)).flatten().collect();
    let right: Vec<_> = pairs.iter().map(|(_, right)| bytes(*right).as_flattened().to_vec()).collect();
    let start = start.to_le_bytes();
    let mut machine = one_sum(pairs.len());
    machine.load(0, |_| &start).unwrap();
    machine.load(1, |_| &left).unwrap();
    machine.load(2, |row| &right[row]).unwrap();
    machine.dot_bf16(operands(0, 1, 2)).unwrap();
    f32::from_le_bytes(stored(&machine))
}

#[test]
fn bf16_sums_are_fused_and_even_and_odd_inputs_are_added_up_separately() {
    let large = 2f32.powi(24);
    let small = 1.0;
    // In order, 1 would be lost twice next to 2^24. With separate sums, the odd inputs keep it.
    let sum = bf16_sum(0.0, &[([large, small], [1.0, 1.0]), ([-large, small], [1.0, 1.0])]);
    assert_eq!(sum.to_bits(), 2.0_f32.to_bits());
    // Within the even inputs, it is lost.
    let sum =
        bf16_sum(0.0, &[([large, 0.0], [1.0, 0.0]), ([small, 0.0], [1.0, 0.0]), ([-large, 0.0], [1.0, 0.0])]);
    assert_eq!(sum.to_bits(), 0.0_f32.to_bits());
    // The start is added last: 2^24 + (1 + 1) keeps both, and 2^24 + 1 + 1 would not.
    let sum = bf16_sum(large, &[([small, small], [1.0, 1.0])]);
    assert_eq!(sum.to_bits(), (large + 2.0).to_bits());
    assert!(bf16_sum(0.0, &[([f32::NAN, 0.0], [1.0, 0.0])]).is_nan());
    assert!(bf16_sum(0.0, &[([f32::INFINITY, 0.0], [0.0, 0.0])]).is_nan());
}

#[test]
fn subnormal_numbers_are_zero_as_operands_and_as_results() {
    let least = f32::MIN_POSITIVE;
    let denormal = f32::from_bits(0x0040_0000);
    let is =
        |got: f32, want: f32| assert_eq!(got.to_bits(), want.to_bits(), "got {got:e}, expected {want:e}");
    is(bf16_sum(0.0, &[([denormal, 0.0], [2.0, 0.0])]), 0.0);
    is(bf16_sum(denormal, &[([0.0, 0.0], [0.0, 0.0])]), 0.0);
    is(bf16_sum(0.0, &[([least, 0.0], [1.0, 0.0])]), least);
    is(bf16_sum(0.0, &[([least, 0.0], [0.5, 0.0])]), 0.0);
    // Both halves are normal, but their sum is not.
    is(bf16_sum(0.0, &[([least, -1.5 * least], [1.0, 1.0])]), 0.0);
    // 2^-126 - 2^-150 has 24 bits, so it is subnormal, although f32 would round it up to a normal number.
    let below = [([2f32.powi(-126), 0.0], [1.0, 0.0]), ([-(2f32.powi(-75)), 0.0], [2f32.powi(-75), 0.0])];
    is(bf16_sum(0.0, &below), 0.0);
}

#[test]
fn instructions_that_fault_on_the_cpu_are_faults() {
    let mut machine = Machine::new();
    assert_eq!(machine.zero(0), Err(Fault("a tile that is not configured")));
    let mut wrong = config(16);
    wrong[0] = 2;
    assert_eq!(machine.configure(&wrong), Err(Fault("unknown palette")));
    let mut wrong = config(16);
    wrong[48] = 17;
    assert_eq!(machine.configure(&wrong), Err(Fault("a tile too large")));
    machine.configure(&config(5)).unwrap();
    let bytes = Signs::UnsignedSigned;
    assert_eq!(machine.dot_bytes(operands(0, 4, 4), bytes), Err(Fault("one tile in two places")));
    assert_eq!(
        machine.dot_bytes(operands(6, 4, 7), bytes),
        Err(Fault("rows of the sums and of the left side"))
    );
    assert_eq!(machine.dot_bytes(operands(0, 4, 1), bytes), Err(Fault("inputs of both sides")));
    machine.dot_bytes(operands(0, 4, 6), bytes).unwrap();
    machine.release();
    assert_eq!(machine.dot_bytes(operands(0, 4, 6), bytes), Err(Fault("a tile that is not configured")));
}

#[test]
fn rows_and_bytes_beyond_a_tile_become_zero_when_it_is_loaded() {
    let mut machine = Machine::new();
    machine.configure(&config(3)).unwrap();
    let memory = [7_u8; 64];
    machine.load(6, |_| &memory).unwrap();
    machine.load(4, |_| &memory).unwrap();
    let mut rows = 0;
    machine
        .store(4, |row, bytes| {
            assert_eq!((row, bytes), (rows, &memory[..]));
            rows += 1;
        })
        .unwrap();
    assert_eq!(rows, 3);
    machine.zero(4).unwrap();
    machine.store(4, |_, bytes| assert_eq!(bytes, [0; 64])).unwrap();
}

#[test]
fn a_matmul_uses_few_tiles_of_equal_size() {
    assert_eq!([1, 7, 16, 17, 31, 33, 40].map(tile_rows), [1, 7, 16, 9, 16, 11, 14]);
}

#[test]
#[cfg_attr(not(amx), ignore = "needs a CPU with AMX tiles for int8 and bf16, and Linux")]
fn the_tiles_of_the_cpu_are_detected() {
    assert!(Amx::new().is_some(), "the CPU has tiles, but this process may not use them");
}
