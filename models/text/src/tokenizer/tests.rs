//! Tests on small checkpoints that they write themselves.

use ntl_core::text::TextDecoder;
use ntl_core::{Prompt, Token};
use prost::Message;

use crate::checkpoint::{CheckpointFiles, LoadError};

use super::library::LIBRARY_FILE;
use super::sentencepiece::proto::{ModelProto, NormalizerSpec, PieceType, StoredPiece, Trainer};
use super::slow::MODEL_FILE;
use super::*;

fn spiece() -> Vec<u8> {
    let piece = |name: &str, kind: PieceType| StoredPiece {
        piece: Some(name.into()),
        score: Some(-(name.len() as f32).recip()),
        kind: Some(kind as i32),
    };
    let mut pieces = vec![
        piece("<pad>", PieceType::Control),
        piece("</s>", PieceType::Control),
        piece("<unk>", PieceType::Unknown),
    ];
    let normal = ["▁", "1", "2", "▁12", "-", "▁-1", ".", "it", "▁it", "'s", "'", "s", "nan"];
    pieces.extend(normal.map(|name| piece(name, PieceType::Normal)));
    ModelProto { pieces, trainer: Some(Trainer::default()), normalizer: Some(NormalizerSpec::default()) }
        .encode_to_vec()
}

const CUSTOM: &str = r#"{"tokenizer_class": "T5Custom_Tokenizer"}"#;

fn open(files: &[(&str, &[u8])]) -> Result<Tokenizer, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    Tokenizer::open(&CheckpointFiles::folder(folder.path()).unwrap())
}

fn tokens(tokenizer: &Tokenizer, text: &str) -> String {
    let ids = tokenizer.encode(text, true).unwrap();
    ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect::<Vec<_>>().join(" ")
}

fn slow() -> Tokenizer {
    open(&[(MODEL_FILE, &spiece())]).unwrap()
}

fn digits() -> Tokenizer {
    open(&[(MODEL_FILE, &spiece()), ("tokenizer_config.json", CUSTOM.as_bytes())]).unwrap()
}

/// A vocabulary of words, with the special unknown token `[U]` and the added token `[A]`.
const LIBRARY: &str = r#"{
    "version": "1.0", "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
    "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
    "padding": null,
    "added_tokens": [
        {"id": 0, "content": "[U]", "single_word": false, "lstrip": false, "rstrip": false,
         "normalized": false, "special": true},
        {"id": 3, "content": "[A]", "single_word": false, "lstrip": false, "rstrip": false,
         "normalized": false, "special": false}],
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "WordLevel", "vocab": {"[U]": 0, "it": 1, "<0x35>": 2}, "unk_token": "[U]"}}"#;

const UNKNOWN_OUT_OF_RANGE: &str =
    r#"{"version": "1.0", "model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 9}}"#;

#[test]
fn texts_are_split_at_added_tokens_and_each_part_is_segmented_separately() {
    for (text, want) in [
        ("it", "▁it </s>"),
        ("", "</s>"),
        ("</s>", "</s>"),
        ("it</s>it", "▁it </s> ▁it </s>"),
        ("<extra_id_0> it <pad>  </s>", "<extra_id_0> ▁it <pad> </s>"),
        ("<extra_id_100>", "▁ <unk> 1 <unk> </s>"),
    ] {
        assert_eq!(tokens(&slow(), text), want, "{text:?}");
    }
    assert_eq!(slow().encode("it", false).unwrap(), [11]);
}

#[test]
fn digit_splitting_splits_every_piece_with_a_digit_except_sentinels() {
    for (text, want) in [
        ("12", "▁ 1 2 </s>"),
        ("-1", "▁ - 1 </s>"),
        ("it", "▁it </s>"),
        ("٣٤", "▁ <unk> <unk> </s>"),
        ("€€", "▁ <unk> </s>"),
        ("<extra_id_1>", "<extra_id_1> </s>"),
    ] {
        assert_eq!(tokens(&digits(), text), want, "{text:?}");
    }
}

/// An RT tokenizer with tokens for the digits of numbers below 100, from id 16 on.
fn rt() -> Tokenizer {
    let names = (0..2).flat_map(|place| (0..10).map(move |digit| format!("_{digit}_{place}_")));
    let added: std::collections::BTreeMap<String, u32> = names.zip(16..).collect();
    let added = serde_json::to_vec(&added).unwrap();
    let class = br#"{"tokenizer_class": "RtTokenizer"}"#;
    open(&[(MODEL_FILE, &spiece()), ("added_tokens.json", &added), ("tokenizer_config.json", class)]).unwrap()
}

fn xval() -> Tokenizer {
    let added = br#"{"[NUM]": 16}"#;
    let class = br#"{"tokenizer_class": "XvalTokenizer"}"#;
    open(&[(MODEL_FILE, &spiece()), ("added_tokens.json", added), ("tokenizer_config.json", class)]).unwrap()
}

#[test]
fn regression_transformers_encode_digits_with_places_and_decode_numbers() {
    assert_eq!(tokens(&rt(), "it 12 -7."), "▁it _1_1_ _2_0_ ▁ - _7_0_ ▁ . </s>");
    assert_eq!(tokens(&rt(), "<extra_id_1> 00012.0"), "<extra_id_1> _1_1_ _2_0_ </s>");
    let ids = rt().encode("it 12 -7.", true).unwrap();
    assert_eq!(rt().decode(&ids), "it 12 - 7 .");
    assert_eq!(rt().decode_tokens(&ids), "it _1_1_ _2_0_ - _7_0_.");
    let one = rt().token_id("_1_1_").unwrap();
    let two = rt().token_id("_2_0_").unwrap();
    assert_eq!((rt().number_value(one), rt().number_value(two)), (Some(1.0), Some(2.0)));
    assert_eq!(rt().number_piece(one), Some(NumberPiece::Place { digit: 1, place: 1 }));
    assert_eq!(rt().number_piece(6), Some(NumberPiece::from(" 12".to_owned())));
}

#[test]
fn a_number_is_shown_once_nothing_can_change_it_any_more() {
    let tokenizer = rt();
    let settled = |text: &str| text[..rt().settled_len(text)].to_owned();
    let ids = tokenizer.encode("it 12 it", false).unwrap();
    assert_eq!(tokenizer.decode(&ids[..2]), "it 10");
    assert_eq!(tokenizer.decode(&ids[..3]), "it 12");
    assert_eq!((settled("it 10"), settled("it 12 it")), ("it".to_owned(), "it 12 it".to_owned()));
}

#[test]
fn xval_keeps_numbers_as_values_of_tokens() {
    let prompt = xval().encode_prompt("it 12, 0.5 it", true).unwrap();
    let num = |value| Token { id: 16, value: Some(value) };
    let plain = Token::from;
    assert_eq!(prompt.tokens, [plain(11), num(12.0), num(0.5), plain(11), plain(1)]);
    assert_eq!(xval().decode_with_values(&[plain(11), num(-0.25), plain(9), plain(1)]), "it -0.25.");
    assert_eq!(xval().decode(&[11, 16]), "it [NUM]");
    assert_eq!((xval().number_piece(16), xval().number_value(16)), (Some(NumberPiece::Head), None));
    let error = xval().encode("it ¬", true).unwrap_err();
    assert_eq!(error.to_string(), "text must not contain `¬`, the placeholder of numbers in this model");
}

#[test]
fn sentinels_that_no_file_lists_follow_the_pieces_in_descending_order() {
    let tokenizer = slow();
    assert_eq!(tokenizer.len(), 116);
    assert_eq!((tokenizer.token(16), tokenizer.token(115)), (Some("<extra_id_99>"), Some("<extra_id_0>")));
}

#[test]
fn a_truncated_prompt_keeps_the_tokens_at_the_named_end_and_the_end_of_sequence() {
    let tokenizer = slow();
    let left = TruncationSide::Left;
    let right = TruncationSide::Right;
    let ids = |tokens_max, side| {
        let prompt = tokenizer.encode_prompt("1 2.", true).unwrap();
        assert_eq!(prompt.ids().collect::<Vec<_>>(), [3, 4, 3, 5, 9, 1]);
        tokenizer.truncate(prompt, tokens_max, side).ids().collect::<Vec<_>>()
    };
    assert_eq!(ids(3, right), [3, 4, 1]);
    assert_eq!(ids(3, left), [5, 9, 1]);
    assert_eq!((ids(1, right), ids(1, left)), (vec![1], vec![1]));
    assert_eq!((ids(6, right), ids(99, left)), (vec![3, 4, 3, 5, 9, 1], vec![3, 4, 3, 5, 9, 1]));
}

#[test]
fn a_pair_without_rules_is_both_texts_and_its_second_segment_moves_with_its_tokens() {
    let tokenizer = slow();
    let pair = tokenizer.encode_pair("1 2.", "it").unwrap();
    assert_eq!(pair.ids().collect::<Vec<_>>(), [3, 4, 3, 5, 9, 1, 11, 1]);
    assert_eq!(pair.second_segment, None);
    for (tokens_max, side, want) in [
        (8, TruncationSide::Left, 6),
        (5, TruncationSide::Left, 3),
        (2, TruncationSide::Left, 0),
        (5, TruncationSide::Right, 4),
    ] {
        let pair = Prompt { second_segment: Some(6), ..pair.clone() };
        let truncated = tokenizer.truncate(pair, tokens_max, side);
        assert_eq!((truncated.len(), truncated.second_segment), (tokens_max, Some(want)));
    }
}

#[test]
fn the_truncation_side_comes_from_the_tokenizers_configuration() {
    let with = |config: &str| open(&[(MODEL_FILE, &spiece()), ("tokenizer_config.json", config.as_bytes())]);
    let side = |config| with(config).unwrap().truncation_side();
    assert_eq!((side("{}"), side(r#"{"truncation_side": "left"}"#)), (None, Some(TruncationSide::Left)));
    let error = with(r#"{"truncation_side": "up"}"#).map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("tokenizer_config.json: field `truncation_side`: `up` is none of left, right"),
        "{error}"
    );
}

#[test]
fn ids_of_special_tokens_are_known() {
    let tokenizer = slow();
    assert_eq!((tokenizer.eos_id(), tokenizer.pad_id()), (Some(1), Some(0)));
    assert_eq!(tokenizer.token_id("▁12"), Some(6));
}

#[test]
fn decoding_drops_special_tokens_and_spaces_at_the_ends() {
    let added = br#"{"<a>": 16}"#;
    let tokenizer = open(&[(MODEL_FILE, &spiece()), ("added_tokens.json", added)]).unwrap();
    for (ids, want) in [
        (&[11, 1, 6, 3, 1][..], "it 12"),
        (&[3, 3], ""),
        (&[11, 3, 9, 3], "it."),
        (&[11, 3, 13, 14], "it's"),
        (&[11, 16, 10], "it <a> it"),
        (&[3, 16], "<a>"),
        (&[16, 3], "<a> "),
        (&[999], ""),
    ] {
        assert_eq!(tokenizer.decode(ids), want, "{ids:?}");
    }
}

#[test]
fn number_tokens_have_the_values_of_the_loss() {
    let values = |tokenizer: &Tokenizer| {
        (0..tokenizer.len() as u32).filter_map(|id| tokenizer.number_value(id)).collect::<Vec<_>>()
    };
    assert_eq!(values(&slow()), [1.0, 2.0, 12.0, -1.0]);
    assert_eq!(values(&digits()), [1.0, 2.0]);
}

#[test]
fn the_text_of_a_piece_is_the_text_that_it_adds() {
    let tokenizer = slow();
    assert_eq!(tokenizer.piece_text(6).as_deref(), Some(" 12"));
    assert_eq!((tokenizer.piece_text(1), tokenizer.piece_text(999)), (None, None));
    assert_eq!((tokenizer.token_text(6), tokenizer.token_text(1)), (" 12".into(), "</s>".into()));
}

#[test]
fn a_tokenizer_json_is_read_by_the_library_and_never_truncates_a_prompt() {
    let tokenizer = open(&[(LIBRARY_FILE, LIBRARY.as_bytes()), (MODEL_FILE, b"not read")]).unwrap();
    assert_eq!(tokenizer.encode("it it what [A]", true).unwrap(), [1, 1, 0, 3]);
    assert_eq!(tokenizer.decode(&[1, 0, 2, 3]), "it5[A]");
    assert_eq!((tokenizer.len(), tokenizer.piece_text(2).as_deref()), (4, Some("5")));
    assert_eq!((tokenizer.eos_id(), tokenizer.piece_text(0)), (None, None));
}

#[test]
fn a_tokenizer_json_on_which_its_library_panics_is_rejected_with_its_name() {
    let rules = r#"{"type": "Precompiled", "precompiled_charsmap": {}}"#;
    let file = format!(
        r#"{{"normalizer": {rules}, "model": {{"type": "WordLevel", "vocab": {{"a": 0}}, "unk_token": "a"}}}}"#
    );
    let message = open(&[(LIBRARY_FILE, file.as_bytes())]).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("/tokenizer.json is not usable: "), "{message}");
}

#[test]
fn implausibly_many_merges_or_added_tokens_are_rejected_with_their_number() {
    let repeated = |item: &str, count| vec![item; count].join(",");
    let merges = repeated("0", 1_000_001);
    let added = repeated(r#"{"id": 0, "content": "a"}"#, 50_001);
    for (file, want) in [
        (format!(r#"{{"model": {{"merges": [{merges}]}}}}"#), "field `model.merges`: it has 1000001 entries"),
        (format!(r#"{{"added_tokens": [{added}]}}"#), "field `added_tokens`: it has 50001 entries"),
    ] {
        let message = open(&[(LIBRARY_FILE, file.as_bytes())]).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains("/tokenizer.json") && message.contains(want), "{message}");
    }
}

#[test]
fn the_error_names_the_file_or_field_of_an_unusable_tokenizer() {
    let spiece = spiece();
    let class = |name: &str| format!(r#"{{"tokenizer_class": "{name}"}}"#);
    for (files, want) in [
        (vec![], " has no tokenizer.json; a SentencePiece spiece.model would do as well"),
        (vec![(MODEL_FILE, &spiece[..spiece.len() / 2])], "/spiece.model is not usable: "),
        (vec![(MODEL_FILE, b"".as_slice())], "/spiece.model is not usable: "),
        (vec![(LIBRARY_FILE, b"{\"version\": ".as_slice())], "/tokenizer.json is not usable: EOF"),
        (vec![(LIBRARY_FILE, UNKNOWN_OUT_OF_RANGE.as_bytes())], "/tokenizer.json is not usable: "),
        (vec![(MODEL_FILE, &spiece), ("added_tokens.json", br#"{"x": 4000000000}"#)], "has id 4000000000"),
        (
            vec![(MODEL_FILE, &spiece), ("tokenizer_config.json", class("XvalTokenizer").as_bytes())],
            "field `tokenizer_class`: XvalTokenizer needs a token `[NUM]`, which is missing",
        ),
        (
            vec![(MODEL_FILE, &spiece), ("tokenizer_config.json", class("RtTokenizer").as_bytes())],
            "field `tokenizer_class`: RtTokenizer needs tokens such as `_1_0_`, which are missing",
        ),
        (
            vec![(MODEL_FILE, &spiece), ("tokenizer_config.json", class("XLNetTokenizer").as_bytes())],
            "field `tokenizer_class`: this class is only read from a tokenizer.json, which is missing",
        ),
    ] {
        let message = open(&files).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(want), "{message}");
    }
}
