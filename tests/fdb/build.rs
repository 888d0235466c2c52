//! Says where `libfdb_c` is: the emulator's beside the tests, or the system's for a real cluster.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=HOLDFAST_FDB_CLUSTER_FILE");
    println!("cargo:rerun-if-env-changed=FDB_CLIENT_LIB_PATH");
    if std::env::var_os("CARGO_FEATURE_FDB").is_none() {
        return;
    }
    if std::env::var_os("HOLDFAST_FDB_CLUSTER_FILE").is_some() {
        if let Ok(path) = std::env::var("FDB_CLIENT_LIB_PATH") {
            link(&path);
        }
        return;
    }
    // target/PROFILE/build/PACKAGE/out
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    if let Some(profile) = Path::new(&out).ancestors().nth(3) {
        link(&profile.display().to_string());
    }
}

fn link(directory: &str) {
    println!("cargo:rustc-link-search=native={directory}");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{directory}");
}
