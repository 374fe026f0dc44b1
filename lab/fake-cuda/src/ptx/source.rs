//! The top level of a PTX text: its variables and its functions, whose bodies are parsed only on request.

use std::collections::HashMap;
use std::ops::Range;

use super::types::Type;
use crate::fault::{Code, Fault};

/// A PTX text and the locations of its functions.
pub struct Module {
    text: String,
    functions: HashMap<String, Function>,
    pub(super) variables: Vec<Variable>,
}

struct Function {
    entry: bool,
    head: Range<usize>,
    body: Range<usize>,
}

/// A declared variable: `.global .align 4 .b8 name[24] = {..}`.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) space: String,
    pub(super) align: usize,
    /// `None` if the launch determines the size: `.extern .shared name[]`.
    pub(super) bytes: Option<usize>,
    pub(super) name: String,
    pub(super) initial: Vec<u8>,
}

/// The words of a function: its parameters, its results, and its body.
pub(super) struct Words<'a> {
    pub(super) parameters: Vec<Variable>,
    pub(super) returned: Vec<Variable>,
    pub(super) body: Vec<&'a str>,
}

impl Module {
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let text = without_comments(text);
        let mut module = Self { text: String::new(), functions: HashMap::new(), variables: Vec::new() };
        let mut at = 0;
        while let Some((stop, found)) = find(&text, at, b"{;\n") {
            let head = text[at..stop].trim();
            let is_function = head.contains(".func") || head.contains(".entry");
            match found {
                // Directives on a single line: .version, .target, .address_size.
                b'\n' if !is_function && !is_variable(head) => at = stop + 1,
                b'\n' => {
                    let Some((stop, found)) = find(&text, stop, b"{;") else { break };
                    at = module.item(&text, at, stop, found)?;
                }
                _ => at = module.item(&text, at, stop, found)?,
            }
        }
        module.text = text;
        Ok(module)
    }

    /// Parses the item that began at `at`; returns the position of the next one.
    fn item(&mut self, text: &str, at: usize, stop: usize, found: u8) -> Result<usize, Fault> {
        let head = text[at..stop].trim();
        let is_function = head.contains(".func") || head.contains(".entry");
        if is_function && found == b'{' {
            let end = closing_brace(text, stop).ok_or_else(|| invalid("a function has no end"))?;
            let name = function_name(head).ok_or_else(|| invalid("a function has no name"))?;
            let function = Function { entry: head.contains(".entry"), head: at..stop, body: stop + 1..end };
            self.functions.insert(name.to_owned(), function);
            return Ok(end + 1);
        }
        let end = find(text, stop, b";").map_or(text.len(), |(end, _)| end);
        if !is_function && is_variable(head) {
            let words = words(&text[at..end]);
            self.variables.push(variable(&words)?);
        }
        Ok(end + 1)
    }

    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().filter(|(_, function)| function.entry).map(|(name, _)| name.as_str())
    }

    pub fn has_entry(&self, name: &str) -> bool {
        self.functions.get(name).is_some_and(|function| function.entry)
    }

    /// Returns the maximum number of threads per block that an entry states: `.maxntid 256, 1, 1`.
    pub(super) fn threads_max(&self, name: &str) -> Option<u64> {
        let head = &self.text[self.functions.get(name)?.head.clone()];
        let (_, sizes) = head.split_once(".maxntid")?;
        let sizes = sizes.split(|c: char| !c.is_ascii_digit() && ![',', ' '].contains(&c)).next()?;
        sizes.split(',').map(|size| size.trim().parse::<u64>().ok()).product()
    }

    /// Returns the variables in global and constant memory: name, size and initial value.
    pub fn globals(&self) -> impl Iterator<Item = (&str, usize, &[u8])> {
        let own =
            self.variables.iter().filter(|variable| ["global", "const"].contains(&variable.space.as_str()));
        own.filter_map(|variable| {
            Some((variable.name.as_str(), variable.bytes?, variable.initial.as_slice()))
        })
    }

    pub(super) fn function(&self, name: &str) -> Result<Option<Words<'_>>, Fault> {
        let Some(function) = self.functions.get(name) else { return Ok(None) };
        let head = words(&self.text[function.head.clone()]);
        let at =
            head.iter().position(|word| *word == name).ok_or_else(|| invalid("a function has no name"))?;
        let after = head[at + 1..].iter().position(|word| *word == ")").map_or(at + 1, |end| at + 1 + end);
        Ok(Some(Words {
            parameters: parameters(&head[at + 1..after])?,
            returned: parameters(&head[..at])?,
            body: words(&self.text[function.body.clone()]),
        }))
    }
}

fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(Code::InvalidPtx, message)
}

fn parameters(words: &[&str]) -> Result<Vec<Variable>, Fault> {
    let words: Vec<&str> = words.iter().copied().filter(|word| !["(", ")"].contains(word)).collect();
    let mut parameters = Vec::new();
    for list in words.split(|word| *word == ",") {
        if let Some(begin) = list.iter().position(|word| *word == ".param") {
            parameters.push(variable(&list[begin..])?);
        }
    }
    Ok(parameters)
}

fn is_variable(head: &str) -> bool {
    [".global", ".const", ".shared"].iter().any(|space| head.contains(space))
}

fn function_name(head: &str) -> Option<&str> {
    let words = words(head);
    let kind = words.iter().position(|word| [".func", ".entry"].contains(word))?;
    let mut rest = words[kind + 1..].iter();
    let mut next = rest.next()?;
    if *next == "(" {
        rest.find(|word| **word == ")")?;
        next = rest.next()?;
    }
    Some(next)
}

/// Parses a declaration without its semicolon.
pub(super) fn variable(words: &[&str]) -> Result<Variable, Fault> {
    parse_variable(words).ok_or_else(|| invalid(format!("the declaration '{}'", words.join(" "))))
}

fn parse_variable(words: &[&str]) -> Option<Variable> {
    let (declared, values) = match words.iter().position(|word| *word == "=") {
        Some(at) => (&words[..at], &words[at + 1..]),
        None => (words, &[][..]),
    };
    let mut space = String::new();
    let mut align = None;
    let mut kind = None;
    let mut name = None;
    let mut count = Some(1);
    let mut rest = declared.iter();
    while let Some(&word) = rest.next() {
        match word {
            ".align" => align = Some(rest.next()?.parse().ok()?),
            ".visible" | ".extern" | ".weak" => {}
            ".global" | ".const" | ".shared" | ".local" | ".param" => space = word[1..].to_owned(),
            "[" => {
                let length = *rest.next()?;
                count = if length == "]" { None } else { Some(length.parse().ok()?) };
            }
            "]" => {}
            _ if word.starts_with('.') => kind = Some(Type::parse(&word[1..])?),
            _ => name = Some(word.to_owned()),
        }
    }
    let kind = kind?;
    let name = name?;
    let mut initial = Vec::new();
    for value in values.iter().filter(|word| !["{", "}", ","].contains(word)) {
        let value = super::types::literal(value)?;
        initial.extend_from_slice(&value.to_le_bytes()[..kind.bytes()]);
    }
    let align = align.unwrap_or(kind.bytes());
    Some(Variable { space, align, bytes: count.map(|count| count * kind.bytes()), name, initial })
}

/// Returns the text with blanks in place of comments.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, comment) = rest.split_at(at);
        out.push_str(before);
        rest = if comment.starts_with("//") {
            &comment[comment.find('\n').unwrap_or(comment.len())..]
        } else if comment.starts_with("/*") {
            &comment[comment.find("*/").map_or(comment.len(), |end| end + 2)..]
        } else {
            out.push('/');
            &comment[1..]
        };
    }
    out.push_str(rest);
    out
}

fn find(text: &str, from: usize, wanted: &[u8]) -> Option<(usize, u8)> {
    let offset = text.as_bytes()[from..].iter().position(|byte| wanted.contains(byte))?;
    Some((from + offset, text.as_bytes()[from + offset]))
}

fn closing_brace(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (offset, byte) in text.as_bytes()[open..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return Some(open + offset),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_$%.".contains(&byte)
}

/// Splits a text into names with their dots, numbers, strings, and single characters.
pub(super) fn words(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let begin = at;
        at += 1;
        match bytes[begin] {
            byte if byte.is_ascii_whitespace() => continue,
            b'"' => {
                while at < bytes.len() && bytes[at] != b'"' {
                    at += 1;
                }
                at = (at + 1).min(bytes.len());
            }
            byte if is_word(byte) => {
                while at < bytes.len() && is_word(bytes[at]) {
                    at += 1;
                }
                // `.reg.b16` is two words; an instruction and its modifiers are one.
                if text[begin..at].starts_with(".reg.") {
                    at = begin + 4;
                }
            }
            _ => {}
        }
        out.push(&text[begin..at]);
    }
    out
}
