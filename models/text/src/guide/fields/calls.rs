//! The position in a text that calls functions. The arguments of each call are JSON with the schema of the
//! function.
//!
//! The guide has checked the text, so the cursor only searches for what precedes arguments: the name of a
//! function, and the layout after it.

use std::sync::Arc;

use ntl_core::guide::SchemaField;

use super::{Cursor, Schema};

/// A function that a text may call.
#[derive(Debug, Clone)]
pub(in crate::guide) struct Called {
    /// The texts that may precede its arguments: its name and the layout after it.
    pub(in crate::guide) leads: Vec<Vec<u8>>,
    /// The schema of its arguments.
    pub(in crate::guide) schema: Schema,
}

impl Called {
    /// Returns the length of the longest lead that ends `text`.
    fn lead_length(&self, text: &[u8]) -> Option<usize> {
        self.leads.iter().filter(|lead| text.ends_with(lead)).map(Vec::len).max()
    }
}

#[derive(Debug, Clone)]
pub(in crate::guide) struct CallCursor {
    functions: Arc<[Called]>,
    /// The bytes since the last arguments.
    layout: Vec<u8>,
    arguments: Option<Cursor>,
    /// Number of calls before the present one.
    calls: usize,
}

impl CallCursor {
    pub(in crate::guide) fn new(functions: Vec<Called>) -> Self {
        Self { functions: functions.into(), layout: Vec::new(), arguments: None, calls: 0 }
    }

    /// The arguments that the text is in.
    pub(super) fn arguments(&self) -> Option<&Cursor> {
        self.arguments.as_ref()
    }

    /// The field of the value that begins with `byte`.
    pub(super) fn field(&self, byte: u8) -> Option<SchemaField> {
        Some(SchemaField { call: Some(self.calls), ..self.arguments.as_ref()?.field(byte)? })
    }

    pub(super) fn read_byte(&mut self, byte: u8) {
        if let Some(arguments) = &mut self.arguments {
            arguments.read_byte(byte);
            if arguments.is_complete() {
                self.arguments = None;
                self.calls += 1;
            }
            return;
        }
        self.layout.push(byte);
        // The name of a function may end with the name of another one.
        let called = self
            .functions
            .iter()
            .filter_map(|function| Some((function.lead_length(&self.layout)?, function)));
        if let Some((_, function)) = called.max_by_key(|(length, _)| *length) {
            self.arguments = Some(Cursor::new(function.schema.clone()));
            self.layout.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use ntl_core::guide::FieldEffect;
    use serde_json::json;

    use super::super::Follower;
    use super::*;

    #[test]
    fn the_numbers_in_arguments_have_the_place_of_their_call() {
        let called = |name: &str, keyword: &str| Called {
            leads: vec![format!("{name}\", \"arguments\": ").into_bytes()],
            schema: Schema::new(
                &json!({"properties": {keyword: {"type": "integer"}, "list": {"items": {"type": "number"}}}}),
            ),
        };
        let mut follower =
            Follower::Calls(CallCursor::new(vec![called("rate", "stars"), called("overrate", "points")]));
        let text = concat!(
            r#"<call 1>{"name": "rate", "arguments": {"stars": 4, "text": "5}", "points": 1}}"#,
            r#" 6 {"name": "overrate", "arguments": {"points": 7, "list": [1.5, 2]}} 8"#
        );
        let mut found = Vec::new();
        for &byte in text.as_bytes() {
            if let FieldEffect::Begins { field, .. } = follower.effect(&[byte]) {
                found.push((field.call, field.path));
            }
            follower.read(&[byte]);
        }
        let at = |call: usize, place: &str| (Some(call), format!("$.{place}"));
        assert_eq!(found, [at(0, "stars"), at(1, "points"), at(1, "list[0]"), at(1, "list[1]")]);
    }
}
