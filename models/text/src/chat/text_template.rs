//! A template that writes one text from variables, in the Jinja of chat templates and within the same bounds.

use minijinja::{Environment, Value};
use serde::Serialize;
use serde_json::ser::Serializer;

use super::functions::OneLine;
use super::{ChatError, bounds, environment, failure, one_line};

/// A template of the server or of an operator.
#[derive(Debug)]
pub struct TextTemplate {
    source: String,
    environment: Environment<'static>,
}

impl TextTemplate {
    /// # Errors
    /// If the template does not compile.
    pub fn new(source: impl Into<String>) -> Result<Self, ChatError> {
        let source = source.into();
        bounds::check(&source).map_err(|error| ChatError::Unusable(one_line(&error)))?;
        Ok(Self { source, environment: environment() })
    }

    /// Returns the template as stored.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// # Errors
    /// If the template fails, or exceeds a bound.
    pub fn render(&self, variables: &impl Serialize) -> Result<String, ChatError> {
        bounds::render(&self.environment, &self.source, Value::from_serialize(variables))
            .map_err(|error| failure(&error))
    }
}

/// Writes JSON on one line like Python's `json.dumps` with `ensure_ascii=False`.
pub fn json_line(value: &serde_json::Value) -> String {
    let mut bytes = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut bytes, OneLine));
    debug_assert!(written.is_ok(), "a JSON value can be written");
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_writes_its_variables_and_a_wrong_one_is_rejected() {
        let template = TextTemplate::new("{{ a }}{% for x in b %} {{ x }}{% endfor %}").unwrap();
        assert_eq!(template.render(&json!({"a": "1", "b": ["x", "y"]})).unwrap(), "1 x y");
        assert!(TextTemplate::new("{% for %}").is_err());
        let endless = TextTemplate::new(
            "{% for x in range(100000) %}{% for y in range(100000) %}a{% endfor %}{% endfor %}",
        );
        assert!(endless.unwrap().render(&json!({})).is_err());
    }

    #[test]
    fn json_has_the_separators_of_python_and_no_escapes_of_letters() {
        assert_eq!(json_line(&json!({"a": [1, "東"], "b": null})), r#"{"a": [1, "東"], "b": null}"#);
    }
}
