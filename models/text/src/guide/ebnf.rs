//! Rewrites a grammar in EBNF with `::=` (GBNF of llama.cpp, EBNF of vLLM) in the library's dialect of Lark.
//!
//! In: rules `name ::= …`, of which `root` matches the whole text. Out: Lark rules in the same order. A rule
//! that leads to no recursion becomes a terminal, which the library matches as a regular expression.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

use ntl_core::guide::GuideError;
use serde_json::Value;

use super::failed;

/// The rule that matches the whole text.
const ROOT: &str = "root";

#[derive(Debug, Clone, PartialEq)]
enum Part {
    /// A name of a rule.
    Name(String),
    /// `::=`
    Defines,
    /// A literal, a class of characters, a repetition or a symbol, which Lark has as well.
    Lark(String),
}

struct Rule<'a> {
    name: &'a str,
    parts: &'a [Part],
}

/// Returns whether a line of `grammar` begins a rule with `::=`.
pub(super) fn is_ebnf(grammar: &str) -> bool {
    grammar
        .lines()
        .any(|line| line.trim_start().trim_start_matches(is_of_name).trim_start().starts_with("::="))
}

/// # Errors
/// If the grammar is malformed, has no `root`, or uses an extension of one program such as token ids.
pub(super) fn lark(grammar: &str) -> Result<String, GuideError> {
    let parts = parts(grammar)?;
    let rules = rules(&parts)?;
    let mut indices = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        if indices.insert(rule.name, index).is_some() {
            return Err(failed(format!("the grammar defines the rule `{}` twice", rule.name)));
        }
    }
    let mut used = Vec::with_capacity(rules.len());
    for rule in &rules {
        used.push(rule.used().map(|name| index_of(&indices, name)).collect::<Result<Vec<usize>, _>>()?);
    }
    let names = lark_names(&terminals(&used));
    let mut text = format!("start: {}\n", names[index_of(&indices, ROOT)?]);
    for (index, rule) in rules.iter().enumerate() {
        let mut used_names = used[index].iter().map(|&used| names[used].as_str());
        let mut words = Vec::with_capacity(rule.parts.len());
        for part in rule.parts {
            words.push(match part {
                Part::Lark(text) => text.as_str(),
                Part::Name(_) | Part::Defines => used_names.next().unwrap_or_default(),
            });
        }
        text.push_str(&format!("{}: {}\n", names[index], words.join(" ")));
    }
    Ok(text)
}

fn index_of(indices: &BTreeMap<&str, usize>, rule: &str) -> Result<usize, GuideError> {
    indices.get(rule).copied().ok_or_else(|| failed(format!("the grammar has no rule `{rule}`")))
}

/// The names of the rules in Lark, in which only terminals have capital letters.
fn lark_names(terminals: &[bool]) -> Vec<String> {
    let mut names = Vec::with_capacity(terminals.len());
    for (index, &is_terminal) in terminals.iter().enumerate() {
        names.push(format!("{}{index}", if is_terminal { "R" } else { "r" }));
    }
    names
}

impl<'a> Rule<'a> {
    /// The names of rules in this rule.
    fn used(&self) -> impl Iterator<Item = &'a str> {
        self.parts
            .iter()
            .filter_map(|part| if let Part::Name(name) = part { Some(name.as_str()) } else { None })
    }
}

/// For each rule, whether it uses only terminals.
fn terminals(used: &[Vec<usize>]) -> Vec<bool> {
    let mut open: Vec<usize> = used.iter().map(Vec::len).collect();
    let mut users = vec![Vec::new(); used.len()];
    for (rule, used) in used.iter().enumerate() {
        used.iter().for_each(|&index| users[index].push(rule));
    }
    let mut pending: Vec<usize> = (0..used.len()).filter(|&rule| open[rule] == 0).collect();
    while let Some(terminal) = pending.pop() {
        for &user in &users[terminal] {
            open[user] -= 1;
            if open[user] == 0 {
                pending.push(user);
            }
        }
    }
    open.into_iter().map(|count| count == 0).collect()
}

/// Divides the parts of a grammar into rules, each of which begins with a name and `::=`.
fn rules(parts: &[Part]) -> Result<Vec<Rule<'_>>, GuideError> {
    let starts: Vec<usize> = (0..parts.len()).filter(|&index| parts[index] == Part::Defines).collect();
    if starts.first() != Some(&1) {
        return Err(nameless_rule());
    }
    let ends = starts.iter().skip(1).map(|start| start - 1).chain([parts.len()]);
    let mut rules = Vec::with_capacity(starts.len());
    for (&start, end) in starts.iter().zip(ends) {
        let (Part::Name(name), Some(parts)) = (&parts[start - 1], parts.get(start + 1..end)) else {
            return Err(nameless_rule());
        };
        rules.push(Rule { name, parts });
    }
    Ok(rules)
}

fn nameless_rule() -> GuideError {
    failed("a rule of the grammar does not begin with `name ::=`")
}

fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '-' || letter == '_'
}

fn parts(grammar: &str) -> Result<Vec<Part>, GuideError> {
    let mut letters = grammar.chars().peekable();
    let mut parts = Vec::new();
    while let Some(&letter) = letters.peek() {
        if is_of_name(letter) {
            parts.push(Part::Name(taken_while(&mut letters, is_of_name)));
            continue;
        }
        letters.next();
        match letter {
            _ if letter.is_whitespace() => {}
            '#' => drop(taken_while(&mut letters, |letter| letter != '\n')),
            ':' if taken_while(&mut letters, |letter| ":=".contains(letter)) == ":=" => {
                parts.push(Part::Defines)
            }
            '"' => parts.push(Part::Lark(literal(&mut letters)?)),
            '[' => parts.push(Part::Lark(class(&mut letters)?)),
            '.' => parts.push(Part::Lark("/(?s:.)/".to_owned())),
            '(' | ')' | '|' | '*' | '+' | '?' => parts.push(Part::Lark(letter.to_string())),
            '{' => {
                let range =
                    taken_while(&mut letters, |letter| letter.is_ascii_digit() || ", ".contains(letter));
                if letters.next() != Some('}') {
                    return Err(failed("a repetition of the grammar is not like `{2}`, `{2,}` or `{2,3}`"));
                }
                parts.push(Part::Lark(format!("{{{range}}}")));
            }
            _ => return Err(failed(format!("`{letter}` in the grammar is not EBNF"))),
        }
    }
    Ok(parts)
}

fn taken_while(letters: &mut Peekable<Chars<'_>>, fits: impl Fn(char) -> bool) -> String {
    std::iter::from_fn(|| letters.next_if(|&letter| fits(letter))).collect()
}

/// A literal whose first quote is read.
fn literal(letters: &mut Peekable<Chars<'_>>) -> Result<String, GuideError> {
    let mut text = String::new();
    loop {
        match letters.next() {
            Some('"') => break,
            Some('\\') => text.push(escaped(letters)?),
            Some(letter) => text.push(letter),
            None => return Err(failed("a literal of the grammar has no end")),
        }
    }
    // JSON has no escape for this control character, and Lark needs one.
    Ok(Value::from(text).to_string().replace('\u{7f}', "\\u007f"))
}

/// A class of characters whose `[` is read, as a regular expression.
fn class(letters: &mut Peekable<Chars<'_>>) -> Result<String, GuideError> {
    let mut regex = String::from("/[");
    if letters.next_if_eq(&'^').is_some() {
        regex.push('^');
    }
    loop {
        let letter = match letters.next() {
            Some(']') => break,
            Some('-') if letters.peek() != Some(&']') && !regex.ends_with(['[', '^']) => {
                regex.push('-');
                continue;
            }
            Some('\\') => escaped(letters)?,
            Some(letter) => letter,
            None => return Err(failed("a class of characters in the grammar has no `]`")),
        };
        regex.push_str(&format!("\\x{{{:x}}}", u32::from(letter)));
    }
    regex.push_str("]/");
    Ok(regex)
}

/// The character of an escape whose backslash is read.
fn escaped(letters: &mut Peekable<Chars<'_>>) -> Result<char, GuideError> {
    complete_escape(letters).ok_or_else(|| failed("an escape in the grammar is incomplete"))
}

fn complete_escape(letters: &mut Peekable<Chars<'_>>) -> Option<char> {
    let digits = match letters.next()? {
        'n' => return Some('\n'),
        'r' => return Some('\r'),
        't' => return Some('\t'),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        letter => return Some(letter),
    };
    let code: String = letters.by_ref().take(digits).collect();
    if code.len() != digits {
        return None;
    }
    char::from_u32(u32::from_str_radix(&code, 16).ok()?)
}
