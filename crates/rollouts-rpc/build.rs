//! Generates the gRPC services from `proto` if feature `grpc` is on, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    #[cfg(feature = "grpc")]
    generate()?;
    Ok(())
}

#[cfg(feature = "grpc")]
fn generate() -> Result<(), Box<dyn std::error::Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(["plugin.proto", "rollouts/plugin/v1/traffic_router.proto"])?;
    let out_dir = std::env::var("OUT_DIR")?;
    std::fs::write(
        format!("{out_dir}/services.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
