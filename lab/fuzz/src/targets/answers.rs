//! Responses of an endpoint to `ntl-eval`: texts from which numbers are extracted, and the JSON around them.

use ntl_core::numbers::parse::{whole_number, with_decimal_point};
use ntl_eval::run::answer_extraction::{LmEvalFilter, value};
use ntl_eval::run::reply::{CompletionResponse, DetokenizeResponse, ScoreResponse, TokenizeResponse};
use ntl_eval::settings::mode::{Mode, NumberRule};
use ntl_paper::numbers::{NumberCounts, last_number};
use serde_json::Value;

use crate::corpus::{named, split_named};
use crate::{Outcome, Target};

pub(super) const EXTRACTION: Target = Target {
    name: "extraction",
    corpus: || {
        let texts = [
            "He has 3.\n#### 18",
            "#### 1,234.50 and 7",
            "- $5.00",
            " -7/2 ",
            "x = \u{2212} 4",
            "2.5E-4 of 10-3",
            "<hugenumber>",
            "₹1,00,000",
            "-€1½",
            "1_000 of １，２３４．５",
            "1.234,50",
        ];
        texts.map(|text| text.as_bytes().to_vec()).to_vec()
    },
    words: &[
        "#### ",
        "-",
        "+",
        "\u{2212}",
        ",",
        ".",
        "e",
        "E-",
        "1e999",
        "/",
        "0",
        "1,234",
        "$",
        "€",
        "(",
        ")",
        " ",
        "\n",
        "٣",
        "é",
        "½",
        "_",
        "₹",
        "，",
        "５",
        "inf",
        "nan",
        "Infinity",
        "_1_0_",
        "[NUM]",
        "0.000000000000000000001",
        "99999999999999999999999999",
    ],
    read: extraction,
};

pub(super) const REPLIES: Target = Target {
    name: "replies",
    corpus: || {
        let number = r#"{"value":1.5,"objective":"mean","estimate":"trimmed_mean","method":"tree","mean":1.5,"trimmed_mean":1.5,"median":1.0,"mode":1.0,"std":0.5,"quantiles":[{"q":0.5,"value":1.0}],"support":[{"value":1.0,"probability":0.5}],"mass":{"closed":0.9,"invalid":0.05,"open":0.05},"bounds":{"value":[1.0,2.0],"trimmed_mean":null,"median":null,"quantiles":[]},"nodes":5,"forward_passes":4,"truncated":false,"reason":null}"#;
        vec![
            named("text", br#"{"choices":[{"text":" 2","finish_reason":"stop","token_ids":[3,4]}]}"#),
            named(
                "text",
                br#"{"choices":[{"message":{"role":"assistant","content":"2"},"finish_reason":"length"}]}"#,
            ),
            named("regress", format!(r#"{{"choices":[{{"text":"1","number":{number}}}]}}"#).as_bytes()),
            named(
                "score",
                br#"{"data":[{"token_ids":[3],"token_logprobs":[-0.5,null],"losses":{"ce":0.5}}]}"#,
            ),
            named("tokenize", br#"{"tokens":[1,2]}"#),
            named("detokenize", br#"{"prompt":"a"}"#),
        ]
    },
    words: &[
        "choices",
        "text",
        "message",
        "content",
        "number",
        "token_ids",
        "finish_reason",
        "value",
        "mass",
        "closed",
        "invalid",
        "open",
        "support",
        "probability",
        "quantiles",
        "median",
        "mode",
        "bounds",
        "method",
        "tree",
        "head",
        "data",
        "token_logprobs",
        "losses",
        "tokens",
        "prompt",
        "regress",
        "estimate",
        "reason",
    ],
    read: replies,
};

/// Checks that every extracted value is finite, and that a text which is a number is read as its last number.
fn extraction(input: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(input);
    let first = value(&text, NumberRule::First);
    let found = value(&text, NumberRule::Last);
    assert!(first.is_none_or(f64::is_finite) && found.is_none_or(f64::is_finite), "{first:?}, {found:?}");
    if let Some(whole) = whole_number(&text) {
        assert_eq!(found, Some(whole), "{text:?}");
    }
    if let Some(pointed) = with_decimal_point(&text) {
        assert!(whole_number(&pointed).is_some(), "{text:?}");
    }
    // The paper's rule accepts infinity, as Python does.
    let _ = last_number(&text);
    NumberCounts::of(&text);
    for filter in LmEvalFilter::ALL {
        filter.matches(&text, &filter.extract(&text));
    }
    if found.is_some() { Outcome::Accepted } else { Outcome::Refused }
}

/// Checks that the masses and probabilities of an accepted number are possible.
fn replies(input: &[u8]) -> Outcome {
    let Some((kind, body)) = split_named(input) else { return Outcome::Refused };
    let accepted = match kind {
        "text" | "regress" => {
            let mode = if kind == "text" { Mode::Text } else { Mode::Regress };
            let response = serde_json::from_slice::<CompletionResponse>(body);
            let answer = response.ok().and_then(|response| response.into_answer(mode).ok());
            let number = answer.as_ref().and_then(|answer| answer.number.as_ref());
            if let Some(number) = number {
                let total: f64 = number.support.iter().map(|(_, probability)| probability).sum();
                assert!((0.0..=1.0 + 1e-5).contains(&total), "probabilities add up to {total}");
            }
            answer.is_some()
        }
        "score" => {
            serde_json::from_slice::<ScoreResponse>(body).is_ok_and(|response| response.into_only().is_ok())
        }
        "tokenize" => serde_json::from_slice::<TokenizeResponse>(body).is_ok(),
        "detokenize" => serde_json::from_slice::<DetokenizeResponse>(body).is_ok(),
        _ => serde_json::from_slice::<Value>(body).is_ok(),
    };
    if accepted { Outcome::Accepted } else { Outcome::Refused }
}
