//! Headers of GGUF files: a valid one, and hostile ones. Each of those is one error that names the key or the
//! tensor, and needs no memory for its claims.

use ntl_text::checkpoint::{FileReader, LoadError};
use ntl_text::gguf::{GgmlType, GgufFile, TensorType, Value};

/// The bytes of a GGUF header.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

const U8: u32 = 0;
const U32: u32 = 4;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const LIST: u32 = 9;
const U64: u32 = 10;

impl Bytes {
    fn header(tensors: u64, fields: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(tensors).u64(fields)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, number: u32) -> Self {
        self.raw(&number.to_le_bytes())
    }

    fn u64(self, number: u64) -> Self {
        self.raw(&number.to_le_bytes())
    }

    fn text(self, text: &str) -> Self {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    /// Appends the name of a tensor, its sizes from the innermost to the outermost, its type and its offset.
    fn tensor(self, name: &str, sizes: &[u64], kind: u32, offset: u64) -> Self {
        let mut bytes = self.text(name).u32(sizes.len() as u32);
        for &size in sizes {
            bytes = bytes.u64(size);
        }
        bytes.u32(kind).u64(offset)
    }

    /// Appends data after the usual alignment.
    fn data(mut self, count: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + count, 0);
        self
    }

    fn read(&self) -> Result<GgufFile, LoadError> {
        GgufFile::read("m.gguf", &FileReader::memory(&self.0))
    }
}

fn field(name: &str) -> Bytes {
    Bytes::header(0, 1).text(name)
}

fn table(count: u64) -> Bytes {
    Bytes::header(count, 0)
}

#[test]
fn a_header_has_values_of_all_types_and_the_places_of_tensors() {
    let file = Bytes::header(2, 5)
        .text("a")
        .u32(U8)
        .raw(&[200])
        .text("b")
        .u32(6)
        .raw(&1e-6_f32.to_le_bytes())
        .text("c")
        .u32(LIST)
        .u32(TEXT)
        .u64(2)
        .text("x")
        .text("ü")
        .text("d")
        .u32(LIST)
        .u32(5)
        .u64(2)
        .raw(&(-1_i32).to_le_bytes())
        .u32(7)
        .text("general.alignment")
        .u32(U32)
        .u32(8)
        .tensor("t", &[4, 2], 0, 0)
        .tensor("q", &[32, 1], 8, 32)
        .data(80);
    let gguf = file.read().unwrap();
    assert_eq!(gguf.get("a"), Some(&Value::Integer(200)));
    assert_eq!(gguf.get("b"), Some(&Value::Float(1e-6)));
    assert_eq!(gguf.texts("c").unwrap().unwrap(), ["x", "ü"]);
    assert_eq!(gguf.get("d"), Some(&Value::Integers(vec![-1, 7])));
    let (t, q) = (&gguf.tensors()["t"], &gguf.tensors()["q"]);
    assert_eq!((&t.shape[..], &t.stored), (&[2, 4][..], &TensorType::Known(GgmlType::F32)));
    assert_eq!((&q.shape[..], &q.stored), (&[1, 32][..], &TensorType::Known(GgmlType::Q8_0)));
    assert_eq!(q.offset, t.offset + 32);
    assert!(t.offset.is_multiple_of(8));
}

/// Headers, each with a part of its error.
fn hostile() -> Vec<(Bytes, &'static str)> {
    let one = |sizes: &[u64], kind, offset| table(1).tensor("t", sizes, kind, offset).data(64);
    vec![
        (Bytes::default(), "m.gguf is not usable: the file is cut off"),
        (Bytes(b"GGUF".to_vec()), "not usable: the file is cut off"),
        (Bytes(b"GGML".to_vec()).u32(3).u64(0).u64(0), "does not begin with GGUF"),
        (Bytes(b"GGUF".to_vec()).u32(1).u64(0).u64(0), "version 1 is not supported"),
        (Bytes(b"GGUF".to_vec()).u32(4).u64(0).u64(0), "version 4 is not supported"),
        (Bytes(b"GGUF".to_vec()).u32(3_u32.swap_bytes()).u64(0).u64(0), "big-endian"),
        (table(u64::MAX), "claims 18446744073709551615 tensors"),
        (Bytes::header(0, 1 << 40), "claims 1099511627776 metadata fields"),
        (Bytes::header(0, 3), "the name of metadata field 0: the file is cut off"),
        (Bytes::header(0, 1).u64(0), "the name of metadata field 0: 0 bytes"),
        (Bytes::header(0, 1).u64(u64::MAX), "the name of metadata field 0: 18446744073709551615 bytes"),
        (Bytes::header(0, 1).u64(1025).raw(&[b'a'; 1025]), "metadata field 0: 1025 bytes"),
        (Bytes::header(0, 1).u64(2).raw(&[0xff, 0xfe]).u32(U8).raw(&[0]), "metadata field 0: not UTF-8"),
        (field("a\nb").u32(U8).raw(&[0]), "metadata field 0: it has unprintable characters"),
        (field("k").u32(13), "field `k`: values of type 13 are not known"),
        (field("k").u32(u32::MAX), "field `k`: values of type 4294967295 are not known"),
        (field("k").u32(BOOL).raw(&[2]), "field `k`: 2 is neither true nor false"),
        (field("k").u32(U64).u32(0), "field `k`: the file is cut off"),
        (field("k").u32(TEXT).u64(u64::MAX), "field `k`: a text of 18446744073709551615 bytes"),
        (field("k").u32(TEXT).u64(1 << 40).raw(b"x"), "field `k`: a text of 1099511627776 bytes"),
        (field("k").u32(TEXT).u64(1).raw(&[0x80]), "field `k`: a text is not UTF-8"),
        (field("k").u32(LIST).u32(U8).u64(u64::MAX), "field `k`: a list of 18446744073709551615 values"),
        (field("k").u32(LIST).u32(U64).u64(u64::MAX / 4).u64(0), "field `k`: a list of 46116"),
        (field("k").u32(LIST).u32(TEXT).u64(1 << 30).u64(0), "field `k`: a list of 1073741824 values"),
        (field("k").u32(LIST).u32(99).u64(1), "field `k`: values of type 99 are not known"),
        (field("k").u32(LIST).u32(LIST).u64(1).u32(LIST).u64(1), "field `k`: lists of lists"),
        (field("k").u32(LIST).u32(BOOL).u64(1).raw(&[7]), "field `k`: 7 is neither"),
        (field("k").u32(LIST).u32(U64).u64(1).u64(u64::MAX), "field `k`: 18446744073709551615 is too large"),
        (
            field("k").u32(LIST).u32(U8).u64((1 << 22) + 1).raw(&vec![0; (1 << 22) + 1]),
            "field `k`: with its 4194305 values, the lists of the file have more than 4194304",
        ),
        (
            Bytes::header(0, 2).text("k").u32(U8).raw(&[0]).text("k").u32(U8).raw(&[0]),
            "field `k`: it is there twice",
        ),
        (field("general.alignment").u32(U32).u32(0), "field `general.alignment`: 0 is not a power of two"),
        (field("general.alignment").u32(U32).u32(24), "field `general.alignment`: 24 is not a power"),
        (field("general.alignment").u32(U32).u32(1 << 31), "`general.alignment`: 2147483648 is not"),
        (field("general.alignment").u32(TEXT).text("32"), "`general.alignment`: a text instead of an"),
        (table(1).u64(0), "the name of tensor 0: 0 bytes"),
        (table(2).tensor("t", &[1], 0, 0), "the name of tensor 1: the file is cut off"),
        (table(1).text("t").u32(0), "tensor `t`: 0 dimensions"),
        (table(1).text("t").u32(u32::MAX), "tensor `t`: 4294967295 dimensions"),
        (table(1).text("t").u32(2).u64(1), "tensor `t`: the file is cut off"),
        (one(&[0], 0, 0), "tensor `t`: its shape [0] has no elements"),
        (one(&[1 << 32, 1 << 32], 0, 0), "tensor `t`: its shape [4294967296, 4294967296] multiplies"),
        (one(&[1 << 62], 0, 0), "tensor `t`: its shape [4611686018427387904] multiplies"),
        (one(&[17], 0, 0), "tensor `t`: 68 bytes from offset 0 on do not fit into the 64 bytes of data"),
        (one(&[8], 0, 8), "tensor `t`: its offset 8 is not a multiple of 32"),
        (one(&[1], 0, 64), "tensor `t`: 4 bytes from offset 64 on do not fit"),
        (one(&[8], 0, u64::MAX - 31), "tensor `t`: 32 bytes from offset 18446744073709551584 on do not fit"),
        (one(&[16, 2], 8, 0), "tensor `t`: rows of 16 elements are not whole blocks of 32 (q8_0)"),
        (one(&[128, 2], 12, 0), "tensor `t`: rows of 128 elements are not whole blocks of 256 (q4_k)"),
        (one(&[1 << 20], 23, 0), "tensor `t`: 131072 bytes from offset 0 on do not fit"),
        (
            table(2).tensor("t", &[16], 0, 0).tensor("u", &[1], 0, 32).data(64),
            "tensor `u`: it overlaps tensor `t`",
        ),
        (table(2).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).data(64), "tensor `t`: it is there twice"),
    ]
}

#[test]
fn a_hostile_header_is_one_error_that_names_the_key_or_the_tensor() {
    for (index, (bytes, want)) in hostile().into_iter().enumerate() {
        let error = bytes.read().unwrap_err().to_string();
        assert!(error.contains(want), "case {index}: {error:?} does not contain {want:?}");
        assert!(error.starts_with("m.gguf") && !error.contains('\n') && error.len() < 600, "{error:?}");
    }
}

#[test]
fn no_truncated_or_changed_header_panics() {
    let whole = Bytes::header(2, 3)
        .text("a")
        .u32(TEXT)
        .text("xyz")
        .text("general.alignment")
        .u32(U32)
        .u32(32)
        .text("l")
        .u32(LIST)
        .u32(TEXT)
        .u64(2)
        .text("")
        .text("z")
        .tensor("t", &[4, 2], 0, 0)
        .tensor("q", &[32, 1], 8, 32)
        .data(66);
    assert_eq!(whole.read().unwrap().tensors().len(), 2);
    for length in 0..whole.0.len() {
        assert!(Bytes(whole.0[..length].to_vec()).read().is_err(), "cut to {length} bytes");
    }
    for at in 0..whole.0.len() {
        for change in [0, 1, 9, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed.0[at] = change;
            let Ok(gguf) = changed.read() else { continue };
            for tensor in gguf.tensors().values() {
                assert!(tensor.offset < changed.0.len() as u64, "byte {at} as {change}");
            }
        }
    }
}
