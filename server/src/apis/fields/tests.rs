//! Requests as JSON against what becomes of them: every field's default, range and refusals.

use std::sync::Arc;

use ntl_core::Prompt;
use ntl_core::contract::{NumberMethod, TextJob};
use ntl_core::sampling::SamplingParams;
use ntl_text::guide::{Constraint, StructuralFormat, Whitespace};
use serde_json::{Value, json};

use super::*;
use crate::apis::completions;
use crate::request::{Guided, ReportOptions};

fn read_for(body: &Value, profile: &ModelProfile) -> Result<GenerationRequest, AppError> {
    let request = serde_json::from_value(body.clone()).unwrap();
    completions::generation_request(request, profile).map(|(request, _)| request)
}

fn read(body: &Value) -> Result<GenerationRequest, AppError> {
    read_for(body, &ModelProfile::for_tests())
}

/// The engine's request for a prompt.
fn decoded(request: &GenerationRequest) -> Request {
    request.job(Prompt::from(vec![1]), None).request
}

fn text(body: &Value) -> TextJob {
    match decoded(&read(body).unwrap()) {
        Request::Text(job) => job,
        other => panic!("{other:?}"),
    }
}

/// Every field is the same, guides aside, which cannot be compared: there is none in either.
#[track_caller]
fn assert_same(got: TextJob, want: TextJob) {
    let fields = |job: TextJob| {
        let TextJob {
            n,
            best_of,
            max_tokens,
            min_tokens,
            sampling,
            logit_bias,
            stop,
            stop_token_ids,
            include_stop,
            ignore_eos,
            logprobs,
            logprob_ids,
            prompt_logprobs,
            guide,
            shown_ids,
            fields,
        } = job;
        assert!(guide.is_none() && fields.is_none());
        let numbers = (n, best_of, max_tokens, min_tokens, logprobs, logprob_ids, prompt_logprobs);
        (numbers, sampling, logit_bias, stop, stop_token_ids, include_stop, ignore_eos, shown_ids)
    };
    assert_eq!(fields(got), fields(want));
}

/// Every optional field that is served.
const FIELDS: [&str; 40] = [
    "truncate_prompt_tokens",
    "truncation_side",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "n",
    "best_of",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "min_tokens",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "return_token_ids",
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "return_tokens_as_token_ids",
    "guided_regex",
    "guided_choice",
    "guided_json",
    "guided_grammar",
    "structured_outputs",
    "response_format",
    "number_tokens",
    "stream",
    "stream_options",
    "echo",
    "user",
    "number",
    "suffix",
];

#[test]
fn defaults_are_those_of_the_api_and_an_explicit_null_is_the_default() {
    let mut all_null = json!({"prompt": "x"});
    for field in FIELDS {
        all_null[field] = Value::Null;
    }
    for body in [json!({"prompt": "x"}), all_null] {
        let request = read(&body).unwrap();
        assert!(!request.is_streamed && request.guided.is_none());
        assert_eq!(request.report, ReportOptions::default());
        let job = text(&body);
        assert_eq!(SamplingParams { seed: 0, ..job.sampling }, SamplingParams::PLAIN);
        let job = TextJob { sampling: SamplingParams::GREEDY, ..job };
        assert_same(job, TextJob::default());
    }
}

#[test]
fn fields_reach_the_job() {
    let job = text(
        &json!({"prompt": "x", "max_tokens": 7, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.25,
        "presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.5, "seed": -1, "n": 2, "best_of": 3,
        "stop": ["a", "", "b"], "stop_token_ids": [5], "include_stop_str_in_output": true, "min_tokens": 6,
        "ignore_eos": true, "logprobs": 0, "logprob_token_ids": [9, 3], "logit_bias": {"7": -100, "99": 0.5}}),
    );
    let want = TextJob {
        n: 2,
        best_of: 3,
        max_tokens: 7,
        min_tokens: 6,
        sampling: SamplingParams {
            temperature: 0.0,
            top_p: 0.5,
            top_k: 3,
            min_p: 0.25,
            presence_penalty: -2.0,
            frequency_penalty: 2.0,
            repetition_penalty: 1.5,
            seed: u64::MAX,
        },
        logit_bias: Arc::from([(7, -100.0), (99, 0.5)]),
        stop: vec!["a".to_owned(), "b".to_owned()],
        stop_token_ids: vec![5],
        include_stop: true,
        ignore_eos: true,
        logprobs: Some(0),
        logprob_ids: Arc::from([9, 3]),
        prompt_logprobs: None,
        guide: None,
        shown_ids: Arc::from([]),
        fields: None,
    };
    assert_same(job, want);
    assert_eq!(text(&json!({"prompt": "x", "stop": "a"})).stop, ["a"]);
    assert_eq!(text(&json!({"prompt": "x", "top_k": 0})).sampling.top_k, 0);
    assert_eq!(text(&json!({"prompt": "x", "return_token_ids": true})).logprobs, Some(0));
    let whole = ModelProfile { logprobs_max: None, ..ModelProfile::for_tests() };
    let body = json!({"prompt": "x", "logprobs": -1, "max_tokens": 9});
    assert_eq!(read_for(&body, &whole).unwrap().report.logprobs, Some(whole.tokens));
}

#[test]
fn a_prompt_is_echoed_and_scored_where_it_stands_in_the_same_sequence() {
    let llama = ModelProfile { encoder_decoder: false, ..ModelProfile::for_tests() };
    let scored = |body: &Value| match decoded(&read_for(body, &llama).unwrap()) {
        Request::Text(job) => job.prompt_logprobs,
        other => panic!("{other:?}"),
    };
    for (body, want) in [
        (json!({"prompt": "x", "echo": true}), None),
        (json!({"prompt": "x", "echo": true, "logprobs": 1, "max_tokens": 0}), Some(1)),
        (json!({"prompt": "x", "prompt_logprobs": 3}), Some(3)),
        (json!({"prompt": "x", "prompt_logprobs": 3, "echo": true, "logprobs": 5}), Some(5)),
        (json!({"prompt": "x", "logprobs": 5}), None),
    ] {
        assert_eq!(scored(&body), want, "{body}");
    }
    for field in ["echo", "prompt_logprobs"] {
        let mut body = json!({"prompt": "x"});
        body[field] = if field == "echo" { json!(true) } else { json!(0) };
        let error = read(&body).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some(field));
        assert!(error.to_string().contains("/v1/score"), "{error}");
    }
}

fn json_of(schema: &Value) -> Constraint {
    Constraint::Json { schema: schema.clone(), whitespace: Whitespace::default() }
}

#[test]
fn structured_outputs_have_one_kind_and_whitespace_only_with_json() {
    let schema = json!({"type": "integer"});
    let json = |whitespace| Constraint::Json { schema: schema.clone(), whitespace };
    for (value, param, want) in [
        (json!({"regex": "a"}), "structured_outputs.regex", Constraint::Regex("a".to_owned())),
        (json!({"choice": ["a"]}), "structured_outputs.choice", Constraint::Choice(vec!["a".to_owned()])),
        (json!({"grammar": "g"}), "structured_outputs.grammar", Constraint::Grammar("g".to_owned())),
        (json!({"json_object": true}), "structured_outputs.json_object", json_of(&json!({"type": "object"}))),
        (json!({"json": {}}), "structured_outputs.json", json_of(&json!({}))),
        (json!({"json": schema}), "structured_outputs.json", json(Whitespace::Bounded)),
        (
            json!({"json": schema, "disable_any_whitespace": true}),
            "structured_outputs.json",
            json(Whitespace::None),
        ),
        (
            json!({"json": schema.to_string(), "whitespace_pattern": " ?"}),
            "structured_outputs.json",
            json(Whitespace::Pattern(" ?".to_owned())),
        ),
    ] {
        let request = read(&json!({"prompt": "x", "structured_outputs": value})).unwrap();
        assert_eq!(request.guided, Some(Guided { param, constraint: want }), "{value}");
    }
    let open = json!({"properties": {"a": {"patternProperties": {"b": {}}, "additionalProperties": {}}}, "items": [{"properties": {}}], "enum": [{"properties": {}}]});
    let closed = json!({"properties": {"a": {"patternProperties": {"b": {}}, "additionalProperties": {}}}, "items": [{"properties": {}, "additionalProperties": false}],
        "enum": [{"properties": {}}], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"schema": open}});
    let fields = json!({"disable_additional_properties": true});
    let request =
        read(&json!({"prompt": "x", "structured_outputs": fields, "response_format": format})).unwrap();
    assert_eq!(request.guided.map(|guided| guided.constraint), Some(json_of(&closed)));
    let format = json!({"type": "json_object"});
    let body = json!({"prompt": "x", "structured_outputs": {"disable_any_whitespace": true}, "response_format": format});
    let constraint = Constraint::Json { schema: json!({"type": "object"}), whitespace: Whitespace::None };
    assert_eq!(read(&body).unwrap().guided, Some(Guided { param: "response_format", constraint }));
    for (mut body, param, message) in [
        (
            json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}),
            "structured_outputs.choice",
            "another",
        ),
        (json!({"structured_outputs": {"regex": "a"}, "guided_json": {"a": 1}}), "guided_json", "another"),
        (
            json!({"structured_outputs": {"regex": "a"}, "response_format": format}),
            "response_format",
            "another constraint",
        ),
        (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json", "must be a JSON schema"),
        (
            json!({"structured_outputs": {"choice": []}}),
            "structured_outputs.choice",
            "must not be an empty list",
        ),
        (
            json!({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
            "structured_outputs.whitespace_pattern",
            "is only allowed with JSON",
        ),
        (
            json!({"structured_outputs": {"disable_any_whitespace": true}}),
            "structured_outputs.disable_any_whitespace",
            "is only allowed with JSON",
        ),
        (
            json!({"structured_outputs": {"regex": "a", "disable_additional_properties": true}}),
            "structured_outputs.disable_additional_properties",
            "is only allowed with JSON",
        ),
        (
            json!({"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": true}}),
            "structured_outputs.disable_any_whitespace",
            "is not allowed with `structured_outputs.whitespace_pattern`",
        ),
        (
            json!({"structured_outputs": {"json": {}, "whitespace_pattern": " ".repeat(257)}}),
            "structured_outputs.whitespace_pattern",
            "at most 256 bytes",
        ),
        (
            json!({"structured_outputs": {"grammar": "x".repeat(70_000)}}),
            "structured_outputs.grammar",
            "at most 65536 bytes",
        ),
        (json!({"structured_outputs": {"regex": "a"}, "number": {}}), "structured_outputs.regex", "`number`"),
    ] {
        body["prompt"] = "x".into();
        let error = read(&body).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some(param), "{body}");
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn structural_tags_are_objects_or_texts_in_two_fields() {
    let format = json!({"type": "const_string", "value": "a"});
    let tag = json!({"format": format});
    let structures = json!([{"begin": "<a>", "schema": {}, "end": "</a>"}]);
    let older = json!({"type": "structural_tag", "structures": structures, "triggers": ["<"]});
    for (field, value, param, want) in [
        ("structured_outputs", json!({"structural_tag": tag}), "structured_outputs.structural_tag", &tag),
        (
            "structured_outputs",
            json!({"structural_tag": tag.to_string()}),
            "structured_outputs.structural_tag",
            &tag,
        ),
        ("response_format", json!({"type": "structural_tag", "format": format}), "response_format", &tag),
        ("response_format", older.clone(), "response_format", &older),
    ] {
        let constraint = Constraint::Structural(Box::new(StructuralFormat::read(want).unwrap()));
        let request = read(&json!({"prompt": "x", field: value})).unwrap();
        assert_eq!(request.guided, Some(Guided { param, constraint }), "{value}");
    }
    for (fields, param, message) in [
        (
            json!({"structured_outputs": {"structural_tag": "x"}}),
            "structured_outputs.structural_tag",
            "must be a JSON object",
        ),
        (
            json!({"structured_outputs": {"structural_tag": {}}}),
            "structured_outputs.structural_tag",
            "either `format`",
        ),
        (
            json!({"response_format": {"type": "structural_tag", "format": {"type": "token"}}}),
            "response_format",
            "unknown variant",
        ),
        (
            json!({"structured_outputs": {"structural_tag": tag, "regex": "a"}}),
            "structured_outputs.structural_tag",
            "another",
        ),
    ] {
        let mut body = fields;
        body["prompt"] = "x".into();
        let error = read(&body).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some(param), "{body}");
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn a_text_is_held_to_what_one_field_says() {
    let schema = json!({"type": "integer"});
    let object = json!({"type": "object"});
    for (field, value, want) in [
        ("guided_regex", json!("[0-9]+"), Constraint::Regex("[0-9]+".to_owned())),
        ("guided_choice", json!(["a", "b"]), Constraint::Choice(vec!["a".to_owned(), "b".to_owned()])),
        ("guided_json", schema.clone(), json_of(&schema)),
        ("guided_json", json!("{\"type\": \"integer\"}"), json_of(&schema)),
        ("guided_grammar", json!("start: \"a\""), Constraint::Grammar("start: \"a\"".to_owned())),
        ("response_format", json!({"type": "json_object"}), json_of(&object)),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}}),
            json_of(&schema),
        ),
    ] {
        let mut body = json!({"prompt": "x"});
        body[field] = value;
        let request = read(&body).unwrap();
        assert_eq!(request.guided, Some(Guided { param: field, constraint: want }), "{body}");
    }
    for (field, value) in [
        ("guided_regex", json!("")),
        ("guided_choice", json!([])),
        ("guided_json", json!({})),
        ("guided_grammar", json!("")),
        ("structured_outputs", json!({"json": null, "json_object": false, "disable_any_whitespace": false})),
        ("response_format", json!({"type": "text"})),
    ] {
        let mut body = json!({"prompt": "x"});
        body[field] = value;
        assert_eq!(read(&body).unwrap().guided, None, "{body}");
    }
}

#[test]
fn prompts_of_one_request_share_a_seed_only_if_it_was_given() {
    let seeds = |body: &Value| {
        let request = read(body).unwrap();
        [(); 2].map(|()| match decoded(&request) {
            Request::Text(job) => (Some(job.sampling.seed), None),
            Request::Number(job) => {
                let drawn = match job.method {
                    NumberMethod::Sample { sampling, .. } => Some(sampling.seed),
                    _ => None,
                };
                (job.after.map(|after| after.sampling.seed), drawn)
            }
            other => panic!("{other:?}"),
        })
    };
    let sample = json!({"method": "sample"});
    let after = json!({"method": "sample", "after": "#"});
    assert_eq!(seeds(&json!({"prompt": "x", "seed": 5})), [(Some(5), None); 2]);
    assert_eq!(seeds(&json!({"prompt": "x", "seed": 5, "number": sample})), [(None, Some(5)); 2]);
    // Texts and numbers are drawn by different random numbers.
    assert_eq!(seeds(&json!({"prompt": "x", "seed": 5, "number": after})), [(Some(5), Some(!5)); 2]);
    for body in [json!({"prompt": "x"}), json!({"prompt": "x", "number": after})] {
        let [first, second] = seeds(&body);
        assert_ne!(first.0, second.0);
    }
}

/// Checks that the error about a value names its field.
fn refused(field: &str, value: &Value) {
    let mut body = json!({"prompt": "x"});
    body[field] = value.clone();
    let error = read(&body).unwrap_err();
    assert_eq!(error.body().error.param.as_deref(), Some(field), "{value}");
}

#[test]
fn a_prompt_is_truncated_on_the_side_of_the_model_unless_the_request_states_another() {
    let truncation = |fields: Value| {
        let mut body = json!({"prompt": "x"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        read(&body).unwrap().truncation
    };
    let left = TruncationSide::Left;
    let right = TruncationSide::Right;
    assert_eq!(truncation(json!({"truncation_side": "left"})), None);
    for (fields, tokens_max, side) in [
        (json!({"truncate_prompt_tokens": 5}), 5, right),
        (json!({"truncate_prompt_tokens": -1}), 8, right),
        (json!({"truncate_prompt_tokens": 8, "truncation_side": "left"}), 8, left),
        (json!({"truncate_prompt_tokens": 1, "truncation_side": "right"}), 1, right),
    ] {
        assert_eq!(truncation(fields), Some(Truncation { tokens_max, side }));
    }
}

#[test]
fn what_sampling_is_made_of_has_ranges() {
    for (field, value) in [
        ("temperature", json!(-0.1)),
        ("temperature", json!(2.1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.1)),
        ("top_k", json!(-2)),
        ("min_p", json!(-0.1)),
        ("min_p", json!(1.1)),
        ("presence_penalty", json!(-2.1)),
        ("presence_penalty", json!(2.1)),
        ("frequency_penalty", json!(-2.1)),
        ("frequency_penalty", json!(2.1)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(-1)),
        ("repetition_penalty", json!(101)),
        ("logit_bias", json!({"5": 100.1})),
        ("logit_bias", json!({"5": -100.1})),
        ("logit_bias", json!({"100": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!({"five": 1})),
        ("min_tokens", json!(17)),
        ("stop", json!(["a", "b", "c", "d", "e"])),
        ("stop", json!("x".repeat(1025))),
        ("stop_token_ids", json!([100])),
        ("stop_token_ids", json!(vec![5; 1025])),
    ] {
        refused(field, &value);
    }
}

#[test]
fn everything_else_has_ranges() {
    for (field, value) in [
        ("prompt", json!([])),
        ("prompt", json!(vec!["a"; 1025])),
        ("prompt", json!(null)),
        ("truncate_prompt_tokens", json!(0)),
        ("truncate_prompt_tokens", json!(-2)),
        ("truncate_prompt_tokens", json!(9)),
        ("max_tokens", json!(4097)),
        ("max_tokens", json!(u64::MAX)),
        ("n", json!(0)),
        ("n", json!(129)),
        ("best_of", json!(0)),
        ("best_of", json!(129)),
        ("logprobs", json!(21)),
        ("logprobs", json!(-1)),
        ("logprobs", json!(-2)),
        ("prompt_logprobs", json!(21)),
        ("prompt_logprobs", json!(0)),
        ("guided_regex", json!("x".repeat(70_000))),
        ("guided_choice", json!(["a", ""])),
        ("guided_choice", json!(vec!["a"; 1025])),
        ("guided_json", json!("no JSON")),
        ("guided_json", json!([1])),
        ("response_format", json!({"type": "json_schema", "json_schema": {"schema": 5}})),
        ("stream_options", json!({"include_usage": true})),
        ("echo", json!(true)),
        ("number_tokens", json!(true)),
        ("allowed_token_ids", json!([4_000_000])),
        ("bad_words", json!([""])),
        ("bad_words", json!(vec!["a"; 1025])),
        ("bad_words", json!(["a".repeat(1025)])),
        ("suffix", json!("x")),
        ("beam_width", json!(4)),
        ("length_penalty", json!(2)),
        ("early_stopping", json!("never")),
    ] {
        refused(field, &value);
    }
}

#[test]
fn fields_that_do_not_go_together_are_refused_by_name() {
    for (body, param) in [
        (json!({"n": 3, "best_of": 2}), "best_of"),
        (json!({"best_of": 2, "stream": true}), "best_of"),
        (json!({"guided_regex": "a", "guided_choice": ["b"]}), "guided_choice"),
        (json!({"guided_regex": "a", "response_format": {"type": "json_object"}}), "response_format"),
        (json!({"guided_regex": "a", "ignore_eos": true}), "guided_regex"),
        (json!({"guided_choice": ["a"], "min_tokens": 1}), "guided_choice"),
    ] {
        let mut all = body.clone();
        all["prompt"] = "x".into();
        assert_eq!(read(&all).unwrap_err().body().error.param.as_deref(), Some(param), "{body}");
    }
    let llama = ModelProfile { encoder_decoder: false, ..ModelProfile::for_tests() };
    let error = read_for(&json!({"prompt": "x", "stream": true, "prompt_logprobs": 1}), &llama).unwrap_err();
    assert_eq!(error.body().error.param.as_deref(), Some("prompt_logprobs"));
    let many = read(&json!({"prompt": vec!["a"; 9], "n": 128})).unwrap_err();
    assert_eq!(many.to_string(), "`n` asks for 1152 texts with 9 prompts; at most 1024");
    let number = json!({"after": "#", "rationales": 64});
    let many = read(&json!({"prompt": vec!["a"; 17], "number": number})).unwrap_err();
    assert_eq!(many.to_string(), "`number.rationales` asks for 1088 texts with 17 prompts; at most 1024");
}

#[test]
fn the_text_before_a_number_has_the_sampling_of_the_request_and_more_tokens() {
    let mut body = json!({"prompt": "x", "number": {"after": "#"}, "temperature": 0.5, "top_p": 0.25, "seed": 5, "top_k": 9,
            "repetition_penalty": 2});
    let after = |body: &Value, profile: &ModelProfile| match read_for(body, profile)
        .unwrap()
        .job(Prompt::from(vec![1]), None)
        .request
    {
        Request::Number(job) => job.after.unwrap(),
        other => panic!("{other:?}"),
    };
    let by_default = after(&body, &ModelProfile::for_tests());
    assert_eq!(
        by_default.sampling,
        SamplingParams {
            temperature: 0.5,
            top_p: 0.25,
            seed: 5,
            top_k: 9,
            repetition_penalty: 2.0,
            ..SamplingParams::PLAIN
        }
    );
    assert_eq!(by_default.max_tokens, 256);
    assert_eq!(
        after(&body, &ModelProfile { output_tokens_max: 99, ..ModelProfile::for_tests() }).max_tokens,
        99
    );
    body["max_tokens"] = json!(3);
    assert_eq!(after(&body, &ModelProfile::for_tests()).max_tokens, 3);
    body = json!({"prompt": "x", "number": {"after": "#"}, "max_tokens": 0});
    assert_eq!(read(&body).unwrap_err().body().error.param.as_deref(), Some("max_tokens"));
    assert!(read(&json!({"prompt": "x", "number": {}, "max_tokens": 0})).is_ok());
}

#[test]
fn a_number_excludes_what_belongs_to_texts() {
    for (field, value) in [
        ("n", json!(2)),
        ("logprobs", json!(1)),
        ("stop", json!("x")),
        ("echo", json!(true)),
        ("number_tokens", json!(true)),
        ("best_of", json!(2)),
        ("logit_bias", json!({"5": 1})),
        ("allowed_token_ids", json!([5])),
        ("bad_words", json!(["x"])),
        ("min_tokens", json!(1)),
        ("ignore_eos", json!(true)),
        ("stop_token_ids", json!([5])),
        ("include_stop_str_in_output", json!(true)),
        ("return_token_ids", json!(true)),
        ("prompt_logprobs", json!(1)),
        ("guided_regex", json!("a")),
        ("guided_choice", json!(["a"])),
        ("guided_grammar", json!("start: \"a\"")),
    ] {
        let mut body = json!({"prompt": "x", "number": {}});
        body[field] = value;
        assert_eq!(read(&body).unwrap_err().body().error.param.as_deref(), Some(field));
    }
    for number in [json!(true), json!({})] {
        let request = read(&json!({"prompt": "x", "number": number})).unwrap();
        assert!(matches!(request.decoding, Request::Number(_)));
    }
    let structured = json!({"prompt": "x", "number": {}, "n": 2, "guided_json": {"type": "integer"}});
    let structured = read(&structured).unwrap().decoding;
    assert!(matches!(structured, Request::Text(TextJob { n: 2, fields: Some(_), .. })));
    let no_numbers = json!({"prompt": "x", "number": {}, "response_format": {"type": "json_object"}});
    assert_eq!(read(&no_numbers).unwrap_err().body().error.param.as_deref(), Some("number"));
    let off = read(&json!({"prompt": "x", "number": false})).unwrap();
    assert!(matches!(off.decoding, Request::Text(_)));
    let mute = ModelProfile { spells_numbers: false, ..ModelProfile::for_tests() };
    let request = json!({"prompt": "x", "number": true});
    assert_eq!(read_for(&request, &mute).unwrap_err().body().error.param.as_deref(), Some("number"));
}

#[test]
fn a_number_at_once_has_no_sampling() {
    for (field, value) in [
        ("temperature", json!(0.5)),
        ("top_p", json!(0.5)),
        ("top_k", json!(3)),
        ("min_p", json!(0.5)),
        ("repetition_penalty", json!(2)),
        ("presence_penalty", json!(1)),
        ("frequency_penalty", json!(1)),
    ] {
        let mut body = json!({"prompt": "x", "number": {}});
        body[field] = value;
        let error = read(&body).unwrap_err();
        assert_eq!(error.body().error.param.as_deref(), Some(field));
        assert!(error.to_string().contains("`number.after`"), "{error}");
        body["number"] = json!({"after": "#"});
        assert!(read(&body).is_ok(), "{body}");
    }
    for (method, greedy) in [("tree", true), ("beam", true), ("token", true), ("sample", false)] {
        let body = |temperature: u8| json!({"prompt": "x", "number": {"method": method}, "temperature": temperature});
        assert!(read(&body(1)).is_ok(), "{method}");
        assert_eq!(read(&body(0)).is_ok(), greedy, "{method}");
    }
}
