//! Prompt templates: text with the names of an item's fields in braces.

use std::str::FromStr;

/// A template. `{name}` is replaced by a field, `{{` and `}}` by braces, and `\n`, `\t` and `\\` by a line
/// feed, a tab and a backslash. It has at least one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The template as it was given.
    source: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("`\\{0}` is not an escape sequence; write `\\\\` for a backslash")]
    Escape(String),
    #[error("a `{{` is not closed; write `{{{{` for a brace")]
    Open,
    #[error("a `}}` closes nothing; write `}}}}` for a brace")]
    Close,
    #[error("`{{{0}}}` is not a field name; write `{{{{` for a brace")]
    Name(String),
    #[error("it names no field, such as {{question}}: all prompts would be the same")]
    NoField,
}

/// A field that an item does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownField(pub String);

/// Replaces `\n`, `\t` and `\\` by the characters that they stand for.
pub fn unescaped(text: &str) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        out.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('\\') => '\\',
                other => return Err(TemplateError::Escape(other.map(String::from).unwrap_or_default())),
            },
            plain => plain,
        });
    }
    Ok(out)
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(source: &str) -> Result<Self, TemplateError> {
        Self::parse(source, &unescaped(source)?)
    }
}

impl Template {
    /// Parses the text of a file. Backslashes stay as they are, and the line feed at the end of the text is
    /// removed.
    pub fn from_text(text: &str) -> Result<Self, TemplateError> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        Self::parse(text, text)
    }

    fn parse(source: &str, text: &str) -> Result<Self, TemplateError> {
        let mut rest = text;
        let mut plain = String::new();
        let mut parts = Vec::new();
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let (brace, behind) = rest[at..].split_at(1);
            if let Some(behind) = behind.strip_prefix(brace) {
                plain.push_str(brace);
                rest = behind;
                continue;
            }
            if brace == "}" {
                return Err(TemplateError::Close);
            }
            let (name, behind) = behind.split_once('}').ok_or(TemplateError::Open)?;
            if name.trim().is_empty() || name.contains('{') {
                return Err(TemplateError::Name(name.to_owned()));
            }
            parts.extend([Part::Text(std::mem::take(&mut plain)), Part::Field(name.trim().to_owned())]);
            rest = behind;
        }
        if parts.is_empty() {
            return Err(TemplateError::NoField);
        }
        plain.push_str(rest);
        parts.push(Part::Text(plain));
        Ok(Self { source: source.to_owned(), parts })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn ends_in_space(&self) -> bool {
        matches!(self.parts.last(), Some(Part::Text(text)) if text.ends_with(char::is_whitespace))
    }

    /// Returns whether a text follows the last field, such as `A:`, which the answer continues.
    pub fn ends_in_text(&self) -> bool {
        matches!(self.parts.last(), Some(Part::Text(text)) if !text.is_empty())
    }

    pub fn names(&self, field: &str) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Field(name) if name == field))
    }

    /// Returns the text with the values of its fields.
    pub fn render<'v>(&self, value: impl Fn(&str) -> Option<&'v str>) -> Result<String, UnknownField> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Field(name) => {
                    text.push_str(value(name).ok_or_else(|| UnknownField(name.clone()))?);
                }
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str) -> Result<String, UnknownField> {
        let value = |name: &str| match name {
            "question" => Some("1 + {x}?"),
            "unit" => Some("kg"),
            _ => None,
        };
        template.parse::<Template>().unwrap().render(value)
    }

    #[test]
    fn fields_are_filled_in_once_and_braces_are_doubled() {
        for (template, want) in [
            ("{question}", "1 + {x}?"),
            (r"Q: {question}\nA:", "Q: 1 + {x}?\nA:"),
            ("{{\"q\": { question }, \"in\": \"{unit}\"}}", "{\"q\": 1 + {x}?, \"in\": \"kg\"}"),
            (r"\\{unit}\t", "\\kg\t"),
            ("{{{unit}}}", "{kg}"),
        ] {
            assert_eq!(rendered(template).unwrap(), want, "{template}");
        }
        let ends_in_space = |template: &str| template.parse::<Template>().unwrap().ends_in_space();
        let ends = [r"{unit}\n", "{unit}", "{unit}: ", "{unit}:"].map(ends_in_space);
        assert_eq!(ends, [true, false, true, false]);
        assert_eq!(rendered("{question} {units}"), Err(UnknownField("units".to_owned())));
    }

    #[test]
    fn a_file_keeps_its_line_feeds_and_backslashes() {
        for (text, want) in [
            ("{unit}\n\\d\n", "kg\n\\d"),
            ("{unit}\r\n", "kg"),
            ("{unit}\n\n", "kg\n"),
            ("{{{unit}}}", "{kg}"),
        ] {
            let found = Template::from_text(text).unwrap().render(|_| Some("kg")).unwrap();
            assert_eq!(found, want, "{text:?}");
        }
        assert_eq!(Template::from_text("no field\n"), Err(TemplateError::NoField));
    }

    #[test]
    fn invalid_templates_are_rejected() {
        for (template, said) in [
            ("Q: question", "it names no field"),
            ("{question", "a `{` is not closed"),
            ("{question}}", "a `}` closes nothing"),
            ("{}", "`{}` is not a field name"),
            (r"{question}\d", r"`\d` is not an escape sequence; write `\\` for a backslash"),
            ("{question}\\", r"`\` is not an escape sequence"),
        ] {
            let error = template.parse::<Template>().unwrap_err().to_string();
            assert!(error.contains(said), "{template}: {error}");
        }
    }
}
