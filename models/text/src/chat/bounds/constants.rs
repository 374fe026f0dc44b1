//! Bounds the constant expressions of a template. minijinja folds them when it compiles, without fuel, and
//! again for each operator around them.

use minijinja::machinery::ast::{BinOp, BinOpKind, CallArg, Expr, Stmt};
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget::limit_error;

/// Maximum size of a folded text or list, in bytes. A template may have thousands of them.
const BYTES_MAX: usize = 16 << 10;

/// Size of any number, in bytes.
const NUMBER_BYTES: usize = 16;

/// Size of a folded constant.
#[derive(Clone, Copy)]
enum Constant {
    Number,
    /// A text, list or map of at most this many bytes.
    Bytes(usize),
}

impl Constant {
    fn bytes(self) -> usize {
        match self {
            Self::Number => NUMBER_BYTES,
            Self::Bytes(bytes) => bytes,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self::Bytes(self.bytes().saturating_add(other.bytes()))
    }
}

/// Rejects a statement with a constant larger than [`BYTES_MAX`].
pub(super) fn check(statement: &Stmt<'_>) -> Result<(), Error> {
    match statement {
        Stmt::Template(part) => check_body(&part.children),
        Stmt::EmitExpr(part) => check_expressions([&part.expr]),
        Stmt::ForLoop(part) => {
            check_expressions([&part.iter].into_iter().chain(&part.filter_expr))?;
            check_body(&part.body)?;
            check_body(&part.else_body)
        }
        Stmt::IfCond(part) => {
            check_expressions([&part.expr])?;
            check_body(&part.true_body)?;
            check_body(&part.false_body)
        }
        Stmt::WithBlock(part) => {
            check_expressions(part.assignments.iter().map(|(_, value)| value))?;
            check_body(&part.body)
        }
        Stmt::Set(part) => check_expressions([&part.target, &part.expr]),
        Stmt::SetBlock(part) => {
            check_expressions([&part.target].into_iter().chain(&part.filter))?;
            check_body(&part.body)
        }
        Stmt::AutoEscape(part) => {
            check_expressions([&part.enabled])?;
            check_body(&part.body)
        }
        Stmt::FilterBlock(part) => {
            check_expressions([&part.filter])?;
            check_body(&part.body)
        }
        Stmt::Block(part) => check_body(&part.body),
        Stmt::Macro(part) => {
            check_expressions(&part.defaults)?;
            check_body(&part.body)
        }
        Stmt::CallBlock(part) => {
            check_expressions([&part.call.expr].into_iter().chain(arguments(&part.call.args)))?;
            check_expressions(&part.macro_decl.defaults)?;
            check_body(&part.macro_decl.body)
        }
        Stmt::Do(part) => check_expressions([&part.call.expr].into_iter().chain(arguments(&part.call.args))),
        Stmt::Import(part) => check_expressions([&part.expr]),
        Stmt::FromImport(part) => check_expressions([&part.expr]),
        Stmt::Extends(part) => check_expressions([&part.name]),
        Stmt::Include(part) => check_expressions([&part.name]),
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => Ok(()),
    }
}

fn check_body(statements: &[Stmt<'_>]) -> Result<(), Error> {
    statements.iter().try_for_each(check)
}

fn arguments<'a, 'source>(arguments: &'a [CallArg<'source>]) -> impl Iterator<Item = &'a Expr<'source>> {
    arguments.iter().map(|argument| match argument {
        CallArg::Pos(value)
        | CallArg::Kwarg(_, value)
        | CallArg::PosSplat(value)
        | CallArg::KwargSplat(value) => value,
    })
}

fn check_expressions<'a, 'source: 'a>(
    expressions: impl IntoIterator<Item = &'a Expr<'source>>,
) -> Result<(), Error> {
    expressions.into_iter().try_for_each(|expression| constant(expression).map(drop))
}

/// Returns the constant to which an expression is folded, if it is constant.
fn constant(expression: &Expr<'_>) -> Result<Option<Constant>, Error> {
    let parts: Vec<_> = match expression {
        Expr::Const(part) => return Ok(Some(literal(&part.value))),
        Expr::List(part) => return list(&part.items),
        Expr::Map(part) => {
            let keys = list(&part.keys)?;
            let values = list(&part.values)?;
            return Ok(keys.zip(values).map(|(keys, values)| keys.plus(values)));
        }
        Expr::UnaryOp(part) => return constant(&part.expr),
        Expr::BinOp(part) => return computed(part),
        Expr::Compare(part) => {
            let compared = part.ops.iter().map(|operand| &operand.expr);
            check_expressions([&part.expr].into_iter().chain(compared))?;
            return Ok(Some(Constant::Number));
        }
        Expr::Var(_) => Vec::new(),
        Expr::Slice(part) => {
            [&part.expr].into_iter().chain(&part.start).chain(&part.stop).chain(&part.step).collect()
        }
        Expr::IfExpr(part) => {
            [&part.test_expr, &part.true_expr].into_iter().chain(&part.false_expr).collect()
        }
        Expr::Filter(part) => part.expr.iter().chain(arguments(&part.args)).collect(),
        Expr::Test(part) => [&part.expr].into_iter().chain(arguments(&part.args)).collect(),
        Expr::GetAttr(part) => vec![&part.expr],
        Expr::GetItem(part) => vec![&part.expr, &part.subscript_expr],
        Expr::Call(part) => [&part.expr].into_iter().chain(arguments(&part.args)).collect(),
    };
    check_expressions(parts).map(|()| None)
}

fn literal(value: &Value) -> Constant {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Constant::Bytes(text.len()),
        (None, ValueKind::Bool | ValueKind::Number | ValueKind::None) => Constant::Number,
        (None, _) => Constant::Bytes(usize::MAX),
    }
}

/// Returns a list if all of its elements are constants.
fn list(elements: &[Expr<'_>]) -> Result<Option<Constant>, Error> {
    let mut list = Some(Constant::Bytes(0));
    for element in elements {
        let element = constant(element)?;
        list = list.zip(element).map(|(list, element)| list.plus(element).plus(Constant::Number));
    }
    Ok(list)
}

fn computed(operation: &BinOp<'_>) -> Result<Option<Constant>, Error> {
    let left = constant(&operation.left)?;
    let right = constant(&operation.right)?;
    let Some((left, right)) = left.zip(right) else { return Ok(None) };
    let computed = match (operation.op, left, right) {
        (BinOpKind::Mul, Constant::Bytes(bytes), _) => repeated(bytes, &operation.right),
        (BinOpKind::Mul, _, Constant::Bytes(bytes)) => repeated(bytes, &operation.left),
        (BinOpKind::Concat, ..) => left.plus(right),
        (_, Constant::Number, Constant::Number) => Constant::Number,
        _ => left.plus(right),
    };
    if computed.bytes() > BYTES_MAX {
        return Err(limit_error(format!("it computes a constant of more than {BYTES_MAX} bytes")));
    }
    Ok(Some(computed))
}

/// Returns a repeated text or list. The count is known only if it is a literal.
fn repeated(bytes: usize, times: &Expr<'_>) -> Constant {
    let times = match times {
        Expr::Const(part) => part.value.as_usize(),
        _ => None,
    };
    Constant::Bytes(times.map_or(usize::MAX, |times| bytes.saturating_mul(times)))
}
