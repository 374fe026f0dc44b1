//! The part of a SentencePiece model file that segmentation needs, as a protocol buffer.
//!
//! Field numbers: <https://github.com/google/sentencepiece/blob/v0.2.0/src/sentencepiece_model.proto>.

/// `ModelProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub(in super::super) struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pub(in super::super) pieces: Vec<StoredPiece>,
    #[prost(message, optional, tag = "2")]
    pub(in super::super) trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    pub(in super::super) normalizer: Option<NormalizerSpec>,
}

/// `ModelProto.SentencePiece`.
#[derive(Clone, PartialEq, prost::Message)]
pub(in super::super) struct StoredPiece {
    #[prost(string, optional, tag = "1")]
    pub(in super::super) piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub(in super::super) score: Option<f32>,
    #[prost(enumeration = "PieceType", optional, tag = "3")]
    pub(in super::super) kind: Option<i32>,
}

/// `ModelProto.SentencePiece.Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(in super::super) enum PieceType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Returns the pieces of one kind with their ids.
pub(super) fn of_kind(pieces: &[StoredPiece], kind: PieceType) -> impl Iterator<Item = (u32, &StoredPiece)> {
    (0..).zip(pieces).filter(move |(_, piece)| piece.kind() == kind)
}

/// `TrainerSpec`.
#[derive(Clone, PartialEq, prost::Message)]
pub(in super::super) struct Trainer {
    /// 1 is unigram, the default, and 2 is BPE.
    #[prost(int32, optional, tag = "3")]
    pub(in super::super) model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    pub(in super::super) treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    pub(in super::super) byte_fallback: Option<bool>,
}

/// `NormalizerSpec`. The three switches are on by default.
#[derive(Clone, PartialEq, prost::Message)]
pub(in super::super) struct NormalizerSpec {
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(in super::super) precompiled_charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    pub(in super::super) add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub(in super::super) remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub(in super::super) escape_whitespaces: Option<bool>,
}
