//! With the feature `cuda`, compiles the kernels: to machine code for the GPUs that candle's kernels run on,
//! and to PTX, which drivers compile for any other GPU.

#[cfg(feature = "cuda")]
mod kernels {
    use std::error::Error;
    use std::path::PathBuf;
    use std::process::Command;

    use cudaforge::{CudaToolkit, detect_compute_cap};

    const SOURCES: [&str; 4] = ["attention", "layer", "logits", "prompt"];
    /// Ampere, Ada, Hopper, and both Blackwells. Code for one of them also runs on later GPUs of the same
    /// major version.
    const GENERATIONS: [usize; 5] = [80, 89, 90, 100, 120];

    /// Writes `NAME.fatbin` for each source, which contains the code of all generations, and the version of
    /// the compiler.
    pub(crate) fn compile() -> Result<(), Box<dyn Error>> {
        for variable in ["CUDA_COMPUTE_CAP", "NVCC", "NVCC_CCBIN"] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        let toolkit = CudaToolkit::detect()?;
        let version = toolkit.version.as_deref().ok_or("nvcc does not report its version")?;
        println!("cargo::rustc-env=NTL_NVCC_VERSION={version}");
        let capability = detect_compute_cap()?.base();
        let generations = generations(capability, &toolkit.supported_architectures());
        let names: Vec<String> = generations.iter().map(usize::to_string).collect();
        println!("cargo::rustc-env=NTL_CUDA_GENERATIONS={}", names.join(" "));
        let arguments = targets(&generations, capability.min(80));
        let out = PathBuf::from(std::env::var("OUT_DIR")?);
        let mut running = Vec::new();
        for name in SOURCES {
            let mut nvcc = Command::new(&toolkit.nvcc_path);
            // Without compression, tests can read the PTX.
            nvcc.args(["-fatbin", "-std=c++17", "-O3", "-no-compress", "--threads", "0"]).args(&arguments);
            if let Ok(compiler) = std::env::var("NVCC_CCBIN") {
                nvcc.args(["-allow-unsupported-compiler", "-ccbin", &compiler]);
            }
            nvcc.arg(format!("kernels/{name}.cu")).arg("-o").arg(out.join(format!("{name}.fatbin")));
            running.push((name, nvcc.spawn()?));
        }
        for (name, mut nvcc) in running {
            if !nvcc.wait()?.success() {
                return Err(format!("nvcc could not compile kernels/{name}.cu").into());
            }
        }
        Ok(())
    }

    /// Returns the generations on which candle's kernels run. These are PTX for `capability`: up to 89 for
    /// all later GPUs, from 90 on for this generation only.
    fn generations(capability: usize, supported: &[usize]) -> Vec<usize> {
        let major = capability / 10;
        let mut generations = Vec::new();
        for generation in GENERATIONS {
            let has_candle =
                if capability < 90 { generation / 10 >= major } else { generation / 10 == major };
            if has_candle && supported.contains(&generation) {
                generations.push(generation);
            }
        }
        generations
    }

    /// Returns nvcc's arguments for machine code, and for the PTX of one more generation.
    fn targets(generations: &[usize], ptx: usize) -> Vec<String> {
        let machine_code = generations.iter().map(|code| format!("arch=compute_{code},code=sm_{code}"));
        let targets = machine_code.chain([format!("arch=compute_{ptx},code=compute_{ptx}")]);
        targets.flat_map(|target| ["-gencode".to_owned(), target]).collect()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");
    #[cfg(feature = "cuda")]
    kernels::compile()?;
    Ok(())
}
