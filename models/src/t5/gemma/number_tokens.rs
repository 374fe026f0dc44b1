//! Reads the number tokens of a RegressLM: `config.json` says how they write numbers, and a vocabulary file
//! which id each of them has.

use std::collections::BTreeMap;

use ntl_core::contract::NumberEncoding;
use ntl_core::numbers::{NotationError, TokenFormat, TokenNotation};
use ntl_text::checkpoint::{CONFIG_FILE, CheckpointFiles, LoadError, LoadResult};
use serde::Deserialize;

use crate::t5::config::required;

const IEEE_FILE: &str = "ieee_vocab.json";
const P10_FILE: &str = "p10_vocab.json";

/// The token that pads and starts sequences; its id is 0.
const PAD: &str = "<pad>";

#[derive(Deserialize)]
struct StoredNumberTokens {
    decoder_tokenizer: String,
    decoder_vocab_size: usize,
    num_digits: Option<usize>,
    exponent_range: Option<u16>,
    ieee_base: Option<u8>,
    ieee_exponent_digits: Option<usize>,
    ieee_mantissa_digits: Option<usize>,
    num_tokens_per_obj: Option<usize>,
    max_num_objs: Option<usize>,
}

impl StoredNumberTokens {
    /// Returns the format of numbers and the file with its tokens, or the name of a field that is missing or
    /// wrong.
    fn format(&self) -> Result<(TokenFormat, &'static str), (&'static str, String)> {
        let name = self.decoder_tokenizer.to_ascii_uppercase();
        if name.starts_with("IEEE") {
            let exponent_digits = required("ieee_exponent_digits", self.ieee_exponent_digits)?;
            let digits = required("ieee_mantissa_digits", self.ieee_mantissa_digits)?;
            let base = self.ieee_base.unwrap_or(10);
            return Ok((TokenFormat::Ieee { base, exponent_digits, digits }, IEEE_FILE));
        }
        if name == "P10" {
            let digits = required("num_digits", self.num_digits)?;
            let exponent_max = required("exponent_range", self.exponent_range)?;
            return Ok((TokenFormat::P10 { digits, exponent_max }, P10_FILE));
        }
        let reason = format!("`{}` is not supported; IEEE and P10 are", self.decoder_tokenizer);
        Err(("decoder_tokenizer", reason))
    }
}

/// Reads the number tokens of a checkpoint.
pub(crate) fn read_notation(files: &CheckpointFiles) -> LoadResult<TokenNotation> {
    let wrong = |field: &str, reason: String| LoadError::field(files.name_of(CONFIG_FILE), field, reason);
    let stored: StoredNumberTokens = files.require_json(CONFIG_FILE)?;
    let (format, file) = stored.format().map_err(|(field, reason)| wrong(field, reason))?;
    let names = read_names(files, file)?;
    if names.len() != stored.decoder_vocab_size {
        let reason =
            format!("{} differs from the {} tokens of {file}", stored.decoder_vocab_size, names.len());
        return Err(wrong("decoder_vocab_size", reason));
    }
    let notation = TokenNotation::new(names, format, stored.max_num_objs.unwrap_or(1));
    let notation = notation.map_err(|error| match error {
        NotationError::Missing(_) => LoadError::malformed(files.name_of(file), error.to_string()),
        error => wrong("decoder_tokenizer", error.to_string()),
    })?;
    match stored.num_tokens_per_obj {
        Some(tokens) if tokens != notation.number_tokens() => {
            let reason = format!("{tokens}, but its numbers have {} tokens", notation.number_tokens());
            Err(wrong("num_tokens_per_obj", reason))
        }
        _ => Ok(notation),
    }
}

/// Returns the name of the encoding on the wire.
pub(crate) fn encoding(notation: &TokenNotation) -> NumberEncoding {
    match notation.format() {
        TokenFormat::Ieee { .. } => NumberEncoding::Ieee,
        TokenFormat::P10 { .. } => NumberEncoding::P10,
        TokenFormat::Normalized { .. } => NumberEncoding::Normalized,
    }
}

/// Returns the tokens of a vocabulary file by id.
fn read_names(files: &CheckpointFiles, file: &str) -> LoadResult<Vec<String>> {
    let ids: BTreeMap<String, u32> = files.require_json(file)?;
    let mut names: Vec<(u32, String)> = ids.into_iter().map(|(name, id)| (id, name)).collect();
    names.sort_unstable();
    if let Some((id, _)) = (0u32..).zip(&names).find(|(id, (stored, _))| id != stored) {
        let last = names.len() - 1;
        let reason = format!("the ids of its tokens are not 0 to {last}: no or several tokens have {id}");
        return Err(LoadError::malformed(files.name_of(file), reason));
    }
    let names: Vec<String> = names.into_iter().map(|(_, name)| name).collect();
    if names.first().is_none_or(|first| first != PAD) {
        return Err(LoadError::malformed(files.name_of(file), format!("the id 0 is not `{PAD}`")));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DIGITS: [&str; 10] = ["<0>", "<1>", "<2>", "<3>", "<4>", "<5>", "<6>", "<7>", "<8>", "<9>"];

    fn vocabulary(names: &[&str]) -> Value {
        let all = [PAD, "<+>", "<->"].iter().chain(&DIGITS).chain(names);
        all.enumerate()
            .map(|(id, name)| ((*name).to_owned(), json!(id)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// Reads a configuration with changed fields; `null` removes a field.
    fn read(changes: &[(&str, Value)], names: &Value) -> LoadResult<TokenNotation> {
        let mut config = json!({"decoder_tokenizer": "IEEE", "decoder_vocab_size": 13, "ieee_base": 10,
            "ieee_exponent_digits": 2, "ieee_mantissa_digits": 5, "num_tokens_per_obj": 9, "max_num_objs": 1,
            "num_digits": 6, "exponent_range": 10});
        for (field, value) in changes {
            config[*field] = value.clone();
        }
        let file = |name: &str, value: &Value| (name.to_owned(), value.to_string().into_bytes());
        let files = [file(CONFIG_FILE, &config), file(IEEE_FILE, names), file(P10_FILE, names)];
        read_notation(&CheckpointFiles::memory("folder", files))
    }

    #[test]
    fn numbers_of_both_formats_are_read() {
        let ieee = read(&[("decoder_tokenizer", json!("ieee_float"))], &vocabulary(&[])).unwrap();
        assert_eq!((ieee.answer_tokens(), encoding(&ieee)), (9, NumberEncoding::Ieee));
        let changes = [
            ("decoder_tokenizer", json!("P10")),
            ("decoder_vocab_size", json!(16)),
            ("num_digits", json!(2)),
            ("exponent_range", json!(1)),
            ("num_tokens_per_obj", json!(null)),
            ("max_num_objs", json!(3)),
        ];
        let p10 = read(&changes, &vocabulary(&["<E-1>", "<E0>", "<E1>"])).unwrap();
        assert_eq!((p10.number_tokens(), p10.outputs(), encoding(&p10)), (4, 3, NumberEncoding::P10));
    }

    #[test]
    fn wrong_configurations_and_vocabularies_are_rejected_by_name() {
        for (field, value) in [
            ("decoder_tokenizer", json!("bytes")),
            ("decoder_vocab_size", json!(14)),
            ("ieee_exponent_digits", json!(null)),
            ("ieee_mantissa_digits", json!(null)),
            ("num_tokens_per_obj", json!(8)),
        ] {
            let message = read(&[(field, value)], &vocabulary(&[])).unwrap_err().to_string();
            assert!(message.contains(&format!("config.json: field `{field}`")), "{message}");
        }
        for (field, value, reason) in [
            ("ieee_base", json!(1), "numbers of base 1"),
            ("ieee_exponent_digits", json!(3), "do not fit into double precision"),
            ("ieee_mantissa_digits", json!(u64::MAX), "at most 64"),
            ("max_num_objs", json!(1_000_000_000_u64), "at most 64"),
            ("max_num_objs", json!(0), "an answer has 0 tokens"),
        ] {
            let message = read(&[(field, value)], &vocabulary(&[])).unwrap_err().to_string();
            assert!(message.contains(reason), "{message}");
        }
        let lacks = |changed: &[(&str, &str, Value)]| {
            let mut names = vocabulary(&[]);
            for (old, new, id) in changed {
                names.as_object_mut().unwrap().remove(*old);
                names[*new] = id.clone();
            }
            read(&[], &names).unwrap_err().to_string()
        };
        for (changed, reason) in [
            (&[("<9>", "<x>", json!(12))][..], "ieee_vocab.json is not usable: it has no token `<9>`"),
            (&[("<9>", "<9>", json!(13))], "ieee_vocab.json is not usable: the ids of its tokens"),
            (&[("<9>", "<9>", json!(-1))], "ieee_vocab.json is not usable"),
            (&[(PAD, "<start>", json!(0))], "ieee_vocab.json is not usable: the id 0 is not `<pad>`"),
        ] {
            let message = lacks(changed);
            assert!(message.contains(reason) && !message.contains('\n'), "{message}");
        }
        let missing = read(&[], &json!({})).unwrap_err().to_string();
        assert!(missing.contains("decoder_vocab_size") || missing.contains("`<pad>`"), "{missing}");
    }
}
