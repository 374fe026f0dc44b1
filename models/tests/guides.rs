//! Guided decoding with real vocabularies: every text that is sampled under a constraint satisfies it.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;
use std::sync::Arc;

use ntl_core::contract::{Backend, Dtype, ModelInfo, NumberEncoding};
use ntl_core::sampling::{Sampler, SamplingParams};
use ntl_core::text::{TextDecoder, with_special};
use ntl_text::checkpoint::CheckpointFiles;
use ntl_text::guide::{Answer, CallGrammar, Constraint, GuideCompiler, StructuralFormat, Whitespace};
use ntl_text::tokenizer::Tokenizer;
use ntl_text::tools::{Guidance, ToolDialect, ToolFormat, ToolPart};
use serde_json::{Value, json};

/// Maximum tokens per text. Texts that are still incomplete then are not checked.
const TOKENS_MAX: usize = 200;

fn compiler(tokenizer: &Tokenizer, encoder_decoder: bool) -> GuideCompiler {
    let info = ModelInfo {
        answer_tokens_max: None,
        context_tokens_max: None,
        kind: "test".into(),
        backend: Backend::Native,
        dtype: Dtype::F32,
        kv_cache_dtype: None,
        number_encoding: NumberEncoding::Text,
        parameters: 0,
        prompt_tokens_max: 512,
        tokens: tokenizer.len(),
        eos_ids: vec![tokenizer.eos_id().unwrap()],
        encoder_decoder,
        labels: None,
        hidden_states: None,
    };
    GuideCompiler::new(tokenizer, &info).unwrap()
}

fn json_of(schema: Value) -> Constraint {
    Constraint::Json { schema, whitespace: Whitespace::default() }
}

fn demo() -> Arc<Tokenizer> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/demo/t5-ntl-was.tar.gz");
    let files = CheckpointFiles::archive("demo", &std::fs::read(archive).unwrap()).unwrap();
    Arc::new(Tokenizer::open(&files).unwrap())
}

fn llama() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/llama-ntl");
    Arc::new(Tokenizer::open(&CheckpointFiles::folder(&folder).unwrap()).unwrap())
}

/// A SentencePiece vocabulary whose decoder keeps the space at the beginning of a text.
fn keeping_spaces() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/llama-ntl");
    let read = |name| std::fs::read(folder.join(name)).unwrap();
    let mut file: Value = serde_json::from_slice(&read("tokenizer.json")).unwrap();
    // The last decoder removes that space.
    file["decoder"]["decoders"].as_array_mut().unwrap().pop();
    let changed = tempfile::tempdir().unwrap();
    std::fs::write(changed.path().join("tokenizer.json"), file.to_string()).unwrap();
    for name in ["config.json", "tokenizer_config.json"] {
        std::fs::write(changed.path().join(name), read(name)).unwrap();
    }
    Arc::new(Tokenizer::open(&CheckpointFiles::folder(changed.path()).unwrap()).unwrap())
}

/// Samples texts under a constraint from uniform logits, and returns the complete ones.
fn texts(tokenizer: &Tokenizer, compiler: &GuideCompiler, constraint: &Constraint) -> Vec<String> {
    let guide = compiler.compile(constraint).unwrap();
    let write = |seed| {
        let mut sampler = Sampler::new(SamplingParams { seed, ..SamplingParams::PLAIN }, 0);
        let mut state = guide.start();
        let mut ids = Vec::new();
        while ids.len() < TOKENS_MAX {
            let mut logits = vec![0.0; tokenizer.len()];
            state.restrict(&mut logits).unwrap();
            let id = sampler.choose(&logits).unwrap();
            state.accept(id).unwrap();
            ids.push(id);
            if state.is_complete() {
                return Some(tokenizer.decode(&ids));
            }
        }
        None
    };
    (0..25).filter_map(write).collect()
}

#[test]
fn texts_match_the_regular_expression_or_are_one_of_the_choices() {
    let vocabularies =
        [(demo(), true), (llama(), false), (keeping_spaces(), true), (keeping_spaces(), false)];
    for (tokenizer, encoder_decoder) in vocabularies {
        let compiler = compiler(&tokenizer, encoder_decoder);
        let number = Constraint::Regex(r"-?\d{1,3}(\.\d)?".to_owned());
        let numbers = texts(&tokenizer, &compiler, &number);
        assert!(!numbers.is_empty());
        for text in numbers {
            let (integer, tenths) = text.trim_start_matches('-').split_once('.').unwrap_or((&text, "0"));
            let integer = integer.trim_start_matches('-');
            let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
            assert!((1..=3).contains(&integer.len()) && tenths.len() == 1, "{text:?}");
            assert!(digits(integer) && digits(tenths), "{text:?}");
        }
        let choices = ["yes".to_owned(), "no".to_owned(), "not a/b".to_owned()];
        for text in texts(&tokenizer, &compiler, &Constraint::Choice(choices.to_vec())) {
            assert!(choices.contains(&text), "{text:?}");
        }
    }
}

#[test]
fn texts_are_json_of_the_schema() {
    let tokenizer = llama();
    let compiler = compiler(&tokenizer, false);
    let schema = json!({"type": "object", "required": ["n"], "additionalProperties": false,
        "properties": {"n": {"$ref": "#/$defs/small"}}, "$defs": {"small": {"type": "integer", "minimum": 3, "maximum": 12}}});
    let texts = texts(&tokenizer, &compiler, &json_of(schema));
    assert!(!texts.is_empty());
    for text in texts {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!((3..=12).contains(&value["n"].as_i64().unwrap()), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 1, "{text}");
    }
}

/// The longest run of whitespace outside the strings of a JSON text.
fn longest_whitespace(text: &str) -> usize {
    let (mut in_string, mut escaped, mut run, mut longest) = (false, false, 0, 0);
    for character in text.chars() {
        in_string ^= character == '"' && !escaped;
        escaped = in_string && character == '\\' && !escaped;
        run = if !in_string && character.is_whitespace() { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

#[test]
fn json_has_only_the_whitespace_that_is_allowed() {
    let tokenizer = llama();
    let compiler = compiler(&tokenizer, false);
    let schema = json!({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 9}, "minItems": 3, "maxItems": 4});
    let all = |whitespace: Whitespace| {
        let constraint = Constraint::Json { schema: schema.clone(), whitespace };
        let texts = texts(&tokenizer, &compiler, &constraint);
        assert!(texts.len() > 5, "{texts:?}");
        for text in &texts {
            let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!((3..=4).contains(&value.as_array().unwrap().len()), "{text}");
        }
        texts.iter().map(|text| longest_whitespace(text)).max().unwrap()
    };
    assert!((1..=17).contains(&all(Whitespace::Bounded)));
    assert_eq!(all(Whitespace::None), 0);
    assert_eq!(all(Whitespace::Pattern(" ?".to_owned())), 1);
    let other = Constraint::Json { schema, whitespace: Whitespace::Pattern("[ x]".to_owned()) };
    let error = compiler.compile(&other).unwrap_err().to_string();
    assert!(error.contains("characters other than space"), "{error}");
}

type Check = fn(&Value) -> bool;

#[test]
fn json_satisfies_nested_schemas_with_lists_and_bounds() {
    let tokenizer = llama();
    let compiler = compiler(&tokenizer, false);
    let cases: [(Value, Check); 9] = [
        (json!({"enum": ["a", 5, null, [1, {"b": true}]]}), |value| {
            [json!("a"), json!(5), json!(null), json!([1, {"b": true}])].contains(value)
        }),
        (json!({"type": "number", "minimum": -2, "exclusiveMaximum": 3.5, "multipleOf": 0.25}), |value| {
            let value = value.as_f64().unwrap();
            (-2.0..3.5).contains(&value) && (value * 4.0).fract().abs() < 1e-9
        }),
        (json!({"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 4}), |value| {
            let text = value.as_str().unwrap();
            (2..=4).contains(&text.len()) && text.bytes().all(|byte| (b'a'..=b'c').contains(&byte))
        }),
        (json!({"type": "string", "format": "date"}), |value| value.as_str().unwrap().len() == 10),
        (
            json!({"type": "array", "prefixItems": [{"const": "x"}], "items": {"type": "boolean"}, "maxItems": 3}),
            |value| {
                let items = value.as_array().unwrap();
                items.len() <= 3
                    && items
                        .iter()
                        .enumerate()
                        .all(|(at, item)| if at == 0 { item == "x" } else { item.is_boolean() })
            },
        ),
        (json!({"anyOf": [{"type": "integer", "minimum": 10, "maximum": 20}, {"type": "null"}]}), |value| {
            value.is_null() || value.as_i64().is_some_and(|value| (10..=20).contains(&value))
        }),
        (
            json!({"type": "object", "additionalProperties": false, "required": ["b"], "properties": {
                "a": {"type": "array", "items": {"enum": ["p", "q"]}, "minItems": 1, "maxItems": 2},
                "b": {"type": "object", "additionalProperties": false, "required": ["c"],
                    "properties": {"c": {"type": ["boolean", "null"]}}}}}),
            |value| {
                let object = value.as_object().unwrap();
                let a = object.get("a").is_none_or(|a| (1..=2).contains(&a.as_array().unwrap().len()));
                a && object.keys().all(|key| key == "a" || key == "b")
                    && (value["b"]["c"].is_boolean() || value["b"]["c"].is_null())
            },
        ),
        (
            json!({"type": "object", "additionalProperties": false, "minProperties": 1,
                "patternProperties": {"^k[0-9]$": {"type": "integer", "minimum": 0, "maximum": 5}}, "maxProperties": 2}),
            |value| {
                let object = value.as_object().unwrap();
                (1..=2).contains(&object.len())
                    && object.iter().all(|(key, value)| key.starts_with('k') && value.as_u64() <= Some(5))
            },
        ),
        (
            json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}], "$comment": "both"}),
            |value| (3..=7).contains(&value.as_i64().unwrap()),
        ),
    ];
    for (schema, satisfies) in cases {
        let texts = texts(&tokenizer, &compiler, &json_of(schema.clone()));
        assert!(!texts.is_empty(), "{schema}");
        for text in texts {
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(satisfies(&value) && longest_whitespace(&text) <= 17, "{schema}: {text}");
        }
    }
}

#[test]
fn texts_follow_the_grammar() {
    let lark = "start: pair\npair: \"(\" pair \")\" | NUMBER\nNUMBER: /[0-9]{2}/";
    let ebnf = "root ::= pair # in pairs\npair ::= \"(\" pair \")\" |\n  two-digits\ntwo-digits ::= [0-9]{2}";
    for (grammar, is_demo) in [(lark, true), (lark, false), (ebnf, true), (ebnf, false)] {
        let tokenizer = if is_demo { demo() } else { llama() };
        let compiler = compiler(&tokenizer, is_demo);
        let texts = texts(&tokenizer, &compiler, &Constraint::Grammar(grammar.to_owned()));
        assert!(texts.len() > 5, "{texts:?}");
        for text in texts {
            let inside = text.trim_start_matches('(').trim_end_matches(')');
            let digits = inside.len() == 2 && inside.bytes().all(|byte| byte.is_ascii_digit());
            let open = text.matches('(').count();
            assert!(digits && open == text.matches(')').count(), "{text:?}");
        }
    }
}

#[test]
fn every_part_of_ebnf_constrains_the_text() {
    let tokenizer = llama();
    let compiler = compiler(&tokenizer, false);
    let object = r#"root ::= ws object
        object ::= "{" ws (pair ("," ws pair)*)? "}" ws
        pair ::= string ":" ws value
        value ::= object | string | number | "[" ws (value ("," ws value)*)? "]" ws
        string ::= "\"" ([^"\\\x00-\x1f\x7f] | "\\" ["\\/bfnrt]){0,5} "\"" ws
        number ::= "-"? ("0" | [1-9] [0-9]{0,3}) ws
        ws ::= [ \t\n]?"#;
    let texts_of = |grammar: &str| texts(&tokenizer, &compiler, &Constraint::Grammar(grammar.to_owned()));
    let objects = texts_of(object);
    assert!(objects.len() > 5, "{objects:?}");
    for text in objects {
        assert!(serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object()), "{text:?}");
    }
    for (grammar, all) in [
        (r#"root ::= "a\"b" | [c-d^] [e-]"#, &["a\"b", "ce", "de", "^e", "c-", "d-", "^-"][..]),
        (r#"root::="\x41\u0042"[\]\-]"#, &["AB]", "AB-"]),
        ("root ::= x-1 | ( | \"c\") \"d\"\nx-1 ::= X_2{2}\nX_2 ::= \"e\"", &["ee", "d", "cd"]),
        ("start ::= \"a\"\nroot ::= start \"b\"+ start\r\n", &["aba", "abba", "abbba", "abbbba", "abbbbba"]),
    ] {
        let mut found = texts_of(grammar);
        found.retain(|text| text.len() <= 7);
        assert!(!found.is_empty(), "{grammar}");
        found.iter().for_each(|text| assert!(all.contains(&text.as_str()), "{grammar}: {text:?}"));
    }
    let any = texts_of("root ::= \"<\" .{2} \">\"");
    assert!(any.iter().all(|text| text.chars().count() == 4) && any.len() > 5, "{any:?}");
}

#[test]
fn keywords_that_would_not_constrain_the_text_are_rejected_with_their_names() {
    let compiler = compiler(&llama(), false);
    let reason = |schema: Value| compiler.compile(&json_of(schema)).err().map(|error| error.0);
    for (schema, keyword, path) in [
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems", "#"),
        (json!({"anyOf": [{"type": "null"}, {"not": {"type": "null"}}]}), "not", "#/anyOf/1"),
        (json!({"properties": {"a/b": {"items": {"if": true}}}}), "if", "#/properties/a~1b/items"),
        (json!({"$ref": "#/$defs/x", "$defs": {"x": {"contains": {"const": 1}}}}), "contains", "#/$defs/x"),
        (json!({"$ref": "#/other", "other": {"type": "array", "minContains": 1}}), "minContains", "#/other"),
        // A keyword of a later draft than the schema's.
        (
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "unevaluatedItems": false}),
            "unevaluatedItems",
            "#",
        ),
        (json!({"prefixItems": [{"dependentRequired": {}}]}), "dependentRequired", "#/prefixItems/0"),
        (json!({"x-guidance": {"lenient": true}}), "x-guidance", "#"),
    ] {
        let want = format!("the keyword `{keyword}` at `{path}` is not supported");
        assert_eq!(reason(schema.clone()), Some(want), "{schema}");
    }
    for (schema, named) in [
        (json!({"prefixItems": [true], "additionalItems": false}), "prefixItems"),
        (json!({"type": "string", "format": "password"}), "Unknown format: password"),
        (json!({"oneOf": [{"minimum": 1}, {"maximum": 5}]}), "oneOf"),
        (json!({"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}}}), "minProperties"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "look-around"),
    ] {
        let reason = reason(schema.clone()).unwrap_or_else(|| panic!("{schema} passes"));
        assert!(reason.contains(named), "{schema}: {reason}");
    }
    // Names of properties and values are not keywords, and annotations do not constrain.
    for schema in [
        json!({"type": "object", "properties": {"if": {"type": "null"}, "not": {"const": {"contains": 1}}}}),
        json!({"type": "integer", "title": "n", "deprecated": true, "default": 1, "propertyOrdering": ["a"]}),
        json!({"enum": [{"uniqueItems": true}]}),
        json!(true),
    ] {
        assert_eq!(reason(schema.clone()), None, "{schema}");
    }
}

#[test]
fn every_keyword_of_the_draft_of_2020_12_constrains_is_rejected_or_describes() {
    let tokenizer = llama();
    let compiler = compiler(&tokenizer, false);
    let object = |fields: Value| {
        let mut schema =
            json!({"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 3});
        schema.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        schema
    };
    let list = |fields: Value| {
        let mut schema = json!({"type": "array", "items": {"type": "null"}, "maxItems": 4});
        schema.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        schema
    };
    let within = |least: &str, most: &str| json!({"type": "integer", least: 3, most: 5});
    let constraining: [(&str, Value, Check); 27] = [
        ("type", json!({"type": "boolean"}), Value::is_boolean),
        ("const", json!({"const": [1]}), |value| *value == json!([1])),
        ("enum", json!({"enum": [1, "a"]}), |value| [json!(1), json!("a")].contains(value)),
        ("$ref", json!({"$ref": "#/$defs/x", "$defs": {"x": {"const": 7}}}), |value| *value == 7),
        ("$defs", json!({"$defs": {"x": {"const": 7}}, "anyOf": [{"$ref": "#/$defs/x"}]}), |value| {
            *value == 7
        }),
        ("allOf", json!({"allOf": [{"type": "integer", "minimum": 6}, {"maximum": 7}]}), |value| {
            (6..=7).contains(&value.as_i64().unwrap())
        }),
        ("anyOf", json!({"anyOf": [{"const": 1}, {"const": 2}]}), |value| *value == 1 || *value == 2),
        ("oneOf", json!({"oneOf": [{"const": 1}, {"const": "a"}]}), |value| *value == 1 || *value == "a"),
        ("minimum", within("minimum", "maximum"), |value| value.as_i64().unwrap() >= 3),
        ("maximum", within("minimum", "maximum"), |value| value.as_i64().unwrap() <= 5),
        ("exclusiveMinimum", within("exclusiveMinimum", "maximum"), |value| value.as_i64().unwrap() > 3),
        ("exclusiveMaximum", within("minimum", "exclusiveMaximum"), |value| value.as_i64().unwrap() < 5),
        ("multipleOf", json!({"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 7}), |value| {
            value.as_i64().unwrap() % 7 == 0
        }),
        ("minLength", json!({"type": "string", "minLength": 3, "maxLength": 5}), |value| {
            value.as_str().unwrap().chars().count() >= 3
        }),
        ("maxLength", json!({"type": "string", "maxLength": 2}), |value| {
            value.as_str().unwrap().chars().count() <= 2
        }),
        ("pattern", json!({"type": "string", "pattern": "^a{2,3}$"}), |value| {
            ["aa", "aaa"].contains(&value.as_str().unwrap())
        }),
        ("format", json!({"type": "string", "format": "date"}), |value| value.as_str().unwrap().len() == 10),
        ("items", list(json!({})), |value| value.as_array().unwrap().iter().all(Value::is_null)),
        ("prefixItems", list(json!({"prefixItems": [{"const": 1}], "minItems": 1})), |value| value[0] == 1),
        ("minItems", list(json!({"minItems": 2})), |value| value.as_array().unwrap().len() >= 2),
        ("maxItems", list(json!({"maxItems": 1})), |value| value.as_array().unwrap().len() <= 1),
        ("properties", object(json!({"properties": {"a": {"const": 1}}, "required": ["a"]})), |value| {
            value["a"] == 1
        }),
        ("required", object(json!({"required": ["b"]})), |value| value.get("b").is_some()),
        ("additionalProperties", object(json!({})), |value| {
            value.as_object().unwrap().values().all(Value::is_null)
        }),
        (
            "patternProperties",
            json!({"type": "object", "patternProperties": {"^k[0-9]$": {"const": 1}}, "additionalProperties": false, "maxProperties": 2}),
            |value| value.as_object().unwrap().iter().all(|(key, value)| key.starts_with('k') && *value == 1),
        ),
        (
            "minProperties",
            json!({"type": "object", "patternProperties": {"^k[0-9]$": {"const": 1}}, "additionalProperties": false,
                "minProperties": 1, "maxProperties": 2}),
            |value| !value.as_object().unwrap().is_empty(),
        ),
        ("maxProperties", object(json!({"maxProperties": 1})), |value| value.as_object().unwrap().len() <= 1),
    ];
    for (keyword, schema, satisfies) in constraining {
        assert!(schema.to_string().contains(keyword), "{keyword}: {schema}");
        let texts = texts(&tokenizer, &compiler, &json_of(schema.clone()));
        assert!(!texts.is_empty(), "{keyword}: {schema}");
        for text in texts {
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(satisfies(&value), "{keyword}: {text}");
        }
    }
    let compiled =
        |keyword: &str, value: Value| compiler.compile(&json_of(json!({"type": "null", keyword: value})));
    for keyword in [
        "$dynamicRef",
        "not",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
        "maxContains",
        "minContains",
        "dependentRequired",
    ] {
        let reason = compiled(keyword, json!({})).err().unwrap_or_else(|| panic!("{keyword} passes")).0;
        assert_eq!(reason, format!("the keyword `{keyword}` at `#` is not supported"));
    }
    for (keyword, value) in [
        ("$schema", json!("https://json-schema.org/draft/2020-12/schema")),
        ("$id", json!("https://a.example/x")),
        ("$anchor", json!("x")),
        ("$comment", json!("x")),
        ("title", json!("x")),
        ("description", json!("x")),
        ("default", json!(null)),
        ("deprecated", json!(true)),
        ("readOnly", json!(true)),
        ("writeOnly", json!(true)),
        ("examples", json!([null])),
        ("contentEncoding", json!("base64")),
        ("contentMediaType", json!("text/plain")),
        ("contentSchema", json!({})),
        ("$vocabulary", json!({})),
    ] {
        assert!(compiled(keyword, value).is_ok(), "{keyword}");
    }
    // The library knows this keyword, and rejects it.
    let outcome = compiled("$dynamicAnchor", json!("x"));
    assert!(outcome.is_err_and(|error| error.0.contains("$dynamicAnchor")));
}

#[test]
fn malformed_grammars_and_grammars_with_schemas_are_rejected() {
    let compiler = compiler(&llama(), false);
    for (grammar, named) in [
        ("root ::= missing".to_owned(), "no rule `missing`"),
        ("x ::= \"y\"".to_owned(), "no rule `root`"),
        ("root ::= \"x\"\nroot ::= \"y\"".to_owned(), "the rule `root` twice"),
        ("root ::= ::= \"x\"".to_owned(), "does not begin with `name ::=`"),
        ("\"x\"\nroot ::= \"x\"".to_owned(), "does not begin with `name ::=`"),
        ("root ::= \"x".to_owned(), "a literal"),
        ("root ::= [x".to_owned(), "no `]`"),
        ("root ::= \"\\x4\"".to_owned(), "an escape"),
        ("root ::= \"\\ud800\"".to_owned(), "an escape"),
        ("root ::= \"x\"{1".to_owned(), "a repetition"),
        ("root ::= <[1000]>".to_owned(), "`<` in the grammar is not EBNF"),
        ("root ::= root".to_owned(), "no token"),
        (format!("root ::= {}\"x\"", "(".repeat(60_000)), "nested"),
        ("start: %json {\"type\": \"object\", \"uniqueItems\": true}".to_owned(), "%json"),
        ("start: missing".to_owned(), "missing"),
        ("begin: \"x\"".to_owned(), "start"),
        (String::new(), "start"),
        (format!("start: {}\"x\"", "(".repeat(60_000)), "nested"),
    ] {
        let error = compiler.compile(&Constraint::Grammar(grammar)).unwrap_err().to_string();
        assert!(error.contains(named), "{named}: {error}");
    }
}

#[test]
fn grammars_whose_terminals_grow_are_rejected_and_long_chains_of_rules_compile() {
    let compiler = compiler(&llama(), false);
    let rules = |links: usize, rule: fn(usize) -> String| (0..links).map(rule).collect::<String>();
    let chain = |links: usize| {
        let all = rules(links, |link| format!("r{link}: r{} \"b\"\n", link + 1));
        Constraint::Grammar(format!("start: r0\n{all}r{links}: \"a\""))
    };
    let ebnf = rules(60, |link| format!("r{link} ::= r{0} r{0}\n", link + 1));
    let lark = rules(60, |link| format!("R{link}: R{0} R{0}\n", link + 1));
    for grammar in [format!("root ::= r0\n{ebnf}r60 ::= \"a\""), format!("start: R0\n{lark}R60: /[ab]/")] {
        let error = compiler.compile(&Constraint::Grammar(grammar)).unwrap_err().0;
        assert!(error.starts_with("the terminals of the grammar have more than"), "{error}");
    }
    assert!(compiler.compile(&chain(2500)).is_err());
    // The library recurses with each rule.
    assert!(compiler.compile(&chain(1900)).is_ok());
}

#[test]
fn invalid_constraints_are_rejected_with_one_short_line() {
    let compiler = compiler(&demo(), true);
    for constraint in [
        Constraint::Regex("(".to_owned()),
        Constraint::Regex("a\\".to_owned()),
        Constraint::Regex("(?=a)b".to_owned()),
        Constraint::Regex("☃+".to_owned()),
        Constraint::Choice(vec!["☃".to_owned()]),
        json_of(json!({"type": "no such type"})),
        json_of(json!({"$ref": "http://example.com/schema"})),
        json_of(json!(5)),
        // T5 has no braces.
        json_of(json!({"type": "object"})),
    ] {
        let error = compiler.compile(&constraint).err().unwrap_or_else(|| panic!("{constraint:?} passes"));
        assert!(!error.0.is_empty() && error.0.len() <= 1000 && !error.0.contains('\n'), "{error:?}");
    }
    let reason = |constraint| compiler.compile(&constraint).err().map(|error| error.0);
    assert_eq!(reason(Constraint::Regex("(".to_owned())).as_deref(), Some("unclosed group"));
    let snowman = reason(Constraint::Choice(vec!["☃".to_owned()]));
    assert_eq!(snowman.as_deref(), Some("no token of the vocabulary continues such a text"));
}

#[test]
fn a_schema_with_thousands_of_fields_is_rejected_before_it_is_compiled() {
    let tokenizer = demo();
    let compiler = compiler(&tokenizer, true);
    let schema = |count: usize| {
        let properties = (0..count).map(|number| (format!("p{number}"), json!({"type": "integer"})));
        json!({"type": "object", "properties": Value::Object(properties.collect())})
    };
    let error = compiler.compile(&json_of(schema(2300))).unwrap_err().to_string();
    assert!(error.contains("the schema has 4602 fields in all its objects; at most 2000"), "{error}");
    // The demo's vocabulary has no brace. Only the compiler detects that.
    let error = compiler.compile(&json_of(schema(50))).unwrap_err().to_string();
    assert!(error.contains("no token of the vocabulary"), "{error}");
}

/// A tokenizer with some of the markers as special tokens.
fn with_markers(special: &[&str]) -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/llama-ntl");
    let read = |name| std::fs::read(folder.join(name)).unwrap();
    let mut file: Value = serde_json::from_slice(&read("tokenizer.json")).unwrap();
    let first = Tokenizer::open(&CheckpointFiles::folder(&folder).unwrap()).unwrap().len();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for (index, name) in special.iter().enumerate() {
        added.push(json!({"id": first + index, "content": name, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}));
    }
    let changed = tempfile::tempdir().unwrap();
    std::fs::write(changed.path().join("tokenizer.json"), file.to_string()).unwrap();
    for name in ["config.json", "tokenizer_config.json"] {
        std::fs::write(changed.path().join(name), read(name)).unwrap();
    }
    Arc::new(Tokenizer::open(&CheckpointFiles::folder(changed.path()).unwrap()).unwrap())
}

/// Every format, with the markers that are special tokens.
const FORMATS: [(ToolFormat, &[&str]); 6] = [
    (ToolFormat::Hermes, &[]),
    (ToolFormat::Hermes, &["<tool_call>", "</tool_call>"]),
    (ToolFormat::Llama3Json, &[]),
    (ToolFormat::Mistral, &["[TOOL_CALLS]"]),
    (ToolFormat::Mistral, &["[TOOL_CALLS]", "[ARGS]"]),
    (ToolFormat::Granite, &["<|tool_call|>"]),
];

fn call_grammar(dialect: &ToolDialect, calls_max: usize, answer: Option<Answer>) -> Constraint {
    let small = |type_name: &str| {
        json!({"type": "object", "properties": {"x": {"type": type_name, "maxLength": 3}},
        "required": ["x"], "additionalProperties": false})
    };
    let functions = vec![("one".to_owned(), small("string")), ("two".to_owned(), small("boolean"))];
    Constraint::Calls(Box::new(CallGrammar {
        layout: dialect.layout().clone(),
        functions,
        calls_max,
        answer,
    }))
}

/// Samples texts under a constraint, with the special tokens of the dialect, and separates their calls.
fn called(
    tokenizer: &Arc<Tokenizer>,
    dialect: &ToolDialect,
    constraint: &Constraint,
) -> Vec<(String, Vec<Value>)> {
    let compiler = compiler(tokenizer, false);
    let guide = compiler.compile(constraint).unwrap();
    let is_text = matches!(constraint, Constraint::Calls(grammar) if grammar.answer == Some(Answer::Text));
    let decoder: Arc<dyn TextDecoder> = tokenizer.clone();
    let decoder = with_special(&decoder, dialect.special_ids());
    let write = |seed| {
        let mut sampler = Sampler::new(SamplingParams { seed, ..SamplingParams::PLAIN }, 0);
        let mut state = guide.start();
        let mut ids = Vec::new();
        while ids.len() < 2 * TOKENS_MAX {
            let mut logits = vec![0.0; tokenizer.len()];
            // Texts end before long.
            logits[tokenizer.eos_id().unwrap() as usize] = if is_text { 5.0 } else { 0.0 };
            state.restrict(&mut logits).unwrap();
            let id = sampler.choose(&logits).unwrap();
            state.accept(id).unwrap();
            if Some(id) != tokenizer.eos_id() {
                ids.push(id);
            }
            if state.is_complete() || Some(id) == tokenizer.eos_id() {
                return Some(decoder.decode(&ids));
            }
        }
        None
    };
    let separate = |text: String| {
        let functions: Arc<[String]> = ["one".to_owned(), "two".to_owned()].into();
        let mut parser = dialect.parser(functions, usize::MAX, Guidance::Calls);
        let mut parts = parser.push(&text);
        parts.extend(parser.finish());
        let mut outside = String::new();
        let mut calls: Vec<(String, String)> = Vec::new();
        for part in parts {
            match part {
                ToolPart::Text(text) => outside.push_str(&text),
                ToolPart::Call(name) => calls.push((name, String::new())),
                ToolPart::Arguments(more) => calls.last_mut().unwrap().1.push_str(&more),
            }
        }
        let call = |(name, arguments): (String, String)| json!({"name": name, "arguments": serde_json::from_str::<Value>(&arguments).unwrap()});
        (outside, calls.into_iter().map(call).collect())
    };
    (0..30).filter_map(write).map(separate).collect()
}

fn is_valid(call: &Value) -> bool {
    match (&call["name"], &call["arguments"]["x"]) {
        (Value::String(name), Value::String(_)) => name == "one",
        (Value::String(name), Value::Bool(_)) => name == "two",
        _ => false,
    }
}

#[test]
fn guided_calls_have_the_format_of_the_model_and_match_the_schemas() {
    for (format, special) in FORMATS {
        let tokenizer = with_markers(special);
        let dialect = ToolDialect::new(format, &tokenizer);
        for calls_max in [1, 3] {
            let all = called(&tokenizer, &dialect, &call_grammar(&dialect, calls_max, None));
            assert!(all.len() > 10, "{format:?}: {}", all.len());
            for (text, calls) in &all {
                assert!(text.trim().is_empty(), "{format:?}: {text}");
                assert!(
                    (1..=calls_max).contains(&calls.len()) && calls.iter().all(is_valid),
                    "{format:?}: {calls:?}"
                );
            }
            assert!(calls_max == 1 || all.iter().any(|(_, calls)| calls.len() > 1), "{format:?}");
        }
    }
}

#[test]
fn a_text_or_json_may_take_the_place_of_strict_calls() {
    for (format, special) in FORMATS {
        let tokenizer = with_markers(special);
        let dialect = ToolDialect::new(format, &tokenizer);
        let text = called(&tokenizer, &dialect, &call_grammar(&dialect, 2, Some(Answer::Text)));
        assert!(text.len() > 10, "{format:?}: {}", text.len());
        assert!(text.iter().all(|(_, calls)| calls.iter().all(is_valid)), "{format:?}: {text:?}");
        let schema = json!({"const": 7});
        let answer = Answer::Json { schema, whitespace: Whitespace::default() };
        let all = called(&tokenizer, &dialect, &call_grammar(&dialect, 2, Some(answer)));
        let (calls, answers): (Vec<_>, Vec<_>) = all.iter().partition(|(text, _)| text.trim().is_empty());
        assert!(calls.len() > 2 && answers.len() > 2, "{format:?}: {all:?}");
        assert!(calls.iter().all(|(_, calls)| !calls.is_empty() && calls.iter().all(is_valid)), "{format:?}");
        assert!(answers.iter().all(|(text, calls)| text.trim().len() == 1 && calls.is_empty()), "{format:?}");
    }
}

/// The longest tokens that spell a text, without a space before it.
fn spelt(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let pieces = (0u32..).take(tokenizer.len()).filter(|&id| tokenizer.unknown_id() != Some(id));
        let pieces = pieces.filter_map(|id| Some((tokenizer.piece_bytes(id)?.len(), id)));
        let begins = |&(length, id): &(usize, u32)| {
            length > 0 && tokenizer.piece_bytes(id).is_some_and(|bytes| rest.starts_with(&bytes))
        };
        let (length, id) = pieces.filter(begins).max().unwrap();
        ids.push(id);
        rest = &rest[length..];
    }
    ids
}

/// Returns whether a constraint admits a text with its end.
fn admits(tokenizer: &Tokenizer, compiler: &GuideCompiler, constraint: &Constraint, text: &str) -> bool {
    let mut state = compiler.compile(constraint).unwrap().start();
    let end = tokenizer.eos_id().unwrap();
    for id in spelt(tokenizer, text).into_iter().chain([end]) {
        if state.is_complete() {
            return id == end;
        }
        let mut logits = vec![0.0; tokenizer.len()];
        if state.restrict(&mut logits).is_err() || logits[id as usize].is_infinite() {
            return false;
        }
        state.accept(id).unwrap();
    }
    true
}

#[test]
fn arguments_of_guided_calls_have_only_listed_properties_where_that_is_possible() {
    let tokenizer = with_markers(&[]);
    let dialect = ToolDialect::new(ToolFormat::Hermes, &tokenizer);
    let compiler = compiler(&tokenizer, false);
    let object = |more: Value| {
        let mut schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let other = json!({"type": "object", "properties": {"b": {"type": "integer"}}});
    let nested = json!({"type": "object", "properties": {"c": {"$ref": "#/$defs/C"}}, "$defs": {"C": object(json!({}))}});
    for (schema, admitted, rejected) in [
        (object(json!({})), r#"{"a": 1}"#, Some(r#"{"a": 1, "b": 2}"#)),
        (nested, r#"{"c": {"a": 1}}"#, Some(r#"{"c": {"a": 1, "b": 2}}"#)),
        (json!({"anyOf": [object(json!({})), other]}), r#"{"b": 2}"#, Some(r#"{"a": 1, "b": 2}"#)),
        (object(json!({"additionalProperties": true})), r#"{"a": 1, "b": 2}"#, None),
        (json!({"type": "object"}), r#"{"a": 1, "b": 2}"#, None),
        (object(json!({"required": ["b"]})), r#"{"a": 1, "b": 2}"#, Some(r#"{"a": 1}"#)),
        (json!({"type": "object", "properties": {}, "minProperties": 1}), r#"{"b": 2}"#, Some("{}")),
        (object(json!({"anyOf": [other]})), r#"{"a": 1, "b": 2}"#, None),
        (json!({"allOf": [object(json!({})), other]}), r#"{"a": 1, "b": 2}"#, Some(r#"{"b": "x"}"#)),
    ] {
        let constraint = Constraint::Calls(Box::new(CallGrammar {
            layout: dialect.layout().clone(),
            functions: vec![("one".to_owned(), schema.clone())],
            calls_max: 1,
            answer: None,
        }));
        let is_admitted = |arguments: &str| {
            let text =
                format!("<tool_call>\n{{\"name\": \"one\", \"arguments\": {arguments}}}\n</tool_call>");
            admits(&tokenizer, &compiler, &constraint, &text)
        };
        assert!(is_admitted(admitted), "{schema}: {admitted}");
        assert!(!rejected.is_some_and(is_admitted), "{schema}: {rejected:?}");
    }
}

#[test]
fn structural_tags_admit_the_texts_that_they_describe() {
    let tokenizer = llama();
    let compiler = compiler(&tokenizer, false);
    let integer = json!({"type": "json_schema", "json_schema": {"type": "integer"}});
    let tag =
        |begin: &str, content: &Value, end: &str| json!({"begin": begin, "content": content, "end": end});
    let tags = json!([tag("<a>", &integer, "</a>"), tag("<b=1>", &json!({"type": "any_text"}), "</b>")]);
    let triggered = |fields: Value| {
        let mut format = json!({"type": "triggered_tags", "triggers": ["<a", "<b"], "tags": tags});
        format.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"format": format})
    };
    let separated = json!({"type": "tags_with_separator", "tags": tags, "separator": ","});
    let word = json!({"type": "regex", "pattern": "[a-z]+"});
    let typed = json!({"type": "tag", "begin": "[", "content": word, "end": ["]", ")"]});
    let repeated = json!({"format": {"type": "repeat", "content": typed, "min": 1, "max": 2}});
    let either = json!({"type": "or", "elements": [word, integer]});
    let nested = json!({"format": {"type": "tag", "begin": "<t>", "content": either, "end": "<u>"}});
    let older = json!({"structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f"]});
    for (format, admitted, rejected) in [
        (
            triggered(json!({})),
            vec!["x", "x<a>5</a>y", "<a>5</a>", "<b=1>x<a>y</b><a>7</a>"],
            vec!["x<a>y</a>", "<b=2>", "<a>5"],
        ),
        (triggered(json!({"at_least_one": true})), vec!["<a>5</a>x", "<b=1></b>"], vec!["x", "x<a>5</a>"]),
        (triggered(json!({"stop_after_first": true})), vec!["x<a>5</a>", "x"], vec!["<a>5</a>x"]),
        (triggered(json!({"excludes": ["no"]})), vec!["x<a>5</a>y"], vec!["no", "x<a>5</a>no", "no<a>5</a>"]),
        (older, vec!["x<f>5</f>y", "x"], vec!["<f>x</f>", "<f>"]),
        (
            json!({"type": "structural_tag", "format": separated}),
            vec!["<a>5</a>,<b=1>x</b>", "<a>1</a>"],
            vec!["<a>5</a><a>5</a>", "x"],
        ),
        (
            json!({"format": {"type": "sequence", "elements": [word, {"type": "const_string", "value": ": "}, integer]}}),
            vec!["x: 5"],
            vec!["x5", "x: "],
        ),
        (json!({"format": either}), vec!["x", "5"], vec!["x5"]),
        (repeated, vec!["[x]", "[x][y]"], vec!["", "[x][y][z]", "[5]"]),
        (nested, vec!["<t>x<u>", "<t>5<u>"], vec!["<t>x", "<t><u>"]),
    ] {
        let constraint = Constraint::Structural(Box::new(StructuralFormat::read(&format).unwrap()));
        for (texts, want) in [(admitted, true), (rejected, false)] {
            for text in texts {
                assert_eq!(admits(&tokenizer, &compiler, &constraint, text), want, "{format}: {text:?}");
            }
        }
    }
}

#[test]
fn structural_tags_that_cannot_be_followed_are_rejected_with_their_reason() {
    let tokenizer = llama();
    let compiler = compiler(&tokenizer, false);
    let text = json!({"type": "any_text"});
    let of = |format: Value| json!({"format": format});
    let unique = json!({"type": "json_schema", "json_schema": {"uniqueItems": true}});
    let tag = json!({"begin": "<a>", "content": text, "end": "</a>"});
    for (value, reason) in [
        (json!({}), "either `format`, or `structures` and `triggers`"),
        (json!({"formats": {}}), "unknown field `formats`"),
        (of(json!({"type": "token", "token": 5})), "unknown variant `token`"),
        (
            of(json!({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"})),
            "unknown variant `qwen_xml`",
        ),
        (of(json!({"type": "sequence", "elements": [text, text]})), "at the end of the text or of a tag"),
        (of(json!({"type": "or", "elements": []})), "an empty list of alternatives"),
        (
            of(json!({"type": "triggered_tags", "triggers": ["<b"], "tags": [tag]})),
            "no tag begins with the trigger `<b`",
        ),
        (
            of(json!({"type": "triggered_tags", "triggers": [], "tags": [tag]})),
            "no trigger is the beginning of the tag `<a>`",
        ),
        (
            of(json!({"type": "triggered_tags", "triggers": [""], "tags": [tag]})),
            "a trigger of a structural tag is empty",
        ),
        (of(json!({"type": "tag", "begin": "a", "content": text, "end": []})), "a tag has no `end`"),
        (of(unique), "the keyword `uniqueItems`"),
        (of(json!({"type": "grammar", "grammar": "start: %json {}"})), "`%json`"),
        (of(json!({"type": "triggered_tags", "triggers": vec!["<"; 10_000], "tags": [tag]})), "too large"),
        (
            of(json!({"type": "tag", "begin": "", "end": vec!["x"; 6000],
                "content": {"type": "or", "elements": vec![json!({"type": "any_text"}); 1000]}})),
            "too large",
        ),
    ] {
        let error = match StructuralFormat::read(&value) {
            Ok(format) => compiler.compile(&Constraint::Structural(Box::new(format))).unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains(reason), "{value}: {error}");
    }
}
