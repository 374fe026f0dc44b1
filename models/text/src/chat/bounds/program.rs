//! Compiles a template to instructions that stay within the budget.

use std::collections::BTreeMap;

use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, Token, WhitespaceConfig, parse, tokenize,
};
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget::limit_error;
use super::calls::{CHANGED, CHECKED, CLOCK, CONCATENATED};
use super::constants;

/// Maximum number of tokens in an expression or a tag. The compiler recurses for each operator.
const TOKENS_MAX: usize = 2_000;

/// Maximum number of tokens in a template, which bounds its instructions. Real templates have some thousands.
const TEMPLATE_TOKENS_MAX: usize = 20_000;

/// Maximum number of `block` tags, each of which is compiled to separate instructions. Chat templates need
/// none.
const BLOCKS_MAX: usize = 100;

/// Maximum number of `elif` tags, which the compiler nests in each other.
const ELIFS_MAX: usize = 500;

type Blocks<'source> = BTreeMap<&'source str, Instructions<'source>>;

const NAME: &str = "chat";

/// The settings with which Hugging Face compiles chat templates.
const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };

pub(super) fn check(source: &str) -> Result<(), Error> {
    check_tokens(source)?;
    constants::check(&parse(source, NAME, Default::default(), WHITESPACE)?)
}

/// Returns the instructions of a template that [`check`] has accepted, with functions in place of its
/// operators.
pub(super) fn compile(source: &str) -> Result<(Instructions<'_>, Blocks<'_>), Error> {
    let parsed = parse(source, NAME, Default::default(), WHITESPACE)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&parsed);
    let (instructions, blocks) = generator.finish();
    let blocks = blocks.into_iter().map(|(name, block)| (name, bounded(&block))).collect();
    Ok((bounded(&instructions), blocks))
}

/// Rejects a template whose compilation may overflow the stack of a thread, or need much memory or time.
fn check_tokens(source: &str) -> Result<(), Error> {
    let mut tokens = 0;
    let mut all_tokens = 0;
    let mut blocks = 0;
    let mut elifs = 0;
    let mut is_tag = false;
    // After an error, the same error may repeat endlessly. Parsing reports the first one.
    for (token, _) in tokenize(source, false, Default::default(), WHITESPACE).map_while(Result::ok) {
        match token {
            Token::VariableStart | Token::BlockStart => tokens = 0,
            Token::Ident("elif") => elifs += 1,
            Token::Ident("block") if is_tag => blocks += 1,
            _ => {}
        }
        is_tag = matches!(token, Token::BlockStart);
        tokens += 1;
        all_tokens += 1;
        if tokens > TOKENS_MAX {
            return Err(limit_error(format!("an expression has more than {TOKENS_MAX} Jinja tokens")));
        }
        if all_tokens > TEMPLATE_TOKENS_MAX {
            return Err(limit_error(format!("it has more than {TEMPLATE_TOKENS_MAX} Jinja tokens")));
        }
        if blocks > BLOCKS_MAX {
            return Err(limit_error(format!("it has more than {BLOCKS_MAX} `block` tags")));
        }
        if elifs > ELIFS_MAX {
            return Err(limit_error(format!("it has more than {ELIFS_MAX} `elif` tags")));
        }
    }
    Ok(())
}

/// Replaces each instruction that has no bounds, and adjusts the targets of jumps.
fn bounded<'source>(instructions: &Instructions<'source>) -> Instructions<'source> {
    let mut bounded = Instructions::new(instructions.name(), instructions.source());
    let mut places = Vec::new();
    for place in 0.. {
        places.push(bounded.len() as u32);
        let Some(instruction) = instructions.get(place) else { break };
        for instruction in replacement(instruction) {
            match instructions.get_line(place) {
                Some(line) => bounded.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX)),
                None => bounded.add(instruction),
            };
        }
    }
    for place in 0..bounded.len() as u32 {
        if let Some(
            Instruction::Iterate(target)
            | Instruction::Jump(target)
            | Instruction::JumpIfFalse(target)
            | Instruction::JumpIfFalseOrPop(target)
            | Instruction::JumpIfTrueOrPop(target)
            | Instruction::BuildMacro(_, target, _),
        ) = bounded.get_mut(place)
        {
            *target = places.get(*target as usize).copied().unwrap_or(*target);
        }
    }
    bounded
}

/// Returns the instructions that replace an instruction.
fn replacement<'source>(instruction: &Instruction<'source>) -> Vec<Instruction<'source>> {
    match instruction {
        Instruction::Add => vec![call("+", 2)],
        Instruction::StringConcat => vec![call("~", 2)],
        Instruction::Mul => vec![call("*", 2)],
        Instruction::Slice => vec![call("[:]", 4)],
        Instruction::EmitRaw(text) => vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit],
        Instruction::LoadConst(value) if value.kind() == ValueKind::Iterable => {
            vec![instruction.clone(), call(CHECKED, 1)]
        }
        Instruction::BuildList(_) | Instruction::BuildMap(_) => vec![instruction.clone(), call(CHECKED, 1)],
        // The top of the stack is the namespace; the value is below it.
        Instruction::SetAttr(_) => {
            vec![Instruction::Swap, call(CHECKED, 1), Instruction::Swap, instruction.clone()]
        }
        Instruction::UnpackLists(lists) => {
            let lists = u16::try_from(*lists).unwrap_or(u16::MAX);
            vec![call(CONCATENATED, lists), Instruction::UnpackLists(1)]
        }
        Instruction::CallMethod("changed", Some(operands)) => vec![call(CHANGED, *operands)],
        Instruction::GetItem
        | Instruction::UnpackList(_)
        | Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::In
        | Instruction::CompareAndPreserve(_)
        | Instruction::Iterate(_)
        | Instruction::CallMethod(..) => vec![call(CLOCK, 0), Instruction::DiscardTop, instruction.clone()],
        _ => vec![instruction.clone()],
    }
}

fn call(function: &'static str, operands: u16) -> Instruction<'static> {
    Instruction::CallFunction(function, Some(operands))
}
