//! The tests' C programs: compiled by the system's compiler and linked with the software driver or the
//! runtime on top of it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the programs of `tests/programs`; they last as long as it does.
pub struct Compiler {
    directory: tempfile::TempDir,
    libraries: PathBuf,
}

impl Compiler {
    /// With the driver in `libraries`.
    pub fn with(libraries: PathBuf) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), libraries }
    }

    /// The executable made of `tests/programs/NAME.c`.
    pub fn compile(&self, name: &str) -> PathBuf {
        self.make(name, name, &["-lcuda", "-ldl"])
    }

    /// The executable made of `tests/programs/NAME.c`, a program of the runtime.
    pub fn compile_for_runtime(&self, name: &str) -> PathBuf {
        self.make(name, name, &["-lcudart", "-ldl"])
    }

    /// The module image made of `tests/programs/NAME.c`: a library with kernels.
    pub fn compile_kernels(&self, name: &str) -> PathBuf {
        self.make(name, name, &["-shared", "-fPIC"])
    }

    /// A library made of `tests/programs/NAME.c`, linked with the driver: what is for programs is left out.
    pub fn compile_plugin(&self, name: &str) -> PathBuf {
        self.make(name, &format!("lib{name}.so"), &["-DPLUGIN", "-shared", "-fPIC", "-lcuda"])
    }

    /// A library in a file `made`, of that name, made of `tests/programs/NAME.c`.
    pub fn compile_library(&self, name: &str, made: &str) -> PathBuf {
        self.make(name, made, &["-shared", "-fPIC", &format!("-Wl,-soname,{made}")])
    }

    /// The executable made of `tests/programs/NAME.c`, linked with a library beside it.
    pub fn compile_linked_with(&self, name: &str, library: &Path) -> PathBuf {
        let library = library.to_str().unwrap();
        self.make(
            name,
            &format!("{name}_linked"),
            &["-DLINKED", library, "-Wl,-rpath,$ORIGIN", "-lcuda", "-ldl"],
        )
    }

    fn make(&self, name: &str, made: &str, options: &[&str]) -> PathBuf {
        let source = program(&format!("{name}.c"));
        let made = self.directory.path().join(made);
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror", "-o"]);
        cc.arg(&made).arg(&source).arg("-L").arg(&self.libraries).args(options);
        let status = cc.status().expect("cc, which Rust links with, is missing");
        assert!(status.success(), "{cc:?}");
        made
    }
}

/// A file of `tests/programs`.
pub fn program(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(file)
}
