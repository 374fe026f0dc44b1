//! Bounds of a chat template, which is a program from a file that is not trusted.
//!
//! In: a template's source. Out: its text, or an error, within [`FUEL`] instructions and [`BYTES_MAX`] bytes of values.
//! Jinja's own fuel counts instructions, but one instruction may double a string. So the operators that make strings and
//! lists longer are replaced by functions, and the filters and methods that do so are wrapped: they know the size of their
//! result before they make it, and charge it to the budget of the rendering.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, Token, Vm, WhitespaceConfig, make_string_output, parse,
    tokenize,
};
use minijinja::value::{Object, Rest};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Expression, Output, State, Value, context, escape_formatter,
    filters,
};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Most instructions of a rendering: a conversation of a thousand messages takes some 100,000.
const FUEL: u64 = 1_000_000;

/// Most bytes of all values together that a rendering makes, the text included.
const BYTES_MAX: usize = 128 << 20;

/// Most bytes of a template's text.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Most multiplications in a template: Jinja computes `'x' * 100000000` when it compiles.
const PRODUCTS_MAX: usize = 8;

/// Approximate size of a list's element.
const ELEMENT_BYTES: usize = 32;

/// Largest number in a format, a width of an indentation, or a count of batches.
const WIDTH_MAX: usize = 10_000;

/// Filters whose result may be a new text or list.
const FILTERS: [&str; 23] = [
    "batch",
    "capitalize",
    "e",
    "escape",
    "format",
    "indent",
    "items",
    "join",
    "lines",
    "list",
    "lower",
    "pprint",
    "replace",
    "reverse",
    "slice",
    "sort",
    "split",
    "string",
    "title",
    "trim",
    "unique",
    "upper",
    "urlencode",
];

/// Jinja without bounds, for what is known to be small enough.
static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);

/// Operators that are functions here, and what they compute.
const OPERATORS: [(&str, &str); 4] = [("+", "a + b"), ("~", "a ~ b"), ("*", "a * b"), ("[:]", "a[b:c:d]")];

/// The bytes that a rendering has made.
#[derive(Debug, Default)]
struct Budget(AtomicUsize);

impl Object for Budget {}

/// Adds to the bytes that a rendering has made.
fn charge(state: &State, bytes: usize) -> Result<(), Error> {
    let budget = state.get_or_set_temp_object("bytes made", Budget::default);
    let made = budget.0.fetch_add(bytes.min(BYTES_MAX), Ordering::Relaxed);
    if made.saturating_add(bytes) > BYTES_MAX { Err(too_large()) } else { Ok(()) }
}

fn too_large() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("it makes more than {BYTES_MAX} bytes"))
}

/// Bytes of a value, without those of its elements' own.
fn size(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(1).saturating_mul(ELEMENT_BYTES),
    }
}

/// A text that grows within the budget.
struct Charged<'a, 'b> {
    state: &'a State<'b, 'b>,
    text: String,
}

impl Write for Charged<'_, '_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        charge(self.state, part.len()).map_err(|_| fmt::Error)?;
        self.text.push_str(part);
        Ok(())
    }
}

/// Bytes that grow within the budget.
pub(super) struct ChargedBytes<'a, 'b> {
    state: &'a State<'b, 'b>,
    bytes: Vec<u8>,
}

impl<'a, 'b> ChargedBytes<'a, 'b> {
    pub(super) fn new(state: &'a State<'b, 'b>) -> Self {
        Self { state, bytes: Vec::new() }
    }

    pub(super) fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

impl io::Write for ChargedBytes<'_, '_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        charge(self.state, part.len()).map_err(io::Error::other)?;
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A value as `{{ }}` shows it; a list may hold the same long text many times.
fn shown(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        charge(state, text.len())?;
        return Ok(text.to_owned());
    }
    let mut charged = Charged { state, text: String::new() };
    write!(charged, "{value}").map_err(|_| too_large())?;
    Ok(charged.text)
}

/// Sets the bounds of an environment, once its own filters are added.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    for (name, expression) in OPERATORS {
        environment.add_global(name, Value::from_function(operator(name, expression)));
    }
    for name in FILTERS {
        environment.add_filter(name, move |state: &State, arguments: Rest<Value>| {
            if name == "join" || name == "string" || name == "pprint" {
                shown_elements(state, arguments.first())?;
            }
            charge(state, grown(name, &arguments)?)?;
            let result = PLAIN.empty_state().apply_filter(name, &arguments)?;
            charge(state, size(&result))?;
            Ok::<Value, Error>(result)
        });
    }
    add_filters_of_elements(environment);
    environment.remove_global("debug");
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        let all: Vec<Value> = std::iter::once(value.clone()).chain(arguments.iter().cloned()).collect();
        if method == "join" {
            shown_elements(state, all.get(1))?;
        }
        charge(state, grown(method, &all)?)?;
        let result = unknown_method_callback(state, value, method, arguments)?;
        charge(state, size(&result))?;
        Ok(result)
    });
    environment.set_formatter(|out: &mut Output, state: &State, value: &Value| {
        shown(state, value)?;
        escape_formatter(out, state, value)
    });
    environment.set_fuel(Some(FUEL));
}

/// Wraps the filters that return a list of up to as many elements as their input has elements or characters. They call other filters and
/// tests of the environment, so they run with its state and not in [`PLAIN`].
fn add_filters_of_elements(environment: &mut Environment<'_>) {
    environment.add_filter("map", |state: &State, value: Value, arguments: Rest<Value>| {
        charge(state, elements_size(&value))?;
        filters::map(state, value, arguments)
    });
    for (name, select) in [("select", true), ("reject", false)] {
        let filter = move |state: &State, value: Value, test: Option<String>, arguments: Rest<Value>| {
            charge(state, elements_size(&value))?;
            let filter = if select { filters::select } else { filters::reject };
            filter(state, value, test.map(Cow::from), arguments)
        };
        environment.add_filter(name, filter);
    }
    for (name, select) in [("selectattr", true), ("rejectattr", false)] {
        let filter = move |state: &State,
                           value: Value,
                           attribute: String,
                           test: Option<String>,
                           arguments: Rest<Value>| {
            charge(state, elements_size(&value))?;
            let filter = if select { filters::selectattr } else { filters::rejectattr };
            filter(state, value, attribute.into(), test.map(Cow::from), arguments)
        };
        environment.add_filter(name, filter);
    }
}

/// Bytes of a list with an element for each element of a list, or each character of a text.
fn elements_size(value: &Value) -> usize {
    value.len().unwrap_or(0).saturating_mul(ELEMENT_BYTES)
}

/// Charges the elements of a list as texts.
fn shown_elements(state: &State, list: Option<&Value>) -> Result<(), Error> {
    for element in list.and_then(|list| list.try_iter().ok()).into_iter().flatten() {
        shown(state, &element)?;
    }
    Ok(())
}

/// An operator with the bounds that the virtual machine's own does not have.
fn operator(
    name: &'static str,
    expression: &'static str,
) -> impl Fn(&State, Rest<Value>) -> Result<Value, Error> + Send + Sync {
    let compiled: LazyLock<Result<Expression<'static, 'static>, Error>, _> =
        LazyLock::new(move || PLAIN.compile_expression(expression));
    move |state: &State, operands: Rest<Value>| {
        let of = |place: usize| operands.get(place).cloned().unwrap_or_default();
        let (a, b, c, d) = (of(0), of(1), of(2), of(3));
        match name {
            "~" => {
                let text = shown(state, &a)? + &shown(state, &b)?;
                return Ok(Value::from(text));
            }
            "*" => {
                let times = |value: &Value, count: &Value| {
                    let count =
                        count.as_usize().filter(|_| value.as_str().is_some() || value.len().is_some());
                    count.map_or(0, |count| size(value).saturating_mul(count))
                };
                charge(state, times(&a, &b).max(times(&b, &a)))?;
            }
            _ => charge(state, size(&a).saturating_add(size(&b)))?,
        }
        match &*compiled {
            Ok(compiled) => compiled.eval(context! { a, b, c, d }),
            Err(error) => Err(Error::new(error.kind(), error.to_string())),
        }
    }
}

/// Bytes that a filter or a method may add to its arguments.
fn grown(name: &str, arguments: &[Value]) -> Result<usize, Error> {
    let text = |place: usize| arguments.get(place).and_then(Value::as_str).unwrap_or("");
    let number = |place: usize| arguments.get(place).and_then(Value::as_usize).unwrap_or(0);
    let refuse =
        |what: &str| Err(Error::new(ErrorKind::InvalidOperation, format!("{what} above {WIDTH_MAX}")));
    Ok(match name {
        "replace" => text(0).matches(text(1)).count().saturating_mul(text(2).len()),
        // A filter has the list first, a method the separator.
        "join" => {
            let (list, separator) = if arguments.first().is_some_and(|first| first.as_str().is_some()) {
                (arguments.get(1), text(0))
            } else {
                (arguments.first(), text(1))
            };
            list.and_then(Value::len).unwrap_or(0).saturating_mul(separator.len())
        }
        "indent" if number(1) > WIDTH_MAX => return refuse("an indentation"),
        "indent" => text(0).lines().count().saturating_mul(number(1)),
        "batch" | "slice" if number(1) > WIDTH_MAX => return refuse("a count"),
        // Given a text, these filters make a list of its characters.
        "batch" | "list" | "slice" | "sort" | "unique" => arguments.first().map_or(0, elements_size),
        "lines" | "splitlines" => text(0).lines().count().saturating_mul(ELEMENT_BYTES),
        "split" => {
            let parts = match text(1) {
                "" => text(0).split_whitespace().count(),
                separator => text(0).matches(separator).count() + 1,
            };
            parts.saturating_mul(ELEMENT_BYTES)
        }
        "format" if has_large_number(text(0)) => return refuse("a width"),
        _ => 0,
    })
}

/// Whether a format has a width that is large or an argument.
fn has_large_number(format: &str) -> bool {
    let numbers = format.split(|character: char| !character.is_ascii_digit());
    let is_small = |digits: &str| digits.parse().is_ok_and(|number: usize| number <= WIDTH_MAX);
    let mut widths = numbers.filter(|digits| !digits.is_empty());
    !widths.all(is_small) || format.contains('*') || has_nested_braces(format)
}

fn has_nested_braces(format: &str) -> bool {
    let mut depth = 0_usize;
    format.replace("{{", "").replace("}}", "").chars().any(|character| {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > 1
    })
}

/// Compiles a template and renders it with these variables.
pub(super) fn render(environment: &Environment<'_>, source: &str, variables: Value) -> Result<String, Error> {
    let (instructions, blocks) = compile(source)?;
    let mut text = String::new();
    let mut out = make_string_output(&mut text);
    Vm::new(environment).eval(&instructions, variables, &blocks, &mut out, AutoEscape::None)?;
    if text.len() > OUTPUT_BYTES_MAX {
        let reason = format!("its text has more than {OUTPUT_BYTES_MAX} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(text)
}

type Blocks<'source> = BTreeMap<&'source str, Instructions<'source>>;

/// The instructions of a template, with functions for its operators.
pub(super) fn compile(source: &str) -> Result<(Instructions<'_>, Blocks<'_>), Error> {
    const NAME: &str = "chat";
    let whitespace =
        WhitespaceConfig { trim_blocks: true, lstrip_blocks: true, ..WhitespaceConfig::default() };
    let tokens = tokenize(source, false, Default::default(), whitespace);
    // Behind an error there may be the same error again without end; parsing meets the first one.
    let products = tokens.map_while(Result::ok).filter(|(token, _)| matches!(token, Token::Mul)).count();
    if products > PRODUCTS_MAX {
        let reason = format!("it has {products} multiplications; at most {PRODUCTS_MAX} are served");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    let parsed = parse(source, NAME, Default::default(), whitespace)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&parsed);
    let (mut instructions, mut blocks) = generator.finish();
    bound(&mut instructions);
    blocks.values_mut().for_each(bound);
    Ok((instructions, blocks))
}

fn bound(instructions: &mut Instructions<'_>) {
    let length = instructions.len() as u32;
    for place in 0..length {
        let Some(instruction) = instructions.get_mut(place) else { return };
        let (name, operands) = match instruction {
            Instruction::Add => ("+", 2),
            Instruction::StringConcat => ("~", 2),
            Instruction::Mul => ("*", 2),
            Instruction::Slice => ("[:]", 4),
            _ => continue,
        };
        *instruction = Instruction::CallFunction(name, Some(operands));
    }
}
