//! Turns `proto/` into Rust, without protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(["rlctl/v1/rate_limiter.proto", "envoy/service/ratelimit/v3/rls.proto"])?;
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    // For reflection.
    let descriptors = compiler.encode_file_descriptor_set();
    std::fs::write(Path::new(&out).join("descriptors.bin"), descriptors)?;
    tonic_prost_build::configure()
        // Clients bring a channel of their own.
        .build_transport(false)
        .include_file("messages.rs")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
