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

/// Most tokens of an expression or a tag. The compiler recurses for each operator.
const TOKENS_MAX: usize = 2_000;

/// Most `elif` tags, which the compiler nests in each other.
const ELIFS_MAX: usize = 500;

type Blocks<'source> = BTreeMap<&'source str, Instructions<'source>>;

const NAME: &str = "chat";

/// As Hugging Face compiles chat templates.
const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };

pub(super) fn check(source: &str) -> Result<(), Error> {
    check_tokens(source)?;
    constants::check(&parse(source, NAME, Default::default(), WHITESPACE)?)
}

/// The instructions of a template that [`check`] accepts, with functions for its operators.
pub(super) fn compile(source: &str) -> Result<(Instructions<'_>, Blocks<'_>), Error> {
    let parsed = parse(source, NAME, Default::default(), WHITESPACE)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&parsed);
    let (instructions, blocks) = generator.finish();
    let blocks = blocks.into_iter().map(|(name, block)| (name, bounded(&block))).collect();
    Ok((bounded(&instructions), blocks))
}

/// Refuses a template whose compilation may overflow the stack of a thread.
fn check_tokens(source: &str) -> Result<(), Error> {
    let (mut tokens, mut elifs) = (0, 0);
    // Behind an error there may be the same error again without end; parsing meets the first one.
    for (token, _) in tokenize(source, false, Default::default(), WHITESPACE).map_while(Result::ok) {
        match token {
            Token::VariableStart | Token::BlockStart => tokens = 0,
            Token::Ident("elif") => elifs += 1,
            _ => {}
        }
        tokens += 1;
        if tokens > TOKENS_MAX {
            return Err(limit_error(format!("an expression of more than {TOKENS_MAX} Jinja tokens")));
        }
        if elifs > ELIFS_MAX {
            return Err(limit_error(format!("it has more than {ELIFS_MAX} `elif` tags")));
        }
    }
    Ok(())
}

/// Replaces each instruction that has no bounds of its own, and moves the targets of jumps.
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

/// What stands in place of an instruction.
fn replacement<'source>(instruction: &Instruction<'source>) -> Vec<Instruction<'source>> {
    let call = |name, operands| Instruction::CallFunction(name, Some(operands));
    let own = || instruction.clone();
    match instruction {
        Instruction::Add => vec![call("+", 2)],
        Instruction::StringConcat => vec![call("~", 2)],
        Instruction::Mul => vec![call("*", 2)],
        Instruction::Slice => vec![call("[:]", 4)],
        Instruction::EmitRaw(text) => vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit],
        Instruction::LoadConst(value) if value.kind() == ValueKind::Iterable => vec![own(), call(CHECKED, 1)],
        Instruction::BuildList(_) | Instruction::BuildMap(_) => vec![own(), call(CHECKED, 1)],
        // The top of the stack is the namespace; the value is below it.
        Instruction::SetAttr(_) => vec![Instruction::Swap, call(CHECKED, 1), Instruction::Swap, own()],
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
        | Instruction::CallMethod(..) => vec![call(CLOCK, 0), Instruction::DiscardTop, own()],
        _ => vec![own()],
    }
}
