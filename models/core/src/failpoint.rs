//! Points at which tests make the operating system fail.
//!
//! Only the feature `failpoints`, which tests of other packages enable, compiles them: in programs a point
//! does nothing.

use std::io;

/// The error that a test has set for this point: `fail::cfg(point, "1*return(5)")` is one error of number 5,
/// `EIO`.
#[cfg(feature = "failpoints")]
#[expect(clippy::expect_used, reason = "only tests set points")]
pub fn check(point: &str) -> io::Result<()> {
    fail::fail_point!(point, |number| {
        let number = number.expect("a point returns the number of an error");
        Err(io::Error::from_raw_os_error(number.parse().expect("the number of an error is a number")))
    });
    Ok(())
}

/// Never an error.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn check(_point: &str) -> io::Result<()> {
    Ok(())
}
