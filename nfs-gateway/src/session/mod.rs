//! A session owned by this gateway: its image in memory, its calls in order, its flushes.
//!
//! A call runs under the session's lock, on the connection's own task, and never awaits there. If
//! memory has the answer and the answer is durable, the reply goes out at once. If it shows a
//! change that is not durable yet it is parked until the flush that carries the change is done. If
//! it needs something from a store a task of its own gets that and runs the call again.
//!
//! There is one lock per session. It is held for the length of one operation, never across an
//! await, and no other lock is taken under it but a connection's own and those with which the
//! chunk store counts holds. Letting go of it settles the account with the gateway's budget
//! (`state.rs`).

mod ahead;
mod changing;
mod exchange;
mod flush;
mod fold;
mod freeze;
mod holds;
pub(crate) mod inside;
mod loading;
pub(crate) mod replies;
mod slow;
mod state;
mod writeback;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Caller, InodeId};
use bytes::Bytes;
use chunkstore::Domain;
use metadata::FsError;
use metadata::image::{Image, ImageConfig};
use metadata::ops::Context;
use metadata::record::session::{Identity, SessionRecord};
use metadata::session::{Fence, Owned};
use parking_lot::Mutex;

use crate::connection::{Answer, CallGuard};
use crate::gateway::Shared;
use crate::handle::{FileHandle, Selector};
use crate::procedures::{self, Objects, Scope, Space, Stable, Step, View};
use crate::wire::args::NfsCall;
use crate::wire::reply::{Payload, Reply};
use crate::wire::results::{self, ReadOk};
use crate::wire::rpc::{self, Call, Credential};

pub(crate) use changing::ChangeError;
pub(crate) use exchange::{Change, Target};
pub use freeze::{ForkError, FreezeError};
use inside::Inside;
use loading::Loaders;
use replies::{Arrival, CallKey, Calls};
pub(crate) use slow::Retry;
use state::State;

/// User and group that a squashed superuser becomes.
const NOBODY: u32 = 65_534;

/// Unwritten bytes of one file from which write-back begins without being asked.
const WRITE_BACK_BYTES: usize = 8 << 20;

/// Bytes waiting for a flush beyond which calls wait for it.
const PENDING_BYTES_MAX: usize = 3 << 20;

/// A session owned by this gateway.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) record: SessionRecord,
    pub(crate) domain: Domain,
    /// Of our ownership.
    epoch: base::Epoch,
    view: View,
    state: Mutex<State>,
    loaders: Loaders,
    readers: ahead::Readers,
    /// Held while layers are folded.
    folding: tokio::sync::Mutex<()>,
    /// Held while the image is exchanged, and while a conflict is resolved.
    pub(crate) exchanging: tokio::sync::Mutex<()>,
    /// Told when calls are no longer held up.
    released: tokio::sync::Notify,
    /// Told when a write-back ends.
    written: tokio::sync::Notify,
    /// Told when a flush ends.
    flushed: tokio::sync::Notify,
    last_used_ms: AtomicU64,
    inside: Inside,
}

/// A reply that waits until what it shows is durable.
#[derive(Debug)]
struct Parked {
    after: u64,
    reply: Reply,
    to: Recipient,
    /// The call, in case it has to run again.
    record: Bytes,
    /// The flush also stores the reply.
    stored: bool,
}

/// Where a reply goes.
#[derive(Debug)]
pub(crate) enum Recipient {
    /// To whom the call table says.
    Table {
        /// The call.
        key: CallKey,
        /// Its reply is stored with what it changes.
        store: bool,
    },
    /// To the connection the call came over.
    Direct(CallGuard),
}

/// A call as the session sees it.
pub(crate) struct Request<'a> {
    /// The whole message.
    pub(crate) record: &'a Bytes,
    pub(crate) call: &'a Call<'a>,
    pub(crate) nfs: &'a NfsCall<'a>,
    pub(crate) objects: Objects,
    /// Flags of the handle the call came with.
    pub(crate) flags: u16,
    /// The tree that its objects are in.
    pub(crate) selector: Selector,
}

/// A READ that has looked at the image.
#[derive(Debug)]
pub(crate) struct Reading {
    read: metadata::ops::Read,
    /// The reply waits for this change.
    after: u64,
    /// The image it looked at.
    generation: u64,
}

/// Where an attempt at a call got to.
pub(crate) enum Attempt {
    /// Answered at once.
    Reply(Reply, Recipient),
    /// Parked: the flush will answer.
    Parked,
    /// Something has to be done first.
    Retry(Retry, Recipient),
    /// The session is not ours any more.
    Lost(Recipient),
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, owned: Owned) -> Self {
        let id = owned.fence.session();
        let epoch = owned.fence.epoch();
        let domain = Domain {
            id: base::DomainId::new(owned.session.tenant.raw()),
            key: owned.tenant.domain_key,
        };
        let config = ImageConfig {
            name_key: owned.workspace.name_key,
            block_bytes: owned.workspace.block_bytes,
            bytes_max: owned.tenant.bytes_max,
            inodes_max: owned.tenant.inodes_max,
            read_only: owned.session.read_only,
        };
        let view = View {
            keys: Arc::clone(&shared.keys),
            session: id,
            revocation: owned.session.revocation,
            flags: 0,
            fsid: id.raw(),
            verifier: verifier(&owned.fence, 0),
            selector: Selector::LIVE,
        };
        let image = Image::new(config, owned.totals);
        let calls = Calls::from_stored(owned.replies, shared.clock.monotonic());
        let mut state = State::new(image, calls, owned.fence, owned.totals, owned.layers);
        state.open_is_empty = owned.open_is_empty;
        Self {
            record: owned.session,
            epoch,
            domain,
            view,
            state: Mutex::new(state),
            loaders: Loaders::new(),
            readers: ahead::Readers::new(),
            folding: tokio::sync::Mutex::new(()),
            exchanging: tokio::sync::Mutex::new(()),
            released: tokio::sync::Notify::new(),
            written: tokio::sync::Notify::new(),
            flushed: tokio::sync::Notify::new(),
            last_used_ms: AtomicU64::new(0),
            inside: Inside::new(shared.clock.wall()),
            shared,
        }
    }

    /// The session's number.
    pub(crate) fn id(&self) -> base::SessionId {
        self.view.session
    }

    /// Of our ownership.
    pub(crate) fn epoch(&self) -> base::Epoch {
        self.epoch
    }

    /// Whether a handle belongs to this session as it is now.
    pub(crate) fn accepts(&self, handle: &FileHandle) -> bool {
        handle.session == self.view.session && handle.revocation == self.view.revocation
    }

    /// The view that mounts of this session share, with the flags of one of them.
    pub(crate) fn view(&self, flags: u16) -> View {
        View {
            flags,
            ..self.view.clone()
        }
    }

    /// Runs a call that has just arrived, as far as memory can answer it.
    pub(crate) fn serve(
        self: &Arc<Self>,
        request: &Request<'_>,
        guard: CallGuard,
    ) -> Option<Answer> {
        let record = request.record;
        let to = match self.arrive(request, guard) {
            Ok(to) => to,
            Err(replayed) => return replayed,
        };
        if !request.selector.is_live() {
            self.go_inside(record.clone(), to);
            return None;
        }
        match self.attempt(request, to) {
            Attempt::Reply(reply, Recipient::Direct(guard)) => Some(guard.answer(reply)),
            Attempt::Reply(reply, to) => {
                self.deliver(reply, to);
                None
            }
            Attempt::Parked => None,
            Attempt::Retry(retry, to) => {
                self.go_slow(record.clone(), retry, to);
                None
            }
            Attempt::Lost(to) => {
                self.go_elsewhere(record.clone(), to);
                None
            }
        }
    }

    /// Looks a call up among those that ran or run. `Err` is the answer to a copy.
    fn arrive(&self, request: &Request<'_>, guard: CallGuard) -> Result<Recipient, Option<Answer>> {
        if !is_tracked(request.nfs) {
            return Ok(Recipient::Direct(guard));
        }
        let xid = request.call.xid;
        let key = CallKey::of(xid, request.record);
        let arrival = self.lock().calls.arrive(key, guard);
        match arrival {
            Arrival::New => {
                let store = !matches!(request.nfs, NfsCall::Write(_));
                Ok(Recipient::Table { key, store })
            }
            Arrival::Running { .. } => {
                self.shared.counters.duplicates_running.count();
                Err(None)
            }
            Arrival::Done {
                result,
                loaded,
                guard,
            } => {
                self.shared.counters.replayed.count();
                if loaded {
                    self.shared.counters.replayed_from_store.count();
                    // Rare, and the proof that a crash was survived without doing a call twice.
                    tracing::info!(session = %self.view.session, xid, "call has its stored reply");
                }
                Err(Some(guard.answer(rpc::repeated(xid, &result))))
            }
        }
    }

    /// Runs a call once.
    pub(crate) fn attempt(self: &Arc<Self>, request: &Request<'_>, to: Recipient) -> Attempt {
        let caller = self.caller(&request.call.credential);
        let now = self.shared.clock.wall();
        let space = self.shared.space();
        self.used();
        let mut state = self.lock();
        if state.lost {
            return Attempt::Lost(to);
        }
        if state.held.holds(request.nfs) {
            return Attempt::Retry(Retry::Held, to);
        }
        if state.image.pending_bytes() > PENDING_BYTES_MAX {
            self.kick_flush(&mut state);
            return Attempt::Retry(Retry::Flush, to);
        }
        let mut view = View {
            flags: request.flags,
            ..self.view.clone()
        };
        view.verifier = self.verifier(&state);
        let space = Space {
            refuses: state.is_full(self.shared.clock.as_ref()),
            ..space
        };
        let generation = state.generation;
        let (step, ran) = state.image.run(|image| {
            let cx = Context {
                caller: &caller,
                now,
            };
            let scope = Scope {
                xid: request.call.xid,
                image,
                cx,
                view: &view,
                space,
                inside: Some(&self.inside),
            };
            procedures::execute(scope, request.nfs, request.objects)
        });
        self.after_run(&mut state, request.objects.first);
        if ran.changed {
            self.kick_flush(&mut state);
        }
        match step {
            Step::Reply(reply) => self.answer(&mut state, request.record, reply, to, ran),
            Step::Load(misses) => Attempt::Retry(Retry::Load(misses), to),
            Step::Read(read) => {
                drop(state);
                let reading = Reading {
                    read,
                    after: ran.durable_after,
                    generation,
                };
                self.finish_read(request, reading, to)
            }
            Step::Stable(stable) => Attempt::Retry(Retry::Store(stable), to),
        }
    }

    /// Sends or parks the reply of a call that has run.
    fn answer(
        self: &Arc<Self>,
        state: &mut State,
        record: &Bytes,
        reply: Reply,
        to: Recipient,
        ran: metadata::image::Ran,
    ) -> Attempt {
        let mut stored = false;
        if ran.changed
            && let Recipient::Table { key, store: true } = &to
        {
            stored = true;
            state.replies.push(metadata::session::StoredReply {
                xid: key.xid,
                hash: key.hash,
                reply: Bytes::copy_from_slice(reply.body()),
            });
        }
        if ran.durable_after <= state.image.durable() {
            return Attempt::Reply(reply, to);
        }
        state.parked.push(Parked {
            after: ran.durable_after,
            reply,
            to,
            record: record.clone(),
            stored,
        });
        // What it waits for may have been changed by a call whose flush has not begun.
        self.kick_flush(state);
        Attempt::Parked
    }

    /// Answers a READ whose pieces are all in memory, or says what has to be fetched.
    fn finish_read(
        self: &Arc<Self>,
        request: &Request<'_>,
        reading: Reading,
        to: Recipient,
    ) -> Attempt {
        if let NfsCall::Read(args) = request.nfs {
            let end = args.offset.saturating_add(u64::from(reading.read.count));
            self.read_ahead(request.objects.first, args.offset..end);
        }
        let cached = |id| self.shared.chunks.cached(self.domain, id);
        match writeback::payload(&reading.read.pieces, cached) {
            Ok(payload) => self.answer_read(request, &reading, payload, to),
            Err(_) => Attempt::Retry(Retry::Fetch(reading), to),
        }
    }

    fn answer_read(
        self: &Arc<Self>,
        request: &Request<'_>,
        reading: &Reading,
        payload: Payload,
        to: Recipient,
    ) -> Attempt {
        let attributes = Some(self.view.fattr(&reading.read.file));
        let reply = results::read(
            request.call.xid,
            &ReadOk {
                attributes,
                eof: reading.read.end,
            },
            payload,
        );
        let mut state = self.lock();
        if state.lost {
            return Attempt::Lost(to);
        }
        if state.generation != reading.generation {
            // What it shows may never have become durable.
            return Attempt::Retry(Retry::Again, to);
        }
        let ran = metadata::image::Ran {
            durable_after: reading.after,
            changed: false,
        };
        self.answer(&mut state, request.record, reply, to, ran)
    }

    /// Sends a reply to whoever waits for it, and remembers it if the call is tracked.
    fn deliver(&self, reply: Reply, to: Recipient) {
        let guard = match to {
            Recipient::Direct(guard) => Some(guard),
            Recipient::Table { key, .. } => {
                let result = Bytes::copy_from_slice(reply.body());
                let now = self.shared.clock.monotonic();
                self.lock().calls.finish(key, result, false, now)
            }
        };
        if let Some(guard) = guard {
            guard.send(reply);
        }
    }

    /// Closes the connection of a call that gets no reply: the client will ask again.
    pub(crate) fn hang_up(&self, to: Recipient) {
        let guard = match to {
            Recipient::Direct(guard) => Some(guard),
            Recipient::Table { key, .. } => self.lock().calls.abandon(key),
        };
        if let Some(guard) = guard {
            guard.close();
        }
    }

    /// Bookkeeping after an operation: write-back of large files, memory.
    fn after_run(self: &Arc<Self>, state: &mut State, inode: InodeId) {
        if state.owes_budget() {
            let file = state.image.dirty_bytes(inode);
            let pressed = self.shared.is_pressed() && file > 0;
            if (file >= WRITE_BACK_BYTES || pressed) && !state.image.is_writing(inode) {
                self.begin_write_back(inode);
            }
        }
        self.limit_memory(state);
    }

    /// The identity a call runs as.
    fn caller(&self, credential: &Credential<'_>) -> Caller {
        let nobody = Caller {
            uid: NOBODY,
            gid: NOBODY,
            groups: Vec::new(),
        };
        let claimed = credential.caller();
        match self.record.identity {
            Identity::AllSquash { uid, gid } => Caller {
                uid,
                gid,
                groups: Vec::new(),
            },
            Identity::Passthrough => claimed.unwrap_or(nobody),
            Identity::RootSquash => match claimed {
                Some(caller) if !caller.is_root() => caller,
                _ => nobody,
            },
        }
    }

    fn verifier(&self, state: &State) -> [u8; 8] {
        if state.losses == 0 {
            return self.view.verifier;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.view.verifier);
        hasher.update(&state.losses.to_be_bytes());
        first_8(&hasher)
    }

    /// Takes note of a call.
    fn used(&self) {
        self.last_used_ms
            .store(self.shared.now_ms(), Ordering::Relaxed);
    }

    /// Whether the session has been left alone for `idle`, and could be dropped without loss.
    pub(crate) fn is_idle(&self, now_ms: u64, idle: Duration) -> bool {
        let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let last = self.last_used_ms.load(Ordering::Relaxed);
        if now_ms.saturating_sub(last) < idle_ms {
            return false;
        }
        let state = self.lock();
        state.lost || state.is_quiet()
    }

    /// Stops serving the session and gives up what is only in memory. Connections with calls of it
    /// are closed, so that the clients ask again.
    pub(crate) fn retire(&self) {
        let (parked, running) = {
            let mut state = self.lock();
            state.lost = true;
            state.freezers.clear();
            state.exchange = None;
            state.waiting.clear();
            (std::mem::take(&mut state.parked), state.calls.abandon_all())
        };
        for guard in running {
            guard.close();
        }
        for parked in parked {
            if let Recipient::Direct(guard) = parked.to {
                guard.close();
            }
        }
        self.flushed.notify_waiters();
        self.written.notify_waiters();
        self.released.notify_waiters();
    }

    /// Stops serving the session, which has another owner or may have, and gives up what is only in
    /// memory. Calls in progress are asked anew, of whoever owns the session then: as their clients
    /// would, had their connections been closed, but sooner.
    pub(crate) fn give_up(self: &Arc<Self>) {
        let parked = {
            let mut state = self.lock();
            state.lost = true;
            state.freezers.clear();
            state.exchange = None;
            state.waiting.clear();
            std::mem::take(&mut state.parked)
        };
        for Parked { record, to, .. } in parked {
            self.go_elsewhere(record, to);
        }
        // The others have tasks, which find that the session is lost.
        self.flushed.notify_waiters();
        self.written.notify_waiters();
        self.released.notify_waiters();
    }

    /// Retires the session if nothing of it is only in memory, and nothing is done with it.
    pub(crate) fn retire_if_unused(&self) -> bool {
        let (Ok(_folding), Ok(_exchanging)) = (self.folding.try_lock(), self.exchanging.try_lock())
        else {
            return false;
        };
        self.retire_if_quiet()
    }

    /// Retires the session if nothing of it is only in memory.
    pub(crate) fn retire_if_quiet(&self) -> bool {
        let mut state = self.lock();
        if !state.lost && !state.is_quiet() {
            return false;
        }
        state.lost = true;
        true
    }
}

/// Whether a copy of the call must not run again.
fn is_tracked(call: &NfsCall<'_>) -> bool {
    matches!(
        call,
        NfsCall::Setattr(_)
            | NfsCall::Write(_)
            | NfsCall::Create(_)
            | NfsCall::Mkdir(_)
            | NfsCall::Symlink(_)
            | NfsCall::Mknod(_)
            | NfsCall::Remove(_)
            | NfsCall::Rmdir(_)
            | NfsCall::Rename(_)
            | NfsCall::Link(_)
    )
}

/// The write verifier: a function of session and epoch, so that it changes exactly when data that
/// was only buffered may be lost.
fn verifier(fence: &Fence, losses: u64) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&fence.session().raw().to_be_bytes());
    hasher.update(&fence.epoch().raw().to_be_bytes());
    hasher.update(&losses.to_be_bytes());
    first_8(&hasher)
}

fn first_8(hasher: &blake3::Hasher) -> [u8; 8] {
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// A failed call's reply, when only the error is known.
fn failure(session: &Session, request: &Request<'_>, error: FsError) -> Reply {
    let state = session.lock();
    let objects = request.objects;
    let stats = (
        state.image.peek(objects.first),
        state.image.peek(objects.second),
    );
    drop(state);
    procedures::failed(
        request.call.xid,
        request.nfs,
        error,
        stats,
        session.view.fsid,
    )
}

/// What a stable write's task needs beside the session.
pub(crate) type StableWrite = Stable;
