//! Reads blocks of 4 to 6 bits of a GGUF file as codes, without changing a bit of them, and quantises other
//! weights to such blocks.
//!
//! A block has 32 elements (Q4_0, Q4_1, Q5_0, Q5_1) or 256 elements (Q4_K, Q5_K, Q6_K).

use candle_core::Tensor;
use candle_core::quantized::QTensor;
use half::f16;
use ntl_kernels::{CodeBits, Codes};
use ntl_text::checkpoint::FileReader;
use ntl_text::gguf::GgmlType;
use rayon::prelude::*;

use super::convert::{ConvertError, PIECE};
use super::gguf::candle_type;

/// Number of elements that share parameters.
const GROUP: usize = 32;

/// Returns the number of bits of a type's codes, or `None` for a type that is not read as codes.
pub(super) fn bits(stored: GgmlType) -> Option<CodeBits> {
    match stored {
        GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q4K => Some(CodeBits::Four),
        GgmlType::Q5_0 | GgmlType::Q5_1 | GgmlType::Q5K => Some(CodeBits::Five),
        GgmlType::Q6K => Some(CodeBits::Six),
        _ => None,
    }
}

/// Where a file stores a weight `[out, in]` as codes. Reading the table has checked that the file contains
/// it.
pub(super) struct StoredCodes {
    /// Index of the file.
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) shape: [usize; 2],
    pub(super) stored: GgmlType,
    pub(super) bits: CodeBits,
    /// The number of heads in each of which the rows of a rotated pair are neighbours, if they are.
    pub(super) paired_heads: Option<usize>,
}

impl StoredCodes {
    /// Reads the codes, in the order of safetensors checkpoints.
    pub(super) fn read(&self, reader: &FileReader<'_>) -> Result<Codes, ConvertError> {
        let (stored, count) = (self.stored, self.shape[0] * self.shape[1]);
        let mut codes = vec![0; count];
        let mut params = vec![[0.0; 2]; count / GROUP];
        let pieces = codes.par_chunks_mut(PIECE).zip(params.par_chunks_mut(PIECE / GROUP));
        let error = pieces.enumerate().find_map_first(|(piece, (codes, params))| {
            let from = piece * PIECE / stored.block_elements() * stored.block_bytes();
            let filled = fill(reader, self.offset + from as u64, stored, codes, params);
            filled.err().map(|error| error.after(piece * PIECE))
        });
        if let Some(error) = error {
            return Err(error);
        }
        Ok(match self.paired_heads {
            None => Codes { bits: self.bits, codes, params },
            Some(heads) => Codes {
                bits: self.bits,
                codes: unpaired(&codes, self.shape[0], heads),
                params: unpaired(&params, self.shape[0], heads),
            },
        })
    }
}

/// Returns the type to which a weight is quantised: Q4_K, or Q6_K for tables of tokens, as in files that are
/// named Q4_K_M; Q5_0 if the inputs are not whole blocks of these. Returns `None` if they are not whole
/// blocks of Q5_0, either.
pub(super) fn quantised_type(inputs: usize, is_table: bool) -> Option<GgmlType> {
    let usual = if is_table { GgmlType::Q6K } else { GgmlType::Q4K };
    [usual, GgmlType::Q5_0].into_iter().find(|kind| inputs.is_multiple_of(kind.block_elements()))
}

/// Quantises a weight f32 `[out, in]`. Returns `None` if its inputs are not whole blocks.
pub(crate) fn quantised(weight: &Tensor, is_table: bool) -> candle_core::Result<Option<Codes>> {
    let (outputs, inputs) = weight.dims2()?;
    let Some(kind) = quantised_type(inputs, is_table) else { return Ok(None) };
    let Some(bits) = bits(kind) else { return Ok(None) };
    let rows = (PIECE / inputs).clamp(1, outputs);
    let firsts: Vec<usize> = (0..outputs).step_by(rows).collect();
    let parts = firsts.into_par_iter().map(|first| {
        // candle quantises the whole memory of a tensor.
        let part = weight.narrow(0, first, rows.min(outputs - first))?.force_contiguous()?;
        let blocks = QTensor::quantize(&part, candle_type(kind))?;
        let (mut codes, mut params) = (vec![0; part.elem_count()], vec![[0.0; 2]; part.elem_count() / GROUP]);
        decode_all(kind, &blocks.data()?, &mut codes, &mut params);
        Ok((codes, params))
    });
    let mut together = Codes { bits, codes: Vec::new(), params: Vec::new() };
    for (codes, params) in parts.collect::<candle_core::Result<Vec<_>>>()? {
        together.codes.extend(codes);
        together.params.extend(params);
    }
    Ok(Some(together))
}

/// Reads the blocks from byte `from` on.
fn fill(
    reader: &FileReader<'_>,
    from: u64,
    stored: GgmlType,
    codes: &mut [u8],
    params: &mut [[f32; 2]],
) -> Result<(), ConvertError> {
    let size = codes.len() / stored.block_elements() * stored.block_bytes();
    let bytes = reader.part(from, size as u64).map_err(ConvertError::Read)?;
    decode_all(stored, &bytes, codes, params);
    check(params)
}

/// Writes the codes and parameters of consecutive blocks.
fn decode_all(stored: GgmlType, bytes: &[u8], codes: &mut [u8], params: &mut [[f32; 2]]) {
    let elements = stored.block_elements();
    let blocks = codes.chunks_exact_mut(elements).zip(params.chunks_exact_mut(elements / GROUP));
    for (block, (codes, params)) in bytes.chunks_exact(stored.block_bytes()).zip(blocks) {
        decode(stored, block, codes, params);
    }
}

fn check(params: &[[f32; 2]]) -> Result<(), ConvertError> {
    match params.iter().position(|params| !params.iter().all(|param| param.is_finite())) {
        Some(group) => {
            let value = params[group].into_iter().find(|param| !param.is_finite()).unwrap_or_default();
            Err(ConvertError::NotFinite { index: group * GROUP, value })
        }
        None => Ok(()),
    }
}

/// Returns the f16 number at an offset of a block.
fn scale(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes the codes of one block and the parameters of its groups.
fn decode(stored: GgmlType, block: &[u8], codes: &mut [u8], params: &mut [[f32; 2]]) {
    let first = scale(block, 0);
    match stored {
        GgmlType::Q4_0 => {
            set_nibbles(&block[2..], codes);
            params[0] = [first, -8.0 * first];
        }
        GgmlType::Q4_1 => {
            set_nibbles(&block[4..], codes);
            params[0] = [first, scale(block, 2)];
        }
        GgmlType::Q5_0 => {
            set_nibbles(&block[6..], codes);
            add_fifth_bits(&block[2..6], codes);
            params[0] = [first, -16.0 * first];
        }
        GgmlType::Q5_1 => {
            set_nibbles(&block[8..], codes);
            add_fifth_bits(&block[4..8], codes);
            params[0] = [first, scale(block, 2)];
        }
        GgmlType::Q4K | GgmlType::Q5K => {
            let nibbles = &block[stored.block_bytes() - 128..];
            for (codes, nibbles) in codes.chunks_exact_mut(2 * GROUP).zip(nibbles.chunks_exact(GROUP)) {
                set_nibbles(nibbles, codes);
            }
            if stored == GgmlType::Q5K {
                for (group, codes) in codes.chunks_exact_mut(GROUP).enumerate() {
                    codes
                        .iter_mut()
                        .zip(&block[16..48])
                        .for_each(|(code, bits)| *code |= (bits >> group & 1) << 4);
                }
            }
            for (group, params) in params.iter_mut().enumerate() {
                let [of_scale, of_minimum] = six_bit_factors(&block[4..16], group);
                *params = [first * f32::from(of_scale), -scale(block, 2) * f32::from(of_minimum)];
            }
        }
        _ => decode_q6_k(block, codes, params),
    }
}

/// Writes the lower halves of `nibbles`, and then the upper ones.
fn set_nibbles(nibbles: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(codes.len() / 2);
    for ((low, high), both) in low.iter_mut().zip(high).zip(nibbles) {
        (*low, *high) = (both & 15, both >> 4);
    }
}

/// Adds one bit to each of 32 codes.
fn add_fifth_bits(bits: &[u8], codes: &mut [u8]) {
    for (index, code) in codes.iter_mut().enumerate() {
        *code |= (bits[index / 8] >> (index % 8) & 1) << 4;
    }
}

/// Returns the factors of the scale and of the minimum of one of eight groups. The last four groups have
/// their upper two bits above the factors of the first four.
fn six_bit_factors(packed: &[u8], group: usize) -> [u8; 2] {
    if group < 4 {
        return [packed[group] & 63, packed[group + 4] & 63];
    }
    let low = packed[group + 4];
    [low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4]
}

fn decode_q6_k(block: &[u8], codes: &mut [u8], params: &mut [[f32; 2]]) {
    let (nibbles, upper) = (&block[..128], &block[128..192]);
    let halves = codes.chunks_exact_mut(128).zip(nibbles.chunks_exact(64)).zip(upper.chunks_exact(32));
    for ((codes, nibbles), upper) in halves {
        set_nibbles(nibbles, codes);
        for (quarter, codes) in codes.chunks_exact_mut(GROUP).enumerate() {
            codes.iter_mut().zip(upper).for_each(|(code, bits)| *code |= (bits >> (2 * quarter) & 3) << 4);
        }
    }
    let whole = scale(block, 208);
    for (params, factors) in params.iter_mut().zip(block[192..208].as_chunks::<2>().0) {
        *params = factors.map(|factor| whole * f32::from(factor.cast_signed()));
    }
}

/// Returns rows `[rows, width]` with the first elements of each head's pairs before the second ones.
fn unpaired<T: Copy>(values: &[T], rows: usize, heads: usize) -> Vec<T> {
    let (width, head) = (values.len() / rows.max(1), rows / heads);
    let mut unpaired = Vec::with_capacity(values.len());
    for first in (0..rows).step_by(head.max(1)) {
        for half in [0, 1] {
            for row in (first + half..first + head).step_by(2) {
                unpaired.extend_from_slice(&values[row * width..][..width]);
            }
        }
    }
    unpaired
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};

    use super::*;

    const TYPES: [(GgmlType, GgmlDType); 7] = [
        (GgmlType::Q4_0, GgmlDType::Q4_0),
        (GgmlType::Q4_1, GgmlDType::Q4_1),
        (GgmlType::Q4K, GgmlDType::Q4K),
        (GgmlType::Q5_0, GgmlDType::Q5_0),
        (GgmlType::Q5_1, GgmlDType::Q5_1),
        (GgmlType::Q5K, GgmlDType::Q5K),
        (GgmlType::Q6K, GgmlDType::Q6K),
    ];

    fn stored(stored: GgmlType, shape: [usize; 2], paired_heads: Option<usize>) -> StoredCodes {
        StoredCodes { file: 0, offset: 0, shape, stored, bits: bits(stored).unwrap(), paired_heads }
    }

    /// Returns the elements of codes.
    fn elements(codes: &Codes, shape: [usize; 2]) -> Vec<f32> {
        let matrix = ntl_kernels::Matrix::pack_codes(codes, shape);
        let mut elements = vec![0.0; shape[0] * shape[1]];
        elements.chunks_exact_mut(shape[1]).enumerate().for_each(|(n, row)| matrix.read_row(n, row));
        elements
    }

    fn quantised(dtype: GgmlDType, shape: [usize; 2]) -> QTensor {
        let values = (0..shape[0] * shape[1]).map(|index| ((index * 37) as f32 * 0.01).sin() * 0.3 + 0.1);
        let exact = Tensor::from_vec(values.collect::<Vec<f32>>(), &shape[..], &Device::Cpu).unwrap();
        QTensor::quantize(&exact, dtype).unwrap()
    }

    #[test]
    fn codes_stand_for_the_elements_of_their_blocks() {
        // More than one piece.
        let shape = [1100, 256];
        for (kind, dtype) in TYPES {
            let blocks = quantised(dtype, shape);
            let bytes = blocks.data().unwrap();
            let codes = stored(kind, shape, None).read(&FileReader::memory(&bytes)).unwrap();
            let want: Vec<f32> =
                blocks.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            for (index, (got, want)) in elements(&codes, shape).iter().zip(&want).enumerate() {
                // The parameters are rounded to 11 bits.
                assert!((got - want).abs() < 5e-4, "{kind:?}, element {index}: {got} instead of {want}");
            }
        }
    }

    #[test]
    fn weights_are_quantised_like_whole_tensors_to_the_type_that_their_inputs_allow() {
        for (shape, is_table, dtype, error_max) in [
            // More than one piece.
            ([1100, 512], false, GgmlDType::Q4K, 0.05),
            ([1100, 512], true, GgmlDType::Q6K, 0.01),
            ([7, 96], false, GgmlDType::Q5_0, 0.02),
            ([7, 96], true, GgmlDType::Q5_0, 0.02),
        ] {
            let values = (0..shape[0] * shape[1]).map(|index| ((index * 37) as f32 * 0.01).sin() * 0.3 + 0.1);
            let exact = Tensor::from_vec(values.collect::<Vec<f32>>(), &shape[..], &Device::Cpu).unwrap();
            let got = elements(&super::quantised(&exact, is_table).unwrap().unwrap(), shape);
            let whole = QTensor::quantize(&exact, dtype).unwrap().dequantize(&Device::Cpu).unwrap();
            let flat = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for ((got, whole), exact) in got.iter().zip(flat(&whole)).zip(flat(&exact)) {
                assert!(
                    (got - whole).abs() < 5e-4 && (got - exact).abs() < error_max,
                    "{dtype:?} {got} {exact}"
                );
            }
        }
        let odd = Tensor::zeros((4, 40), candle_core::DType::F32, &Device::Cpu).unwrap();
        assert!(super::quantised(&odd, false).unwrap().is_none());
    }

    #[test]
    fn rows_of_pairs_are_put_in_halves_of_heads() {
        let shape = [8, 32];
        let bytes = quantised(GgmlDType::Q4_0, shape).data().unwrap().into_owned();
        let read = |heads| stored(GgmlType::Q4_0, shape, heads).read(&FileReader::memory(&bytes)).unwrap();
        let (plain, paired) = (elements(&read(None), shape), elements(&read(Some(2)), shape));
        let rows = [0, 2, 1, 3, 4, 6, 5, 7];
        let want: Vec<f32> = rows.iter().flat_map(|row| plain[row * 32..][..32].to_vec()).collect();
        assert_eq!(paired, want);
    }

    #[test]
    fn a_scale_that_is_not_finite_is_an_error_that_names_its_first_element() {
        for (kind, dtype) in TYPES {
            let shape = [3, 256];
            let mut bytes = quantised(dtype, shape).data().unwrap().into_owned();
            let block = 512 / kind.block_elements() * kind.block_bytes();
            let at = block + if kind == GgmlType::Q6K { 208 } else { 0 };
            bytes[at..at + 2].copy_from_slice(&f16::NAN.to_le_bytes());
            let error = stored(kind, shape, None).read(&FileReader::memory(&bytes)).unwrap_err();
            let ConvertError::NotFinite { index, value } = error else { panic!("{error:?}") };
            assert!(index == 512 && value.is_nan(), "{kind:?}: element {index} is {value}");
        }
    }
}
