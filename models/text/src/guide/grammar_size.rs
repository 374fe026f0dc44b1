//! The size of the terminals of a Lark grammar, which the library replaces by their regular expressions.
//!
//! In: a grammar. Out: an error if its terminals, with the terminals that they name inserted, are too large.
//! The library would build them before it counts: 60 terminals, each of which names the next one twice, have
//! 2^60 parts.

use std::collections::BTreeMap;

use ntl_core::guide::GuideError;

use super::failed;

/// Maximum number of bytes of all terminals.
const BYTES_MAX: u64 = 200_000;

/// Maximum number of rules and terminals.
const DEFINITIONS_MAX: usize = 2000;

/// The right side of a rule or terminal.
#[derive(Debug, Default)]
struct Definition<'a> {
    /// Bytes of literals and regular expressions.
    bytes: u64,
    names: Vec<&'a str>,
}

/// # Errors
/// If the grammar is too large.
pub(super) fn check(lark: &str) -> Result<(), GuideError> {
    let definitions = definitions(lark);
    if definitions.len() > DEFINITIONS_MAX {
        let count = definitions.len();
        return Err(failed(format!("the grammar has {count} rules; at most {DEFINITIONS_MAX}")));
    }
    let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
    let mut total = 0_u64;
    for &name in definitions.keys() {
        // Names before and after the terminals that they use.
        let mut pending = vec![(name, false)];
        while let Some((name, is_after)) = pending.pop() {
            let Some(definition) = definitions.get(name) else { continue };
            let names = definition.names.iter().filter(|name| is_terminal(name));
            if is_after {
                let used = names.map(|name| sizes.get(name).copied().unwrap_or(0));
                let size = used.fold(definition.bytes, u64::saturating_add);
                sizes.insert(name, size);
                total = total.saturating_add(size);
            } else if !sizes.contains_key(name) {
                // The library rejects a terminal that uses itself.
                sizes.insert(name, 0);
                pending.push((name, true));
                pending.extend(names.map(|&name| (name, false)));
            }
        }
    }
    if total > BYTES_MAX {
        return Err(failed(format!(
            "the terminals of the grammar have more than {BYTES_MAX} bytes, with the terminals that they name"
        )));
    }
    Ok(())
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|first: char| first.is_ascii_uppercase())
}

/// The definitions of a grammar by name. A malformed grammar has fewer of them.
fn definitions(lark: &str) -> BTreeMap<&str, Definition<'_>> {
    let mut all: BTreeMap<&str, Definition<'_>> = BTreeMap::new();
    // The first name of the line, and what follows it.
    let mut first = None;
    let mut line = Definition::default();
    let mut present = "";
    let mut rest = lark;
    while let Some(character) = rest.chars().next() {
        let after = &rest[character.len_utf8()..];
        let length = match character {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '/' if after.starts_with('/') => rest.find('\n').unwrap_or(rest.len()),
            '/' | '"' => 1 + quoted_length(after, character),
            'a'..='z' => name_length(rest, |letter| letter.is_ascii_lowercase()),
            'A'..='Z' => name_length(rest, |letter| letter.is_ascii_uppercase()),
            ':' if after.starts_with(':') => 2,
            _ => character.len_utf8(),
        };
        let (token, next) = rest.split_at(length);
        match character {
            'a'..='z' | 'A'..='Z' => {
                line.names.push(token);
                first = first.or(Some(token));
            }
            '"' => line.bytes += length as u64,
            '/' if !after.starts_with('/') => line.bytes += length as u64,
            ':' if length == 1 => {
                present = first.unwrap_or_default();
                line = Definition::default();
                all.entry(present).or_default();
            }
            '\n' => {
                add_line(&mut all, present, std::mem::take(&mut line));
                first = None;
            }
            _ => {}
        }
        rest = next;
    }
    add_line(&mut all, present, line);
    all
}

/// Adds a line to the definition that it belongs to, if there is one.
fn add_line<'a>(all: &mut BTreeMap<&'a str, Definition<'a>>, name: &str, line: Definition<'a>) {
    if let Some(definition) = all.get_mut(name) {
        definition.bytes += line.bytes;
        definition.names.extend(line.names);
    }
}

/// The length of the rest of a literal or a regular expression, with its last quote.
fn quoted_length(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices() {
        if character == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    text.len()
}

fn name_length(text: &str, is_letter: fn(char) -> bool) -> usize {
    text.find(|letter: char| !is_letter(letter) && !letter.is_ascii_digit() && !['_', '-'].contains(&letter))
        .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_count_with_the_terminals_that_they_name() {
        let chain = |links: usize, last: &str| {
            let rules: String =
                (0..links).map(|link| format!("R{link}: R{} R{}\n", link + 1, link + 1)).collect();
            format!("start: R0\n{rules}R{links}: {last}")
        };
        assert_eq!(check(&chain(10, "\"a\"")), Ok(()));
        assert!(check(&chain(60, "/a|b/")).is_err());
        // Rules are not replaced.
        assert_eq!(check(&chain(60, "\"a\"").to_lowercase()), Ok(()));
        assert_eq!(check("start: A // A: B B\nA: A \"#\" /a\\/b:/ # c\n | \"\\\":\"\n"), Ok(()));
    }

    #[test]
    fn definitions_are_read_from_every_line() {
        let all = definitions(
            "start: one _TWO\n  | \"x:y\" // Z: A\none[lazy]: /a:\\/b/ -> alias\n_TWO.2: one::_ \"z\"",
        );
        let read: Vec<(&str, u64, &[&str])> =
            all.iter().map(|(name, found)| (*name, found.bytes, found.names.as_slice())).collect();
        assert_eq!(read, [("TWO", 3, &["one"][..]), ("one", 7, &["alias"]), ("start", 5, &["one", "TWO"]),]);
    }
}
