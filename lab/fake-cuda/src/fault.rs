//! Faults: a program's mistakes on the device, with their CUDA error codes.

use std::fmt;

/// `CUresult` codes that the fake driver returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidValue = 1,
    OutOfMemory = 2,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    EccUncorrectable = 214,
    InvalidPtx = 218,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    IllegalAddress = 700,
    Assert = 710,
    MisalignedAddress = 716,
    LaunchFailed = 719,
    NotSupported = 801,
    CaptureUnsupported = 900,
    CaptureInvalidated = 901,
    WrongThread = 908,
}

impl Code {
    /// Returns whether the error breaks the context: all later calls of the process fail with it.
    pub(crate) fn is_sticky(self) -> bool {
        matches!(
            self,
            Self::EccUncorrectable
                | Self::IllegalAddress
                | Self::Assert
                | Self::MisalignedAddress
                | Self::LaunchFailed
        )
    }
}

/// A call or a kernel that a device would reject, or that would break it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub code: Code,
    pub message: String,
}

impl Fault {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Returns the same fault with a context before the message.
    #[must_use]
    pub fn within(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
