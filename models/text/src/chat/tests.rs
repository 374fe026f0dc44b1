//! Compares templates with Hugging Face (`tests/data/chat`, made by `make.py` there), and tests where they
//! are found.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::*;
use crate::tokenizer::TokenizerConfig;

pub(super) fn template_in(files: &[(&str, String)]) -> Result<Option<ChatTemplate>, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let files = CheckpointFiles::folder(folder.path()).unwrap();
    let specials = TokenizerConfig::read(&files).unwrap().named;
    ChatTemplate::open(&files, specials)
}

fn config(fields: &Json) -> (&'static str, String) {
    ("tokenizer_config.json", fields.to_string())
}

pub(super) fn say(template: &ChatTemplate, text: &str) -> Result<String, ChatError> {
    template.render(&Conversation {
        messages: vec![ChatMessage::new("user", text)],
        tools: Vec::new(),
        documents: Vec::new(),
        add_generation_prompt: true,
        continue_final_message: false,
        variables: BTreeMap::new(),
    })
}

#[test]
fn conversations_are_rendered_like_hugging_face() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/chat/conversations.json");
    let golden: Json = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 72);
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let fields = json!({"chat_template": golden["templates"][name], "bos_token": "<s>",
            "eos_token": {"content": "</s>"}, "pad_token": null});
        let template = template_in(&[config(&fields)]).unwrap().unwrap();
        let messages = case["messages"].as_array().unwrap().iter().map(|message| ChatMessage {
            role: message["role"].as_str().unwrap().to_owned(),
            content: message["content"].as_str().map(str::to_owned),
            name: None,
            tool_calls: message["tool_calls"].as_array().cloned().unwrap_or_default(),
            tool_call_id: message["tool_call_id"].as_str().map(str::to_owned),
        });
        let mut options = case["options"].as_object().unwrap().clone();
        let add_generation_prompt = options.remove("add_generation_prompt").unwrap().as_bool().unwrap();
        let variables = options.into_iter().collect();
        let conversation = Conversation {
            messages: messages.collect(),
            tools: case["tools"].as_array().cloned().unwrap_or_default(),
            documents: Vec::new(),
            add_generation_prompt,
            continue_final_message: false,
            variables,
        };
        let got = template.render(&conversation);
        let what = format!("{name}, {}, {}", case["about"], case["options"]);
        match case["raises"].as_str() {
            None => assert_eq!(got.unwrap(), case["text"].as_str().unwrap(), "{what}"),
            Some(reason) => assert_eq!(got, Err(ChatError::Refused(reason.to_owned())), "{what}"),
        }
    }
}

#[test]
fn the_template_is_found_in_every_supported_location() {
    let named = |names: &[&str]| {
        let all: Vec<Json> = names.iter().map(|name| json!({"name": name, "template": name})).collect();
        config(&json!({"chat_template": all}))
    };
    for (files, want) in [
        (vec![], None),
        (vec![config(&json!({"chat_template": null}))], None),
        (vec![config(&json!({"chat_template": "one"}))], Some("one")),
        (vec![named(&["rag", "default"])], Some("default")),
        (vec![named(&["rag"])], Some("rag")),
        (vec![named(&["rag", "tool_use"])], None),
        (
            vec![config(&json!({"chat_template": "one"})), ("chat_template.jinja", "file\n".into())],
            Some("file"),
        ),
        (
            vec![
                ("chat_template.jinja", "{{ bos_token }}{{ eos_token }}".into()),
                ("special_tokens_map.json", r#"{"bos_token": {"content": "B"}, "eos_token": "E"}"#.into()),
            ],
            Some("BE"),
        ),
    ] {
        let text = template_in(&files).unwrap().map(|template| say(&template, "x").unwrap());
        assert_eq!(text.as_deref(), want, "{files:?}");
    }
    let error = template_in(&[config(&json!({"chat_template": 5}))]).unwrap_err().to_string();
    assert!(error.ends_with("field `chat_template`: is neither a text nor a list of named texts"), "{error}");
}

#[test]
fn documents_are_for_templates_that_read_them() {
    let document = [("title", "a"), ("text", "b")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    let with_document = |source: &str| {
        let files = [config(&json!({"chat_template": source}))];
        template_in(&files).unwrap().unwrap().render(&Conversation {
            messages: Vec::new(),
            tools: Vec::new(),
            documents: vec![BTreeMap::from(document.clone())],
            add_generation_prompt: true,
            continue_final_message: false,
            variables: BTreeMap::new(),
        })
    };
    let source =
        "{% for document in documents or [] %}{{ document.title }}: {{ document['text'] }}{% endfor %}";
    assert_eq!(with_document(source).unwrap(), "a: b");
    assert_eq!(with_document("{{ messages }}"), Err(ChatError::NoDocuments));
}

#[test]
fn a_conversation_with_tools_uses_the_template_for_them() {
    let with_tools = |template: &ChatTemplate| {
        template.render(&Conversation {
            messages: vec![
                ChatMessage {
                    role: "user".to_owned(),
                    content: Some("x".to_owned()),
                    ..ChatMessage::default()
                },
                ChatMessage {
                    role: "assistant".to_owned(),
                    tool_calls: vec![json!({"function": {"name": "f", "arguments": {}}})],
                    ..ChatMessage::default()
                },
            ],
            tools: vec![json!({"type": "function", "function": {"name": "f"}})],
            documents: Vec::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            variables: BTreeMap::new(),
        })
    };
    let open = |stored: Json| template_in(&[config(&json!({"chat_template": stored}))]).unwrap().unwrap();
    let named = |name: &str, template: &str| json!({"name": name, "template": template});
    let both = open(json!([named("default", "plain"), named("tool_use", "{{ tools[0].function.name }}")]));
    assert_eq!((say(&both, "x").unwrap(), with_tools(&both)), ("plain".to_owned(), Ok("f".to_owned())));
    assert_eq!((both.source(), both.tools_source()), ("plain", "{{ tools[0].function.name }}"));
    assert_eq!(with_tools(&open(json!("{{ messages[0].content }}"))), Err(ChatError::NoTools));
    // A template that concatenates a content of null gets an empty one.
    let source = "{% if tools %}{% endif %}{% for m in messages %}{{ m.role + m.content }} {% endfor %}";
    assert_eq!(with_tools(&open(json!(source))).unwrap(), "userx assistant ");
}

#[test]
fn training_marks_have_no_effect() {
    let source = "a{%- generation %} b{% if true %}c{% endif %}{%- endgeneration -%} {# generation #}d";
    let template = template_in(&[("chat_template.jinja", source.to_owned())]).unwrap().unwrap();
    assert_eq!(say(&template, "x").unwrap(), "a bcd");
}

#[test]
fn the_date_is_written_in_the_requested_format() {
    let template = template_in(&[("chat_template.jinja", "{{ strftime_now('%Y') }}".to_owned())]);
    let year: i16 = say(&template.unwrap().unwrap(), "x").unwrap().parse().unwrap();
    assert!((2024..2200).contains(&year), "{year}");
}

#[test]
fn a_broken_template_fails_when_it_is_used_and_the_error_gives_the_reason() {
    for (source, part) in [("{% if %}", "syntax error"), ("{{ nothing.at.all }}", "undefined")] {
        let template = template_in(&[("chat_template.jinja", source.to_owned())]).unwrap().unwrap();
        let Err(ChatError::Unusable(reason)) = say(&template, "x") else { panic!("{source} is used") };
        assert!(reason.contains(part) && !reason.contains('\n'), "{source}: {reason}");
    }
}

#[test]
fn a_long_message_of_a_template_is_shortened() {
    let source = "{{ raise_exception(messages[0].content * 1000000) }}";
    let template = template_in(&[("chat_template.jinja", source.to_owned())]).unwrap().unwrap();
    assert_eq!(say(&template, "é"), Err(ChatError::Refused("é".repeat(2048) + "…")));
}

#[test]
fn a_template_with_unreadable_syntax_is_an_error() {
    for source in [
        "{% raw %} x",
        "{{ 'x",
        "{# x",
        "{% for m in mes{% raw %} endif %}",
        "{% if  }}{% endif %}{",
        "{{ ! }}",
    ] {
        let template = template_in(&[("chat_template.jinja", source.to_owned())]).unwrap().unwrap();
        assert!(matches!(say(&template, "x"), Err(ChatError::Unusable(_))), "{source}");
    }
}

#[test]
fn a_developer_is_the_system_for_templates_that_do_not_know_this_role() {
    let text = |source: &str| {
        let template = template_in(&[("chat_template.jinja", source.to_owned())]).unwrap().unwrap();
        template.render(&Conversation {
            messages: vec![ChatMessage::new("developer", "x"), ChatMessage::new("user", "x")],
            tools: Vec::new(),
            documents: Vec::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            variables: BTreeMap::new(),
        })
    };
    let plain = "{% for m in messages %}{{ m.role }} {% endfor %}";
    assert_eq!(text(plain).unwrap(), "system user ");
    assert_eq!(text(&format!("{{# developer #}}{plain}")).unwrap(), "developer user ");
}

#[test]
fn the_last_message_can_be_continued() {
    let text = |template: &str, content: &str| {
        let fields = json!({"chat_template": template});
        let conversation = Conversation {
            messages: vec![ChatMessage::new("user", "1 2"), ChatMessage::new("assistant", content)],
            tools: Vec::new(),
            documents: Vec::new(),
            add_generation_prompt: false,
            continue_final_message: true,
            variables: BTreeMap::new(),
        };
        template_in(&[config(&fields)]).unwrap().unwrap().render(&conversation)
    };
    let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}";
    let trimming = plain.replace("m.content", "m.content | trim");
    for (template, content, want) in [
        (plain, "1 2", "<user>1 2</s><assistant>1 2"),
        (plain, "a: ", "<user>1 2</s><assistant>a: "),
        (plain, " a", "<user>1 2</s><assistant> a"),
        (plain, "", "<user>1 2</s><assistant>"),
        // The template writes the same letter after the message.
        (plain, "s", "<user>1 2</s><assistant>s"),
        (&trimming, " a: ", "<user>1 2</s><assistant>a:"),
        (&trimming, "", "<user>1 2</s><assistant>"),
    ] {
        assert_eq!(text(template, content).unwrap(), want, "{content:?}");
    }
    for changing in ["m.content | upper", "m.content | replace('y', '')", "'xyz'"] {
        assert_eq!(text(&plain.replace("m.content", changing), "xyz"), Err(ChatError::LastMessageLost));
    }
}

/// A conversation with a call and two results, after a system message if it has one.
fn with_calls(system: Option<&str>) -> Conversation {
    let call =
        json!({"type": "function", "id": "a", "function": {"name": "add", "arguments": {"b": 1, "a": 2}}});
    let mut messages: Vec<ChatMessage> =
        system.map(|text| ChatMessage::new("system", text)).into_iter().collect();
    messages.extend([
        ChatMessage::new("user", "2 + 1?"),
        ChatMessage {
            role: "assistant".to_owned(),
            tool_calls: vec![call.clone(), call],
            ..ChatMessage::default()
        },
        ChatMessage::new("tool", "3"),
        ChatMessage::new("tool", "4"),
        ChatMessage::new("user", "So?"),
    ]);
    Conversation {
        messages,
        tools: vec![json!({"type": "function", "function": {"name": "add"}}), json!({"type": "function"})],
        documents: Vec::new(),
        add_generation_prompt: true,
        continue_final_message: false,
        variables: BTreeMap::new(),
    }
}

const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}|{% endfor %}";
const CALLED: &str = "assistant: <tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\":1,\"a\":2}}\n</tool_call>\n<tool_call>\n\
    {\"name\": \"add\", \"arguments\": {\"b\":1,\"a\":2}}\n</tool_call>|";
const RESULTS: &str =
    "user: <tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>|user: So?|";

fn describing(template: &str) -> ChatTemplate {
    template_in(&[config(&json!({ "chat_template": template }))]).unwrap().unwrap()
}

#[test]
fn a_template_that_reads_no_tools_gets_them_in_a_system_message() {
    let template = describing(PLAIN);
    assert!(!template.reads_tools());
    assert_eq!(template.render(&with_calls(None)), Err(ChatError::NoTools));
    let text = template.render_describing_tools(&with_calls(None)).unwrap();
    let tools = "<tools>\n{\"type\":\"function\",\"function\":{\"name\":\"add\"}}\n{\"type\":\"function\"}\n</tools>\n";
    assert!(text.starts_with("system: You can call functions.") && text.contains(tools), "{text}");
    assert!(text.ends_with(&format!("</tool_response>.|user: 2 + 1?|{CALLED}{RESULTS}")), "{text}");
    let text = template.render_describing_tools(&with_calls(Some("Be brief."))).unwrap();
    assert!(text.starts_with("system: Be brief.\n\nYou can call functions."), "{text}");
    // Without tools, earlier calls and results are still texts.
    let text = template.render_describing_tools(&Conversation { tools: Vec::new(), ..with_calls(None) });
    assert_eq!(text, Ok(format!("user: 2 + 1?|{CALLED}{RESULTS}")));
    assert!(describing("{{ tools }}").reads_tools());
}

#[test]
fn a_template_without_system_messages_gets_the_tools_in_the_first_message_of_the_user() {
    let refusing =
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system message') }}{% endif %}";
    let dropping = "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}: {{ m.content }}|{% endif %}{% endfor %}";
    for template in [format!("{refusing}{PLAIN}"), dropping.to_owned()] {
        let text = describing(&template).render_describing_tools(&with_calls(None)).unwrap();
        assert!(text.starts_with("user: You can call functions."), "{text}");
        assert!(text.ends_with(&format!("</tool_response>.\n\n2 + 1?|{CALLED}{RESULTS}")), "{text}");
    }
    let error = describing(&format!("{refusing}{PLAIN}")).render_describing_tools(&with_calls(Some("x")));
    assert_eq!(error, Err(ChatError::Refused("no system message".to_owned())));
}

#[test]
fn a_template_in_place_of_the_checkpoints_is_used() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), "own {{ messages[0].content }}").unwrap();
    let open = |text: &str| {
        let files = CheckpointFiles::folder(folder.path()).unwrap().with_chat_template(text.to_owned());
        ChatTemplate::open(&files, BTreeMap::new()).unwrap().unwrap()
    };
    let template = open("other {{ messages[0].content }}");
    assert_eq!(say(&template, "x"), Ok("other x".to_owned()));
    assert_eq!(template.problem(), None);
    assert!(open("{% if %}").problem().is_some_and(|problem| problem.contains("syntax error")));
}
