//! The element types of tensors in GGUF files.

/// An element type whose values are read. Elements are stored in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgmlType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// The element type of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorType {
    Known(GgmlType),
    /// Any other type, by its name.
    Other(String),
}

/// The types by their numbers in files. Types without a [`GgmlType`] are only named.
const TYPES: &[(u32, &str, Option<GgmlType>)] = &[
    (0, "f32", Some(GgmlType::F32)),
    (1, "f16", Some(GgmlType::F16)),
    (2, "q4_0", Some(GgmlType::Q4_0)),
    (3, "q4_1", Some(GgmlType::Q4_1)),
    (6, "q5_0", Some(GgmlType::Q5_0)),
    (7, "q5_1", Some(GgmlType::Q5_1)),
    (8, "q8_0", Some(GgmlType::Q8_0)),
    (9, "q8_1", None),
    (10, "q2_k", Some(GgmlType::Q2K)),
    (11, "q3_k", Some(GgmlType::Q3K)),
    (12, "q4_k", Some(GgmlType::Q4K)),
    (13, "q5_k", Some(GgmlType::Q5K)),
    (14, "q6_k", Some(GgmlType::Q6K)),
    (15, "q8_k", None),
    (16, "iq2_xxs", None),
    (17, "iq2_xs", None),
    (18, "iq3_xxs", None),
    (19, "iq1_s", None),
    (20, "iq4_nl", None),
    (21, "iq3_s", None),
    (22, "iq2_s", None),
    (23, "iq4_xs", None),
    (24, "i8", None),
    (25, "i16", None),
    (26, "i32", None),
    (27, "i64", None),
    (28, "f64", None),
    (29, "iq1_m", None),
    (30, "bf16", Some(GgmlType::Bf16)),
    (34, "tq1_0", None),
    (35, "tq2_0", None),
    (39, "mxfp4", None),
];

impl GgmlType {
    /// Returns the number of elements in a block.
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Returns the size of a block in bytes.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Returns whether the type stores less than 16 bits per element.
    pub fn is_quantised(self) -> bool {
        self.block_elements() > 1
    }

    pub fn name(self) -> &'static str {
        let known = TYPES.iter().find(|(_, _, known)| *known == Some(self));
        known.map_or("", |&(_, name, _)| name)
    }
}

impl TensorType {
    pub(super) fn numbered(number: u32) -> Self {
        match TYPES.iter().find(|&&(known, ..)| known == number) {
            Some(&(_, _, Some(known))) => Self::Known(known),
            Some(&(_, name, None)) => Self::Other(name.to_owned()),
            None => Self::Other(format!("number {number}")),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Known(known) => known.name(),
            Self::Other(name) => name,
        }
    }
}
