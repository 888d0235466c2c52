//! The `holdfast` command.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(control::run(std::env::args_os()))
}
