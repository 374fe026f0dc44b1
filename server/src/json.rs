//! JSON to wire types, and what is wrong with it: a 400 that names the field at fault, and for an unknown
//! field the nearest known one.

use ntl_common::similar::most_similar;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::AppError;

/// Names that other APIs have for a field of this one.
const FOREIGN_NAMES: [(&str, &str); 22] = [
    ("do_sample", "temperature"),
    ("grammar", "structured_outputs"),
    ("guided_json_object", "structured_outputs"),
    ("guided_whitespace_pattern", "structured_outputs"),
    ("input", "prompt"),
    ("inputs", "prompt"),
    ("json_schema", "structured_outputs"),
    ("max_gen_toks", "max_tokens"),
    ("max_length", "max_tokens"),
    ("max_new_tokens", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("messages", "prompt"),
    ("n_predict", "max_tokens"),
    ("n_probs", "logprobs"),
    ("num_beams", "beam_width"),
    ("num_predict", "max_tokens"),
    ("num_return_sequences", "n"),
    ("prompt", "messages"),
    ("regex", "structured_outputs"),
    ("repeat_penalty", "repetition_penalty"),
    ("stop_sequences", "stop"),
    ("until", "stop"),
];

/// Reads the body of a request.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, AppError> {
    // Serde would read a list as the fields of a struct in order.
    if body.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|&first| first != b'{') {
        serde_json::from_slice::<serde::de::IgnoredAny>(body).map_err(|error| not_json(&error))?;
        return Err(AppError::Invalid { message: "the body must be a JSON object".to_owned(), param: None });
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        let param = (path != ".").then_some(path);
        if error.is_data() {
            return wrong_value(param, &error);
        }
        // Serde calls a list where it expects a name a fault of the JSON.
        match (serde_json::from_slice::<Value>(body), param) {
            (Ok(_), Some(param)) => AppError::field(&param, "has a value of the wrong type"),
            _ => not_json(&error),
        }
    })?;
    json.end().map_err(|error| not_json(&error))?;
    Ok(value)
}

fn not_json(error: &serde_json::Error) -> AppError {
    AppError::Invalid { message: format!("the body is not valid JSON: {error}"), param: None }
}

/// Reads a part of a body.
pub(crate) fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, AppError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        wrong_value(Some(path).filter(|path| path != "."), &error.into_inner())
    })
}

fn wrong_value(param: Option<String>, error: &serde_json::Error) -> AppError {
    let text = in_words_of_json(&error.to_string());
    // Serde lists the known names after the unknown one.
    let mut names = text.split('`').skip(1).step_by(2);
    if let (true, Some(path), Some(name)) = (text.starts_with("unknown field `"), &param, names.next()) {
        // The path of a field in an enum ends at the enum.
        let is_last = path.rsplit('.').next() == Some(name);
        let path = if is_last { path.clone() } else { format!("{path}.{name}") };
        return unknown_field(&path, names);
    }
    let field = param.as_deref().map(|path| format!("`{path}`: ")).unwrap_or_default();
    AppError::Invalid { message: format!("{field}{text}"), param }
}

/// Serde's message, without the names of this program's types.
fn in_words_of_json(message: &str) -> String {
    let mut message = message.to_owned();
    for (rust_name, json_name) in [("sequence", "list"), ("map", "object"), ("floating point ", "number ")] {
        if let Some(rest) = message.strip_prefix(&format!("invalid type: {rust_name}")) {
            message = format!("invalid type: {json_name}{rest}");
            break;
        }
    }
    // The value in the request is first, and may be quoted.
    let Some((value, expected)) = message.rsplit_once(", expected ") else { return message };
    let (expected, position) = match expected.find(" at line ") {
        Some(at) => expected.split_at(at),
        None => (expected, ""),
    };
    let expected = match expected {
        "u32" | "u64" => "a whole number of at least 0",
        "i64" => "a whole number of at most 64 bits",
        "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "an object",
        name if name.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{value}, expected {expected}{position}")
}

/// Returns the error for an unknown field at `path`; `known` are the valid fields of the same object.
pub(crate) fn unknown_field<'a>(path: &str, known: impl IntoIterator<Item = &'a str>) -> AppError {
    let (parent, name) = match path.rfind('.') {
        Some(dot) => path.split_at(dot + 1),
        None => ("", path),
    };
    let hint = nearest(name, known).map(|near| format!("; did you mean `{parent}{near}`?"));
    AppError::field(path, format!("is not a field of this request{}", hint.unwrap_or_default()))
}

/// Returns the known name that a name of another API stands for, otherwise the most similar one.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let known: Vec<&str> = known.into_iter().collect();
    let translated = foreign_name(name).filter(|translated| known.contains(translated));
    // `translated` borrows from the table, the result from the list.
    let translated = translated.and_then(|name| known.iter().copied().find(|one| *one == name));
    translated.or_else(|| most_similar(name, known))
}

/// Returns this API's name for a field of another API.
pub(crate) fn foreign_name(name: &str) -> Option<&'static str> {
    FOREIGN_NAMES.iter().find(|(foreign, _)| *foreign == name).map(|(_, field)| *field)
}

#[cfg(test)]
mod tests {
    use ntl_api::{CompletionRequest, ScoreRequest};

    use super::*;

    #[test]
    fn what_is_wrong_in_a_body_is_found_and_its_field_named() {
        for (body, param, message) in [
            (&b""[..], None, "not valid JSON"),
            (b"{", None, "not valid JSON"),
            (b"{} x", None, "not valid JSON"),
            (b"[1, 2]", None, "must be a JSON object"),
            (b"[1, 2", None, "not valid JSON"),
            (b"null", None, "must be a JSON object"),
            (b"\"x\"", None, "must be a JSON object"),
            (b"{\"prompt\": \"\xff\"}", None, "not valid JSON"),
            (b"{\"prompt\": \"\\ud800\"}", None, "not valid JSON"),
            (b"{\"temperature\": 1e400}", None, "not valid JSON"),
            (b"{\"temperature\": NaN}", None, "not valid JSON"),
            (b"{\"n\": 1.5}", Some("n"), "expected a whole number of at least 0 at line 1"),
            (b"{\"n\": -1}", Some("n"), "expected a whole number of at least 0 at line 1"),
            (b"{\"n\": \"1\"}", Some("n"), "expected a whole number of at least 0 at line 1"),
            (b"{\"n\": 1, \"n\": 2}", None, "duplicate field `n`"),
            (
                b"{\"seed\": 9223372036854775808}",
                Some("seed"),
                "expected a whole number of at most 64 bits at line 1",
            ),
            (
                b"{\"temperature\": \", expected u64\"}",
                Some("temperature"),
                "\", expected a number at line 1",
            ),
            (
                b"{\"temperature\": [1]}",
                Some("temperature"),
                "invalid type: list, expected a number at line 1",
            ),
            (b"{\"stream_options\": 1}", Some("stream_options"), "expected an object at line 1"),
            (b"{\"stop_token_ids\": 1}", Some("stop_token_ids"), "expected a list at line 1"),
            (
                b"{\"stop_token_ids\": [4294967296]}",
                Some("stop_token_ids[0]"),
                "expected a whole number of at least 0",
            ),
            (b"{\"prompt\": 5}", Some("prompt"), "a list of token ids"),
            (b"{\"prompt\": [-1]}", Some("prompt"), "a list of token ids"),
            (b"{\"prompt\": [1, \"a\"]}", Some("prompt"), "a list of token ids"),
            (b"{\"stop\": [1]}", Some("stop"), "a list of strings"),
            (
                b"{\"stream_options\": {\"include_usage\": 1}}",
                Some("stream_options.include_usage"),
                "a boolean",
            ),
            (b"{\"number\": 5}", Some("number"), "true, false or an object"),
            (b"{\"number\": {\"trim\": 0, \"trim\": 0.1}}", Some("number"), "duplicate field `trim`"),
            (
                b"{\"number\": {\"tolerence\": 0.1}}",
                Some("number.tolerence"),
                "did you mean `number.tolerance`?",
            ),
            (
                b"{\"stream_options\": {\"include_usages\": true}}",
                Some("stream_options.include_usages"),
                "did you mean `stream_options.include_usage`?",
            ),
            (
                b"{\"response_format\": {\"type\": \"json_object\", \"schemo\": {}}}",
                Some("response_format.schemo"),
                "is not a field",
            ),
        ] {
            let text = String::from_utf8_lossy(body);
            let Err(AppError::Invalid { message: got, param: at }) = parse::<CompletionRequest>(body) else {
                panic!("{text} was taken")
            };
            assert_eq!(at.as_deref(), param, "{text}: {got}");
            assert!(got.contains(message), "{text}: {got}");
        }
        let deep = format!("{{\"x\": {}1{}}}", "[".repeat(200), "]".repeat(200));
        assert!(parse::<CompletionRequest>(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_list_in_place_of_a_name_is_no_fault_of_the_json() {
        let body = br#"{"items": [{"prompt": "1", "target": "2"}], "losses": ["ce", [false]]}"#;
        let Err(AppError::Invalid { message, param }) = parse::<ScoreRequest>(body) else { panic!("taken") };
        assert_eq!(param.as_deref(), Some("losses[1]"), "{message}");
        assert_eq!(message, "`losses[1]` has a value of the wrong type");
    }

    #[test]
    fn explicit_nulls_are_defaults() {
        let body = br#"{"prompt": "x", "n": null, "stop": null, "stream_options": null, "number": null, "seed": null}"#;
        assert_eq!(parse::<CompletionRequest>(body).unwrap().n, None);
    }
}
