//! Runs a grid: block after block, and within a block warp after warp, each until it ends or waits at a
//! barrier.
//!
//! The threads of a warp run in lockstep. When they diverge, the threads at the first instruction run first.
//! Therefore they converge again after branches and loops. Warps run alternately in ascending and descending
//! order. Every access is checked: global memory against the live allocations, shared and local memory
//! against their sizes, and shared memory for accesses that no barrier orders. Loads of global memory that
//! nothing has written are faults. Shared and local memory initially consist of ones (NaN), so that unwritten
//! memory is visible in results.

use super::alu::{LANES, Lanes};
use super::program::{
    Action, Address, Instruction, Kernel, LOCAL_WINDOW, SHARED_WINDOW, SPECIAL, Shuffle, Space, Vote,
};
use super::races::{Accessor, SharedAccesses};
use super::types::Type;
use crate::fault::{Code, Fault};
use crate::memory::{Extent, Memory};

/// The configuration of a launch.
#[derive(Clone, Debug)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared_bytes: usize,
    /// The values of the parameters, in order.
    pub parameters: Vec<Vec<u8>>,
}

/// Number of instructions, in all warps together, after which a launch counts as endless.
const INSTRUCTIONS_MAX: u64 = 1 << 32;

/// How a kernel is executed after the check of its pointers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Execution {
    Skipped,
    Right,
    /// In everything that the kernel writes to global memory, a bit is wrong.
    Wrong,
}

pub(crate) fn launch(
    kernel: &Kernel,
    launch: &Launch,
    memory: &Memory,
    execution: Execution,
) -> Result<(), Fault> {
    run(kernel, launch, memory, execution).map_err(|fault| fault.within(&format!("kernel {}", kernel.name)))
}

fn run(kernel: &Kernel, launch: &Launch, memory: &Memory, execution: Execution) -> Result<(), Fault> {
    let parameters = arrange(kernel, launch)?;
    check_pointers(kernel, launch, memory)?;
    if execution == Execution::Skipped {
        return Ok(());
    }
    let mut block = Block::new(kernel, launch, memory, parameters);
    block.is_wrong = execution == Execution::Wrong;
    block.run_all()
}

/// Returns the parameters at their offsets.
fn arrange(kernel: &Kernel, launch: &Launch) -> Result<Vec<u8>, Fault> {
    if launch.parameters.len() != kernel.parameters.len() {
        let message = format!("{} parameters, expected {}", launch.parameters.len(), kernel.parameters.len());
        return Err(Fault::new(Code::InvalidValue, message));
    }
    let mut out = Vec::new();
    for (parameter, value) in kernel.parameters.iter().zip(&launch.parameters) {
        out.resize(parameter.offset, 0);
        out.extend_from_slice(value);
    }
    Ok(out)
}

/// Checks the pointer parameters. Null is accepted, because the kernel may not use it.
fn check_pointers(kernel: &Kernel, launch: &Launch, memory: &Memory) -> Result<(), Fault> {
    for (parameter, value) in kernel.parameters.iter().zip(&launch.parameters) {
        let Ok(bytes) = <[u8; 8]>::try_from(value.as_slice()) else { continue };
        let address = usize::from_le_bytes(bytes);
        if parameter.pointer && address != 0 {
            memory.check(&format!("pointer {}", parameter.name), address, 1)?;
        }
    }
    Ok(())
}

/// Lanes of a warp that are at the same instruction.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    at: usize,
    lanes: u32,
}

/// A warp between two barriers.
struct Warp {
    registers: Vec<Lanes>,
    local: Vec<u8>,
    here: Group,
    others: Vec<Group>,
    waits: bool,
    /// Its number in the block, and how often it has waited for all its lanes.
    index: u32,
    phase: u32,
}

struct Block<'a> {
    kernel: &'a Kernel,
    launch: &'a Launch,
    memory: &'a Memory,
    parameters: Vec<u8>,
    shared: Vec<u8>,
    accesses: SharedAccesses,
    /// For each instruction, the allocation that it accessed last.
    extents: Vec<Option<Extent<'a>>>,
    instructions: u64,
    /// Whether a bit of everything that is written to global memory is wrong.
    is_wrong: bool,
}

fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros();
        rest &= rest.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

fn mask_of(values: &Lanes, wanted: bool) -> u32 {
    let mut mask = 0;
    for (lane, value) in values.iter().enumerate() {
        mask |= u32::from((value & 1 == 1) == wanted) << lane;
    }
    mask
}

impl<'a> Block<'a> {
    fn new(kernel: &'a Kernel, launch: &'a Launch, memory: &'a Memory, parameters: Vec<u8>) -> Self {
        let shared = vec![0; kernel.shared_bytes + launch.dynamic_shared_bytes];
        let accesses = SharedAccesses::new(shared.len());
        let extents = vec![None; kernel.code.len()];
        Self {
            kernel,
            launch,
            memory,
            parameters,
            shared,
            accesses,
            extents,
            instructions: 0,
            is_wrong: false,
        }
    }

    fn run_all(&mut self) -> Result<(), Fault> {
        let threads: u32 = self.launch.block.iter().product();
        let count = (threads as usize).div_ceil(LANES);
        // Without barriers, warps run one after the other and can share registers.
        let kept = if self.kernel.has_barriers { count } else { 1 };
        let mut warps: Vec<Warp> = (0..kept).map(|_| Warp::new(self.kernel)).collect();
        let [x, y, z] = self.launch.grid;
        for place in (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z]))) {
            self.shared.fill(0xff);
            self.accesses.barrier();
            self.run_block(&mut warps, count, place)?;
        }
        Ok(())
    }

    fn run_block(&mut self, warps: &mut [Warp], count: usize, place: [u32; 3]) -> Result<(), Fault> {
        if !self.kernel.has_barriers {
            for index in 0..count {
                warps[0].start(self.launch, place, index);
                self.run(&mut warps[0])?;
            }
            return Ok(());
        }
        for (index, warp) in warps.iter_mut().enumerate() {
            warp.start(self.launch, place, index);
        }
        // The order alternates, so that code with a missing barrier gives a wrong result in one of the two.
        let mut forwards = place.iter().sum::<u32>().is_multiple_of(2);
        loop {
            for turn in 0..count {
                let warp = &mut warps[if forwards { turn } else { count - 1 - turn }];
                if warp.here.lanes != 0 {
                    warp.waits = false;
                    self.run(warp)?;
                }
            }
            if warps.iter().all(|warp| !warp.waits) {
                return Ok(());
            }
            forwards = !forwards;
            self.accesses.barrier();
        }
    }

    /// Runs a warp until it ends or waits at a barrier.
    fn run(&mut self, warp: &mut Warp) -> Result<(), Fault> {
        let kernel = self.kernel;
        while warp.select() {
            self.instructions += 1;
            if self.instructions > INSTRUCTIONS_MAX {
                return Err(Fault::new(Code::LaunchFailed, "the kernel does not end"));
            }
            let at = warp.here.at;
            let instruction = &kernel.code[at];
            let active = warp.here.lanes & warp.guarded(instruction);
            match &instruction.action {
                Action::Branch(target) => {
                    warp.branch(*target, active);
                    continue;
                }
                Action::Exit => {
                    warp.here.lanes &= !active;
                    warp.here.at += 1;
                    continue;
                }
                Action::Barrier if active != 0 => {
                    if active != warp.live() {
                        let message = "some threads of a warp are at a barrier and others are not";
                        return Err(Fault::new(Code::LaunchFailed, message));
                    }
                    warp.here.at += 1;
                    warp.waits = true;
                    return Ok(());
                }
                action if active != 0 => self.act(warp, at, active, action)?,
                _ => {}
            }
            warp.here.at += 1;
        }
        Ok(())
    }

    fn act(&mut self, warp: &mut Warp, at: usize, active: u32, action: &Action) -> Result<(), Fault> {
        match action {
            Action::Compute { to, from, compute } => {
                let result = compute(&warp.registers, from);
                let to = &mut warp.registers[*to as usize];
                if active == u32::MAX {
                    *to = result;
                } else {
                    for lane in lanes(active) {
                        to[lane] = result[lane];
                    }
                }
            }
            Action::LoadParameter { to, offset, kind, width } => {
                let value = widen(read(&self.parameters[*offset..], kind.bytes()), *kind, *width);
                for lane in lanes(active) {
                    warp.registers[*to as usize][lane] = value;
                }
            }
            Action::Load { to, kind, width, address } => {
                let size = kind.bytes();
                for lane in lanes(active) {
                    let bytes = self.place(warp, at, lane, address, size * to.len(), "load")?;
                    self.record(warp, lane, bytes, size * to.len(), Access::Read)?;
                    for (index, to) in to.iter().enumerate() {
                        let value = self.read(warp, bytes, index * size, size);
                        warp.registers[*to as usize][lane] = widen(value, *kind, *width);
                    }
                }
            }
            Action::Store { from, kind, address } => {
                let size = kind.bytes();
                for lane in lanes(active) {
                    let bytes = self.place(warp, at, lane, address, size * from.len(), "store")?;
                    self.record(warp, lane, bytes, size * from.len(), Access::Write)?;
                    for (index, from) in from.iter().enumerate() {
                        let value = warp.registers[*from as usize][lane];
                        self.write(warp, bytes, index * size, size, value);
                    }
                }
            }
            Action::Atomic { to, kind, address, from, update } => {
                let size = kind.bytes();
                for lane in lanes(active) {
                    let bytes = self.place(warp, at, lane, address, size, "atomic access")?;
                    check_written(warp, lane, bytes, size)?;
                    let old = self.read(warp, bytes, 0, size);
                    let [first, second] = from.map(|from| warp.registers[from as usize][lane]);
                    self.write(warp, bytes, 0, size, update(old, first, second));
                    if let Some(to) = to {
                        warp.registers[*to as usize][lane] = old;
                    }
                }
            }
            Action::Shuffle { how, to, valid, from } => {
                let [value, by, clamp, members] = from.map(|from| warp.registers[from as usize]);
                warp.converged(active, &members)?;
                for lane in lanes(active) {
                    let (from, inside) = source_lane(*how, lane as u32, by[lane] as u32, clamp[lane] as u32);
                    let from = if inside { from as usize } else { lane };
                    let is_there = active >> from & 1 == 1;
                    warp.registers[*to as usize][lane] =
                        if is_there { value[from] } else { u64::from(u32::MAX) };
                    if let Some(valid) = valid {
                        warp.registers[*valid as usize][lane] = u64::from(inside);
                    }
                }
            }
            Action::Vote { how, to, value: (value, wanted), members } => {
                let members = warp.registers[*members as usize];
                warp.converged(active, &members)?;
                let votes = mask_of(&warp.registers[*value as usize], *wanted) & active;
                let result = match how {
                    Vote::All => u64::from(votes == active),
                    Vote::Any => u64::from(votes != 0),
                    Vote::Ballot => u64::from(votes),
                };
                for lane in lanes(active) {
                    warp.registers[*to as usize][lane] = result;
                }
            }
            Action::ActiveMask { to } => {
                for lane in lanes(active) {
                    warp.registers[*to as usize][lane] = u64::from(active);
                }
            }
            Action::Converge { members } => {
                let members = warp.registers[*members as usize];
                warp.converged(active, &members)?;
                warp.phase += 1;
            }
            Action::Assert { parameters } => return Err(self.assertion(warp, active, *parameters)),
            Action::Trap => return Err(Fault::new(Code::LaunchFailed, "a trap instruction")),
            Action::Branch(_) | Action::Exit | Action::Barrier => {}
        }
        Ok(())
    }

    /// Returns the checked location of an access.
    fn place(
        &mut self,
        warp: &Warp,
        at: usize,
        lane: usize,
        address: &Address,
        bytes: usize,
        what: &str,
    ) -> Result<Place<'a>, Fault> {
        let target = warp.registers[address.base as usize][lane].wrapping_add_signed(address.offset);
        let (space, target) = match address.space {
            Space::Generic if target >= LOCAL_WINDOW => (Space::Local, target - LOCAL_WINDOW),
            Space::Generic if target >= SHARED_WINDOW => (Space::Shared, target - SHARED_WINDOW),
            Space::Generic => (Space::Global, target),
            space => (space, target),
        };
        let target = target as usize;
        if !target.is_multiple_of(bytes.min(16)) {
            let thread = warp.thread(lane);
            let message = format!("{thread}: {what} of {bytes} bytes at {target:#x}, which is not aligned");
            return Err(Fault::new(Code::MisalignedAddress, message));
        }
        let (length, name, place) = match space {
            Space::Shared => (self.shared.len(), "shared", Place::Shared(target)),
            Space::Local => {
                let length = self.kernel.local_bytes;
                (length, "local", Place::Local((lane * length).saturating_add(target)))
            }
            _ => {
                let known = self.extents[at].filter(|extent| extent.holds(target, bytes));
                let extent = match known.or_else(|| self.memory.find(target, bytes)) {
                    Some(extent) => extent,
                    None => {
                        let subject = format!("{}: {what}", warp.thread(lane));
                        self.memory.check(&subject, target, bytes)?
                    }
                };
                self.extents[at] = Some(extent);
                return Ok(Place::Global(target, extent));
            }
        };
        if target.checked_add(bytes).is_none_or(|end| end > length) {
            let thread = warp.thread(lane);
            let message =
                format!("{thread}: {what} of {bytes} bytes at {target} of {length} bytes of {name} memory");
            return Err(Fault::new(Code::IllegalAddress, message));
        }
        Ok(place)
    }

    /// Records an access. Fails if it reads global memory that nothing has written, or races with an access
    /// of another thread to shared memory.
    fn record(
        &mut self,
        warp: &Warp,
        lane: usize,
        place: Place<'_>,
        bytes: usize,
        access: Access,
    ) -> Result<(), Fault> {
        match (place, access) {
            (Place::Global(..), Access::Read) => check_written(warp, lane, place, bytes)?,
            (Place::Global(address, extent), Access::Write) => extent.set_written(address, bytes, true),
            (Place::Shared(at), _) => self.check_race(warp, lane, at, bytes, access)?,
            (Place::Local(_), _) => {}
        }
        Ok(())
    }

    fn check_race(
        &mut self,
        warp: &Warp,
        lane: usize,
        at: usize,
        bytes: usize,
        access: Access,
    ) -> Result<(), Fault> {
        let by = Accessor { thread: warp.index * LANES as u32 + lane as u32, phase: warp.phase };
        let recorded = match access {
            Access::Read => self.accesses.read(by, at, bytes),
            Access::Write => self.accesses.write(by, at, bytes),
        };
        recorded.map_err(|other| {
            let message = format!(
                "a race: thread {} accesses {bytes} bytes at {at} of shared memory, and no barrier orders this with an \
                 access of thread {other}",
                by.thread
            );
            Fault::new(Code::LaunchFailed, message)
        })
    }

    fn read(&self, warp: &Warp, place: Place<'_>, offset: usize, bytes: usize) -> u64 {
        match place {
            Place::Shared(at) => read(&self.shared[at + offset..], bytes),
            Place::Local(at) => read(&warp.local[at + offset..], bytes),
            Place::Global(at, _) => {
                let mut value = [0u8; 8];
                // SAFETY: `place` verified that these bytes are inside a live allocation, which `self.memory`
                // keeps alive.
                unsafe {
                    std::ptr::copy_nonoverlapping((at + offset) as *const u8, value.as_mut_ptr(), bytes)
                };
                u64::from_le_bytes(value)
            }
        }
    }

    fn write(&mut self, warp: &mut Warp, place: Place<'_>, offset: usize, bytes: usize, value: u64) {
        let is_wrong = self.is_wrong && matches!(place, Place::Global(..));
        let value = if is_wrong { value ^ mantissa_bit(bytes) } else { value };
        let value = &value.to_le_bytes()[..bytes];
        match place {
            Place::Shared(at) => self.shared[at + offset..][..bytes].copy_from_slice(value),
            Place::Local(at) => warp.local[at + offset..][..bytes].copy_from_slice(value),
            // SAFETY: the same as for `read`; nothing else refers to device memory while a kernel runs.
            Place::Global(at, _) => unsafe {
                std::ptr::copy_nonoverlapping(value.as_ptr(), (at + offset) as *mut u8, bytes);
            },
        }
    }

    fn assertion(&self, warp: &Warp, active: u32, parameters: usize) -> Fault {
        let lane = active.trailing_zeros() as usize;
        let at = lane * self.kernel.local_bytes + parameters;
        let address = read(&warp.local[at..], 8) as usize;
        let text = self.memory.find(address, 1).map_or_else(String::new, |extent| {
            let length = extent.end - address;
            // SAFETY: `find` verified that these bytes are inside a live allocation.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, length) };
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(length);
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        });
        Fault::new(Code::Assert, format!("an assertion failed: {text}"))
    }
}

#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

/// The checked location of an access.
#[derive(Clone, Copy)]
enum Place<'a> {
    Global(usize, Extent<'a>),
    Shared(usize),
    Local(usize),
}

impl Warp {
    fn new(kernel: &Kernel) -> Self {
        let mut registers = vec![[0; LANES]; kernel.registers];
        for &(register, value) in &kernel.constants {
            registers[register as usize] = [value; LANES];
        }
        let local = vec![0; kernel.local_bytes * LANES];
        let here = Group::default();
        Self { registers, local, here, others: Vec::new(), waits: false, index: 0, phase: 0 }
    }

    /// Sets the special registers of warp `index` of a block.
    fn start(&mut self, launch: &Launch, place: [u32; 3], index: usize) {
        let [x, y, z] = launch.block;
        let threads = (x * y * z) as usize;
        for lane in 0..LANES {
            let thread = (index * LANES + lane) as u32;
            let own = [thread % x, thread / x % y, thread / (x * y)];
            let shared = [launch.block, place, launch.grid];
            let position = [lane as u32, index as u32, threads.div_ceil(LANES) as u32];
            let values = own.into_iter().chain(shared.into_iter().flatten()).chain(position);
            for (register, value) in values.enumerate().take(SPECIAL.len()) {
                self.registers[register][lane] = u64::from(value);
            }
        }
        let count = (threads - index * LANES).min(LANES);
        self.here = Group { at: 0, lanes: u32::MAX >> (LANES - count) };
        self.others.clear();
        (self.index, self.phase) = (index as u32, 0);
        self.local.fill(0xff);
    }

    /// Names a lane's thread and its block.
    fn thread(&self, lane: usize) -> String {
        let thread: [u64; 3] = std::array::from_fn(|axis| self.registers[axis][lane]);
        let block: [u64; 3] = std::array::from_fn(|axis| self.registers[6 + axis][lane]);
        format!("thread {thread:?} of block {block:?}")
    }

    fn guarded(&self, instruction: &Instruction) -> u32 {
        instruction
            .guard
            .map_or(u32::MAX, |(register, wanted)| mask_of(&self.registers[register as usize], wanted))
    }

    fn live(&self) -> u32 {
        self.others.iter().fold(self.here.lanes, |lanes, group| lanes | group.lanes)
    }

    /// Selects the lanes at the earliest instruction as the running ones. Returns whether there are any.
    fn select(&mut self) -> bool {
        if self.others.is_empty() {
            return self.here.lanes != 0;
        }
        self.others.push(self.here);
        self.others.retain(|group| group.lanes != 0);
        let Some(first) = self.others.iter().map(|group| group.at).min() else {
            self.here.lanes = 0;
            return false;
        };
        self.here = Group { at: first, lanes: 0 };
        for group in self.others.iter().filter(|group| group.at == first) {
            self.here.lanes |= group.lanes;
        }
        self.others.retain(|group| group.at != first);
        true
    }

    fn branch(&mut self, target: usize, taken: u32) {
        let rest = self.here.lanes & !taken;
        let next = self.here.at + 1;
        if taken != 0 && rest != 0 {
            self.others.push(Group { at: target, lanes: taken });
            self.here = Group { at: next, lanes: rest };
        } else {
            self.here.at = if taken != 0 { target } else { next };
        }
    }

    /// Fails unless all live lanes that an instruction names are at that instruction.
    fn converged(&self, active: u32, members: &Lanes) -> Result<(), Fault> {
        let live = self.live();
        let missing =
            lanes(active).map(|lane| members[lane] as u32 & live & !active).find(|missing| *missing != 0);
        missing.map_or(Ok(()), |missing| {
            let message = format!(
                "the lanes {missing:#x} of a warp are not at the instruction where others wait for them"
            );
            Err(Fault::new(Code::LaunchFailed, message))
        })
    }
}

/// Fails if nothing has written global memory that a lane reads.
fn check_written(warp: &Warp, lane: usize, place: Place<'_>, bytes: usize) -> Result<(), Fault> {
    let Place::Global(address, extent) = place else { return Ok(()) };
    extent.check_written("a load", address, bytes).map_err(|fault| fault.within(&warp.thread(lane)))
}

/// Returns the lane that `shfl` reads, and whether it is in range.
fn source_lane(how: Shuffle, lane: u32, by: u32, clamp: u32) -> (u32, bool) {
    let by = by & 31;
    let segment = clamp >> 8 & 31;
    let clamp = clamp & 31;
    let last = (lane & segment) | (clamp & !segment & 31);
    match how {
        Shuffle::Up => (lane.wrapping_sub(by), lane >= by && lane - by >= last),
        Shuffle::Down => (lane + by, lane + by <= last),
        Shuffle::Butterfly => (lane ^ by, lane ^ by <= last),
        Shuffle::Index => {
            let from = (lane & segment) | (by & !segment & 31);
            (from, from <= last)
        }
    }
}

fn read(bytes: &[u8], count: usize) -> u64 {
    let mut value = [0; 8];
    value[..count].copy_from_slice(&bytes[..count]);
    u64::from_le_bytes(value)
}

/// The highest bit of the mantissa of a float of this size: E4M3, bf16, f32 or f64.
fn mantissa_bit(bytes: usize) -> u64 {
    1 << match bytes {
        1 => 2,
        2 => 6,
        4 => 22,
        _ => 51,
    }
}

/// Widens a loaded value to a register of `width` bytes.
fn widen(value: u64, kind: Type, width: usize) -> u64 {
    if !kind.is_signed() {
        return value;
    }
    let unused = 64 - 8 * kind.bytes() as u32;
    ((value << unused) as i64 >> unused) as u64 & (u64::MAX >> (64 - 8 * width))
}
