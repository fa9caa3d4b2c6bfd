//! The command `tidegate`.

fn main() -> std::process::ExitCode {
    tidegate_manager::command::main()
}
