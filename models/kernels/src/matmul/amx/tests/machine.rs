//! The tile instructions of x86-64 (AMX) in plain Rust, bit for bit as the manual specifies them.
//!
//! The machine checks the tile kernels on every CPU. It also executes the instructions themselves if the CPU
//! lacks them (`emulator`).

/// Number of tiles in the CPU.
const TILES: usize = 8;
const ROWS_MAX: usize = 16;
const ROW_BYTES_MAX: usize = 64;

/// Signedness of the two sides of an int8 product: `tdpbssd`, `tdpbsud`, `tdpbusd` and `tdpbuud`, left side
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signs {
    SignedSigned,
    SignedUnsigned,
    UnsignedSigned,
    UnsignedUnsigned,
}

/// Tiles of a product: `to += left * right`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operands {
    pub(super) to: usize,
    pub(super) left: usize,
    pub(super) right: usize,
}

#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    row_bytes: usize,
    data: [[u8; ROW_BYTES_MAX]; ROWS_MAX],
}

/// The tiles and their configuration. Without one, only [`configure`](Self::configure) is allowed.
pub(super) struct Machine {
    tiles: [Tile; TILES],
    configured: bool,
}

/// A fault that the same instruction raises on a CPU.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault(pub(super) &'static str);

fn unless(fine: bool, reason: &'static str) -> Result<(), Fault> {
    if fine { Ok(()) } else { Err(Fault(reason)) }
}

impl Machine {
    pub(super) const fn new() -> Self {
        let none = Tile { rows: 0, row_bytes: 0, data: [[0; ROW_BYTES_MAX]; ROWS_MAX] };
        Self { tiles: [none; TILES], configured: false }
    }

    /// `ldtilecfg`.
    pub(super) fn configure(&mut self, config: &[u8; 64]) -> Result<(), Fault> {
        *self = Self::new();
        if config[0] == 0 {
            return Ok(());
        }
        unless(config[0] == 1, "unknown palette")?;
        unless(config[2..16].iter().all(|&byte| byte == 0), "reserved bytes")?;
        for tile in 0..ROWS_MAX {
            let row_bytes = u16::from_le_bytes([config[16 + 2 * tile], config[17 + 2 * tile]]).into();
            let rows = config[48 + tile].into();
            if tile >= TILES {
                unless((rows, row_bytes) == (0, 0), "no such tile")?;
                continue;
            }
            unless(rows <= ROWS_MAX && row_bytes <= ROW_BYTES_MAX, "a tile too large")?;
            unless((rows == 0) == (row_bytes == 0), "a tile of rows without bytes or bytes without rows")?;
            (self.tiles[tile].rows, self.tiles[tile].row_bytes) = (rows, row_bytes);
        }
        self.configured = true;
        Ok(())
    }

    /// `tilerelease`.
    pub(super) fn release(&mut self) {
        *self = Self::new();
    }

    /// Returns the bytes per row of a tile, and its number of rows.
    pub(super) fn shape(&self, tile: usize) -> Result<(usize, usize), Fault> {
        unless(self.configured && self.tiles[tile].rows > 0, "a tile that is not configured")?;
        Ok((self.tiles[tile].row_bytes, self.tiles[tile].rows))
    }

    /// `tileloadd`; `read(row)` returns the memory of a row.
    pub(super) fn load<'a>(&mut self, tile: usize, read: impl Fn(usize) -> &'a [u8]) -> Result<(), Fault> {
        let (row_bytes, rows) = self.shape(tile)?;
        let data = &mut self.tiles[tile].data;
        *data = [[0; ROW_BYTES_MAX]; ROWS_MAX];
        for (row, data) in data.iter_mut().enumerate().take(rows) {
            data[..row_bytes].copy_from_slice(&read(row)[..row_bytes]);
        }
        Ok(())
    }

    /// `tilestored`; `write(row, bytes)` changes the memory of a row.
    pub(super) fn store(&self, tile: usize, mut write: impl FnMut(usize, &[u8])) -> Result<(), Fault> {
        let (row_bytes, rows) = self.shape(tile)?;
        (0..rows).for_each(|row| write(row, &self.tiles[tile].data[row][..row_bytes]));
        Ok(())
    }

    /// `tilezero`.
    pub(super) fn zero(&mut self, tile: usize) -> Result<(), Fault> {
        self.shape(tile)?;
        self.tiles[tile].data = [[0; ROW_BYTES_MAX]; ROWS_MAX];
        Ok(())
    }

    /// Adds four int8 products to each 32-bit sum, which wraps around.
    pub(super) fn dot_bytes(&mut self, operands: Operands, signs: Signs) -> Result<(), Fault> {
        let (left_signed, right_signed) = match signs {
            Signs::SignedSigned => (true, true),
            Signs::SignedUnsigned => (true, false),
            Signs::UnsignedSigned => (false, true),
            Signs::UnsignedUnsigned => (false, false),
        };
        self.each_sum(operands, |sum, pairs| {
            let mut sum = i32::from_le_bytes(sum);
            for (left, right) in pairs {
                for (left, right) in left.into_iter().zip(right) {
                    sum = sum.wrapping_add(wide(left, left_signed) * wide(right, right_signed));
                }
            }
            sum.to_le_bytes()
        })
    }

    /// `tdpbf16ps`: adds up the first and the second numbers of all pairs separately, each with fused
    /// multiply-adds, rounded to nearest even. Subnormal numbers count as 0, both as operands and as results.
    pub(super) fn dot_bf16(&mut self, operands: Operands) -> Result<(), Fault> {
        self.each_sum(operands, |sum, pairs| {
            let mut sums = [0.0_f32; 2];
            for (left, right) in pairs {
                for (at, sum) in sums.iter_mut().enumerate() {
                    *sum = multiply_add(flushed(bf16(left, at)), flushed(bf16(right, at)), *sum);
                }
            }
            let both = flushed(sums[0] + sums[1]);
            flushed(flushed(f32::from_le_bytes(sum)) + both).to_le_bytes()
        })
    }

    /// Replaces every 32-bit sum by `of(sum, pairs of factors)`.
    fn each_sum(
        &mut self,
        Operands { to, left, right }: Operands,
        of: impl Fn([u8; 4], &mut dyn Iterator<Item = ([u8; 4], [u8; 4])>) -> [u8; 4],
    ) -> Result<(), Fault> {
        let [(to_bytes, to_rows), (left_bytes, left_rows), (right_bytes, right_rows)] =
            [self.shape(to)?, self.shape(left)?, self.shape(right)?];
        unless(to != left && to != right && left != right, "one tile in two places")?;
        unless(to_rows == left_rows, "rows of the sums and of the left side")?;
        unless(to_bytes == right_bytes, "bytes of the sums and of the right side")?;
        unless(left_bytes == 4 * right_rows, "inputs of both sides")?;
        unless(to_bytes % 4 == 0, "parts of numbers")?;
        let [left, right] = [left, right].map(|tile| self.tiles[tile].data);
        for (row, left) in self.tiles[to].data.iter_mut().zip(&left).take(to_rows) {
            for at in 0..to_bytes / 4 {
                let mut pairs = (0..right_rows).map(|input| (group(left, input), group(&right[input], at)));
                let sum = of(group(row, at), &mut pairs);
                row.as_chunks_mut::<4>().0[at] = sum;
            }
        }
        Ok(())
    }
}

/// Returns four bytes of a row.
fn group(row: &[u8; ROW_BYTES_MAX], index: usize) -> [u8; 4] {
    row.as_chunks().0[index]
}

fn wide(byte: u8, is_signed: bool) -> i32 {
    if is_signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
}

/// Returns one of two bf16 numbers.
fn bf16(pair: [u8; 4], index: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([pair[2 * index], pair[2 * index + 1]])) << 16)
}

/// Replaces a subnormal number by 0 with the same sign.
fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(value) } else { value }
}

/// Returns `a * b + c`, rounded once, then flushed. No operand may be subnormal.
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    /// Products scaled up by this factor have enough exponent range for rounding to show whether the result
    /// was too small.
    const UP: f32 = 18_446_744_073_709_551_616.0;
    let sum = a.mul_add(b, c);
    if sum.abs().to_bits() == f32::MIN_POSITIVE.to_bits() {
        let (small, large) = if a.abs() < b.abs() { (a, b) } else { (b, a) };
        let scaled = (small * UP).mul_add(large, c * UP);
        return if scaled.abs() < f32::MIN_POSITIVE * UP { 0.0_f32.copysign(sum) } else { sum };
    }
    flushed(sum)
}
