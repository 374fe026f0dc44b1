//! Tests on small models that they build themselves.

use prost::Message;

use super::proto::{ModelProto, NormalizerSpec, PieceType, StoredPiece, Trainer};
use super::*;

fn piece(name: &str, score: f32, kind: PieceType) -> StoredPiece {
    StoredPiece { piece: Some(name.into()), score: Some(score), kind: Some(kind as i32) }
}

fn model() -> ModelProto {
    let mut pieces = vec![
        piece("<pad>", 0.0, PieceType::Control),
        piece("</s>", 0.0, PieceType::Control),
        piece("<unk>", 0.0, PieceType::Unknown),
    ];
    let normal = [("▁", -2.0), ("1", -3.0), ("2", -3.0), ("▁12", -4.0), ("a", -3.0), ("a▁1", -4.0)];
    pieces.extend(normal.map(|(name, score)| piece(name, score, PieceType::Normal)));
    ModelProto { pieces, trainer: Some(Trainer::default()), normalizer: Some(NormalizerSpec::default()) }
}

fn encode(model: &ModelProto, text: &str) -> Vec<(u32, String)> {
    let model = SentencePiece::parse(&model.encode_to_vec()).unwrap();
    model.encode(text).into_iter().map(|token| (token.id, token.text)).collect()
}

fn names(model: &ModelProto, text: &str) -> String {
    encode(model, text).iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_most_probable_segmentation_wins_even_across_spaces() {
    for (text, want) in [("12", "▁12"), ("21", "▁ 2 1"), ("a 1", "▁ a▁1"), ("", ""), ("  ", "")] {
        assert_eq!(names(&model(), text), want, "{text:?}");
    }
}

#[test]
fn adjacent_unknown_characters_are_one_token_that_keeps_their_text() {
    let unknown = |text: &str| (2, text.to_owned());
    assert_eq!(encode(&model(), "é€a")[1..], [unknown("é€"), (7, "a".into())]);
}

#[test]
fn user_defined_pieces_are_never_split_and_unused_ones_never_chosen() {
    let mut model = model();
    model.pieces.push(piece("1a", 0.0, PieceType::UserDefined));
    model.pieces.push(piece("12", 9.0, PieceType::Unused));
    assert_eq!(names(&model, "1a"), "▁ 1a");
    assert_eq!(names(&model, "212"), "▁ 2 1 2");
}

#[test]
fn unknown_characters_become_bytes_if_the_model_has_byte_pieces() {
    let mut model = model();
    model.trainer = Some(Trainer { byte_fallback: Some(true), ..Trainer::default() });
    let lacking = SentencePiece::parse(&model.encode_to_vec()).unwrap_err();
    assert_eq!(lacking, "it writes unknown characters as bytes but lacks <0x00>");
    model.pieces.extend((0..=u8::MAX).map(|byte| piece(&format!("<0x{byte:02X}>"), 0.0, PieceType::Byte)));
    assert_eq!(names(&model, "é"), "▁ <0xC3> <0xA9>");
}

#[test]
fn incomplete_and_other_models_are_rejected_with_the_reason() {
    let changed = |change: fn(&mut ModelProto)| {
        let mut model = model();
        change(&mut model);
        SentencePiece::parse(&model.encode_to_vec()).map(|_| ()).unwrap_err()
    };
    for (reason, change) in [
        ("it does not have exactly one unknown piece", (|model| model.pieces.clear()) as fn(&mut ModelProto)),
        ("it does not have exactly one unknown piece", |model| drop(model.pieces.remove(2))),
        ("it is neither a unigram nor a BPE model", |model| {
            model.trainer = Some(Trainer { model_type: Some(3), ..Trainer::default() });
        }),
        ("piece 3 is empty", |model| model.pieces[3].piece = None),
        ("pieces 4 and 5 are the same", |model| model.pieces[5].piece = Some("1".into())),
        ("piece 4 is not the name of a byte", |model| model.pieces[4].kind = Some(6)),
        ("normalization rules are cut off", |model| {
            model.normalizer =
                Some(NormalizerSpec { precompiled_charsmap: Some(vec![9]), ..NormalizerSpec::default() });
        }),
        ("it has no trainer or normalizer specification, it may be cut off", |model| model.normalizer = None),
    ] {
        assert_eq!(changed(change), reason);
    }
}

#[test]
fn no_truncated_or_flipped_file_panics() {
    let whole = model().encode_to_vec();
    for length in 0..whole.len() {
        assert!(SentencePiece::parse(&whole[..length]).is_err(), "cut after {length}");
        let mut flipped = whole.clone();
        flipped[length] ^= 0x55;
        if let Ok(model) = SentencePiece::parse(&flipped) {
            model.encode("12 a é");
        }
    }
}
