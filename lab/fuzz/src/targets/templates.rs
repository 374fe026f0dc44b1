//! Chat templates.

use std::collections::BTreeMap;

use ntl_text::chat::{ChatMessage, ChatTemplate, Conversation};
use ntl_text::checkpoint::CheckpointFiles;
use serde_json::{Value, json};

use super::outcome;
use crate::corpus::file;
use crate::{Outcome, Target};

pub(super) const TEMPLATE: Target = Target {
    name: "template",
    corpus: || {
        let cases: Value =
            serde_json::from_slice(&file("models/tests/data/chat/conversations.json")).unwrap();
        let templates = cases["templates"].as_object().unwrap().values();
        templates.map(|template| template.as_str().unwrap().as_bytes().to_vec()).collect()
    },
    words: &[
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if true %}",
        "{% else %}",
        "{% endif %}",
        "{% set x = x ~ x %}",
        "{% set ns = namespace(n=0) %}",
        "{% macro f(x) %}",
        "{% endmacro %}",
        "{{ f(f(1)) }}",
        "{{ ",
        " }}",
        "{%- ",
        " -%}",
        "{# ",
        " #}",
        "range(100000)",
        "* 99999",
        "| length",
        "| tojson(indent=9)",
        "| join('x')",
        "| sort",
        "| reverse",
        "| map('upper')",
        "| replace('x', 'yy')",
        "| indent(9999)",
        "| batch(9)",
        "| list",
        "| format(1)",
        "'%9999999999d'",
        ".split('x')",
        ".strip()",
        "[::-1]",
        "[1:]",
        "messages",
        "m['content']",
        "loop.index0",
        "{% break %}",
        "{% continue %}",
        "raise_exception('x')",
        "strftime_now('%Y')",
        "not",
        "in",
        "is defined",
        "~",
        "**",
        "//",
        "%",
        "9223372036854775807",
        "{% generation %}",
        "{% call f(1) %}",
        "{% filter upper %}",
        "{% raw %}",
        "{% include 'x' %}",
        "dict(a=1)",
        "cycler(1, 2)",
        "joiner()",
        "{% set ns = namespace(a=[]) %}",
        "{% set ns.a = [ns.a, ns.a] %}",
        "{% set ns.a = {'b': ns.a} %}",
        "{% set ns.a = ns.a + ns.a %}",
        "{% set ns.a = ns %}",
        "{% for i in range(60) %}",
        "{% for i in ns.a recursive %}",
        "{{ loop(ns.a) }}",
        "loop.changed(ns.a)",
        "loop.changed(loop)",
        "loop.cycle()",
        "'%(é)s'|format(ns)",
        "[::-1]",
        "{% set x %}",
        "{% endset %}",
        "{% autoescape true %}",
        "{% block a %}",
        "m.content * 9999",
        "ns.a == ns.a",
        "| groupby('a')",
        "| trim('xy')",
        "| indent(width=9999)",
        "| selectattr('a', 'in', ns.a)",
        "| default(ns.a)",
        "| string",
        ".count('')",
        "'{0}{0}'.format(m)",
        "f(*ns.a, **ns)",
    ],
    read,
};

/// Renders a conversation.
fn read(input: &[u8]) -> Outcome {
    let files = CheckpointFiles::memory("fuzzed", [("chat_template.jinja".to_owned(), input.to_vec())]);
    let template =
        match ChatTemplate::open(&files, BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())])) {
            Ok(template) => template.unwrap(),
            Err(error) => return outcome(Err::<(), _>(error), "chat_template.jinja"),
        };
    let conversation = Conversation {
        messages: vec![
            ChatMessage::new("system", "Be brief."),
            ChatMessage::new("user", " What is 3 x 4?\n"),
            ChatMessage::new("assistant", "12"),
            ChatMessage::new("user", "é"),
        ],
        tools: Vec::new(),
        documents: Vec::new(),
        add_generation_prompt: true,
        continue_final_message: false,
        variables: BTreeMap::from([("enable_thinking".to_owned(), json!(false))]),
    };
    outcome(template.render(&conversation), "chat template")
}
