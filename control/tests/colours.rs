//! Colours: on terminals, or where somebody wants them, and nowhere else.
#![allow(missing_docs)]

mod support;

#[cfg(test)]
mod tests {

    use std::path::Path;
    use std::process::Command;

    use crate::support::files::mounted;
    use crate::support::{Server, holdfast, publish};

    const ESCAPE: char = '\u{1b}';

    /// What a command prints on both outputs, with variables set.
    fn said(args: &[&str], dir: &Path, set: &[&str]) -> String {
        let mut command = holdfast();
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        for name in set {
            command.env(name, "1");
        }
        let output = command.args(args).arg("--data-dir").arg(dir).output();
        let output = output.unwrap();
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8(both).unwrap()
    }

    /// What a command prints on a terminal.
    fn said_on_terminal(args: &[&str], dir: &Path, set: &[&str]) -> String {
        let holdfast = holdfast().get_program().to_str().unwrap().to_owned();
        let dir = dir.to_str().unwrap();
        let line = format!("{holdfast} {} --data-dir {dir}", args.join(" "));
        let mut script = Command::new("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        for name in set {
            script.env(name, "1");
        }
        String::from_utf8(script.output().unwrap().stdout).unwrap()
    }

    /// Text without colours.
    fn plain(text: &str) -> String {
        let mut parts = text.split(ESCAPE);
        let first = parts.next().unwrap_or_default().to_owned();
        let rest = parts.map(|part| part.split_once('m').unwrap().1);
        rest.fold(first, |all, part| all + part)
    }

    #[tokio::test]
    async fn terminals_get_colours_and_programs_get_none() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let server = Server::start("up", dir);
        let (session, mut files) = mounted(&server, dir, &[]).await;
        files.write("file", b"one\ntwo\n").await;
        publish(dir, &session, &["-m", "first"]);
        files.write("file", b"one\n2\x1b[31m\n").await;
        publish(dir, &session, &["-m", "second"]);
        let (patch, log, wrong) = (
            ["diff", "-p", "main~", "main"],
            ["log", "main"],
            ["show", "none"],
        );
        // A file's own control characters are in a patch that a program reads, and in no colours.
        let uncoloured = said(&patch, dir, &[]);
        assert_eq!(uncoloured.matches(ESCAPE).count(), 1, "{uncoloured:?}");
        let coloured = said(&patch, dir, &["CLICOLOR_FORCE"]);
        assert!(
            coloured.contains("\u{1b}[32m+2\\u{1b}[31m\u{1b}[0m"),
            "{coloured:?}"
        );
        assert!(coloured.contains("\u{1b}[31m-two"), "{coloured:?}");
        for args in [&log[..], &wrong] {
            let uncoloured = said(args, dir, &[]);
            assert!(!uncoloured.contains(ESCAPE), "{uncoloured:?}");
            let coloured = said(args, dir, &["CLICOLOR_FORCE"]);
            assert!(coloured.contains(ESCAPE), "{coloured:?}");
            assert_eq!(plain(&coloured), uncoloured);
            let json = [args, &["--json"]].concat();
            let json = said(&json, dir, &["CLICOLOR_FORCE"]);
            assert!(!json.contains(ESCAPE), "{json:?}");
        }
        for args in [&patch[..], &log, &wrong] {
            let coloured = said_on_terminal(args, dir, &[]);
            assert!(coloured.contains("\u{1b}["), "{coloured:?}");
            let uncoloured = said_on_terminal(args, dir, &["NO_COLOR"]);
            assert!(!uncoloured.contains("\u{1b}["), "{uncoloured:?}");
        }
        drop(server);
    }
}
