//! Every format, on every split of texts with calls, without calls, and with broken ones.

use std::sync::Arc;

use super::*;

/// Text and calls of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    text: String,
    calls: Vec<(String, String)>,
}

impl Parsed {
    fn add(&mut self, parts: Vec<ToolPart>) {
        for part in parts {
            match part {
                ToolPart::Text(text) => self.text.push_str(&text),
                ToolPart::Call(name) => self.calls.push((name, String::new())),
                ToolPart::Arguments(more) => self.calls.last_mut().unwrap().1.push_str(&more),
            }
        }
    }
}

fn parser(format: ToolFormat, guidance: Guidance) -> ToolParser {
    let functions: Arc<[String]> = ["add".to_owned(), "get.time".to_owned()].into();
    format.parser(functions, usize::MAX, guidance)
}

fn parse<'a>(mut parser: ToolParser, pieces: impl IntoIterator<Item = &'a str>) -> Parsed {
    let mut parsed = Parsed::default();
    for piece in pieces {
        parsed.add(parser.push(piece));
    }
    parsed.add(parser.finish());
    parsed
}

fn parsed(text: &str, calls: &[(&str, &str)]) -> Parsed {
    let calls = calls.iter().map(|&(name, arguments)| (name.to_owned(), arguments.to_owned()));
    Parsed { text: text.to_owned(), calls: calls.collect() }
}

/// Texts with the answers that they are; `None` for text alone.
type Cases<'a> = &'a [(&'a str, Option<(&'a str, &'a [(&'a str, &'a str)])>)];

const ONE: (&str, &str) = ("add", r#"{"a": 1, "b": [2.50, "}\"{"]}"#);

const HERMES: Cases<'_> = &[
    ("Just <b>text</b> {\"name\": \"add\"} <tool", None),
    ("", None),
    (" \n", None),
    (
        "I add.\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2.50, \"}\\\"{\"]}}\n</tool_call>",
        Some(("I add.", &[ONE])),
    ),
    (
        "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>\n<tool_call>\n{\"arguments\": {\"x\":\"é\"}, \"name\": \
         \"get.time\"}\n</tool_call>\n",
        Some(("", &[("add", "{}"), ("get.time", "{\"x\":\"é\"}")])),
    ),
    (
        "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call> and more",
        Some((" and more", &[("add", "{}")])),
    ),
    ("<tool_call>{\"name\": \"get.time\"}", Some(("", &[("get.time", "{}")]))),
    ("<tool_call>{\"name\": \"get.time\"}\n</tool_c", Some(("", &[("get.time", "{}")]))),
    ("<tool_call>{\"name\": \"get.time\"}</tool_call> <", Some((" <", &[("get.time", "{}")]))),
    ("<tool_call>{\"name\": \"get.time\"}</tool> x", Some(("</tool> x", &[("get.time", "{}")]))),
    (
        "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        Some(("", &[("add", "{\"a\": 1}")])),
    ),
    ("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1", None),
    ("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}</tool_call> x", None),
    ("<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>", None),
    ("<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>", None),
    ("<tool_call> add(1, 2) </tool_call>", None),
    (
        "<tool_call>{oops}</tool_call><tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>",
        Some(("<tool_call>{oops}</tool_call>", &[("add", "{}")])),
    ),
    (
        "<tool_call><tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>",
        Some(("<tool_call>", &[("add", "{}")])),
    ),
];

const LLAMA: Cases<'_> = &[
    ("The {\"name\": \"add\", \"parameters\": {}}", None),
    ("", None),
    (" {\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": [2.50, \"}\\\"{\"]}}", Some(("", &[ONE]))),
    (
        "<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"get.time\", \"parameters\": {}}\n",
        Some(("", &[("add", "{}"), ("get.time", "{}")])),
    ),
    ("{\"type\": \"function\", \"name\": \"add\", \"parameters\": {}}", Some(("", &[("add", "{}")]))),
    ("{\"answer\": 42}", None),
    ("{\"name\": \"Ada\", \"parameters\": {}} is JSON", None),
    ("<|python_tag|>print(1)", None),
    ("{\"name\": \"add\", \"parameters\": {}};", Some(("", &[("add", "{}")]))),
    ("{\"name\": \"add\", \"parameters\": {}}; then", Some(("; then", &[("add", "{}")]))),
    ("{\"name\": \"add\", \"param", None),
];

const MISTRAL: Cases<'_> = &[
    ("[TOOL] [1]", None),
    (
        "Sure. [TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2.50, \"}\\\"{\"]}}]",
        Some(("Sure.", &[ONE])),
    ),
    (
        "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {}} , {\"name\": \"get.time\", \"arguments\": {\"z\": null}}]",
        Some(("", &[("add", "{}"), ("get.time", "{\"z\": null}")])),
    ),
    (
        "[TOOL_CALLS]add[ARGS]{\"a\": {\"b\": 1}}[TOOL_CALLS]get.time[CALL_ID]a1b2[ARGS]{}",
        Some(("", &[("add", "{\"a\": {\"b\": 1}}"), ("get.time", "{}")])),
    ),
    ("[TOOL_CALLS]add{\"a\": 1}", Some(("", &[("add", "{\"a\": 1}")]))),
    ("[TOOL_CALLS]unknown[ARGS]{}", None),
    ("[TOOL_CALLS]add[ARGS]{\"a\": tru}", None),
    ("[TOOL_CALLS]add[ARGS]", None),
    ("[TOOL_CALLS][]", None),
    (
        "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {}}, {\"name\": \"no\"}]",
        Some((", {\"name\": \"no\"}]", &[("add", "{}")])),
    ),
];

const GRANITE: Cases<'_> = &[
    ("<|tool_", None),
    ("<|tool_call|> no list", None),
    (
        "<|tool_call|>[{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2.50, \"}\\\"{\"]}}]",
        Some(("", &[ONE])),
    ),
    (
        "Well <|tool_call|> [{\"arguments\": {}, \"name\": \"add\"},\n{\"name\": \"get.time\", \"arguments\": {}}] ",
        Some(("Well", &[("add", "{}"), ("get.time", "{}")])),
    ),
    ("<|tool_call|>[{\"name\": \"add\", \"arguments\": {}}", Some(("", &[("add", "{}")]))),
    ("<|tool_call|>[{\"name\": \"add\", \"arguments\": {}}, ", Some(("", &[("add", "{}")]))),
    ("<|tool_call|>[{\"name\": \"add\"", None),
];

const ALL: [(ToolFormat, Cases<'_>); 4] = [
    (ToolFormat::Hermes, HERMES),
    (ToolFormat::Llama3Json, LLAMA),
    (ToolFormat::Mistral, MISTRAL),
    (ToolFormat::Granite, GRANITE),
];

#[test]
fn texts_are_separated_from_calls_on_every_split() {
    for (format, cases) in ALL {
        for (text, want) in cases {
            let want = want.map_or_else(|| parsed(text, &[]), |(text, calls)| parsed(text, calls));
            assert_eq!(parse(parser(format, Guidance::Nothing), [*text]), want, "{format:?}: {text}");
            let mut characters = [0; 4];
            let mut one_by_one = parser(format, Guidance::Nothing);
            let mut got = Parsed::default();
            for character in text.chars() {
                got.add(one_by_one.push(character.encode_utf8(&mut characters)));
            }
            got.add(one_by_one.finish());
            assert_eq!(got, want, "{format:?} by characters: {text}");
            for at in (0..text.len()).filter(|&at| text.is_char_boundary(at)) {
                let (one, two) = text.split_at(at);
                assert_eq!(
                    parse(parser(format, Guidance::Nothing), [one, two]),
                    want,
                    "{format:?}: {one} | {two}"
                );
            }
        }
    }
}

#[test]
fn arguments_of_guided_calls_arrive_as_they_are_written() {
    for (format, text) in [
        (
            ToolFormat::Hermes,
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"xyz\"}}\n</tool_call>",
        ),
        (ToolFormat::Llama3Json, "{\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": \"xyz\"}}"),
        (
            ToolFormat::Mistral,
            "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"xyz\"}}]",
        ),
        (ToolFormat::Mistral, "[TOOL_CALLS]add[ARGS]{\"a\": 1, \"b\": \"xyz\"}"),
        (
            ToolFormat::Granite,
            "<|tool_call|>[{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"xyz\"}}]",
        ),
    ] {
        let want = parsed("", &[("add", "{\"a\": 1, \"b\": \"xyz\"}")]);
        for at in 0..=text.len() {
            let (one, two) = text.split_at(at);
            assert_eq!(parse(parser(format, Guidance::Calls), [one, two]), want, "{format:?}: {one} | {two}");
        }
        let begun = &text[..text.find("xyz").unwrap()];
        let mut guided = parser(format, Guidance::Calls);
        let mut got = Parsed::default();
        got.add(guided.push(begun));
        assert_eq!(got, parsed("", &[("add", "{\"a\": 1, \"b\": \"")]), "{format:?}");
        // `max_tokens` ends it here.
        got.add(guided.finish());
        assert_eq!(got, parsed("", &[("add", "{\"a\": 1, \"b\": \"")]), "{format:?}");
    }
}

#[test]
fn a_guided_call_that_ends_before_its_arguments_is_not_text() {
    let call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let begun = "\n<tool_call>\n{\"name\":";
    let made = &[("add", "{\"a\": 1}")];
    assert_eq!(parse(parser(ToolFormat::Hermes, Guidance::Calls), [call, begun]), parsed("", made));
    assert_eq!(parse(parser(ToolFormat::Hermes, Guidance::Nothing), [call, begun]), parsed(begun, made));
}

#[test]
fn a_text_of_calls_alone_that_ends_inside_the_first_opening_is_empty() {
    for (format, text) in [
        (ToolFormat::Hermes, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}"),
        (ToolFormat::Llama3Json, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}"),
        (ToolFormat::Mistral, "[TOOL_CALLS]add[ARGS]{\"a\": 1}"),
        (ToolFormat::Granite, "<|tool_call|>[{\"name\": \"add\", \"arguments\": {\"a\": 1}}"),
    ] {
        for (end, _) in text.char_indices() {
            let cut = parse(parser(format, Guidance::Everything), [&text[..end]]);
            assert_eq!(cut.text, "", "{format:?}: {}", &text[..end]);
        }
        let whole = parse(parser(format, Guidance::Everything), [text]);
        assert_eq!(whole, parsed("", &[("add", "{\"a\": 1}")]), "{format:?}");
    }
}

#[test]
fn calls_beyond_the_maximum_are_dropped() {
    let text = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
    let functions: Arc<[String]> = ["add".to_owned()].into();
    let one = ToolFormat::Hermes.parser(functions, 1, Guidance::Nothing);
    assert_eq!(parse(one, [text, text, text]), parsed("", &[("add", "{}")]));
}

#[test]
fn templates_name_their_format() {
    for (template, want) in [
        ("{{ '<tool_call>' }}", Some(ToolFormat::Hermes)),
        ("<tool_call><function=name>", None),
        ("<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>", None),
        ("<tool_call>name<tool_sep>", None),
        ("[TOOL_CALLS]", Some(ToolFormat::Mistral)),
        ("<|tool_call|>", Some(ToolFormat::Granite)),
        ("<|eot_id|> {\"name\": x, \"parameters\": y}", Some(ToolFormat::Llama3Json)),
        ("{{ tools }}", None),
    ] {
        assert_eq!(ToolFormat::of_template(template), want, "{template}");
    }
}
