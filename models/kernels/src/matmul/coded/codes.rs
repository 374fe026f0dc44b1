//! Small unsigned integers with scales: what blocks of GGUF files have in common.

use half::f16;

use super::{GROUP, Instructions, LINE, QUADS, WIDTH};

/// Number of bits of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeBits {
    Four,
    Five,
    Six,
}

/// A weight `[N, K]` of codes. `K` is a multiple of 32.
#[derive(Debug, Clone)]
pub struct Codes {
    pub bits: CodeBits,
    /// `[N, K]`.
    pub codes: Vec<u8>,
    /// `[N, K / 32]`. With 4 and 5 bits, an element is `params[0] * code + params[1]`. With 6 bits it is
    /// `param * (code - 32)`, with the first parameter for the first 16 elements of a group and the second
    /// one for the others.
    pub params: Vec<[f32; 2]>,
}

impl Codes {
    /// Returns whether this CPU has instructions that multiply codes. Without them, 8-bit weights are faster.
    pub fn are_fast() -> bool {
        !matches!(Instructions::best(), Instructions::Portable)
    }
}

impl CodeBits {
    /// Returns the memory of this many packed elements and their parameters, in bytes.
    pub fn bytes(self, elements: u64) -> u64 {
        elements * (self.count() as u64 + 1) / 8
    }

    pub(super) fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Five => 5,
            Self::Six => 6,
        }
    }

    /// Returns the size of a group of a panel in bytes.
    pub(super) fn record_bytes(self) -> usize {
        (self.count() + 1) * LINE
    }

    /// Returns a record's parameters.
    pub(super) fn params(self, record: &[u8]) -> [&[f16]; 2] {
        let (first, second) = bytemuck::cast_slice(&record[self.count() * LINE..]).split_at(WIDTH);
        [first, second]
    }

    /// Returns one code of a record. `lane` is its place within the quad's bytes.
    #[inline(always)]
    pub(super) fn code(self, record: &[u8], quad: usize, lane: usize) -> u8 {
        let low = record[quad % 4 * LINE + lane] >> (quad / 4 * 4) & 15;
        match self.upper(quad) {
            None => low,
            Some((line, shift, mask)) => (record[line * LINE + lane] >> shift & mask) << 4 | low,
        }
    }

    /// Sets one code of a record, whose bits must be zero.
    pub(super) fn add_code(self, record: &mut [u8], quad: usize, lane: usize, code: u8) {
        record[quad % 4 * LINE + lane] |= (code & 15) << (quad / 4 * 4);
        if let Some((line, shift, mask)) = self.upper(quad) {
            record[line * LINE + lane] |= (code >> 4 & mask) << shift;
        }
    }

    /// Returns where the upper bits of a quad's codes are: their line, their place in it, and their mask.
    #[inline(always)]
    fn upper(self, quad: usize) -> Option<(usize, usize, u8)> {
        match self {
            Self::Four => None,
            Self::Five => Some((4, quad, 1)),
            Self::Six => Some((4 + quad / 4, quad % 4 * 2, 3)),
        }
    }

    /// Returns the element of a code with the parameters of its group.
    pub(super) fn element(self, code: u8, [first, second]: [f32; 2], input: usize) -> f32 {
        match self {
            Self::Four | Self::Five => f32::from(code).mul_add(first, second),
            Self::Six => (f32::from(code) - 32.0) * if input < GROUP / 2 { first } else { second },
        }
    }
}

/// Returns the codes of a record, by quad.
#[inline(always)]
pub(super) fn unpacked(bits: CodeBits, record: &[u8]) -> [[u8; LINE]; QUADS] {
    let mut codes = [[0; LINE]; QUADS];
    for (quad, codes) in codes.iter_mut().enumerate() {
        for (lane, code) in codes.iter_mut().enumerate() {
            *code = bits.code(record, quad, lane);
        }
    }
    codes
}
