//! What happens at random: what each step is to come to by the model, what it came to, and what is left of
//! one that was cut off.

use metadata::store::STAGING_AGENT;

use super::*;

/// Steps that crashes cut off.
pub(super) const KINDS: [&str; 11] = [
    "write",
    "remove",
    "fork",
    "open",
    "publish",
    "checkpoint",
    "restore",
    "restore paths",
    "sync",
    "undo",
    "import",
];

/// Moments up to which a process dies; few steps have more.
const MOMENTS: usize = 18;

/// Steps that are looked at for one whose turn it is.
const DRAWS_MAX: u32 = 60;

/// Steps of a kind that come to their end before all their moments have had their turn: some have fewer.
const ENDS: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Write(&'static str, u64),
    Remove(&'static str),
    Fork,
    Open(CommitId),
    Publish(&'static str, Policy),
    Checkpoint,
    Restore(CommitId, Vec<&'static str>),
    Sync(Policy),
    Undo(OperationId, Copied),
    Import(&'static str, Copied),
    Close,
    DeleteBranch,
    Time,
}

/// What a step may leave.
struct Expected {
    /// What its session has: before it, on the way, and after it.
    session: Vec<Copied>,
    /// What a branch has, before and after.
    branch: Option<(&'static str, Option<Copied>, Copied)>,
    /// It is to be refused, and nothing changes.
    is_refused: bool,
    /// What commits that it makes have.
    made: Vec<Copied>,
}

/// What a step that was not cut off came to.
enum Done {
    Nothing,
    Refused,
    Opened(Box<Opened>),
    Exchanged(Option<OperationId>),
}

/// How a step ended.
enum End {
    Done,
    Refused,
    CutOff,
}

/// After how many moments the next step of each kind is cut off, and how often it came to its end before.
pub(super) struct Turns(BTreeMap<&'static str, (usize, u32)>);

impl Turns {
    pub(super) fn new() -> Self {
        Self(KINDS.iter().map(|kind| (*kind, (0, 0))).collect())
    }

    fn is_wanted(&self, kind: &str) -> bool {
        let ends = self.0.get(kind).map(|(_, ends)| *ends);
        ends.is_some_and(|ends| ends < ENDS)
    }
}

impl Step {
    fn kind(&self) -> &'static str {
        match self {
            Self::Write(..) => "write",
            Self::Remove(_) => "remove",
            Self::Fork => "fork",
            Self::Open(_) => "open",
            Self::Publish(..) => "publish",
            Self::Checkpoint => "checkpoint",
            Self::Restore(_, paths) if paths.is_empty() => "restore",
            Self::Restore(..) => "restore paths",
            Self::Sync(_) => "sync",
            Self::Undo(..) => "undo",
            Self::Import(..) => "import",
            Self::Close => "close",
            Self::DeleteBranch => "delete branch",
            Self::Time => "time",
        }
    }
}

impl World<'_> {
    pub(super) async fn step(&mut self) -> Result<(), String> {
        let at = self.pick(self.sessions.len());
        let step = self.draw(at).await?;
        let (dies_after, collects) = match self.pick(6) {
            0 => (Some(self.pick(MOMENTS)), self.pick(2) == 0),
            // Near its end, when most of it is done, if it is like the last one.
            1 => {
                let moments = self.moments.get(step.kind()).copied();
                let moments = moments.map(|moments| moments.saturating_sub(1 + self.pick(2)));
                (moments, false)
            }
            _ => (None, self.pick(2) == 0),
        };
        self.go(at, &step, (dies_after, collects)).await.map(drop)
    }

    /// One step of many at which the process dies after each number of moments in turn. Gives whether all
    /// have had their turn: those of a kind have if it came to its end several times.
    pub(super) async fn step_through(&mut self, turns: &mut Turns) -> Result<bool, String> {
        let (mut at, mut step) = (0, Step::Time);
        for _ in 0..DRAWS_MAX {
            at = self.pick(self.sessions.len());
            step = self.draw(at).await?;
            if turns.is_wanted(step.kind()) {
                break;
            }
        }
        let kind = step.kind();
        let dies_after = turns.is_wanted(kind).then(|| turns.0[kind].0);
        let end = self.go(at, &step, (dies_after, false)).await?;
        if let Some((moments, ends)) = turns.0.get_mut(kind) {
            match end {
                End::CutOff => (*moments, *ends) = (*moments + 1, 0),
                End::Done => *ends += 1,
                End::Refused => {}
            }
        }
        Ok(KINDS.iter().all(|kind| !turns.is_wanted(kind)))
    }

    async fn go(
        &mut self,
        at: usize,
        step: &Step,
        (dies_after, collects): (Option<usize>, bool),
    ) -> Result<End, String> {
        let of = format!("{step:?} of session {}", self.sessions[at].id);
        if self.is_traced {
            println!("{of}, {dies_after:?}");
        }
        let taken = match step {
            Step::Close | Step::DeleteBranch | Step::Time => self.quiet(at, step).await,
            _ => Box::pin(self.take(at, step, dies_after, collects)).await,
        };
        let end = taken.map_err(|why| format!("{of}: {why}"))?;
        self.collect().await.map_err(|why| format!("{of}: {why}"))?;
        let at = self.pick(self.sessions.len());
        let verified = self.verify(at).await;
        verified.map_err(|why| format!("after {of}: {why}"))?;
        if self.pick(8) == 0 {
            self.is_all_free().await?;
        }
        Ok(end)
    }

    async fn draw(&mut self, at: usize) -> Result<Step, String> {
        let path = PATHS[self.pick(PATHS.len())];
        let branch = BRANCHES[self.pick(4) / 3];
        let policy = [Policy::Theirs, Policy::Ours, Policy::Fail][self.pick(3)];
        if let Some((operation, before)) = self.sessions[at].undo.clone()
            && self.pick(3) == 0
        {
            return Ok(Step::Undo(operation, before));
        }
        let needed: Vec<CommitId> = self.needed().await?.into_keys().collect();
        let commit = needed.get(self.pick(needed.len())).copied();
        let is_room = self.sessions.len() < SESSIONS_MAX;
        let number = self.fresh();
        let files = &self.sessions[at].files;
        let is_removable = files.contains_key(path);
        Ok(match (self.pick(32), commit) {
            (6..8, _) if is_removable => Step::Remove(path),
            (8..10, _) if is_room => Step::Fork,
            (10..13, Some(commit)) if is_room => Step::Open(commit),
            (13..17, _) => Step::Publish(branch, policy),
            (17, _) => Step::Checkpoint,
            (18..20, Some(commit)) => Step::Restore(commit, Vec::new()),
            (20..23, Some(commit)) => {
                let version = &self.commits[&commit];
                let of = [path, DIRECTORIES[self.pick(2)]][self.pick(2)];
                let there = |tree: &Copied| tree.keys().any(|file| file.starts_with(of));
                match there(version) && there(files) {
                    true => Step::Restore(commit, vec![of]),
                    false => Step::Restore(commit, vec!["d", "e"]),
                }
            }
            (23..26, _) if self.branch_of(at).await?.1.is_some() => Step::Sync(policy),
            (26..29, Some(commit)) => Step::Import(branch, self.changed(commit)),
            (29, _) if self.sessions.len() > 1 => Step::Close,
            (30, _) if self.pick(3) == 0 => Step::DeleteBranch,
            (31, _) => Step::Time,
            _ => Step::Write(path, number),
        })
    }

    /// What some commit has, with changes.
    fn changed(&mut self, from: CommitId) -> Copied {
        let mut tree = self.commits[&from].clone();
        for _ in 0..2 {
            let path = PATHS[self.pick(PATHS.len())];
            tree.insert(path, self.fresh());
        }
        tree.remove(PATHS[self.pick(PATHS.len())]);
        tree
    }

    /// The branch that a session goes with, and where it is.
    async fn branch_of(&self, at: usize) -> Result<(String, Option<CommitId>), String> {
        let id = self.sessions[at].id;
        let session = self.process.store.session(TENANT, id).await;
        let name = session.map_err(text)?.record.branch;
        let name = if name.is_empty() { "main".into() } else { name };
        let head = self.head(&name).await?;
        Ok((name, head))
    }

    /// What is not cut off.
    async fn quiet(&mut self, at: usize, step: &Step) -> Result<End, String> {
        *self.count(step.kind(), 0) += 1;
        match step {
            Step::Close => {
                let session = self.sessions.remove(at);
                self.close(session.id).await?;
            }
            Step::DeleteBranch => self.delete_branch("other").await?,
            _ => {
                self.clock.put_on(1000 + self.rng.u64() % 3000);
                for session in &mut self.sessions {
                    session.undo = None;
                }
                self.expire().await?;
            }
        }
        Ok(End::Done)
    }

    fn count(&mut self, kind: &'static str, what: usize) -> &mut u64 {
        &mut self.tally.entry(kind).or_insert([0; 4])[what]
    }

    async fn take(
        &mut self,
        at: usize,
        step: &Step,
        dies_after: Option<usize>,
        collects: bool,
    ) -> Result<End, String> {
        let expected = self.expected(at, step).await?;
        if self.sessions[at].client.is_none() {
            self.look(at).await?;
        }
        if let Some(moments) = dies_after {
            self.process.dies_after(i64::try_from(moments).unwrap());
        }
        match Box::pin(self.perform(at, step, collects)).await {
            Some(done) => {
                if !collects {
                    self.moments.insert(step.kind(), self.process.moments());
                }
                self.settle(at, step, expected, done?).await
            }
            None => {
                self.cut_off(at, step.kind(), expected).await?;
                Ok(End::CutOff)
            }
        }
    }

    async fn expected(&self, at: usize, step: &Step) -> Result<Expected, String> {
        let session = &self.sessions[at];
        let before = session.files.clone();
        let mut expected = Expected {
            session: vec![before.clone()],
            branch: None,
            is_refused: false,
            made: vec![before.clone()],
        };
        let after = match step {
            Step::Write(path, number) => {
                let with = |number| {
                    let mut files = before.clone();
                    files.insert(path, number);
                    files
                };
                if !before.contains_key(path) {
                    expected.session.push(with(EMPTY));
                }
                with(*number)
            }
            Step::Remove(path) => {
                let mut files = before.clone();
                files.remove(path);
                files
            }
            Step::Restore(version, paths) => restored(&before, &self.commits[version], paths),
            Step::Undo(_, files) => files.clone(),
            Step::Sync(policy) => match self.merge(at, self.branch_of(at).await?.1).await? {
                Some((base, head)) => {
                    let merge = |base| merged(&base, &before, &head, *policy);
                    match base.and_then(merge) {
                        Some(files) => files,
                        None => return Ok(refused(expected)),
                    }
                }
                None => return Err("no branch to sync with".into()),
            },
            Step::Publish(branch, policy) => {
                let merge = self.merge(at, self.head(branch).await?).await?;
                let (old, new) = match merge {
                    None => (None, before.clone()),
                    Some((base, head)) => {
                        let merge = |base| merged(&base, &head, &before, *policy);
                        match base.and_then(merge) {
                            Some(new) => (Some(head), new),
                            None => {
                                expected.branch = Some((branch, Some(head.clone()), head));
                                return Ok(refused(expected));
                            }
                        }
                    }
                };
                expected.made.push(new.clone());
                expected.branch = Some((branch, old, new));
                before
            }
            Step::Import(branch, tree) => {
                let old = self.head(branch).await?.map(|id| self.commits[&id].clone());
                expected.made.push(tree.clone());
                expected.branch = Some((branch, old, tree.clone()));
                before
            }
            _ => before,
        };
        expected.made.push(after.clone());
        expected.session.push(after);
        Ok(expected)
    }

    /// What a session and the commit of a branch came from, if that is known, and what the commit has.
    async fn merge(
        &self,
        at: usize,
        head: Option<CommitId>,
    ) -> Result<Option<(Option<Copied>, Copied)>, String> {
        let Some(head) = head else {
            return Ok(None);
        };
        let id = self.sessions[at].id;
        let session = self.process.store.session(TENANT, id).await;
        let on = session.map_err(text)?.record.commit;
        let graph = self.needed().await?;
        let origin = on.map_or(Origin::Empty, |on| origin_of(&graph, (id, on), head));
        let base = match origin {
            Origin::Commit(base) => Some(self.commits[&base].clone()),
            Origin::Empty => Some(Copied::new()),
            Origin::Unknown => None,
        };
        Ok(Some((base, self.commits[&head].clone())))
    }

    /// Does it, perhaps with a collection beside it. `None` if the process died.
    async fn perform(
        &mut self,
        at: usize,
        step: &Step,
        collects: bool,
    ) -> Option<Result<Done, String>> {
        let Self {
            process, sessions, ..
        } = self;
        let process = &*process;
        let session = &mut sessions[at];
        let (workspace, attributes) = (self.workspace, self.attributes);
        let known: Vec<CommitId> = self.commits.keys().copied().collect();
        let step = async {
            match step {
                Step::Write(..) | Step::Remove(_) => match &mut session.client {
                    Some(client) => change(client, step).await,
                    None => Err("not mounted".into()),
                },
                Step::Open(commit) => {
                    let opened = open(&process.store, Some(*commit), false).await?;
                    Ok(Done::Opened(Box::new(opened)))
                }
                Step::Import(branch, tree) => {
                    import(&process.gateway, branch, tree, attributes).await
                }
                _ => outside(&process.gateway, workspace, session.id, step).await,
            }
        };
        let collecting = async {
            match collects {
                true => process.collect(workspace, &known).await,
                false => Ok((0, 0)),
            }
        };
        let work = async { tokio::join!(Box::pin(step), Box::pin(collecting)) };
        let (done, collected) = Box::pin(process.run(work)).await?;
        Some(done.and_then(|done| match collected? {
            (let_go, 0) => {
                self.let_go += let_go;
                Ok(done)
            }
            (_, missing) => Err(format!("{missing} chunks are lost beside it")),
        }))
    }

    async fn settle(
        &mut self,
        at: usize,
        step: &Step,
        expected: Expected,
        done: Done,
    ) -> Result<End, String> {
        let is_refused = matches!(done, Done::Refused);
        if is_refused != expected.is_refused {
            return Err(format!("refused: {is_refused}"));
        }
        *self.count(step.kind(), usize::from(is_refused)) += 1;
        let session = &mut self.sessions[at];
        let before = session.files.clone();
        session.files = expected.session.last().unwrap_or(&before).clone();
        match (done, step) {
            (Done::Exchanged(Some(operation)), Step::Restore(..) | Step::Sync(_)) => {
                session.undo = Some((operation, before));
            }
            (_, Step::Write(..) | Step::Remove(_) | Step::Undo(..)) => session.undo = None,
            (Done::Opened(opened), Step::Fork) => self.keep(*opened, None, before),
            (Done::Opened(opened), Step::Open(commit)) => {
                let files = self.commits[commit].clone();
                self.keep(*opened, None, files);
                self.verify(self.sessions.len() - 1).await?;
            }
            _ => {}
        }
        self.learn(&expected.made).await?;
        if let Some((branch, _, after)) = &expected.branch {
            let now = self.head_files(branch).await?;
            if now.as_ref() != Some(after) {
                return Err(format!("{branch} has {now:?}, not {after:?}"));
            }
        }
        self.verify(at).await?;
        Ok(if is_refused { End::Refused } else { End::Done })
    }

    /// What a branch has, as somebody sees it.
    async fn head_files(&self, branch: &str) -> Result<Option<Copied>, String> {
        match self.head(branch).await? {
            Some(head) => self.look_at(head).await.map(Some),
            None => Ok(None),
        }
    }

    /// The process died in it. What is left is the old or the new.
    async fn cut_off(
        &mut self,
        at: usize,
        kind: &'static str,
        expected: Expected,
    ) -> Result<(), String> {
        self.restart().await;
        let found = self.look(at).await?;
        if !expected.session.contains(&found) {
            let all = &expected.session;
            return Err(format!(
                "cut off, the session has {found:?}, not of {all:?}"
            ));
        }
        let mut is_new = found != expected.session[0];
        let session = &mut self.sessions[at];
        session.files = found;
        session.undo = None;
        if let Some((branch, before, after)) = &expected.branch {
            let now = self.head_files(branch).await?;
            is_new = now != *before;
            if is_new && now.as_ref() != Some(after) {
                return Err(format!(
                    "cut off, {branch} has {now:?}, not {before:?} or {after:?}"
                ));
            }
        }
        is_new |= self.close_unknown().await?;
        self.learn(&expected.made).await?;
        *self.count(kind, 2 + usize::from(is_new)) += 1;
        // Nobody has lost anything.
        for at in 0..self.sessions.len() {
            self.verify(at).await?;
        }
        Ok(())
    }

    /// Closes sessions that nobody was told of, but for those of imports, which end by themselves.
    async fn close_unknown(&mut self) -> Result<bool, String> {
        let store = &self.process.store;
        let listed = store
            .sessions(TENANT, None, None, 100)
            .await
            .map_err(text)?;
        let unknown = listed.into_iter().filter(|found| {
            let is_known = self.sessions.iter().any(|session| session.id == found.id);
            !is_known && found.record.agent != STAGING_AGENT
        });
        let mut is_any = false;
        for session in unknown.collect::<Vec<_>>() {
            self.close(session.id).await?;
            is_any = true;
        }
        Ok(is_any)
    }
}

fn refused(mut expected: Expected) -> Expected {
    expected.is_refused = true;
    expected
}

/// What a client does.
async fn change(client: &mut Client, step: &Step) -> Result<Done, String> {
    match step {
        Step::Write(path, number) => client.write(path, *number).await?,
        Step::Remove(path) => client.remove(path).await?,
        other => return Err(format!("{other:?} is no client's")),
    }
    Ok(Done::Nothing)
}

/// What the API does to a session.
async fn outside(
    gateway: &Arc<Gateway>,
    workspace: WorkspaceId,
    id: SessionId,
    step: &Step,
) -> Result<Done, String> {
    let about = About::default();
    let done = match step {
        Step::Fork => {
            let fork = ForkSession {
                read_only: false,
                identity: None,
                agent: String::new(),
                run: String::new(),
                ttl_seconds: None,
            };
            let forked = gateway.fork(TENANT, id, fork).await.map_err(text)?;
            return Ok(Done::Opened(Box::new(forked)));
        }
        Step::Publish(branch, policy) => {
            let branch = Some(RefName::new(branch).map_err(text)?);
            let published = gateway.publish(TENANT, id, about, branch, *policy).await;
            published.map(|_| Done::Nothing)
        }
        Step::Checkpoint => {
            let made = gateway.checkpoint(TENANT, id, about).await;
            made.map(|_| Done::Nothing)
        }
        Step::Restore(version, paths) => {
            let (version, paths) = (version.to_string(), paths.iter());
            let paths: Vec<Vec<u8>> = paths.map(|path| path.as_bytes().to_vec()).collect();
            let restored = gateway.restore(TENANT, id, &version, &paths).await;
            restored.map(|restored| Done::Exchanged(restored.done.map(|done| done.1)))
        }
        Step::Sync(policy) => {
            let synced = gateway.sync(TENANT, id, *policy, Attempt::Real).await;
            synced.map(|synced| Done::Exchanged(synced.done.map(|done| done.1)))
        }
        Step::Undo(operation, _) => {
            let undone = gateway.undo(TENANT, workspace, *operation).await;
            undone.map(|()| Done::Nothing)
        }
        other => return Err(format!("{other:?} is not done from outside")),
    };
    match done {
        Err(
            HistoryError::Conflicts { .. }
            | HistoryError::SyncConflicts { .. }
            | HistoryError::Unrelated { .. },
        ) => Ok(Done::Refused),
        done => done.map_err(text),
    }
}

async fn import(
    gateway: &Arc<Gateway>,
    branch: &str,
    tree: &Copied,
    attributes: Attributes,
) -> Result<Done, String> {
    let plan = ImportPlan {
        workspace: WORKSPACE.into(),
        branch: Some(RefName::new(branch).map_err(text)?),
        parents: None,
    };
    let mut importing = gateway.begin_import(TENANT, plan).await.map_err(text)?;
    let with = |mode| Attributes { mode, ..attributes };
    importing.directory(b"", with(0o777)).await.map_err(text)?;
    for name in DIRECTORIES {
        let made = importing.directory(name.as_bytes(), with(0o755)).await;
        made.map_err(text)?;
    }
    for (path, number) in tree {
        let content = content(*number);
        let size = u64::try_from(content.len()).unwrap();
        let begun = importing.file(path.as_bytes(), attributes, size).await;
        begun.map_err(text)?;
        importing.data(0, &content).await.map_err(text)?;
        importing.end_file().await.map_err(text)?;
        // What has come is stored: so is what a broken import leaves.
        importing.idle().await.map_err(text)?;
    }
    let imported = importing.finish(About::default()).await;
    imported.map(|_| Done::Nothing).map_err(text)
}
