//! What is counted of processes: by the emulator, and by the kernel.

use super::emulator::Emulator;

/// What was asked of the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) reads: u64,
    pub(crate) versions: u64,
    pub(crate) commits: u64,
}

impl Asked {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            versions: self.versions - before.versions,
            commits: self.commits - before.commits,
        }
    }

    pub(crate) fn all(self) -> u64 {
        self.reads + self.versions + self.commits
    }
}

impl Emulator {
    /// How often something has happened.
    pub(crate) fn count(&mut self, name: &str) -> u64 {
        let report = self.tell("report");
        let mut lines = report.lines().filter_map(|line| line.split_once(' '));
        let (_, count) = lines.find(|(of, _)| *of == name).expect(name);
        count.parse().unwrap()
    }

    pub(crate) fn asked(&mut self) -> Asked {
        Asked {
            reads: self.count("reads"),
            versions: self.count("versions"),
            commits: self.count("commits"),
        }
    }
}

/// Resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

/// Open files of a process.
pub(crate) fn open_files(pid: u32) -> u64 {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    u64::try_from(files.count()).unwrap()
}

/// Threads of a process.
pub(crate) fn threads(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    u64::try_from(threads.count()).unwrap()
}

/// Processor time that a process has used, in microseconds, by ticks of 10 ms.
pub(crate) fn processor_us(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name, in parentheses, may contain anything; user and system time are fields 14 and 15.
    let after_name = text.rsplit(')').next().unwrap();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks
        .map(|field| field.parse::<u64>().unwrap() * 10_000)
        .sum()
}

/// A number of an environment variable.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name);
    given.map_or(default, |text| text.parse().expect(name))
}
