//! The C interface. It consists of the functions that candle and cudarc link. If a program needs another
//! function, it does not start, and the system's loader names the function.

mod cublas;
mod cuda;
mod curand;

use std::cell::RefCell;
use std::io::Write;

use crate::fault::Fault;

thread_local! {
    /// The last fault of this thread, from which the message of its code is taken.
    static LAST: RefCell<Option<Fault>> = const { RefCell::new(None) };
}

/// Prints a fault and keeps it for the message of its code.
fn report(fault: &Fault) {
    // If stderr is closed, the returned code still reports the fault.
    let _ = writeln!(std::io::stderr(), "fake CUDA: {fault}");
    LAST.with_borrow_mut(|last| *last = Some(fault.clone()));
}
