//! Compares the values of number tokens with the tokenizers of RegressLM, for 17 settings.

use std::sync::Arc;

use ntl_core::numbers::{
    GrammarLimits, NotationError, NumberGrammar, NumberValue, NumberValues, SpecialValue, Terminator,
    TokenEffect, TokenFormat, TokenNotation,
};
use serde_json::Value;

use crate::support::{ids, reference};

fn settings() -> Vec<Value> {
    let file = reference("regresslm-number-tokenizers").join("number_tokenizers.json");
    let json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    json["tokenizers"].as_array().unwrap().clone()
}

/// Returns the format of a setting. Those with a wrapper have no sizes, but few tokens.
fn format(setting: &Value) -> TokenFormat {
    let size = |field: &str| setting[field].as_u64().unwrap() as usize;
    match setting["kind"].as_str().unwrap() {
        "p10" => TokenFormat::P10 { digits: size("num_digits"), exponent_max: size("exponent_range") as u16 },
        "ieee" => TokenFormat::Ieee {
            base: size("base") as u8,
            exponent_digits: size("num_exponent_digits"),
            digits: size("num_mantissa_digits"),
        },
        "normalized" => TokenFormat::Normalized { base: size("base") as u8, digits: size("length") },
        "P10Tokenizer" => TokenFormat::P10 { digits: 1, exponent_max: 2 },
        "IEEEFloatTokenizer" => {
            let digits = size("num_tokens_per_obj") - 3 - usize::from(setting["wrapper"] == "append_pad");
            TokenFormat::Ieee { base: 10, exponent_digits: 1, digits }
        }
        "NormalizedTokenizer" => TokenFormat::Normalized { base: 16, digits: 2 },
        other => panic!("{other}"),
    }
}

fn notation(setting: &Value) -> Result<TokenNotation, NotationError> {
    let names = setting["vocab"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    let notation = TokenNotation::new(names.collect(), format(setting), 1)?;
    match setting["wrapper"].as_str() {
        Some("append_pad") => notation.with_separator(),
        Some(_) => notation.with_special_values(
            &[
                ("<NAN>", SpecialValue::Nan),
                ("<INF>", SpecialValue::Infinity),
                ("<NINF>", SpecialValue::NegativeInfinity),
                ("<INVALID>", SpecialValue::Invalid),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        ),
        None => Ok(notation),
    }
}

/// Returns the value of an answer of one number, or `None` if the tokens are not an answer.
fn value(grammar: &NumberGrammar, tokens: &[u32]) -> Option<NumberValue> {
    let limits = GrammarLimits::new(1, 0, true).unwrap();
    // Without the mask every token is read, also one that is the only one allowed.
    let rules = grammar.rules(limits, Terminator::Eos, NumberValues::All).masked(false);
    let mut state = grammar.start();
    for (index, token) in tokens.iter().enumerate() {
        match grammar.effect(state, *token, &rules) {
            TokenEffect::Continues(next) => state = next,
            // Padding at the end needs no row.
            TokenEffect::Closes(value) => {
                return tokens[index + 1..].iter().all(|id| *id == 0).then_some(value);
            }
            _ => return None,
        }
    }
    None
}

/// Returns a fraction as the nearest double or a neighbour of it.
fn rational(exact: &str) -> f64 {
    let (numerator, denominator) = exact.split_once('/').unwrap_or((exact, "1"));
    let [numerator, denominator] = [numerator, denominator].map(|digits| digits.parse::<f64>().unwrap());
    numerator / denominator
}

#[test]
fn tokens_have_the_values_and_the_successors_of_the_reference() {
    let mut checked = 0;
    for setting in settings() {
        let what = format!("{} {:?}", setting["kind"], format(&setting));
        // In this setting the reference overflows for most numbers, and computes 0 for others.
        if setting["max_abs_value_error"].is_string() {
            assert_eq!(notation(&setting), Err(NotationError::TooLarge), "{what}");
            continue;
        }
        let notation = Arc::new(notation(&setting).unwrap());
        assert_eq!(Some(notation.number_tokens() as u64), setting["num_tokens_per_obj"].as_u64(), "{what}");
        let grammar = NumberGrammar::of_tokens(Arc::clone(&notation));
        let none = Vec::new();
        let [encoded, decoded] = ["encode", "decode"].map(|field| setting[field].as_array().unwrap_or(&none));
        for case in encoded.iter().chain(decoded).filter(|case| case["error"].is_null()) {
            let tokens = ids(&case["ids"]);
            let what = format!("{what}: {case}");
            let got = value(&grammar, &tokens).unwrap_or_else(|| panic!("{what}"));
            let want = match (case["exact"].as_str(), case["decoded"].as_str()) {
                (Some(exact), _) => rational(exact),
                // `INVALID` is not a number either.
                (None, Some(special)) => special.parse().unwrap_or(f64::NAN),
                (None, None) => case["decoded"].as_f64().unwrap(),
            };
            let got = got.to_f64();
            let is_near = (got - want).abs() <= 4.0 * f64::EPSILON * want.abs();
            assert!(
                is_near || got.total_cmp(&want).is_eq() || got.is_nan() && want.is_nan(),
                "{what}: {got}"
            );
            checked += 1;

            // Each prefix has the successors of the reference: no other token continues it.
            let allowed = |index: usize| match &setting["allowed_ids_by_position"] {
                Value::Array(positions) => Some(ids(&positions[index])),
                _ if index == 0 => Some(ids(&setting["allowed_first"])),
                _ if index == 1 => {
                    let first = notation.encode(case["tokens"][0].as_str()?).unwrap();
                    assert_eq!(first, tokens[..1], "{what}");
                    Some(ids(&setting["allowed_after"][case["tokens"][0].as_str()?]))
                }
                _ => None,
            };
            for (index, allowed) in (0..tokens.len()).filter_map(|index| Some((index, allowed(index)?))) {
                let prefix = &tokens[..index];
                let found = (0..notation.tokens() as u32).filter(|id| {
                    let other = [prefix, &[*id], &tokens[index + 1..]].concat();
                    let is_first_special = index == 0 && value(&grammar, &vec![*id; tokens.len()]).is_some();
                    value(&grammar, &other).is_some() || is_first_special
                });
                // After a special value, the other tokens of a number differ.
                if !want.is_nan() && want.is_finite() {
                    assert_eq!(found.collect::<Vec<_>>(), allowed, "{what}, position {index}");
                }
            }
        }
    }
    println!("{checked} numbers");
}
