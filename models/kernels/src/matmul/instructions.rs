//! The instructions for sums of products of bytes, apart from AMX.

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "aarch64")]
use super::sdot::Sdot;
#[cfg(target_arch = "x86_64")]
use super::vnni::Vnni;

/// Instructions that this CPU has.
#[derive(Clone, Copy)]
pub(super) enum Instructions {
    /// Plain Rust, vectorized by the compiler.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Vnni(Vnni),
    #[cfg(target_arch = "aarch64")]
    Sdot(Sdot),
}

impl Instructions {
    /// Returns the fastest ones.
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(vnni) = Vnni::new() {
            return Self::Vnni(vnni);
        } else if let Some(avx2) = Avx2::new() {
            return Self::Avx2(avx2);
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(sdot) = Sdot::new() {
            return Self::Sdot(sdot);
        }
        Self::Portable
    }
}
