//! With the feature `cuda`, compiles the kernels to PTX for the compute capability `CUDA_COMPUTE_CAP`, like
//! candle's own.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");
    #[cfg(feature = "cuda")]
    cudaforge::KernelBuilder::new()
        .source_dir("kernels")
        .watch(["kernels/elements.cuh"])
        .arg("-std=c++17")
        .arg("-O3")
        .build_ptx()?;
    Ok(())
}
