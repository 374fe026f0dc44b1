//! The values of GGUF metadata.

use super::cursor::Cursor;

/// Maximum number of elements in all lists of a file. Vocabularies of 262,144 tokens need about a million.
pub(super) const ELEMENTS_MAX: u64 = 1 << 22;

/// A value of any width.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Integer(i128),
    /// A number of 32 bits becomes the number with the same shortest decimal notation: 1e-6 in f32 is 1e-6 in
    /// f64, as `config.json` would state it.
    Float(f64),
    Bool(bool),
    Text(String),
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Texts(Vec<String>),
}

/// The type of a value in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    List,
    U64,
    I64,
    F64,
}

impl Kind {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, String> {
        Ok(match cursor.u32()? {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Text,
            9 => Self::List,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            other => return Err(format!("values of type {other} are not known")),
        })
    }

    /// Returns the minimum size of a value in bytes.
    fn bytes_min(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::Text | Self::U64 | Self::I64 | Self::F64 => 8,
            Self::List => 12,
        }
    }
}

impl Value {
    /// Reads a value. Lists use up `elements`.
    pub(super) fn read(cursor: &mut Cursor<'_>, elements: &mut u64) -> Result<Self, String> {
        match Kind::read(cursor)? {
            Kind::List => list(cursor, elements),
            kind => scalar(cursor, kind),
        }
    }

    /// Returns the kind of the value for messages.
    pub(super) fn described(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::Text(_) => "a text",
            Self::Integers(_) | Self::Floats(_) | Self::Bools(_) | Self::Texts(_) => "a list",
        }
    }
}

fn scalar(cursor: &mut Cursor<'_>, kind: Kind) -> Result<Value, String> {
    Ok(match kind {
        Kind::F32 => Value::Float(decimal(f32::from_le_bytes(cursor.array()?))),
        Kind::F64 => Value::Float(f64::from_le_bytes(cursor.array()?)),
        Kind::Bool => Value::Bool(boolean(cursor)?),
        Kind::Text => Value::Text(cursor.text()?.to_owned()),
        Kind::U64 => Value::Integer(cursor.u64()?.into()),
        _ => Value::Integer(integer(cursor, kind)?.into()),
    })
}

/// Returns the number whose shortest decimal notation is the same.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

fn boolean(cursor: &mut Cursor<'_>) -> Result<bool, String> {
    match cursor.array()? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(format!("{other} is neither true nor false")),
    }
}

fn integer(cursor: &mut Cursor<'_>, kind: Kind) -> Result<i64, String> {
    Ok(match kind {
        Kind::U8 => u8::from_le_bytes(cursor.array()?).into(),
        Kind::I8 => i8::from_le_bytes(cursor.array()?).into(),
        Kind::U16 => u16::from_le_bytes(cursor.array()?).into(),
        Kind::I16 => i16::from_le_bytes(cursor.array()?).into(),
        Kind::U32 => cursor.u32()?.into(),
        Kind::I32 => i32::from_le_bytes(cursor.array()?).into(),
        Kind::I64 => i64::from_le_bytes(cursor.array()?),
        Kind::U64 => {
            let number = cursor.u64()?;
            i64::try_from(number).map_err(|_| format!("{number} is too large"))?
        }
        Kind::F32 | Kind::F64 | Kind::Bool | Kind::Text | Kind::List => {
            return Err("not an integer".to_owned());
        }
    })
}

fn list(cursor: &mut Cursor<'_>, elements: &mut u64) -> Result<Value, String> {
    let kind = Kind::read(cursor)?;
    let count = cursor.u64()?;
    if kind == Kind::List {
        return Err("lists of lists are not supported".to_owned());
    }
    if count.checked_mul(kind.bytes_min()).is_none_or(|bytes| bytes > cursor.left()) {
        return Err(format!("a list of {count} values does not fit into the {} bytes left", cursor.left()));
    }
    *elements = elements.checked_sub(count).ok_or_else(|| {
        format!("with its {count} values, the lists of the file have more than {ELEMENTS_MAX}")
    })?;
    // The count is at most `ELEMENTS_MAX`.
    let count = count as usize;
    Ok(match kind {
        Kind::Text => Value::Texts(many(count, || cursor.text().map(str::to_owned))?),
        Kind::Bool => Value::Bools(many(count, || boolean(cursor))?),
        Kind::F32 => Value::Floats(many(count, || Ok(f32::from_le_bytes(cursor.array()?).into()))?),
        Kind::F64 => Value::Floats(many(count, || Ok(f64::from_le_bytes(cursor.array()?)))?),
        _ => Value::Integers(many(count, || integer(cursor, kind))?),
    })
}

fn many<T>(count: usize, mut read: impl FnMut() -> Result<T, String>) -> Result<Vec<T>, String> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        all.push(read()?);
    }
    Ok(all)
}
