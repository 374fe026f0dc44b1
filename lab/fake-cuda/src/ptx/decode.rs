//! Decodes one entry of a module to instructions over numbered registers.
//!
//! Constants are registers that are set once. Special registers (`%tid.x`) have the first numbers. Calls of
//! the module's own functions are inlined, since kernels have no recursion. Variables in local space and
//! parameters of calls share one area per thread.

use std::collections::HashMap;

use super::alu::{self, Register};
use super::program::{
    Action, Address, Instruction, Kernel, LOCAL_WINDOW, Parameter, SHARED_WINDOW, SPECIAL, Shuffle, Space,
    Vote,
};
use super::source::{Module, Variable, Words, variable};
use super::types::{Type, literal};
use crate::fault::{Code, Fault};

impl Kernel {
    /// Decodes an entry. `globals` contains the addresses of the module's variables.
    pub fn decode(module: &Module, name: &str, globals: &HashMap<String, u64>) -> Result<Self, Fault> {
        let words = match module.function(name)? {
            Some(words) if module.has_entry(name) => words,
            _ => return Err(Fault::new(Code::NotFound, format!("there is no kernel {name}"))),
        };
        let mut decoder = Decoder::new(module, globals);
        decoder.entry(&words).map_err(|fault| fault.within(&format!("kernel {name}")))?;
        Ok(Self {
            name: name.to_owned(),
            threads_max: module.threads_max(name),
            has_barriers: decoder.code.iter().any(|one| matches!(one.action, Action::Barrier)),
            code: decoder.code,
            registers: decoder.widths.len(),
            constants: decoder.constants.into_iter().map(|(value, register)| (register, value)).collect(),
            parameters: decoder.parameters,
            shared_bytes: decoder.shared_bytes,
            local_bytes: decoder.local_bytes,
        })
    }
}

#[derive(Clone, Copy)]
enum Name {
    Register(Register),
    /// An address in its own space.
    Shared(u64),
    Local(u64),
    Global(u64),
    /// A parameter of the entry.
    Parameter(usize),
}

struct Decoder<'a> {
    module: &'a Module,
    globals: &'a HashMap<String, u64>,
    code: Vec<Instruction>,
    /// Declared names, the innermost scope last.
    names: Vec<HashMap<String, Name>>,
    /// Bytes of each register.
    widths: Vec<usize>,
    constants: HashMap<u64, Register>,
    parameters: Vec<Parameter>,
    /// The parameter of the entry from which a register was loaded.
    loaded: HashMap<Register, usize>,
    shared_bytes: usize,
    local_bytes: usize,
    carry: Option<Register>,
    depth: usize,
}

/// Labels of a body, and branches to labels that have not been placed yet.
#[derive(Default)]
struct Labels {
    places: HashMap<String, usize>,
    branches: Vec<(usize, String)>,
    /// Branches of `ret` in an inlined function.
    returns: Vec<usize>,
}

type Guard = Option<(Register, bool)>;

fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(Code::InvalidPtx, message)
}

fn unknown_instruction(words: &[&str]) -> Fault {
    Fault::new(Code::NotSupported, format!("unknown instruction '{}'", words.join(" ")))
}

/// The operand of an instruction that has to be a single word.
fn word_of<'a>(operands: &[Vec<&'a str>], index: usize, parts: &[&str]) -> Result<&'a str, Fault> {
    match operands.get(index).map(Vec::as_slice) {
        Some([word]) => Ok(word),
        _ => Err(invalid(format!("operand {index} of {}", parts.join(".")))),
    }
}

impl<'a> Decoder<'a> {
    fn new(module: &'a Module, globals: &'a HashMap<String, u64>) -> Self {
        let mut names: HashMap<String, Name> =
            globals.iter().map(|(name, &address)| (name.clone(), Name::Global(address))).collect();
        for (register, name) in (0..).zip(SPECIAL) {
            names.insert(name.to_owned(), Name::Register(register));
        }
        let mut decoder = Self {
            module,
            globals,
            code: Vec::new(),
            names: vec![names],
            widths: vec![4; SPECIAL.len()],
            constants: HashMap::new(),
            parameters: Vec::new(),
            loaded: HashMap::new(),
            shared_bytes: 0,
            local_bytes: 0,
            carry: None,
            depth: 0,
        };
        // Module variables of which each block has its own copy.
        let own = module.variables.iter().filter(|variable| variable.space == "shared");
        let (sized, dynamic): (Vec<_>, Vec<_>) = own.partition(|variable| variable.bytes.is_some());
        for variable in sized.into_iter().chain(dynamic) {
            decoder.declare(variable);
        }
        decoder
    }

    fn entry(&mut self, words: &Words<'_>) -> Result<(), Fault> {
        let mut offset = 0usize;
        for (index, parameter) in words.parameters.iter().enumerate() {
            let bytes = parameter.bytes.ok_or_else(|| invalid("a parameter has no size"))?;
            offset = offset.next_multiple_of(parameter.align.max(1));
            self.define(&parameter.name, Name::Parameter(index));
            let name = parameter.name.clone();
            self.parameters.push(Parameter { name, offset, bytes, pointer: false });
            offset += bytes;
        }
        self.body(&words.body)?;
        self.push(None, Action::Exit);
        Ok(())
    }

    /// Decodes statements up to the end. The labels belong to this body.
    fn body(&mut self, words: &[&str]) -> Result<(), Fault> {
        let mut labels = Labels::default();
        let mut at = 0;
        while at < words.len() {
            match words[at] {
                "{" => {
                    self.names.push(HashMap::new());
                    at += 1;
                }
                "}" => {
                    self.names.pop();
                    at += 1;
                }
                ";" => at += 1,
                _ if words.get(at + 1) == Some(&":") => {
                    labels.places.insert(words[at].to_owned(), self.code.len());
                    at += 2;
                }
                _ => {
                    // Braces of operands belong to the statement.
                    let length = words[at..].iter().position(|word| *word == ";");
                    let end = at + length.ok_or_else(|| invalid("a statement has no end"))?;
                    self.statement(&words[at..end], &mut labels)?;
                    at = end + 1;
                }
            }
        }
        let end = self.code.len();
        for branch in labels.returns {
            self.code[branch].action = Action::Branch(end);
        }
        for (branch, label) in labels.branches {
            let place = labels.places.get(&label).ok_or_else(|| invalid(format!("no label {label}")))?;
            self.code[branch].action = Action::Branch(*place);
        }
        Ok(())
    }

    fn statement(&mut self, words: &[&str], labels: &mut Labels) -> Result<(), Fault> {
        match words[0] {
            ".reg" => return self.declare_registers(&words[1..]),
            ".shared" | ".local" | ".param" => {
                self.declare(&variable(words)?);
                return Ok(());
            }
            ".pragma" | ".loc" | ".file" => return Ok(()),
            _ => {}
        }
        let (guard, instruction) = match words {
            ["@", "!", predicate, rest @ ..] => (Some((self.register(predicate)?, false)), rest),
            ["@", predicate, rest @ ..] => (Some((self.register(predicate)?, true)), rest),
            _ => (None, words),
        };
        let Some((name, operands)) = instruction.split_first() else {
            return Err(unknown_instruction(words));
        };
        let parts: Vec<&str> = name.split('.').collect();
        if parts[0] == "call" {
            return self.call(guard, operands);
        }
        let operands = split_operands(operands);
        if let Some(action) = self.control(&parts, &operands, labels)? {
            self.push(guard, action);
            return Ok(());
        }
        let known = match parts[0] {
            "ld" | "ldu" => return self.load(guard, &parts, &operands),
            "st" => return self.store(guard, &parts, &operands),
            "mov" if operands.iter().any(|operand| operand[0] == "{") => {
                return self.move_parts(guard, &parts, &operands);
            }
            "cvta" => return self.change_window(guard, &parts, &operands),
            "atom" | "red" => self.atomic(guard, &parts, &operands)?,
            "add" | "addc" | "sub" | "subc" | "mad" | "madc"
                if parts.contains(&"cc") || parts[0].ends_with('c') =>
            {
                self.carry(guard, &parts, &operands)?
            }
            _ => self.compute(guard, &parts, &operands)?,
        };
        known.ok_or_else(|| unknown_instruction(words))
    }

    /// Decodes branches, exits, barriers, and exchanges between the threads of a warp.
    fn control(
        &mut self,
        parts: &[&str],
        operands: &[Vec<&str>],
        labels: &mut Labels,
    ) -> Result<Option<Action>, Fault> {
        Ok(Some(match parts {
            ["bra", ..] => {
                labels.branches.push((self.code.len(), word_of(operands, 0, parts)?.to_owned()));
                Action::Branch(usize::MAX)
            }
            ["ret", ..] if self.depth > 0 => {
                labels.returns.push(self.code.len());
                Action::Branch(usize::MAX)
            }
            ["ret" | "exit", ..] => Action::Exit,
            ["trap"] => Action::Trap,
            ["bar" | "barrier", "warp", "sync"] => {
                Action::Converge { members: self.operand(&operands[0], Type::U32)? }
            }
            // A single operand is the number of the barrier. A second one would be a number of threads other
            // than all.
            ["bar", "sync"] | ["barrier", "sync"] | ["barrier", "sync", "aligned"] if operands.len() == 1 => {
                Action::Barrier
            }
            ["membar" | "fence", ..] => return Ok(Some(Action::Converge { members: self.constant(0) })),
            ["activemask", "b32"] => Action::ActiveMask { to: self.register(word_of(operands, 0, parts)?)? },
            ["vote", "sync", how, _] => {
                let how = match *how {
                    "all" => Vote::All,
                    "any" => Vote::Any,
                    "ballot" => Vote::Ballot,
                    _ => return Ok(None),
                };
                let value = match operands[1].as_slice() {
                    ["!", predicate] => (self.register(predicate)?, false),
                    words => (self.operand(words, Type::Pred)?, true),
                };
                let members = self.operand(&operands[2], Type::U32)?;
                Action::Vote { how, to: self.register(word_of(operands, 0, parts)?)?, value, members }
            }
            ["shfl", "sync", how, "b32"] => {
                let how = match *how {
                    "up" => Shuffle::Up,
                    "down" => Shuffle::Down,
                    "bfly" => Shuffle::Butterfly,
                    "idx" => Shuffle::Index,
                    _ => return Ok(None),
                };
                let (to, valid) = match operands[0].as_slice() {
                    [to] => (self.register(to)?, None),
                    [to, "|", valid] => (self.register(to)?, Some(self.register(valid)?)),
                    _ => return Ok(None),
                };
                let mut from = [0; 4];
                for (from, operand) in from.iter_mut().zip(&operands[1..]) {
                    *from = self.operand(operand, Type::U32)?;
                }
                Action::Shuffle { how, to, valid, from }
            }
            _ => return Ok(None),
        }))
    }

    fn compute(&mut self, guard: Guard, parts: &[&str], operands: &[Vec<&str>]) -> Result<Option<()>, Fault> {
        let Some(operation) = alu::operation(parts) else { return Ok(None) };
        if operands.len() != operation.operands + 1 {
            return Ok(None);
        }
        let [to] = operands[0].as_slice() else { return Ok(None) };
        let to = self.register(to)?;
        let mut from = [0; 4];
        for (register, words) in from.iter_mut().zip(&operands[1..]) {
            *register = self.operand(words, operation.operand)?;
        }
        if parts[0] == "mov"
            && let Some(&parameter) = self.loaded.get(&from[0])
        {
            self.loaded.insert(to, parameter);
        }
        self.push(guard, Action::Compute { to, from, compute: operation.compute });
        let width = self.widths[to as usize];
        if operation.result.is_signed() && operation.result.bytes() < width {
            let compute = alu::extend_sign(operation.result, width);
            self.push(guard, Action::Compute { to, from: [to; 4], compute });
        }
        Ok(Some(()))
    }

    fn load(&mut self, guard: Guard, parts: &[&str], operands: &[Vec<&str>]) -> Result<(), Fault> {
        let kind = kind(parts)?;
        let to = self.registers(&operands[0])?;
        let width = self.widths[to[0] as usize];
        let (words, offset) = address_words(&operands[1])?;
        if parts.contains(&"param")
            && let Some(Name::Parameter(index)) = self.find(words)
        {
            let parameter = &self.parameters[index];
            let offset = parameter.offset + offset as usize;
            for (index_of, &to) in to.iter().enumerate() {
                self.loaded.insert(to, index);
                let offset = offset + index_of * kind.bytes();
                self.push(guard, Action::LoadParameter { to, offset, kind, width });
            }
            return Ok(());
        }
        let address = self.address(parts, words, offset)?;
        for to in &to {
            self.loaded.remove(to);
        }
        self.push(guard, Action::Load { to, kind, width, address });
        Ok(())
    }

    fn store(&mut self, guard: Guard, parts: &[&str], operands: &[Vec<&str>]) -> Result<(), Fault> {
        let kind = kind(parts)?;
        let (words, offset) = address_words(&operands[0])?;
        let address = self.address(parts, words, offset)?;
        let from = match operands[1].as_slice() {
            ["{", inside @ .., "}"] => {
                let values = inside.split(|word| *word == ",");
                values.map(|words| self.operand(words, kind)).collect::<Result<_, _>>()?
            }
            words => vec![self.operand(words, kind)?],
        };
        self.push(guard, Action::Store { from, kind, address });
        Ok(())
    }

    fn atomic(&mut self, guard: Guard, parts: &[&str], operands: &[Vec<&str>]) -> Result<Option<()>, Fault> {
        let kind = kind(parts)?;
        let names = ["add", "min", "max", "exch", "cas", "and", "or", "xor"];
        let Some(update) =
            parts.iter().find(|part| names.contains(part)).and_then(|name| alu::update(name, kind))
        else {
            return Ok(None);
        };
        let (to, operands) = match parts[0] {
            "atom" => (Some(self.register(operands[0][0])?), &operands[1..]),
            _ => (None, operands),
        };
        let (words, offset) = address_words(&operands[0])?;
        let address = self.address(parts, words, offset)?;
        let mut from = [self.constant(0); 2];
        for (register, words) in from.iter_mut().zip(&operands[1..]) {
            *register = self.operand(words, kind)?;
        }
        self.push(guard, Action::Atomic { to, kind, address, from, update });
        Ok(Some(()))
    }

    /// Decodes `mov.b32 {a, b}, c` and `mov.b32 c, {a, b}`.
    fn move_parts(&mut self, guard: Guard, parts: &[&str], operands: &[Vec<&str>]) -> Result<(), Fault> {
        let kind = kind(parts)?;
        let [to, from] = operands else { return Err(invalid("a move without two operands")) };
        if to[0] == "{" {
            let to = self.registers(to)?;
            let bits = (8 * kind.bytes() / to.len()) as u32;
            let whole = self.operand(from, kind)?;
            // The parts may overlap the whole.
            let copy = self.temporary(8);
            self.push(guard, Action::Compute { to: copy, from: [whole; 4], compute: alu::unpack(0, 64) });
            for (at, to) in (0..).step_by(bits as usize).zip(to) {
                let compute = alu::unpack(at, bits);
                self.push(guard, Action::Compute { to, from: [copy; 4], compute });
            }
        } else {
            let to = self.register(to[0])?;
            let inside = &from[1..from.len() - 1];
            let from: Vec<Register> = inside
                .split(|word| *word == ",")
                .map(|words| self.operand(words, kind))
                .collect::<Result<_, _>>()?;
            let bits = 8 * kind.bytes() / from.len();
            let whole = self.temporary(8);
            let zero = self.constant(0);
            self.push(guard, Action::Compute { to: whole, from: [zero; 4], compute: alu::unpack(0, 64) });
            for (at, from) in (0..).step_by(bits).zip(from) {
                let compute = alu::pack(at);
                self.push(guard, Action::Compute { to: whole, from: [whole, from, 0, 0], compute });
            }
            self.push(guard, Action::Compute { to, from: [whole; 4], compute: alu::unpack(0, 64) });
        }
        Ok(())
    }

    fn change_window(&mut self, guard: Guard, parts: &[&str], operands: &[Vec<&str>]) -> Result<(), Fault> {
        let to = self.register(operands[0][0])?;
        let from = self.operand(&operands[1], Type::U64)?;
        let window = if parts.contains(&"shared") {
            SHARED_WINDOW
        } else if parts.contains(&"local") || parts.contains(&"param") {
            LOCAL_WINDOW
        } else {
            0
        };
        if window == 0
            && let Some(&parameter) = self.loaded.get(&from)
        {
            self.parameters[parameter].pointer = true;
            self.loaded.insert(to, parameter);
        }
        let by = if parts.contains(&"to") { window.wrapping_neg() } else { window };
        self.push(guard, Action::Compute { to, from: [from; 4], compute: alu::offset(by) });
        Ok(())
    }

    fn carry(&mut self, guard: Guard, parts: &[&str], operands: &[Vec<&str>]) -> Result<Option<()>, Fault> {
        let Some((count, sum)) = alu::with_carry(parts) else { return Ok(None) };
        let flag = match self.carry {
            Some(flag) => flag,
            None => self.temporary(1),
        };
        self.carry = Some(flag);
        let to = self.register(operands[0][0])?;
        let mut from = [flag; 4];
        for (register, words) in from.iter_mut().zip(&operands[1..]).take(count) {
            *register = self.operand(words, Type::U32)?;
        }
        let next = self.temporary(1);
        let high = alu::carry_half(sum.clone(), true);
        self.push(guard, Action::Compute { to: next, from, compute: high });
        self.push(guard, Action::Compute { to, from, compute: alu::carry_half(sum, false) });
        if parts.contains(&"cc") {
            self.push(guard, Action::Compute { to: flag, from: [next; 4], compute: alu::unpack(0, 1) });
        }
        Ok(Some(()))
    }

    /// Decodes `call (returned), name, (parameters)` by inlining the function.
    fn call(&mut self, guard: Guard, words: &[&str]) -> Result<(), Fault> {
        let lists: Vec<Vec<&str>> = split_operands(words)
            .into_iter()
            .map(|list| list.into_iter().filter(|word| !["(", ")", ","].contains(word)).collect())
            .collect();
        let index = lists
            .iter()
            .position(|list| matches!(list.as_slice(), [name] if self.find(&[name]).is_none()))
            .ok_or_else(|| invalid("a call has no name"))?;
        let name = lists[index][0];
        let returned = lists[..index].concat();
        let given = lists[index + 1..].concat();
        if name == "__assertfail" {
            let first = given.first().ok_or_else(|| invalid("an assertion has no parameters"))?;
            let parameters = self.parameter_offset(first)? as usize;
            self.push(guard, Action::Assert { parameters });
            return Ok(());
        }
        let module = self.module;
        let function = module
            .function(name)?
            .ok_or_else(|| invalid(format!("a call of {name}, which does not exist")))?;
        if guard.is_some() || self.depth > 8 {
            return Err(Fault::new(Code::NotSupported, format!("unsupported call of {name}")));
        }
        // The function's names for its parameters differ from the caller's.
        let mut scope: HashMap<String, Name> =
            self.globals.iter().map(|(name, &address)| (name.clone(), Name::Global(address))).collect();
        for (register, special) in (0..).zip(SPECIAL) {
            scope.insert(special.to_owned(), Name::Register(register));
        }
        let declared = function.returned.iter().zip(&returned).chain(function.parameters.iter().zip(&given));
        for (declared, given) in declared {
            scope.insert(declared.name.clone(), Name::Local(self.parameter_offset(given)?));
        }
        let outer = std::mem::replace(&mut self.names, vec![scope]);
        self.depth += 1;
        self.body(&function.body).map_err(|fault| fault.within(name))?;
        self.depth -= 1;
        self.names = outer;
        Ok(())
    }

    fn declare_registers(&mut self, words: &[&str]) -> Result<(), Fault> {
        let kind = words[0].strip_prefix('.').and_then(Type::parse);
        let kind = kind.ok_or_else(|| invalid(format!("registers of type {}", words[0])))?;
        for names in words[1..].split(|word| *word == ",") {
            match names {
                [name] => {
                    let register = self.temporary(kind.bytes());
                    self.define(name, Name::Register(register));
                }
                [prefix, "<", count, ">"] => {
                    let count: usize = count.parse().map_err(|_| invalid("a number of registers"))?;
                    for index in 0..count {
                        let register = self.temporary(kind.bytes());
                        self.define(&format!("{prefix}{index}"), Name::Register(register));
                    }
                }
                _ => return Err(invalid(format!("the registers '{}'", names.join(" ")))),
            }
        }
        Ok(())
    }

    fn parameter_offset(&self, name: &str) -> Result<u64, Fault> {
        match self.find(&[name]) {
            Some(Name::Local(offset)) => Ok(offset),
            _ => Err(invalid(format!("the parameter {name} of a call"))),
        }
    }

    fn declare(&mut self, variable: &Variable) {
        // A variable without a size starts at the beginning of the dynamic memory.
        let align = if variable.bytes.is_none() { variable.align.max(16) } else { variable.align.max(1) };
        let is_shared = variable.space == "shared";
        let end = if is_shared { &mut self.shared_bytes } else { &mut self.local_bytes };
        let offset = end.next_multiple_of(align);
        *end = offset + variable.bytes.unwrap_or(0);
        let offset = offset as u64;
        let name = if is_shared { Name::Shared(offset) } else { Name::Local(offset) };
        self.define(&variable.name, name);
    }

    fn define(&mut self, name: &str, what: Name) {
        if let Some(scope) = self.names.last_mut() {
            scope.insert(name.to_owned(), what);
        }
    }

    fn find(&self, words: &[&str]) -> Option<Name> {
        let [word] = words else { return None };
        self.names.iter().rev().find_map(|scope| scope.get(*word)).copied()
    }

    fn push(&mut self, guard: Guard, action: Action) {
        self.code.push(Instruction { guard, action });
    }

    fn temporary(&mut self, bytes: usize) -> Register {
        self.widths.push(bytes);
        (self.widths.len() - 1) as Register
    }

    fn constant(&mut self, value: u64) -> Register {
        if let Some(&register) = self.constants.get(&value) {
            return register;
        }
        let register = self.temporary(8);
        self.constants.insert(value, register);
        register
    }

    fn register(&self, word: &str) -> Result<Register, Fault> {
        match self.find(&[word]) {
            Some(Name::Register(register)) => Ok(register),
            _ => Err(Fault::new(Code::NotSupported, format!("unknown register {word}"))),
        }
    }

    fn registers(&self, words: &[&str]) -> Result<Vec<Register>, Fault> {
        let names = words.iter().filter(|word| !["{", "}", ","].contains(word));
        names.map(|word| self.register(word)).collect()
    }

    /// Returns the register of an operand: a register, a number, or the address of a variable.
    fn operand(&mut self, words: &[&str], kind: Type) -> Result<Register, Fault> {
        let value = match self.find(words) {
            Some(Name::Register(register)) => return Ok(register),
            Some(Name::Shared(address) | Name::Local(address) | Name::Global(address)) => Some(address),
            Some(Name::Parameter(_)) => None,
            None => {
                let word = words.concat();
                let value = if word == "WARP_SZ" { Some(32) } else { literal(&word) };
                let mask = if kind == Type::Pred { 1 } else { u64::MAX >> (64 - 8 * kind.bytes()) };
                value.map(|value| value & mask)
            }
        };
        match value {
            Some(value) => Ok(self.constant(value)),
            None => {
                let message = format!("unknown operand '{}'", words.join(" "));
                Err(Fault::new(Code::NotSupported, message))
            }
        }
    }

    fn address(&mut self, parts: &[&str], words: &[&str], offset: i64) -> Result<Address, Fault> {
        let space = if parts.contains(&"global") || parts.contains(&"const") {
            Space::Global
        } else if parts.contains(&"shared") {
            Space::Shared
        } else if parts.contains(&"local") || parts.contains(&"param") {
            Space::Local
        } else {
            Space::Generic
        };
        Ok(Address { space, base: self.operand(words, Type::U64)?, offset })
    }
}

/// Returns the last part that names a type.
fn kind(parts: &[&str]) -> Result<Type, Fault> {
    let found = parts.iter().rev().find_map(|part| Type::parse(part));
    found.ok_or_else(|| Fault::new(Code::NotSupported, format!("unknown instruction '{}'", parts.join("."))))
}

/// Splits `[base + offset]`.
fn address_words<'a, 'b>(words: &'b [&'a str]) -> Result<(&'b [&'a str], i64), Fault> {
    split_address(words).ok_or_else(|| invalid(format!("the address '{}'", words.concat())))
}

fn split_address<'a, 'b>(words: &'b [&'a str]) -> Option<(&'b [&'a str], i64)> {
    let ["[", inside @ .., "]"] = words else { return None };
    match inside.iter().position(|word| *word == "+") {
        None => Some((inside, 0)),
        Some(plus) => Some((&inside[..plus], literal(&inside[plus + 1..].concat())? as i64)),
    }
}

/// Splits at commas outside brackets.
fn split_operands<'a>(words: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut out = vec![Vec::new()];
    let mut depth = 0usize;
    for &word in words {
        match word {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if word == "," && depth == 0 {
            out.push(Vec::new());
        } else if let Some(last) = out.last_mut() {
            last.push(word);
        }
    }
    out.retain(|operand| !operand.is_empty());
    out
}
