//! The binary: everything is in the library.

fn main() -> std::process::ExitCode {
    rlctl::cmd::main(std::env::args_os())
}
