//! The fields of a JSON schema, numbers and listed values, found in a text while it is written.
//!
//! In: a schema, and the bytes of a text in order. Out: where a field begins, its path, and the values that
//! the schema admits there. `cursor` follows JSON, `calls` a text with arguments of functions, `places` finds
//! the schemas of a place, and `numbers` and `listed` read the values that they admit.

mod calls;
mod cursor;
mod listed;
mod numbers;
mod places;

use ntl_core::guide::{FieldEffect, SchemaField};

pub(super) use calls::{CallCursor, Called};
pub(super) use cursor::Cursor;
pub(super) use places::{Place, Schema};

/// The position in a text whose fields a schema describes.
#[derive(Debug, Clone)]
pub(super) enum Follower {
    Json(Cursor),
    Calls(CallCursor),
}

impl Follower {
    pub(super) fn read(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.read_byte(byte));
    }

    /// Returns the effect of a token with these bytes.
    pub(super) fn effect(&self, bytes: &[u8]) -> FieldEffect {
        let Some(&first) = bytes.first() else { return FieldEffect::None };
        if self.continues_number(first) {
            return FieldEffect::Continues;
        }
        // Values begin after one of these.
        let has_beginning = bytes.iter().any(|byte| matches!(byte, b':' | b',' | b'['));
        let is_before_value = self.json().is_some_and(Cursor::is_before_value);
        if has_beginning || is_before_value {
            let mut follower = self.clone();
            for (at, &byte) in bytes.iter().enumerate() {
                if let Some(field) = follower.field(byte) {
                    return match &bytes[..at] {
                        [] => FieldEffect::Begins { field, has_space: false },
                        [b' '] => FieldEffect::Begins { field, has_space: true },
                        _ => FieldEffect::BeginsInside,
                    };
                }
                follower.read_byte(byte);
            }
        }
        let continues = self.json().is_some_and(|cursor| cursor.continues_text(first));
        if continues { FieldEffect::Continues } else { FieldEffect::None }
    }

    /// Returns whether the text ends with a number that `byte` would continue.
    pub(super) fn continues_number(&self, byte: u8) -> bool {
        self.json().is_some_and(|cursor| cursor.continues_number(byte))
    }

    /// Returns whether the text is before or in a name of an object that has other names.
    pub(super) fn is_at_further_name(&self) -> bool {
        self.json().is_some_and(Cursor::is_at_further_name)
    }

    /// Returns whether a token with these bytes gives an object the same name twice.
    pub(super) fn repeats_name(&self, bytes: &[u8]) -> bool {
        self.json().is_some_and(|cursor| cursor.repeats_name(bytes))
    }

    /// The field of the value that begins with `byte`.
    fn field(&self, byte: u8) -> Option<SchemaField> {
        match self {
            Self::Json(cursor) => cursor.field(byte),
            Self::Calls(cursor) => cursor.field(byte),
        }
    }

    /// The JSON that the text is in.
    fn json(&self) -> Option<&Cursor> {
        match self {
            Self::Json(cursor) => Some(cursor),
            Self::Calls(cursor) => cursor.arguments(),
        }
    }

    fn read_byte(&mut self, byte: u8) {
        match self {
            Self::Json(cursor) => cursor.read_byte(byte),
            Self::Calls(cursor) => cursor.read_byte(byte),
        }
    }
}
