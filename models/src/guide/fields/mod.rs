//! The numbers that a JSON schema names, found in a text while it is written.
//!
//! In: a schema, and the bytes of a text in order. Out: where a named number begins, its path, and the numbers
//! that the schema admits there. `cursor` follows the text, `places` finds the schemas of a place, and
//! `numbers` reads the numbers that they admit.

mod cursor;
mod numbers;
mod places;

pub(super) use cursor::Cursor;
pub(super) use places::{Place, Schema};
