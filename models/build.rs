//! Sets `cfg(shared_fixtures)` if `../shared`, with the results of the reference implementation, is next to
//! the checkout, and passes its path to the tests as `NTL_SHARED`. Without the fixtures the tests that need
//! them are ignored, or, with `NTL_REQUIRE_FIXTURES=1`, the build fails.

use std::env;
use std::path::Path;

pub(crate) fn main() -> Result<(), String> {
    println!("cargo:rustc-check-cfg=cfg(shared_fixtures)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=NTL_REQUIRE_FIXTURES");
    let package = env::var("CARGO_MANIFEST_DIR").map_err(|error| format!("CARGO_MANIFEST_DIR: {error}"))?;
    let checkout = Path::new(&package).ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    let shared = checkout.and_then(Path::parent).unwrap_or(Path::new("/")).join("shared");
    println!("cargo:rustc-env=NTL_SHARED={}", shared.display());
    let file = shared.join("fixtures/README.md");
    if file.is_file() {
        // Only if the file exists: for a missing file, Cargo would run this script in every build.
        println!("cargo:rerun-if-changed={}", file.display());
        println!("cargo:rustc-cfg=shared_fixtures");
    } else if env::var("NTL_REQUIRE_FIXTURES").is_ok_and(|required| required == "1") {
        return Err(format!("NTL_REQUIRE_FIXTURES is 1 but {} is absent", file.display()));
    }
    Ok(())
}
