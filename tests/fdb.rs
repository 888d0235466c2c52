//! The FoundationDB tier: the client crate over the emulator, or over the real cluster that
//! `HOLDFAST_FDB_CLUSTER_FILE` names. `tests/fdb/run` builds the emulator, and then the tests that link
//! it, in that order, which Cargo by itself would not keep. It needs libclang (`tests/fdb/install`).

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn client_crate() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let output = Command::new(root.join("tests/fdb/run")).output().unwrap();
        let (out, error) = (&output.stdout, &output.stderr);
        let said = [out, error].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(output.status.success(), "{}\n{}", said[0], said[1]);
        assert!(
            said[0].contains("test tests::cluster ... ok"),
            "{}",
            said[0]
        );
    }
}
