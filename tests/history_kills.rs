//! Kills a server again and again while agents write, publish, merge, fork, import and collect. A branch
//! has what was published before or after a publish that the kill cut off, never something between; and
//! what was imported before or after an import. What broken imports left is free in the end.
//!
//! `HOLDFAST_KILL_ROUNDS` is the number of kills, `HOLDFAST_KILL_SEED` says when they come.

#[cfg(test)]
#[path = "history_kills/imports.rs"]
mod imports;
#[cfg(test)]
#[path = "support/server.rs"]
mod server;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::thread;
    use std::time::Duration;

    use base::Rng;
    use nfs3_types::nfs3::CREATE3args;
    use nfs3_types::nfs3::{
        LOOKUP3args, Nfs3Option, Nfs3Result, READ3args, REMOVE3args, WRITE3args, createhow3,
        diropargs3, filename3, nfs_fh3, sattr3, stable_how,
    };
    use nfs3_types::xdr_codec::Opaque;
    use serde_json::{Value, json};

    use crate::imports::{Importer, check_data, free_all};
    use crate::server::{Api, Mount, Server, mount, path_of};

    /// Who publishes to one branch.
    const AGENTS: usize = 3;

    /// Bytes of an agent's main file: too many for a record, so that it has a chunk.
    const CONTENT_BYTES: usize = 20_000;

    /// Files of earlier numbers that an agent keeps.
    const KEPT: u64 = 4;

    /// Looks for publishes and imports before a kill, each [`LOOK_PAUSE`] apart.
    const LOOKS_MAX: usize = 4000;
    const LOOK_PAUSE: Duration = Duration::from_millis(5);

    /// Kills after which the data is checked.
    const CHECK_EVERY: u32 = 10;

    /// The server was killed, or the call did nothing for another reason that passes.
    struct Gone;

    /// What an agent's part of an image is.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    struct Part {
        /// The number in its main file.
        main: u64,
        /// Numbers whose files are there.
        files: BTreeSet<u64>,
    }

    /// An agent, with what it knows for certain.
    #[derive(Debug)]
    struct Agent {
        number: usize,
        session: String,
        path: String,
        /// Its part of its session: acknowledged by the server.
        written: Part,
        /// What a call without an answer may have made of it.
        writing: Option<Part>,
        /// Its part of the branch.
        published: Part,
        /// What a publish without an answer may have made of it.
        publishing: Option<Part>,
        publishes: u32,
    }

    /// An NFS client that tells a server that is gone from one that is wrong.
    struct Files(Mount);

    impl Files {
        async fn of(address: &str, path: &str) -> Result<Self, Gone> {
            mount(address, path).await.map(Self).map_err(|_| Gone)
        }

        fn place<'a>(&self, name: &'a str) -> diropargs3<'a> {
            diropargs3 {
                dir: self.0.root_nfs_fh3(),
                name: filename3(Opaque::borrowed(name.as_bytes())),
            }
        }

        async fn find(&mut self, name: &str) -> Result<Option<nfs_fh3>, Gone> {
            let what = self.place(name);
            match self.0.lookup(&LOOKUP3args { what }).await {
                Ok(Nfs3Result::Ok(found)) => Ok(Some(found.object)),
                Ok(Nfs3Result::Err(_)) => Ok(None),
                Err(_) => Err(Gone),
            }
        }

        /// Writes a file, durably, over what it has.
        async fn write(&mut self, name: &str, content: &[u8]) -> Result<(), Gone> {
            let args = CREATE3args {
                where_: self.place(name),
                how: createhow3::UNCHECKED(sattr3::default()),
            };
            let made = self.0.create(&args).await.map_err(|_| Gone)?;
            let Nfs3Result::Ok(made) = made else {
                panic!("{name} is not created");
            };
            let Nfs3Option::Some(file) = made.obj else {
                panic!("no handle");
            };
            let args = WRITE3args {
                file,
                offset: 0,
                count: u32::try_from(content.len()).unwrap(),
                stable: stable_how::FILE_SYNC,
                data: Opaque::borrowed(content),
            };
            match self.0.write(&args).await.map_err(|_| Gone)? {
                Nfs3Result::Ok(_) => Ok(()),
                Nfs3Result::Err((status, _)) => panic!("{name} is not written: {status:?}"),
            }
        }

        async fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, Gone> {
            let Some(file) = self.find(name).await? else {
                return Ok(None);
            };
            let args = READ3args {
                file,
                offset: 0,
                count: 1 << 20,
            };
            match self.0.read(&args).await.map_err(|_| Gone)? {
                Nfs3Result::Ok(read) => Ok(Some(read.data.as_ref().to_vec())),
                Nfs3Result::Err(status) => panic!("{name} is not read: {status:?}"),
            }
        }

        async fn remove(&mut self, name: &str) -> Result<(), Gone> {
            let object = self.place(name);
            match self.0.remove(&REMOVE3args { object }).await {
                Ok(Nfs3Result::Ok(_)) => Ok(()),
                Ok(Nfs3Result::Err((status, _))) => panic!("{name} is not removed: {status:?}"),
                Err(_) => Err(Gone),
            }
        }

        /// An agent's part of the image, with numbers up to `last`.
        async fn part(&mut self, agent: usize, last: u64) -> Result<Part, Gone> {
            let mut part = Part::default();
            if let Some(content) = self.read(&main_file(agent)).await? {
                part.main = number_in(&content);
            }
            for number in last.saturating_sub(3 * KEPT)..=last {
                let Some(content) = self.read(&numbered(agent, number)).await? else {
                    continue;
                };
                // It may have been made and not been written.
                if !content.is_empty() {
                    assert_eq!(number_in(&content), number);
                    part.files.insert(number);
                }
            }
            Ok(part)
        }
    }

    fn main_file(agent: usize) -> String {
        format!("agent-{agent}")
    }

    fn numbered(agent: usize, number: u64) -> String {
        format!("agent-{agent}-{number}")
    }

    fn content_of(number: u64) -> Vec<u8> {
        number.to_be_bytes().repeat(CONTENT_BYTES / 8)
    }

    /// The number that a whole content says over and over.
    fn number_in(content: &[u8]) -> u64 {
        if content.is_empty() {
            return 0;
        }
        let number = u64::from_be_bytes(*content.first_chunk().unwrap());
        assert!(content == content_of(number), "content is torn");
        number
    }

    impl Agent {
        fn new(server: &Server, number: usize) -> Self {
            let asked = json!({ "workspace": "default", "agent": format!("agent-{number}") });
            let opened = server.make("/v1/sessions", &asked);
            Self {
                number,
                session: opened["id"].as_str().unwrap().to_owned(),
                path: path_of(&opened).to_owned(),
                written: Part::default(),
                writing: None,
                published: Part::default(),
                publishing: None,
                publishes: 0,
            }
        }

        /// Numbers that may be somewhere.
        fn last(&self) -> u64 {
            let may_be = self.writing.as_ref().map_or(0, |part| part.main);
            self.written.main.max(may_be)
        }

        /// Works until the server is gone.
        async fn work(&mut self, api: &Api, address: &str, count: &AtomicU64) {
            let Ok(mut files) = Files::of(address, &self.path).await else {
                return;
            };
            while self.step(api, &mut files).await.is_ok() {
                count.fetch_add(1, SeqCst);
            }
        }

        async fn step(&mut self, api: &Api, files: &mut Files) -> Result<(), Gone> {
            // Nothing acknowledged is lost: the session has what it had, and perhaps one step more.
            if let Some(writing) = self.writing.take() {
                let found = files.part(self.number, writing.main).await;
                let Ok(found) = found else {
                    self.writing = Some(writing);
                    return Err(Gone);
                };
                let is_between = [&self.written, &writing]
                    .map(|part| part.main)
                    .contains(&found.main)
                    && found.files.is_superset(
                        &self
                            .written
                            .files
                            .intersection(&writing.files)
                            .copied()
                            .collect(),
                    )
                    && found
                        .files
                        .is_subset(&self.written.files.union(&writing.files).copied().collect());
                assert!(is_between, "{found:?} of {self:?} {writing:?}");
                self.written = found;
            }
            let number = self
                .written
                .main
                .max(self.written.files.last().copied().unwrap_or(0))
                + 1;
            let mut next = self.written.clone();
            next.main = number;
            next.files.insert(number);
            let is_old = |file: &u64| file + KEPT <= number;
            let old: Vec<u64> = next.files.iter().copied().filter(is_old).collect();
            next.files.retain(|file| !is_old(file));
            self.writing = Some(next.clone());
            files
                .write(&numbered(self.number, number), &content_of(number))
                .await?;
            files
                .write(&main_file(self.number), &content_of(number))
                .await?;
            for old in old {
                files.remove(&numbered(self.number, old)).await?;
            }
            self.written = next;
            self.writing = None;
            self.publish(api)
        }

        fn publish(&mut self, api: &Api) -> Result<(), Gone> {
            let path = format!("/v1/sessions/{}/publish", self.session);
            self.publishing = Some(self.written.clone());
            let (status, answer) = api
                .call("POST", &path, &json!({ "policy": "fail" }))
                .map_err(|_| Gone)?;
            // Others may publish all the time, and the server may be shutting down.
            if status == 503 {
                return Ok(());
            }
            assert_eq!(status, 200, "{answer}");
            self.published = self.written.clone();
            self.publishing = None;
            self.publishes += 1;
            Ok(())
        }

        /// Sees that the branch has this agent's part as it was published before or after the kill.
        async fn check(&mut self, files: &mut Files) -> Result<(), Gone> {
            let found = files.part(self.number, self.last()).await?;
            if let Some(publishing) = self.publishing.take()
                && found == publishing
            {
                self.published = publishing;
            }
            assert_eq!(found, self.published, "{self:?}");
            Ok(())
        }
    }

    /// Forks agents' sessions and looks at them, until the server is gone.
    async fn fork(api: &Api, address: &str, sessions: &[String]) -> Result<(), Gone> {
        for agent in (0..AGENTS).cycle() {
            let path = format!("/v1/sessions/{}/fork", sessions[agent]);
            let (status, forked) = api.call("POST", &path, &json!({})).map_err(|_| Gone)?;
            if status == 503 {
                continue;
            }
            assert_eq!(status, 201, "{forked}");
            let mut files = Files::of(address, path_of(&forked)).await?;
            if let Some(content) = files.read(&main_file(agent)).await? {
                number_in(&content);
            }
            let path = format!("/v1/sessions/{}", forked["id"].as_str().unwrap());
            api.call("DELETE", &path, &Value::Null).map_err(|_| Gone)?;
        }
        Ok(())
    }

    /// Collects until the server is gone.
    fn collect(api: &Api) {
        while let Ok((status, answer)) = api.call("POST", "/v1/gc", &json!({})) {
            assert!([202, 503].contains(&status), "{status} {answer}");
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(work)
    }

    /// Everybody works until the server is killed.
    fn round(server: &mut Server, agents: &mut [Agent], importer: &mut Importer, rng: &Rng) {
        let (api, address) = (server.api(), server.text("nfs_address").to_owned());
        let sessions: Vec<String> = agents.iter().map(|agent| agent.session.clone()).collect();
        // Some publishes and imports in, and then at any moment of the next ones.
        let (some, some_imports) = (rng.u64() % 6, rng.u64() % 3);
        // A publish takes some milliseconds, an import or a bundle much longer.
        let longest = [200_000, 2_000_000][usize::from(rng.u64().is_multiple_of(2))];
        let moment = Duration::from_micros(rng.u64() % longest);
        let (publishes, imports) = (AtomicU64::new(0), AtomicU64::new(0));
        let (api, address, count) = (&api, address.as_str(), &publishes);
        thread::scope(|scope| {
            for agent in agents {
                scope.spawn(move || block_on(agent.work(api, address, count)));
            }
            scope.spawn(|| block_on(fork(api, address, &sessions)).is_ok());
            scope.spawn(|| importer.work(api, &imports));
            scope.spawn(|| collect(api));
            for _ in 0..LOOKS_MAX {
                if publishes.load(SeqCst) >= some && imports.load(SeqCst) >= some_imports {
                    break;
                }
                thread::park_timeout(LOOK_PAUSE);
            }
            thread::park_timeout(moment);
            server.kill();
        });
    }

    /// What the branch has after a kill.
    fn look(server: &Server, agents: &mut [Agent]) {
        let asked = json!({ "workspace": "default", "read_only": true });
        let opened = server.make("/v1/sessions", &asked);
        let seen = block_on(async {
            let mut files = Files::of(server.text("nfs_address"), path_of(&opened)).await?;
            for agent in agents {
                agent.check(&mut files).await?;
            }
            Ok::<(), Gone>(())
        });
        assert!(seen.is_ok(), "the server is gone by itself");
        let path = format!("/v1/sessions/{}", opened["id"].as_str().unwrap());
        assert_eq!(server.call("DELETE", &path, &Value::Null).0, 204);
    }

    fn setting(name: &str, default: u64) -> u64 {
        let set = std::env::var(name).ok();
        set.map_or(default, |value| value.parse().unwrap())
    }

    #[test]
    fn a_branch_is_old_or_new_after_a_kill() {
        let rounds = u32::try_from(setting("HOLDFAST_KILL_ROUNDS", 12)).unwrap();
        let seed = setting("HOLDFAST_KILL_SEED", 1);
        let rng = Rng::seeded(seed);
        let root = tempfile::tempdir().unwrap();
        let mut server = Server::start(root.path(), "127.0.0.1:0");
        let mut importer = Importer::new(root.path(), &server);
        let mut agents: Vec<Agent> = (0..AGENTS)
            .map(|number| Agent::new(&server, number))
            .collect();
        // The branch is there before the first kill.
        for agent in &mut agents {
            agent.publish(&server.api()).ok();
            assert!(agent.publishing.is_none());
        }
        for number in 1..=rounds {
            round(&mut server, &mut agents, &mut importer, &rng);
            if number % CHECK_EVERY == 0 {
                check_data(root.path());
            }
            server = Server::start(root.path(), "127.0.0.1:0");
            look(&server, &mut agents);
            importer.look();
        }
        server.kill();
        check_data(root.path());
        // Else this shows nothing.
        let publishes: u32 = agents.iter().map(|agent| agent.publishes).sum();
        assert!(
            publishes > rounds,
            "{publishes} publishes in {rounds} rounds"
        );
        importer.was_cut_off();
        println!("{rounds} kills, {publishes} publishes, {importer:?}");
        let mut server = Server::start(root.path(), "127.0.0.1:0");
        free_all(root.path());
        server.kill();
        check_data(root.path());
    }
}
