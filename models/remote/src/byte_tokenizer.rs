//! A tokenizer whose tokens are bytes, for models whose engine answers chats only. No prompt of such a model
//! is tokenized here, and none of its tokens is ever shown.

use ntl_text::checkpoint::CheckpointFiles;
use serde_json::{Map, json};

/// Returns the files of the tokenizer.
pub fn byte_tokenizer() -> CheckpointFiles {
    let mut vocab = Map::new();
    for byte in 0..=u8::MAX {
        vocab.insert(format!("<0x{byte:02X}>"), byte.into());
    }
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true},
    });
    let file = ("tokenizer.json".to_owned(), tokenizer.to_string().into_bytes());
    CheckpointFiles::memory("the bytes of a text", [file])
}

#[cfg(test)]
mod tests {
    use ntl_core::text::TextDecoder;
    use ntl_text::tokenizer::Tokenizer;

    use super::*;

    #[test]
    fn every_byte_is_a_token_and_numbers_can_be_written() {
        let tokenizer = Tokenizer::open(&byte_tokenizer()).unwrap();
        assert_eq!((tokenizer.len(), tokenizer.chat_template().is_some()), (256, false));
        let text = "-4.5 \n\u{e9}\u{1f642}";
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
        assert_eq!(tokenizer.decode(&ids), text);
    }
}
