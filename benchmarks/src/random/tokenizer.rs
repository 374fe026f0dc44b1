//! A SentencePiece tokenizer padded with pieces up to a full vocabulary, so that every id decodes to text.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::setup::sentencepiece_files;

const ADDED_FILE: &str = "added_tokens.json";
const MODEL_FILE: &str = "spiece.model";

/// Score of the added pieces: lower than any other score, so that they never occur in a tokenized text.
const SCORE: f32 = -1e4;

/// Writes the tokenizer's files, which have `tokens` ids in total.
pub(super) fn write(folder: &Path, tokens: usize) -> anyhow::Result<()> {
    let small = sentencepiece_files()?;
    for file in [ADDED_FILE, "special_tokens_map.json", "tokenizer_config.json"] {
        fs::write(folder.join(file), &*small.require(file)?)?;
    }
    let mut model = small.require(MODEL_FILE)?.to_vec();
    let added: BTreeMap<String, usize> = serde_json::from_slice(&small.require(ADDED_FILE)?)?;
    // The first added token follows the last piece of the model.
    let pieces = added.into_values().min().unwrap_or(tokens);
    (pieces..tokens).for_each(|id| model.extend(piece(id)));
    Ok(fs::write(folder.join(MODEL_FILE), model)?)
}

/// Returns an entry of `pieces` in SentencePiece's `ModelProto`. Entries of a repeated field may be appended
/// to the file.
fn piece(id: usize) -> Vec<u8> {
    let name = format!("▁q{}", letters(id));
    let mut message = vec![0x0A, name.len() as u8];
    message.extend(name.as_bytes());
    message.push(0x15);
    message.extend(SCORE.to_le_bytes());
    let mut field = vec![0x0A, message.len() as u8];
    field.extend(message);
    field
}

/// Returns a name without digits, since pieces with digits would change how numbers are tokenized.
fn letters(mut number: usize) -> String {
    let mut letters = String::new();
    while number > 0 {
        letters.push(char::from(b'a' + (number % 26) as u8));
        number /= 26;
    }
    letters
}
