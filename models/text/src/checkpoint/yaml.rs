//! Finds single values in a YAML file of settings, such as the `config.yaml` of the paper's trainer.
//!
//! It reads the parser's events but builds no tree and follows no aliases, so that a hostile file costs no
//! more than reading it.

use saphyr_parser::{Event, Parser, ScalarStyle};

/// The section whose value is preferred if several sections contain the key.
const PREFERRED: &str = "model_args";

/// A list or mapping that encloses the current event.
enum Level {
    List,
    /// A mapping, with the key whose value comes next, or `None` if a key comes next.
    Mapping(Option<String>),
}

/// Returns the value of `key` at the top level or one level below, or `None` if there is none or it is null.
pub(super) fn find(text: &str, key: &str) -> Result<Option<String>, String> {
    let mut levels = Vec::new();
    let mut values = Vec::<(Option<String>, String)>::new();
    for event in Parser::new_from_str(text) {
        match event.map_err(|error| error.to_string())?.0 {
            Event::MappingStart(..) => levels.push(Level::Mapping(None)),
            Event::SequenceStart(..) => levels.push(Level::List),
            Event::MappingEnd | Event::SequenceEnd => {
                levels.pop();
                passed(&mut levels, None);
            }
            Event::Alias(_) => passed(&mut levels, None),
            Event::Scalar(text, style, ..) => {
                let is_null =
                    style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                if let Some(section) = section(&levels, key)
                    && !is_null
                {
                    values.push((section.map(str::to_owned), text.clone().into_owned()));
                }
                passed(&mut levels, Some(&text));
            }
            // Only the first document is read.
            Event::DocumentEnd => break,
            _ => {}
        }
    }
    let preferred = values.into_iter().min_by_key(|(section, _)| rank(section.as_deref()));
    Ok(preferred.map(|(_, value)| value))
}

/// The order in which sections are preferred.
fn rank(section: Option<&str>) -> u8 {
    match section {
        None => 0,
        Some(PREFERRED) => 1,
        Some(_) => 2,
    }
}

/// Returns `Some` if the next value belongs to `key`: `Some(Some(section))` inside a section, `Some(None)` at
/// the top level.
fn section<'l>(levels: &'l [Level], key: &str) -> Option<Option<&'l str>> {
    match levels {
        [Level::Mapping(Some(at))] if at == key => Some(None),
        [Level::Mapping(Some(section)), Level::Mapping(Some(at))] if at == key => Some(Some(section)),
        _ => None,
    }
}

/// Records that a key or a value of the innermost level has ended.
fn passed(levels: &mut [Level], text: Option<&str>) {
    if let Some(Level::Mapping(key)) = levels.last_mut() {
        *key = match key {
            Some(_) => None,
            None => Some(text.unwrap_or_default().to_owned()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINER: &str = "training_args:\n  trial: a\n  log_scale_embeddings: other section\nmodel_args:\n  name: xval\n  \
                           number_encoding: xval\n  log_scale_embeddings: true\n  lists: [1, {log_scale_embeddings: no}]\n  \
                           nothing: null\nrun_specific_config: config\n";

    #[test]
    fn a_value_is_found_at_the_top_or_one_level_below() {
        for (text, key, want) in [
            (TRAINER, "log_scale_embeddings", Some("true")),
            (TRAINER, "run_specific_config", Some("config")),
            (TRAINER, "trial", Some("a")),
            (TRAINER, "nothing", None),
            (TRAINER, "absent", None),
            (
                "log_scale_embeddings: false\nmodel_args: {log_scale_embeddings: true}",
                "log_scale_embeddings",
                Some("false"),
            ),
            ("a: {b: {deep: 1}}", "deep", None),
            ("? [complex, key]\n: 1\ndeep: 2", "deep", Some("2")),
            ("a: &x 1\nb: *x\ndeep: 'null'", "deep", Some("null")),
            ("just text", "deep", None),
            ("", "deep", None),
        ] {
            assert_eq!(find(text, key).unwrap().as_deref(), want, "{key} in {text}");
        }
    }

    #[test]
    fn invalid_yaml_is_an_error_and_nesting_and_aliases_are_harmless() {
        assert!(find("a: [1, 2", "a").is_err());
        assert!(find("a: b: c: d", "a").is_err());
        let laughs = (0..30).fold("a0: &a0 [lol]\n".to_owned(), |text, level| {
            format!("{text}a{}: &a{} [*a{level}, *a{level}, *a{level}]\n", level + 1, level + 1)
        });
        assert_eq!(find(&format!("{laughs}wanted: 1"), "wanted").unwrap().as_deref(), Some("1"));
        // The nesting is deep enough to overflow the stack of a recursive reader. Whether it is accepted does
        // not matter.
        let _ = find(&"[".repeat(100_000), "a");
    }
}
