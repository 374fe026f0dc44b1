//! cuBLAS matmuls: column-major, in batches with strides, checked against the memory they access, and
//! computed by plain loops. Sums of 16-bit and 32-bit types are kept in f32, in the order of the inner
//! dimension. A result that depends on memory that nothing has written counts as unwritten, too.

use half::{bf16, f16};

use crate::fault::{Code, Fault};
use crate::memory::{Extent, Memory};

/// Element types with CUDA's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    F32,
    F64,
    F16,
    Bf16,
}

impl Scalar {
    pub fn of_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F64,
            2 => Self::F16,
            14 => Self::Bf16,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// One matrix operand, for all members of the batch.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub address: usize,
    pub scalar: Scalar,
    /// Number of elements from one column to the next.
    pub leading: i64,
    /// Number of elements from one member of the batch to the next.
    pub stride: i64,
    pub transposed: bool,
}

/// `c = alpha * op(a) * op(b) + beta * c`, with `op(a)` of `m x k` and `op(b)` of `k x n`.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub alpha: f64,
    pub beta: f64,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    pub batch: i64,
}

fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(Code::InvalidValue, message)
}

impl Product {
    /// Computes the product; if `execute` is false, only checks it.
    pub fn run(&self, memory: &Memory, execute: bool) -> Result<(), Fault> {
        let name = format!("product of {} x {} x {}, {} times", self.m, self.n, self.k, self.batch);
        self.check(memory).map_err(|fault| fault.within(&name))?;
        if !execute || self.m == 0 || self.n == 0 {
            return Ok(());
        }
        for member in 0..self.batch as usize {
            self.set_written(memory, member)?;
            if self.c.scalar == Scalar::F64 { self.member::<f64>(member) } else { self.member::<f32>(member) }
        }
        Ok(())
    }

    /// Returns whether all columns begin at a multiple of 16 bytes, as cuBLAS's fastest kernels require.
    pub(crate) fn is_aligned(&self) -> bool {
        [self.a, self.b, self.c].iter().all(|matrix| {
            let steps = [matrix.leading, if self.batch > 1 { matrix.stride } else { 0 }];
            let bytes = steps.map(|step| step as usize * matrix.scalar.bytes());
            matrix.address.is_multiple_of(16) && bytes.iter().all(|bytes| bytes.is_multiple_of(16))
        })
    }

    fn check(&self, memory: &Memory) -> Result<(), Fault> {
        if self.m < 0 || self.n < 0 || self.k < 0 || self.batch < 0 {
            return Err(invalid("a negative size"));
        }
        let shapes =
            [("a", self.a, self.m, self.k), ("b", self.b, self.k, self.n), ("c", self.c, self.m, self.n)];
        for (name, matrix, rows, columns) in shapes {
            let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
            let subject = format!("{name} of {rows} x {columns}");
            if matrix.leading < rows.max(1) {
                let leading = matrix.leading;
                let message = format!("{name} has {rows} rows, and {leading} elements from column to column");
                return Err(invalid(message));
            }
            if matrix.stride < 0 {
                return Err(invalid(format!("{name} has a negative stride")));
            }
            if rows == 0 || columns == 0 || self.batch == 0 {
                continue;
            }
            let one = (columns - 1) * matrix.leading + rows;
            let elements = (self.batch - 1) * matrix.stride + one;
            let bytes = matrix.scalar.bytes();
            memory
                .check("a matrix", matrix.address, elements as usize * bytes)
                .map_err(|fault| fault.within(&subject))?;
            if !matrix.address.is_multiple_of(bytes) {
                let message = format!("{:#x} is not aligned", matrix.address);
                return Err(Fault::new(Code::MisalignedAddress, message).within(&subject));
            }
            let apart = matrix.stride >= one
                || matrix.stride >= rows && matrix.leading >= (self.batch - 1) * matrix.stride + rows;
            if name == "c" && self.batch > 1 && !apart {
                let stride = matrix.stride;
                let message = format!("results of {rows} x {columns} with a stride of {stride} overlap");
                return Err(invalid(message));
            }
        }
        Ok(())
    }

    /// Records which results have a value: those that depend on no element that nothing has written.
    fn set_written(&self, memory: &Memory, member: usize) -> Result<(), Fault> {
        let [m, n, k] = [self.m, self.n, self.k].map(|size| size as usize);
        let extent_a = memory.check("a matrix", self.a.address, 1)?;
        let (rows, _) = self.a.written_lines(&extent_a, member, m, k);
        let extent_b = memory.check("a matrix", self.b.address, 1)?;
        let (_, columns) = self.b.written_lines(&extent_b, member, k, n);
        let c = memory.check("a matrix", self.c.address, 1)?;
        let bytes = self.c.scalar.bytes();
        let all_rows = rows.iter().all(|is_written| *is_written);
        for (column, is_written) in columns.into_iter().enumerate() {
            if self.beta == 0.0 && (all_rows || !is_written) {
                c.set_written(self.c.at(member, 0, column), m * bytes, is_written);
                continue;
            }
            for (row, row_is_written) in rows.iter().enumerate() {
                let address = self.c.at(member, row, column);
                let is_kept = self.beta == 0.0 || c.is_written(address, bytes);
                c.set_written(address, bytes, is_written && *row_is_written && is_kept);
            }
        }
        Ok(())
    }

    fn member<T: Number>(&self, member: usize) {
        let [m, n, k] = [self.m, self.n, self.k].map(|size| size as usize);
        // Lays out op(a) as k rows of m, and op(b) as n rows of k.
        let a: Vec<T> = self.a.elements(member, m, k);
        let b: Vec<T> = self.b.elements(member, k, n);
        let mut sums = vec![T::default(); m];
        for column in 0..n {
            sums.fill(T::default());
            for inner in 0..k {
                let factor = b[column * k + inner];
                for (sum, &a) in sums.iter_mut().zip(&a[inner * m..][..m]) {
                    *sum = sum.plus_product(a, factor);
                }
            }
            for (row, sum) in sums.iter().enumerate() {
                let at = self.c.at(member, row, column);
                // If beta is 0, c is not read: it may be NaN.
                let kept = if self.beta == 0.0 { 0.0 } else { self.beta * load(self.c.scalar, at) };
                store(self.c.scalar, at, self.alpha * sum.wide() + kept);
            }
        }
    }
}

impl Matrix {
    fn at(&self, member: usize, row: usize, column: usize) -> usize {
        let (row, column) = if self.transposed { (column, row) } else { (row, column) };
        let element = member * self.stride as usize + column * self.leading as usize + row;
        self.address + element * self.scalar.bytes()
    }

    /// Returns for each row and for each column whether all of its elements have a value.
    fn written_lines(
        &self,
        extent: &Extent<'_>,
        member: usize,
        rows: usize,
        columns: usize,
    ) -> (Vec<bool>, Vec<bool>) {
        let (height, width) = if self.transposed { (columns, rows) } else { (rows, columns) };
        let bytes = self.scalar.bytes();
        let (mut across, mut down) = (vec![true; height], vec![true; width]);
        for (column, is_written) in down.iter_mut().enumerate() {
            let element = member * self.stride as usize + column * self.leading as usize;
            let start = self.address + element * bytes;
            *is_written = extent.is_written(start, height * bytes);
            if !*is_written {
                let parts = across.iter_mut().enumerate();
                parts.for_each(|(row, part)| *part &= extent.is_written(start + row * bytes, bytes));
            }
        }
        if self.transposed { (down, across) } else { (across, down) }
    }

    fn elements<T: Number>(&self, member: usize, rows: usize, columns: usize) -> Vec<T> {
        let places = (0..columns).flat_map(|column| (0..rows).map(move |row| (row, column)));
        places.map(|(row, column)| T::narrow(load(self.scalar, self.at(member, row, column)))).collect()
    }
}

/// The accumulation type.
trait Number: Copy + Default {
    fn narrow(value: f64) -> Self;
    fn wide(self) -> f64;
    fn plus_product(self, a: Self, b: Self) -> Self;
}

impl Number for f32 {
    fn narrow(value: f64) -> Self {
        value as Self
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn plus_product(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}

impl Number for f64 {
    fn narrow(value: f64) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self
    }
    fn plus_product(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}

fn load(scalar: Scalar, address: usize) -> f64 {
    // SAFETY: `Product::check` verified that the whole matrix lies inside a live allocation, and that its
    // address is aligned.
    unsafe {
        match scalar {
            Scalar::F32 => f64::from(*(address as *const f32)),
            Scalar::F64 => *(address as *const f64),
            Scalar::F16 => (*(address as *const f16)).to_f64(),
            Scalar::Bf16 => (*(address as *const bf16)).to_f64(),
        }
    }
}

fn store(scalar: Scalar, address: usize, value: f64) {
    // SAFETY: the same as for `load`.
    unsafe {
        match scalar {
            Scalar::F32 => *(address as *mut f32) = value as f32,
            Scalar::F64 => *(address as *mut f64) = value,
            Scalar::F16 => *(address as *mut f16) = f16::from_f64(value),
            Scalar::Bf16 => *(address as *mut bf16) = bf16::from_f64(value),
        }
    }
}
