//! Guided decoding with `llguidance`: texts that match a regular expression, a list of choices, a JSON schema
//! or a grammar.
//!
//! In: a request's constraint. Out: a [`Guide`] for the vocabulary of one model. Invariant: compiling and
//! every step stay within fixed limits, regardless of the constraint. The library counts most of its work;
//! what it does not count is limited before (`grammar_size`, `json_schema`). The guides of JSON schemas and
//! of calls also find the numbers that the schemas name and the values that they list (`fields`).

mod calls;
mod ebnf;
mod fields;
mod grammar_size;
mod json_schema;
mod number_keywords;
mod references;
mod structural_tag;
mod token_rules;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, TokenParser, regex_to_lark};
use ntl_core::contract::ModelInfo;
use ntl_core::guide::{FieldEffect, FieldValues, Guide, GuideError, GuideState, SchemaField};
use ntl_core::numbers::TokenBytes;
use serde_json::Value;

use crate::tokenizer::Tokenizer;
pub use calls::{Answer, CallGrammar};
use fields::{CallCursor, Cursor, Follower, Schema};
pub use json_schema::{Whitespace, forbid_additional_properties};
pub use structural_tag::StructuralFormat;
pub use token_rules::TokenRules;

/// Returns whether a JSON schema names any number, or lists the values of any place.
pub fn has_fields(schema: &Value) -> bool {
    let schema = Schema::new(schema);
    schema.names_numbers() || schema.lists_values()
}

#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// A regular expression that matches the whole text, in the syntax of the `regex` crate without anchors
    /// or look-around.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// JSON that matches a schema. A `$ref` may point only into the schema itself.
    Json { schema: Value, whitespace: Whitespace },
    /// A context-free grammar in the library's dialect of Lark, or in EBNF with `::=`.
    Grammar(String),
    /// Parts between marks.
    Structural(Box<StructuralFormat>),
    /// Calls of functions.
    Calls(Box<CallGrammar>),
}

/// Compiles constraints for one vocabulary.
pub struct GuideCompiler {
    factory: ParserFactory,
    /// Whether decoding drops a space at the beginning of a text, so that the constraint ignores it.
    drops_space: bool,
    numbers: Arc<NumberTokenIds>,
    /// For listed values; made when the first schema lists some.
    token_bytes: OnceLock<Arc<TokenBytes>>,
}

/// The tokens that numbers are spelled with, by their bytes.
type NumberTokenIds = BTreeMap<Vec<u8>, u32>;

impl GuideCompiler {
    /// Takes some milliseconds.
    ///
    /// # Errors
    /// If the model has no end-of-sequence token, without which no text is complete.
    pub fn new(tokenizer: &Tokenizer, info: &ModelInfo) -> Result<Self, GuideError> {
        let end = *info.eos_ids.first().ok_or_else(|| failed("the model has no end of sequence"))?;
        let words: Vec<Vec<u8>> = (0u32..).take(info.tokens).map(|id| word(tokenizer, info, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(info.tokens as u32, end), &words);
        let trie = trie.with_eos_tokens(&info.eos_ids);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let capabilities = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, capabilities, &slices).map_err(failed)?;
        *factory.quiet().limits_mut() = limits();
        Ok(Self {
            factory,
            drops_space: info.encoder_decoder && tokenizer.drops_first_space(),
            numbers: Arc::new(number_tokens(tokenizer, &words)),
            token_bytes: OnceLock::new(),
        })
    }

    /// # Errors
    /// If the constraint is malformed, unsupported or too large, or no text of this vocabulary can satisfy
    /// it.
    pub fn compile(&self, constraint: &Constraint) -> Result<Arc<dyn Guide>, GuideError> {
        let constraint = &prepared(constraint)?;
        let lark = grammar(constraint, self.drops_space)?;
        let parser = self.parser(lark)?;
        let mut matcher = Matcher::new(Ok(parser));
        self.check_beginning(&mut matcher)?;
        let tokens = Arc::clone(self.factory.tok_env());
        let follower = match constraint {
            Constraint::Json { schema, .. } => {
                Some(Follower::Json(Cursor::new(self.with_listed(Schema::new(schema)))))
            }
            Constraint::Calls(grammar) => {
                let mut functions = grammar.called(|id| tokens.tok_trie().token(id));
                for function in &mut functions {
                    function.schema = self.with_listed(function.schema.clone());
                }
                Some(Follower::Calls(CallCursor::new(functions)))
            }
            Constraint::Regex(_)
            | Constraint::Choice(_)
            | Constraint::Grammar(_)
            | Constraint::Structural(_) => None,
        };
        let numbers = Arc::clone(&self.numbers);
        let token_bytes = self.token_bytes.get().cloned();
        Ok(Arc::new(Compiled { matcher: Mutex::new(matcher), tokens, numbers, token_bytes, follower }))
    }

    /// Adds the bytes of tokens to a schema that lists values.
    fn with_listed(&self, schema: Schema) -> Schema {
        if !schema.lists_values() {
            return schema;
        }
        let trie = self.factory.tok_env().tok_trie();
        schema.with_listed(self.token_bytes.get_or_init(|| {
            let ids = 0..trie.vocab_size() as u32;
            Arc::new(TokenBytes::new(ids.map(|id| trie.token(id).to_vec())))
        }))
    }

    /// Compiles on another thread with a large stack, because the library recurses with the rules of a
    /// grammar.
    fn parser(&self, lark: String) -> Result<TokenParser, GuideError> {
        let outcome = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || self.factory.create_parser(TopLevelGrammar::from_lark(lark)))
                .map(|thread| thread.join())
        });
        match outcome.map_err(failed)? {
            Ok(parser) => parser.map_err(failed),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Rejects a constraint if no token can begin a text that satisfies it. A space that decoding drops does
    /// not count.
    fn check_beginning(&self, matcher: &mut Matcher) -> Result<(), GuideError> {
        let trie = self.factory.tok_env().tok_trie();
        let (spaces, others): (Vec<u32>, Vec<u32>) =
            allowed(matcher)?.iter().partition(|&id| self.drops_space && trie.token(id) == b" ");
        if !others.is_empty() {
            return Ok(());
        }
        let mut behind = matcher.deep_clone();
        behind.consume_tokens(&spaces[..spaces.len().min(1)]).map_err(failed)?;
        allowed(&mut behind).map(|_| ())
    }
}

/// Returns the tokens that may follow.
///
/// # Errors
/// If there are none: the text is not complete, and the vocabulary has no token that continues it.
fn allowed(matcher: &mut Matcher) -> Result<SimpleVob, GuideError> {
    // When no token fits, the library stops with an error without a message.
    matcher.compute_mask_or_eos().map_err(failed)
}

/// Returns the tokens of a space, digits and signs, given the bytes of all tokens. Single bytes are for
/// characters without a token.
fn number_tokens(tokenizer: &Tokenizer, words: &[Vec<u8>]) -> NumberTokenIds {
    let mut tokens = NumberTokenIds::new();
    for (id, word) in (0u32..).zip(words) {
        if word.is_empty() || !word.iter().all(|byte| byte.is_ascii_digit() || b" -+.eE".contains(byte)) {
            continue;
        }
        let known = tokens.entry(word.clone()).or_insert(id);
        if tokenizer.token(*known).is_some_and(|name| name.starts_with("<0x")) {
            *known = id;
        }
    }
    tokens
}

/// Returns the bytes of a token in a text. A token that writes no text has none.
fn word(tokenizer: &Tokenizer, info: &ModelInfo, id: u32) -> Vec<u8> {
    if info.eos_ids.contains(&id) {
        return marked(tokenizer.token(id));
    }
    if tokenizer.unknown_id() == Some(id) {
        return Vec::new();
    }
    tokenizer.piece_bytes(id).unwrap_or_default()
}

/// The bytes of a special token. No text contains them.
fn marked(name: Option<&str>) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.unwrap_or("<end>").as_bytes()].concat()
}

/// Enough for the limits of schemas and grammars. Only the part that is used is allocated.
const STACK_BYTES: usize = 256 << 20;

/// Maximum number of zeros that are added to the text of a number.
const ZEROS_MAX: usize = 20;

/// The library's default time limits (at most about 20 ms to compile, 15 ms per step) and a lower memory
/// limit.
fn limits() -> ParserLimits {
    ParserLimits { max_lexer_states: 20_000, verbose_errors: false, ..ParserLimits::default() }
}

/// Returns an equal constraint that the library applies exactly.
///
/// # Errors
/// If the library would not, or if the conversion to Lark would hide the error.
fn prepared(constraint: &Constraint) -> Result<Constraint, GuideError> {
    match constraint {
        Constraint::Regex(regex)
            if regex.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1 =>
        {
            Err(failed("the regular expression ends in an unfinished escape"))
        }
        Constraint::Json { schema, whitespace } => {
            json_schema::check_whitespace(whitespace)?;
            Ok(Constraint::Json { schema: json_schema::prepared(schema)?, whitespace: whitespace.clone() })
        }
        Constraint::Grammar(grammar) => Ok(Constraint::Grammar(lark(grammar)?)),
        Constraint::Calls(grammar) => Ok(Constraint::Calls(Box::new(grammar.prepared()?))),
        Constraint::Regex(_) | Constraint::Choice(_) | Constraint::Structural(_) => Ok(constraint.clone()),
    }
}

/// A request's grammar in the library's dialect of Lark.
///
/// # Errors
/// If it is malformed or too large, or has schemas, whose keywords are not checked.
fn lark(grammar: &str) -> Result<String, GuideError> {
    if grammar.contains("%json") {
        return Err(failed("`%json` is not supported in a grammar"));
    }
    let lark = if ebnf::is_ebnf(grammar) { ebnf::lark(grammar)? } else { grammar.to_owned() };
    grammar_size::check(&lark)?;
    Ok(lark)
}

/// A constraint in the library's dialect of Lark.
fn grammar(constraint: &Constraint, drops_space: bool) -> Result<String, GuideError> {
    let lead_in = if drops_space { "\" \"? " } else { "" };
    Ok(match constraint {
        Constraint::Regex(regex) => {
            let space = if drops_space { " ?" } else { "" };
            // `d` limits digits to ASCII, because number tokens are ASCII.
            format!("start: /{space}(?:{})/", regex_to_lark(regex, "d"))
        }
        Constraint::Choice(choices) => {
            let choices = choices.iter().map(|choice| Value::from(choice.as_str()).to_string());
            format!("start: {lead_in}({})", choices.collect::<Vec<_>>().join(" | "))
        }
        Constraint::Json { schema, whitespace } => {
            let schema = json_schema::with_whitespace(schema, whitespace);
            format!("start: {lead_in}json\njson: %json {schema}")
        }
        Constraint::Grammar(grammar) => match lead_in {
            "" => grammar.clone(),
            _ => format!("start: {lead_in}grammar\ngrammar: %lark {{\n{grammar}\n}}"),
        },
        Constraint::Structural(format) => format.lark(lead_in)?,
        Constraint::Calls(grammar) => grammar.lark(lead_in),
    })
}

/// Shortens an error to its readable line: the last one if it comes from the parser of regular expressions,
/// otherwise the first one.
fn failed(error: impl std::fmt::Display) -> GuideError {
    const LENGTH_MAX: usize = 300;
    const NOTHING: &str = "no token of the vocabulary continues such a text";
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = text.lines().find_map(|line| line.trim().strip_prefix("error: "));
    let line = last.or_else(|| lines.next()).unwrap_or(NOTHING);
    // The library's name for the same condition.
    let line = if line.starts_with("NoExtension") { NOTHING } else { line };
    GuideError(line.chars().take(LENGTH_MAX).collect())
}

struct Compiled {
    /// Never advanced, only cloned.
    matcher: Mutex<Matcher>,
    tokens: TokEnv,
    numbers: Arc<NumberTokenIds>,
    /// For listed values, if there may be some.
    token_bytes: Option<Arc<TokenBytes>>,
    /// At the beginning of the text, if schemas may name fields in it.
    follower: Option<Follower>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Compiled").field("follower", &self.follower).finish_non_exhaustive()
    }
}

impl Guide for Compiled {
    fn start(&self) -> Box<dyn GuideState> {
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        let (tokens, numbers) = (Arc::clone(&self.tokens), Arc::clone(&self.numbers));
        let token_bytes = self.token_bytes.clone();
        let follower = self.follower.clone();
        Box::new(ConstraintState { matcher, tokens, numbers, token_bytes, follower, number_ends: false })
    }
}

/// The state of a constraint at a position of one text.
struct ConstraintState {
    matcher: Matcher,
    tokens: TokEnv,
    numbers: Arc<NumberTokenIds>,
    token_bytes: Option<Arc<TokenBytes>>,
    follower: Option<Follower>,
    /// Whether the number before the next token must not continue.
    number_ends: bool,
}

impl ConstraintState {
    /// Returns tokens that write the beginning of a number, or `None` if the constraint forbids it here. They
    /// are the longest ones, as most tokenizers write numbers.
    fn begin(&mut self, text: &str) -> Option<Vec<u32>> {
        let mut rest = text.as_bytes();
        let mut ids = Vec::new();
        while !rest.is_empty() {
            let longest =
                (1..=rest.len()).rev().find_map(|end| Some((end, *self.numbers.get(&rest[..end])?)));
            let (end, id) = longest?;
            ids.push(id);
            rest = &rest[end..];
        }
        let is_allowed = self.matcher.validate_tokens(&ids).is_ok_and(|allowed| allowed == ids.len());
        (is_allowed && !ids.is_empty()).then_some(ids)
    }

    /// Returns whether the text may end, or continue with something else, after the tokens of a number.
    fn may_end_after(&self, ids: &[u32]) -> bool {
        let mut after = self.clone();
        for &id in ids {
            if after.accept(id).is_err() {
                return false;
            }
        }
        after.end_number();
        if after.is_complete() {
            return true;
        }
        let Ok(next) = allowed(&mut after.matcher) else { return false };
        next.iter().any(|id| !after.continues_ended_number(id))
    }

    /// The library admits a name of `patternProperties` or `additionalProperties` twice in an object. It
    /// remains admitted if there is no other one.
    fn forbid_repeated_names(&self, mask: &mut SimpleVob) {
        let Some(follower) = &self.follower else { return };
        if !follower.is_at_further_name() {
            return;
        }
        let trie = self.tokens.tok_trie();
        let mut others = mask.clone();
        for id in mask.iter() {
            if follower.repeats_name(trie.token(id)) {
                others.disallow_token(id);
            }
        }
        if !others.is_zero() {
            *mask = others;
        }
    }

    /// Returns whether a token would continue a number that has ended.
    fn continues_ended_number(&self, id: u32) -> bool {
        let first = self.tokens.tok_trie().token(id).first();
        self.number_ends
            && first.is_some_and(|&byte| {
                self.follower.as_ref().is_some_and(|follower| follower.continues_number(byte))
            })
    }
}

impl Clone for ConstraintState {
    fn clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            tokens: Arc::clone(&self.tokens),
            numbers: Arc::clone(&self.numbers),
            token_bytes: self.token_bytes.clone(),
            follower: self.follower.clone(),
            number_ends: self.number_ends,
        }
    }
}

impl GuideState for ConstraintState {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), GuideError> {
        let mut mask = allowed(&mut self.matcher)?;
        self.forbid_repeated_names(&mut mask);
        let bits = mask.as_slice();
        for (id, logit) in logits.iter_mut().enumerate() {
            let is_allowed = bits.get(id / 32).is_some_and(|bits| bits & (1 << (id % 32)) != 0);
            if !is_allowed || self.continues_ended_number(id as u32) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), GuideError> {
        self.matcher.consume_token(id).map_err(failed)?;
        self.number_ends = false;
        if let Some(follower) = &mut self.follower {
            follower.read(self.tokens.tok_trie().token(id));
        }
        Ok(())
    }

    fn is_complete(&mut self) -> bool {
        self.matcher.is_stopped()
    }

    fn field_effect(&self, id: u32) -> FieldEffect {
        match &self.follower {
            Some(follower) => follower.effect(self.tokens.tok_trie().token(id)),
            None => FieldEffect::None,
        }
    }

    /// Alternatives are compared by some of their numbers. Only the library knows what the text so far has
    /// excluded.
    fn narrow(&mut self, field: &mut SchemaField) {
        match &mut field.values {
            FieldValues::Numbers(numbers) => {
                field.may_follow_space =
                    ('0'..='9').chain(['-']).any(|first| self.begin(&format!(" {first}")).is_some());
                if let Some(narrowed) = numbers.narrowed(|text| self.spell(text).is_some()) {
                    *numbers = Arc::new(narrowed);
                }
            }
            FieldValues::Listed(values) => {
                let spaced = values.admitted(|text| self.spell_value(&format!(" {text}")).is_some());
                field.may_follow_space = !spaced.texts().is_empty();
                let plain = values.admitted(|text| self.spell_value(text).is_some());
                *values = Arc::new(if plain.texts().is_empty() { spaced } else { plain });
            }
        }
    }

    /// Some schemas need a fixed number of digits after the point.
    fn spell(&mut self, text: &str) -> Option<Vec<u32>> {
        let mut text = text.to_owned();
        for _ in 0..=ZEROS_MAX {
            let ids = self.begin(&text)?;
            if self.may_end_after(&ids) {
                return Some(ids);
            }
            text.push_str(if text.contains('.') { "0" } else { ".0" });
        }
        None
    }

    fn spell_value(&mut self, text: &str) -> Option<Vec<u32>> {
        let ids = self.token_bytes.as_ref()?.spell(text.as_bytes())?;
        self.matcher.validate_tokens(&ids).is_ok_and(|allowed| allowed == ids.len()).then_some(ids)
    }

    fn end_number(&mut self) {
        self.number_ends = true;
    }
}
