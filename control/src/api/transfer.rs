//! Trees in and out, as tar archives: `POST /v1/workspaces/NAME/import`, `GET …/export`.
//!
//! The archive is read by a thread that may block, from what the connection gives, and what it finds is
//! taken in by a task; between them are short queues, so that neither runs ahead. A peer that sends
//! next to nothing (`receiving.rs`) or takes nothing for [`PATIENCE`] is given up.

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, header};
use axum::response::IntoResponse;
use base::{Clock, CommitId, Tasks, Told};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{FuturesOrdered, unfold};
use metadata::compare::Source;
use metadata::import::{Attributes, Special};
use metadata::record::inode::InodeRecord;
use metadata::record::reference::RefName;
use metadata::stat::FileKind;
use nfs_gateway::{Exporting, Found, Gateway, ImportPlan, Importing, TransferError};
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use super::ApiState;
use super::describe::{Archive, Created, Either};
use super::input::{Parameters, Place, Tenant};
use super::receiving::feed;
use super::work::Turns;
use crate::history::Checkpoint;
use crate::status::ApiError;
use crate::streaming::{ChannelReader, Piece};
use crate::tar::{self, Extent, Kind, Member, TarError};
use crate::transfer::{Counts, Exportable, Imported};

/// Imports at a time: each has some MiB in memory.
const IMPORTS_MAX: usize = 4;

/// Exports at a time.
const EXPORTS_MAX: usize = 8;

/// A peer may take nothing for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Parts of an archive that wait to be read.
const PIECES_MAX: usize = 8;

/// What was found in an archive and waits to be taken in.
const EVENTS_MAX: usize = 32;

/// Chunks that an export reads ahead.
const AHEAD_MAX: usize = 8;

/// Bytes that an export sends at a time, about.
const PIECE_BYTES: usize = 256 * 1024;

/// Imports, and exports, that wait for their turn: those before them may have ended without their callers.
const WAITING_MAX: usize = 16;

/// How many transfers run at a time.
#[derive(Debug)]
pub(super) struct Limits {
    imports: Turns,
    exports: Turns,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            imports: Turns::new("imports", IMPORTS_MAX, WAITING_MAX),
            exports: Turns::new("exports", EXPORTS_MAX, WAITING_MAX),
        }
    }
}

/// Whether the body of a request may be of any length.
pub(super) fn takes_a_stream(head: &Parts) -> bool {
    let path = head.uri.path();
    let is_import = path.starts_with("/v1/workspaces/") && path.ends_with("/import");
    head.method == Method::POST && is_import
}

/// Where an archive is to go.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ImportTo {
    /// The branch. None if `parents` is given without it, else `main`.
    branch: Option<String>,
    /// Ids of commits, with commas between them, instead of what the branch has.
    parents: Option<String>,
    /// What the commit is to say, in JSON, as for a checkpoint.
    about: Option<String>,
    /// The archive begins with that instead, put there by whoever sends it.
    #[serde(default)]
    about_inside: bool,
}

/// What is to be exported.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportOf {
    /// The version; `main` if left out.
    version: Option<String>,
    /// A version: what it has as well is not sent, but told to be kept.
    since: Option<String>,
    /// Only look whether it can be exported, without content.
    #[serde(default)]
    check: bool,
}

/// What an archive tells.
#[derive(Debug)]
enum Event {
    Member(Box<Member>),
    Data(u64, Vec<u8>),
    /// All content of the last member was told.
    End,
}

pub(super) async fn import(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    Parameters(to): Parameters<ImportTo>,
    body: Body,
) -> Result<Created<Imported>, ApiError> {
    let (plan, about) = planned(workspace, &to)?;
    let turn = state.transfers.imports.take(state.clock.as_ref()).await?;
    let gateway = Arc::clone(&state.counted.gateway);
    let (clock, tasks) = (Arc::clone(&state.clock), state.tasks.clone());
    let work = async move {
        let _turn = turn;
        let mut stream = body.into_data_stream();
        let branch = plan.branch.clone();
        let imported =
            import_now(&gateway, tenant, plan, about, (&mut stream, &clock, &tasks)).await;
        let (done, counts) = imported?;
        Ok(Imported {
            commit: done.commit.into(),
            branch: branch.map(|branch| branch.as_str().to_owned()),
            is_new: done.is_new,
            operation: done.operation.map(|operation| operation.to_string()),
            counts,
        })
    };
    let imported = state.work.to_end(work).await?;
    Ok(Created(imported))
}

/// What the commit is to say: what the sender says beside the archive, or, if that is what it says,
/// in front of it. An archive that somebody else made says nothing of who imports it.
#[derive(Debug)]
enum Said {
    Beside(Checkpoint),
    Inside,
}

fn planned(workspace: String, to: &ImportTo) -> Result<(ImportPlan, Said), ApiError> {
    let parents = match to.parents.as_deref() {
        None => None,
        Some("") => Some(Vec::new()),
        Some(text) => {
            let ids: Result<Vec<CommitId>, _> = text.split(',').map(str::parse).collect();
            let wrong = |_| ApiError::invalid("parents are whole ids of commits, with ',' between");
            Some(ids.map_err(wrong)?)
        }
    };
    let branch = match (to.branch.as_deref(), &parents) {
        (Some(branch), _) => Some(
            RefName::new(branch)
                .map_err(|error| ApiError::invalid(format!("branch {branch:?}: {error}")))?,
        ),
        (None, Some(_)) => None,
        (None, None) => Some(RefName::main()),
    };
    let about = match (to.about.as_deref(), to.about_inside) {
        (None, true) => Said::Inside,
        (None, false) => Said::Beside(Checkpoint::default()),
        (Some(text), false) => Said::Beside(about_of(text)?),
        (Some(_), true) => {
            let why = "about is said either with the call or inside of the archive: leave one out";
            return Err(ApiError::invalid(why));
        }
    };
    let plan = ImportPlan {
        workspace,
        branch,
        parents,
    };
    Ok((plan, about))
}

fn about_of(text: &str) -> Result<Checkpoint, ApiError> {
    let read = serde_json::from_str(text);
    read.map_err(|error| ApiError::invalid(format!("about: {error}")))
}

/// What an archive comes from.
type Feed<'a> = (&'a mut BodyDataStream, &'a Arc<dyn Clock>, &'a Tasks);

async fn import_now(
    gateway: &Arc<Gateway>,
    tenant: base::TenantId,
    plan: ImportPlan,
    about: Said,
    (stream, clock, tasks): Feed<'_>,
) -> Result<(nfs_gateway::Imported, Counts), ApiError> {
    let mut importing = gateway.begin_import(tenant, plan).await?;
    let (pieces, from) = mpsc::channel(PIECES_MAX);
    let (events, mut found) = mpsc::channel(EVENTS_MAX);
    let reading = tokio::task::spawn_blocking(move || read(ChannelReader::new(from), &events));
    let mut counts = Counts::default();
    let taking = async {
        let taken = take(&mut importing, &mut found, clock.as_ref(), &mut counts).await;
        // Whoever still reads is not waited for.
        found.close();
        drop(found);
        taken
    };
    let ((), taken) = tokio::join!(feed(stream, pieces, clock.as_ref(), tasks), taking);
    let read = reading.await;
    let outcome = match (taken, read) {
        (Err(error), _) => Err(error.into()),
        (Ok(()), Ok(Ok(read))) => {
            counts.ignored = read.ignored;
            counts.directories = importing.directories();
            match (about, read.about.as_deref()) {
                (Said::Beside(about), _) => Ok(about),
                (Said::Inside, Some(text)) => about_of(text),
                (Said::Inside, None) => Ok(Checkpoint::default()),
            }
        }
        (Ok(()), Ok(Err(error))) => Err(refused(&error)),
        (Ok(()), Err(_)) => Err(ApiError::not_ready("the archive was not read to its end")),
    };
    match outcome {
        Ok(about) => Ok((importing.finish(about.into()).await?, counts)),
        Err(error) => {
            importing.give_up().await;
            Err(error)
        }
    }
}

fn refused(error: &TarError) -> ApiError {
    match error {
        TarError::Truncated(_) => ApiError::invalid(format!(
            "{error}: nothing was kept of it; make it anew or send it again"
        )),
        TarError::Malformed { .. } => ApiError::invalid(error.to_string()),
        // The body, not the archive: see `receiving.rs`.
        TarError::Io(why) if why.kind() == ErrorKind::InvalidData => {
            ApiError::invalid(format!("{error}; nothing of it was kept"))
        }
        TarError::Io(_) => ApiError::not_ready(format!("{error}; nothing of it was kept")),
    }
}

/// What an archive says beside its members: how many records say what is not kept, and what the
/// commit is to say.
#[derive(Debug, Default)]
struct ReadOf {
    ignored: u64,
    about: Option<String>,
}

/// Reads an archive.
fn read(from: impl Read, to: &mpsc::Sender<Event>) -> Result<ReadOf, TarError> {
    let mut reader = tar::Reader::new(from);
    // Nobody takes what is found once something failed there.
    let tell = |event| to.blocking_send(event).is_ok();
    while let Some(member) = reader.next()? {
        let is_file = matches!(member.kind, Kind::File { .. });
        if !tell(Event::Member(Box::new(member))) {
            return Ok(ReadOf::default());
        }
        if is_file {
            while let Some((offset, data)) = reader.data()? {
                if !tell(Event::Data(offset, data)) {
                    return Ok(ReadOf::default());
                }
            }
            if !tell(Event::End) {
                return Ok(ReadOf::default());
            }
        }
    }
    Ok(ReadOf {
        ignored: reader.ignored(),
        about: reader.about().map(str::to_owned),
    })
}

/// Takes in what is found until there is no more.
async fn take(
    importing: &mut Importing,
    found: &mut mpsc::Receiver<Event>,
    clock: &dyn Clock,
    counts: &mut Counts,
) -> Result<(), TransferError> {
    let mut has_waited = false;
    loop {
        let patience = importing.patience();
        let event = tokio::select! {
            event = found.recv() => event,
            () = clock.sleep(patience), if !has_waited => {
                // Once is enough: nothing comes.
                has_waited = true;
                importing.idle().await?;
                continue;
            }
        };
        has_waited = false;
        match event {
            None => return Ok(()),
            Some(Event::Member(member)) => member_in(importing, *member, counts).await?,
            Some(Event::Data(offset, data)) => {
                counts.bytes += u64::try_from(data.len()).unwrap_or(u64::MAX);
                importing.data(offset, &data).await?;
            }
            Some(Event::End) => importing.end_file().await?,
        }
    }
}

async fn member_in(
    importing: &mut Importing,
    member: Member,
    counts: &mut Counts,
) -> Result<(), TransferError> {
    let with = Attributes {
        mode: member.mode,
        uid: member.uid,
        gid: member.gid,
        mtime: member.mtime,
        atime: member.atime.unwrap_or(member.mtime),
    };
    let path = member.path.as_slice();
    let special = match member.kind {
        Kind::File { size } => {
            counts.files += 1;
            return importing.file(path, with, size).await;
        }
        Kind::Kept => {
            counts.kept += 1;
            return importing.keep(path).await;
        }
        Kind::Directory => return importing.directory(path, with).await,
        Kind::Link(target) => {
            counts.links += 1;
            return importing.link(path, &target).await;
        }
        Kind::Symlink(target) => {
            counts.symlinks += 1;
            return importing
                .special(path, with, Special::Symlink(target.into()))
                .await;
        }
        Kind::CharDevice(device) => Special::CharDevice(device),
        Kind::BlockDevice(device) => Special::BlockDevice(device),
        Kind::Fifo => Special::Fifo,
        Kind::Socket => Special::Socket,
    };
    counts.others += 1;
    importing.special(path, with, special).await
}

pub(super) async fn export(
    State(state): State<Arc<ApiState>>,
    Tenant(tenant): Tenant,
    Place(workspace): Place<String>,
    Parameters(of): Parameters<ExportOf>,
) -> Result<Either<Archive, Json<Exportable>>, ApiError> {
    let turn = state.transfers.exports.take(state.clock.as_ref()).await?;
    let version = of.version.as_deref().unwrap_or("main");
    let gateway = &state.counted.gateway;
    let since = of.since.as_deref();
    let exporting = gateway.begin_export(tenant, &workspace, version, since);
    let exporting = exporting.await?;
    let commit = exporting.commit().id.to_string();
    if of.check {
        let mut exporting = exporting;
        let looking = async {
            while exporting.next().await?.is_some() {}
            Ok(())
        };
        state.work.reading(looking).await?;
        return Ok(Either::Other(Json(Exportable { commit })));
    }
    let (to, from) = mpsc::channel(PIECES_MAX);
    let sending = Sending {
        to,
        clock: Arc::clone(&state.clock),
        tasks: state.tasks.clone(),
        bytes: Vec::with_capacity(PIECE_BYTES),
    };
    state.tasks.spawn(async move {
        let _turn = turn;
        sending.all(exporting).await;
    });
    let mut response = Body::from_stream(unfold(Some(from), part)).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-tar"),
    );
    if let Ok(commit) = HeaderValue::from_str(&commit) {
        headers.insert("holdfast-commit", commit);
    }
    Ok(Either::One(Archive(response)))
}

/// The next part of an export's answer. If the sender goes without a word, for whatever reason, the
/// answer must not look whole.
async fn part(
    from: Option<mpsc::Receiver<Piece>>,
) -> Option<(std::io::Result<Bytes>, Option<mpsc::Receiver<Piece>>)> {
    let mut from = from?;
    match from.recv().await {
        Some(Piece::Bytes(bytes)) => Some((Ok(bytes), Some(from))),
        Some(Piece::End) => None,
        Some(Piece::Failed(error)) => Some((Err(error), None)),
        None => Some((Err(std::io::Error::other("the export broke off")), None)),
    }
}

/// The way out of an export.
struct Sending {
    to: mpsc::Sender<Piece>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    bytes: Vec<u8>,
}

/// Why an export ends early.
enum Broken {
    /// Its peer has gone, or takes nothing.
    Peer,
    /// The server is being stopped.
    Stopped,
    /// It cannot be read.
    Here(TransferError),
}

impl From<TransferError> for Broken {
    fn from(error: TransferError) -> Self {
        Self::Here(error)
    }
}

impl Sending {
    async fn all(mut self, exporting: Exporting) {
        let commit = exporting.commit().id;
        match self.try_all(exporting).await {
            Ok(()) => {}
            // The answer has begun: all that is left is not to end it well.
            Err(Broken::Peer) => tracing::debug!(%commit, "export was broken off by its peer"),
            Err(Broken::Stopped) => {
                tracing::info!(%commit, "export breaks off as the server stops");
            }
            Err(Broken::Here(error)) => {
                tracing::warn!(%commit, error = %Told(&error), "export breaks off");
                drop(self.give(Piece::Failed(std::io::Error::other(error))).await);
            }
        }
    }

    async fn try_all(&mut self, mut exporting: Exporting) -> Result<(), Broken> {
        while let Some(found) = exporting.next().await? {
            self.one(&exporting, found).await?;
        }
        self.push(&tar::END).await?;
        self.send().await?;
        self.give(Piece::End).await
    }

    async fn one(&mut self, exporting: &Exporting, found: Found) -> Result<(), Broken> {
        let record = &found.record;
        let extents = match (&found.link_to, record.stat.kind) {
            (None, FileKind::File) if !found.is_kept => extents_of(exporting, record).await?,
            _ => Vec::new(),
        };
        let target = match record.stat.kind {
            FileKind::Symlink => record.inline.clone().unwrap_or_default(),
            _ => Bytes::new(),
        };
        let header = tar::header(&member_of(&found, &target), &extents);
        self.push(&header).await?;
        let mut sum = 0;
        for extent in &extents {
            self.extent(exporting, record, *extent).await?;
            sum += extent.length;
        }
        self.push(tar::padding(sum)).await
    }

    async fn extent(
        &mut self,
        exporting: &Exporting,
        record: &InodeRecord,
        extent: Extent,
    ) -> Result<(), Broken> {
        let mut pieces = exporting.pieces(record, extent.offset..extent.offset + extent.length);
        let mut ahead = FuturesOrdered::new();
        let mut is_over = false;
        loop {
            while !is_over && ahead.len() < AHEAD_MAX {
                match pieces.next().await.map_err(TransferError::from)? {
                    // A hole too small to be told apart, or one of very many.
                    Some(piece) if piece.source == Source::Hole => {
                        let mut rest = piece.length;
                        while let Some(read) = ahead.next().await {
                            let read: Bytes = read?;
                            self.push(&read).await?;
                        }
                        while rest > 0 {
                            let some = rest.min(64 * 1024);
                            let zeros = vec![0; usize::try_from(some).unwrap_or(0)];
                            self.push(&zeros).await?;
                            rest -= some;
                        }
                    }
                    Some(piece) => ahead.push_back(async move {
                        exporting.content(&piece.source, piece.length).await
                    }),
                    None => is_over = true,
                }
            }
            match ahead.next().await {
                Some(read) => {
                    let read: Bytes = read?;
                    self.push(&read).await?;
                }
                None => return Ok(()),
            }
        }
    }

    async fn push(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= PIECE_BYTES {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), Broken> {
        let bytes = std::mem::replace(&mut self.bytes, Vec::with_capacity(PIECE_BYTES));
        self.give(Piece::Bytes(bytes.into())).await
    }

    async fn give(&self, piece: Piece) -> Result<(), Broken> {
        tokio::select! {
            sent = self.to.send(piece) => sent.map_err(|_| Broken::Peer),
            () = self.clock.sleep(PATIENCE) => Err(Broken::Peer),
            () = self.tasks.shutdown_begun() => Err(Broken::Stopped),
        }
    }
}

fn member_of(found: &Found, target: &Bytes) -> Member {
    let stat = &found.record.stat;
    let kind = match (&found.link_to, stat.kind) {
        _ if found.is_kept => Kind::Kept,
        (Some(first), _) => Kind::Link(first.clone()),
        (None, FileKind::File) => Kind::File { size: stat.size },
        (None, FileKind::Directory) => Kind::Directory,
        (None, FileKind::Symlink) => Kind::Symlink(target.to_vec()),
        (None, FileKind::CharDevice) => Kind::CharDevice(stat.device),
        (None, FileKind::BlockDevice) => Kind::BlockDevice(stat.device),
        (None, FileKind::Fifo) => Kind::Fifo,
        (None, FileKind::Socket) => Kind::Socket,
    };
    let path = if found.path.is_empty() {
        b".".to_vec()
    } else {
        found.path.clone()
    };
    Member {
        path,
        kind,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        mtime: stat.mtime,
        atime: Some(stat.atime),
    }
}

/// The parts of a file that are no holes.
async fn extents_of(
    exporting: &Exporting,
    record: &InodeRecord,
) -> Result<Vec<Extent>, TransferError> {
    let size = record.stat.size;
    let mut extents: Vec<Extent> = Vec::new();
    if record.stat.used >= size {
        // Holes, if there are any, are smaller than what is allocated at a time.
        let all = Extent {
            offset: 0,
            length: size,
        };
        extents.extend((size > 0).then_some(all));
        return Ok(extents);
    }
    let mut pieces = exporting.pieces(record, 0..size);
    while let Some(piece) = pieces.next().await? {
        if piece.source == Source::Hole {
            continue;
        }
        let is_full = extents.len() >= tar::EXTENTS_MAX;
        match extents.last_mut() {
            Some(last) if is_full || last.offset + last.length == piece.offset => {
                last.length = piece.offset + piece.length - last.offset;
            }
            _ => extents.push(Extent {
                offset: piece.offset,
                length: piece.length,
            }),
        }
    }
    Ok(extents)
}
