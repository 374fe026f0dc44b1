//! Interprets a pickle of tensors as data. Nothing is executed.
//!
//! In: the bytes of a `data.pkl`. Out: its views of storages, by name. It knows ordered dictionaries,
//! tensors, parameters and storages, and rejects every other class or function with an error that names it.
//! There is no recursion and each value is one node, so that memory is proportional to the bytes, regardless
//! of their nesting. Opcodes: Python's `pickletools`, protocols 2 to 5.

use std::collections::HashMap;

use crate::weights::table::TableError;

use super::cursor::{CUT_OFF, Cursor, DAMAGED};

/// Maximum number of values. Real pickles have about ten values per tensor.
const VALUES_MAX: usize = 1 << 20;

const TENSORS_MAX: usize = 1 << 17;

/// Maximum length of a name, in bytes. A pickle can repeat a name without storing it again, so long names
/// would add up.
const NAME_BYTES_MAX: usize = 512;

const DIMENSIONS_MAX: usize = 8;

/// Elements of one type in an entry of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Storage<'p> {
    /// The name of the class, such as `FloatStorage`.
    pub(super) class: &'p str,
    pub(super) key: &'p str,
}

/// A tensor: a view of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View<'p> {
    pub(super) storage: Storage<'p>,
    /// Number of elements of the storage before the tensor's first one.
    pub(super) offset: u64,
    pub(super) shape: Vec<i64>,
    pub(super) strides: Vec<i64>,
}

/// Index of a node.
type Id = usize;

#[derive(Debug)]
enum Node<'p> {
    /// `None`, floating-point numbers and other values that no tensor needs.
    Other,
    Bool,
    Int(i64),
    Text(&'p str),
    Class(Class<'p>),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Storage(Storage<'p>),
    Tensor(View<'p>),
}

/// The classes and functions that a pickle of tensors may refer to.
#[derive(Debug, Clone, Copy)]
enum Class<'p> {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(&'p str),
}

/// Returns the tensors of a pickle with their names, in the pickle's order. With `key`, the pickle is a
/// dictionary in which `key` has the dictionary of tensors.
pub(super) fn tensors<'p>(bytes: &'p [u8], key: Option<&str>) -> Result<Vec<(String, View<'p>)>, TableError> {
    let machine = Machine {
        cursor: Cursor::new(bytes),
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    let (mut nodes, root) = machine.run().map_err(TableError::file)?;
    let root = match key {
        Some(key) => entry(&nodes, root, key)
            .ok_or_else(|| TableError::file(format!("it has no dictionary `{key}` of tensors")))?,
        None => root,
    };
    let Some(Node::Dict(pairs)) = nodes.get_mut(root).map(|node| std::mem::replace(node, Node::Other)) else {
        return Err(TableError::file("it holds no dictionary of tensors"));
    };
    if pairs.len() > TENSORS_MAX {
        return Err(TableError::file(format!("it lists {} tensors", pairs.len())));
    }
    let mut tensors = Vec::new();
    for (key, value) in pairs {
        let Some(Node::Text(name)) = nodes.get(key) else {
            return Err(TableError::file("it holds a tensor without a name"));
        };
        if name.len() > NAME_BYTES_MAX {
            return Err(TableError::tensor(*name, format!("its name has {} bytes", name.len())));
        }
        let Some(Node::Tensor(view)) = nodes.get(value) else {
            return Err(TableError::tensor(*name, "it is not a tensor"));
        };
        tensors.push(((*name).to_owned(), view.clone()));
    }
    Ok(tensors)
}

/// Returns the value of a dictionary with a text as its key. The last one counts, as in Python.
fn entry(nodes: &[Node<'_>], dictionary: Id, key: &str) -> Option<Id> {
    let Node::Dict(pairs) = nodes.get(dictionary)? else { return None };
    for &(name, value) in pairs.iter().rev() {
        if matches!(nodes.get(name), Some(Node::Text(name)) if *name == key) {
            return Some(value);
        }
    }
    None
}

struct Machine<'p> {
    cursor: Cursor<'p>,
    nodes: Vec<Node<'p>>,
    stack: Vec<Id>,
    /// Heights of the stack at its marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'p> Machine<'p> {
    /// Returns all nodes and the root.
    fn run(mut self) -> Result<(Vec<Node<'p>>, Id), String> {
        const STOP: u8 = b'.';
        loop {
            let opcode = self.cursor.byte()?;
            if opcode == STOP {
                let root = self.pop()?;
                return Ok((self.nodes, root));
            }
            self.step(opcode)?;
            if self.nodes.len() > VALUES_MAX || self.stack.len() > VALUES_MAX || self.marks.len() > VALUES_MAX
            {
                return Err(format!("its pickle has more than {VALUES_MAX} values"));
            }
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            // PROTO, FRAME: nothing to do.
            0x80 => self.cursor.take(1).map(drop),
            0x95 => self.cursor.take(8).map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'q' | b'r' | 0x94 => self.memorize(opcode),
            b'h' | b'j' => self.recall(opcode),
            b'c' | 0x93 => self.class(opcode),
            b'}' => self.push(Node::Dict(Vec::new())),
            b']' => self.push(Node::List(Vec::new())),
            b's' | b'u' => self.set_items(opcode),
            b'a' | b'e' => self.append(opcode),
            b')' | b't' | 0x85..=0x87 => self.tuple(opcode),
            b'Q' => self.persistent(),
            b'R' => self.reduce(),
            b'b' => self.build(),
            _ => self.scalar(opcode),
        }
    }

    fn scalar(&mut self, opcode: u8) -> Result<(), String> {
        let node = match opcode {
            b'N' => Node::Other,
            0x88 | 0x89 => Node::Bool,
            b'G' => self.cursor.take(8).map(|_| Node::Other)?,
            b'K' => Node::Int(self.cursor.byte()?.into()),
            b'M' => Node::Int(u16::from_le_bytes(self.cursor.array()?).into()),
            b'J' => Node::Int(i32::from_le_bytes(self.cursor.array()?).into()),
            0x8a => Node::Int(self.cursor.long()?),
            0x8c => Node::Text(self.cursor.text(1)?),
            b'X' => Node::Text(self.cursor.text(4)?),
            0x8d => Node::Text(self.cursor.text(8)?),
            _ => {
                return Err(format!(
                    "its pickle has opcode {opcode:#04x} at {}, which no tensor needs",
                    self.cursor.at() - 1
                ));
            }
        };
        self.push(node)
    }

    fn memorize(&mut self, opcode: u8) -> Result<(), String> {
        let key = match opcode {
            b'q' => self.cursor.byte()?.into(),
            b'r' => u32::from_le_bytes(self.cursor.array()?),
            _ => u32::try_from(self.memo.len()).map_err(|_| CUT_OFF)?,
        };
        let top = *self.stack.last().ok_or(DAMAGED)?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, opcode: u8) -> Result<(), String> {
        let key = if opcode == b'h' {
            self.cursor.byte()?.into()
        } else {
            u32::from_le_bytes(self.cursor.array()?)
        };
        self.stack.push(*self.memo.get(&key).ok_or(DAMAGED)?);
        Ok(())
    }

    fn class(&mut self, opcode: u8) -> Result<(), String> {
        let (module, name) = if opcode == b'c' {
            (self.cursor.line()?, self.cursor.line()?)
        } else {
            let name = self.pop_text()?;
            (self.pop_text()?, name)
        };
        let class = match (module, name) {
            ("collections", "OrderedDict") => Class::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Class::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Class::RebuildParameter,
            ("torch", class) if class.ends_with("Storage") && class.len() <= NAME_BYTES_MAX => {
                Class::Storage(class)
            }
            _ => return Err(format!("it refers to `{}`, which no tensor needs", shown(module, name))),
        };
        self.push(Node::Class(class))
    }

    fn set_items(&mut self, opcode: u8) -> Result<(), String> {
        let items = if opcode == b'u' { self.pop_to_mark()? } else { self.pop_many(2)? };
        let Some(Node::Dict(pairs)) = self.stack.last().and_then(|&id| self.nodes.get_mut(id)) else {
            return Err(DAMAGED.to_owned());
        };
        pairs.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        Ok(())
    }

    fn append(&mut self, opcode: u8) -> Result<(), String> {
        let items = if opcode == b'e' { self.pop_to_mark()? } else { self.pop_many(1)? };
        let Some(Node::List(list)) = self.stack.last().and_then(|&id| self.nodes.get_mut(id)) else {
            return Err(DAMAGED.to_owned());
        };
        list.extend(items);
        Ok(())
    }

    fn tuple(&mut self, opcode: u8) -> Result<(), String> {
        let items = match opcode {
            b')' => Vec::new(),
            b't' => self.pop_to_mark()?,
            one_to_three => self.pop_many(usize::from(one_to_three - 0x84))?,
        };
        self.push(Node::Tuple(items))
    }

    /// `('storage', class, key, device, elements)`: a reference to an entry of the archive.
    fn persistent(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let parts = self.tuple_at(id)?;
        let [kind, class, key, _, _] = parts else { return Err(DAMAGED.to_owned()) };
        let storage = match (self.node(*kind), self.node(*class), self.node(*key)) {
            (Node::Text("storage"), Node::Class(Class::Storage(class)), Node::Text(key))
                if key.len() <= NAME_BYTES_MAX =>
            {
                Storage { class, key }
            }
            _ => return Err(DAMAGED.to_owned()),
        };
        self.push(Node::Storage(storage))
    }

    /// Evaluates a call of one of the known functions.
    fn reduce(&mut self) -> Result<(), String> {
        let arguments = self.pop()?;
        let function = self.pop()?;
        let arguments = self.tuple_at(arguments)?;
        let node = match (self.node(function), arguments) {
            (Node::Class(Class::OrderedDict), []) => Node::Dict(Vec::new()),
            (Node::Class(Class::RebuildTensor), [storage, offset, shape, strides, ..]) => {
                Node::Tensor(self.view(*storage, *offset, *shape, *strides)?)
            }
            (Node::Class(Class::RebuildParameter), [tensor, ..]) => match self.node(*tensor) {
                Node::Tensor(view) => Node::Tensor(view.clone()),
                _ => return Err(DAMAGED.to_owned()),
            },
            (Node::Class(class), _) => return Err(format!("its pickle calls {class:?} as no tensor needs")),
            _ => return Err(DAMAGED.to_owned()),
        };
        self.push(node)
    }

    fn view(&self, storage: Id, offset: Id, shape: Id, strides: Id) -> Result<View<'p>, String> {
        match (self.node(storage), self.node(offset)) {
            (Node::Storage(storage), &Node::Int(offset)) => Ok(View {
                storage: storage.clone(),
                offset: u64::try_from(offset).map_err(|_| DAMAGED)?,
                shape: self.dimensions(shape)?,
                strides: self.dimensions(strides)?,
            }),
            _ => Err(DAMAGED.to_owned()),
        }
    }

    /// Returns the numbers of a shape, or of strides.
    fn dimensions(&self, id: Id) -> Result<Vec<i64>, String> {
        let items = self.tuple_at(id)?;
        if items.len() > DIMENSIONS_MAX {
            return Err(format!("its pickle has a tensor of {} dimensions", items.len()));
        }
        let mut numbers = Vec::with_capacity(items.len());
        for &item in items {
            let Node::Int(number) = self.node(item) else { return Err(DAMAGED.to_owned()) };
            numbers.push(*number);
        }
        Ok(numbers)
    }

    /// Drops attributes of a dictionary, such as the `_metadata` of a state dictionary. They contain no
    /// tensors.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.stack.last().map(|&id| self.node(id)) {
            Some(Node::Dict(_)) => Ok(()),
            _ => Err(DAMAGED.to_owned()),
        }
    }

    fn push(&mut self, node: Node<'p>) -> Result<(), String> {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, String> {
        Ok(self.pop_many(1)?.pop().ok_or(DAMAGED)?)
    }

    /// Removes and returns the top `count` values. Values below the last mark are out of reach.
    fn pop_many(&mut self, count: usize) -> Result<Vec<Id>, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let from = self.stack.len().checked_sub(count).filter(|&from| from >= floor).ok_or(DAMAGED)?;
        Ok(self.stack.split_off(from))
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or(DAMAGED)?;
        Ok(self.stack.split_off(mark))
    }

    fn pop_text(&mut self) -> Result<&'p str, String> {
        let id = self.pop()?;
        match self.node(id) {
            Node::Text(text) => Ok(text),
            _ => Err(DAMAGED.to_owned()),
        }
    }

    fn node(&self, id: Id) -> &Node<'p> {
        self.nodes.get(id).unwrap_or(&Node::Other)
    }

    fn tuple_at(&self, id: Id) -> Result<&[Id], String> {
        match self.node(id) {
            Node::Tuple(items) => Ok(items),
            _ => Err(DAMAGED.to_owned()),
        }
    }
}

/// Shortens a name from the file to one short line.
fn shown(module: &str, name: &str) -> String {
    const CHARACTERS_MAX: usize = 80;
    let all = format!("{module}.{name}");
    all.chars()
        .take(CHARACTERS_MAX)
        .map(|character| if character.is_control() { '?' } else { character })
        .collect()
}
