//! The binary: everything is in the library.

/// A gateway allocates a little for every request; this one does it in half the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    rlctl::cmd::main(std::env::args_os())
}
