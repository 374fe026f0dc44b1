//! Structural tags: texts with constrained parts between marks, such as `<call>{…}</call>`.
//!
//! In: formats inside each other, in the form of xgrammar, which vLLM and SGLang accept. Out: a grammar in
//! the library's dialect of Lark. Invariant: a free text ends at the first mark that may follow it. Formats
//! about single tokens, and values in other notations than JSON, are not supported.

use std::fmt::Write as _;

use llguidance::regex_to_lark;
use ntl_core::guide::GuideError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::failed;
use super::json_schema::{self, Whitespace};

/// Maximum size of a grammar in bytes. Marks and triggers are repeated in it, so it may be much larger than
/// its tag.
const LARK_BYTES_MAX: usize = 1 << 20;

/// A format of a text or of a part of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum StructuralFormat {
    /// This text.
    ConstString { value: String },
    /// JSON that matches a schema.
    JsonSchema {
        json_schema: Value,
        #[serde(default)]
        style: JsonStyle,
    },
    /// Text without `excludes`. It may only be the last part of the text or of a tag.
    AnyText {
        #[serde(default)]
        excludes: Vec<String>,
    },
    /// Text that matches a regular expression.
    Regex { pattern: String },
    /// Text that follows a grammar.
    Grammar { grammar: String },
    /// One part after the other.
    Sequence { elements: Vec<Self> },
    /// One of several formats.
    Or { elements: Vec<Self> },
    /// A part between two marks.
    Tag(Tag),
    /// Text in which a trigger, which is the beginning of a tag, begins that tag. It may only be the last
    /// part of the text.
    TriggeredTags {
        triggers: Vec<String>,
        tags: Vec<Tag>,
        #[serde(default)]
        at_least_one: bool,
        #[serde(default)]
        stop_after_first: bool,
        #[serde(default)]
        excludes: Vec<String>,
    },
    /// Tags with nothing but a separator between them.
    TagsWithSeparator {
        tags: Vec<Tag>,
        separator: String,
        #[serde(default)]
        at_least_one: bool,
        #[serde(default)]
        stop_after_first: bool,
    },
    /// The content, or nothing.
    Optional { content: Box<Self> },
    /// The content any number of times.
    Star { content: Box<Self> },
    /// The content at least once.
    Plus { content: Box<Self> },
    /// The content from `min` to `max` times, or at least `min` times if `max` is negative.
    Repeat { content: Box<Self>, min: u32, max: i64 },
}

/// A content between two marks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tag {
    /// `tag`, which may be absent in lists of tags.
    #[serde(rename = "type", default, skip_serializing)]
    kind: Option<TagKind>,
    begin: String,
    content: Box<StructuralFormat>,
    end: Ends,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TagKind {
    Tag,
}

/// One mark, or several of which any ends the tag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
enum Ends {
    One(String),
    Several(Vec<String>),
}

/// How values are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JsonStyle {
    #[default]
    Json,
}

/// A structural tag in its newer form or its older one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(rename = "type", default)]
    _kind: Option<WrittenKind>,
    format: Option<StructuralFormat>,
    structures: Option<Vec<Structure>>,
    triggers: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenKind {
    StructuralTag,
}

/// JSON between two marks, in the older form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Structure {
    begin: String,
    schema: Value,
    end: String,
}

impl Structure {
    fn into_tag(self) -> Tag {
        let content = StructuralFormat::JsonSchema { json_schema: self.schema, style: JsonStyle::Json };
        Tag { kind: None, begin: self.begin, content: Box::new(content), end: Ends::One(self.end) }
    }
}

/// The text that follows a part.
#[derive(Clone, Copy)]
enum After<'a> {
    /// The end of the text.
    End,
    /// One of these marks, which the part includes.
    Marks(&'a [String]),
    Other,
}

impl StructuralFormat {
    /// Reads `{"format": …}`, or the older form `{"structures": […], "triggers": […]}`.
    pub fn read(value: &Value) -> Result<Self, GuideError> {
        let Written { format, structures, triggers, .. } = Written::deserialize(value).map_err(failed)?;
        match (format, structures, triggers) {
            (Some(format), None, None) => Ok(format),
            (None, Some(structures), Some(triggers)) => {
                let tags = structures.into_iter().map(Structure::into_tag).collect();
                let (at_least_one, stop_after_first, excludes) = Default::default();
                Ok(Self::TriggeredTags { triggers, tags, at_least_one, stop_after_first, excludes })
            }
            _ => Err(failed("a structural tag has either `format`, or `structures` and `triggers`")),
        }
    }

    /// The grammar in the library's dialect of Lark.
    pub(super) fn lark(&self, lead_in: &str) -> Result<String, GuideError> {
        let mut rules = Rules::default();
        let start = rules.part(self, After::End)?;
        let mut lark = format!("start: {lead_in}{start}\n");
        for (name, body) in rules.rules {
            let _ = writeln!(lark, "{name}: {body}");
        }
        Ok(lark)
    }
}

impl Ends {
    fn marks(&self) -> &[String] {
        match self {
            Self::One(mark) => std::slice::from_ref(mark),
            Self::Several(marks) => marks,
        }
    }
}

#[derive(Default)]
struct Rules {
    /// Rules with their names and attributes.
    rules: Vec<(String, String)>,
    /// Size of all bodies and expressions so far.
    bytes: usize,
}

impl Rules {
    /// Adds a rule and returns its name.
    fn add(&mut self, attribute: &str, body: String) -> Result<String, GuideError> {
        self.count(&body)?;
        let name = format!("r{}", self.rules.len());
        self.rules.push((format!("{name}{attribute}"), body));
        Ok(name)
    }

    /// Adds a rule for a regular expression with conditions, which only terminals may have.
    fn add_text(&mut self, attribute: &str, expression: String) -> Result<String, GuideError> {
        self.count(&expression)?;
        let terminal = format!("TEXT_{}", self.rules.len());
        self.rules.push((terminal.clone(), expression));
        self.add(attribute, terminal)
    }

    fn count(&mut self, text: &str) -> Result<(), GuideError> {
        self.bytes += text.len();
        if self.bytes > LARK_BYTES_MAX {
            return Err(failed("a structural tag is too large, or repeats too many marks or triggers"));
        }
        Ok(())
    }

    /// The expression of a part, with the marks after it.
    fn part(&mut self, format: &StructuralFormat, after: After<'_>) -> Result<String, GuideError> {
        let expression = self.expression(format, after)?;
        self.count(&expression)?;
        Ok(expression)
    }

    fn expression(&mut self, format: &StructuralFormat, after: After<'_>) -> Result<String, GuideError> {
        use StructuralFormat as Format;
        let expression = match format {
            Format::AnyText { excludes } => return self.any_text(excludes, after),
            Format::Sequence { elements } if !elements.is_empty() => return self.sequence(elements, after),
            Format::Or { elements } => return self.any_of(elements.iter(), after),
            Format::TriggeredTags { triggers, tags, at_least_one, stop_after_first, excludes } => {
                let After::End = after else {
                    return Err(failed("`triggered_tags` is only supported at the end of the text"));
                };
                return self.triggered(triggers, tags, excludes, *at_least_one, *stop_after_first);
            }
            Format::Tag(tag) => return self.tag(tag, &tag.begin, after),
            Format::Sequence { .. } => String::new(),
            Format::ConstString { value } => quoted(value),
            Format::JsonSchema { json_schema, style: JsonStyle::Json } => {
                let schema = json_schema::prepared(json_schema)?;
                let schema = json_schema::with_whitespace(&schema, &Whitespace::default());
                self.add("", format!("%json {schema}"))?
            }
            Format::Regex { pattern } => self.add("", format!("/{}/", regex_to_lark(pattern, "d")))?,
            Format::Grammar { grammar } => {
                let lark = super::lark(grammar)?;
                self.add("", format!("%lark {{\n{lark}\n}}"))?
            }
            Format::TagsWithSeparator { tags, separator, at_least_one, stop_after_first } => {
                let tag = self.any_tag(tags)?;
                let more = match stop_after_first {
                    true => String::new(),
                    false => format!(" ({} {tag})*", quoted(separator)),
                };
                format!("({tag}{more}){}", if *at_least_one { "" } else { "?" })
            }
            Format::Optional { content } => format!("({})?", self.part(content, After::Other)?),
            Format::Star { content } => format!("({})*", self.part(content, After::Other)?),
            Format::Plus { content } => format!("({})+", self.part(content, After::Other)?),
            Format::Repeat { content, min, max } => {
                let max = if *max < 0 { String::new() } else { max.to_string() };
                format!("({}){{{min},{max}}}", self.part(content, After::Other)?)
            }
        };
        Ok(match after {
            After::End | After::Other => expression,
            After::Marks(marks) => format!("{expression} ({})", alternatives(marks, quoted)),
        })
    }

    fn any_text(&mut self, excludes: &[String], after: After<'_>) -> Result<String, GuideError> {
        match after {
            After::End => self.rest(excludes),
            After::Marks(marks) => {
                let ends = alternatives(marks, escaped);
                self.add_text("[lazy]", format!("/(?s:.*)({ends})/{}", without(excludes)))
            }
            After::Other => Err(failed("`any_text` is only supported at the end of the text or of a tag")),
        }
    }

    /// The rest of the text, which may be empty.
    fn rest(&mut self, excludes: &[String]) -> Result<String, GuideError> {
        Ok(format!("{}?", self.add_text("", format!("/(?s:.+)/{}", without(excludes)))?))
    }

    fn sequence(&mut self, elements: &[StructuralFormat], after: After<'_>) -> Result<String, GuideError> {
        let last = elements.len() - 1;
        let parts = elements.iter().enumerate();
        let parts =
            parts.map(|(index, part)| self.part(part, if index == last { after } else { After::Other }));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.join(" "))
    }

    fn any_of<'a>(
        &mut self,
        formats: impl Iterator<Item = &'a StructuralFormat>,
        after: After<'_>,
    ) -> Result<String, GuideError> {
        let parts = formats.map(|format| self.part(format, after)).collect::<Result<Vec<_>, _>>()?;
        if parts.is_empty() {
            return Err(failed("a structural tag has an empty list of alternatives"));
        }
        Ok(format!("({})", parts.join(" | ")))
    }

    /// A tag whose first mark is `begin`.
    fn tag(&mut self, tag: &Tag, begin: &str, after: After<'_>) -> Result<String, GuideError> {
        let marks = tag.end.marks();
        if marks.is_empty() {
            return Err(failed("a tag has no `end`"));
        }
        let begin = if begin.is_empty() { String::new() } else { quoted(begin) };
        if marks.iter().any(String::is_empty) {
            // The tag ends with its content.
            return Ok(format!("{begin} {}", self.part(&tag.content, after)?));
        }
        let content = self.part(&tag.content, After::Marks(marks))?;
        Ok(match after {
            After::Marks(outer) => format!("{begin} {content} ({})", alternatives(outer, quoted)),
            After::End | After::Other => format!("{begin} {content}"),
        })
    }

    fn any_tag(&mut self, tags: &[Tag]) -> Result<String, GuideError> {
        let parts = tags.iter().map(|tag| self.tag(tag, &tag.begin, After::Other));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        if parts.is_empty() {
            return Err(failed("a structural tag has an empty list of tags"));
        }
        self.add("", format!("({})", parts.join(" | ")))
    }

    fn triggered(
        &mut self,
        triggers: &[String],
        tags: &[Tag],
        excludes: &[String],
        at_least_one: bool,
        stop_after_first: bool,
    ) -> Result<String, GuideError> {
        if triggers.iter().any(String::is_empty) {
            return Err(failed("a trigger of a structural tag is empty"));
        }
        let mut led = Vec::new();
        let mut direct = Vec::new();
        for (index, trigger) in triggers.iter().enumerate() {
            let begun = tags.iter().filter_map(|tag| Some((tag, tag.begin.strip_prefix(&trigger[..])?)));
            let begun = begun.map(|(tag, rest)| self.tag(tag, rest, After::Other));
            let begun = begun.collect::<Result<Vec<_>, _>>()?;
            if begun.is_empty() {
                return Err(failed(format!("no tag begins with the trigger `{trigger}`")));
            }
            let rest = self.add("", format!("({})", begun.join(" | ")))?;
            direct.push(format!("{} {rest}", quoted(trigger)));
            let others =
                triggers.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
            let absent: Vec<String> = others.chain(excludes).cloned().collect();
            let lead =
                self.add_text("[lazy]", format!("/(?s:.*){}/{}", escaped(trigger), without(&absent)))?;
            led.push(format!("{lead} {rest}"));
        }
        if let Some(tag) =
            tags.iter().find(|tag| !triggers.iter().any(|trigger| tag.begin.starts_with(&trigger[..])))
        {
            return Err(failed(format!("no trigger is the beginning of the tag `{}`", tag.begin)));
        }
        let led = format!("({})", led.join(" | "));
        let direct = format!("({})", direct.join(" | "));
        let text = self.rest(&[triggers, excludes].concat())?;
        Ok(match (at_least_one, stop_after_first) {
            (true, true) => direct,
            (true, false) => format!("{direct} {led}* {text}"),
            (false, true) => format!("({led} | {text})"),
            (false, false) => format!("{led}* {text}"),
        })
    }
}

/// A condition on a regular expression of Lark: the text has none of `excluded`.
fn without(excluded: &[String]) -> String {
    let excluded: Vec<&String> = excluded.iter().filter(|text| !text.is_empty()).collect();
    if excluded.is_empty() {
        return String::new();
    }
    let texts = excluded.iter().map(|text| escaped(text)).collect::<Vec<_>>().join("|");
    format!(" & ~/(?s:.*)({texts})(?s:.*)/")
}

fn alternatives(texts: &[String], written: fn(&str) -> String) -> String {
    texts.iter().map(|text| written(text)).collect::<Vec<_>>().join("|")
}

/// A string of Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A text in a regular expression of Lark.
fn escaped(text: &str) -> String {
    let mut regex = String::new();
    for character in text.chars() {
        match character {
            '\n' => regex.push_str("\\n"),
            '\r' => regex.push_str("\\r"),
            '\t' => regex.push_str("\\t"),
            _ if r"\.+*?()|[]{}^$#&-~/".contains(character) => regex.extend(['\\', character]),
            _ => regex.push(character),
        }
    }
    regex
}
