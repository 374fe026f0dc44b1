//! Compares the tokenizer on this side with the engine's.

use ntl_text::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::json;

use super::{EngineFacts, EngineKind};
use crate::client::{BaseUrl, Client, UpstreamError};

/// Texts that both sides must tokenize to the same ids.
const SAMPLES: [&str; 12] = [
    "0123456789",
    "The answer is 42.",
    "-17.25 + 3e8 = $1,000,000",
    " 7",
    "7 ",
    "\n\n  Rating:\t10/10\n",
    "x=-5;y=+0.001",
    "¿Qué? — naïve Ünïcödé €",
    "日本語のテキスト، عربى, Русский",
    "🙂👩‍👩‍👧 e\u{301}",
    "'tis we'll DON'T",
    "def f(x):\n    return x**2",
];

/// Maximum size of a response with the ids of a sample, or of a rendered conversation.
const TOKENS_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizationError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(
        "the tokenizer differs from the engine's at {replica}: it makes {ours:?} of {text:?}, the engine makes {theirs:?}"
    )]
    Different { replica: String, text: String, ours: Vec<u32>, theirs: Vec<u32> },
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<u32>,
}

/// Fails if a sample has other ids on the engine. Special tokens of training at the ends are compared too.
pub(super) async fn compare(
    client: &Client,
    base: &BaseUrl,
    facts: &EngineFacts,
    tokenizer: &Tokenizer,
) -> Result<(), TokenizationError> {
    if !facts.tokenizes {
        return Ok(());
    }
    let special_token = tokenizer.special_token("eos_token").map(|name| format!("a {name}1"));
    for text in SAMPLES.into_iter().chain(special_token.as_deref()) {
        for special in [false, true] {
            let theirs = tokenize(client, base, facts, text, special).await?;
            let ours = tokenizer.encode(text, special).unwrap_or_default();
            if ours != theirs {
                let (replica, text) = (base.to_string(), text.to_owned());
                return Err(TokenizationError::Different { replica, text, ours, theirs });
            }
        }
    }
    Ok(())
}

async fn tokenize(
    client: &Client,
    base: &BaseUrl,
    facts: &EngineFacts,
    text: &str,
    special: bool,
) -> Result<Vec<u32>, UpstreamError> {
    let body = match facts.kind {
        EngineKind::LlamaCpp => json!({"content": text, "add_special": special, "parse_special": true}),
        _ => json!({"model": facts.model, "prompt": text, "add_special_tokens": special}),
    };
    let bytes = client.post(base, "/tokenize", &body, TOKENS_BYTES_MAX).await?;
    let found: Tokens = serde_json::from_slice(&bytes).map_err(|error| UpstreamError::NotUnderstood {
        replica: base.to_string(),
        reason: format!("/tokenize: {}", client.printable(&error.to_string())),
    })?;
    Ok(found.tokens)
}
