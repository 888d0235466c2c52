//! House rules that a machine can check: crate edges, file sizes, tables in the docs, names of
//! machines.

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// Lines of a source file without its tests.
    const LINES_MAX: usize = 800;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap()
            .to_owned()
    }

    fn read(path: &str) -> String {
        std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Files that git tracks.
    fn tracked() -> Vec<String> {
        let output = Command::new("git")
            .arg("ls-files")
            .current_dir(root())
            .output()
            .unwrap();
        let files: Vec<String> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
        assert!(files.len() > 50, "git lists no files here");
        files
    }

    #[test]
    fn crates_depend_one_way() {
        let allowed: [(&str, &[&str]); 10] = [
            ("base", &[]),
            ("chunkstore", &["base"]),
            ("metadata", &["base"]),
            ("nfs-gateway", &["base", "chunkstore", "metadata"]),
            ("fdb-emulator", &["base", "metadata"]),
            ("fdb-tests", &["base", "control", "metadata"]),
            ("s3-tests", &["base", "chunkstore", "control"]),
            (
                "control",
                &["base", "chunkstore", "metadata", "nfs-gateway"],
            ),
            (
                "system-tests",
                &["base", "chunkstore", "control", "metadata", "nfs-gateway"],
            ),
            (
                "bench-suite",
                &["base", "chunkstore", "control", "metadata", "nfs-gateway"],
            ),
        ];
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--format-version",
                "1",
                "--no-deps",
                "--offline",
            ])
            .current_dir(root())
            .output()
            .unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let ours: BTreeSet<&str> = allowed.iter().map(|(name, _)| *name).collect();
        assert_eq!(packages.len(), ours.len(), "a crate is not in the table");
        for package in packages {
            let name = package["name"].as_str().unwrap();
            let (_, edges) = allowed.iter().find(|(known, _)| *known == name).unwrap();
            for dependency in package["dependencies"].as_array().unwrap() {
                let to = dependency["name"].as_str().unwrap();
                let is_edge = ours.contains(to) && to != name;
                assert!(
                    !is_edge || edges.contains(&to),
                    "{name} must not depend on {to}"
                );
            }
        }
    }

    #[test]
    fn source_files_are_short() {
        let long: Vec<String> = tracked()
            .into_iter()
            .filter(|file| file.ends_with(".rs"))
            .filter_map(|file| {
                let text = read(&file);
                let code = text
                    .split("#[cfg(test)]\nmod tests {")
                    .next()
                    .unwrap_or_default();
                let lines = code.lines().count();
                (lines > LINES_MAX).then(|| format!("{file}: {lines} lines"))
            })
            .collect();
        assert!(long.is_empty(), "over {LINES_MAX} lines: {long:#?}");
    }

    /// The module doc of a source file, without comment marks.
    fn module_doc(text: &str) -> String {
        text.lines()
            .filter_map(|line| line.strip_prefix("//!"))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// The rows of the tables in a text.
    fn rows(text: &str) -> Vec<String> {
        text.lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| line.starts_with('|'))
            .collect()
    }

    #[test]
    fn the_keyspace_is_documented_as_it_is() {
        assert_eq!(
            rows(&read("docs/keyspace.md")),
            rows(&module_doc(&read("metadata/src/keyspace.rs")))
        );
    }

    #[test]
    fn nothing_names_a_machine() {
        // Written apart, so that this file does not name them either.
        let forbidden = [
            ["/wo", "rk/"].concat(),
            ["/ro", "ot/."].concat(),
            ["artif", "actory"].concat(),
        ];
        for file in tracked() {
            let Ok(text) = std::fs::read_to_string(root().join(&file)) else {
                continue;
            };
            for word in &forbidden {
                assert!(!text.contains(word.as_str()), "{file} contains {word}");
            }
        }
    }

    #[test]
    fn links_between_documents_lead_somewhere() {
        for file in tracked().into_iter().filter(|file| file.ends_with(".md")) {
            let text = read(&file);
            let directory = Path::new(&file).parent().unwrap().to_owned();
            for part in text.split("](").skip(1) {
                let target = part.split(')').next().unwrap().split('#').next().unwrap();
                if target.is_empty() || target.contains("://") {
                    continue;
                }
                let path = root().join(&directory).join(target);
                assert!(path.exists(), "{file}: {target} does not exist");
            }
        }
    }
}
