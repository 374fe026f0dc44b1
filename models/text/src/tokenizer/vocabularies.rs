//! The tokenizers of prompts of RegressLM's PyTorch models.

use std::collections::BTreeMap;

use ntl_core::contract::NumberEncoding;

use super::pieces::{Piece, PieceKind, PieceTable, Segment, Spelling};
use super::sentencepiece::PrefixIndex;
use super::slow::SlowTokenizer;
use super::{Source, Tokenizer};
use crate::checkpoint::{CheckpointFiles, LoadError, TokenizerType, TruncationSide};

/// A vocabulary of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VocabularySource {
    /// A SentencePiece model.
    SentencePiece { file: String },
    /// The `tokenizer.json` of the checkpoint.
    Library,
    /// Every character is a token; the first one has the id `first`.
    Characters { characters: String, pad: u32, unknown: u32, first: u32 },
}

/// The tokens of a text in which every character is one.
pub(super) struct Characters {
    unknown: u32,
}

impl Characters {
    pub(super) fn encode(&self, text: &str, table: &PieceTable) -> Vec<Segment> {
        let mut segments = Vec::new();
        for character in text.chars() {
            let text = character.to_string();
            segments.push(Segment { id: table.id(&text).unwrap_or(self.unknown), text });
        }
        segments
    }
}

impl Tokenizer {
    /// Opens a vocabulary. Prompts have at most `prompt_tokens_max` tokens, and training dropped the last
    /// ones of longer ones. `described` is the name of the file that describes a vocabulary of characters.
    pub fn of_vocabulary(
        files: &CheckpointFiles,
        vocabulary: &VocabularySource,
        prompt_tokens_max: usize,
        described: &str,
    ) -> Result<Self, LoadError> {
        let (source, table, pad, unknown) = match vocabulary {
            VocabularySource::Library => {
                let tokenizer = Self::open_as(files, Some(TokenizerType::Auto))?;
                return Ok(Self {
                    model_max_length: Some(prompt_tokens_max),
                    truncation_side: Some(TruncationSide::Right),
                    chat: None,
                    ..tokenizer
                });
            }
            VocabularySource::SentencePiece { file } => {
                let (tokenizer, table) = SlowTokenizer::without_special_tokens(files, file)?;
                let unknown = table.id("<unk>");
                (Source::Slow(Box::new(tokenizer)), table, None, unknown)
            }
            VocabularySource::Characters { characters, pad, unknown, first } => {
                let table = characters_table(characters, [*pad, *unknown], *first).map_err(|reason| {
                    LoadError::field(files.name_of(described), "encoder_tokenizer.chars", reason)
                })?;
                (Source::Characters(Characters { unknown: *unknown }), table, Some(*pad), Some(*unknown))
            }
        };
        Ok(Self {
            numbers: NumberEncoding::Text,
            clean_up: false,
            eos: None,
            pad,
            unknown,
            special: PrefixIndex::new([]),
            number_token: None,
            model_max_length: Some(prompt_tokens_max),
            truncation_side: Some(TruncationSide::Right),
            piece_bytes_max: table.bytes_max(),
            chat: None,
            named: BTreeMap::new(),
            source,
            table,
        })
    }
}

fn characters_table(characters: &str, [pad, unknown]: [u32; 2], first: u32) -> Result<PieceTable, String> {
    let mut pieces = BTreeMap::new();
    let special = [(pad, "<pad>"), (unknown, "<unk>")];
    let special = special.map(|(id, name)| (id, Piece { name: name.to_owned(), kind: PieceKind::Special }));
    let special = special.into_iter().map(|(id, piece)| (u64::from(id), piece));
    let characters = (u64::from(first)..).zip(characters.chars());
    let characters =
        characters.map(|(id, character)| (id, Piece { name: character.to_string(), kind: PieceKind::Text }));
    for (id, piece) in special.chain(characters) {
        let id = u32::try_from(id).map_err(|_| format!("id {id} is too large"))?;
        if let Some(other) = pieces.insert(id, piece) {
            return Err(format!("{id} is also the id of `{}`", other.name));
        }
    }
    let count = pieces.len();
    let table = PieceTable::new(pieces, Spelling::Plain)?;
    if table.names() != count {
        return Err("a character is listed twice".to_owned());
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(characters: &str, [pad, unknown]: [u32; 2], first: u32) -> Result<Tokenizer, String> {
        let vocabulary =
            VocabularySource::Characters { characters: characters.to_owned(), pad, unknown, first };
        let files = CheckpointFiles::memory("m", []);
        Tokenizer::of_vocabulary(&files, &vocabulary, 5, "ntl.json").map_err(|error| error.to_string())
    }

    #[test]
    fn every_character_is_a_token_and_others_are_unknown() {
        let tokenizer = open("\n abé<>", [0, 1], 2).unwrap();
        let ids = tokenizer.encode("<ab>\n€é ", true).unwrap();
        assert_eq!(ids, [7, 4, 5, 8, 2, 1, 6, 3]);
        assert_eq!(tokenizer.decode_tokens(&ids), "<ab>\né ");
        assert_eq!((tokenizer.len(), tokenizer.model_max_length()), (9, Some(5)));
        assert_eq!(tokenizer.encode("<pad>", false).unwrap(), [7, 1, 4, 1, 8]);
    }

    #[test]
    fn repeated_characters_and_ids_are_rejected() {
        for (characters, special, first, reason) in [
            ("aba", [0, 1], 2, "a character is listed twice"),
            ("ab", [0, 0], 2, "0 is also the id of `<pad>`"),
            ("ab", [0, 3], 2, "3 is also the id of `<unk>`"),
            ("ab", [0, 1], u32::MAX, "is too large"),
            ("ab", [0, 1], 1 << 24, "at most 16777215 is accepted"),
        ] {
            let error = open(characters, special, first).err().unwrap();
            assert!(error.contains("m/ntl.json: field `encoder_tokenizer.chars`: "), "{error}");
            assert!(error.contains(reason), "{error}");
        }
    }
}
