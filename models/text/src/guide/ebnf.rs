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
    let begins_rule =
        |line: &str| line.trim_start().trim_start_matches(is_of_name).trim_start().starts_with("::=");
    grammar.lines().any(begins_rule)
}

/// # Errors
/// If the grammar is malformed, has no `root`, or uses an extension of one program such as token ids.
pub(super) fn lark(grammar: &str) -> Result<String, GuideError> {
    let parts = parts(grammar)?;
    let rules = rules(&parts)?;
    let mut places = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        if places.insert(rule.name, index).is_some() {
            return Err(failed(format!("the grammar defines the rule `{}` twice", rule.name)));
        }
    }
    let place = |name: &str| {
        places.get(name).copied().ok_or_else(|| failed(format!("the grammar has no rule `{name}`")))
    };
    let used: Vec<Vec<usize>> =
        rules.iter().map(|rule| rule.used().map(place).collect()).collect::<Result<_, _>>()?;
    let terminals = terminals(&used);
    let lark_name = |index: usize| format!("{}{index}", if terminals[index] { "R" } else { "r" });
    let mut text = format!("start: {}\n", lark_name(place(ROOT)?));
    for (index, rule) in rules.iter().enumerate() {
        let mut used = used[index].iter();
        let word = |part: &Part| match part {
            Part::Lark(text) => text.clone(),
            Part::Name(_) | Part::Defines => used.next().map(|&place| lark_name(place)).unwrap_or_default(),
        };
        let words: Vec<String> = rule.parts.iter().map(word).collect();
        text.push_str(&format!("{}: {}\n", lark_name(index), words.join(" ")));
    }
    Ok(text)
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
        used.iter().for_each(|&place| users[place].push(rule));
    }
    let mut found: Vec<usize> = (0..used.len()).filter(|&rule| open[rule] == 0).collect();
    while let Some(terminal) = found.pop() {
        for &user in &users[terminal] {
            open[user] -= 1;
            if open[user] == 0 {
                found.push(user);
            }
        }
    }
    open.into_iter().map(|count| count == 0).collect()
}

/// Divides the parts of a grammar into rules, each of which begins with a name and `::=`.
fn rules(parts: &[Part]) -> Result<Vec<Rule<'_>>, GuideError> {
    let starts: Vec<usize> = (0..parts.len()).filter(|&index| parts[index] == Part::Defines).collect();
    let is_clean = starts.first() == Some(&1);
    let ends = starts.iter().skip(1).map(|start| start - 1).chain([parts.len()]);
    let rule = |(&start, end): (&usize, usize)| match (
        parts.get(start.checked_sub(1)?)?,
        parts.get(start + 1..end)?,
    ) {
        (Part::Name(name), parts) => Some(Rule { name, parts }),
        _ => None,
    };
    let rules: Option<Vec<Rule<'_>>> = starts.iter().zip(ends).map(rule).collect();
    rules.filter(|_| is_clean).ok_or_else(|| failed("a rule of the grammar does not begin with `name ::=`"))
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
    let incomplete = || failed("an escape in the grammar is incomplete");
    let digits = match letters.next().ok_or_else(incomplete)? {
        'n' => return Ok('\n'),
        'r' => return Ok('\r'),
        't' => return Ok('\t'),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        letter => return Ok(letter),
    };
    let code: String = letters.by_ref().take(digits).collect();
    u32::from_str_radix(&code, 16)
        .ok()
        .filter(|_| code.len() == digits)
        .and_then(char::from_u32)
        .ok_or_else(incomplete)
}
