//! Commits of which it is never told whether they were made, many of them, while clients make calls that
//! must be done once each, and gateways are killed: `HOLDFAST_UNKNOWN` such commits (300), by
//! `HOLDFAST_UNKNOWN_CLIENTS` clients (12), with `HOLDFAST_UNKNOWN_KILLS` kills (one in 500, at least 2).
//! The gateways are this test's program, started anew in that role.

#[cfg(test)]
#[expect(dead_code, reason = "shared with another test, which uses the rest")]
mod asking;
#[cfg(test)]
#[expect(dead_code, reason = "shared with another test, which uses the rest")]
mod counts;
#[cfg(test)]
mod emulator;
#[cfg(test)]
#[expect(dead_code, reason = "shared with other tests, which use the rest")]
mod holdfast;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use nfs3_types::nfs3::{
        COMMIT3args, COMMIT3res, CREATE3args, CREATE3res, GETATTR3args, GETATTR3res, LINK3args,
        LINK3res, LOOKUP3args, LOOKUP3res, MKDIR3args, MKDIR3res, Nfs3Option, Nfs3Result,
        READ3args, READ3res, READDIR3args, READDIR3res, REMOVE3args, REMOVE3res, RENAME3args,
        RENAME3res, WRITE3args, WRITE3res, cookieverf3, createhow3, nfs_fh3, sattr3, stable_how,
        writeverf3,
    };
    use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

    use super::asking::{Asking, Places};
    use super::counts::number;
    use super::emulator::Emulator;
    use super::holdfast::{Server, name, runtime_unless_holdfast};

    /// Gateways at a time.
    const GATEWAYS: usize = 3;

    /// What the cluster does while clients work.
    const FAULTS: &str = "unknown-applied=12%,unknown-dropped=12%,conflict=2%,too-old=1%";

    /// Pause between looks at how many there were.
    const LOOK: Duration = Duration::from_millis(200);

    /// For how long a gateway that was killed is gone.
    const GONE: Duration = Duration::from_millis(700);

    const GETATTR: u32 = 1;
    const LOOKUP: u32 = 3;
    const READ: u32 = 6;
    const WRITE: u32 = 7;
    const CREATE: u32 = 8;
    const MKDIR: u32 = 9;
    const REMOVE: u32 = 12;
    const RENAME: u32 = 14;
    const LINK: u32 = 15;
    const READDIR: u32 = 16;
    const COMMIT: u32 = 21;

    /// What went well.
    fn good<T, E: std::fmt::Debug>(what: &str, result: Nfs3Result<T, E>) -> T {
        match result {
            Nfs3Result::Ok(done) => done,
            Nfs3Result::Err((status, _)) => panic!("{what}: {status:?}"),
        }
    }

    fn some<T: Pack + Unpack>(option: Nfs3Option<T>) -> T {
        match option {
            Nfs3Option::Some(some) => some,
            Nfs3Option::None => panic!("it is left out"),
        }
    }

    /// A client with a directory of its own.
    struct Client {
        asking: Asking,
        number: usize,
        path: String,
        dir: nfs_fh3,
        counter: nfs_fh3,
        log: nfs_fh3,
        /// The inode that is renamed again and again.
        link: u64,
        steps: u64,
        /// Calls that were asked at two gateways at once.
        copies: u64,
    }

    impl Client {
        fn new(places: &Places, number: usize, path: &str) -> Self {
            let mut asking = Asking::new(places, number);
            let root = asking.mount(path);
            let label = format!("client-{number}");
            let made: MKDIR3res = asking.nfs(
                MKDIR,
                &MKDIR3args {
                    where_: name(&root, &label),
                    attributes: sattr3::default(),
                },
            );
            let nowhere = root;
            let mut client = Self {
                asking,
                number,
                path: path.to_owned(),
                dir: some(good("MKDIR", made).obj),
                counter: nowhere.clone(),
                log: nowhere,
                link: 0,
                steps: 0,
                copies: 0,
            };
            client.counter = client.create("counter", false);
            client.log = client.create("log", false);
            client.write(
                "first",
                &client.counter.clone(),
                0,
                &0_u64.to_be_bytes(),
                true,
            );
            let chain = client.create("chain-0", false);
            client.link = client.attributes(chain).0;
            client
        }

        /// A call that changes names; every fifth is asked twice.
        fn change<R: Unpack>(&mut self, procedure: u32, args: &impl Pack, twice: bool) -> R {
            if twice {
                self.copies += 1;
                self.asking.nfs_twice(procedure, args)
            } else {
                self.asking.nfs(procedure, args)
            }
        }

        /// Makes a file that is not there yet.
        fn create(&mut self, file: &str, twice: bool) -> nfs_fh3 {
            let dir = self.dir.clone();
            let args = CREATE3args {
                where_: name(&dir, file),
                how: createhow3::GUARDED(sattr3::default()),
            };
            let made: CREATE3res = self.change(CREATE, &args, twice);
            some(good(file, made).obj)
        }

        fn remove(&mut self, file: &str, twice: bool) {
            let dir = self.dir.clone();
            let object = name(&dir, file);
            let gone: REMOVE3res = self.change(REMOVE, &REMOVE3args { object }, twice);
            good(file, gone);
        }

        /// Number, links and size of a file.
        fn attributes(&mut self, object: nfs_fh3) -> (u64, u32, u64) {
            let told: GETATTR3res = self.asking.nfs(GETATTR, &GETATTR3args { object });
            let told = good("GETATTR", told).obj_attributes;
            (told.fileid, told.nlink, told.size)
        }

        fn write_once(
            &mut self,
            what: &str,
            file: &nfs_fh3,
            (offset, data): (u64, &[u8]),
            stable: stable_how,
        ) -> writeverf3 {
            let args = WRITE3args {
                file: file.clone(),
                offset,
                count: u32::try_from(data.len()).unwrap(),
                stable,
                data: Opaque::borrowed(data),
            };
            let written: WRITE3res = self.asking.nfs(WRITE, &args);
            let written = good(what, written);
            assert_eq!(written.count, args.count, "{what}");
            written.verf
        }

        /// Writes so that it is durable: at once, or by a COMMIT.
        fn write(&mut self, what: &str, file: &nfs_fh3, offset: u64, data: &[u8], at_once: bool) {
            if at_once {
                self.write_once(what, file, (offset, data), stable_how::FILE_SYNC);
                return;
            }
            // Another verifier says that what was written may be lost.
            loop {
                let written = self.write_once(what, file, (offset, data), stable_how::UNSTABLE);
                let args = COMMIT3args {
                    file: file.clone(),
                    offset: 0,
                    count: 0,
                };
                let committed: COMMIT3res = self.asking.nfs(COMMIT, &args);
                if good(what, committed).verf == written {
                    return;
                }
            }
        }

        fn read(&mut self, file: &nfs_fh3) -> Vec<u8> {
            let mut all = Vec::new();
            loop {
                let args = READ3args {
                    file: file.clone(),
                    offset: u64::try_from(all.len()).unwrap(),
                    count: 1 << 16,
                };
                let read: READ3res<'_> = self.asking.nfs(READ, &args);
                let read = good("READ", read);
                all.extend_from_slice(read.data.as_ref());
                if read.eof {
                    return all;
                }
            }
        }

        fn counted(&mut self) -> u64 {
            let counter = self.counter.clone();
            let bytes = self.read(&counter);
            u64::from_be_bytes(bytes.try_into().unwrap())
        }

        /// Changes of which each would be seen if it were lost or done twice.
        fn step(&mut self) {
            let (n, number) = (self.steps, u64::try_from(self.number).unwrap());
            let twice = |call: u64| (n + number + call).is_multiple_of(5);
            let at_once = !n.is_multiple_of(3);
            assert_eq!(self.counted(), n, "the counter");
            let (counter, log) = (self.counter.clone(), self.log.clone());
            let next = (n + 1).to_be_bytes();
            self.write("increment", &counter, 0, &next, at_once);
            self.write("append", &log, n * 8, &n.to_be_bytes(), !at_once);
            let (from, to) = (format!("chain-{n}"), format!("chain-{}", n + 1));
            let dir = self.dir.clone();
            let args = RENAME3args {
                from: name(&dir, &from),
                to: name(&dir, &to),
            };
            let renamed: RENAME3res = self.change(RENAME, &args, twice(0));
            good(&from, renamed);
            drop(self.create(&format!("once-{n}"), twice(1)));
            let link = format!("link-{n}");
            let args = LINK3args {
                file: counter.clone(),
                link: name(&dir, &link),
            };
            let linked: LINK3res = self.change(LINK, &args, twice(2));
            good(&link, linked);
            assert_eq!(self.attributes(counter).1, if n == 0 { 2 } else { 3 });
            if n > 0 {
                self.remove(&format!("link-{}", n - 1), twice(3));
                self.remove(&format!("once-{}", n - 1), twice(4));
            }
            self.steps += 1;
        }

        fn listed(&mut self) -> BTreeSet<String> {
            let (mut cookie, mut cookieverf) = (0, cookieverf3::default());
            let mut names = BTreeSet::new();
            loop {
                let args = READDIR3args {
                    dir: self.dir.clone(),
                    cookie,
                    cookieverf,
                    count: 8192,
                };
                let listed: READDIR3res<'_> = self.asking.nfs(READDIR, &args);
                let listed = good("READDIR", listed);
                for entry in &listed.reply.entries.0 {
                    cookie = entry.cookie;
                    names.insert(String::from_utf8(entry.name.0.as_ref().to_vec()).unwrap());
                }
                cookieverf = listed.cookieverf;
                if listed.reply.eof {
                    names.retain(|name| name != "." && name != "..");
                    return names;
                }
            }
        }

        /// Looks at all of it, at gateways that have nothing of it in memory.
        fn check(&mut self, places: &Places) {
            self.asking = Asking::new(places, self.number);
            let root = self.asking.mount(&self.path);
            let n = self.steps;
            let find = |asking: &mut Asking, dir: &nfs_fh3, file: &str| {
                let what = name(dir, file);
                let found: LOOKUP3res = asking.nfs(LOOKUP, &LOOKUP3args { what });
                good(file, found).object
            };
            self.dir = find(&mut self.asking, &root, &format!("client-{}", self.number));
            let dir = self.dir.clone();
            self.counter = find(&mut self.asking, &dir, "counter");
            self.log = find(&mut self.asking, &dir, "log");
            assert_eq!(self.counted(), n, "the counter");
            let log = self.log.clone();
            let appended: Vec<u8> = (0..n).flat_map(u64::to_be_bytes).collect();
            assert!(self.read(&log) == appended, "the log of {n} steps");
            let chain = find(&mut self.asking, &dir, &format!("chain-{n}"));
            assert_eq!(self.attributes(chain).0, self.link, "the chain's inode");
            let counter = self.counter.clone();
            assert_eq!(self.attributes(counter).1, if n == 0 { 1 } else { 2 });
            let mut names = BTreeSet::from(["counter", "log"].map(str::to_owned));
            names.insert(format!("chain-{n}"));
            if n > 0 {
                names.extend([format!("once-{}", n - 1), format!("link-{}", n - 1)]);
            }
            assert_eq!(self.listed(), names);
        }
    }

    /// Gateways that are killed and started again.
    struct Fleet<'a> {
        root: &'a Path,
        place: String,
        servers: Vec<Option<Server>>,
        places: Places,
        kills: u64,
    }

    impl Fleet<'_> {
        fn start_one(&mut self, at: usize) {
            let dir = self.root.join(format!("gateway-{at}"));
            let command = if at == 0 && self.kills == 0 {
                "up"
            } else {
                "serve"
            };
            let server = Server::start(command, &dir, &self.place, &["--chunks", "kv"]);
            self.places
                .put(at, server.text("nfs_address").parse().unwrap());
            self.servers[at] = Some(server);
        }

        fn kill_one(&mut self, at: usize) {
            // SIGKILL.
            self.servers[at] = None;
            self.kills += 1;
            std::thread::park_timeout(GONE);
            self.start_one(at);
        }
    }

    /// What clients did until they were told to stop.
    fn work(client: &mut Client, stop: &AtomicBool, failed: &AtomicU64) {
        let _failing = Failing(failed);
        while !stop.load(Ordering::SeqCst) {
            client.step();
        }
    }

    /// Counts a client that panics, so that the others need not go on.
    struct Failing<'a>(&'a AtomicU64);

    impl Drop for Failing<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn unknown(emulator: &mut Emulator) -> (u64, u64) {
        (
            emulator.count("unknown-applied"),
            emulator.count("unknown-dropped"),
        )
    }

    /// Has clients work until there were so many unknown commits and kills.
    fn storm(
        emulator: &mut Emulator,
        fleet: &mut Fleet<'_>,
        clients: &mut [Client],
        (wanted, kills): (u64, u64),
    ) {
        let (stop, failed) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for client in clients {
                let (stop, failed) = (&stop, &failed);
                let thread = std::thread::Builder::new().name("client".into());
                let work = move || work(client, stop, failed);
                thread.spawn_scoped(scope, work).unwrap();
            }
            loop {
                let (applied, dropped) = unknown(emulator);
                let there = applied + dropped;
                let is_over = failed.load(Ordering::SeqCst) > 0;
                if there >= wanted && fleet.kills >= kills || is_over {
                    stop.store(true, Ordering::SeqCst);
                    return;
                }
                if there >= wanted * (fleet.kills + 1) / (kills + 1) && fleet.kills < kills {
                    let at = usize::try_from(fleet.kills).unwrap() % GATEWAYS;
                    fleet.kill_one(at);
                }
                std::thread::park_timeout(LOOK);
            }
        });
    }

    #[test]
    fn each_call_is_done_once() {
        if runtime_unless_holdfast().is_none() {
            return;
        }
        let wanted = number("HOLDFAST_UNKNOWN", 300);
        let clients = usize::try_from(number("HOLDFAST_UNKNOWN_CLIENTS", 12)).unwrap();
        let kills = number("HOLDFAST_UNKNOWN_KILLS", (wanted / 500).max(2));
        let root = tempfile::tempdir().unwrap();
        let mut emulator = Emulator::start(6, "none");
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let mut fleet = Fleet {
            root: root.path(),
            place: format!("fdb:{}", emulator.file().display()),
            servers: (0..GATEWAYS).map(|_| None).collect(),
            places: Places::new(vec![nowhere; GATEWAYS]),
            kills: 0,
        };
        (0..GATEWAYS).for_each(|at| fleet.start_one(at));
        // Two clients have a session together, through different gateways.
        let open = |pair: usize| fleet.servers[pair % GATEWAYS].as_ref().unwrap().open();
        let paths: Vec<String> = (0..clients.div_ceil(2)).map(open).collect();
        let mut clients: Vec<Client> = (0..clients)
            .map(|number| Client::new(&fleet.places, number, &paths[number / 2]))
            .collect();
        emulator.tell(&format!("faults {FAULTS}"));
        let commits = emulator.count("commits");
        storm(&mut emulator, &mut fleet, &mut clients, (wanted, kills));
        let (applied, dropped) = unknown(&mut emulator);
        let commits = emulator.count("commits") - commits;
        emulator.tell("faults none");
        for at in 0..GATEWAYS {
            fleet.servers[at] = None;
        }
        (0..GATEWAYS).for_each(|at| fleet.start_one(at));
        let asked_again: u64 = clients.iter().map(|client| client.asking.again).sum();
        let steps: u64 = clients.iter().map(|client| client.steps).sum();
        let copies: u64 = clients.iter().map(|client| client.copies).sum();
        let unanswered: u64 = clients.iter().map(|it| it.asking.unanswered).sum();
        for client in &mut clients {
            client.check(&fleet.places);
        }
        println!(
            "{} unknown commits of {commits}: {applied} made, {dropped} not; {} kills; {} clients, {steps} \
             steps of 7 changes, {copies} calls asked at two gateways at once ({unanswered} of them answered by one \
             only), {asked_again} asked again or twice: each was done once",
            applied + dropped,
            fleet.kills,
            clients.len(),
        );
        assert!(applied + dropped >= wanted && copies > 0);
        // A gateway that is killed answers nothing; whoever else is asked does.
        let excused = kills * u64::try_from(clients.len()).unwrap();
        assert!(
            unanswered <= excused,
            "{unanswered} copies of calls had no reply"
        );
    }
}
