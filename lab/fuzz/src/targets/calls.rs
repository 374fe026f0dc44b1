//! Calls of functions in texts of models.

use std::sync::Arc;

use ntl_text::tools::{Guidance, ToolFormat, ToolPart};
use serde_json::{Map, Value};

use crate::{Outcome, Target};

pub(super) const CALLS: Target = Target {
    name: "calls",
    corpus: || {
        let texts = [
            "I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>\n",
            "<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"time\", \"parameters\": {}}",
            "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"time\", \"arguments\": \"{}\"}]",
            "[TOOL_CALLS]add[CALL_ID]a1[ARGS]{\"a\": {\"b\": null}}[TOOL_CALLS]time[ARGS]{}",
            "So <|tool_call|>[{\"name\": \"add\", \"arguments\": {}}, {\"arguments\": {}, \"name\": \"time\"}]",
        ];
        texts.map(|text| text.as_bytes().to_vec()).into()
    },
    words: &[
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[CALL_ID]",
        "[ARGS]",
        "{\"name\": \"add\"",
        "\"name\"",
        "\"arguments\": ",
        "\"parameters\": {",
        "add",
        "time",
        "\\\"",
        "\\u",
        "; ",
        ", ",
        "[",
        "]",
        "{",
        "}}",
        "\n\n",
    ],
    read,
};

/// Reads a text whole and by characters, which gives the same. Calls are of known functions, with a JSON
/// object.
fn read(input: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(input);
    let mut has_calls = false;
    for format in ToolFormat::ALL {
        let whole = separated(format, [text.as_ref()]);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(whole, separated(format, characters.iter().map(String::as_str)), "{format:?}");
        for (name, arguments) in &whole.1 {
            assert!(["add", "time"].contains(&name.as_str()), "{name}");
            assert!(serde_json::from_str::<Map<String, Value>>(arguments).is_ok(), "{arguments}");
        }
        has_calls |= !whole.1.is_empty();
        if whole.1.is_empty() {
            assert_eq!(whole.0, text, "{format:?}");
        }
    }
    if has_calls { Outcome::Accepted } else { Outcome::Refused }
}

fn separated<'a>(
    format: ToolFormat,
    pieces: impl IntoIterator<Item = &'a str>,
) -> (String, Vec<(String, String)>) {
    let functions: Arc<[String]> = ["add".to_owned(), "time".to_owned()].into();
    let mut parser = format.parser(functions, usize::MAX, Guidance::Nothing);
    let mut parts: Vec<ToolPart> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    let mut text = String::new();
    let mut calls: Vec<(String, String)> = Vec::new();
    for part in parts {
        match part {
            ToolPart::Text(more) => text.push_str(&more),
            ToolPart::Call(name) => calls.push((name, String::new())),
            ToolPart::Arguments(more) => calls.last_mut().unwrap().1.push_str(&more),
        }
    }
    (text, calls)
}
