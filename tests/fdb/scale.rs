//! What gateways cost: by the number of gateways, of sessions and of connections. Each figure that is asserted is a
//! count; memory and processor time are printed. `tests/fdb/scale` has the long forms.
//!
//! `HOLDFAST_SCALE` is a part: `sessions`, `gateways`; without it both run, in short forms. The gateways are
//! this test's program, started anew in that role.

#[cfg(test)]
#[expect(dead_code, reason = "shared with another test, which uses the rest")]
mod asking;
#[cfg(test)]
mod counts;
#[cfg(test)]
mod emulator;
#[cfg(test)]
#[expect(dead_code, reason = "shared with other tests, which use the rest")]
mod holdfast;

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use base::{Clock, SystemClock};
    use nfs3_types::nfs3::{
        CREATE3args, CREATE3res, GETATTR3args, GETATTR3res, Nfs3Option, Nfs3Result, WRITE3args,
        WRITE3res, createhow3, nfs_fh3, sattr3, stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use rustix::process::{Resource, getrlimit, setrlimit};
    use serde_json::Value;

    use super::asking::{Asking, Places};
    use super::counts::{Asked, number, open_files, processor_us, resident, threads};
    use super::emulator::Emulator;
    use super::holdfast::{Server, name, runtime_unless_holdfast};

    const GETATTR: u32 = 1;
    const WRITE: u32 = 7;
    const CREATE: u32 = 8;

    /// Time for gateways to put away what they needed for opening.
    const SETTLE: Duration = Duration::from_secs(3);

    /// Most calls of the store that an idle gateway makes in a second.
    const RENEWING: f64 = 20.0;

    /// Bytes of the file that each session has.
    const FILE_BYTES: usize = 512;

    /// Numbers of an environment variable, separated by commas.
    fn numbers(name: &str, default: &str) -> Vec<usize> {
        let given = std::env::var(name);
        let text = given.as_deref().unwrap_or(default);
        text.split(',')
            .map(|one| one.parse().expect(name))
            .collect()
    }

    fn ms(time: Duration, count: usize) -> f64 {
        time.as_secs_f64() * 1e3 / f64::from(u32::try_from(count.max(1)).unwrap())
    }

    fn float(number: u64) -> f64 {
        f64::from(u32::try_from(number).unwrap())
    }

    /// Gateways on one store, each a process.
    struct Fleet {
        emulator: Emulator,
        servers: Vec<Server>,
        /// The one gateway of each, as there is no other to ask.
        places: Vec<Places>,
        clock: SystemClock,
    }

    impl Fleet {
        fn start(root: &Path, gateways: usize) -> Self {
            let emulator = Emulator::start(7, "none");
            let place = format!("fdb:{}", emulator.file().display());
            let start = |at: usize| {
                let dir = root.join(format!("gateways-{gateways}-{at}"));
                let more = ["--chunks", "kv", "--session-idle", "1h"];
                Server::start(if at == 0 { "up" } else { "serve" }, &dir, &place, &more)
            };
            let servers: Vec<Server> = (0..gateways).map(start).collect();
            let address = |server: &Server| server.text("nfs_address").parse().unwrap();
            let place = |server| Places::new(vec![address(server)]);
            let places = servers.iter().map(place).collect();
            Self {
                emulator,
                servers,
                places,
                clock: SystemClock::new(),
            }
        }

        fn rest(&self, time: Duration) {
            let until = self.clock.monotonic() + time;
            while self.clock.monotonic() < until {
                std::thread::park_timeout(until.saturating_sub(self.clock.monotonic()));
            }
        }

        /// What was asked of the store in some time in which nobody asks for anything.
        fn idle(&mut self, time: Duration) -> Asked {
            self.rest(SETTLE);
            let before = self.emulator.asked();
            self.rest(time);
            self.emulator.asked().since(before)
        }

        fn of_all(&self, count: fn(u32) -> u64) -> Vec<u64> {
            let pids = self.servers.iter().map(Server::pid);
            pids.map(count).collect()
        }

        fn metric(&self, name: &str) -> f64 {
            self.servers.iter().map(|it| it.metric(name)).sum()
        }
    }

    fn create(asking: &mut Asking, root: &nfs_fh3) -> nfs_fh3 {
        let args = CREATE3args {
            where_: name(root, "file"),
            how: createhow3::UNCHECKED(sattr3::default()),
        };
        let made: CREATE3res = asking.nfs(CREATE, &args);
        match made {
            Nfs3Result::Ok(made) => match made.obj {
                Nfs3Option::Some(file) => file,
                Nfs3Option::None => panic!("no handle"),
            },
            Nfs3Result::Err((status, _)) => panic!("{status:?}"),
        }
    }

    /// Makes a file in a session, with content that is stored.
    fn use_it(asking: &mut Asking, path: &str, number: usize) {
        let root = asking.mount(path);
        let file = create(asking, &root);
        let mut data = vec![7; FILE_BYTES];
        data[..8].copy_from_slice(&u64::try_from(number).unwrap().to_be_bytes());
        let args = WRITE3args {
            file,
            offset: 0,
            count: u32::try_from(FILE_BYTES).unwrap(),
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(&data),
        };
        let written: WRITE3res = asking.nfs(WRITE, &args);
        assert!(matches!(written, Nfs3Result::Ok(_)));
    }

    /// Lets this process have as many connections as are opened here.
    fn raise_open_files() {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
    }

    /// One row of the table of sessions and connections.
    struct Row {
        files: Vec<u64>,
        asked: Asked,
        resident: u64,
    }

    fn row(fleet: &mut Fleet, watched: Duration, what: &str) -> Row {
        let asked = fleet.idle(watched);
        let (memory, files) = (fleet.of_all(resident), fleet.of_all(open_files));
        let mib: Vec<u64> = memory.iter().map(|bytes| bytes >> 20).collect();
        let threads = fleet.of_all(threads);
        println!(
            "| {what} | {mib:?} MiB | {files:?} | {threads:?} | {} | {} | {} |",
            asked.reads, asked.versions, asked.commits
        );
        Row {
            files,
            asked,
            resident: memory.iter().sum(),
        }
    }

    /// Sessions that are open, and connections, of which nobody asks for anything.
    fn sessions(root: &Path) {
        raise_open_files();
        let targets = numbers("HOLDFAST_SCALE_SESSIONS", "50,400");
        let connections = numbers("HOLDFAST_SCALE_CONNECTIONS", "200")[0];
        let watched = Duration::from_secs(number("HOLDFAST_SCALE_SECONDS", 2));
        let mut fleet = Fleet::start(root, 2);
        let mut askings: Vec<Asking> = fleet.places.iter().map(|it| Asking::new(it, 0)).collect();
        println!(
            "| | resident | open files | threads | reads in {watched:?} | versions | commits |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        let mut rows = vec![row(&mut fleet, watched, "nothing")];
        let mut paths: Vec<String> = Vec::new();
        let mut told = Vec::new();
        for target in targets {
            let before = paths.len();
            let (mut opening, mut using) = (Duration::ZERO, Duration::ZERO);
            while paths.len() < target {
                let at = paths.len() % 2;
                let began = fleet.clock.monotonic();
                let path = fleet.servers[at].open();
                let opened = fleet.clock.monotonic();
                use_it(&mut askings[at], &path, paths.len());
                paths.push(path);
                opening += opened - began;
                using += fleet.clock.monotonic() - opened;
            }
            let row = row(&mut fleet, watched, &format!("{target} sessions"));
            let more = target - before;
            let grown = row.resident.saturating_sub(rows.last().unwrap().resident);
            told.push(format!(
                "{more} more sessions: {:.1} KiB each, opened in {:.2} ms, mounted, with a file made and written \
                 in {:.2} ms",
                float(grown >> 10) / float(u64::try_from(more).unwrap()),
                ms(opening, more),
                ms(using, more)
            ));
            rows.push(row);
        }
        let in_memory = fleet.metric("holdfast_gateway_sessions");
        assert!(in_memory >= float(u64::try_from(paths.len()).unwrap()));
        let sessions = rows.last().unwrap().files.clone();
        let right = connect(&fleet, &paths, connections, 0);
        rows.push(row(
            &mut fleet,
            watched,
            &format!("{connections} connections"),
        ));
        let few = connections / 4;
        let wrong = connect(&fleet, &paths, few, 1);
        rows.push(row(&mut fleet, watched, &format!("{few} more, elsewhere")));
        for (row, count) in [(rows.len() - 2, connections), (rows.len() - 1, few)] {
            let grown = rows[row].resident.saturating_sub(rows[row - 1].resident);
            let each = float(grown >> 10) / float(u64::try_from(count).unwrap());
            told.push(format!("{count} connections: {each:.1} KiB each"));
        }
        println!("\n{}", told.join("\n"));
        check_rows(&rows, &sessions);
        drop((right, wrong));
        drained(fleet, askings, &paths);
    }

    /// What is idle costs by the gateway, and not by the session or the connection.
    fn check_rows(rows: &[Row], sessions: &[u64]) {
        let nothing = &rows[0];
        for row in &rows[1..] {
            let (few, many) = (nothing.asked.all(), row.asked.all());
            // Renewals come late on a machine that is busy.
            assert!(many <= few * 2 + 60, "{few}, {many}");
        }
        for (before, after) in nothing.files.iter().zip(sessions) {
            assert!(
                after <= &(before + 10),
                "files of sessions: {before}, {after}"
            );
        }
    }

    /// Connections that have made calls for a session of the gateway, or of another one.
    fn connect(fleet: &Fleet, paths: &[String], count: usize, shift: usize) -> Vec<TcpStream> {
        let open = |number: usize| {
            let session = number % paths.len();
            let at = (session + shift) % fleet.places.len();
            let mut asking = Asking::new(&fleet.places[at], 0);
            let object = asking.mount(&paths[session]);
            let told: GETATTR3res = asking.nfs(GETATTR, &GETATTR3args { object });
            assert!(matches!(told, Nfs3Result::Ok(_)));
            asking.into_stream()
        };
        (0..count).map(open).collect()
    }

    /// A gateway with many sessions ends: what that costs, and that the other has them then.
    fn drained(mut fleet: Fleet, mut askings: Vec<Asking>, paths: &[String]) {
        let (one, before) = (fleet.servers.remove(0), fleet.emulator.asked());
        let began = fleet.clock.monotonic();
        assert_eq!(one.stop(), Some(0));
        let took = fleet.clock.monotonic() - began;
        let asked = fleet.emulator.asked().since(before);
        let let_go = paths.len().div_ceil(2);
        println!("a gateway with {let_go} sessions ended in {took:.1?}: {asked:?}");
        // No more than a few calls of the store for each.
        let few = u64::try_from(let_go * 6).unwrap() + 200;
        assert!(asked.all() < few, "{asked:?}");
        for (number, path) in paths.iter().step_by(2).enumerate().take(100) {
            use_it(&mut askings[1], path, number);
        }
        let stolen = fleet.metric("holdfast_gateway_taken_from_living_total");
        assert!(
            stolen < 0.5,
            "{stolen} sessions were taken from a gateway that lives"
        );
    }

    /// `load`, which is built first.
    fn load() -> PathBuf {
        let test = std::env::current_exe().unwrap();
        let program = test.ancestors().nth(2).unwrap().join("load");
        assert!(program.exists(), "run tests/fdb/run, which builds it");
        program
    }

    /// What a run of loads at the same time has cost, in microseconds.
    #[derive(Clone, Copy, Debug, Default)]
    struct Cost {
        gateways: u64,
        store: u64,
        loads: u64,
        rate: f64,
        commits: u64,
        reads: u64,
        took: Duration,
    }

    /// Runs a load for each session, at the session's gateway or at another one, all at the same time.
    fn run_loads(
        fleet: &mut Fleet,
        paths: &[String],
        procedure: &str,
        ops: u64,
        shift: usize,
    ) -> Cost {
        let before = fleet.of_all(processor_us).iter().sum::<u64>();
        let store = processor_us(fleet.emulator.child.id());
        let (asked, began) = (fleet.emulator.asked(), fleet.clock.monotonic());
        let spawn = |(number, path): (usize, &String)| {
            let server = &fleet.servers[(number + shift) % fleet.servers.len()];
            let (_, port) = server.text("nfs_address").rsplit_once(':').unwrap();
            let ops = ops.to_string();
            let args = [
                "--json",
                "--port",
                port,
                "--export",
                path,
                "--procedures",
                procedure,
                "--ops",
                &ops,
                "--depth",
                "4",
            ];
            let mut load = Command::new(load());
            load.args(args).stdout(Stdio::piped()).spawn().unwrap()
        };
        let loads: Vec<_> = paths.iter().enumerate().map(spawn).collect();
        let mut cost = Cost::default();
        for load in loads {
            let output = load.wait_with_output().unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(output.status.success(), "{report}");
            let row = &report["results"][0];
            assert_eq!(row["operations"], ops, "{report}");
            cost.rate += row["operations_per_second"].as_f64().unwrap();
            let us =
                Duration::from_secs_f64(row["client_cpu_seconds"].as_f64().unwrap()).as_micros();
            cost.loads += u64::try_from(us).unwrap();
        }
        let asked = fleet.emulator.asked().since(asked);
        cost.gateways = fleet.of_all(processor_us).iter().sum::<u64>() - before;
        cost.store = processor_us(fleet.emulator.child.id()) - store;
        (cost.commits, cost.reads) = (asked.commits, asked.reads);
        cost.took = fleet.clock.monotonic() - began;
        cost
    }

    /// What calls cost with a number of gateways.
    fn gateways(root: &Path) {
        let counts = numbers("HOLDFAST_SCALE_GATEWAYS", "1,2");
        let loads = numbers("HOLDFAST_SCALE_LOADS", "4")[0];
        let scale = number("HOLDFAST_SCALE_OPS", 100);
        println!(
            "| gateways | calls come to | operation | gateways, us | store, us | load, us | commits | reads | \
             operations a second |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        for count in counts {
            let mut fleet = Fleet::start(root, count);
            let open = |number: usize| {
                let at = number % count;
                let path = fleet.servers[at].open();
                // It is in the memory of this one from now on.
                use_it(&mut Asking::new(&fleet.places[at], 0), &path, number);
                path
            };
            let paths: Vec<String> = (0..loads).map(open).collect();
            for shift in 0..count.min(2) {
                for (procedure, ops) in [("getattr", scale * 20), ("create-write-remove", scale)] {
                    one_load(&mut fleet, &paths, (procedure, ops), shift);
                }
            }
        }
    }

    /// What one operation costs: the difference of a long and a short run, so that making and removing the
    /// load's files is left out.
    fn one_load(fleet: &mut Fleet, paths: &[String], (procedure, ops): (&str, u64), shift: usize) {
        let passed = fleet.metric("holdfast_gateway_passed_on_total");
        let few = ops / 10;
        let short = run_loads(fleet, paths, procedure, few, shift);
        let long = run_loads(fleet, paths, procedure, ops, shift);
        let more = float((ops - few) * u64::try_from(paths.len()).unwrap());
        let each = |long: u64, short: u64| float(long.saturating_sub(short)) / more;
        println!(
            "| {} | {} | {procedure} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} | {:.0} |",
            fleet.servers.len(),
            if shift == 0 { "its gateway" } else { "another" },
            each(long.gateways, short.gateways),
            each(long.store, short.store),
            each(long.loads, short.loads),
            each(long.commits, short.commits),
            each(long.reads, short.reads),
            long.rate,
        );
        let passed = fleet.metric("holdfast_gateway_passed_on_total") - passed;
        let calls = float(ops * u64::try_from(paths.len()).unwrap());
        assert!(
            if shift == 0 {
                passed < 0.5
            } else {
                passed >= calls
            },
            "{passed}"
        );
        // Memory answers, and a change is one commit at most, beside what renewals of leases cost.
        let renewals =
            long.took.as_secs_f64() * RENEWING * float(u64::try_from(fleet.servers.len()).unwrap());
        let most = if procedure == "getattr" { 0.05 } else { 3.1 } * more + renewals;
        let commits = float(long.commits.saturating_sub(short.commits));
        let reads = float(long.reads.saturating_sub(short.reads));
        assert!(commits <= most, "{commits} commits of {more} {procedure}");
        assert!(
            reads <= 0.3 * more + renewals,
            "{reads} reads of {more} {procedure}"
        );
    }

    #[test]
    fn scale() {
        if runtime_unless_holdfast().is_none() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let part = std::env::var("HOLDFAST_SCALE").unwrap_or_default();
        let (one, other) = (root.path().join("sessions"), root.path().join("gateways"));
        match &*part {
            "sessions" => sessions(&one),
            "gateways" => gateways(&other),
            "" => {
                sessions(&one);
                gateways(&other);
            }
            other => panic!("HOLDFAST_SCALE is {other}: give sessions or gateways"),
        }
    }
}
