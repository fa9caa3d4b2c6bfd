//! Gives the library the name under which programs ask for the runtime, and its symbols the version of
//! that name, which linked programs ask for.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.13");
    // Of the linkers only GNU's makes the library's name a version while rustc names the exported symbols.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
}
