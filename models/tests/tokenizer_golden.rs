//! The tokenizers against what the original classes computed (`fixtures/README.md` says how, and which
//! versions). Skipped where the shared fixtures are absent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use ntl_core::engine::NumberEncoding;
use ntl_core::text::{TextDecoder, TextStream};
use ntl_models::checkpoint::CheckpointFiles;
use ntl_models::tokenizer::Tokenizer;
use serde_json::Value;

/// Which class of the golden file the tokenizer of a folder has to agree with.
const T5_CLASSES: [(&str, &str); 3] = [
    ("T5TokenizerFast", "tokenizers/t5-2k"),
    ("AutoNumberTokenizer", "t5-ce"),
    ("T5Custom_Tokenizer", "t5-ntl-was"),
];
const BPE: [&str; 3] = ["llama-bpe", "gpt2-bbpe", "qwen-bbpe"];

fn fixtures() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures");
    if !folder.is_dir() {
        #[expect(clippy::print_stdout, reason = "a skipped test has to say why")]
        {
            println!("skipped: {} with the shared fixtures are absent", folder.display());
        }
        return None;
    }
    Some(folder)
}

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

/// A tokenizer and what it has to reproduce.
struct Golden {
    name: &'static str,
    tokenizer: Arc<Tokenizer>,
    rows: Vec<Row>,
}

struct Row {
    input: String,
    ids: Vec<u32>,
    decoded: String,
}

fn golden(fixtures: &Path) -> anyhow::Result<Vec<Golden>> {
    let t5 = json(fixtures.join("tokenizers/golden_t5_tokenizers.json"))?;
    let bpe = json(fixtures.join("tokenizers/golden_bpe_tokenizers.json"))?;
    let t5_rows = T5_CLASSES.map(|(class, folder)| {
        (class, fixtures.join(folder), &t5["texts"], t5["classes"][class]["rows"].clone())
    });
    let bpe_rows = BPE.map(|name| {
        (name, fixtures.join("tokenizers").join(name), &bpe["texts"], bpe["tokenizers"][name].clone())
    });
    let mut all = Vec::new();
    for (name, folder, texts, rows) in t5_rows.into_iter().chain(bpe_rows) {
        let rows = items(texts)?.iter().zip(items(&rows)?).map(|(input, row)| {
            let (input, decoded) = (text(input)?.to_owned(), text(&row["decode"])?.to_owned());
            Ok(Row { input, ids: ids(&row["ids"])?, decoded })
        });
        let rows = rows.collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(rows.len() == 99, "{name}: {} texts", rows.len());
        all.push(Golden { name, tokenizer: open(folder)?, rows });
    }
    Ok(all)
}

#[test]
fn every_text_has_the_ids_and_the_decoded_text_of_the_original() -> anyhow::Result<()> {
    let Some(fixtures) = fixtures() else { return Ok(()) };
    for Golden { name, tokenizer, rows } in golden(&fixtures)? {
        for Row { input, ids, decoded } in rows {
            assert_eq!(tokenizer.encode(&input, true)?, ids, "{name}: {input:?}");
            assert_eq!(tokenizer.decode(&ids), decoded, "{name}: decoding of {input:?}");
        }
    }
    Ok(())
}

#[test]
fn text_shown_token_by_token_is_the_text_decoded_at_once() -> anyhow::Result<()> {
    let Some(fixtures) = fixtures() else { return Ok(()) };
    for Golden { name, tokenizer, rows } in golden(&fixtures)? {
        for Row { input, ids, decoded } in rows {
            let mut stream = TextStream::new(tokenizer.clone(), Arc::new([]));
            let mut shown: String = ids.iter().map(|&id| stream.push(id)).collect();
            shown.push_str(&stream.finish());
            assert_eq!(shown, decoded, "{name}: {input:?}");
        }
    }
    Ok(())
}

/// Sequences that no text gives, as a model may generate them: pieces in an arbitrary but fixed order.
#[test]
fn arbitrary_sequences_are_shown_as_they_are_decoded() -> anyhow::Result<()> {
    let Some(fixtures) = fixtures() else { return Ok(()) };
    for Golden { name, tokenizer, .. } in golden(&fixtures)? {
        let tokens = u64::try_from(tokenizer.len())?;
        // Constants of Knuth's MMIX generator.
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % tokens) as u32
        };
        for _ in 0..200 {
            // Bytes that make no character erase what their run showed before; see `is_lone_byte`.
            let ids: Vec<u32> = (0..24).map(|_| next()).filter(|&id| !is_lone_byte(&tokenizer, id)).collect();
            let mut stream = TextStream::new(tokenizer.clone(), Arc::new([]));
            let mut shown: String = ids.iter().map(|&id| stream.push(id)).collect();
            shown.push_str(&stream.finish());
            assert_eq!(shown, tokenizer.decode(&ids), "{name}: {ids:?}");
        }
    }
    Ok(())
}

/// Byte fallback decodes a run of bytes as a whole: one that is not UTF-8 turns also those of its characters
/// that were already shown into U+FFFD.
fn is_lone_byte(tokenizer: &Tokenizer, id: u32) -> bool {
    tokenizer.token(id).is_some_and(|token| token.starts_with("<0x"))
}

#[test]
fn prompts_and_answers_of_the_checkpoints_are_the_original_ones() -> anyhow::Result<()> {
    let Some(fixtures) = fixtures() else { return Ok(()) };
    for (checkpoint, encoding) in [
        ("t5-ce", NumberEncoding::Text),
        ("t5-ntl-was", NumberEncoding::Digits),
        ("t5-v11", NumberEncoding::Text),
    ] {
        let tokenizer = open(fixtures.join(checkpoint))?;
        let golden = json(fixtures.join(checkpoint).join("golden/golden.json"))?;
        assert_eq!(tokenizer.number_encoding(), encoding);
        assert_eq!(Some(tokenizer.len() as u64), golden["len_tokenizer"].as_u64());
        assert_eq!((tokenizer.eos_id(), tokenizer.pad_id()), (Some(1), Some(0)));
        assert_eq!(tokenizer.model_max_length(), Some(512));
        for case in items(&golden["cases"])? {
            let (prompt, label) = (text(&case["text"])?, text(&case["label_text"])?);
            assert_eq!(tokenizer.encode(prompt, true)?, ids(&case["input_ids"])?, "{checkpoint}: {prompt:?}");
            assert_eq!(tokenizer.encode(label, true)?, ids(&case["label_ids"])?, "{checkpoint}: {label:?}");
            assert_eq!(tokenizer.decode(&ids(&case["greedy"]["ids"])?), text(&case["greedy"]["text"])?);
            let beams = items(&case["beam4"]["ids"])?.iter().zip(items(&case["beam4"]["text"])?);
            for (beam, want) in beams {
                assert_eq!(tokenizer.decode(&ids(beam)?), text(want)?, "{checkpoint}: {beam}");
            }
        }
    }
    Ok(())
}

#[test]
fn number_tokens_have_the_values_of_the_original_loss() -> anyhow::Result<()> {
    let Some(fixtures) = fixtures() else { return Ok(()) };
    for checkpoint in ["t5-ce", "t5-ntl-was", "t5-ntl-mse"] {
        let tokenizer = open(fixtures.join(checkpoint))?;
        let golden = json(fixtures.join(checkpoint).join("golden/golden.json"))?;
        let mut want = Vec::new();
        for token in items(&golden["number_tokens"])? {
            want.push((token[0].as_u64().context("id")?, token[2].as_f64().context("value")?));
        }
        want.sort_by_key(|(id, _)| *id);
        // The original holds the values in single precision.
        let value = |id| Some((u64::from(id), f64::from(tokenizer.number_value(id)? as f32)));
        let got = (0..tokenizer.len() as u32).filter_map(value);
        assert_eq!(got.collect::<Vec<_>>(), want, "{checkpoint}");
    }
    Ok(())
}

#[test]
fn fast_and_slow_differ_only_in_a_second_end_of_text() -> anyhow::Result<()> {
    let Some(fixtures) = fixtures() else { return Ok(()) };
    let (fast, slow) = (open(fixtures.join("tokenizers/t5-2k"))?, open(fixtures.join("t5-ce"))?);
    assert_eq!((fast.encode("</s>", true)?, slow.encode("</s>", true)?), (vec![1, 1], vec![1]));
    Ok(())
}

#[test]
fn pieces_read_as_the_text_that_they_add() -> anyhow::Result<()> {
    let Some(fixtures) = fixtures() else { return Ok(()) };
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
        let tokenizer = open(fixtures.join("tokenizers").join(name))?;
        let id = tokenizer.token_id(token).with_context(|| format!("{name} has no {token}"))?;
        assert_eq!(tokenizer.piece_text(id).as_deref(), want, "{name}: {token}");
    }
    Ok(())
}

#[test]
fn other_number_encodings_are_refused_for_now() {
    let Some(fixtures) = fixtures() else { return };
    for checkpoint in ["t5-rt", "t5-xval"] {
        let message =
            open(fixtures.join(checkpoint)).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            message.contains("field `tokenizer_class`") && message.contains("not served yet"),
            "{message}"
        );
    }
}
