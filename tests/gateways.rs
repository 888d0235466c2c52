//! The tier of several gateways as processes: three on one cluster, behind HAProxy, under the Linux kernel's
//! client, killed, frozen, cut off, drained and started again one after the other. `tests/fdb/gateways` has the
//! long forms. The simulation of the same is the tier `fleet`.

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    /// Each kind once, and kills in between.
    const ROUNDS: &str = "7";

    /// Longest time that a gateway stands still, in seconds: several leases.
    const FREEZE: &str = "10";

    #[test]
    fn what_befalls_gateways_is_no_error() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let kinds = "kill,freeze,drain,cut,roll";
        let output = Command::new(root.join("tests/fdb/gateways"))
            .args([ROUNDS, kinds, "1", "--more-opts", "nconnect=4"])
            .env("FREEZE", FREEZE)
            .output()
            .unwrap();
        let (out, error) = (&output.stdout, &output.stderr);
        let said = [out, error].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(output.status.success(), "{}\n{}", said[0], said[1]);
        assert!(said[0].contains("chaos: ok"), "{}\n{}", said[0], said[1]);
        println!("{}\n{}", said[0], said[1]);
    }
}
