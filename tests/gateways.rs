//! The tier of several gateways as processes: three on one cluster and one S3 server, behind HAProxy, under the Linux kernel's
//! client, killed, frozen, cut off, drained and started again one after the other. `tests/fdb/gateways` has the
//! long forms. The simulation of the same is the tier `fleet`.

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    /// Longest time that a gateway stands still, in seconds: several leases.
    const FREEZE: &str = "10";

    /// Runs a workload, which says at its end that all is well.
    fn passes(workload: &str, args: &[&str]) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let output = Command::new(root.join("tests/fdb/gateways"))
            .args(args)
            .env("FREEZE", FREEZE)
            .env("WORKLOAD", workload)
            .output()
            .unwrap();
        let (out, error) = (&output.stdout, &output.stderr);
        let said = [out, error].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(output.status.success(), "{}\n{}", said[0], said[1]);
        let name = workload.split(' ').next().unwrap();
        let ok = format!("{name}: ok");
        assert!(said[0].contains(&ok), "{}\n{}", said[0], said[1]);
        println!("{}\n{}", said[0], said[1]);
    }

    /// One after the other: each takes the machine for itself.
    #[test]
    fn what_befalls_gateways_is_no_error() {
        // Each kind once.
        let kinds = "kill,freeze,drain,cut,roll";
        let connections = ["--more-opts", "nconnect=4"];
        passes(
            "chaos 2 4 1",
            &[&["6", kinds, "1"][..], &connections].concat(),
        );
        // fsx, git, SQLite and appending processes.
        let kinds = "kill,freeze";
        passes("mixed 1", &[&["2", kinds, "2"][..], &connections].concat());
        // Two clients of one session, through different gateways.
        passes("shared 10", &["2", "kill,drain"]);
    }
}
