//! The grammar of a text that calls functions: the layout of the model's format around the schemas of the
//! arguments.

use std::fmt::Write as _;

use ntl_core::guide::GuideError;
use serde_json::Value;

use super::fields::{Called, Schema};
use super::json_schema::{self, Whitespace};
use crate::tools::{CallLayout, CallSymbol};

/// The calls that a text may have.
#[derive(Debug, Clone, PartialEq)]
pub struct CallGrammar {
    pub layout: CallLayout,
    /// The functions by name, with the schemas of their arguments.
    pub functions: Vec<(String, Value)>,
    pub calls_max: usize,
    /// The text that may take the place of the calls.
    pub answer: Option<Answer>,
}

/// A text without calls.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Any text. Calls may follow it.
    Text,
    /// JSON that matches a schema.
    Json { schema: Value, whitespace: Whitespace },
}

impl CallGrammar {
    /// Returns the same grammar with schemas that the library applies exactly. Their objects admit no
    /// unlisted properties, because small models would invent more of them until the text is cut.
    pub(super) fn prepared(&self) -> Result<Self, GuideError> {
        let mut grammar = self.clone();
        for (name, schema) in &mut grammar.functions {
            *schema = json_schema::prepared(&json_schema::closed(schema))
                .map_err(|GuideError(reason)| GuideError(format!("`{name}`: {reason}")))?;
        }
        if let Some(Answer::Json { schema, whitespace }) = &mut grammar.answer {
            *schema = json_schema::prepared(schema)?;
            json_schema::check_whitespace(whitespace)?;
        }
        Ok(grammar)
    }

    /// The functions, with all that may precede their arguments in a text. `bytes` returns the bytes of a
    /// special token.
    pub(super) fn called<'a>(&self, bytes: impl Fn(u32) -> &'a [u8]) -> Vec<Called> {
        let mut functions = Vec::with_capacity(self.functions.len());
        for (name, schema) in &self.functions {
            functions.push(Called { leads: self.leads(name, &bytes), schema: Schema::new(schema) });
        }
        functions
    }

    /// The texts that may precede the arguments of a function: its name and the layout after it.
    fn leads<'a>(&self, name: &str, bytes: impl Fn(u32) -> &'a [u8]) -> Vec<Vec<u8>> {
        let mut leads = vec![name.as_bytes().to_vec()];
        for symbol in &self.layout.before_arguments {
            let next: &[u8] = match symbol {
                CallSymbol::Text(text) | CallSymbol::Marker(text) => text.as_bytes(),
                CallSymbol::Token(id) => bytes(*id),
                CallSymbol::OptionalSpace => b" ",
            };
            let longer: Vec<Vec<u8>> = leads.iter().map(|lead| [lead, next].concat()).collect();
            match symbol {
                CallSymbol::OptionalSpace => leads.extend(longer),
                _ => leads = longer,
            }
        }
        leads
    }

    /// The grammar in the library's dialect of Lark.
    pub(super) fn lark(&self, lead_in: &str) -> String {
        let CallLayout { open, before_name, before_arguments, after_arguments, separator, close } =
            &self.layout;
        let opening = [&open[..], before_name].concat();
        let names = (0..self.functions.len()).map(|index| format!("f{index}"));
        let mut rules = vec![
            ("call", format!("{} made", symbols(before_name))),
            ("made", format!("({}) {}", names.collect::<Vec<_>>().join(" | "), symbols(after_arguments))),
            ("calls", format!("{} rest", symbols(&opening))),
        ];
        let more = match self.calls_max - 1 {
            0 => String::new(),
            more => format!("({} call){{0,{more}}}", symbols(separator)),
        };
        rules.push(("rest", format!("made {more} {}", symbols(close))));
        let start = match (&self.answer, opening.first()) {
            (None, _) => "calls",
            (Some(Answer::Json { schema, whitespace }), _) => {
                rules.push(("answer", json(schema, whitespace)));
                "(calls | answer)"
            }
            (Some(Answer::Text), Some(CallSymbol::Marker(marker))) => {
                let marker = escaped(marker);
                rules.push(("TEXT", format!("/(?s:.+)/ & ~/(?s:.*{marker}.*)/")));
                rules.push(("led[lazy]", format!("/(?s:.*){marker}/")));
                rules.push(("led_calls", format!("led {} rest", symbols(&opening[1..]))));
                "(TEXT | led_calls)"
            }
            (Some(Answer::Text), Some(CallSymbol::Token(_))) => {
                rules.push(("TEXT", "/(?s:.+)/".to_owned()));
                "(TEXT | TEXT? calls)"
            }
            // A call is the whole text, and begins with a brace.
            (Some(Answer::Text), Some(CallSymbol::Text(_) | CallSymbol::OptionalSpace) | None) => {
                rules.push(("TEXT", r"/\s*[^{\s](?s:.*)/".to_owned()));
                "(TEXT | calls)"
            }
        };
        let mut lark = format!("start: {lead_in}{start}\n");
        for (name, body) in rules {
            let _ = writeln!(lark, "{name}: {body}");
        }
        for (index, (name, schema)) in self.functions.iter().enumerate() {
            let _ = writeln!(lark, "f{index}: {} {} a{index}", quoted(name), symbols(before_arguments));
            let _ = writeln!(lark, "a{index}: {}", json(schema, &Whitespace::default()));
        }
        lark
    }
}

fn json(schema: &Value, whitespace: &Whitespace) -> String {
    format!("%json {}", json_schema::with_whitespace(schema, whitespace))
}

fn symbols(symbols: &[CallSymbol]) -> String {
    symbols.iter().map(symbol).collect::<Vec<_>>().join(" ")
}

fn symbol(symbol: &CallSymbol) -> String {
    match symbol {
        CallSymbol::Text(text) | CallSymbol::Marker(text) => quoted(text),
        CallSymbol::OptionalSpace => "\" \"?".to_owned(),
        CallSymbol::Token(id) => format!("<[{id}]>"),
    }
}

/// A string of Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A marker in a regular expression of Lark.
fn escaped(marker: &str) -> String {
    let mut regex = String::new();
    for character in marker.chars() {
        if ['[', ']', '|', '/'].contains(&character) {
            regex.push('\\');
        }
        regex.push(character);
    }
    regex
}
