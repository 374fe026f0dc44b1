//! Random JSON schemas about numbers, with a small validator that shares no code with the server: every text
//! is valid, and every number has the distribution of a brute force.

use std::sync::{Arc, LazyLock};

use ntl_core::contract::TextJob;
use ntl_core::guide::{FieldEffect, FieldValues, GuideState, SchemaField};
use ntl_core::numbers::{Objective, SchemaNumbers};
use ntl_core::sampling::{Sampler, SamplingParams};
use ntl_core::text::TextDecoder;
use ntl_text::guide::{Constraint, GuideCompiler, Whitespace};
use ntl_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::fields::{BruteForce, Written, fields, model, write};

/// Bounds, steps and listed numbers are multiples of 0.001, up to this magnitude.
const MAGNITUDE: i64 = 40;

/// Maximum tokens per text. Texts that are still incomplete then are not checked.
const TOKENS_MAX: usize = 160;

const TOLERANCE: f64 = 1e-6;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn among<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// A number with up to three digits after the point.
    fn number(&mut self) -> Value {
        let unit = self.among(&[1000, 1000, 500, 100, 10, 1]);
        let units = MAGNITUDE * 1000 / unit;
        let thousandths = (self.below(2 * units as usize + 1) as i64 - units) * unit;
        if thousandths % 1000 == 0 && !self.one_in(8) {
            return json!(thousandths / 1000);
        }
        json!(thousandths as f64 / 1000.0)
    }

    /// A schema of a number.
    fn number_schema(&mut self) -> Value {
        match self.below(8) {
            0 => {
                let mut list: Vec<Value> = (0..1 + self.below(4)).map(|_| self.number()).collect();
                if self.one_in(3) {
                    list.push(json!("x"));
                }
                json!({"enum": list})
            }
            1 => json!({"const": self.number()}),
            2 => json!({"anyOf": [self.bounded(), self.bounded(), {"type": "null"}]}),
            3 => json!({"allOf": [self.bounded(), self.bounded()]}),
            _ => self.bounded(),
        }
    }

    /// A schema of numbers between two bounds.
    fn bounded(&mut self) -> Value {
        let names = ["integer", "number", "number"];
        let mut schema = json!({"type": self.among(&names)});
        let (mut low, mut high) = (self.number(), self.number());
        if self.one_in(4) {
            // Close to each other.
            high = json!(((low.as_f64().unwrap() * 1000.0).round() + self.below(200) as f64) / 1000.0);
        }
        if low.as_f64() > high.as_f64() {
            std::mem::swap(&mut low, &mut high);
        }
        for (inclusive, exclusive, bound) in
            [("minimum", "exclusiveMinimum", low), ("maximum", "exclusiveMaximum", high)]
        {
            match self.below(8) {
                0 => schema[exclusive] = bound,
                1 => {
                    schema[inclusive] = bound;
                    schema[exclusive] = json!(true);
                }
                2 => {
                    schema[inclusive] = bound;
                    schema[exclusive] = self.number();
                }
                _ => schema[inclusive] = bound,
            }
        }
        if self.one_in(3) {
            let steps = [0.1, 0.25, 0.125, 0.05, 0.01, 0.75, 0.15, 0.5, 1.5, 2.5, 0.3, 1.0, 2.0, 7.0, 10.0];
            schema["multipleOf"] = json!(self.among(&steps));
        }
        schema
    }

    /// A schema of an object with numbers, possibly one of several that a field distinguishes.
    fn object(&mut self) -> Value {
        let keyword = self.among(&["anyOf", "oneOf"]);
        match self.below(3) {
            0 => json!({"type": "object", "required": ["x", "y"], "additionalProperties": false,
                "properties": {"x": self.number_schema(), "y": self.number_schema()}}),
            1 => {
                let definitions = json!({"a/b": self.number_schema(), "my n~": self.number_schema(),
                    "c": {"$anchor": "here", "anyOf": [self.number_schema()]}});
                let reference = |target: &str| json!({"$ref": target});
                json!({"type": "object", "required": ["x", "y", "z"], "additionalProperties": false, "$defs": definitions,
                    "properties": {"x": reference("#/$defs/a~1b"), "y": reference("#/$defs/my%20n~0"), "z": reference("#here")}})
            }
            _ => {
                let mut variant = |kind: &str| {
                    json!({"type": "object", "required": ["kind", "x"], "additionalProperties": false,
                        "properties": {"kind": {"const": kind}, "x": self.number_schema()}})
                };
                json!({keyword: [variant("p"), variant("q"), variant("r")]})
            }
        }
    }
}

/// Returns whether `value` is valid, by the definitions of JSON Schema.
fn is_valid(schema: &Value, value: &Value, root: &Value) -> bool {
    if let Some(target) = schema.get("$ref") {
        let target = match target.as_str().unwrap() {
            "#here" => "/$defs/c",
            "#/$defs/my%20n~0" => "/$defs/my n~0",
            other => &other[1..],
        };
        return is_valid(root.pointer(target).unwrap(), value, root);
    }
    let all = |keyword: &str| schema.get(keyword).and_then(Value::as_array);
    let are_valid =
        |options: &Vec<Value>| options.iter().filter(|option| is_valid(option, value, root)).count();
    let number = value.as_f64();
    let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let is_draft_4 = |keyword: &str| schema.get(keyword) == Some(&json!(true));
    let is_within = |number: f64| {
        bound("minimum").is_none_or(|low| low < number || (low <= number && !is_draft_4("exclusiveMinimum")))
            && bound("maximum")
                .is_none_or(|high| number < high || (number <= high && !is_draft_4("exclusiveMaximum")))
            && bound("exclusiveMinimum").is_none_or(|low| low < number)
            && bound("exclusiveMaximum").is_none_or(|high| number < high)
            && bound("multipleOf").is_none_or(|step| {
                let count = number / step;
                (count - count.round()).abs() < 1e-9
            })
    };
    let equals = |other: &Value| match (other.as_f64(), number) {
        (Some(other), Some(number)) => other.total_cmp(&(number + 0.0)).is_eq(),
        _ => other == value,
    };
    let has_type = match schema.get("type").and_then(Value::as_str) {
        Some("number") => number.is_some(),
        Some("integer") => number.is_some_and(|number| number.fract().abs() <= 0.0),
        Some("null") => value.is_null(),
        Some("object") => value.is_object(),
        Some(other) => panic!("{other}"),
        None => true,
    };
    let has_fields = |fields: &serde_json::Map<String, Value>| {
        let required = schema["required"].as_array().unwrap();
        required.iter().all(|name| fields.contains_key(name.as_str().unwrap()))
            && fields.iter().all(|(name, field)| {
                schema["properties"].get(name).is_some_and(|property| is_valid(property, field, root))
            })
    };
    has_type
        && number.is_none_or(is_within)
        && schema.get("const").is_none_or(equals)
        && all("enum").is_none_or(|values| values.iter().any(equals))
        && all("allOf").is_none_or(|parts| are_valid(parts) == parts.len())
        && all("anyOf").is_none_or(|options| are_valid(options) > 0)
        && all("oneOf").is_none_or(|options| are_valid(options) == 1)
        && (schema.get("properties").is_none() || value.as_object().is_some_and(has_fields))
}

/// Returns whether any multiple of 0.001 is valid.
fn has_number(schema: &Value) -> bool {
    let range = MAGNITUDE * 1000 + 1000;
    (-range..=range).any(|thousandths| {
        let value = if thousandths % 1000 == 0 {
            json!(thousandths / 1000)
        } else {
            json!(thousandths as f64 / 1000.0)
        };
        is_valid(schema, &value, schema)
    })
}

/// Samples texts under a schema from uniform logits, and returns the complete ones.
fn texts(tokenizer: &Tokenizer, compiler: &GuideCompiler, schema: &Value) -> Result<Vec<String>, String> {
    let constraint = Constraint::Json { schema: schema.clone(), whitespace: Whitespace::None };
    let guide = compiler.compile(&constraint).map_err(|error| error.0)?;
    let write = |seed| {
        let mut sampler = Sampler::new(SamplingParams { seed, ..SamplingParams::PLAIN }, 0);
        let mut state = guide.start();
        let mut ids = Vec::new();
        while ids.len() < TOKENS_MAX {
            let mut logits = vec![0.0; tokenizer.len()];
            state.restrict(&mut logits).unwrap();
            let id = sampler.choose(&logits).unwrap();
            state.accept(id).unwrap();
            ids.push(id);
            if state.is_complete() {
                return Some(tokenizer.decode(&ids));
            }
        }
        None
    };
    Ok((0..6).filter_map(write).collect())
}

/// The tokenizer and the compiler of the model, which is loaded once for all tests.
fn compiler() -> &'static (Arc<Tokenizer>, GuideCompiler) {
    static COMPILER: LazyLock<(Arc<Tokenizer>, GuideCompiler)> = LazyLock::new(|| {
        let loaded = model();
        let compiler = GuideCompiler::new(&loaded.tokenizer, loaded.model.info()).unwrap();
        (loaded.tokenizer, compiler)
    });
    &COMPILER
}

#[test]
fn every_text_of_a_random_schema_is_valid_and_every_number_can_be_written() {
    let (tokenizer, compiler) = compiler();
    let mut random = Random(1);
    let (mut valid, mut empty) = (0, 0);
    for _ in 0..300 {
        let schema = if random.one_in(3) { random.object() } else { random.number_schema() };
        match texts(tokenizer, compiler, &schema) {
            Ok(texts) => {
                for text in texts {
                    let value: Value = serde_json::from_str(&text).unwrap();
                    assert!(is_valid(&schema, &value, &schema), "{schema}: {text}");
                    valid += 1;
                }
            }
            Err(reason) => {
                let is_number = schema.get("properties").is_none() && schema.get("oneOf").is_none();
                assert!(!is_number || !has_number(&schema), "{schema}: {reason}");
                empty += 1;
            }
        }
    }
    assert!(valid > 800 && empty > 15, "{valid} texts, {empty} schemas without any");
}

#[test]
fn every_number_of_a_random_schema_has_the_distribution_of_a_brute_force() {
    let (_, compiler) = compiler();
    let mut random = Random(2);
    let (mut compared, mut written_by_model) = (0, 0);
    while compared < 10 {
        let schema = random.object();
        let constraint = Constraint::Json { schema: schema.clone(), whitespace: Whitespace::None };
        if compiler.compile(&constraint).is_err() {
            continue;
        }
        let sampling = SamplingParams { seed: compared, ..SamplingParams::PLAIN };
        let objective = random.among(&[Objective::Median, Objective::Mode, Objective::Mean]);
        let job = TextJob { sampling, fields: Some(fields(objective)), ..TextJob::default() };
        let Written { ids, text, numbers } = write(&schema, Whitespace::None, job).remove(0);
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(is_valid(&schema, &answer, &schema), "{schema}: {text}");
        for number in numbers {
            if number.field.values.numbers().is_none() {
                // The kind.
                continue;
            }
            let pointer = number.field.path.replace(['$'], "").replace('.', "/");
            assert!(answer.pointer(&pointer).unwrap().is_number());
            // The kind precedes the number, so the other values do not depend on it.
            let (schema, answer) = (schema.clone(), answer.clone());
            let admits = move |value: f64| {
                let mut other = answer.clone();
                *other.pointer_mut(&pointer).unwrap() = json!(value);
                is_valid(&schema, &other, &schema)
            };
            let want = BruteForce::new(admits).without_spaces().numbers(&ids[..number.tokens.start]);
            let found = &number.outcome.distribution;
            for leaf in found.leaves() {
                let exact = want.get(&((leaf.value * 10.0).round() as i64)).copied().unwrap_or_default();
                let is_equal = (leaf.probability - exact).abs() < TOLERANCE;
                assert!(is_equal, "{text} {}: {} {exact}", leaf.text, leaf.probability);
            }
            let closed: f64 = want.values().sum();
            assert!((found.mass().closed - closed).abs() < TOLERANCE, "{text}: {:?} {closed}", found.mass());
            written_by_model += usize::from(number.value.is_none());
            compared += 1;
        }
    }
    // Numbers that are longer than the limits of the search.
    assert!(written_by_model < 4, "{written_by_model}");
}

/// The longest tokens that spell a text.
fn spelled(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let fits = |id: &u32| {
            tokenizer.unknown_id() != Some(*id)
                && tokenizer
                    .piece_bytes(*id)
                    .is_some_and(|bytes| !bytes.is_empty() && rest.starts_with(&bytes))
        };
        let length = |id: &u32| tokenizer.piece_bytes(*id).map(|bytes| bytes.len());
        let id = (0..tokenizer.len() as u32).filter(fits).max_by_key(length).unwrap();
        rest = &rest[length(&id).unwrap()..];
        ids.push(id);
    }
    ids
}

/// A place in a text under a schema.
struct Place {
    tokenizer: Arc<Tokenizer>,
    state: Box<dyn GuideState>,
}

impl Place {
    fn new(schema: Value, text: &str) -> Self {
        Self::with_whitespace(schema, text, Whitespace::None)
    }

    fn with_whitespace(schema: Value, text: &str, whitespace: Whitespace) -> Self {
        let (tokenizer, compiler) = compiler();
        let mut state = compiler.compile(&Constraint::Json { schema, whitespace }).unwrap().start();
        for id in spelled(tokenizer, text) {
            state.accept(id).unwrap();
        }
        Self { tokenizer: Arc::clone(tokenizer), state }
    }

    /// The number that comes next.
    fn field(&mut self) -> SchemaField {
        let digit = spelled(&self.tokenizer, "1")[0];
        let FieldEffect::Begins { mut field, .. } = self.state.field_effect(digit) else {
            panic!("no number")
        };
        self.state.narrow(&mut field);
        field
    }

    /// The numbers of the field that comes next.
    fn numbers(&mut self) -> Arc<SchemaNumbers> {
        match self.field().values {
            FieldValues::Numbers(numbers) => numbers,
            FieldValues::Listed(values) => panic!("{values:?}"),
        }
    }

    fn spell(&mut self, number: &str) -> Option<String> {
        let ids = self.state.spell(number)?;
        Some(ids.iter().map(|&id| self.tokenizer.token_text(id)).collect())
    }

    fn admits(&mut self, text: &str) -> bool {
        let mut logits = vec![0.0; self.tokenizer.len()];
        self.state.restrict(&mut logits).unwrap();
        spelled(&self.tokenizer, text).first().is_some_and(|&id| logits[id as usize].is_finite())
    }
}

fn reason(schema: Value) -> Option<String> {
    let constraint = Constraint::Json { schema, whitespace: Whitespace::default() };
    compiler().1.compile(&constraint).err().map(|error| error.0)
}

#[test]
fn a_number_is_spelled_with_the_zeros_that_its_schema_needs() {
    for (schema, number, text) in [
        (json!({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 99}), "2.5", Some("2.50")),
        (json!({"type": "number", "multipleOf": 0.125, "minimum": -9, "maximum": 9}), "-2.5", Some("-2.500")),
        (json!({"type": "number", "multipleOf": 0.75, "minimum": 0, "maximum": 9}), "3", Some("3")),
        (json!({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 99}), "2.3", None),
        (json!({"minimum": 1.28, "maximum": 1.38}), "1.3", Some("1.30")),
        (json!({"minimum": 1.28, "maximum": 1.38}), "1.33", Some("1.33")),
        (json!({"type": "integer", "minimum": 12}), "12", Some("12")),
        (json!({"type": "integer", "minimum": 12}), "1", None),
    ] {
        let list = json!({"type": "array", "items": schema, "minItems": 2, "maxItems": 2});
        assert_eq!(Place::new(list, "[").spell(number).as_deref(), text, "{schema} {number}");
        assert_eq!(Place::new(schema.clone(), "").spell(number).as_deref(), text, "{schema} {number}");
    }
}

#[test]
fn the_numbers_of_a_place_are_those_that_the_text_before_it_has_not_excluded() {
    let union = |keyword: &str, p: Value, q: Value| {
        let variant = |kind: &str, x: Value| {
            json!({"type": "object", "required": ["kind", "x"], "additionalProperties": false,
                "properties": {"kind": {"const": kind}, "x": x}})
        };
        json!({keyword: [variant("p", p), variant("q", q)]})
    };
    let integers = |low: i64, high: i64| json!({"type": "integer", "minimum": low, "maximum": high});
    for keyword in ["oneOf", "anyOf"] {
        for (p, q) in [
            (integers(0, 9), integers(1000, 2000)),
            (integers(0, 1), integers(2, 99)),
            (json!({"enum": [5]}), integers(0, 99)),
            (integers(0, 20), integers(30, 90)),
            (json!({"type": "number", "minimum": 0, "maximum": 9, "multipleOf": 0.25}), integers(0, 9)),
        ] {
            for (kind, own) in [("p", &p), ("q", &q)] {
                let text = format!("{{\"kind\":\"{kind}\",\"x\":");
                let numbers = Place::new(union(keyword, p.clone(), q.clone()), &text).numbers();
                let alone = Place::new(json!({"type": "array", "items": own}), "[").numbers();
                // A set within the other one may remain.
                let nearest = |numbers: &SchemaNumbers| {
                    let all =
                        (-8..9000).map(|count| numbers.nearest(f64::from(count) * 0.2713, 6).unwrap().text);
                    all.collect::<Vec<_>>()
                };
                assert_eq!(nearest(&numbers), nearest(&alone), "{kind}: {p} {q}: {numbers:?}");
            }
        }
    }
    // The kind comes after the number.
    let late = |kind: &str, x: Value| {
        json!({"type": "object", "required": ["x", "kind"], "additionalProperties": false,
            "properties": {"x": x, "kind": {"const": kind}}})
    };
    let both = json!({"anyOf": [late("p", integers(0, 9)), late("q", integers(20, 30))]});
    let interval = |mut place: Place| {
        let interval = place.numbers().interval().unwrap();
        (interval.low, interval.high)
    };
    assert_eq!(interval(Place::new(both, "{\"x\":")), (0.0, 30.0));
    let patterns = json!({"type": "object", "additionalProperties": false,
        "patternProperties": {"^a[0-9]$": integers(0, 9), "^b[0-9]$": integers(50, 70)}});
    assert_eq!(interval(Place::new(patterns.clone(), "{\"a1\":")), (0.0, 9.0));
    assert_eq!(interval(Place::new(patterns, "{\"b1\":")), (50.0, 70.0));
}

#[test]
fn a_space_precedes_a_number_only_where_whitespace_is_allowed() {
    let list = json!({"type": "array", "items": {"type": "integer"}, "minItems": 2});
    for (whitespace, text, may_follow) in [
        (Whitespace::None, "[", false),
        (Whitespace::Bounded, "[", true),
        (Whitespace::Bounded, "[ ", true),
        (Whitespace::Bounded, "[  ", false),
        (Whitespace::Pattern("\n?".to_owned()), "[", false),
        (Whitespace::Pattern(" ?".to_owned()), "[", true),
        (Whitespace::Pattern(" ?".to_owned()), "[ ", false),
    ] {
        let field = Place::with_whitespace(list.clone(), text, whitespace.clone()).field();
        assert_eq!(field.may_follow_space, may_follow, "{whitespace:?} {text:?}");
    }
}

#[test]
fn no_text_has_a_number_at_an_exclusive_bound() {
    let (tokenizer, compiler) = compiler();
    for schema in [
        json!({"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 3.1}),
        json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.1}),
        json!({"type": "number", "exclusiveMinimum": 1, "maximum": 1.5}),
        json!({"type": "number", "exclusiveMaximum": 0, "minimum": -0.5}),
        json!({"type": "number", "exclusiveMaximum": -2, "minimum": -2.5}),
        json!({"type": "number", "exclusiveMinimum": true, "minimum": 7, "maximum": 7.5}),
    ] {
        let texts = texts(tokenizer, compiler, &schema).unwrap();
        assert!(!texts.is_empty(), "{schema}");
        for text in texts {
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(is_valid(&schema, &value, &schema), "{schema}: {text}");
        }
    }
    let third = json!({"type": "number", "multipleOf": 0.1, "minimum": 0.3, "maximum": 0.3});
    assert_eq!(texts(tokenizer, compiler, &third).unwrap()[0], "0.3");
}

#[test]
fn integers_that_would_change_are_rejected_with_their_keyword() {
    let large = 9_007_199_254_740_993_i64;
    for (schema, keyword) in [
        (json!({"const": large}), "const"),
        (json!({"enum": [1, 12_345_678_901_234_567_i64]}), "enum"),
        (json!({"const": {"a": [large]}}), "const"),
        (json!({"enum": [u64::MAX]}), "enum"),
        (json!({"const": serde_json::from_str::<Value>("12345678901234567890123").unwrap()}), "const"),
        (json!({"type": "integer", "minimum": large}), "minimum"),
        (json!({"type": "integer", "maximum": -large}), "maximum"),
        (json!({"type": "integer", "exclusiveMinimum": large}), "exclusiveMinimum"),
        (json!({"type": "number", "minimum": 1e20}), "minimum"),
        (json!({"type": "number", "exclusiveMaximum": -1e300}), "exclusiveMaximum"),
        (json!({"properties": {"a": {"items": {"multipleOf": large}}}}), "multipleOf"),
        (json!({"type": "number", "multipleOf": 0}), "multipleOf"),
        (json!({"type": "number", "multipleOf": -2}), "multipleOf"),
        (json!({"type": "number", "multipleOf": 1e-9}), "multipleOf"),
        (json!({"type": "number", "multipleOf": 0.07}), "multipleOf"),
    ] {
        let reason = reason(schema.clone()).unwrap_or_else(|| panic!("{schema} passes"));
        assert!(reason.contains(&format!("the keyword `{keyword}` at `#")), "{schema}: {reason}");
    }
    let (tokenizer, compiler) = compiler();
    for (schema, only) in [
        (json!({"const": 9_007_199_254_740_992_i64}), Some("9007199254740992")),
        (json!({"const": 1_000_000_000_000_000_000_i64}), Some("1000000000000000000")),
        // Wider than all numbers of a text.
        (json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}), None),
        (json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}), None),
        (json!({"type": "number", "minimum": -1e300, "maximum": 1e25}), None),
        (json!({"type": "number", "minimum": 1e-30, "maximum": 1}), None),
    ] {
        let texts = texts(tokenizer, compiler, &schema).unwrap();
        assert!(!texts.is_empty(), "{schema}");
        assert!(only.is_none_or(|only| texts.iter().all(|text| text == only)), "{schema}: {texts:?}");
    }
}

#[test]
fn steps_with_large_automata_are_rejected_wherever_they_are() {
    let step = |step: f64| json!({"type": "number", "multipleOf": step});
    let fields = |count: usize, schema: Value| {
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|field| (format!("f{field}"), schema.clone())).collect();
        json!({"type": "object", "properties": properties, "additionalProperties": false})
    };
    for schema in [
        step(999_983.0),
        step(9_999_991.0),
        step(99_999_989.0),
        step(0.123457),
        step(1e7),
        json!({"allOf": [step(997.0), step(991.0)]}),
        json!({"multipleOf": 997, "anyOf": [step(991.0)]}),
        json!({"anyOf": [step(97.0), step(89.0), step(83.0)]}),
        json!({"multipleOf": 997, "$ref": "#/$defs/x", "$defs": {"x": step(991.0)}}),
        json!({"allOf": [fields(1, step(997.0)), fields(1, step(991.0))]}),
        json!({"properties": {"a": step(997.0)}, "patternProperties": {"^a": step(991.0)}}),
        json!({"allOf": [step(1000.0), step(0.000_000_1)]}),
        fields(50, step(9973.0)),
        {
            let mut schema = fields(60, json!({"allOf": [{"$ref": "#/$defs/x"}, {"minimum": 1}]}));
            schema["$defs"] = json!({"x": step(997.0)});
            schema
        },
    ] {
        let reason = reason(schema.clone()).unwrap_or_else(|| panic!("{schema} passes"));
        assert!(reason.contains("`multipleOf`"), "{schema}: {reason}");
    }
    for schema in
        [step(9973.0), step(3600.0), fields(40, step(0.25)), json!({"allOf": [step(0.01), step(0.05)]})]
    {
        assert_eq!(reason(schema.clone()), None, "{schema}");
    }
}

#[test]
fn references_are_pointers_with_escapes_or_anchors() {
    let digit = json!({"type": "integer", "minimum": 4, "maximum": 6});
    let defs = json!({"a/b": digit, "my n": digit, "~": digit, "100%": digit, "é": digit, "c": {"$anchor": "here",
        "type": "integer", "minimum": 4, "maximum": 6}});
    let (tokenizer, compiler) = compiler();
    for target in [
        "#/$defs/a~1b",
        "#/$defs/my%20n",
        "#/$defs/my n",
        "#/$defs/~0",
        "#/$defs/%7E0",
        "#/$defs/100%25",
        "#/$defs/%C3%A9",
        "#here",
    ] {
        let schema =
            json!({"type": "array", "items": {"$ref": target}, "minItems": 1, "maxItems": 1, "$defs": defs});
        for text in texts(tokenizer, compiler, &schema).unwrap() {
            assert!(["[4]", "[5]", "[6]"].contains(&text.as_str()), "{target}: {text}");
        }
        assert_eq!(Place::new(schema, "[").field().path, "$[0]");
    }
    let tree = json!({"$anchor": "tree/", "type": "array", "maxItems": 1, "items": {"$ref": "#tree%2F"}});
    assert_eq!(reason(tree), None);
    for target in ["#nowhere", "#/$defs/x", "#/$defs/a~01b"] {
        let reason = reason(json!({"properties": {"p": {"$ref": target}}, "$defs": defs})).unwrap();
        assert_eq!(reason, format!("the keyword `$ref` at `#/properties/p` points to nothing: `{target}`"));
    }
}

#[test]
fn an_object_has_each_name_once() {
    let integer = json!({"type": "integer"});
    let literal = json!({"type": "object", "patternProperties": {"^a$": integer, "^b$": integer}, "additionalProperties": false});
    let pattern =
        json!({"type": "object", "patternProperties": {"^[ab]+$": integer}, "additionalProperties": false});
    let open = json!({"type": "object", "additionalProperties": integer});
    for schema in [pattern, open] {
        assert!(Place::new(schema.clone(), "{\"").admits("a"), "{schema}");
        assert!(!Place::new(schema.clone(), "{\"a\":1,\"a").admits("\""), "{schema}");
        assert!(Place::new(schema, "{\"a\":1,\"b").admits("\""));
    }
    assert!(Place::new(literal.clone(), "{\"").admits("a"));
    assert!(!Place::new(literal.clone(), "{\"a\":1,\"").admits("a"));
    assert!(!Place::new(literal, "{\"a\":1,\"b\":2").admits(","));
}
