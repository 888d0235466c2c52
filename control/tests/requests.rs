//! What is counted and told of NFS calls.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs::{self, File};
    use std::io::{BufRead, BufReader};
    use std::net::SocketAddr;
    use std::path::Path;
    use std::process::Stdio;

    use nfs3_types::nfs3::{nfs_fh3, nfsstat3};
    use nfs3_types::xdr_codec::Opaque;
    use serde_json::Value;

    use crate::support::files::Mount;
    use crate::support::{ANY_PORTS, Server, holdfast};

    /// A server that writes a line of JSON for each call.
    fn start(dir: &Path, log: &Path) -> Server {
        let filter = "info,nfs_gateway::call=debug";
        let mut child = holdfast()
            .args(["--json", "up", "--data-dir"])
            .arg(dir)
            .args(ANY_PORTS)
            .args(["--log", filter, "--log-format", "json"])
            .stdout(Stdio::piped())
            .stderr(File::create(log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready = serde_json::from_str(&line).unwrap();
        Server { child, ready }
    }

    /// All numbers of `/metrics`, by name and labels.
    fn metrics(server: &Server) -> HashMap<String, f64> {
        let (status, text) = server.call("GET", "/metrics", None, b"");
        assert_eq!(status, 200);
        let lines = text.as_str().unwrap().lines();
        lines
            .filter(|line| !line.starts_with('#'))
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').unwrap();
                (name.to_owned(), value.parse().unwrap())
            })
            .collect()
    }

    fn requests(procedure: &str, outcome: &str) -> String {
        format!("holdfast_nfs_requests_total{{procedure=\"{procedure}\",outcome=\"{outcome}\"}}")
    }

    /// The histogram of each procedure has as many calls as its outcomes.
    fn assert_histograms_fit(metrics: &HashMap<String, f64>) {
        let procedures = metrics.keys().filter_map(|name| {
            let name = name.strip_prefix("holdfast_nfs_request_seconds_count{procedure=\"")?;
            name.strip_suffix("\"}")
        });
        let mut called = 0;
        for procedure in procedures {
            let of = format!("holdfast_nfs_requests_total{{procedure=\"{procedure}\",");
            let outcomes = metrics.iter().filter(|(name, _)| name.starts_with(&of));
            let outcomes: f64 = outcomes.map(|(_, count)| count).sum();
            let name = "holdfast_nfs_request_seconds";
            let count = metrics[&format!("{name}_count{{procedure=\"{procedure}\"}}")];
            let last = format!("{name}_bucket{{procedure=\"{procedure}\",le=\"+Inf\"}}");
            assert!((count - outcomes).abs() < 0.5, "{procedure}");
            assert!((count - metrics[&last]).abs() < 0.5, "{procedure}");
            assert!(metrics[&format!("{name}_sum{{procedure=\"{procedure}\"}}")] >= 0.0);
            called += 1;
        }
        assert!(called >= 5, "{metrics:?}");
    }

    /// Calls with each kind of outcome; how many.
    async fn ask(server: &Server) {
        let mut mount = Mount::of(server, &server.ready).await;
        mount.write_durably("file", b"content").await;
        assert_eq!(mount.read("file").await.unwrap(), b"content");
        for _ in 0..3 {
            assert!(mount.find("missing").await.is_none());
        }
        let forged = nfs_fh3 {
            data: Opaque::owned(vec![7; 40]),
        };
        let stale = mount.attributes(&forged).await;
        assert_eq!(stale.err(), Some(nfsstat3::NFS3ERR_STALE));
    }

    fn assert_lines(server: &Server, lines: &[Value]) {
        let fields = |line: &Value| line["fields"].clone();
        let is = |line: &&Value, procedure: &str, outcome: &str| {
            fields(line)["procedure"] == procedure && fields(line)["outcome"] == outcome
        };
        let missing: Vec<_> = lines
            .iter()
            .filter(|line| is(line, "lookup", "noent"))
            .collect();
        assert_eq!(missing.len(), 3, "{lines:?}");
        for line in missing {
            let fields = fields(line);
            assert_eq!(fields["session"].as_str(), server.ready["session"].as_str());
            assert_eq!(fields["passed_on"], false);
            assert!(
                fields["xid"].is_u64() && fields["micros"].is_u64(),
                "{line}"
            );
            let peer: SocketAddr = fields["peer"].as_str().unwrap().parse().unwrap();
            assert!(peer.ip().is_loopback());
        }
        let mounted = lines.iter().find(|line| is(line, "mount_mnt", "ok"));
        let mounted = fields(mounted.unwrap());
        assert_eq!(
            mounted["session"].as_str(),
            server.ready["session"].as_str()
        );
        let stale = lines.iter().find(|line| is(line, "getattr", "stale"));
        assert_eq!(fields(stale.unwrap())["session"], Value::Null);
    }

    #[tokio::test]
    async fn calls_are_counted_by_outcome_and_each_is_a_line_of_json() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("log");
        let server = start(&root.path().join("data"), &log);
        let before = metrics(&server);
        assert!(before[&requests("read", "ok")].abs() < 0.5);
        assert!(!before.contains_key(&requests("lookup", "noent")));
        ask(&server).await;
        let after = metrics(&server);
        for (procedure, outcome, count) in [
            ("lookup", "noent", 3.0),
            ("getattr", "stale", 1.0),
            ("mount_mnt", "ok", 1.0),
            ("commit", "hung_up", 0.0),
        ] {
            let found = after.get(&requests(procedure, outcome));
            let found = found.copied().unwrap_or(0.0);
            assert!(
                (found - count).abs() < 0.5,
                "{procedure} {outcome}: {found}"
            );
        }
        assert!(after[&requests("write", "ok")] > 0.5);
        assert_histograms_fit(&after);
        let number = |name: &str| after[name];
        let flushes = number("holdfast_gateway_flush_seconds_count");
        assert!((flushes - number("holdfast_gateway_flushes_total")).abs() < 0.5);
        assert!(flushes > 0.5);
        assert!(number("holdfast_gateway_takeover_seconds_count") > 0.5);
        let calls = after.iter();
        let calls = calls.filter(|(name, _)| name.starts_with("holdfast_nfs_requests_total"));
        let calls: f64 = calls.map(|(_, count)| count).sum();
        // What is told goes to the log before the reply is sent.
        let text = fs::read_to_string(&log).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .filter(|line: &Value| line["target"] == "nfs_gateway::call")
            .collect();
        let told = f64::from(u32::try_from(lines.len()).unwrap());
        assert!((told - calls).abs() < 0.5, "{told} lines, {calls} calls");
        assert_lines(&server, &lines);
    }
}
