//! Images that contain code for several generations of GPUs, as `nvcc -fatbin -no-compress` writes them: a
//! header, then one part per generation with its own header. All numbers are little-endian.

use crate::fault::{Code, Fault};

const MAGIC: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
const HEADER: usize = 16;
const PTX: usize = 1;
const MACHINE_CODE: usize = 2;

/// The parts of an image.
pub(crate) struct Fatbin<'a> {
    pub(crate) ptx: &'a str,
    /// Generations with machine code, such as 90.
    pub(crate) generations: Vec<usize>,
}

/// Returns the bytes of an image, or `None` if `from` is not an image.
///
/// # Safety
/// `from` must be a string that ends with 0, or a complete image.
pub(crate) unsafe fn bytes<'a>(from: *const u8) -> Option<&'a [u8]> {
    // SAFETY: the comparison ends at the first difference, so not after the end of a string. An image's
    // header states its size.
    unsafe {
        if !(0..MAGIC.len()).all(|at| *from.add(at) == MAGIC[at]) {
            return None;
        }
        let header = std::slice::from_raw_parts(from, HEADER);
        Some(std::slice::from_raw_parts(from, HEADER + number(header, 8, 8)?))
    }
}

/// Returns the number of `size` bytes at an offset.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + size)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| (number << 8) | usize::from(byte)))
}

impl<'a> Fatbin<'a> {
    pub(crate) fn read(image: &'a [u8]) -> Result<Self, Fault> {
        Self::parse(image).ok_or_else(|| {
            Fault::new(Code::InvalidImage, "an image has no PTX, or is compressed or incomplete")
        })
    }

    fn parse(image: &'a [u8]) -> Option<Self> {
        let (mut ptx, mut generations, mut at) = (None, Vec::new(), HEADER);
        while at < image.len() {
            let kind = number(image, at, 2)?;
            let payload = at + number(image, at + 4, 4)?;
            let size = number(image, at + 8, 8)?;
            match kind {
                PTX => {
                    ptx = image.get(payload..payload + size).and_then(|text| std::str::from_utf8(text).ok())
                }
                MACHINE_CODE => generations.push(number(image, at + 28, 4)?),
                _ => {}
            }
            at = payload + size;
        }
        let ptx = ptx.filter(|text| text.contains(".version"))?;
        Some(Self { ptx: ptx.trim_end_matches('\0'), generations })
    }
}
