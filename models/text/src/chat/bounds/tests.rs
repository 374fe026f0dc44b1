//! Templates with excessive computation. The message of the conversation is `x`, so that `text * 8` is not a
//! constant.

use crate::chat::ChatError;
use crate::chat::tests::{say, template_in};

fn render(source: &str) -> Result<String, ChatError> {
    let source = format!("{{% set text = messages[0].content %}}{source}");
    say(&template_in(&[("chat_template.jinja", source)]).unwrap().unwrap(), "x")
}

/// Asserts that each of these templates is rejected for this reason.
fn assert_refused(part: &str, sources: &[&str]) {
    for source in sources {
        let beginning: String = source.chars().take(200).collect();
        let Err(ChatError::Unusable(reason)) = render(source) else { panic!("{beginning} is rendered") };
        assert!(reason.contains(part), "{beginning}: {reason}");
    }
}

/// Returns a template that runs `step` 60 times.
fn sixty_times(given: &str, step: &str) -> String {
    format!("{{% set ns = namespace({given}) %}}{{% for a in range(60) %}}{step}{{% endfor %}}")
}

#[test]
fn endless_loops_run_out_of_fuel() {
    assert_refused(
        "fuel",
        &[
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
            "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(60) }}",
        ],
    );
}

#[test]
fn texts_that_double_run_out_of_bytes() {
    assert_refused(
        "bytes",
        &[
            &sixty_times("s='x'", "{% set ns.s = ns.s + ns.s %}"),
            &sixty_times("s='x'", "{% set ns.s = ns.s ~ ns.s %}"),
            &sixty_times("s='x'", "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
            "{% set x = text * 60000000 %}{% set x = text * 60000000 %}{{ (text|replace('x', '\\u0001') * 1000000)|tojson|tojson|tojson }}",
            "{% macro twice(s, n) %}{% if n %}{{ twice(s ~ s, n - 1) }}{% endif %}{% endmacro %}{{ twice(text * 8, 60) }}",
            "{% set x = text * 1000000 %}{{ x|replace('x', x) }}",
            "{% set x = text * 1000000 %}{{ x.replace('x', x) }}",
            "{% set x = text * 10000000 %}{{ x|replace('x', 10000000000000000000000000000000) }}",
            "{{ ((text ~ ',') * 100000).split(',')|join(text * 100000) }}",
            "{{ (text * 100000).join(range(90000)) }}",
            "{% set x = text * 8000000 %}{{ ('{0}' ~ text * 1000).format(x, x) }}{{ '{0}{0}{0}{0}{0}{0}'.format(x) }}",
            "{% set x = text * 8000000 %}{{ '%s%s%s%s'|format(x, x, x, x) }}",
            "{% set x = ('\\n' ~ text) * 8000000 %}{{ x|indent(width=9999) }}",
            "{% set x = (text|replace('x', '&')) * 60000000 %}{{ x|e }}",
            "{% set x = (text|replace('x', '&')) * 60000000 %}{% autoescape true %}{{ x }}{% endautoescape %}",
            &format!("{{% for a in range(9999) %}}{}{{% endfor %}}", "y".repeat(60_000)),
            &format!(
                "{{% filter upper %}}{{% for a in range(9999) %}}{}{{% endfor %}}{{% endfilter %}}",
                "y".repeat(60_000)
            ),
        ],
    );
}

#[test]
fn lists_that_grow_run_out_of_bytes() {
    assert_refused(
        "bytes",
        &[
            &sixty_times("l=[1]", "{% set ns.l = ns.l + ns.l %}"),
            "{% set ns = namespace(l=[]) %}{% set x = text * 1000000 %}{% for a in range(90000) %}{% set ns.l = ns.l + [x[1:]] %}{% endfor %}",
            "{% set x = text * 8000000 %}{{ x|batch(9)|length }}",
            "{% set x = text * 8000000 %}{{ x|list|length }}",
            "{% set x = text * 8000000 %}{{ x|groupby('a')|length }}",
            "{% set x = text * 8000000 %}{{ x|map('upper')|length }}",
            "{% set x = text * 8000000 %}{{ x|select|length }}",
            "{% set x = text * 8000000 %}{{ x|rejectattr('a')|length }}",
            "{% set x = text * 8000000 %}{{ x|split('x')|length }}",
            "{% set x = (text ~ ' ') * 8000000 %}{{ x.split()|length }}",
            "{% set x = (text ~ '\\n') * 8000000 %}{{ x|lines|length }}",
            "{% set x = (text * 2000000)|list %}{{ dict(*x, *x, *x) }}",
            "{{ [1, 2] * (9223372036854775807 * text|length) }}",
        ],
    );
}

#[test]
fn a_list_that_contains_a_list_twice_counts_both() {
    let shared = |use_of_it: &str| {
        sixty_times(
            "l=['y' * 1000], m=['y' * 1000]",
            "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}",
        ) + use_of_it
    };
    assert_refused(
        "bytes",
        &[
            &shared("{{ ns.l == ns.m }}"),
            &shared("{{ ns.l }}"),
            &shared("{{ ns.l|trim }}"),
            &shared("{{ ns.l in 'x' }}"),
            &shared("{{ {ns.l: 1} }}"),
            &shared("{{ raise_exception(ns.l) }}"),
            &sixty_times("l={'a': 'y' * 1000}", "{% set ns.l = {'a': ns.l, 'b': ns.l} %}"),
            &sixty_times("l=['y' * 1000]", "{% set ns.l = dict(a=ns.l, b=ns.l)|items %}"),
        ],
    );
}

#[test]
fn lists_and_maps_are_at_most_200_deep() {
    let nested = |step: &str| {
        format!(
            "{{% set ns = namespace(x=[]) %}}{{% for a in range(100000) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
        )
    };
    assert_refused(
        "deep",
        &[
            &nested("[ns.x]"),
            &nested("{'a': ns.x}"),
            &nested("{[ns.x]: 1}"),
            &nested("dict(a=ns.x)"),
            &nested("([ns.x] + [1])|batch(1)"),
        ],
    );
}

#[test]
fn a_lazy_iterable_becomes_a_list() {
    for step in ["ns.x[:]", "ns.x * 1", "ns.x + []", "ns.x|reverse", "(ns.x|groupby('a'))[0].list"] {
        let source = format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for a in range(50000) %}}{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x|list }}}}"
        );
        assert_eq!(render(&source).as_deref(), Ok("[1]"), "{step}");
    }
    assert_eq!(
        render(&(sixty_times("l=[]", "{% set ns.l = ns.l + ns.l %}") + "{{ ns.l }}")).as_deref(),
        Ok("[]")
    );
}

#[test]
fn backward_slices_match_python() {
    for (slice, list, text) in [
        ("[::-1]", "[4, 3, 2, 1]", "dcba"),
        ("[:0:-1]", "[4, 3, 2]", "dcb"),
        ("[2:0:-1]", "[3, 2]", "cb"),
        ("[0:2:-1]", "[]", ""),
        ("[9:-9:-2]", "[4, 2]", "db"),
        ("[-2::-1]", "[3, 2, 1]", "cba"),
        ("[-9::-1]", "[]", ""),
        ("[::-9223372036854775808]", "[4]", "d"),
    ] {
        let source = format!("{{{{ [1, 2, 3, 4]{slice} }}}} {{{{ 'abcd'{slice} }}}}");
        assert_eq!(render(&source), Ok(format!("{list} {text}")), "{slice}");
    }
    assert_eq!(render("{{ [][::-1] }}{{ ''[::-1] }}").as_deref(), Ok("[]"));
    assert_refused("cannot be sliced", &["{{ {'a': 1}[::-1] }}"]);
}

#[test]
fn no_value_contains_a_namespace_or_a_loop() {
    assert_refused(
        "a namespace or a loop cannot be part of another value",
        &[
            "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
            "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns|tojson }}",
            "{% set ns = namespace() %}{% set ns.x = dict(a=ns) %}",
            "{% set ns = namespace() %}{% set ns.x = nothing|default(ns) %}",
            "{% set ns = namespace() %}{% for a in [1] %}{% set ns.x = loop.cycle(ns) %}{% endfor %}",
            "{% set ns = namespace() %}{% set ns.x = namespace(a=ns) %}",
            "{% for a in [1] %}{{ [loop] }}{% endfor %}",
            "{% set ns = namespace() %}{% for a in [1] %}{% set ns.x = loop %}{% endfor %}",
            "{% for a in [1] %}{{ loop.changed(loop) }}{% endfor %}",
            "{% for a in [1] %}{{ loop.changed(loop, *[1]) }}{% endfor %}",
            "{% for a in [1] %}{{ loop.changed(a=loop) }}{% endfor %}",
            "{% for a in [1] %}{{ loop.changed(**{'a': loop}) }}{% endfor %}",
        ],
    );
}

#[test]
fn positions_in_a_text_are_counted_in_characters() {
    assert_eq!(
        render("{{ 'größer'.find('e') }} {{ 'größer'.rfind('r') }} {{ 'größer'.find('x') }}"),
        Ok("4 5 -1".into())
    );
    assert_eq!(render("{% set t = 'äöü: 5' %}{{ t[t.find(':') + 2:] }}"), Ok("5".into()));
}

#[test]
fn a_panic_of_the_library_is_an_error() {
    assert_refused(
        "minijinja panicked",
        &["{% for a in [1] %}{{ loop.cycle() }}{% endfor %}", "{{ '%(é)s'|format({'é': 1}) }}"],
    );
}

#[test]
fn numbers_and_patterns_have_a_maximum_size() {
    assert_refused(
        "above",
        &[
            "{{ '%9999999999d'|format(1) }}",
            "{{ '{:>9999999999}'.format(1) }}",
            "{% set w = 9999999999 %}{{ '{:>{w}}'.format(1, w=w) }}",
            "{{ 'x'|indent(9999999999, true) }}",
            "{{ [1]|batch(9999999999, 'x')|list }}",
            "{% set x = text * 8000000 %}{{ x|trim(x ~ 'y') }}",
            "{% set x = text * 8000000 %}{{ x.strip(x ~ 'y') }}",
            "{% set x = (text * 1000)|list %}{{ x|sort(attribute=(text ~ ',') * 100000) }}",
            "{% set x = (text * 1000)|list %}{{ x|sort(attribute='a,b,c,d,e') }}",
            "{% set x = (text * 1000)|list %}{{ x|map(attribute=text * 1000)|list }}",
            "{% set x = (text * 1000)|list %}{{ x|groupby(text * 1000)|list }}",
            "{{ strftime_now('%c' * 1000) }}",
        ],
    );
    assert_refused("the empty text cannot be counted", &["{{ 'x'.count('') }}"]);
}

#[test]
fn templates_that_need_too_much_stack_or_large_constants_are_rejected() {
    assert_refused(
        "an expression has more than 2000 Jinja tokens",
        &[
            &format!("{{{{ {}1 }}}}", "not ".repeat(50_000)),
            &format!("{{{{ a{} }}}}", "|upper".repeat(50_000)),
            &format!("{{{{ a{} }}}}", ".a".repeat(50_000)),
            &format!("{{{{ a{} }}}}", " ~ a".repeat(50_000)),
            &format!("{{{{ {}1 }}}}", "1 if a else ".repeat(50_000)),
        ],
    );
    assert_refused("`elif` tags", &[&format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(20_000))]);
    assert_refused(
        "a constant of more than 16384 bytes",
        &[
            "{{ 'x' * 99999999 }}",
            "{{ ('x' * 10000) * 10000 }}",
            "{{ 'x' * (9999999 + 9) }}",
            "{{ [1, 2] * 9223372036854775807 }}",
            "{% macro m(a='x' * 99999999) %}{% endmacro %}",
            "{% for a in [text|default('x' * 99999999)] %}{% endfor %}",
        ],
    );
    let small = "{{ '=' * 5 }} {{ 60 * 60 * 24 }} {{ ('ab' ~ 'c') * 2 }} {{ [1, 2] * 2 }}";
    assert_eq!(render(small).as_deref(), Ok("===== 86400 abcabc [1, 2, 1, 2]"));
}

#[test]
fn templates_that_need_much_memory_to_compile_are_rejected() {
    let blocks: String = (0..200_000).map(|name| format!("{{% block b{name} %}}{{% endblock %}}")).collect();
    assert_refused("it has more than 100 `block` tags", &[&blocks]);
    assert_refused(
        "it has more than 20000 Jinja tokens",
        &[
            &"{{ a }}".repeat(50_000),
            &"{{ 'x' * 16000 }}".repeat(50_000),
            &"{% if a %}{% endif %}".repeat(50_000),
        ],
    );
    assert_eq!(
        render("{% block a %}{% for block in 'abc' %}{{ block }}{% endfor %}{% endblock %}").as_deref(),
        Ok("abc")
    );
}

#[test]
fn a_slow_template_is_stopped_after_five_seconds() {
    assert_refused(
        "it takes more than 5 s",
        &["{% set x = text * 16000000 %}{% for a in range(90000) %}{% if 'y' in x %}{% endif %}{% endfor %}"],
    );
}
