//! Operators, functions, filters, tests and methods that stay within the budget.

use std::borrow::Cow;
use std::sync::LazyLock;

use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, Expression, State, Value, context, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::{
    ELEMENT_BYTES, ESCAPED_GROWTH, charge, display_text, elements_size, expanded_size, limit_error,
    materialized, refuse_mutable, size,
};
use super::slice::backward_slice;

/// Name of the function that checks a value.
pub(super) const CHECKED: &str = "[checked]";

/// Name of the function that checks the time.
pub(super) const CLOCK: &str = "[clock]";

/// Name of the function that concatenates the lists after `*` in a call.
pub(super) const CONCATENATED: &str = "[concatenated]";

/// Name of the function that calls `changed` of a loop.
pub(super) const CHANGED: &str = "[changed]";

/// Maximum number in a format, indentation width, or number of batches.
const WIDTH_MAX: usize = 10_000;

/// Maximum size of a set of characters to strip, in bytes. Each is compared with each character of the text.
const STRIPPED_BYTES_MAX: usize = 32;

/// Maximum size of an attribute path, in bytes. It is followed in each element.
const PATH_BYTES_MAX: usize = 256;

/// Maximum number of attribute paths in a sort.
const PATHS_MAX: usize = 4;

/// Operators that are replaced by functions, and the expressions that these compute.
const OPERATORS: [(&str, &str); 4] = [("+", "a + b"), ("~", "a ~ b"), ("*", "a * b"), ("[:]", "a[b:c:d]")];

const FUNCTIONS: [&str; 3] = ["dict", "namespace", "range"];

/// Filters that read or create a complete value.
const FILTERS: [&str; 33] = [
    "batch",
    "capitalize",
    "count",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "max",
    "min",
    "replace",
    "reverse",
    "safe",
    "slice",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "trim",
    "unique",
    "upper",
];

/// Filters whose results cannot be bounded. Only `pprint` is also a filter of Jinja.
const REMOVED: [&str; 3] = ["chain", "pprint", "zip"];

/// Tests that read a complete value.
const TESTS: [&str; 21] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "endingwith",
    "eq",
    "equalto",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "le",
    "lessthan",
    "lower",
    "lt",
    "ne",
    "sameas",
    "startingwith",
    "upper",
];

/// minijinja without bounds, for arguments that were already charged.
static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);

pub(super) fn add_to(environment: &mut Environment<'_>) {
    for (name, expression) in OPERATORS {
        environment.add_global(name, Value::from_function(operator(name, expression)));
    }
    environment.add_function(CHECKED, checked);
    environment.add_function(CLOCK, |state: &State| charge(state, 0));
    environment.add_function(CONCATENATED, concatenated);
    environment.add_function(CHANGED, changed);
    for name in FUNCTIONS {
        environment.add_function(name, move |state: &State, arguments: Rest<Value>| {
            let plain = PLAIN.empty_state();
            let function = plain.lookup(name).unwrap_or_default();
            materialized(state, function.call(&plain, &arguments)?)
        });
    }
    for name in FILTERS {
        environment
            .add_filter(name, move |state: &State, arguments: Rest<Value>| filter(state, name, arguments.0));
    }
    add_filters_of_elements(environment);
    for name in TESTS {
        environment.add_test(name, move |state: &State, arguments: Rest<Value>| {
            charge(state, 0)?;
            PLAIN.empty_state().perform_test(name, &arguments)
        });
    }
    for name in REMOVED {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        let all: Vec<Value> = std::iter::once(value.clone()).chain(arguments.iter().cloned()).collect();
        if method == "join" {
            charge_element_texts(state, all.get(1))?;
        }
        charge(state, growth_bytes(method, &all)?)?;
        let result = unknown_method_callback(state, value, method, arguments)?;
        // minijinja-contrib counts the bytes before the match; Python counts the characters.
        if let ("find" | "rfind", Some(text), Some(bytes)) = (method, value.as_str(), result.as_usize()) {
            return Ok(Value::from(text.get(..bytes).unwrap_or(text).chars().count()));
        }
        materialized(state, result)
    });
}

/// Checks a list or map literal, or the new value of a namespace's attribute.
fn checked(state: &State, value: Value) -> Result<Value, Error> {
    value.as_object().map_or(Ok(()), refuse_mutable)?;
    materialized(state, value)
}

fn concatenated(state: &State, lists: Rest<Value>) -> Result<Value, Error> {
    let mut all = Vec::new();
    for list in lists.iter() {
        charge(state, elements_size(list))?;
        all.extend(list.try_iter()?);
    }
    Ok(Value::from(all))
}

/// Calls `changed` of a loop, which keeps the arguments until the next call. A loop among them would keep
/// itself alive forever.
fn changed(state: &State, called: Value, arguments: Rest<Value>) -> Result<Value, Error> {
    expanded_size(&Value::from(arguments.to_vec()))?;
    charge(state, 0)?;
    called.call_method(state, "changed", &arguments)
}

/// Runs an operator with bounds, which the virtual machine's operator does not have.
fn operator(
    name: &'static str,
    expression: &'static str,
) -> impl Fn(&State, Rest<Value>) -> Result<Value, Error> + Send + Sync {
    let compiled: LazyLock<Result<Expression<'static, 'static>, Error>, _> =
        LazyLock::new(move || PLAIN.compile_expression(expression));
    move |state: &State, operands: Rest<Value>| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|index| operands.get(index).cloned().unwrap_or_default());
        match name {
            "~" => {
                let text = display_text(state, &a)? + &display_text(state, &b)?;
                return Ok(Value::from(text));
            }
            "*" => charge(state, repeated_size(&a, &b).max(repeated_size(&b, &a)))?,
            "[:]" => {
                if let Some(slice) = backward_slice(state, &a, [&b, &c, &d])? {
                    return Ok(slice);
                }
                charge(state, a.as_str().map_or(0, str::len))?;
            }
            _ => charge(state, [&a, &b].iter().filter_map(|value| value.as_str()).map(str::len).sum())?,
        }
        let compiled = compiled.as_ref().map_err(|error| Error::new(error.kind(), error.to_string()))?;
        let value = compiled.eval(context! { a, b, c, d })?;
        // The size of a text was already charged above, from the operands.
        if value.as_str().is_some() { Ok(value) } else { materialized(state, value) }
    }
}

/// Returns the size of a text or a list that is repeated `count` times, and 0 for other operands.
fn repeated_size(value: &Value, count: &Value) -> usize {
    match count.as_usize() {
        Some(count) if value.as_str().is_some() || value.len().is_some() => size(value).saturating_mul(count),
        _ => 0,
    }
}

fn filter(state: &State, name: &str, mut arguments: Vec<Value>) -> Result<Value, Error> {
    match name {
        "join" | "string" => charge_element_texts(state, arguments.first())?,
        // `growth_bytes` needs the length of a replacement that is not a text.
        "replace" => {
            let others = arguments.iter_mut().filter(|value| value.as_str().is_none() && !value.is_kwargs());
            for argument in others {
                *argument = Value::from(display_text(state, argument)?);
            }
        }
        _ => {}
    }
    charge(state, growth_bytes(name, &arguments)?)?;
    materialized(state, PLAIN.empty_state().apply_filter(name, &arguments)?)
}

/// Wraps the filters that return a list with at most as many elements as their input has elements or
/// characters. They call other filters and tests of the environment, so they run with its state and not in
/// [`PLAIN`].
fn add_filters_of_elements(environment: &mut Environment<'_>) {
    environment.add_filter("map", |state: &State, value: Value, arguments: Rest<Value>| {
        check_attribute(&arguments)?;
        charge(state, elements_size(&value))?;
        materialized(state, filters::map(state, value, arguments)?.into())
    });
    for (name, select) in [("select", true), ("reject", false)] {
        environment.add_filter(
            name,
            move |state: &State, value: Value, test: Option<String>, arguments: Rest<Value>| {
                charge(state, elements_size(&value))?;
                let filter = if select { filters::select } else { filters::reject };
                materialized(state, filter(state, value, test.map(Cow::from), arguments)?.into())
            },
        );
    }
    for (name, select) in [("selectattr", true), ("rejectattr", false)] {
        environment.add_filter(
            name,
            move |state: &State,
                  value: Value,
                  attribute: String,
                  test: Option<String>,
                  arguments: Rest<Value>| {
                check_path(&attribute)?;
                charge(state, elements_size(&value))?;
                let filter = if select { filters::selectattr } else { filters::rejectattr };
                let list = filter(state, value, attribute.into(), test.map(Cow::from), arguments)?;
                materialized(state, list.into())
            },
        );
    }
}

/// Charges the texts as which the elements of a list are displayed.
fn charge_element_texts(state: &State, list: Option<&Value>) -> Result<(), Error> {
    for element in list.and_then(|list| list.try_iter().ok()).into_iter().flatten() {
        display_text(state, &element)?;
    }
    Ok(())
}

fn check_path(path: &str) -> Result<(), Error> {
    if path.len() > PATH_BYTES_MAX {
        return Err(limit_error(format!("an attribute path above {PATH_BYTES_MAX} bytes")));
    }
    if path.split(',').count() > PATHS_MAX {
        return Err(limit_error(format!("a number of attribute paths above {PATHS_MAX}")));
    }
    Ok(())
}

/// Checks the keyword argument `attribute`.
fn check_attribute(arguments: &[Value]) -> Result<(), Error> {
    let path = arguments.last().and_then(|last| named(last, "attribute"));
    path.as_ref().and_then(Value::as_str).map_or(Ok(()), check_path)
}

/// Returns a keyword argument.
fn named(arguments: &Value, name: &str) -> Option<Value> {
    let arguments = Kwargs::try_from(arguments.clone()).ok()?;
    arguments.peek(name).ok()
}

/// Returns the number of bytes that a filter or a method may add to its arguments.
fn growth_bytes(name: &str, arguments: &[Value]) -> Result<usize, Error> {
    let text = |index: usize| arguments.get(index).and_then(Value::as_str).unwrap_or("");
    Ok(match name {
        "replace" => text(0).matches(text(1)).count().saturating_mul(text(2).len()),
        // For a filter, the list is the first argument; for a method, the separator is.
        "join" => {
            let (list, separator) = if arguments.first().is_some_and(|first| first.as_str().is_some()) {
                (arguments.get(1), text(0))
            } else {
                (arguments.first(), text(1))
            };
            list.and_then(Value::len).unwrap_or(0).saturating_mul(separator.len())
        }
        "indent" => {
            let width = second_number(arguments, "width");
            if width > WIDTH_MAX {
                return Err(too_wide("an indentation"));
            }
            text(0).split('\n').count().saturating_mul(width.max(4))
        }
        "batch" | "slice" if second_number(arguments, "count") > WIDTH_MAX => {
            return Err(too_wide("a count"));
        }
        // For a text, these filters create a list of its characters.
        "batch" | "first" | "items" | "last" | "list" | "reverse" | "slice" | "sum" => {
            arguments.first().map_or(0, elements_size)
        }
        "dictsort" | "groupby" | "max" | "min" | "sort" | "unique" => {
            check_attribute(arguments)?;
            check_path(text(1))?;
            let Some(value) = arguments.first() else { return Ok(0) };
            elements_size(value).max(expanded_size(value)?)
        }
        "capitalize" | "lower" | "title" | "upper" => text(0).len().saturating_mul(2),
        "e" | "escape" => text(0).len().saturating_mul(ESCAPED_GROWTH),
        "strip" | "lstrip" | "rstrip" | "trim" if text(1).len() > STRIPPED_BYTES_MAX => {
            return Err(limit_error(format!("characters to strip above {STRIPPED_BYTES_MAX} bytes")));
        }
        // minijinja-contrib would count it endlessly.
        "count" if arguments.get(1).is_some_and(|counted| counted.as_str() == Some("")) => {
            return Err(limit_error("the empty text cannot be counted"));
        }
        "lines" | "splitlines" => text(0).lines().count().saturating_mul(ELEMENT_BYTES),
        "split" => {
            let parts = match text(1) {
                "" => text(0).split_whitespace().count(),
                separator => text(0).matches(separator).count() + 1,
            };
            parts.saturating_mul(ELEMENT_BYTES)
        }
        "format" if has_large_number(text(0)) => return Err(too_wide("a width")),
        "format" => {
            let places = text(0).matches(['%', '{']).count();
            let mut longest = 0;
            for argument in arguments.iter().skip(1) {
                longest = longest.max(expanded_size(argument)?);
            }
            places.saturating_mul(longest)
        }
        _ => 0,
    })
}

/// Returns the second argument of a filter, or the keyword argument `name`; 0 if neither is a number.
fn second_number(arguments: &[Value], name: &str) -> usize {
    let positional = arguments.get(1).and_then(Value::as_usize);
    positional.or_else(|| named(arguments.last()?, name)?.as_usize()).unwrap_or(0)
}

fn too_wide(what: &str) -> Error {
    limit_error(format!("{what} above {WIDTH_MAX}"))
}

/// Returns whether a format has a width that is large or an argument.
fn has_large_number(format: &str) -> bool {
    let numbers = format.split(|character: char| !character.is_ascii_digit());
    let mut widths = numbers.filter(|digits| !digits.is_empty());
    !widths.all(|digits| digits.parse().is_ok_and(|width: usize| width <= WIDTH_MAX))
        || format.contains('*')
        || has_nested_braces(format)
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
