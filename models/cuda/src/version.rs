//! The CUDA versions of the program and of the driver, compared before any other library of CUDA is used.

use std::fmt;

use candle_core::cuda::cudarc::driver::{DriverError, sys};

/// A version of CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CudaVersion {
    major: u32,
    minor: u32,
}

/// The first driver for each version of CUDA, from NVIDIA's release notes. Later versions need later drivers.
const DRIVERS: [(CudaVersion, u32); 11] = [
    (CudaVersion::new(12, 0), 525),
    (CudaVersion::new(12, 1), 530),
    (CudaVersion::new(12, 2), 535),
    (CudaVersion::new(12, 3), 545),
    (CudaVersion::new(12, 4), 550),
    (CudaVersion::new(12, 5), 555),
    (CudaVersion::new(12, 6), 560),
    (CudaVersion::new(12, 8), 570),
    (CudaVersion::new(12, 9), 575),
    (CudaVersion::new(13, 0), 580),
    (CudaVersion::new(13, 1), 590),
];

impl CudaVersion {
    const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Reads the driver's form, such as 13010 for 13.1.
    fn of_driver(number: i32) -> Self {
        let number = number.max(0) as u32;
        Self::new(number / 1000, number % 1000 / 10)
    }

    /// Reads a version such as `13.0`, or one with further parts.
    fn parse(version: &str) -> Option<Self> {
        let mut parts = version.split('.').map(str::parse);
        Some(Self::new(parts.next()?.ok()?, parts.next()?.ok()?))
    }

    /// Returns the first driver that supports this version, or the newest that is known.
    fn first_driver(self) -> u32 {
        let first = DRIVERS.iter().find(|(version, _)| *version >= self).or(DRIVERS.last());
        first.map_or(0, |(_, driver)| *driver)
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Fails if the driver is too old for this program. candle's kernels are PTX, which a driver compiles only if
/// it is as new as their compiler.
pub fn check_driver() -> Result<(), String> {
    let Some(program) = CudaVersion::parse(env!("NTL_NVCC_VERSION")) else { return Ok(()) };
    let driver = driver_version().map_err(|error| format!("the driver's version is unknown: {error}"))?;
    compare(driver, program)
}

fn compare(driver: CudaVersion, program: CudaVersion) -> Result<(), String> {
    if driver >= program {
        return Ok(());
    }
    let needed = program.first_driver();
    Err(format!(
        "the NVIDIA driver supports CUDA {driver}, but this program was built with CUDA {program}, which needs \
         driver {needed} or later; update the driver, or build with CUDA {driver} or earlier"
    ))
}

fn driver_version() -> Result<CudaVersion, DriverError> {
    let mut number = 0;
    // SAFETY: the driver writes one number.
    unsafe { sys::cuDriverGetVersion(&raw mut number) }.result()?;
    Ok(CudaVersion::of_driver(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V12_4: CudaVersion = CudaVersion::new(12, 4);
    const V13_0: CudaVersion = CudaVersion::new(13, 0);

    #[test]
    fn versions_of_the_compiler_and_of_the_driver_are_read() {
        let program = CudaVersion::parse(env!("NTL_NVCC_VERSION")).unwrap();
        assert!(program >= CudaVersion::new(12, 0), "{program}");
        assert_eq!(CudaVersion::parse("12.8.93"), Some(CudaVersion::new(12, 8)));
        assert_eq!(CudaVersion::parse("V12"), None);
        assert_eq!(CudaVersion::of_driver(13_010), CudaVersion::new(13, 1));
    }

    #[test]
    fn an_older_driver_is_rejected_with_both_versions_and_the_first_driver_that_is_new_enough() {
        let error = compare(V12_4, V13_0).unwrap_err();
        for part in ["driver supports CUDA 12.4", "built with CUDA 13.0", "needs driver 580 or later"] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(compare(V13_0, V13_0), Ok(()));
        assert_eq!(compare(V13_0, V12_4), Ok(()));
        let first = [(12, 0), (12, 7), (13, 0), (13, 9)];
        let drivers = first.map(|(major, minor)| CudaVersion::new(major, minor).first_driver());
        assert_eq!(drivers, [525, 570, 580, 590], "also of versions between and beyond those in the table");
    }
}
