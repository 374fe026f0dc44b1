//! The position in a JSON text, followed byte by byte.
//!
//! The guide has checked the text, so the cursor only distinguishes values, names and structure. It reads
//! bytes, because a token may end inside a character.

use std::sync::Arc;

use ntl_core::guide::SchemaField;

use super::numbers::begins_number;
use super::{Place, Schema};

#[derive(Debug, Clone)]
pub(in crate::guide) struct Cursor {
    schema: Schema,
    /// The objects and lists around the position, from the outside in.
    containers: Vec<Container>,
    state: State,
}

#[derive(Debug, Clone)]
struct Container {
    place: Arc<Place>,
    position: Position,
}

/// The position in an object or a list.
#[derive(Debug, Clone)]
enum Position {
    /// The name of the present value, as the text has it without quotes, and the names before it.
    Object {
        name: Vec<u8>,
        before: Arc<Vec<String>>,
    },
    List {
        index: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value comes next, or the end of a list.
    BeforeValue,
    /// A name comes next, or the end of an object.
    BeforeName,
    Name {
        is_escaped: bool,
    },
    AfterName,
    String {
        is_escaped: bool,
    },
    Number,
    /// `true`, `false` or `null`.
    Word,
    AfterValue,
}

impl Cursor {
    pub(in crate::guide) fn new(schema: Schema) -> Self {
        Self { schema, containers: Vec::new(), state: State::BeforeValue }
    }

    /// Returns whether an object or a list around everything has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.containers.is_empty() && self.state == State::AfterValue
    }

    /// Returns whether the text ends with a number that `byte` would continue.
    pub(super) fn continues_number(&self, byte: u8) -> bool {
        self.state == State::Number && continues_number(byte)
    }

    /// Returns whether the text is before or in a name of an object that has other names.
    pub(super) fn is_at_further_name(&self) -> bool {
        let last = self.containers.last().map(|container| &container.position);
        let is_further = matches!(last, Some(Position::Object { before, .. }) if !before.is_empty());
        is_further && matches!(self.state, State::BeforeName | State::Name { .. })
    }

    /// Returns whether the bytes complete a name that the object has already.
    pub(super) fn repeats_name(&self, bytes: &[u8]) -> bool {
        if !bytes.contains(&b'"') {
            return false;
        }
        let mut cursor = self.clone();
        for &byte in bytes {
            cursor.read_byte(byte);
            if cursor.state == State::AfterName {
                break;
            }
        }
        match cursor.containers.last() {
            Some(Container { position: Position::Object { name, before }, .. }) => {
                cursor.state == State::AfterName && before.contains(&unescaped(name))
            }
            _ => false,
        }
    }

    /// Returns whether the text is inside a string or a word that `byte` would continue.
    pub(super) fn continues_text(&self, byte: u8) -> bool {
        match self.state {
            State::String { .. } => true,
            State::Word => byte.is_ascii_alphabetic(),
            _ => false,
        }
    }

    /// Returns whether a value, or the end of a list, comes next.
    pub(super) fn is_before_value(&self) -> bool {
        self.state == State::BeforeValue
    }

    /// The field of the value that begins with `byte`.
    pub(super) fn field(&self, byte: u8) -> Option<SchemaField> {
        if !self.is_before_value() || !begins_scalar(byte) {
            return None;
        }
        let values = self.schema.field_values(&self.place(), byte)?;
        Some(SchemaField { call: None, path: self.path(), values, may_follow_space: true })
    }

    /// The place of the next value.
    fn place(&self) -> Place {
        match self.containers.last() {
            None => self.schema.root(),
            Some(Container { place, position: Position::Object { name, .. } }) => {
                self.schema.property(place, &unescaped(name))
            }
            Some(Container { place, position: Position::List { index } }) => self.schema.item(place, *index),
        }
    }

    /// The JSONPath of the next value.
    fn path(&self) -> String {
        let mut path = "$".to_owned();
        for container in &self.containers {
            path += &match &container.position {
                Position::List { index } => format!("[{index}]"),
                Position::Object { name, .. } => {
                    let name = unescaped(name);
                    let mut characters = name.chars();
                    let is_plain =
                        characters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
                            && characters.all(|character| character.is_alphanumeric() || character == '_');
                    if is_plain {
                        format!(".{name}")
                    } else {
                        format!("['{}']", name.replace('\\', "\\\\").replace('\'', "\\'"))
                    }
                }
            };
        }
        path
    }

    pub(super) fn read_byte(&mut self, byte: u8) {
        self.state = match self.state {
            State::Number if continues_number(byte) => State::Number,
            State::Word if byte.is_ascii_alphabetic() => State::Word,
            State::String { is_escaped: true } => State::String { is_escaped: false },
            State::String { .. } => match byte {
                b'"' => State::AfterValue,
                _ => State::String { is_escaped: byte == b'\\' },
            },
            State::Name { is_escaped } => match byte {
                b'"' if !is_escaped => State::AfterName,
                _ => {
                    if let Some(Container { position: Position::Object { name, .. }, .. }) =
                        self.containers.last_mut()
                    {
                        name.push(byte);
                    }
                    State::Name { is_escaped: byte == b'\\' && !is_escaped }
                }
            },
            state => match byte {
                b' ' | b'\t' | b'\r' | b'\n' if matches!(state, State::Number | State::Word) => {
                    State::AfterValue
                }
                b' ' | b'\t' | b'\r' | b'\n' => state,
                b'{' => self.enter(Position::Object { name: Vec::new(), before: Arc::default() }),
                b'[' => self.enter(Position::List { index: 0 }),
                b'}' | b']' => {
                    self.containers.pop();
                    State::AfterValue
                }
                b',' => self.next_value(),
                b':' => State::BeforeValue,
                b'"' if state == State::BeforeName => State::Name { is_escaped: false },
                b'"' => State::String { is_escaped: false },
                _ if continues_number(byte) && !byte.is_ascii_alphabetic() => State::Number,
                _ => State::Word,
            },
        };
    }

    fn enter(&mut self, position: Position) -> State {
        let place = Arc::new(self.place());
        let is_object = matches!(position, Position::Object { .. });
        self.containers.push(Container { place, position });
        if is_object { State::BeforeName } else { State::BeforeValue }
    }

    /// After a comma.
    fn next_value(&mut self) -> State {
        match self.containers.last_mut().map(|container| &mut container.position) {
            Some(Position::Object { name, before }) => {
                Arc::make_mut(before).push(unescaped(name));
                name.clear();
                State::BeforeName
            }
            Some(Position::List { index }) => {
                *index += 1;
                State::BeforeValue
            }
            None => State::AfterValue,
        }
    }
}

/// Returns whether a number, a string, a boolean or null begins with `byte`.
fn begins_scalar(byte: u8) -> bool {
    begins_number(byte) || matches!(byte, b'"' | b't' | b'f' | b'n')
}

fn continues_number(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E')
}

/// A name without its escapes.
fn unescaped(name: &[u8]) -> String {
    let quoted = [b"\"", name, b"\""].concat();
    serde_json::from_slice(&quoted).unwrap_or_else(|_| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use ntl_core::guide::{FieldEffect, FieldValues};
    use ntl_core::numbers::TokenBytes;
    use serde_json::{Value, json};

    use super::super::Follower;
    use super::*;

    /// The paths of all numbers in `text` that the schema names, with the nearest admitted number to 2.6.
    fn fields(schema: &Value, text: &str) -> Vec<String> {
        let mut cursor = Follower::Json(Cursor::new(Schema::new(schema)));
        let mut found = Vec::new();
        for &byte in text.as_bytes() {
            if let FieldEffect::Begins { field, .. } = cursor.effect(&[byte]) {
                found.push(format!(
                    "{} {}",
                    field.path,
                    field.values.numbers().unwrap().nearest(2.6, 6).unwrap().text
                ));
            }
            cursor.read(&[byte]);
        }
        assert_eq!(cursor.json().unwrap().containers.len(), 0);
        found
    }

    #[test]
    fn every_named_number_has_its_path_and_its_schema() {
        let integer = json!({"type": "integer"});
        let object = json!({
            "properties": {
                "price": {"type": "number"}, "a b": {"type": "integer"}, "it's": {"minimum": 9},
                "word": {"type": "string"}, "any": {}, "maybe": {"type": ["integer", "null"]},
                "list": {"items": {"type": "integer"}}, "pair": {"prefixItems": [{"type": "number"}], "items": {"maximum": 1}},
                "room": {"$ref": "#/$defs/room"}
            },
            "patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": {"maximum": 2},
            "$defs": {"room": {"properties": {"area": {"type": "number"}, "inner": {"$ref": "#/$defs/room"}}}}
        });
        let union =
            json!({"anyOf": [{"type": "integer"}, {"type": "number", "minimum": 2.5}, {"type": "null"}]});
        let all = json!({"allOf": [{"properties": {"x": {"type": "integer"}}}, {"properties": {"x": {"minimum": 5}}}]});
        let kinds = json!({"oneOf": [
            {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}},
            {"properties": {"kind": {"const": "b"}, "x": {"type": "string"}}}
        ]});
        let loop_ = json!({"anyOf": [{"$ref": "#"}, {"type": "integer"}]});
        let older = json!({"items": [{"type": "integer"}], "additionalItems": {"type": "number"}});
        for (schema, text, want) in [
            (&integer, " 12", &["$ 3"][..]),
            (
                &object,
                r#"{"price": 1.5, "a b":-2, "it's": 10}"#,
                &["$.price 2.6", "$['a b'] 3", "$['it\\'s'] 9"],
            ),
            (&object, r#"{"word": "1, 2: 3", "any": 4, "maybe": null, "maybe": 5}"#, &["$.maybe 3"]),
            (
                &object,
                "{\"list\": [1,\n 22], \"pair\": [3, 4, [5]]}",
                &["$.list[0] 3", "$.list[1] 3", "$.pair[0] 2.6", "$.pair[1] 1"],
            ),
            (
                &object,
                r#"{"room": {"inner": {"area": 1}, "area": 2}}"#,
                &["$.room.inner.area 2.6", "$.room.area 2.6"],
            ),
            (&object, r#"{"\u0070rice": 1, "pri\"ce": 3}"#, &["$.price 2.6", "$['pri\"ce'] 3"]),
            (&union, "7", &["$ 2.6"]),
            (&all, r#"{"x": 7}"#, &["$.x 5"]),
            (&kinds, r#"{"kind": "a", "x": 7}"#, &["$.x 3"]),
            (&loop_, "7", &["$ 3"]),
            (&older, "[7, 8.5, true, 9]", &["$[0] 3", "$[1] 2.6", "$[3] 2.6"]),
            (&json!(true), "[1]", &[]),
        ] {
            assert_eq!(fields(schema, text), want, "{text}");
        }
    }

    #[test]
    fn a_token_begins_a_number_alone_or_after_one_space() {
        let schema = json!({"properties": {"x": {"type": "integer"}}});
        let mut cursor = Follower::Json(Cursor::new(Schema::new(&schema)));
        assert_eq!(cursor.effect(b"{\"x\":1"), FieldEffect::BeginsInside);
        assert_eq!(cursor.effect(b"{\"y\":1"), FieldEffect::None);
        cursor.read(b"{\"x\":");
        let has_space = |bytes: &[u8]| match cursor.effect(bytes) {
            FieldEffect::Begins { has_space, .. } => Some(has_space),
            _ => None,
        };
        assert_eq!([has_space(b"-"), has_space(b" 12"), has_space(b" ")], [Some(false), Some(true), None]);
        assert_eq!(cursor.effect(b"\n 1"), FieldEffect::BeginsInside);
        cursor.read(b" 12");
        assert_eq!([cursor.effect(b"3}"), cursor.effect(b"}")], [FieldEffect::Continues, FieldEffect::None]);
        assert!(cursor.continues_number(b'.') && !cursor.continues_number(b','));
        cursor.read(b"\n");
        assert!(!cursor.continues_number(b'.'));
    }

    #[test]
    fn listed_values_are_fields_where_no_other_value_is_admitted() {
        let schema = json!({"properties": {
            "color": {"enum": ["red", "blue \"sky\""]}, "ok": {"type": "boolean"}, "only": {"const": "x"}, "any": {},
            "maybe": {"anyOf": [{"const": "no"}, {"type": "null"}]}, "mixed": {"enum": ["none", 1]},
            "open": {"anyOf": [{"const": "a"}, {"type": "string"}]}, "list": {"items": {"$ref": "#/$defs/side"}},
            "deep": {"enum": ["x", {"y": 1}]}
        }, "$defs": {"side": {"type": ["string", "null"], "enum": ["l", "r", 3]}}});
        let text = r#"{"color": "red", "ok": false, "only": "x", "any": true, "maybe": null, "mixed": "none", "mixed": 1, "open": "a", "list": ["l", "r"], "deep": "x"}"#;
        let tokens = Arc::new(TokenBytes::new([]));
        let mut follower = Follower::Json(Cursor::new(Schema::new(&schema).with_listed(&tokens)));
        let mut found = Vec::new();
        for &byte in text.as_bytes() {
            if let FieldEffect::Begins { field, .. } = follower.effect(&[byte]) {
                let values = match &field.values {
                    FieldValues::Listed(values) => values.texts().join(" "),
                    FieldValues::Numbers(_) => "number".to_owned(),
                };
                found.push(format!("{} {values}", field.path));
            }
            follower.read(&[byte]);
        }
        assert_eq!(
            found,
            [
                r#"$.color "red" "blue \"sky\"""#,
                "$.ok true false",
                r#"$.maybe "no" null"#,
                "$.mixed number",
                r#"$.list[0] "l" "r""#,
                r#"$.list[1] "l" "r""#,
            ]
        );
        let mut follower = Follower::Json(Cursor::new(Schema::new(&schema).with_listed(&tokens)));
        assert_eq!(follower.effect(b"{\"ok\":true"), FieldEffect::BeginsInside);
        follower.read(b"{\"color\": \"re");
        assert_eq!(follower.effect(b"d\""), FieldEffect::Continues);
        assert_eq!(follower.effect(b"d\",\"ok\":t"), FieldEffect::BeginsInside);
        follower.read(b"d\"");
        assert_eq!(follower.effect(b", "), FieldEffect::None);
    }

    #[test]
    fn a_schema_names_numbers_or_not() {
        let names = |schema: Value| Schema::new(&schema).names_numbers();
        assert!(names(json!({"properties": {"a": {"items": {"type": ["integer", "null"]}}}})));
        assert!(names(json!({"$defs": {"x": {"enum": ["a", 1]}}, "$ref": "#/$defs/x"})));
        assert!(!names(json!({"properties": {"a": {"type": "string", "maxLength": 3}}})));
        assert!(!names(json!(true)));
    }
}
