//! A tokenizer whose tokens are bytes, for models whose engine answers chats only. No prompt of such a model
//! is tokenized here, and none of its tokens is ever shown.

use ntl_text::checkpoint::CheckpointFiles;
use serde_json::{Map, json};

/// Returns the files of the tokenizer.
pub(crate) fn byte_tokenizer() -> CheckpointFiles {
    let mut vocab = Map::new();
    for byte in 0..=u8::MAX {
        vocab.insert(byte_level(byte).to_string(), byte.into());
    }
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let file = ("tokenizer.json".to_owned(), tokenizer.to_string().into_bytes());
    CheckpointFiles::memory("the bytes of a text", [file])
}

/// The character that stands for a byte in vocabularies of byte-level BPE: itself if it is printable,
/// otherwise the next one from U+0100 on.
fn byte_level(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&byte| !is_printable(byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or_default()
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
