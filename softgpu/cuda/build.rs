//! Gives the library the name under which programs ask for the driver.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // What the driver calls of itself stays its own, even where a preloaded library exports the
    // same names.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
