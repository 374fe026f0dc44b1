//! A decoded entry: instructions over numbered registers, and the data that a launch needs.

use super::alu::{Compute, Operands, Register, Update};
use super::types::Type;

/// Start of the generic addresses of shared and local memory. Generic addresses of global memory are the
/// addresses themselves.
pub(super) const SHARED_WINDOW: u64 = 1 << 60;
pub(super) const LOCAL_WINDOW: u64 = 1 << 61;

/// Registers that are set before a warp runs.
pub(super) const SPECIAL: [&str; 15] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%warpid",
    "%nwarpid",
];

/// Memory that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Generic,
    Global,
    Shared,
    Local,
}

/// The source lane of `shfl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// The result of `vote`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    All,
    Any,
    Ballot,
}

pub(super) struct Address {
    pub(super) space: Space,
    pub(super) base: Register,
    pub(super) offset: i64,
}

pub(super) enum Action {
    Compute {
        to: Register,
        from: Operands,
        compute: Compute,
    },
    LoadParameter {
        to: Register,
        offset: usize,
        kind: Type,
        width: usize,
    },
    Load {
        to: Vec<Register>,
        kind: Type,
        width: usize,
        address: Address,
    },
    Store {
        from: Vec<Register>,
        kind: Type,
        address: Address,
    },
    Atomic {
        to: Option<Register>,
        kind: Type,
        address: Address,
        from: [Register; 2],
        update: Update,
    },
    Shuffle {
        how: Shuffle,
        to: Register,
        valid: Option<Register>,
        from: Operands,
    },
    Vote {
        how: Vote,
        to: Register,
        value: (Register, bool),
        members: Register,
    },
    ActiveMask {
        to: Register,
    },
    /// The lanes of a warp wait for each other.
    Converge {
        members: Register,
    },
    /// The threads of a block wait for each other.
    Barrier,
    Branch(usize),
    Exit,
    /// `__assertfail` was called, with the addresses of the condition and the file, and the line.
    Assert {
        parameters: usize,
    },
    Trap,
}

pub(super) struct Instruction {
    /// Threads for which this predicate (or, if negated, its opposite) is false skip the instruction.
    pub(super) guard: Option<(Register, bool)>,
    pub(super) action: Action,
}

/// One parameter of an entry.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) offset: usize,
    pub(super) bytes: usize,
    /// Whether the kernel uses it as an address in global memory.
    pub(super) pointer: bool,
}

/// An entry that can be launched.
pub struct Kernel {
    pub(super) name: String,
    pub(super) code: Vec<Instruction>,
    pub(super) registers: usize,
    pub(super) constants: Vec<(Register, u64)>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) shared_bytes: usize,
    pub(super) local_bytes: usize,
    pub(super) has_barriers: bool,
    pub(super) threads_max: Option<u64>,
}

impl Kernel {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the sizes of the parameters, in bytes.
    pub fn parameter_bytes(&self) -> impl Iterator<Item = usize> {
        self.parameters.iter().map(|parameter| parameter.bytes)
    }

    /// Returns the indices of the parameters that are addresses in global memory.
    pub fn pointers(&self) -> impl Iterator<Item = usize> {
        let parameters = self.parameters.iter().enumerate();
        parameters.filter(|(_, parameter)| parameter.pointer).map(|(index, _)| index)
    }

    /// Returns the maximum number of threads per block for which it was compiled, if it states one.
    pub fn threads_max(&self) -> Option<u64> {
        self.threads_max
    }

    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }
}
