//! The C interface. The functions are those that candle and cudarc link; a program that needs another one does not start, and the
//! system's loader names it.

mod cublas;
mod cuda;
mod curand;

use std::cell::RefCell;
use std::io::Write;

use crate::fault::Fault;

thread_local! {
    /// The last fault of this thread, which the text of its code tells.
    static LAST: RefCell<Option<Fault>> = const { RefCell::new(None) };
}

/// Says what went wrong and keeps it for the text of its code.
fn report(fault: &Fault) {
    // A closed stderr is no reason to fail otherwise than by the returned code.
    let _ = writeln!(std::io::stderr(), "fake CUDA: {fault}");
    LAST.with_borrow_mut(|last| *last = Some(fault.clone()));
}
