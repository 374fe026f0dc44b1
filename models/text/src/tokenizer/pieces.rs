//! The pieces of a vocabulary by id and by name, and the text of each.
//!
//! Invariant: no id is above [`ID_MAX`], so that no file can make tables that are indexed by id large.

use std::collections::HashMap;

/// Maximum accepted id. Real vocabularies end below 300,000.
pub(super) const ID_MAX: u32 = (1 << 24) - 1;

/// Maximum length of a name, in bytes. The longest names in real vocabularies have a few hundred bytes.
const NAME_BYTES_MAX: usize = 16 << 10;

/// Rejects a name that is longer than in any real vocabulary.
pub(super) fn check_name(id: u32, name: &str) -> Result<(), String> {
    let bytes = name.len();
    if bytes > NAME_BYTES_MAX {
        return Err(format!("token {id} has {bytes} bytes, at most {NAME_BYTES_MAX} are accepted"));
    }
    Ok(())
}

/// SentencePiece's mark for a space.
pub(super) const SPACE_MARK: char = '▁';

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// Text, in the notation that [`Spelling`] defines.
    Text,
    /// One byte of a character without a piece.
    Byte(u8),
    /// A word that was added to the vocabulary; its name is its text.
    Added,
    /// A special token, which decoding omits.
    Special,
}

/// How the names of pieces spell text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Spaces are `▁`.
    SpaceMark,
    /// Each byte is one printable character, as in GPT-2.
    ByteLevel,
    Plain,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) name: String,
    pub(super) kind: PieceKind,
}

/// A part of a text and its piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) id: u32,
    /// The part of the text. For an unknown character it is that character, not `<unk>`.
    pub(super) text: String,
}

#[derive(Debug)]
pub(super) struct PieceTable {
    pieces: HashMap<u32, Piece>,
    ids: HashMap<String, u32>,
    spelling: Spelling,
    len: usize,
}

impl PieceTable {
    pub(super) fn new(
        pieces: impl IntoIterator<Item = (u32, Piece)>,
        spelling: Spelling,
    ) -> Result<Self, String> {
        let mut table = Self { pieces: HashMap::new(), ids: HashMap::new(), spelling, len: 0 };
        for (id, piece) in pieces {
            if id > ID_MAX {
                return Err(format!("token `{}` has id {id}, at most {ID_MAX} is accepted", piece.name));
            }
            check_name(id, &piece.name)?;
            table.len = table.len.max(id as usize + 1);
            table.ids.insert(piece.name.clone(), id);
            table.pieces.insert(id, piece);
        }
        Ok(table)
    }

    /// The largest id plus one.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of different names.
    pub(super) fn names(&self) -> usize {
        self.ids.len()
    }

    /// Returns the length of the longest name, in bytes. A name is at least as long as the piece's text.
    pub(super) fn bytes_max(&self) -> usize {
        (0..self.len() as u32).filter_map(|id| self.get(id)).map(|piece| piece.name.len()).max().unwrap_or(0)
    }

    pub(super) fn get(&self, id: u32) -> Option<&Piece> {
        self.pieces.get(&id)
    }

    pub(super) fn special_names(&self) -> impl Iterator<Item = &str> {
        let special = self.pieces.values().filter(|piece| piece.kind == PieceKind::Special);
        special.map(|piece| piece.name.as_str())
    }

    pub(super) fn special_ids(&self) -> impl Iterator<Item = u32> {
        let special = self.pieces.iter().filter(|(_, piece)| piece.kind == PieceKind::Special);
        special.map(|(&id, _)| id)
    }

    pub(super) fn id(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// Returns the text of a piece in the middle of a sequence, or `None` for special pieces and parts of
    /// characters.
    pub(super) fn text(&self, id: u32) -> Option<String> {
        match self.get(id)?.kind {
            PieceKind::Special => None,
            _ => String::from_utf8(self.bytes(id)?).ok(),
        }
    }

    /// Returns the bytes of a piece in the middle of a sequence, or the bytes of the name for a special
    /// piece.
    pub(super) fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let piece = self.get(id)?;
        Some(match (piece.kind, self.spelling) {
            (PieceKind::Byte(byte), _) => vec![byte],
            (PieceKind::Text, Spelling::SpaceMark) => piece.name.replace(SPACE_MARK, " ").into_bytes(),
            (PieceKind::Text, Spelling::ByteLevel) => byte_level(&piece.name),
            _ => piece.name.clone().into_bytes(),
        })
    }
}

/// Returns the byte that a piece such as `<0x35>` names.
pub(super) fn named_byte(name: &str) -> Option<u8> {
    let hex = name.strip_prefix("<0x")?.strip_suffix('>')?;
    let two_digits = hex.len() == 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    two_digits.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// Returns the bytes of a byte-level piece, or the bytes of the name itself if it contains any other
/// character.
fn byte_level(name: &str) -> Vec<u8> {
    name.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| name.as_bytes().to_vec())
}

/// The inverse of GPT-2's table: printable Latin-1 characters stand for their own bytes, and the characters
/// from U+0100 on stand for the other 68 bytes, in order.
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(spelling: Spelling) -> PieceTable {
        let piece = |name: &str, kind| Piece { name: name.to_owned(), kind };
        let pieces = [
            piece("<s>", PieceKind::Special),
            piece("▁12", PieceKind::Text),
            piece("<0x35>", PieceKind::Byte(0x35)),
            piece("<0xE2>", PieceKind::Byte(0xE2)),
            piece("Ġ1é", PieceKind::Text),
            piece("Ã©Ċ", PieceKind::Text),
            piece("▁Ġ", PieceKind::Added),
        ];
        PieceTable::new((0..).zip(pieces), spelling).unwrap()
    }

    #[test]
    fn a_piece_is_the_text_that_it_adds() {
        for (spelling, id, want) in [
            (Spelling::SpaceMark, 0, None),
            (Spelling::SpaceMark, 1, Some(" 12")),
            (Spelling::SpaceMark, 2, Some("5")),
            (Spelling::SpaceMark, 3, None),
            (Spelling::ByteLevel, 4, None),
            (Spelling::ByteLevel, 5, Some("é\n")),
            (Spelling::ByteLevel, 6, Some("▁Ġ")),
            (Spelling::Plain, 1, Some("▁12")),
            (Spelling::Plain, 7, None),
        ] {
            assert_eq!(table(spelling).text(id).as_deref(), want, "{spelling:?} {id}");
        }
    }

    #[test]
    fn every_byte_has_one_byte_level_character() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<_>>());
        assert_eq!((byte_of('Ġ'), byte_of('Ċ')), (Some(b' '), Some(b'\n')));
    }

    #[test]
    fn an_absurd_id_is_rejected() {
        let piece = Piece { name: "x".into(), kind: PieceKind::Text };
        let error = PieceTable::new([(u32::MAX, piece)], Spelling::Plain).unwrap_err();
        assert_eq!(error, "token `x` has id 4294967295, at most 16777215 is accepted");
    }

    #[test]
    fn only_two_hex_digits_name_a_byte() {
        for (name, want) in
            [("<0x0A>", Some(10)), ("<0xé>", None), ("<0x+1>", None), ("<0x1>", None), ("0A", None)]
        {
            assert_eq!(named_byte(name), want, "{name}");
        }
    }
}
