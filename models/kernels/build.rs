//! Sets `cfg(amx)` if this machine has AMX tiles. Elsewhere, tests that need real tiles are `ignored`.

pub(crate) fn main() {
    println!("cargo:rustc-check-cfg=cfg(amx)");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return;
    }
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags: Vec<&str> =
        cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or("").split(' ').collect();
    if ["amx_tile", "amx_int8", "amx_bf16"].iter().all(|flag| flags.contains(flag)) {
        println!("cargo:rustc-cfg=amx");
    }
}
