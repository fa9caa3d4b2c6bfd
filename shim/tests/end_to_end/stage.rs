//! Puts every promise into a process of its own, on a software node of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// No promise takes longer, on the slowest machine, or it hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// Nothing in a promise takes longer.
pub const STEP_PATIENCE: Duration = Duration::from_secs(60);
/// Memory of the GPU.
pub const MEMORY: u64 = 16 << 20;
/// A unit, which is also the GPU's granularity.
pub const UNIT: u64 = 64 << 10;

/// Declares a promise: a test whose body runs in a process of its own.
macro_rules! promise {
    ($(#[$meta:meta])* fn $name:ident() $body:block) => {
        $(#[$meta])*
        #[test]
        fn $name() {
            fn body() $body
            $crate::stage::keep(concat!(module_path!(), "::", stringify!($name)), body);
        }
    };
}

/// The body of a promise if this is its process, else the process.
pub fn keep(path: &str, body: fn()) {
    let name = path.split_once("::").expect("a promise lies in a module").1;
    if std::env::var_os("SHIM_STAGE").is_some() {
        return body();
    }
    let node = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let gpu = format!(
        "[[gpu]]\nuuid = \"GPU-00000000-0000-0000-0000-000000000001\"\nmemory = {MEMORY}\ngranularity = {UNIT}\n"
    );
    std::fs::write(node.path().join("gpus.toml"), gpu).unwrap();
    let mut stage = this_program(name);
    stage.env("SHIM_STAGE", libraries()).env("TIDEGATE_SOFTGPU", node.path());
    stage.env("LD_LIBRARY_PATH", libraries());
    for variable in ["CUDA_VISIBLE_DEVICES", "TIDEGATE_JOB", "TIDEGATE_LOG", "TIDEGATE_SOCKET"] {
        stage.env_remove(variable);
    }
    let output = finish(stage.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert!(output.0, "{name} is not kept, or not within {PATIENCE:?}:\n{}", output.1);
}

/// This test program, running one test.
pub fn this_program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"]);
    command
}

/// Waits for a process, not for ever: whether it succeeded, and its output.
pub fn finish(mut child: Child) -> (bool, String) {
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    // Already ended, or too late.
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let words = [output.stdout, b"\n".to_vec(), output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&words).into_owned())
}

/// The directory with libtidegate.so and the software driver under its own names.
fn libraries() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(build_libraries).clone()
}

fn build_libraries() -> PathBuf {
    let profile = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--lib", "-p", "tidegate-shim", "-p", "tidegate-softgpu-cuda"]);
        build.env("CARGO_TARGET_DIR", profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the libraries do not build");
    }
    let directory = profile.join("shim-tests");
    std::fs::create_dir_all(&directory).unwrap();
    link(&profile.join("libsoftgpu_cuda.so"), &directory.join("libcuda.so.1"));
    link(&profile.join("libsoftgpu_cuda.so"), &directory.join("libcuda.so"));
    link(&profile.join("libtidegate.so"), &directory.join("libtidegate.so"));
    directory
}

/// Links in one step: other test processes may do the same.
fn link(target: &Path, name: &Path) {
    let fresh = name.with_extension(format!("{}", std::process::id()));
    // Left over by an earlier process of that number, or not there.
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(target, &fresh).unwrap();
    std::fs::rename(&fresh, name).unwrap();
}

/// libtidegate.so, inside a promise's process.
pub fn shim() -> PathBuf {
    PathBuf::from(std::env::var_os("SHIM_STAGE").unwrap()).join("libtidegate.so")
}
