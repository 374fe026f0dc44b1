//! Compares the tokenizers with the outputs of the reference classes.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use ntl_core::Token;
use ntl_core::contract::NumberEncoding;
use ntl_core::text::{TextDecoder, TextStream};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::tokenizer::Tokenizer;
use serde_json::Value;

use crate::support::{Fixtures, over_fixtures, reference};

/// The class in the golden file that the tokenizer of a directory must match.
const T5_CLASSES: [(&str, &str); 5] = [
    ("T5TokenizerFast", "tokenizers/t5-2k"),
    ("AutoNumberTokenizer", "t5-ce"),
    ("T5Custom_Tokenizer", "t5-ntl-was"),
    ("RtTokenizer", "t5-rt"),
    ("XvalTokenizer", "t5-xval"),
];
const BPE: [&str; 3] = ["llama-bpe", "gpt2-bbpe", "qwen-bbpe"];

fn json(path: PathBuf) -> anyhow::Result<Value> {
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn open(folder: PathBuf) -> anyhow::Result<Arc<Tokenizer>> {
    Ok(Arc::new(Tokenizer::open(&CheckpointFiles::folder(&folder)?)?))
}

fn items(value: &Value) -> anyhow::Result<&[Value]> {
    Ok(value.as_array().with_context(|| format!("not a list: {value}"))?)
}

fn text(value: &Value) -> anyhow::Result<&str> {
    value.as_str().with_context(|| format!("not a text: {value}"))
}

fn ids(value: &Value) -> anyhow::Result<Vec<u32>> {
    items(value)?.iter().map(|id| Ok(u32::try_from(id.as_u64().context("not an id")?)?)).collect()
}

/// A tokenizer and its expected outputs.
struct Golden {
    name: &'static str,
    tokenizer: Arc<Tokenizer>,
    rows: Vec<Row>,
}

struct Row {
    input: String,
    ids: Vec<u32>,
    /// Numbers of the ids, for xVal.
    numbers: Vec<f32>,
    /// The text as decoded by Hugging Face.
    decoded: String,
    /// The text as read by the paper's classes, one answer at a time.
    human: Option<String>,
}

/// Returns ids with their values, or `None` for ids without one.
fn tokens(ids: &[u32], values: &[f32]) -> Vec<Token> {
    let values = values.iter().copied().map(Some).chain(std::iter::repeat(None));
    ids.iter().zip(values).map(|(&id, value)| Token { id, value }).collect()
}

fn row(input: &Value, row: &Value) -> anyhow::Result<Row> {
    let numbers = row["number_embeddings"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(Row {
        input: text(input)?.to_owned(),
        ids: ids(&row["ids"])?,
        numbers: numbers.iter().filter_map(Value::as_f64).map(|number| number as f32).collect(),
        decoded: text(&row["decode"])?.to_owned(),
        human: row.get("human").map(|human| text(&human[0]).map(str::to_owned)).transpose()?,
    })
}

fn golden() -> anyhow::Result<Vec<Golden>> {
    let t5 = json(reference("tokenizers/golden_t5_tokenizers.json"))?;
    let bpe = json(reference("tokenizers/golden_bpe_tokenizers.json"))?;
    let t5_rows = T5_CLASSES.map(|(class, folder)| {
        (class, reference(folder), &t5["texts"], t5["classes"][class]["rows"].clone())
    });
    let bpe_rows = BPE.map(|name| {
        (name, reference("tokenizers").join(name), &bpe["texts"], bpe["tokenizers"][name].clone())
    });
    let mut all = Vec::new();
    for (name, folder, texts, rows) in t5_rows.into_iter().chain(bpe_rows) {
        let rows = items(texts)?.iter().zip(items(&rows)?);
        ensure!(rows.len() == 99, "{name}: {} texts", rows.len());
        let read = rows.filter(|(_, one)| one.get("error").is_none()).map(|(input, one)| row(input, one));
        all.push(Golden { name, tokenizer: open(folder)?, rows: read.collect::<anyhow::Result<_>>()? });
    }
    Ok(all)
}

impl Golden {
    /// Returns the text of a row as a server shows it.
    fn shown(&self, row: &Row) -> String {
        match (self.name, &row.human) {
            ("RtTokenizer" | "XvalTokenizer", Some(human)) => human.clone(),
            _ => row.decoded.clone(),
        }
    }

    /// Returns a text shown token by token.
    fn streamed(&self, ids: &[u32], numbers: &[f32]) -> String {
        let mut stream = TextStream::new(self.tokenizer.clone(), Arc::new([]));
        let mut shown: String = tokens(ids, numbers).into_iter().map(|token| stream.push(token)).collect();
        shown.push_str(&stream.finish());
        shown
    }
}

#[test]
fn every_text_has_the_ids_and_the_decoded_text_of_the_reference() -> anyhow::Result<()> {
    for Golden { name, tokenizer, rows } in golden()? {
        for Row { input, ids, numbers, decoded, .. } in rows {
            let prompt = tokenizer.encode_prompt(&input, true)?;
            assert!(prompt.ids().eq(ids.iter().copied()), "{name}: {input:?}");
            let values = prompt.tokens.iter().map(|token| token.value);
            if numbers.is_empty() {
                assert!(values.flatten().next().is_none(), "{name}: {input:?}");
            } else {
                let values: Vec<f32> = values.map(|value| value.unwrap_or(1.0)).collect();
                assert_eq!(values, numbers, "{name}: {input:?}");
            }
            assert_eq!(tokenizer.decode_tokens(&ids), decoded, "{name}: decoding of {input:?}");
        }
    }
    Ok(())
}

#[test]
fn every_text_is_decoded_like_the_paper_s_classes() -> anyhow::Result<()> {
    for Golden { name, tokenizer, rows } in golden()? {
        for Row { input, ids, numbers, human, .. } in rows {
            let Some(want) = human else { continue };
            assert_eq!(tokenizer.decode_with_values(&tokens(&ids, &numbers)), want, "{name}: {input:?}");
        }
    }
    Ok(())
}

/// The reference fails on an answer that begins with a piece without a space mark, and reads it as an empty
/// text.
#[test]
fn sequences_that_no_text_produces_are_decoded_like_the_paper_s_class() -> anyhow::Result<()> {
    let tokenizer = open(reference("t5-rt"))?;
    let t5 = json(reference("tokenizers/golden_t5_tokenizers.json"))?;
    let sequences = items(&t5["classes"]["RtTokenizer"]["decode_sequences"])?;
    let mut compared = 0;
    for sequence in sequences {
        let ids = ids(&sequence["ids"])?;
        let want = text(&sequence["human"][0])?;
        if !want.is_empty() {
            assert_eq!(tokenizer.decode(&ids), want, "{sequence}");
            compared += 1;
        }
    }
    assert_eq!((sequences.len(), compared), (16, 15));
    Ok(())
}

/// One of the answers begins with `5`, which has no space mark.
#[test]
fn answers_are_decoded_one_by_one() -> anyhow::Result<()> {
    for (checkpoint, pieces, want) in [
        ("t5-rt", ["5", "_3_0_"], "5 3"),
        ("t5-rt", ["▁-", "_3_0_"], "- 3"),
        ("t5-xval", ["5", "[NUM]"], "5 1.0"),
        ("t5-xval", ["▁-", "[NUM]"], "- 1.0"),
    ] {
        let tokenizer = open(reference(checkpoint))?;
        let ids = pieces.map(|piece| tokenizer.token_id(piece).unwrap_or_default());
        assert_eq!(tokenizer.decode_with_values(&tokens(&ids, &[])), want);
    }
    Ok(())
}

#[test]
fn a_number_mark_without_a_number_is_rejected_if_the_reference_fails() -> anyhow::Result<()> {
    let t5 = json(reference("tokenizers/golden_t5_tokenizers.json"))?;
    let tokenizer = open(reference("t5-xval"))?;
    let rows = items(&t5["texts"])?.iter().zip(items(&t5["classes"]["XvalTokenizer"]["rows"])?);
    let mut refused = 0;
    for (input, _) in rows.filter(|(_, row)| row.get("error").is_some()) {
        let message = tokenizer.encode(text(input)?, true).err().map(|error| error.to_string());
        assert!(message.is_some_and(|message| message.contains("must not contain")), "{input}");
        refused += 1;
    }
    assert_eq!(refused, 2);
    Ok(())
}

#[test]
fn text_shown_token_by_token_equals_the_text_decoded_in_one_call() -> anyhow::Result<()> {
    for golden in golden()? {
        for row in &golden.rows {
            let shown = golden.streamed(&row.ids, &row.numbers);
            assert_eq!(shown, golden.shown(row), "{}: {:?}", golden.name, row.input);
        }
    }
    Ok(())
}

/// Sequences that no text produces, but that a model may generate: pieces in an arbitrary but fixed order.
#[test]
fn arbitrary_sequences_are_shown_as_they_are_decoded() -> anyhow::Result<()> {
    for golden in golden()? {
        let ids_max = u64::try_from(golden.tokenizer.len())?;
        // Constants of Knuth's MMIX generator.
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % ids_max) as u32
        };
        for _ in 0..200 {
            // Bytes that do not form a character invalidate the text shown for their run; see `is_lone_byte`.
            let ids: Vec<u32> =
                (0..24).map(|_| next()).filter(|&id| !is_lone_byte(&golden.tokenizer, id)).collect();
            let numbers: Vec<f32> = ids.iter().map(|&id| id as f32 / 8.0).collect();
            let want = golden.tokenizer.decode_with_values(&tokens(&ids, &numbers));
            assert_eq!(golden.streamed(&ids, &numbers), want, "{}: {ids:?}", golden.name);
        }
    }
    Ok(())
}

/// Byte fallback decodes a run of bytes as a unit. If a run is not valid UTF-8, all of its characters become
/// U+FFFD, including those that were already shown.
fn is_lone_byte(tokenizer: &Tokenizer, id: u32) -> bool {
    tokenizer.token(id).is_some_and(|token| token.starts_with("<0x"))
}

/// See `models/tests/data/sentencepiece/make.py`.
#[test]
fn ties_between_segmentations_are_broken_as_sentencepiece_breaks_them() -> anyhow::Result<()> {
    for name in ["trained", "user-defined"] {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/sentencepiece").join(name);
        let tokenizer = open(folder.clone())?;
        let rows = json(folder.join("golden.json"))?;
        assert_eq!(items(&rows)?.len(), 544);
        for row in items(&rows)? {
            let input = text(&row[0])?;
            assert_eq!(tokenizer.encode(input, false)?, ids(&row[1])?, "{name}: {input:?}");
        }
    }
    Ok(())
}

over_fixtures! {
    prompts_and_answers_of_the_checkpoints_match_the_reference,
    number_tokens_have_the_values_of_the_reference_loss,
}

fn prompts_and_answers_of_the_checkpoints_match_the_reference(fixtures: Fixtures) {
    for checkpoint in fixtures.only(&["t5-ce", "t5-ntl-was", "t5-v11", "t5-rt", "t5-rt-ntl"]) {
        let encoding = match checkpoint {
            "t5-ntl-was" => NumberEncoding::Digits,
            "t5-rt" | "t5-rt-ntl" => NumberEncoding::Rt,
            _ => NumberEncoding::Text,
        };
        let tokenizer = open(fixtures.folder(checkpoint)).unwrap();
        let golden = json(fixtures.folder(checkpoint).join("golden/golden.json")).unwrap();
        assert_eq!(tokenizer.number_encoding(), encoding);
        assert_eq!(Some(tokenizer.len() as u64), golden["len_tokenizer"].as_u64());
        assert_eq!((tokenizer.eos_id(), tokenizer.pad_id()), (Some(1), Some(0)));
        assert_eq!(tokenizer.model_max_length(), Some(512));
        for case in items(&golden["cases"]).unwrap() {
            let prompt = text(&case["text"]).unwrap();
            let label = text(&case["label_text"]).unwrap();
            assert_eq!(
                tokenizer.encode(prompt, true).unwrap(),
                ids(&case["input_ids"]).unwrap(),
                "{checkpoint}: {prompt:?}"
            );
            assert_eq!(
                tokenizer.encode(label, true).unwrap(),
                ids(&case["label_ids"]).unwrap(),
                "{checkpoint}: {label:?}"
            );
            if fixtures == Fixtures::Tiny {
                continue;
            }
            let greedy = &case["greedy"];
            assert_eq!(
                tokenizer.decode_tokens(&ids(&greedy["ids"]).unwrap()),
                text(&greedy["text"]).unwrap()
            );
            let beams =
                items(&case["beam4"]["ids"]).unwrap().iter().zip(items(&case["beam4"]["text"]).unwrap());
            for (beam, want) in beams {
                assert_eq!(
                    tokenizer.decode_tokens(&ids(beam).unwrap()),
                    text(want).unwrap(),
                    "{checkpoint}: {beam}"
                );
            }
        }
    }
}

fn number_tokens_have_the_values_of_the_reference_loss(fixtures: Fixtures) {
    for checkpoint in fixtures.only(&["t5-ce", "t5-ntl-was", "t5-ntl-mse", "t5-rt"]) {
        let tokenizer = open(fixtures.folder(checkpoint)).unwrap();
        let golden = json(fixtures.folder(checkpoint).join("golden/golden.json")).unwrap();
        let mut want = Vec::new();
        for token in items(&golden["number_tokens"]).unwrap() {
            want.push((
                token[0].as_u64().context("id").unwrap(),
                token[2].as_f64().context("value").unwrap(),
            ));
        }
        want.sort_by_key(|(id, _)| *id);
        // The reference stores the values in single precision.
        let value = |id| Some((u64::from(id), f64::from(tokenizer.number_value(id)? as f32)));
        let got = (0..tokenizer.len() as u32).filter_map(value);
        assert_eq!(got.collect::<Vec<_>>(), want, "{checkpoint}");
    }
}

#[test]
fn fast_and_slow_tokenizers_differ_only_in_a_second_end_of_text() -> anyhow::Result<()> {
    let fast = open(reference("tokenizers/t5-2k"))?;
    let slow = open(reference("t5-ce"))?;
    assert_eq!((fast.encode("</s>", true)?, slow.encode("</s>", true)?), (vec![1, 1], vec![1]));
    Ok(())
}

#[test]
fn pieces_decode_to_the_text_that_they_add() -> anyhow::Result<()> {
    for (name, token, want) in [
        ("t5-2k", "▁12", Some(" 12")),
        ("t5-2k", "</s>", None),
        ("t5-2k", "<extra_id_0>", None),
        ("llama-bpe", "<0x35>", Some("5")),
        ("llama-bpe", "<0x0A>", Some("\n")),
        ("llama-bpe", "<0xE2>", None),
        ("llama-bpe", "<s>", None),
        ("gpt2-bbpe", "Ġis", Some(" is")),
        ("qwen-bbpe", "Ġ", Some(" ")),
        ("qwen-bbpe", "Ċ", Some("\n")),
    ] {
        let tokenizer = open(reference("tokenizers").join(name))?;
        let id = tokenizer.token_id(token).with_context(|| format!("{name} has no {token}"))?;
        assert_eq!(tokenizer.piece_text(id).as_deref(), want, "{name}: {token}");
    }
    Ok(())
}
