//! The numbers that a JSON schema names, found in a text while it is written.
//!
//! In: a schema, and the bytes of a text in order. Out: where a named number begins, its path, and the
//! numbers that the schema admits there. `cursor` follows JSON, `calls` a text with arguments of functions,
//! `places` finds the schemas of a place, and `numbers` reads the numbers that they admit.

mod calls;
mod cursor;
mod numbers;
mod places;

use ntl_core::guide::{NumberEffect, NumberField};

pub(super) use calls::{CallCursor, Called};
pub(super) use cursor::Cursor;
pub(super) use places::{Place, Schema};

/// The position in a text whose numbers a schema names.
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
    pub(super) fn effect(&self, bytes: &[u8]) -> NumberEffect {
        match bytes.first() {
            Some(&first) if self.continues_number(first) => return NumberEffect::Continues,
            _ if !bytes.iter().copied().any(cursor::begins_number) => return NumberEffect::None,
            _ => {}
        }
        let mut follower = self.clone();
        for (at, &byte) in bytes.iter().enumerate() {
            if cursor::begins_number(byte)
                && let Some(field) = follower.field()
            {
                return match &bytes[..at] {
                    [] => NumberEffect::Begins { field, has_space: false },
                    [b' '] => NumberEffect::Begins { field, has_space: true },
                    _ => NumberEffect::BeginsInside,
                };
            }
            follower.read_byte(byte);
        }
        NumberEffect::None
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

    /// The numbers of the value that comes next.
    fn field(&self) -> Option<NumberField> {
        match self {
            Self::Json(cursor) => cursor.field(),
            Self::Calls(cursor) => cursor.field(),
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
