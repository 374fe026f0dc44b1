//! The facts that decoding needs about a tokenizer and its model.

use std::sync::Arc;

use ntl_core::contract::ModelInfo;
use ntl_core::decoding::Vocabulary;
use ntl_core::numbers::NumberGrammar;
use ntl_core::text::TextDecoder;

use crate::tokenizer::Tokenizer;

pub fn vocabulary(tokenizer: &Arc<Tokenizer>, info: &ModelInfo) -> Vocabulary {
    if !info.has_token_distribution() {
        return label_vocabulary(tokenizer, info);
    }
    let ids = (0u32..).take(tokenizer.len());
    let pieces = ids.clone().map(|id| tokenizer.number_piece(id));
    Vocabulary {
        decoder: Arc::clone(tokenizer) as Arc<dyn TextDecoder>,
        grammar: Arc::new(NumberGrammar::new(pieces, info.eos_ids.clone())),
        number_values: ids.filter_map(|id| Some((id, tokenizer.number_value(id)?))).collect(),
        eos_ids: info.eos_ids.clone().into(),
        tokens: info.tokens,
    }
}

/// The vocabulary of a model that predicts labels, and writes no tokens.
fn label_vocabulary(tokenizer: &Arc<Tokenizer>, info: &ModelInfo) -> Vocabulary {
    Vocabulary {
        decoder: Arc::clone(tokenizer) as Arc<dyn TextDecoder>,
        grammar: Arc::new(NumberGrammar::point()),
        number_values: Arc::new([]),
        eos_ids: info.eos_ids.clone().into(),
        tokens: info.tokens,
    }
}
